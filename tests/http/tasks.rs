//! `tasks/*` on the wire.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taskhold::lifecycle::spawn;

use super::harness::Service;
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;

contract! {
    a_task_lives_from_its_creation_to_its_result,
    failures_are_failed_in_this_era,
    strangers_see_what_nobody_sees,
    the_list_is_paged_newest_first,
    a_cancel_ends_a_task_for_all_who_wait,
}

/// Far less than a wait that nobody ended would take, however busy the machine is.
const SOON: Duration = Duration::from_secs(5);
const RELATED: &str = "io.modelcontextprotocol/related-task";
const RESULT: &str = r#"{"content":[{"type":"text","text":"\u0000\ud800"}],"x":1e400,"_meta":{"b":2,"a":1.0}}"#;

fn fields(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

// req: LIFE-01, LIFE-08, LIFE-09, LIFE-11, TASK-01, TASK-05, TASK-06, TASK-08, TASK-10, TASK-24, TASK-27
// field case: F-P25-02
async fn a_task_lives_from_its_creation_to_its_result(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let params = json!({ "name": "our_name", "arguments": {}, "task": { "ttl": 60_000 } });
    let created = client.request("tools/call", params).await;
    assert!(!created.is_stream());
    let created = created.result();
    let task = &created["task"];
    let id = &task["taskId"];
    assert_eq!(task["status"], "working");
    assert_eq!((task["ttl"].as_i64(), task["pollInterval"].as_i64()), (Some(60_000), Some(250)));
    assert_eq!(created["content"], json!([]));
    assert_eq!(
        created["_meta"],
        json!({
            RELATED: { "taskId": id },
            "modelcontextprotocol.io/task": { "taskId": id, "status": "working" },
            "io.modelcontextprotocol/model-immediate-response": "it is under way",
        })
    );
    let got = client.get(id).await;
    assert!(!got.is_stream());
    let got = got.result();
    for field in ["taskId", "status", "createdAt", "ttl", "pollInterval"] {
        assert_eq!(got[field], task[field], "{field}");
    }
    for time in ["createdAt", "lastUpdatedAt"] {
        let text = got[time].as_str().unwrap();
        assert!(text.len() == 27 && text.ends_with('Z') && text.contains('T'), "{text}");
    }
    assert!(got.get("_meta").is_none() && got.get("task").is_none(), "{got}");

    service.answer_next(RESULT).await;
    let outcome = client.result(id).await;
    let merged = RESULT.replace(r#""a":1.0}"#, &format!(r#""a":1.0,"{RELATED}":{{"taskId":{id}}}}}"#));
    assert!(outcome.text().ends_with(&format!(r#""result":{merged}}}"#)), "{outcome:?}");
    let ended = client.until_status(id, "completed").await;
    assert_eq!(client.get(id).await.result(), ended);
    let same = |answer: Answer| answer.text().split_once(r#""result":"#).unwrap().1.to_owned();
    let first = same(outcome);
    for _ in 0..3 {
        let again = client.result(id).await;
        assert!(!again.is_stream(), "a finished result is plain JSON");
        assert_eq!(same(again), first);
    }
    let listed = client.request("tasks/list", json!({})).await.result();
    assert_eq!(listed["tasks"], json!([ended]));
    assert_eq!(fields(&listed), ["tasks"]);
}

// req: TASK-06, TASK-26, LIFE-11
async fn failures_are_failed_in_this_era(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let tool_error =
        r#"{"content":[{"type":"text","text":"disk full"}],"structuredContent":{"free":1.0},"isError":true}"#;
    let task = client.task("optional", json!({})).await;
    service.answer_next(tool_error).await;
    let failed = client.until_status(&task["taskId"], "failed").await;
    assert_eq!(failed["statusMessage"], "disk full");
    let outcome = client.result(&task["taskId"]).await;
    assert!(outcome.text().contains(&tool_error[..tool_error.len() - 1]), "{outcome:?}");

    let error = r#"{"code":-32011,"message":"no such city","data":{"n":1e400}}"#;
    let task = client.task("optional", json!({})).await;
    service.fail_next(error).await;
    let failed = client.until_status(&task["taskId"], "failed").await;
    assert_eq!(failed["statusMessage"], "no such city");
    let outcome = client.result(&task["taskId"]).await;
    assert!(outcome.text().ends_with(&format!(r#""error":{error}}}"#)), "{outcome:?}");
}

// req: TASK-02, TASK-03
#[tokio::test]
async fn a_ttl_is_granted_within_limits_or_refused() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let ask = async |task: &str| {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"optional","task":{task}}}}}"#);
        client.send(&body).await
    };
    for (task, granted) in [
        ("{}", 3_600_000),
        (r#"{"ttl":null}"#, 3_600_000),
        (r#"{"ttl":60000}"#, 60_000),
        (r#"{"ttl":60000.0}"#, 60_000),
        (r#"{"ttl":0}"#, 10_000),
        (r#"{"ttl":9007199254740992}"#, 86_400_000),
        (r#"{"ttl":20000,"pollInterval":1}"#, 20_000),
    ] {
        assert_eq!(ask(task).await.result()["task"]["ttl"], granted, "{task}");
    }
    let before = client.list().await.len();
    for task in [
        "null",
        "true",
        "[]",
        r#""60000""#,
        "60000",
        r#"{"ttl":-1}"#,
        r#"{"ttl":0.5}"#,
        r#"{"ttl":"60000"}"#,
        r#"{"ttl":true}"#,
        r#"{"ttl":9007199254740993}"#,
        r#"{"ttl":1e400}"#,
    ] {
        let (code, message) = ask(task).await.error();
        assert!(code == -32602 && message.contains("task"), "{task} {message}");
    }
    assert_eq!(client.list().await.len(), before);
}

// req: TASK-11, TASK-09, AUTH-03, AUTH-04
async fn strangers_see_what_nobody_sees(database: TestDatabase) {
    let service = Service::start(database).await;
    let owner = service.client("owner").await;
    let stranger = service.client("stranger").await;
    let task = owner.task("optional", json!({})).await;
    let id = &task["taskId"];
    let mut messages = std::collections::BTreeSet::new();
    let upper = json!(id.as_str().unwrap().to_uppercase());
    let odd = [json!("786512e2-9e0d-44bd-8f29-789f320fe840"), json!(""), json!("\0"), json!("x".repeat(10_000)), upper];
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let (code, message) = stranger.request(method, json!({ "taskId": id })).await.error();
        assert_eq!(code, -32602, "{method}");
        messages.insert(message);
        for unknown in &odd {
            let (code, message) = owner.request(method, json!({ "taskId": unknown })).await.error();
            assert_eq!(code, -32602, "{method} {unknown}");
            messages.insert(message);
        }
        // Metadata that names a task does not make it the one that is asked for.
        let params = json!({ "taskId": odd[0], "_meta": { RELATED: { "taskId": id } } });
        assert_eq!(owner.request(method, params).await.error().0, -32602, "{method}");
    }
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(stranger.list().await, Vec::<Value>::new());
    assert_eq!(owner.list().await, std::slice::from_ref(id));
    assert_eq!(owner.get(id).await.result()["status"], "working");
}

// req: TASK-25
#[tokio::test]
async fn mistyped_parameters_are_named() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        for params in [json!({}), json!({ "taskId": 7 }), json!({ "taskId": null }), json!({ "taskid": "x" })] {
            let (code, message) = client.request(method, params.clone()).await.error();
            assert!(code == -32602 && message.contains("taskId"), "{method} {params} {message}");
        }
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        assert!(client.send(&body).await.error().1.contains("taskId"), "{method}");
    }
    let (code, message) = client.request("tasks/list", json!({ "cursor": 1 })).await.error();
    assert!(code == -32602 && message.contains("cursor"), "{message}");
    let task = client.task("optional", json!({})).await;
    let noisy = json!({ "taskId": task["taskId"], "task": {}, "other": [1] });
    assert_eq!(client.request("tasks/get", noisy).await.result()["taskId"], task["taskId"]);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/list"}"#;
    assert_eq!(client.send(body).await.result()["tasks"].as_array().unwrap().len(), 1);
}

// req: TASK-16, TASK-17, TASK-18, TASK-19
async fn the_list_is_paged_newest_first(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let mut made = Vec::new();
    for count in 1..=7 {
        made.push(client.task("optional", json!({})).await["taskId"].clone());
        let page = client.request("tasks/list", json!({})).await.result();
        assert_eq!(page.get("nextCursor").is_some(), count > 3, "a page holds three: {page}");
    }
    made.reverse();
    assert_eq!(client.list().await, made);
    let first = client.request("tasks/list", json!({})).await.result();
    let cursor = first["nextCursor"].as_str().unwrap();
    let stranger = service.client("stranger").await;
    for (who, cursor) in
        [(&stranger, cursor), (&client, "x"), (&client, ""), (&client, &cursor[1..]), (&client, &format!("{cursor}A"))]
    {
        assert_eq!(who.request("tasks/list", json!({ "cursor": cursor })).await.error().0, -32602, "{cursor}");
    }
}

// req: TASK-12, TASK-13, TASK-14, TASK-15, TASK-22
async fn a_cancel_ends_a_task_for_all_who_wait(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let task = client.task("optional", json!({})).await;
    let id = task["taskId"].clone();
    let call = service.script.next().await;
    let waiters: Vec<_> = ["application/json", client.accept, "text/event-stream"]
        .into_iter()
        .map(|accept| {
            let (waiter, id) = (Client { accept, ..client.clone() }, id.clone());
            spawn("client", async move { waiter.result(&id).await })
        })
        .collect();
    let cancelled = client.cancel(&id).await.result();
    assert_eq!((cancelled["status"].as_str(), cancelled.get("_meta")), (Some("cancelled"), None));
    assert_eq!(cancelled["statusMessage"], "cancelled by request; that its work has stopped is not confirmed");
    call.stop.cancelled().await;
    let began = Instant::now();
    let expected =
        format!(r#""error":{{"code":-32800,"message":"the task was cancelled","data":{{"taskId":{id}}}}}}}"#);
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        assert!(answer.status == 200 && answer.text().ends_with(&expected), "{answer:?}");
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert!(client.result(&id).await.text().ends_with(&expected));
    let (code, message) = client.cancel(&id).await.error();
    assert!(code == -32602 && message.contains("cancelled"), "{message}");
    assert_eq!(client.get(&id).await.result(), cancelled);

    let task = client.task("optional", json!({})).await;
    service.answer_next(RESULT).await;
    let ended = client.until_status(&task["taskId"], "completed").await;
    let (code, message) = client.cancel(&task["taskId"]).await.error();
    assert!(code == -32602 && message.contains("completed"), "{message}");
    assert_eq!(client.get(&task["taskId"]).await.result(), ended);
}
