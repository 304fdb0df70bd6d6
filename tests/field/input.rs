//! Questions of tasks before a real upstream.

use serde_json::{Value, json};

use crate::http::harness::Gateway;
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::events::Events;

contract! {
    a_task_that_asks_is_answered_over_its_result,
}

const RELATED: &str = "io.modelcontextprotocol/related-task";

// req: INPUT-01, INPUT-02
// field case: F-P25-12
async fn a_task_that_asks_is_answered_over_its_result(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    let client = Client::capable(&gateway.front.url, "owner").await;
    let id = client.task("ask", json!({ "n": 2 })).await["taskId"].clone();
    let waiting = client.until_status(&id, "input_required").await;
    assert_eq!(waiting["statusMessage"], "waiting for input: question 1 of 2");
    let mut result = Events::of_request(&client, client.message("tasks/result", &json!({ "taskId": id }))).await;
    let mut seen: Vec<Value> = Vec::new();
    for n in 1..=2 {
        let question = result.until("elicitation/create").await;
        assert_eq!(question["params"]["message"], format!("question {n} of 2"));
        assert_eq!(question["params"]["_meta"][RELATED], json!({ "taskId": id }));
        assert!(!seen.contains(&question["id"]), "an id of its own");
        assert_eq!(client.get(&id).await.result()["status"], "input_required");
        let content = json!({ "action": "accept", "content": { "answer": format!("answer {n}") } });
        let accepted = client.respond(&question["id"], &content).await;
        assert_eq!((accepted.status, accepted.body.as_str()), (202, ""));
        seen.push(question["id"].clone());
    }
    let rest = result.rest().await;
    let end = rest.last().unwrap();
    let text = end["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no result: {rest:?}"));
    assert!(text.contains("answer 1") && text.contains("answer 2"), "{text}");
    assert_eq!(end["result"]["_meta"][RELATED], json!({ "taskId": id }));
    assert_eq!(client.get(&id).await.result()["status"], "completed");
}
