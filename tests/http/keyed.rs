//! `Idempotency-Key`: the same call twice is one execution, whichever era and node it comes by.

use reqwest::Method;
use serde_json::{Value, json};
use taskhold::lifecycle::spawn;

use super::harness::Service;
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::modern::Modern;
use crate::upstream::harness::within;

contract! {
    a_repeated_task_is_the_same_task_at_every_node,
    a_repeated_call_waits_for_the_outcome_of_the_first_at_every_node,
    a_key_is_the_same_in_both_eras,
    a_key_that_is_none_runs_nothing,
}

const HEADER: &str = "idempotency-key";
const META: &str = "io.taskhold/idempotencyKey";

/// A call of a session under these keys.
async fn session_call(client: &Client, keys: &[&str], params: Value) -> Answer {
    let mut request = client.build(Method::POST).header("content-type", "application/json");
    for key in keys {
        request = request.header("Idempotency-Key", *key);
    }
    Answer::read(request.body(client.message("tools/call", &params)).send().await.unwrap()).await
}

/// A call of the stateless era under these keys.
async fn call(client: &Modern, keys: &[&str], params: Value) -> Answer {
    let draft = client.draft("tools/call", params);
    client.send(keys.iter().fold(draft, |draft, key| draft.also(HEADER, key))).await
}

fn text(answer: &Answer) -> String {
    answer.result()["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer:?}")).to_owned()
}

// req: KEEP-12
async fn a_repeated_task_is_the_same_task_at_every_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = service.another_node().await;
    // In a session.
    let legacy = service.client("owner").await;
    let params = |n: u64| json!({ "name": "optional", "arguments": { "n": n }, "task": { "ttl": 60_000 } });
    let first = session_call(&legacy, &["k"], params(1)).await.result()["task"].clone();
    let work = service.script.next().await;
    let again = session_call(&legacy.at(&there.url), &["k"], params(1)).await.result()["task"].clone();
    assert_eq!((&again["taskId"], &again["createdAt"]), (&first["taskId"], &first["createdAt"]));
    let (code, message) = session_call(&legacy.at(&there.url), &["k"], params(2)).await.error();
    assert!(code == -32602 && message.contains("idempotency key"), "{message}");
    assert_ne!(session_call(&service.client("other").await, &["k"], params(1)).await.result()["task"], again);
    service.script.next().await.answer("another caller's");
    work.answer("once");
    // After its end, too; who asks for the result of the one gets it under the other's id.
    let late = session_call(&legacy, &["k"], params(1)).await.result()["task"]["taskId"].clone();
    assert_eq!(text(&legacy.at(&there.url).result(&late).await), "once");
    // Without one.
    let modern = Modern::new(&service.url, "owner").with_tasks();
    let elsewhere = Modern { url: there.url.clone(), ..modern.clone() };
    let params = |n: u64| json!({ "name": "eager", "arguments": { "n": n } });
    let made = call(&modern, &["m"], params(1)).await.result();
    assert_eq!(made["resultType"], "task");
    let work = service.script.next().await;
    let stranger = Modern::new(&there.url, "stranger").with_tasks();
    assert_ne!(call(&stranger, &["m"], params(1)).await.result()["taskId"], made["taskId"]);
    service.script.next().await.answer("another caller's");
    let same = call(&elsewhere, &["m"], params(1)).await.result();
    assert_eq!((&same["resultType"], &same["taskId"]), (&json!("task"), &made["taskId"]));
    let refused = call(&elsewhere, &["m"], params(2)).await;
    assert_eq!((refused.status, refused.error().0), (200, -32602));
    work.answer("once");
    assert!(service.script.is_idle().await, "each ran once");
    assert_eq!(legacy.list().await.len(), 2);
}

// req: KEEP-12
async fn a_repeated_call_waits_for_the_outcome_of_the_first_at_every_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = service.another_node().await;
    let legacy = service.client("owner").await;
    let modern = Modern::new(&service.url, "owner");
    for (key, session) in [("k", true), ("m", false)] {
        let begin = |url: &str, arguments: Value| {
            let (legacy, modern) = (legacy.at(url), Modern { url: url.to_owned(), ..modern.clone() });
            let params = json!({ "name": "optional", "arguments": arguments });
            spawn("client", async move {
                if session { session_call(&legacy, &[key], params).await } else { call(&modern, &[key], params).await }
            })
        };
        let first = begin(&service.url, json!({ "n": 1 }));
        let work = service.script.next().await;
        let second = begin(&there.url, json!({ "n": 1 }));
        let other = within("a refusal", begin(&there.url, json!({ "n": 2 }))).await.unwrap();
        assert_eq!((other.status, other.error().0), (200, -32602), "{key}");
        assert!(!second.is_finished() && service.script.is_idle().await, "it waits, and nothing runs: {key}");
        work.answer("once");
        for answer in [first, second, begin(&service.url, json!({ "n": 1 }))] {
            assert_eq!(text(&within("the outcome", answer).await.unwrap()), "once", "{key}");
        }
        assert!(service.script.is_idle().await, "{key}");
    }
    assert!(legacy.list().await.is_empty(), "none of it is a task");
}

// req: KEEP-12
async fn a_key_is_the_same_in_both_eras(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = service.another_node().await;
    let legacy = service.client("owner").await.at(&there.url);
    let modern = Modern::new(&service.url, "owner").with_tasks();
    let arguments = json!({ "n": 1 });
    let made = call(&modern, &["k"], json!({ "name": "eager", "arguments": arguments })).await.result();
    let work = service.script.next().await;
    let params = json!({ "name": "eager", "arguments": arguments, "task": {} });
    let same = session_call(&legacy, &["k"], params).await.result()["task"].clone();
    assert_eq!((&same["taskId"], &same["createdAt"]), (&made["taskId"], &made["createdAt"]));
    // The key in `_meta` is the same key.
    let meta = json!({ "io.taskhold/idempotencyKey": "k" });
    let params = json!({ "name": "eager", "arguments": arguments, "task": {}, "_meta": meta });
    assert_eq!(legacy.request("tools/call", params).await.result()["task"]["taskId"], made["taskId"]);
    let other = json!({ "name": "optional", "arguments": arguments, "task": {} });
    assert_eq!(session_call(&legacy, &["k"], other).await.error().0, -32602);
    work.answer("once");
    // Whoever takes no task gets the outcome.
    let silent = Modern::new(&there.url, "owner");
    assert_eq!(text(&call(&silent, &["k"], json!({ "name": "eager", "arguments": arguments })).await), "once");
    assert!(service.script.is_idle().await);
}

// req: KEEP-12
async fn a_key_that_is_none_runs_nothing(database: TestDatabase) {
    let service = Service::start(database).await;
    let legacy = service.client("owner").await;
    let modern = Modern::new(&service.url, "owner").with_tasks();
    let long = "x".repeat(256);
    let before = service.database.rows().await;
    for keys in [&["a", "a"][..], &[""], &[&long]] {
        let params = json!({ "name": "eager", "arguments": {}, "task": {} });
        for answer in [session_call(&legacy, keys, params.clone()).await, call(&modern, keys, params.clone()).await] {
            let (code, message) = answer.error();
            assert!(
                (answer.status, code) == (200, -32602) && message.contains("Idempotency-Key"),
                "{keys:?} {message}"
            );
        }
    }
    // In `_meta` text may stand that no header can say, and not every database can keep.
    for key in [r#""a\u0000b""#, r#""a\u001fb""#, r#""\ud800""#, r#""\udfffx""#, r#""a\u0085""#] {
        let place = "\"IN ITS PLACE\"";
        let put = |body: &Value| body.to_string().replace(place, key);
        let params = json!({ "name": "eager", "arguments": {}, "task": {}, "_meta": { META: "IN ITS PLACE" } });
        let request = legacy.build(Method::POST).header("content-type", "application/json");
        let message: Value = serde_json::from_str(&legacy.message("tools/call", &params)).unwrap();
        let in_session = Answer::read(request.body(put(&message)).send().await.unwrap()).await;
        let params = json!({ "name": "eager", "arguments": {}, "_meta": { META: "IN ITS PLACE" } });
        let draft = modern.draft("tools/call", params);
        let request = modern.http.post(&modern.url).header("content-type", "application/json");
        let request = request.header("accept", modern.accept).header("authorization", "Bearer owner");
        let request = draft.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let alone = Answer::read(request.body(put(&draft.body)).send().await.unwrap()).await;
        for answer in [in_session, alone] {
            let (code, message) = answer.error();
            assert!((answer.status, code) == (200, -32602) && message.contains(META), "{key} {message}");
        }
    }
    assert_eq!(service.database.rows().await, before);
    assert!(service.script.is_idle().await);
}
