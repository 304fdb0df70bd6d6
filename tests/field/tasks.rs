//! Tasks of 2025-11-25 before a real upstream.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::http::harness::{Gateway, Service, engine_rules};
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{Server, binary};

contract! {
    a_finished_task_stays_until_its_ttl_runs_out,
    a_failed_task_says_why,
    a_plain_call_gets_no_handle,
    a_cancel_changes_nothing_that_has_ended,
    waiters_at_every_node_hear_of_a_cancel,
    an_unknown_task_is_never_a_task,
    who_waits_is_told_how_long,
    callers_without_a_name_have_no_list,
}

/// Far less than they would wait without being told, however busy the machine is.
const SOON: Duration = Duration::from_secs(5);
const RELATED: &str = "io.modelcontextprotocol/related-task";

fn ask(method: &str, id: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "taskId": id } }).to_string()
}

// field case: F-P25-01
async fn a_finished_task_stays_until_its_ttl_runs_out(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    let client = gateway.client("owner").await;
    let id = client.task("echo", json!({ "any": [1] })).await["taskId"].clone();
    let ended = client.until_status(&id, "completed").await;
    let first = client.send(&ask("tasks/result", &id)).await;
    assert_eq!(first.result()["structuredContent"], json!({ "any": [1] }));
    for _ in 0..3 {
        assert_eq!(client.get(&id).await.result(), ended);
        assert_eq!(client.send(&ask("tasks/result", &id)).await.text(), first.text());
        let listed = client.request("tasks/list", json!({})).await;
        assert_eq!(listed.result(), json!({ "tasks": [ended] }));
        assert!(!listed.text().contains(RELATED) && !client.get(&id).await.text().contains(RELATED));
    }
    gateway.upstreams.stop().await;
}

// field case: F-P25-04
async fn a_failed_task_says_why(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    let client = gateway.client("owner").await;
    let long = "the disk is full; ".repeat(20);
    let error = json!({ "error": { "code": -32011, "message": "no such city", "data": { "city": "Atlantis" } } });
    for (tool, arguments, says) in [
        ("fail_tool", json!({ "message": "disk full" }), "disk full"),
        ("fail_tool", json!({ "message": long }), "the disk is full; "),
        ("reply", error, "no such city"),
    ] {
        let id = client.task(tool, arguments.clone()).await["taskId"].clone();
        let failed = client.until_status(&id, "failed").await;
        let message = failed["statusMessage"].as_str().unwrap();
        assert!(message.starts_with(says) && message.len() <= engine_rules().message_limit, "{message}");
        let mut as_task = client.result(&id).await.json();
        if let Some(result) = as_task["result"].as_object_mut() {
            assert!(result["structuredContent"].is_object(), "{result:?}");
            assert_eq!(result.remove("_meta"), Some(json!({ RELATED: { "taskId": id } })));
        }
        let plain = client.call(tool, arguments).await.json();
        assert_eq!((&as_task["result"], &as_task["error"]), (&plain["result"], &plain["error"]));
    }
    gateway.upstreams.stop().await;
}

// field case: F-P25-05
async fn a_plain_call_gets_no_handle(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    let mut client = Client::new(&gateway.front.url, Some("owner"));
    let capabilities =
        json!({ "tasks": { "list": {}, "cancel": {}, "requests": { "elicitation": { "create": {} } } } });
    let params = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": capabilities,
        "clientInfo": { "name": "c", "version": "1" },
    });
    client.session = client.request("initialize", params).await.header("mcp-session-id").map(str::to_owned);
    let tools = client.request("tools/list", json!({})).await.result();
    let echo = tools["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "echo").unwrap();
    assert_eq!(echo["execution"]["taskSupport"], "optional");
    let result = client.call("echo", json!({ "a": 1 })).await.result();
    assert_eq!((&result["structuredContent"], result.get("task")), (&json!({ "a": 1 }), None));
    assert_eq!(client.list().await, Vec::<Value>::new());
    assert_eq!(gateway.database.rows_of_tasks().await, 0);
    gateway.upstreams.stop().await;
}

// field case: F-P25-08
async fn a_cancel_changes_nothing_that_has_ended(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    let client = gateway.client("owner").await;
    for (tool, arguments, status) in [
        ("echo", json!({}), "completed"),
        ("fail_tool", json!({}), "failed"),
        ("fail_rpc", json!({}), "failed"),
        ("sleep", json!({ "ms": 60_000 }), "cancelled"),
    ] {
        let id = client.task(tool, arguments).await["taskId"].clone();
        if status == "cancelled" {
            client.cancel(&id).await.result();
        }
        let ended = client.until_status(&id, status).await;
        let outcome = client.send(&ask("tasks/result", &id)).await;
        for _ in 0..2 {
            let (code, message) = client.cancel(&id).await.error();
            assert!(code == -32602 && message.contains(status), "{message}");
            assert_eq!(client.get(&id).await.result(), ended);
            assert_eq!(client.send(&ask("tasks/result", &id)).await.text(), outcome.text());
        }
    }
    gateway.upstreams.stop().await;
}

// field case: F-P25-10
async fn waiters_at_every_node_hear_of_a_cancel(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    let other = gateway.another_node().await;
    let client = gateway.client("owner").await;
    let there = client.at(&other.url);
    let id = client.task("sleep", json!({ "ms": 60_000 })).await["taskId"].clone();
    let begun = [&client, &there, &client, &there, &client].map(|waiter| {
        let request = waiter.build(Method::POST).header("content-type", "application/json");
        request.body(ask("tasks/result", &id)).send()
    });
    // Each is a stream by now, so each waits.
    let waiting = join_all(begun).await.into_iter().map(Result::unwrap);
    assert_eq!(there.cancel(&id).await.result()["status"], "cancelled");
    let ended = futures_util::stream::iter(waiting).then(Answer::read).collect::<Vec<_>>();
    let answers = tokio::time::timeout(SOON, ended).await.expect("all are told soon");
    let later = client.send(&ask("tasks/result", &id)).await;
    let error = &later.json()["error"];
    assert_eq!((error["code"].as_i64(), &error["data"]["taskId"]), (Some(-32800), &id));
    for answer in answers {
        assert_eq!((answer.status, answer.text()), (200, later.text()));
    }
    gateway.upstreams.stop().await;
}

// field case: F-P25-11
async fn an_unknown_task_is_never_a_task(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    let client = gateway.client("owner").await;
    let purged = client.task("echo", json!({})).await["taskId"].clone();
    client.until_status(&purged, "completed").await;
    gateway.database.sql("UPDATE task_outcomes SET expires = 1").await;
    let expired = client.get(&purged).await;
    assert_eq!(gateway.front.engine.reap_once().await.unwrap().tasks, 1);
    let random = json!("786512e2-9e0d-44bd-8f29-789f320fe840");
    assert_eq!(expired.error(), client.get(&random).await.error());
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let ids = [&random, &purged, &json!(""), &json!(7), &json!("x".repeat(10_000)), &json!("\0"), &json!(null)];
        for id in ids {
            let answer = client.send(&ask(method, id)).await;
            assert_eq!((answer.status, answer.error().0), (200, -32602), "{method} {id}");
        }
    }
    gateway.upstreams.stop().await;
}

// field case: F-OPS-06
async fn who_waits_is_told_how_long(database: TestDatabase) {
    let rules = taskhold::engine::EngineRules { slots: 1, ..engine_rules() };
    let service = Service::with(database, rules).await;
    let client = service.client("owner").await;
    let mut ids = Vec::new();
    for _ in 0..6 {
        let params = json!({ "name": "our_name", "arguments": {}, "task": {} });
        let created = client.request("tools/call", params).await.result();
        assert_eq!(created["_meta"]["io.modelcontextprotocol/model-immediate-response"], "it is under way");
        assert!(created["task"]["statusMessage"].is_string(), "from the first second: {created}");
        ids.push(created["task"]["taskId"].clone());
    }
    for left in (1..=6).rev() {
        let call = service.script.next().await;
        // The queue says where each stands, and each moves up when the one before it ends.
        service.front.engine.announce_queue().await.unwrap();
        let at = ids.len() - left;
        assert_eq!(client.get(&ids[at]).await.result()["statusMessage"], "running");
        for (ahead, id) in ids[at + 1..].iter().enumerate() {
            assert_eq!(client.get(id).await.result()["statusMessage"], format!("queued, {ahead} ahead"));
        }
        call.answer("done");
        client.until_status(&ids[at], "completed").await;
    }
}

// field case: F-AUTH-04
async fn callers_without_a_name_have_no_list(database: TestDatabase) {
    let upstream = format!("test={} demo-server --test-tools", binary());
    let server = Server::start_with(&database.url, &["--auth", "none", "--upstream", &upstream]).await;
    let mut client = Client::new(&server.url, None);
    let capabilities = client.initialize("2025-11-25").await["capabilities"].clone();
    assert_eq!(capabilities["tasks"], json!({ "cancel": {}, "requests": { "tools": { "call": {} } } }));
    assert_eq!(client.request("tasks/list", json!({})).await.error().0, -32601);
    let params = json!({ "name": "echo", "arguments": {}, "task": {} });
    let (mut all, mut any) = (u128::MAX, 0);
    for _ in 0..64 {
        let task = client.request("tools/call", params.clone()).await.result()["task"].clone();
        assert!(task["ttl"].as_u64().unwrap() <= 3_600_000, "an hour at most unless asked for: {task}");
        let id: uuid::Uuid = task["taskId"].as_str().unwrap().parse().unwrap();
        assert_eq!(id.get_version_num(), 4, "122 random bits");
        (all, any) = (all & id.as_u128(), any | id.as_u128());
    }
    // Version and variant are fixed; every other bit has been 0 and 1: no counter, no time, no prefix.
    let fixed = all | !any;
    assert_eq!(fixed.count_ones(), 6, "{fixed:032x}");
    assert!(server.terminate().await.success());
}
