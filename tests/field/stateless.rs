//! Tasks of 2026-07-28.

use std::time::Duration;

use serde_json::{Value, json};
use taskhold::domain::clock::Timestamp;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::Attempt;
use taskhold::executor::upstream::{ToolConfig, UpstreamConfig};

use crate::http::harness::{Gateway, Service, engine_rules, until};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::modern::Modern;
use crate::support::script::how_many;
use crate::upstream::harness::{settings, test_tools, within};

contract! {
    who_declares_nothing_is_told_so_before_anything_of_the_id,
    a_handle_goes_only_where_this_request_can_take_one,
    a_cancel_is_acknowledged_but_for_what_is_not_there,
    work_that_hears_of_no_cancel_ends_all_the_same,
    every_answer_about_a_task_has_its_form,
}

const TASKS: &str = "io.modelcontextprotocol/tasks";
const MISSING: &str = "786512e2-9e0d-44bd-8f29-789f320fe840";

fn taking_tasks(url: &str) -> Modern {
    Modern::new(url, "owner").declaring(json!({ "elicitation": {} })).with_tasks()
}

async fn look(client: &Modern, id: &Value) -> Value {
    client.request("tasks/get", json!({ "taskId": id })).await.result()
}

async fn until_status(client: &Modern, id: &Value, status: &str) -> Value {
    until(&format!("the task is {status}"), async || look(client, id).await["status"] == status).await;
    look(client, id).await
}

// req: EXT-09, NOTE-06
// field case: F-P26-01
async fn who_declares_nothing_is_told_so_before_anything_of_the_id(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = taking_tasks(&service.url);
    let id = client.call("eager", json!({})).await.result()["taskId"].clone();
    let work = service.script.next().await;
    let bare = Modern::new(&service.url, "owner");
    for method in ["tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"] {
        let mut told = Vec::new();
        for id in [&id, &json!(MISSING), &json!("no id")] {
            let params = json!({ "taskId": id, "inputResponses": {}, "notifications": { "taskIds": [id] } });
            let refused = bare.request(method, params).await;
            assert_eq!((refused.status, refused.error().0), (400, -32021), "{method} {id}");
            let required = &refused.json()["error"]["data"]["requiredCapabilities"];
            assert_eq!(required, &json!({ "extensions": { TASKS: {} } }), "{method}");
            told.push(refused.outcome());
        }
        told.dedup();
        assert_eq!(told.len(), 1, "nothing is said of the id: {told:?}");
    }
    assert!(!work.stop.is_cancelled());
    assert_eq!(look(&client, &id).await["status"], "working");
}

// req: EXT-01, EXT-02
// field case: F-P26-02
async fn a_handle_goes_only_where_this_request_can_take_one(database: TestDatabase) {
    let rules = taskhold::engine::EngineRules { grace: Duration::from_millis(20), ..engine_rules() };
    let service = Service::with(database, rules).await;
    let bare = Modern::new(&service.url, "owner");
    let takes = bare.with_tasks();
    for _ in 0..2 {
        // One connection, and no memory of what was declared before.
        let waits = tokio::spawn({
            let bare = bare.clone();
            async move { bare.call("optional", json!({})).await }
        });
        let work = service.script.next().await;
        assert_eq!(bare.call("always", json!({})).await.error().0, -32021);
        for tool in ["optional", "always"] {
            let (created, work) = tokio::join!(takes.call(tool, json!({})), service.script.next());
            assert_eq!(created.result()["resultType"], "task", "{tool}");
            work.answer("done");
        }
        // By now it has outlasted the grace of those who take tasks.
        work.answer("plain");
        let plain = waits.await.unwrap().result();
        assert_eq!((&plain["resultType"], &plain["content"][0]["text"]), (&json!("complete"), &json!("plain")));
    }
    assert!(service.script.is_idle().await);
}

// req: EXT-07, EXT-08
// field case: F-P26-09
async fn a_cancel_is_acknowledged_but_for_what_is_not_there(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = taking_tasks(&service.url);
    let cancel = async |id: &Value| client.request("tasks/cancel", json!({ "taskId": id })).await;
    let made = async || {
        let id = client.call("eager", json!({})).await.result()["taskId"].clone();
        (id, service.script.next().await)
    };
    let (working, first) = made().await;
    let (asking, second) = made().await;
    let asked = second.ask(how_many());
    let question = until_status(&client, &asking, "input_required").await["inputRequests"].clone();
    let (completed, third) = made().await;
    third.answer("done");
    let done = until_status(&client, &completed, "completed").await;
    let mut acks = Vec::new();
    for (id, status) in
        [(&working, "cancelled"), (&asking, "cancelled"), (&completed, "completed"), (&working, "cancelled")]
    {
        let ack = cancel(id).await;
        assert_eq!(ack.status, 200);
        acks.push(ack.outcome());
        assert_eq!(look(&client, id).await["status"], status);
    }
    acks.dedup();
    assert_eq!(acks.len(), 1, "whatever the status: {acks:?}");
    for stop in [&first.stop, &second.stop] {
        within("the work to be stopped", stop.cancelled()).await;
    }
    within("nobody to wait for the answer", asked).await.unwrap();
    // What it asked is asked no more, and an answer to it is late.
    let cancelled = look(&client, &asking).await;
    assert_eq!(cancelled.get("inputRequests"), None);
    let key = question.as_object().unwrap().keys().next().unwrap();
    let params = json!({ "taskId": asking, "inputResponses": { key: { "action": "decline" } } });
    client.request("tasks/update", params).await.result();
    assert_eq!((look(&client, &asking).await, look(&client, &completed).await), (cancelled, done));
    let unknown = cancel(&json!(MISSING)).await;
    assert_eq!((unknown.status, unknown.error().0), (200, -32602));
}

// field case: F-P26-09
async fn work_that_hears_of_no_cancel_ends_all_the_same(database: TestDatabase) {
    let rules = taskhold::engine::EngineRules { grace: Duration::ZERO, ..engine_rules() };
    let brief = ToolConfig { run_limit: Some(Duration::from_millis(400)), ..ToolConfig::default() };
    let brief = UpstreamConfig { prefix: true, tools: vec![("deaf".to_owned(), brief)], ..test_tools("brief") };
    let gateway = Gateway::with(database, settings(), vec![test_tools("test"), brief], rules).await;
    let client = taking_tasks(&gateway.front.url);
    let call = async |tool: &str| client.call(tool, json!({ "ms": 60_000 })).await.result()["taskId"].clone();
    let id = call("deaf").await;
    client.request("tasks/cancel", json!({ "taskId": id })).await.result();
    until_status(&client, &id, "cancelled").await;
    // Without a cancel the run limit is its end.
    let failed = until_status(&client, &call("brief__deaf").await, "failed").await;
    assert_eq!(
        (&failed["error"]["code"], &failed["error"]["data"]["reason"]),
        (&json!(-32603), &json!("run_time_exceeded"))
    );
    assert_eq!(failed["statusMessage"], failed["error"]["message"], "who polls is told why");
    gateway.upstreams.stop().await;
}

// req: EXT-03, EXT-05, LIFE-08, LIFE-09, MOD-06
// field case: F-P26-05, F-P26-12
async fn every_answer_about_a_task_has_its_form(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = taking_tasks(&service.url);
    let params = json!({ "name": "eager", "arguments": {}, "task": { "ttl": 1 } });
    let created = client.request("tools/call", params).await.result();
    assert_eq!((&created["resultType"], &created["ttlMs"]), (&json!("task"), &json!(3_600_000)));
    let (id, work) = (created["taskId"].clone(), service.script.next().await);
    let mut seen = vec![created.clone(), until_status(&client, &id, "working").await];
    let asked = work.ask(how_many());
    seen.push(until_status(&client, &id, "input_required").await);
    let key = seen[2]["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let answer = json!({ key: { "action": "decline" } });
    let update = client.request("tasks/update", json!({ "taskId": id, "inputResponses": answer })).await.result();
    within("the work to be answered", asked).await.unwrap();
    work.answer("done");
    seen.push(until_status(&client, &id, "completed").await);
    for (end, status) in [("fail", "failed"), ("cancel", "cancelled")] {
        let other = client.call("eager", json!({})).await.result()["taskId"].clone();
        let work = service.script.next().await;
        if end == "fail" {
            let json = RawJson::trusted(r#"{"code":-32011,"message":"no such city"}"#);
            work.end(Attempt::Answered(Outcome::Error { json }));
        } else {
            let ack = client.request("tasks/cancel", json!({ "taskId": other })).await.result();
            assert_eq!(ack, update, "both are acknowledged alike");
        }
        seen.push(until_status(&client, &other, status).await);
    }
    let keys: Vec<_> = update.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((keys, &update["resultType"]), (vec!["_meta", "resultType"], &json!("complete")));
    let of_status = |status: &str| match status {
        "completed" => Some("result"),
        "failed" => Some("error"),
        "input_required" => Some("inputRequests"),
        _ => None,
    };
    for task in &seen {
        let status = task["status"].as_str().unwrap();
        let kind = if task == &created { "task" } else { "complete" };
        assert_eq!(task["resultType"], kind, "{task}");
        for time in ["createdAt", "lastUpdatedAt"] {
            let text = task[time].as_str().unwrap_or_else(|| panic!("no {time}: {task}"));
            assert!(text.ends_with('Z') && Timestamp::parse_rfc3339(text).is_ok(), "{task}");
        }
        assert!(task["ttlMs"].is_u64() && task["pollIntervalMs"].is_u64(), "{task}");
        assert!(task["_meta"]["io.modelcontextprotocol/serverInfo"].is_object(), "{task}");
        for part in ["result", "error", "inputRequests"] {
            assert_eq!(task.get(part).is_some(), of_status(status) == Some(part), "{part}: {task}");
        }
        for gone in ["task", "ttl", "pollInterval", "requestState"] {
            assert_eq!(task.get(gone), None, "{task}");
        }
    }
    assert_eq!(seen[3]["result"]["resultType"], "complete");
}
