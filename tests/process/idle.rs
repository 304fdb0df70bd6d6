//! A service that has nothing to do.

use std::time::Duration;

use serde_json::json;

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{Server, binary, new_token};

contract! {
    an_idle_service_is_silent_and_hardly_asks,
}

/// Long enough for several rounds of all that runs by itself, but for the reaper's.
const WATCHED: Duration = Duration::from_secs(6);

/// This is the half of OPS-10 that needs no metrics.
async fn an_idle_service_is_silent_and_hardly_asks(database: TestDatabase) {
    let folder = tempfile::tempdir().unwrap();
    let binary = binary();
    let config = format!(
        "log = \"info,sqlx::query=debug\"\n[[upstreams]]\nname = \"test\"\ncommand = [\"{binary}\", \"demo-server\", \"--test-tools\"]\n"
    );
    std::fs::write(folder.path().join("taskhold.toml"), config).unwrap();
    let token = new_token(&database.url, "idle").await;
    let mut server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    // It has done everything once, and some of it is still there: a session, a task that ended, a link to its upstream.
    let client = Client::connected(&server.url, &token).await;
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
