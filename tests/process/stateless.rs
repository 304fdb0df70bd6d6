//! Tasks of clients whose requests stand alone: over kills, at two nodes, and by the settings that are for them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::input::remote;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::modern::Modern;
use crate::support::server::{PATIENCE, Server, binary, new_token};

contract! {
    a_handle_can_be_read_at_once_wherever_it_is_asked_for,
    every_question_of_a_task_has_a_key_of_its_own_over_a_kill,
    a_key_stands_for_the_same_call_over_a_kill,
    a_round_of_a_process_of_one_node_is_answered_at_another,
    requests_about_tasks_without_their_name_are_counted_or_refused,
}

/// A folder with a configuration in which every call becomes a task at once.
fn at_once(more: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("taskhold.toml"), format!("[tasks]\ngrace = \"0s\"\n{more}")).unwrap();
    folder
}

/// A node with that configuration before the demo server's test tools.
async fn node(folder: &Path, database: &TestDatabase) -> Server {
    let upstream = format!("test={} demo-server --test-tools", binary());
    Server::start_in(Some(folder), &database.url, &["--upstream", &upstream]).await
}

/// Waits for what a node does that has to wait for the death of another.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, poll).await.is_ok(), "this did not come about: {what}");
}

async fn look(client: &Modern, id: &Value) -> Value {
    client.request("tasks/get", json!({ "taskId": id })).await.result()
}

// req: LIFE-06, KEEP-06
// field case: F-P26-03
async fn a_handle_can_be_read_at_once_wherever_it_is_asked_for(database: TestDatabase) {
    let folder = at_once("");
    let token = new_token(&database.url, "owner").await;
    let (here, there) = tokio::join!(node(folder.path(), &database), node(folder.path(), &database));
    let at_one = Modern::new(&here.url, &token).with_tasks();
    let at_other = Modern { url: there.url.clone(), ..at_one.clone() };
    for n in 0..500 {
        let made = at_one.call("echo", json!({ "n": n })).await.result();
        assert_eq!(look(&at_other, &made["taskId"]).await["createdAt"], made["createdAt"], "task {n}");
    }
    let made = at_one.call("sleep", json!({ "ms": 60_000 })).await.result();
    here.kill().await;
    assert_eq!(look(&at_other, &made["taskId"]).await["createdAt"], made["createdAt"]);
}

// req: INPUT-03, INPUT-08
// field case: F-P26-07
async fn every_question_of_a_task_has_a_key_of_its_own_over_a_kill(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let (_upstream, url) = remote().await;
    let folder = at_once(&format!("[[upstreams]]\nname = \"far\"\nurl = \"{url}\"\nprotocol = \"2025-11-25\"\n"));
    let server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let capabilities = json!({ "elicitation": {} });
    let client = Modern::new(&server.url, &token).declaring(capabilities).with_tasks();
    let id = client.call("ask", json!({ "n": 3 })).await.result()["taskId"].clone();
    // What was asked, by the keys.
    let mut asked = BTreeMap::new();
    let mut answer_next = async |client: &Modern, text: &str| {
        let open = async || look(client, &id).await["inputRequests"].as_object().cloned().unwrap_or_default();
        until("there is a new question", async || open().await.keys().any(|key| !asked.contains_key(key))).await;
        for (key, request) in open().await {
            let message = request["params"]["message"].clone();
            assert!(asked.insert(key.clone(), message).is_none(), "one question at a time, each under a new key");
            let answer = json!({ "action": "accept", "content": { "answer": text } });
            let params = json!({ "taskId": id, "inputResponses": { key: answer } });
            client.request("tasks/update", params).await.result();
        }
        asked.clone()
    };
    answer_next(&client, "first").await;
    let before = answer_next(&client, "second").await;
    // An answer that its upstream has not taken when the node dies would be asked for again.
    let third = async || look(&client, &id).await["inputRequests"].to_string().contains("question 3 of 3");
    until("the third question is open", third).await;
    server.kill().await;
    let server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let client = Modern { url: server.url.clone(), ..client };
    database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    // Answers to old keys change nothing, whatever they say now.
    for key in before.keys() {
        let params = json!({ "taskId": id, "inputResponses": { key: { "action": "decline" } } });
        client.request("tasks/update", params).await.result();
    }
    let all = answer_next(&client, "third").await;
    assert_eq!(all.len(), 3);
    let messages: Vec<_> = all.values().map(Value::to_string).collect();
    for n in 1..=3 {
        assert!(messages.contains(&format!("\"question {n} of 3\"")), "{messages:?}");
    }
    until("the task ends", async || look(&client, &id).await["status"] == "completed").await;
    let ended = look(&client, &id).await;
    let text = ended["result"]["content"][0]["text"].as_str().unwrap();
    assert!(["first", "second", "third"].iter().all(|answer| text.contains(answer)), "{text}");
    assert!(server.terminate().await.success());
}

// req: KEEP-12 (over a restart)
async fn a_key_stands_for_the_same_call_over_a_kill(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let folder = at_once("");
    let server = node(folder.path(), &database).await;
    let client = Modern::new(&server.url, &token).with_tasks();
    let file = folder.path().join("charged");
    let call = async |client: &Modern, ms: u64| {
        let arguments = json!({ "file": file.to_str().unwrap(), "ms": ms });
        let draft = client.draft("tools/call", json!({ "name": "charge", "arguments": arguments }));
        client.send(draft.also("idempotency-key", "order-17")).await
    };
    let made = call(&client, 0).await.result();
    until("it is done", async || look(&client, &made["taskId"]).await["status"] == "completed").await;
    server.kill().await;
    let server = node(folder.path(), &database).await;
    let client = Modern { url: server.url.clone(), ..client };
    let same = call(&client, 0).await.result();
    assert_eq!((&same["taskId"], &same["createdAt"]), (&made["taskId"], &made["createdAt"]));
    assert_eq!(call(&client, 1).await.error().0, -32602, "another call");
    // Who takes no task gets its outcome.
    let plain = call(&client.declaring(json!({})), 0).await.result();
    assert_eq!((&plain["resultType"], &plain["content"][0]["text"]), (&json!("complete"), &json!("charged")));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "charged\n", "it ran once");
    assert!(server.terminate().await.success());
}

// req: MOD-12
async fn a_round_of_a_process_of_one_node_is_answered_at_another(database: TestDatabase) {
    let folder = tempfile::tempdir().unwrap();
    let token = new_token(&database.url, "owner").await;
    let (here, there) = tokio::join!(node(folder.path(), &database), node(folder.path(), &database));
    let at_one = Modern::new(&here.url, &token).declaring(json!({ "elicitation": {} }));
    let at_other = Modern { url: there.url.clone(), ..at_one.clone() };
    let mut params = json!({ "name": "ask", "arguments": { "n": 2 } });
    // Each of the two nodes has a process of its own, which takes back no state of the other's.
    for (client, answer) in [(&at_one, "first"), (&at_other, "second")] {
        let asked = client.request("tools/call", params.clone()).await.result();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let (key, _) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
        params["inputResponses"] = json!({ key: { "action": "accept", "content": { "answer": answer } } });
        params["requestState"] = asked["requestState"].clone();
    }
    let ended = at_one.request("tools/call", params).await.result();
    let text = ended["content"][0]["text"].as_str().unwrap();
    assert!(["first", "second"].iter().all(|answer| text.contains(answer)), "{text}");
    assert!(here.terminate().await.success() && there.terminate().await.success());
}

// req: EXT-10
async fn requests_about_tasks_without_their_name_are_counted_or_refused(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let folder = at_once("");
    let mut server = node(folder.path(), &database).await;
    let client = Modern::new(&server.url, &token).with_tasks();
    let id = client.call("echo", json!({})).await.result()["taskId"].clone();
    let get = |client: &Modern| client.draft("tasks/get", json!({ "taskId": id }));
    for _ in 0..3 {
        assert_eq!(client.send(get(&client).without("mcp-name")).await.result()["taskId"], id);
    }
    client.send(get(&client)).await.result();
    server.signal(rustix::process::Signal::TERM);
    let said = server.wait_for_line("without Mcp-Name").await;
    assert!(said.contains("\"requests.unnamed\":3"), "{said}");
    assert!(tokio::time::timeout(PATIENCE, server.exited()).await.unwrap().success());

    let folder = at_once("require_name_header = true\n");
    let server = node(folder.path(), &database).await;
    let client = Modern { url: server.url.clone(), ..client };
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let draft = client.draft(method, json!({ "taskId": id, "inputResponses": {} }));
        let refused = client.send(draft.clone().without("mcp-name")).await;
        let (code, message) = refused.error();
        assert!((refused.status, code) == (400, -32020) && message.contains("Mcp-Name"), "{method} {message}");
        assert_eq!(client.send(draft).await.result()["resultType"], "complete", "{method}");
    }
    assert!(server.terminate().await.success());
}
