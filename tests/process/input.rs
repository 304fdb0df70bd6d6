//! Questions that are open when the service is killed.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::events::Events;
use crate::support::server::{Server, binary, new_token};

contract! {
    a_prompt_of_a_server_that_died_ends_honestly,
    a_prompt_of_a_server_that_lives_is_answered_after_a_kill,
    a_plain_call_to_a_server_with_tasks_of_its_own_is_answered,
}

/// Answers the next question on the stream; answers its id.
async fn answer_next(client: &Client, stream: &mut Events, text: &str) -> Value {
    let question = stream.until("elicitation/create").await;
    let accepted = client.respond(&question["id"], &json!({ "action": "accept", "content": { "answer": text } })).await;
    assert_eq!((accepted.status, accepted.body.as_str()), (202, ""));
    question["id"].clone()
}

async fn wait_for(client: &Client, id: &Value) -> Events {
    Events::of_request(client, client.message("tasks/result", &json!({ "taskId": id }))).await
}

/// The server behind it was a child of the service and is gone as well.
// field case: F-DUR-04
async fn a_prompt_of_a_server_that_died_ends_honestly(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let server = Server::start(&database.url).await;
    let client = Client::capable(&server.url, &token).await;
    let id = client.task("ask", json!({ "n": 2 })).await["taskId"].clone();
    let mut result = wait_for(&client, &id).await;
    answer_next(&client, &mut result, "first").await;
    let second = result.until("elicitation/create").await;
    server.kill().await;

    let server = Server::start(&database.url).await;
    let client = client.at(&server.url);
    let content = json!({ "action": "accept", "content": { "answer": "second" } });
    assert_eq!(client.respond(&second["id"], &content).await.status, 202);
    database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    let failed = client.until_status(&id, "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().starts_with("outcome unknown"), "{failed}");
    assert_eq!(client.respond(&second["id"], &content).await.status, 202);
    assert_eq!(client.get(&id).await.result(), failed);
}

/// A demo server by HTTP that runs calls as tasks of its own, with its URL.
pub(super) async fn remote() -> (Child, String) {
    let mut child = Command::new(binary())
        .args(["demo-server", "--test-tools", "--tasks", "--http", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary starts");
    let stdout = child.stdout.take().expect("standard output is piped");
    let line = BufReader::new(stdout).lines().next_line().await.expect("it can be read").expect("it says its URL");
    let said: Value = serde_json::from_str(&line).expect("JSON");
    (child, said["url"].as_str().expect("a URL").to_owned())
}

// req: INPUT-03, KEEP-07
// field case: F-DUR-04
async fn a_prompt_of_a_server_that_lives_is_answered_after_a_kill(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let (_upstream, url) = remote().await;
    let folder = tempfile::tempdir().unwrap();
    let config = format!("[[upstreams]]\nname = \"far\"\nurl = \"{url}\"\nprotocol = \"2025-11-25\"\n");
    std::fs::write(folder.path().join("taskhold.toml"), config).unwrap();
    let server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let client = Client::capable(&server.url, &token).await;
    let id = client.task("ask", json!({ "n": 2 })).await["taskId"].clone();
    let mut result = wait_for(&client, &id).await;
    let first = answer_next(&client, &mut result, "first").await;
    let second = result.until("elicitation/create").await;
    server.kill().await;

    let server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let client = client.at(&server.url);
    let task = client.get(&id).await.result();
    assert_eq!(
        (&task["status"], &task["statusMessage"]),
        (&json!("input_required"), &json!("waiting for input: question 2 of 2"))
    );
    database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    // The next who waits for the result is asked, under a new id.
    let mut result = wait_for(&client, &id).await;
    let again = result.until("elicitation/create").await;
    assert_eq!(again["params"]["message"], "question 2 of 2");
    assert!(again["id"] != second["id"] && again["id"] != first);
    // An id from before the crash counts as well.
    let content = json!({ "action": "accept", "content": { "answer": "second" } });
    assert_eq!(client.respond(&second["id"], &content).await.status, 202);
    let rest = result.rest().await;
    let end = rest.last().unwrap();
    let text = end["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no result: {rest:?}"));
    assert!(text.contains("first") && text.contains("second"), "{text}");
    assert!(server.terminate().await.success());
}

// req: EXEC-11 (legacy half)
async fn a_plain_call_to_a_server_with_tasks_of_its_own_is_answered(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let (_upstream, url) = remote().await;
    let folder = tempfile::tempdir().unwrap();
    let config = format!("[[upstreams]]\nname = \"far\"\nurl = \"{url}\"\nprotocol = \"2025-11-25\"\n");
    std::fs::write(folder.path().join("taskhold.toml"), config).unwrap();
    let server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let client = Client::capable(&server.url, &token).await;
    let call = client.message("tools/call", &json!({ "name": "ask", "arguments": { "n": 1 } }));
    let mut stream = Events::of_request(&client, call).await;
    answer_next(&client, &mut stream, "only").await;
    let rest = stream.rest().await;
    let end = rest.last().unwrap();
    let text = end["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no result: {rest:?}"));
    assert!(text.contains("only"), "{text}");
    assert!(end["result"].get("task").is_none() && end["result"]["_meta"].is_null(), "no task is told of: {end}");
    assert_eq!(database.rows_of_tasks().await, 0, "none was made");
    assert!(server.terminate().await.success());
}
