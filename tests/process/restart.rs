//! What survives the end of the process.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{Server, new_token};

contract! {
    everything_is_there_after_a_kill,
    a_stop_in_order_loses_nothing,
}

// req: LIFE-06, KEEP-06, HTTP-07
async fn everything_is_there_after_a_kill(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let server = Server::start(&database.url).await;
    let before = Client::connected(&server.url, &token).await;
    let mut finished = Vec::new();
    for at in 0..5 {
        let task = before.task("echo", json!({ "n": at })).await;
        let outcome = before.result(&task["taskId"]).await;
        finished.push((before.get(&task["taskId"]).await.result(), outcome.result()));
    }
    let failed = before.task("fail_tool", json!({})).await;
    before.until_status(&failed["taskId"], "failed").await;
    let sleeping = before.task("sleep", json!({ "ms": 200 })).await;
    let charging = before.task("charge", json!({ "file": "/dev/null", "ms": 60_000 })).await;
    before.until_status(&charging["taskId"], "working").await;
    let cancelled = before.task("sleep", json!({ "ms": 60_000 })).await;
    before.cancel(&cancelled["taskId"]).await.result();
    let listed = before.list().await;
    server.kill().await;

    let server = Server::start(&database.url).await;
    let old_session = before.at(&server.url);
    let new_session = Client::connected(&server.url, &token).await;
    for client in [&old_session, &new_session] {
        assert_eq!(client.list().await, listed);
        for (task, outcome) in &finished {
            assert_eq!(client.get(&task["taskId"]).await.result(), *task);
            assert_eq!(client.result(&task["taskId"]).await.result(), *outcome);
        }
        assert_eq!(client.get(&failed["taskId"]).await.result()["status"], "failed");
        assert_eq!(client.get(&cancelled["taskId"]).await.result()["status"], "cancelled");
    }
    // What ran is settled once the old node is found dead; do not wait for that here.
    database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    let repeated = new_session.until_status(&sleeping["taskId"], "completed").await;
    assert_eq!(repeated["taskId"], sleeping["taskId"]);
    let unknown = new_session.until_status(&charging["taskId"], "failed").await;
    assert!(unknown["statusMessage"].as_str().unwrap().starts_with("outcome unknown"), "{unknown}");
}

// req: KEEP-10
async fn a_stop_in_order_loses_nothing(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let (mut leaving, staying) = tokio::join!(Server::start(&database.url), Server::start(&database.url));
    let client = Client::connected(&leaving.url, &token).await;
    let repeatable = client.task("sleep", json!({ "ms": 60_000 })).await;
    let finishing = client.task("charge", json!({ "file": "/dev/null", "ms": 3_000 })).await;
    let wait = async |id: &Value| {
        let body = client.message("tasks/result", &json!({ "taskId": id }));
        let request = client.build(Method::POST).header("content-type", "application/json");
        request.body(body).send().await.unwrap()
    };
    // Each is a stream by now, so each waits.
    let waiters = tokio::join!(wait(&finishing["taskId"]), wait(&repeatable["taskId"]));
    leaving.signal(rustix::process::Signal::TERM);
    leaving.wait_for_line("stopping").await;
    // Whoever waits is told to come again, or gets the outcome; never an error that reads as one.
    for answer in [Answer::read(waiters.0).await, Answer::read(waiters.1).await] {
        assert!(!answer.body.contains("\"error\""), "{answer:?}");
    }
    assert!(leaving.exited().await.success());
    let client = client.at(&staying.url);
    let outcome = client.result(&finishing["taskId"]).await.result();
    assert!(outcome.get("isError").is_none(), "it was given its time: {outcome}");
    let task = client.get(&repeatable["taskId"]).await.result();
    assert_eq!(task["status"], "working", "it was handed back: {task}");
    client.cancel(&repeatable["taskId"]).await.result();
    assert!(staying.terminate().await.success());
}
