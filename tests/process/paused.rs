//! A process that stands still for longer than its lease, and comes back.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{Server, new_token};

contract! {
    what_a_paused_node_reports_late_changes_nothing,
}

// req: KEEP-09
// field case: F-Q-03
async fn what_a_paused_node_reports_late_changes_nothing(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let mut paused = Server::start(&database.url).await;
    let at_paused = Client::connected(&paused.url, &token).await;
    let task = at_paused.task("sleep", json!({ "ms": 1_000 })).await;
    let id = &task["taskId"];
    at_paused.until_status(id, "working").await;
    let heir = Server::start(&database.url).await;
    let at_heir = at_paused.at(&heir.url);
    paused.signal(Signal::STOP);
    // The work itself goes on, and its answer waits for the paused node to read it.
    database.silence_nodes(Duration::from_secs(30)).await;
    let ended = at_heir.until_status(id, "completed").await;
    let outcome = at_heir.result(id).await.result();
    let attempts = "SELECT CAST(COUNT(*) * 100 + SUM(attempt) AS BIGINT) FROM task_outcomes";
    assert_eq!(database.number(attempts).await, 102, "the second attempt wrote the only outcome");
    paused.signal(Signal::CONT);
    paused.wait_for_line("other nodes declared this one dead; its work was stopped").await;
    for client in [&at_paused, &at_heir] {
        assert_eq!(client.get(id).await.result(), ended);
        assert_eq!(client.result(id).await.result(), outcome);
    }
    assert_eq!(database.number(attempts).await, 102);
    // It takes work again, under its new id.
    let next = at_paused.task("sleep", json!({ "ms": 1 })).await;
    at_paused.until_status(&next["taskId"], "completed").await;
}
