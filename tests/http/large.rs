//! Large results on their way to clients.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::harness::{Service, engine_rules, until};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::raw::Unread;

contract! {
    readers_of_a_large_result_are_sent_the_same_bytes,
}

const BYTES: usize = 1_000_000;

/// The pieces of the answer to a `tasks/result`, none of them joined, and the rest of its body.
async fn pieces(service: &Service, client: &Client, id: &Value, accept: &str) -> (Vec<Bytes>, Body) {
    let request = Request::post("/mcp").header("host", "localhost").header("content-type", "application/json");
    let request = request
        .header("accept", accept)
        .header("authorization", format!("Bearer {}", client.token.as_deref().unwrap()));
    let request = request.header("mcp-session-id", client.session.as_deref().unwrap());
    let body = Body::from(client.message("tasks/result", &json!({ "taskId": id })));
    let response = service.front.router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let (mut pieces, mut body) = (Vec::new(), response.into_body());
    while let Some(frame) = body.frame().await {
        pieces.push(frame.unwrap().into_data().unwrap());
    }
    (pieces, body)
}

// req: NOTE-10
// field case: F-GW-17
async fn readers_of_a_large_result_are_sent_the_same_bytes(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let text = "x".repeat(BYTES);
    service
        .answer_next(&json!({ "content": [{ "type": "text", "text": text }], "_meta": { "k": 1 } }).to_string())
        .await;
    let whole = client.result(&id).await.outcome();
    let mut read = Vec::new();
    for accept in ["application/json", "text/event-stream", "application/json, text/event-stream"] {
        read.push(pieces(&service, &client, &id, accept).await);
    }
    let large = |pieces: &[Bytes]| {
        let large: Vec<_> = pieces.iter().filter(|piece| piece.len() >= BYTES).cloned().collect();
        assert_eq!(large.len(), 1);
        large[0].clone()
    };
    let shared = large(&read[0].0);
    for (pieces, _) in &read {
        assert_eq!(large(pieces).as_ptr(), shared.as_ptr(), "one copy for all");
        let small: usize = pieces.iter().map(Bytes::len).filter(|length| *length < BYTES).sum();
        assert!(small < 1000, "{small} bytes of its own");
        let body = String::from_utf8(pieces.concat()).unwrap();
        let message = body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or(&body);
        let (_, result) = message.split_once(r#""result":"#).unwrap();
        assert_eq!(format!(r#"{{"result":{result}"#), whole, "and the text is the same");
    }
}

/// More than all buffers on the way hold.
const UNREAD: usize = 8_000_000;

fn result(bytes: usize) -> String {
    json!({ "content": [{ "type": "text", "text": "x".repeat(bytes) }] }).to_string()
}

// req: NOTE-10
#[tokio::test]
async fn a_large_result_counts_until_its_client_has_taken_it() {
    let mut rules = engine_rules();
    rules.waiters_per_context = 1;
    let service = Service::with(TestDatabase::new(Backend::Sqlite).await, rules).await;
    let client = service.client("owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    service.answer_next(&result(UNREAD)).await;
    client.until_status(&id, "completed").await;
    let (params, text) = (json!({ "taskId": id }), result(UNREAD));
    for accept in ["application/json", "text/event-stream"] {
        let client = Client { accept, ..client.clone() };
        for is_plain in [false, true] {
            // The place of the one before is given up behind its reader's back.
            until("a place", async || !client.request("tasks/result", params.clone()).await.body.contains("limit_"))
                .await;
            let mut unread = if is_plain {
                let message = client.message("tools/call", &json!({ "name": "optional", "arguments": {} }));
                let (unread, ()) = tokio::join!(Unread::post(&client, &message), service.answer_next(&text));
                unread
            } else {
                Unread::post(&client, &client.message("tasks/result", &params)).await
            };
            let what = format!("{accept}, {is_plain}");
            assert!(unread.head.starts_with("HTTP/1.1 200"), "{what}: {}", unread.head);
            for _ in 0..3 {
                let refused = client.request("tasks/result", params.clone()).await;
                assert!(refused.body.contains("limits.streams"), "{what}: {} bytes", refused.body.len());
                let refused = client.call("optional", json!({})).await;
                assert!(refused.body.contains("limits.streams"), "{what}: {} bytes", refused.body.len());
            }
            assert_eq!(unread.take(UNREAD, 64 * 1024, Duration::ZERO).await, UNREAD, "{what}");
        }
    }
    until("a place", async || client.request("tasks/result", params.clone()).await.body.len() > UNREAD).await;
}
