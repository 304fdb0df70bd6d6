//! What the service asks its database: while it has nothing to do, and for those who wait.

use std::time::Duration;

use serde_json::json;

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{Server, binary, new_token};

contract! {
    an_idle_service_is_silent_and_hardly_asks,
    who_waits_where_a_task_ends_is_sent_what_was_committed,
}

/// Long enough for several rounds of all that runs by itself, but for the reaper's.
const WATCHED: Duration = Duration::from_secs(6);

/// This is the half of OPS-10 that needs no metrics.
async fn an_idle_service_is_silent_and_hardly_asks(database: TestDatabase) {
    let (mut server, client, _folder) = one_that_tells_its_statements(&database).await;
    // It has done everything once, and some of it is still there: a session, a task that ended, a link to its upstream.
    let task = client.task("sleep", json!({ "ms": 1 })).await;
    client.result(&task["taskId"]).await.result();
    client.list().await;
    let busy = server.listen_for(Duration::from_secs(2)).await;
    let is_query = |line: &&String| line.contains("sqlx::query");
    assert!(busy.iter().filter(is_query).count() > 5, "statements are seen in the log: {busy:#?}");

    let idle = server.listen_for(WATCHED).await;
    let (queries, lines): (Vec<_>, Vec<_>) = idle.iter().partition(is_query);
    assert!(lines.is_empty(), "{lines:#?}");
    let most = usize::try_from(5 * WATCHED.as_secs()).unwrap();
    assert!((1..=most).contains(&queries.len()), "{} statements in {WATCHED:?}: {queries:#?}", queries.len());
    assert!(server.terminate().await.success());
}

// The half of KEEP-18 that is about one node: what it has in memory it does not read.
async fn who_waits_where_a_task_ends_is_sent_what_was_committed(database: TestDatabase) {
    let (mut server, client, _folder) = one_that_tells_its_statements(&database).await;
    let task = client.task("sleep", json!({ "ms": 3_000 })).await;
    let answer = client.result(&task["taskId"]).await;
    assert!(answer.text().contains("slept"), "{answer:?}");
    server.listen_for(Duration::from_secs(1)).await;
    let committed = server.log.iter().rposition(|line| line.contains("INSERT INTO task_outcomes"));
    let (before, after) = server.log.split_at(committed.expect("it ended"));
    let reads = |lines: &[String]| lines.iter().filter(|line| line.contains("o.outcome")).count();
    assert!(reads(before) > 0, "it was looked at before it ended");
    assert_eq!(reads(after), 0, "{after:#?}");
    assert!(server.terminate().await.success());
}

/// A service that logs each statement, and a client of it.
async fn one_that_tells_its_statements(database: &TestDatabase) -> (Server, Client, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let binary = binary();
    let config = format!(
        "log = \"info,sqlx::query=debug\"\n[[upstreams]]\nname = \"test\"\ncommand = [\"{binary}\", \"demo-server\", \"--test-tools\"]\n"
    );
    std::fs::write(folder.path().join("taskhold.toml"), config).unwrap();
    let token = new_token(&database.url, "idle").await;
    let server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let client = Client::connected(&server.url, &token).await;
    (server, client, folder)
}
