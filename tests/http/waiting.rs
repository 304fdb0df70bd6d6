//! Requests that last: as streams, as JSON, cancelled, let go, and left by their clients.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use taskhold::executor::Attempt;
use taskhold::lifecycle::spawn;

use super::harness::{Service, until};
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;

contract! {
    a_wait_becomes_a_stream_that_ends_with_the_answer,
    a_client_that_leaves_ends_only_its_waiting,
}

const RESULT: &str = r#"{"content":[]}"#;

/// POSTs a request and answers once the response has begun.
async fn begin(client: &Client, method: &str, params: &Value) -> reqwest::Response {
    let body = client.message(method, params);
    client.build(Method::POST).header("content-type", "application/json").body(body).send().await.unwrap()
}

async fn cancel_request(client: &Client, id: &Value) {
    let params = json!({ "requestId": id, "reason": "test" });
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }).to_string();
    assert_eq!(client.send(&message).await.status, 202);
}

// req: TASK-07, NOTE-08, HTTP-03
async fn a_wait_becomes_a_stream_that_ends_with_the_answer(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let task = client.task("optional", json!({})).await;
    let response = begin(&client, "tasks/result", &json!({ "taskId": task["taskId"] })).await;
    assert_eq!(response.status().as_u16(), 200);
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "text/event-stream");
    assert_eq!(header("x-accel-buffering"), "no");
    assert_eq!(header("cache-control"), "no-cache");
    service.answer_next(RESULT).await;
    let answer = Answer::read(response).await;
    assert_eq!(answer.result()["content"], json!([]));
    let responses = answer.body.lines().filter(|line| line.starts_with("data: {") && line.contains(r#""id":"#));
    assert_eq!(responses.count(), 1, "{}", answer.body);
}

// req: TASK-07
#[tokio::test]
async fn who_takes_only_json_waits_for_json() {
    let service = Service::on_sqlite().await;
    let client = Client { accept: "application/json", ..service.client("owner").await };
    let task = client.task("optional", json!({})).await;
    let id = task["taskId"].clone();
    let mut waiter = spawn("client", {
        let (client, id) = (client.clone(), id.clone());
        async move { client.result(&id).await }
    });
    let work = service.script.next().await;
    // Longer than a client that takes streams would be kept without one.
    let early = tokio::time::timeout(Duration::from_millis(700), &mut waiter).await;
    assert!(early.is_err(), "it waits while the work runs: {early:?}");
    work.answer("late");
    let answer = waiter.await.unwrap();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.result()["content"][0]["text"], "late");
}

// req: TASK-23
async fn a_client_that_leaves_ends_only_its_waiting(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let task = client.task("optional", json!({})).await;
    let id = task["taskId"].clone();
    let work = service.script.next().await;
    for accept in [client.accept, "application/json"] {
        let leaving = Client { accept, ..client.clone() };
        let left = tokio::time::timeout(Duration::from_millis(50), leaving.result(&id)).await;
        assert!(left.is_err(), "the client left before an answer");
    }
    let stream = begin(&client, "tasks/result", &json!({ "taskId": id })).await;
    drop(stream);
    // A plain call of a client that leaves, as soon as its work has begun, runs to its end too.
    let plain = tokio::select! {
        plain = service.script.next() => plain,
        answer = client.call("optional", json!({})) => panic!("nobody has answered it yet: {answer:?}"),
    };
    assert_eq!(client.get(&id).await.result()["status"], "working");
    assert!(!work.stop.is_cancelled() && !plain.stop.is_cancelled());
    work.answer("done");
    client.until_status(&id, "completed").await;
    assert!(!plain.stop.is_cancelled());
}

// The half of CAP-10 that happens on one node.
#[tokio::test]
async fn a_cancelled_plain_call_is_stopped_and_gets_no_response() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let stranger = service.client("stranger").await;
    let ask = |accept: &'static str, id: &'static str| {
        let client = Client { accept, ..client.clone() };
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "optional" } });
        spawn("client", async move { client.send(&body.to_string()).await })
    };
    for accept in [client.accept, "application/json"] {
        let call = ask(accept, "mine");
        let work = service.script.next().await;
        cancel_request(&client, &json!("another")).await;
        cancel_request(&stranger, &json!("mine")).await;
        assert!(!work.stop.is_cancelled(), "neither another id nor another session stops it");
        cancel_request(&client, &json!("mine")).await;
        work.stop.cancelled().await;
        let answer = call.await.unwrap();
        assert_eq!(answer.text(), "", "{answer:?}");
    }
    let call = ask(client.accept, "mine");
    service.answer_next(RESULT).await;
    assert_eq!(call.await.unwrap().result(), json!({ "content": [] }), "an id that was cancelled before is like new");
}

// req: TASK-23
#[tokio::test]
async fn cancelling_a_wait_ends_the_waiter_and_not_the_task() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let body = r#"{"jsonrpc":"2.0","id":"create","method":"tools/call","params":{"name":"optional","task":{}}}"#;
    let id = client.send(body).await.result()["task"]["taskId"].clone();
    let work = service.script.next().await;
    cancel_request(&client, &json!("create")).await;
    let body = json!({ "jsonrpc": "2.0", "id": "wait", "method": "tasks/result", "params": { "taskId": id } });
    let request = client.build(Method::POST).header("content-type", "application/json").body(body.to_string());
    let stream = request.send().await.unwrap();
    cancel_request(&client, &json!("wait")).await;
    let answer = Answer::read(stream).await;
    assert_eq!(answer.text(), "", "{answer:?}");
    assert!(!work.stop.is_cancelled());
    assert_eq!(client.get(&id).await.result()["status"], "working");
}

// req: KEEP-10
#[tokio::test]
async fn a_draining_node_lets_waiters_go() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let task = client.task("optional", json!({})).await;
    let id = task["taskId"].clone();
    let stream = begin(&client, "tasks/result", &json!({ "taskId": id })).await;
    let json_only = Client { accept: "application/json", ..client.clone() };
    let waiter = spawn("client", {
        let id = id.clone();
        async move { json_only.result(&id).await }
    });
    // The JSON waiter shows from outside only by not being answered yet; either way it is let go.
    service.drain.cancel();
    let streamed = Answer::read(stream).await;
    assert_eq!(streamed.text(), "");
    assert!(streamed.body.contains("retry: "), "{streamed:?}");
    let waited = waiter.await.unwrap();
    assert_eq!((waited.status, waited.body.as_str()), (503, ""), "nothing that reads as an outcome");
    assert!(waited.header("retry-after").is_some(), "{waited:?}");
    assert_eq!(client.get(&id).await.result()["status"], "working", "open connections are still served");
}

// req: AUTH-07
#[tokio::test]
async fn a_revoked_token_ends_its_streams() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let task = client.task("optional", json!({})).await;
    let stream = begin(&client, "tasks/result", &json!({ "taskId": task["taskId"] })).await;
    let json_only = Client { accept: "application/json", ..client.clone() };
    let waiter = spawn("client", async move { json_only.result(&task["taskId"]).await });
    service.names.revoke("owner");
    let ended = tokio::time::timeout(Duration::from_secs(5), Answer::read(stream)).await.unwrap();
    assert_eq!(ended.text(), "", "{ended:?}");
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), waiter).await.unwrap().unwrap().status, 401);
}

// req: TASK-22
#[tokio::test]
async fn many_wait_for_one_task_and_each_gets_the_outcome() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let task = client.task("optional", json!({})).await;
    let params = json!({ "taskId": task["taskId"] });
    let streams = futures_util::future::join_all((0..5).map(|_| begin(&client, "tasks/result", &params))).await;
    service.script.next().await.end(Attempt::Answered(crate::support::script::result("for all")));
    let answers: Vec<_> = futures_util::stream::iter(streams).then(Answer::read).collect().await;
    for answer in answers {
        assert_eq!(answer.result()["content"][0]["text"], "for all");
    }
}

#[tokio::test]
async fn a_limit_refuses_before_the_wait() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let task = client.task("optional", json!({})).await;
    let params = json!({ "taskId": task["taskId"] });
    let streams = futures_util::future::join_all((0..20).map(|_| begin(&client, "tasks/result", &params))).await;
    let refused = client.result(&task["taskId"]).await;
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, error["data"]["limit"].as_str()), (200, Some("limits.streams")), "{refused:?}");
    assert!(error["data"]["retryAfterMs"].is_u64(), "{error}");
    drop(streams);
    // The places of those who left are given to others.
    let json_only = Client { accept: "application/json", ..client.clone() };
    service.answer_next(RESULT).await;
    until("a place among the waiters", async || json_only.result(&task["taskId"]).await.json().get("result").is_some())
        .await;
}
