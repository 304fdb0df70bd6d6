//! What survives the end of the process.

use std::time::Duration;

use serde_json::json;

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{Server, new_token};

contract! {
    everything_is_there_after_a_kill,
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
