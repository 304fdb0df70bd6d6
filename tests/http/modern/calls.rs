//! Calls of tools that answer plainly.

use serde_json::{Value, json};
use taskhold::lifecycle::spawn;

use crate::http::harness::{Gateway, Service, engine_rules};
use crate::relay::{heard, recording};
use crate::support::client::Answer;
use crate::support::database::{Backend, TestDatabase};
use crate::support::modern::Modern;
use crate::upstream::harness::settings;

/// Calls a tool, and ends its work.
async fn served(client: &Modern, params: Value, end: impl Future<Output = ()>) -> Answer {
    tokio::join!(client.request("tools/call", params), end).0
}

// req: MOD-06, MOD-08, HTTP-05, LIFE-11
#[tokio::test]
async fn a_result_comes_back_as_it_was_and_is_no_task() {
    const RESULT: &str = r#"{"z":1e400,"content":[{"type":"text","text":"\u0000\ud800"}],"structuredContent":[1.0],"_meta":{"b":18446744073709551616,"io.modelcontextprotocol/related-task":{"taskId":"theirs"}}}"#;
    let service = Service::on_sqlite().await;
    let client = Modern::new(&service.url, "owner");
    let params = json!({ "name": "optional", "arguments": {}, "task": { "ttl": 60_000 } });
    let answer = served(&client, params, service.answer_next(RESULT)).await;
    let ours = taskhold::protocol::modern::results::OURS;
    let expected = format!(
        r#"{{"result":{{"z":1e400,"content":[{{"type":"text","text":"\u0000\ud800"}}],"structuredContent":[1.0],"_meta":{{"b":18446744073709551616,"io.modelcontextprotocol/serverInfo":{ours}}},"resultType":"complete"}}}}"#
    );
    assert_eq!((answer.status, answer.outcome()), (200, expected));
    assert!(service.client("owner").await.list().await.is_empty(), "a stray task field makes none");
    let failed = r#"{"content":[{"type":"text","text":"no"}],"isError":true}"#;
    let answer = served(&client, json!({ "name": "never" }), service.answer_next(failed)).await;
    assert_eq!((&answer.result()["isError"], answer.status), (&json!(true), 200));
    // Ids come back as they were sent.
    for id in [json!("a\u{e9}"), json!(0), json!(-7), json!(9_007_199_254_740_992_u64)] {
        let mut draft = client.draft("tools/list", json!({}));
        draft.body["id"] = id.clone();
        let text = client.send(draft).await.text().to_owned();
        assert!(text.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"#)), "{text}");
    }
}

// req: EXEC-10, HTTP-15 (modern half)
#[tokio::test]
async fn what_cannot_be_called_is_said_and_nothing_runs() {
    let service = Service::on_sqlite().await;
    let client = Modern::new(&service.url, "owner");
    let bad = client.call("optional", json!({ "bad": 1 })).await.result();
    assert_eq!((&bad["isError"], &bad["resultType"]), (&json!(true), &json!("complete")));
    assert!(bad["content"][0]["text"].as_str().unwrap().contains("/bad"), "{bad}");
    for (params, named) in [
        (json!({ "name": "unknown" }), "unknown"),
        (json!({ "name": "optional", "arguments": [] }), "arguments"),
        (json!({ "name": "optional", "arguments": { "x": "y".repeat(100_000) } }), "100000"),
        (json!({ "name": "optional", "_meta": { "io.modelcontextprotocol/logLevel": "loud" } }), "logLevel"),
    ] {
        let answer = client.request("tools/call", params).await;
        let (code, message) = answer.error();
        assert!((answer.status, code) == (200, -32602) && message.contains(named), "{named}: {answer:?}");
    }
    assert!(service.script.is_idle().await);
}

// req: MOD-16 (but URLs that can be asked for, which are in `rounds`, and legacy readers, in `http/calls`)
#[tokio::test]
async fn an_upstreams_error_does_not_pass_for_one_of_this_era() {
    let service = Service::on_sqlite().await;
    let client = Modern::new(&service.url, "owner");
    let fail = async |error: &str| {
        let answer = served(&client, json!({ "name": "optional" }), service.fail_next(error)).await;
        (answer.status, answer.json()["error"].clone())
    };
    for code in [-32020, -32021, -32022, -32042] {
        let error = json!({ "code": code, "message": "theirs", "data": { "requiredCapabilities": {} } });
        let (status, told) = fail(&error.to_string()).await;
        assert_eq!((status, &told["code"], &told["message"]), (200, &json!(-32603), &json!("theirs")));
        assert_eq!(told["data"]["error"], error);
    }
    let same = json!({ "code": -32011, "message": "no such city", "data": { "x": 1 } });
    assert_eq!(fail(&same.to_string()).await, (200, same));
    let (status, told) = fail(r#"{"code":-32002,"message":"no","data":{"uri":"x://1"}}"#).await;
    assert_eq!((status, told), (200, json!({ "code": -32602, "message": "no", "data": { "uri": "x://1" } })));
    let (status, told) = fail(r#"{"code":-32601,"message":"no"}"#).await;
    assert_eq!((status, &told["code"]), (404, &json!(-32601)));
}

// req: MOD-15 (what a modern upstream says; of tasks and URLs others say it)
#[tokio::test]
async fn what_an_upstream_needs_of_a_client_is_told_to_one_that_lacks_it() {
    let service = Service::on_sqlite().await;
    let needs =
        json!({ "code": -32021, "message": "no model", "data": { "requiredCapabilities": { "sampling": {} } } });
    let call = async |client: &Modern| {
        let needs = needs.to_string();
        let failed = service.fail_next(&needs);
        let answer = served(client, json!({ "name": "optional" }), failed).await;
        (answer.status, answer.json()["error"].clone())
    };
    let lacking = Modern::new(&service.url, "owner");
    assert_eq!(call(&lacking).await, (400, needs.clone()));
    // One that declared it is not to blame.
    let (status, told) = call(&lacking.declaring(json!({ "sampling": {} }))).await;
    assert_eq!((status, &told["code"], &told["data"]["error"]), (200, &json!(-32603), &needs));
}

// req: AUTH-14 (of the modern statuses the one for waiting requests)
#[tokio::test]
async fn over_a_limit_a_client_is_told_when_to_come_back() {
    let mut rules = engine_rules();
    rules.waiters_per_context = 1;
    let service = Service::with(TestDatabase::new(Backend::Sqlite).await, rules).await;
    let client = Modern::new(&service.url, "owner");
    let first = {
        let client = client.clone();
        spawn("client", async move { client.call("optional", json!({})).await })
    };
    let work = service.script.next().await;
    let answer = client.call("optional", json!({})).await;
    assert_eq!((answer.status, answer.json()["error"]["data"]["limit"].as_str()), (429, Some("limits.streams")));
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    work.answer("done");
    assert_eq!(first.await.unwrap().status, 200);
}

// req: MOD-13, EXEC-20 (what a legacy upstream gets of a modern request)
#[tokio::test]
async fn an_upstream_gets_the_trace_and_nothing_of_the_clients_own_connection() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let answers = [
        ("tools/list", r#""result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}"#),
        ("prompts/list", r#""result":{"prompts":[{"name":"p"}]}"#),
        ("tools/call", r#""result":{"content":[]}"#),
        ("prompts/get", r#""result":{"messages":[]}"#),
    ];
    let upstream = recording("u", log.path(), r#"{"tools":{},"prompts":{},"logging":{}}"#, &answers);
    let database = TestDatabase::new(Backend::Sqlite).await;
    let gateway = Gateway::with(database, settings(), vec![upstream], engine_rules()).await;
    let client = Modern::new(&gateway.front.url, "owner");
    let trace = json!({
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "vendor=1",
        "baggage": "k=v",
        "own": 1.5,
    });
    for (method, name) in [("tools/call", "t"), ("prompts/get", "p")] {
        let mut meta = trace.clone();
        meta["io.modelcontextprotocol/logLevel"] = json!("warning");
        let answer = client.request(method, json!({ "name": name, "_meta": meta })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let mut passed = heard(log.path(), method).pop().unwrap()["_meta"].clone();
        passed.as_object_mut().unwrap().remove("progressToken");
        assert_eq!(passed, trace, "{method}");
    }
    assert_eq!(heard(log.path(), "logging/setLevel"), [json!({ "level": "warning" })], "the level goes in its own way");
    gateway.upstreams.stop().await;
}
