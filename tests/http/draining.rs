//! What a node that shuts down says to requests that would begin something.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use super::harness::{Gateway, engine_rules};
use crate::relay::library;
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::upstream::harness::settings;

contract! {
    what_a_draining_node_refuses_goes_to_another,
}

// req: KEEP-10
async fn what_a_draining_node_refuses_goes_to_another(database: TestDatabase) {
    let gateway = Gateway::with(database, settings(), vec![library("one")], engine_rules()).await;
    let client = gateway.client("owner").await;
    let there = gateway.another_node().await;
    let made = client.task("test_simple_text", json!({})).await["taskId"].clone();
    client.until_status(&made, "completed").await;
    gateway.front.engine.drain(Duration::ZERO).await;
    let rows = gateway.database.rows_of_tasks().await;
    let calls = [
        ("tools/call", json!({ "name": "test_simple_text", "arguments": {} })),
        ("tools/call", json!({ "name": "test_simple_text", "arguments": {}, "task": {} })),
        ("prompts/get", json!({ "name": "test_simple_prompt" })),
        ("resources/read", json!({ "uri": "test://static-text" })),
        ("resources/subscribe", json!({ "uri": "test://static-text" })),
        ("resources/unsubscribe", json!({ "uri": "test://static-text" })),
        (
            "completion/complete",
            json!({ "ref": { "type": "ref/prompt", "name": "test_simple_prompt" },
                "argument": { "name": "x", "value": "y" } }),
        ),
    ];
    for accept in ["application/json, text/event-stream", "application/json", "text/event-stream"] {
        let here = Client { accept, ..client.clone() };
        for (method, params) in &calls {
            for key in [None, Some("a key")].into_iter().filter(|key| key.is_none() || *method == "tools/call") {
                let refused = send(&here, &here.message(method, params), key).await;
                assert_eq!((refused.status, refused.body.as_str()), (503, ""), "{method}: {refused:?}");
                assert_eq!(refused.header("retry-after"), Some("1"), "{method}: {refused:?}");
                assert_eq!(refused.header("content-type"), None, "{method}: {refused:?}");
            }
        }
    }
    assert_eq!(gateway.database.rows_of_tasks().await, rows, "nothing was begun");
    // What begins nothing is served to the last.
    assert_eq!(client.get(&made).await.result()["status"], "completed");
    client.result(&made).await.result();
    client.request("tools/list", json!({})).await.result();
    let (code, _) = client.request("prompts/get", json!({})).await.error();
    assert_eq!(code, -32602, "who asks for nothing that there is is told so");
    for (method, params) in calls {
        let here = client.at(&there.url);
        send(&here, &here.message(method, &params), None).await.result();
    }
    gateway.upstreams.stop().await;
}

async fn send(client: &Client, message: &str, key: Option<&str>) -> Answer {
    let mut request = client.build(Method::POST).header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    Answer::read(request.body(message.to_owned()).send().await.unwrap()).await
}
