//! Which era a message is of, what every request has to say, and what refuses first.

use std::sync::atomic::Ordering;

use reqwest::Method;
use serde_json::{Value, json};

use crate::http::harness::Service;
use crate::support::client::{Answer, Client};
use crate::support::modern::{Draft, Modern, VERSION};

async fn modern(service: &Service) -> Modern {
    Modern::new(&service.url, "owner")
}

fn told(answer: &Answer) -> (u16, i64) {
    (answer.status, answer.error().0)
}

// req: MOD-09, MOD-01
#[tokio::test]
async fn both_eras_are_served_at_one_address() {
    let service = Service::on_sqlite().await;
    let (old, new) = (service.client("owner").await, modern(&service).await);
    let discovered = new.request("server/discover", json!({})).await;
    assert_eq!((discovered.status, discovered.header("mcp-session-id")), (200, None));
    let discovered = discovered.result();
    assert_eq!(discovered["supportedVersions"], json!([VERSION, "2025-11-25", "2025-06-18"]));
    assert!(discovered["capabilities"].get("tasks").is_none(), "{discovered}");
    assert_eq!(old.request("ping", json!({})).await.outcome(), r#"{"result":{}}"#, "nothing is added to it");
    assert_eq!(told(&new.request("ping", json!({})).await), (404, -32601));
    // `initialize` is of the handshake era whatever its header says, unless its `_meta` says otherwise.
    let hello =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } });
    let mut plain = new.draft("initialize", hello.clone());
    plain.body["params"] = hello.clone();
    let answer = new.send(plain).await;
    assert_eq!((answer.status, answer.header("mcp-session-id").is_some()), (200, true));
    assert_eq!(answer.result()["protocolVersion"], "2025-11-25");
    assert_eq!(told(&new.request("initialize", hello).await), (404, -32601));
    // A header that names this era is enough, so is the method that only this era has.
    let bare =
        |method: &str| Draft { headers: Vec::new(), body: json!({ "jsonrpc": "2.0", "id": "x", "method": method }) };
    assert_eq!(told(&new.send(bare("tools/list").also("mcp-protocol-version", VERSION)).await), (400, -32602));
    assert_eq!(told(&new.send(bare("server/discover")).await), (400, -32602));
    assert_eq!(new.send(bare("tools/list")).await.status, 400, "a session is missing");
}

// req: MOD-02
#[tokio::test]
async fn what_every_request_has_to_say_is_asked_for() {
    let service = Service::on_sqlite().await;
    let client = modern(&service).await;
    for (key, value) in [
        ("protocolVersion", Value::Null),
        ("protocolVersion", json!(7)),
        ("clientCapabilities", Value::Null),
        ("clientCapabilities", json!([])),
    ] {
        let draft = client.draft("tools/list", json!({})).with_meta(key, value.clone());
        let id = draft.body["id"].clone();
        let answer = client.send(draft).await;
        let (code, message) = answer.error();
        assert_eq!((answer.status, code, &answer.json()["id"]), (400, -32602, &id), "{key} {value}");
        assert!(message.contains(key), "{message}");
    }
    let anonymous = client.draft("server/discover", json!({})).with_meta("clientInfo", Value::Null);
    assert_eq!(client.send(anonymous).await.status, 200, "who the client is need not be said");
    // Nothing is remembered of an earlier request.
    assert_eq!(client.request("tools/list", json!({})).await.status, 200);
    let forgetful = client.draft("tools/list", json!({})).with_meta("clientCapabilities", Value::Null);
    assert_eq!(told(&client.send(forgetful).await), (400, -32602));
}

// req: MOD-04
// field case: F-HTTP-08
#[tokio::test]
async fn a_version_that_is_not_served_is_told_what_is() {
    let service = Service::on_sqlite().await;
    let client = modern(&service).await;
    for (version, supported) in [
        ("v999.0.0", json!([VERSION, "2025-11-25", "2025-06-18"])),
        ("2027-01-01", json!([VERSION, "2025-11-25", "2025-06-18"])),
        ("2025-11-25", json!([VERSION])),
        ("2025-06-18", json!([VERSION])),
    ] {
        let draft = client.draft("tools/list", json!({})).with_meta("protocolVersion", json!(version));
        let answer = client.send(draft.with("mcp-protocol-version", version)).await;
        assert_eq!(told(&answer), (400, -32022), "{version}");
        assert_eq!(answer.json()["error"]["data"], json!({ "supported": supported, "requested": version }));
    }
}

// req: HTTP-13 (modern half), HTTP-15 (modern half)
#[tokio::test]
async fn the_first_refusal_that_applies_answers() {
    let service = Service::on_sqlite().await;
    let client = modern(&service).await;
    let wrong = Modern { token: Some("wrong".to_owned()), ..client.clone() };
    // Everything is wrong with it; then one thing after the other is put right.
    let call = |name: &str, arguments: Value| {
        client
            .draft("tools/call", json!({ "name": name, "arguments": arguments }))
            .with("mcp-protocol-version", "2027-01-01")
            .with("mcp-method", "tools/list")
            .with("mcp-name", "another")
    };
    let draft = call("unknown", json!(7)).with_meta("protocolVersion", Value::Null);
    let elsewhere = draft.clone().also("host", "evil.example");
    assert_eq!(wrong.send(elsewhere).await.status, 403);
    assert_eq!(Modern { accept: "text/html", ..wrong.clone() }.send(draft.clone()).await.status, 406);
    assert_eq!(wrong.send(draft.clone()).await.status, 401);
    assert_eq!(told(&client.send(draft.clone()).await), (400, -32602), "_meta");
    let draft = draft.with_meta("protocolVersion", json!("v9"));
    assert_eq!(told(&client.send(draft.clone()).await), (400, -32020), "header against _meta");
    let draft = draft.with("mcp-protocol-version", "v9");
    assert_eq!(told(&client.send(draft.clone()).await), (400, -32022), "version");
    let draft = draft.with("mcp-protocol-version", VERSION).with_meta("protocolVersion", json!(VERSION));
    let (_, message) = client.send(draft.clone()).await.error();
    assert!(message.contains("Mcp-Method"), "{message}");
    let draft = draft.with("mcp-method", "tools/call");
    let (code, message) = client.send(draft.clone()).await.error();
    assert!(code == -32020 && message.contains("Mcp-Name"), "{message}");
    let draft = draft.with("mcp-name", "unknown");
    let (code, message) = client.send(draft).await.error();
    assert!(code == -32602 && message.contains("arguments"), "parameters: {message}");
    // What is missing is said to be missing.
    let nameless = client.draft("tools/call", json!({ "arguments": {} })).with("mcp-name", "eager");
    let (code, message) = client.send(nameless).await.error();
    assert!(code == -32020 && message.contains("params.name is missing") && !message.contains("\"\""), "{message}");
    // An unknown method is unknown only after its headers.
    let unknown = client.draft("no/such/method", json!({}));
    assert_eq!(told(&client.send(unknown.clone().without("mcp-method")).await), (400, -32020));
    assert_eq!(told(&client.send(unknown).await), (404, -32601));
    assert!(service.script.is_idle().await, "nothing ran");
}

// req: MOD-05, MOD-08
// field case: F-P26-05
#[tokio::test]
async fn what_this_era_does_not_have_is_not_there() {
    let service = Service::on_sqlite().await;
    let client = modern(&service).await;
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "unknown/method",
        "Tools/List",
        "prompts/list",
        "prompts/get",
        "resources/read",
    ] {
        let params = json!({ "name": "p", "uri": "x://1" });
        let draft = client.draft(method, params);
        let id = draft.body["id"].clone();
        let answer = client.with_tasks().send(draft).await;
        assert_eq!((told(&answer), &answer.json()["id"]), ((404, -32601), &id), "{method}");
    }
    let with_headers = |method| client.http.request(method, &service.url).header("authorization", "Bearer owner");
    for method in [Method::GET, Method::DELETE] {
        let request = with_headers(method.clone()).header("mcp-protocol-version", VERSION);
        let answer = Answer::read(request.header("accept", "text/event-stream").send().await.unwrap()).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{method}");
        assert_eq!(with_headers(method).header("accept", "*/*").send().await.unwrap().status().as_u16(), 400);
    }
    let strays = client
        .draft("tools/list", json!({}))
        .also("mcp-session-id", "786512e2-9e0d-44bd-8f29-789f320fe840")
        .also("last-event-id", "x");
    let answer = client.send(strays).await;
    assert_eq!((answer.status, answer.header("mcp-session-id")), (200, None));
}

// req: MOD-08, HTTP-03
#[tokio::test]
async fn a_response_is_refused_and_a_notification_taken() {
    let service = Service::on_sqlite().await;
    let client = modern(&service).await;
    let with_version = |body: Value| Draft { headers: Vec::new(), body }.also("mcp-protocol-version", VERSION);
    let response = with_version(json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
    let answer = client.send(response).await;
    assert_eq!((told(&answer), answer.json().get("id")), ((400, -32600), None));
    for method in ["notifications/cancelled", "notifications/never/heard/of"] {
        let answer = client.send(with_version(json!({ "jsonrpc": "2.0", "method": method }))).await;
        assert_eq!((answer.status, answer.body.as_str()), (202, ""));
    }
}

// req: KEEP-11 (modern half)
#[tokio::test]
async fn while_tokens_cannot_be_checked_clients_are_told_to_come_back() {
    let service = Service::on_sqlite().await;
    let (old, new): (Client, Modern) = (service.client("owner").await, modern(&service).await);
    service.names.away.store(true, Ordering::SeqCst);
    let answer = new.request("tools/list", json!({})).await;
    assert_eq!((told(&answer), answer.header("retry-after")), ((503, -32603), Some("1")));
    assert_eq!(told(&old.request("tools/list", json!({})).await), (200, -32603));
    service.names.away.store(false, Ordering::SeqCst);
    assert_eq!(new.request("tools/list", json!({})).await.status, 200);
}

// req: HTTP-04
// field case: F-HTTP-01
#[tokio::test]
async fn an_answer_comes_in_any_form_that_is_accepted_in_this_era_too() {
    let service = Service::on_sqlite().await;
    let client = modern(&service).await;
    for (accept, status, is_stream) in [
        ("application/json, text/event-stream", 200, false),
        ("text/event-stream, application/json", 200, false),
        ("text/event-stream;q=0.9,application/json;q=0.1", 200, false),
        ("application/json", 200, false),
        ("text/event-stream", 200, true),
        ("*/*", 200, false),
        ("application/*", 200, false),
        ("text/html", 406, false),
    ] {
        let client = Modern { accept, ..client.clone() };
        let answer = client.request("tools/list", json!({})).await;
        assert_eq!((answer.status, answer.is_stream()), (status, is_stream), "{accept}");
        // What is refused under another status is no stream, whatever is accepted.
        let refused = client.request("ping", json!({})).await;
        assert_eq!((refused.status, refused.is_stream()), (if status == 200 { 404 } else { 406 }, false), "{accept}");
    }
}

// req: HTTP-01, HTTP-04
// field case: F-HTTP-02, F-HTTP-03
#[tokio::test]
async fn neither_a_batch_nor_a_foreign_page_gets_in() {
    let service = Service::on_sqlite().await;
    let client = modern(&service).await;
    let call = client.draft("tools/call", json!({ "name": "optional" }));
    for body in [json!([]), json!([call.body]), json!([call.body, client.draft("initialize", json!({})).body])] {
        assert_eq!(told(&client.send(Draft { body, ..call.clone() }).await), (400, -32600));
    }
    for (origin, host, status) in [
        (Some("https://app.example"), None, 200),
        (Some("https://evil.example"), None, 403),
        (Some("null"), None, 403),
        (Some("https://evil.example"), Some("evil.example"), 403),
        (None, Some("public.example:443"), 200),
    ] {
        let mut draft = client.draft("tools/list", json!({}));
        for (name, value) in [("origin", origin), ("host", host)] {
            draft = value.into_iter().fold(draft, |draft, value| draft.also(name, value));
        }
        assert_eq!(client.send(draft).await.status, status, "{origin:?} {host:?}");
    }
    assert!(service.script.is_idle().await, "nothing ran");
}
