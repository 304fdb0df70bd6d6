//! The tasks extension.

use serde_json::{Value, json};

use super::client::{Modern, SUBSCRIPTION, TASKS, headers, message};
use super::schema;
use crate::support::events::Events;
use crate::upstream::harness::within;

impl Modern {
    async fn start(&self, name: &str, mut arguments: Value) -> String {
        arguments["as_task"] = json!(true);
        let created = self.call(name, arguments).await;
        assert_eq!(created.result()["resultType"], "task", "{}", created.last());
        created.result()["taskId"].as_str().unwrap().to_owned()
    }

    async fn look(&self, id: &str) -> Value {
        let shown = self.request("tasks/get", json!({ "taskId": id })).await;
        assert_eq!(shown.result()["resultType"], "complete");
        shown.result().clone()
    }

    async fn until(&self, id: &str, status: &str) -> Value {
        within(status, async {
            loop {
                let task = self.look(id).await;
                if task["status"] == status {
                    return task;
                }
            }
        })
        .await
    }

    async fn update(&self, id: &str, responses: Value) {
        let done = self.request("tasks/update", json!({ "taskId": id, "inputResponses": responses })).await;
        assert_eq!(done.result()["resultType"], "complete");
    }
}

#[tokio::test]
async fn a_task_shows_how_its_call_ended() {
    let client = Modern::new(&["--test-tools", "--tasks"]).await;
    let id = client.start("echo", json!({ "a": 1 })).await;
    let done = client.until(&id, "completed").await;
    assert_eq!(done["result"]["structuredContent"]["a"], 1);
    assert_eq!(done["result"]["resultType"], "complete");
    let id = client.start("fail_tool", json!({})).await;
    assert_eq!(client.until(&id, "completed").await["result"]["isError"], true);
    let id = client.start("fail_rpc", json!({ "code": -32011 })).await;
    let failed = client.until(&id, "failed").await;
    assert_eq!((&failed["error"]["code"], &failed["statusMessage"]), (&json!(-32011), &json!("failed as asked")));
    assert_eq!(failed.get("result"), None);
    let undeclared = json!({ "name": "sleep", "arguments": { "as_task": true } });
    assert_eq!(client.request_with("tools/call", undeclared, json!({})).await.text(), "slept 0 ms");
    let only = client.request_with("tools/call", json!({ "name": "task_only" }), json!({})).await;
    assert_eq!(only.code(), (400, -32021));
    let without = Modern::new(&["--test-tools"]).await;
    assert_eq!(without.call("sleep", json!({ "as_task": true })).await.text(), "slept 0 ms");
    assert_eq!(without.request("tasks/get", json!({ "taskId": "x" })).await.code(), (404, -32601));
}

#[tokio::test]
async fn methods_of_tasks_need_the_extension_and_an_id() {
    let client = Modern::new(&["--test-tools", "--tasks"]).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({ "taskId": "nobodys", "inputResponses": {} });
        let lacking = client.request_with(method, params.clone(), json!({})).await;
        assert_eq!(lacking.code(), (400, -32021), "{method}");
        assert_eq!(lacking.last()["error"]["data"], json!({ "requiredCapabilities": { "extensions": { TASKS: {} } } }));
        assert_eq!(client.request(method, params).await.code(), (200, -32602), "{method}");
    }
    let id = client.start("sleep", json!({ "ms": 60_000 })).await;
    let asked = message("tasks/get", json!({ "taskId": id }), &client.capabilities);
    let mut sent = headers(&asked);
    sent.insert("mcp-name", "another".parse().unwrap());
    assert_eq!(client.post(sent.clone(), &asked).await.code(), (400, -32020));
    sent.remove("mcp-name");
    assert_eq!(client.post(sent, &asked).await.status, 200);
    assert_eq!(client.request("tasks/update", json!({ "taskId": id })).await.code(), (200, -32602));
    for _ in 0..2 {
        let cancelled = client.request("tasks/cancel", json!({ "taskId": id })).await;
        assert_eq!(cancelled.result().get("status"), None, "an acknowledgement alone");
    }
    assert_eq!(client.look(&id).await["status"], "cancelled");
}

#[tokio::test]
async fn a_task_is_asked_and_answered() {
    let client = Modern::new(&["--test-tools", "--tasks"]).await;
    let id = client.start("ask", json!({ "n": 2, "at_once": true })).await;
    let asked = client.until(&id, "input_required").await;
    let keys = |task: &Value| -> Vec<String> { task["inputRequests"].as_object().unwrap().keys().cloned().collect() };
    assert_eq!(keys(&asked), ["question-1", "question-2"]);
    client.update(&id, json!({ "unknown": {}, "question-1": { "action": "accept" } })).await;
    assert_eq!(keys(&client.look(&id).await), ["question-2"]);
    client.update(&id, json!({ "question-1": { "action": "decline" }, "question-2": { "action": "cancel" } })).await;
    let done = client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], r#"[{"action":"accept"},{"action":"cancel"}]"#);
}

#[tokio::test]
async fn a_tool_that_asks_first_becomes_a_task_with_its_answers() {
    let client = Modern::new(&["--conformance", "--tasks"]).await;
    let asked = client.call("test_tool_with_task", json!({})).await;
    assert_eq!(asked.result()["resultType"], "input_required");
    assert_eq!(asked.result().get("taskId"), None);
    let answer = json!({ "user_name": { "action": "accept", "content": { "name": "Alice" } } });
    let params = json!({ "name": "test_tool_with_task", "arguments": {}, "inputResponses": answer });
    let created = client.request("tools/call", params).await;
    assert_eq!((created.result()["resultType"].as_str(), created.result().get("inputRequests")), (Some("task"), None));
    let done = client.until(created.result()["taskId"].as_str().unwrap(), "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "Hello, Alice!");
    assert_eq!(client.call("greet", json!({ "name": "Bob" })).await.text(), "Hello, Bob!");
}

#[tokio::test]
async fn who_listens_to_a_task_sees_it_as_it_is_and_as_it_changes() {
    let client = Modern::new(&["--test-tools", "--tasks"]).await;
    let id = client.start("ask", json!({})).await;
    client.until(&id, "input_required").await;
    let filter = json!({ "notifications": { "taskIds": [id, "nobodys"], "toolsListChanged": true } });
    let lacking = client.request_with("subscriptions/listen", filter.clone(), json!({})).await;
    assert_eq!(lacking.code(), (400, -32021));
    let asked = message("subscriptions/listen", filter, &client.capabilities);
    let mut events = Events::new(client.open(headers(&asked), &asked).await).await;
    let mut next = async || {
        let said = events.message().await.expect("the stream is open");
        schema::check("subscriptions/listen", &said);
        assert_eq!(said["params"]["_meta"][SUBSCRIPTION], 7, "{said}");
        said
    };
    assert_eq!(next().await["params"]["notifications"], json!({ "taskIds": [id] }));
    let shown = next().await["params"].clone();
    assert_eq!((&shown["taskId"], &shown["status"]), (&json!(id), &json!("input_required")));
    client.update(&id, json!({ "question-1": { "action": "decline" } })).await;
    let mut seen = Vec::new();
    while seen.last() != Some(&json!("completed")) {
        seen.push(next().await["params"]["status"].clone());
    }
}
