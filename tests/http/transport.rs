//! The transport: who may ask, in which form, and what refuses first.

use std::sync::atomic::Ordering;

use reqwest::Method;
use serde_json::json;

use super::harness::{BODY_LIMIT, Service};
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;

contract! {
    sessions_belong_to_their_context_and_end,
}

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
const UNKNOWN_SESSION: &str = "786512e2-9e0d-44bd-8f29-789f320fe840";

async fn post_with(client: &Client, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut request = client.build(Method::POST).header("content-type", "application/json").body(body.to_owned());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::read(request.send().await.unwrap()).await
}

// req: HTTP-01
// field case: F-HTTP-02
#[tokio::test]
async fn foreign_origins_and_hosts_are_forbidden() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let cases: [(&[(&str, &str)], u16); 10] = [
        (&[], 200),
        (&[("origin", "https://app.example")], 200),
        (&[("origin", "https://evil.example")], 403),
        (&[("origin", "https://app.example.evil.example")], 403),
        (&[("origin", "null")], 403),
        (&[("origin", "https://evil.example"), ("host", "evil.example")], 403),
        (&[("host", "evil.example")], 403),
        (&[("host", "public.example:443")], 200),
        (&[("host", "LOCALHOST:1")], 200),
        (&[("origin", "https://app.example"), ("origin", "https://evil.example")], 403),
    ];
    for (headers, status) in cases {
        let answer = post_with(&client, headers, PING).await;
        assert_eq!(answer.status, status, "{headers:?} {answer:?}");
        assert!(!answer.body.contains("allowed_"), "what to set is said in the log only: {answer:?}");
    }
    let health = service.url.replace("/mcp", "/healthz");
    let response = reqwest::Client::new().get(health).header("host", "evil.example").send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200, "probes come by any name");
}

// req: HTTP-03, CAP-09
#[tokio::test]
async fn notifications_and_responses_are_accepted_without_an_answer() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/never/heard/of","params":{"x":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"none"}}"#,
        r#"{"jsonrpc":"2.0","id":"x","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"m"}}"#,
    ] {
        let answer = client.send(body).await;
        assert_eq!((answer.status, answer.body.as_str()), (202, ""), "{body}");
    }
    assert_eq!(client.request("ping", json!({})).await.result(), json!({}));
    let (code, _) = client.request("no/such/method", json!({})).await.error();
    assert_eq!(code, -32601);
}

// req: HTTP-04
// field case: F-HTTP-03
#[tokio::test]
async fn what_is_no_message_is_refused_and_nothing_runs() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"optional"}}"#;
    let initialize = client.message("initialize", &json!({}));
    let cases: Vec<(Vec<u8>, i64, bool)> = vec![
        (b"".to_vec(), -32700, false),
        (b"{".to_vec(), -32700, false),
        (b"\xEF\xBB\xBF{}".to_vec(), -32700, false),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}".to_vec(), -32700, false),
        (b"[]".to_vec(), -32600, false),
        (format!("[{call}]").into_bytes(), -32600, false),
        (format!("[{initialize},{call}]").into_bytes(), -32600, false),
        (call.replace(r#""id":1"#, r#""id":null"#).into_bytes(), -32600, false),
        (call.replace(r#""id":1"#, r#""id":1.5"#).into_bytes(), -32600, false),
        (call.replace(r#""2.0""#, r#""1.0""#).into_bytes(), -32600, true),
        (call.replace(r#"{"name":"optional"}"#, "[]").into_bytes(), -32600, true),
        (call.replace(r#""name":"optional""#, r#""name":"optional","\u006eame":"never""#).into_bytes(), -32600, true),
    ];
    for (body, code, has_id) in cases {
        let text = String::from_utf8_lossy(&body).into_owned();
        let answer = client.post(body).await;
        assert_eq!((answer.status, answer.error().0), (400, code), "{text}");
        assert_eq!(answer.json().get("id").is_some(), has_id, "{text}");
    }
    assert!(service.script.is_idle().await);
}

// req: HTTP-04
// field case: F-HTTP-01
#[tokio::test]
async fn answers_come_in_a_form_that_the_client_accepts() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    for (accept, kind) in [
        ("application/json, text/event-stream", "application/json"),
        ("text/event-stream, application/json", "application/json"),
        ("application/json;q=0.1, text/event-stream;q=0.9", "application/json"),
        ("application/json", "application/json"),
        ("application/*", "application/json"),
        ("*/*", "application/json"),
        ("text/event-stream", "text/event-stream"),
    ] {
        let accepting = Client { accept, ..client.clone() };
        let answer = accepting.request("ping", json!({})).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{accept}");
        assert_eq!(answer.result(), json!({}), "{accept}");
    }
    let html = Client { accept: "text/html", ..client.clone() };
    assert_eq!(html.request("ping", json!({})).await.status, 406);
    for kind in ["text/plain", "application/jsonp"] {
        let request = client.build(Method::POST).header("content-type", kind).body(PING);
        assert_eq!(request.send().await.unwrap().status().as_u16(), 415, "{kind}");
    }
    assert_eq!(client.build(Method::POST).body(PING).send().await.unwrap().status().as_u16(), 415);
}

// req: HTTP-04, HTTP-11
#[tokio::test]
async fn bodies_are_bounded_and_large_ones_pass_unharmed() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let padded = |size: usize| format!("{PING}{}", " ".repeat(size - PING.len()));
    assert_eq!(client.send(&padded(BODY_LIMIT)).await.status, 200);
    assert_eq!(client.send(&padded(BODY_LIMIT + 1)).await.status, 413);
    let chunks = vec![Ok::<_, std::io::Error>(padded(BODY_LIMIT)), Ok(" ".to_owned())];
    let stream = reqwest::Body::wrap_stream(futures_util::stream::iter(chunks));
    let request = client.build(Method::POST).header("content-type", "application/json").body(stream);
    assert_eq!(request.send().await.unwrap().status().as_u16(), 413, "a length that was not declared counts too");
    let bomb = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}"#, r#"{"a":"#.repeat(20_000));
    let answer = client.send(&bomb).await;
    assert_eq!((answer.status, answer.error().0), (400, -32600));
    let depth = 120;
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{}{}}}}}"#,
        "[".repeat(depth),
        "]".repeat(depth)
    );
    assert_eq!(client.send(&deep).await.status, 200);
}

// req: HTTP-05
#[tokio::test]
async fn ids_are_echoed_as_sent() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    for id in ["0", "-1", "9007199254740992", "18446744073709551616", r#""""#, r#""\u0041 ä""#] {
        let answer = client.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).await;
        assert_eq!(answer.text(), format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        let answer = client.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"nothing"}}"#)).await;
        assert!(answer.text().starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":"#)), "{answer:?}");
    }
}

// req: HTTP-07, AUTH-03
async fn sessions_belong_to_their_context_and_end(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let session = client.session.clone().unwrap();
    assert!(session.len() >= 32 && session.bytes().all(|byte| byte.is_ascii_graphic()), "{session}");
    let in_session =
        |client: &Client, session: Option<&str>| Client { session: session.map(str::to_owned), ..client.clone() };
    assert_eq!(in_session(&client, None).send(PING).await.status, 400);
    let stranger = service.client("stranger").await;
    let odd = [UNKNOWN_SESSION, "x", &session.to_uppercase()];
    for other in odd.into_iter().map(|id| in_session(&client, Some(id))).chain([in_session(&stranger, Some(&session))])
    {
        for body in [PING, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#] {
            assert_eq!(other.send(body).await.status, 404);
        }
        assert_eq!(other.build(Method::GET).send().await.unwrap().status().as_u16(), 404);
        assert_eq!(other.build(Method::DELETE).send().await.unwrap().status().as_u16(), 404);
    }
    assert_eq!(client.send(PING).await.status, 200, "a stranger's DELETE ended nothing");
    let twice = client.build(Method::POST).header("mcp-session-id", session.as_str());
    let twice = twice.header("content-type", "application/json").body(PING).send().await.unwrap();
    assert_eq!(twice.status().as_u16(), 400);
    let delete = async |client: &Client| client.build(Method::DELETE).send().await.unwrap().status().as_u16();
    assert_eq!(delete(&in_session(&client, None)).await, 400);
    assert_eq!(delete(&client).await, 204);
    assert_eq!(delete(&client).await, 404);
    assert_eq!(client.send(PING).await.status, 404);
}

#[tokio::test]
async fn other_methods_are_told_which_there_are() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    for method in [Method::PUT, Method::PATCH] {
        let response = client.build(method.clone()).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 405, "{method}");
        let allow = response.headers()["allow"].to_str().unwrap();
        assert!(allow.contains("POST") && allow.contains("DELETE"), "{method} {allow}");
    }
}

// req: HTTP-08
// field case: F-HTTP-08
#[tokio::test]
async fn the_version_header_is_checked_after_initialize_only() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let versioned = async |versions: &[&str], body: &str, session: bool| {
        let mut request = client.build(Method::POST).header("content-type", "application/json").body(body.to_owned());
        let mut built = request.build().unwrap();
        built.headers_mut().remove("mcp-protocol-version");
        if !session {
            built.headers_mut().remove("mcp-session-id");
        }
        for version in versions {
            built.headers_mut().append("mcp-protocol-version", version.parse().unwrap());
        }
        request = reqwest::RequestBuilder::from_parts(reqwest::Client::new(), built);
        Answer::read(request.send().await.unwrap()).await
    };
    for versions in [&[][..], &["2025-11-25"], &["2025-06-18"]] {
        assert_eq!(versioned(versions, PING, true).await.status, 200, "{versions:?}");
    }
    for versions in [&["2020-01-01"][..], &["foobar"], &[""], &["2026-07-28"], &["2025-11-25", "2025-11-25"]] {
        let answer = versioned(versions, PING, true).await;
        assert_eq!((answer.status, answer.json()["id"].as_i64()), (400, Some(1)), "{versions:?}");
    }
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2027-01-01","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
    for version in ["2027-01-01", "foobar"] {
        let answer = versioned(&[version], initialize, false).await;
        assert_eq!(answer.result()["protocolVersion"], "2025-11-25");
    }
}

// req: AUTH-01
#[tokio::test]
async fn without_a_valid_token_there_is_nothing_but_a_challenge() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let ask = async |authorization: &[&str], method: Method| {
        let with_body = client.build(method).header("content-type", "application/json").body(PING);
        let mut request = with_body.build().unwrap();
        request.headers_mut().remove("authorization");
        for value in authorization {
            request.headers_mut().append("authorization", value.parse().unwrap());
        }
        Answer::read(reqwest::Client::new().execute(request).await.unwrap()).await
    };
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let answer = ask(&[], method.clone()).await;
        assert_eq!((answer.status, answer.header("www-authenticate"), answer.body.as_str()), (401, Some("Bearer"), ""));
        let answer = ask(&["Bearer wrong"], method.clone()).await;
        assert_eq!((answer.status, answer.body.as_str()), (401, ""));
        assert_eq!(answer.header("www-authenticate"), Some(r#"Bearer error="invalid_token""#));
        assert_eq!(ask(&["Basic b3duZXI="], method.clone()).await.status, 400);
        assert_eq!(ask(&["Bearer owner", "Bearer owner"], method).await.status, 400);
    }
    assert_eq!(client.send(PING).await.status, 200);
}

// req: HTTP-13
#[tokio::test]
async fn the_first_refusal_that_applies_answers() {
    let service = Service::on_sqlite().await;
    let owner = service.client("owner").await;
    // Every fault at once; then one after the other is mended, from the first to the last.
    let faulty = Client {
        session: Some(UNKNOWN_SESSION.to_owned()),
        revision: "foobar",
        token: Some("wrong".to_owned()),
        accept: "text/html",
        ..owner.clone()
    };
    let no_json = "{";
    let ask = async |client: &Client, origin: &str, kind: &str, body: &str| {
        let request = client.build(Method::POST).header("origin", origin).header("content-type", kind);
        Answer::read(request.body(body.to_owned()).send().await.unwrap()).await
    };
    let (evil, good) = ("https://evil.example", "https://app.example");
    assert_eq!(ask(&faulty, evil, "text/plain", no_json).await.status, 403);
    assert_eq!(ask(&faulty, good, "text/plain", no_json).await.status, 415);
    assert_eq!(ask(&faulty, good, "application/json", no_json).await.status, 406);
    let faulty = Client { accept: owner.accept, ..faulty };
    assert_eq!(ask(&faulty, good, "application/json", no_json).await.status, 401);
    let faulty = Client { token: owner.token.clone(), ..faulty };
    assert_eq!(ask(&faulty, good, "application/json", no_json).await.error().0, -32700);
    let unknown_method = r#"{"jsonrpc":"2.0","id":1,"method":"nothing"}"#;
    assert_eq!(ask(&faulty, good, "application/json", unknown_method).await.status, 404);
    let faulty = Client { session: owner.session.clone(), ..faulty };
    assert_eq!(ask(&faulty, good, "application/json", unknown_method).await.status, 400);
    let mended = Client { revision: owner.revision, ..faulty };
    let answer = ask(&mended, good, "application/json", unknown_method).await;
    assert_eq!((answer.status, answer.error().0), (200, -32601));
    // The tool's own rule comes before its parameters.
    let params = json!({ "name": "never", "arguments": [], "task": { "ttl": -1 } });
    assert_eq!(mended.request("tools/call", params).await.error().0, -32601);
    let params = json!({ "name": "optional", "arguments": [], "task": { "ttl": -1 } });
    assert_eq!(mended.request("tools/call", params).await.error().0, -32602);
    assert!(service.script.is_idle().await);
}

// req: HTTP-15
#[tokio::test]
async fn errors_of_well_formed_requests_travel_at_200() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    for (method, params, code) in [
        ("nothing", json!({}), -32601),
        ("tasks/get", json!({ "taskId": "x" }), -32602),
        ("tools/call", json!({ "name": "nobody" }), -32602),
        ("tools/call", json!({ "name": "always" }), -32601),
        ("initialize", json!({}), -32602),
    ] {
        let answer = client.request(method, params).await;
        assert_eq!((answer.status, answer.error().0), (200, code), "{method}");
    }
}

// req: KEEP-11
#[tokio::test]
async fn when_tokens_cannot_be_checked_nobody_is_unauthorized() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    service.names.away.store(true, Ordering::SeqCst);
    let answer = client.send(r#"{"jsonrpc":"2.0","id":"mine","method":"ping"}"#).await;
    assert_eq!((answer.status, answer.error().0, answer.json()["id"].as_str()), (200, -32603, Some("mine")));
    let answer = client.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").is_some());
    service.names.away.store(false, Ordering::SeqCst);
    assert_eq!(client.send(PING).await.status, 200);
}

// req: OPS-06
#[tokio::test]
async fn health_tells_the_truth() {
    let service = Service::on_sqlite().await;
    let ask = async |path: &str| Answer::read(reqwest::get(service.url.replace("/mcp", path)).await.unwrap()).await;
    assert_eq!(ask("/healthz").await.status, 200);
    let ready = ask("/readyz").await;
    assert_eq!((ready.status, ready.json()["ready"].as_bool()), (200, Some(true)));
    service.drain.cancel();
    let draining = ask("/readyz").await;
    assert_eq!((draining.status, draining.json()["draining"].as_bool()), (503, Some(true)));
    assert_eq!(ask("/healthz").await.status, 200);
    service.database.store.system().close().await;
    let away = ask("/readyz").await;
    assert_eq!((away.status, away.json()["database"].as_str()), (503, Some("unavailable")));
}

/// A client that asks before it sends a body is told at once, and not invited to send what is refused.
#[tokio::test]
async fn who_asks_before_sending_is_refused_before_sending() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let service = Service::on_sqlite().await;
    let address = service.url.trim_start_matches("http://").trim_end_matches("/mcp");
    for (type_, length, status) in
        [("application/json", BODY_LIMIT + 1, "413"), ("application/json", 10, "401"), ("text/plain", 10, "415")]
    {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: {type_}\r\ncontent-length: {length}\r\n\
             expect: 100-continue\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(std::str::from_utf8(&answer).unwrap(), format!("HTTP/1.1 {status}"));
    }
}

#[tokio::test]
async fn an_encoded_body_is_refused() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    assert_eq!(post_with(&client, &[("content-encoding", "gzip")], PING).await.status, 415);
    assert_eq!(post_with(&client, &[("content-encoding", "identity")], PING).await.status, 200);
}
