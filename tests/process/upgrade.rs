//! A database as the release before left it, its node killed: what this one finds there, brings to its schema and goes on with.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::{Answer, Client};
use crate::support::database::{Backend, number, run};
use crate::support::fixtures::Fixture;
use crate::support::server::{PATIENCE, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_the_release_before_is_served_on_sqlite() {
    is_served(Fixture::load(Backend::Sqlite).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_the_release_before_is_served_on_postgres() {
    is_served(Fixture::load(Backend::Postgres).await).await;
}

// req: KEEP-01, KEEP-06
// field case: F-OPS-07
async fn is_served(fixture: Fixture) {
    let server = Server::start(fixture.url()).await;
    let oldest = number(fixture.url(), "SELECT oldest_binary FROM schema_info").await;
    assert!(oldest <= 4, "that release may go on beside this one: {oldest}");
    let session = Some(fixture.session().to_owned());
    let client = Client { session, ..Client::new(&server.url, Some(fixture.token())) };
    let status = async |name: &str| client.get(fixture.task(name)).await.result()["status"].clone();

    // What had ended is read as it was.
    for (name, text) in [("completed", r#"{"n": 1}"#), ("keyed", r#"{"n": 3}"#), ("repeatable", "slept 300 ms")] {
        assert_eq!(status(name).await, "completed");
        assert_eq!(client.result(fixture.task(name)).await.result()["content"][0]["text"], text);
    }
    assert_eq!(status("failed").await, "failed");
    assert_eq!(client.result(fixture.task("failed")).await.result()["isError"], true);
    assert_eq!(client.result(fixture.task("refused")).await.error().0, -32000);
    assert_eq!(status("cancelled").await, "cancelled");
    assert_eq!(client.result(fixture.task("cancelled")).await.error().0, -32800);
    assert_eq!(client.get(fixture.task("expired")).await.error().0, -32602);
    let listed = client.list().await;
    assert!(listed.contains(fixture.task("waiting")) && !listed.contains(fixture.task("expired")), "{listed:?}");
    assert_eq!(again_under_its_key(&client).await, *fixture.task("keyed"), "a key stands for the call it was given to");

    // What waited goes on at once, and what ran when its node is found dead.
    client.until_status(fixture.task("waiting"), "completed").await;
    client.until_status(fixture.task("working"), "completed").await;
    for name in ["unrepeatable", "input_required"] {
        let unknown = client.until_status(fixture.task(name), "failed").await;
        assert!(unknown["statusMessage"].as_str().unwrap().starts_with("outcome unknown"), "{unknown}");
    }
    assert_eq!(status("running").await, "working");
    client.cancel(fixture.task("running")).await.result();
    until(async || number(fixture.url(), "SELECT COUNT(*) FROM task_live").await == 0, "every call has an end").await;

    // What is new is made beside it, and what is old expires.
    let made = client.task("echo", json!({ "n": 5 })).await;
    client.until_status(&made["taskId"], "completed").await;
    run(fixture.url(), "UPDATE task_outcomes SET expires = 1").await;
    assert_eq!(client.list().await, Vec::<Value>::new());
    assert_eq!(client.get(fixture.task("completed")).await.error().0, -32602);
    until(async || number(fixture.url(), "SELECT COUNT(*) FROM tasks").await == 0, "what expired is deleted").await;
    assert!(server.terminate().await.success());
}

/// The call that was made under the key before, once more; answers the task's id.
async fn again_under_its_key(client: &Client) -> Value {
    // To the byte: another spelling is another call.
    let params = r#"{"name": "echo", "arguments": {"n": 3}, "task": {"ttl": 3600000}}"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":"again","method":"tools/call","params":{params}}}"#);
    let request = client.build(Method::POST).header("content-type", "application/json");
    let request = request.header("idempotency-key", "fixture-key").body(body);
    Answer::read(request.send().await.unwrap()).await.result()["task"]["taskId"].clone()
}

async fn until(mut is_so: impl AsyncFnMut() -> bool, what: &str) {
    let poll = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, poll).await.is_ok(), "this did not come about: {what}");
}
