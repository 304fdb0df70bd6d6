//! Whole nodes whose database is behind a connection pooler in transaction mode.

use serde_json::json;
use tempfile::TempDir;

use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase};
use crate::support::pgbouncer::PgBouncer;
use crate::support::server::{Server, binary, new_token};

/// A folder with the one setting that it takes.
fn configured() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("taskhold.toml"), "[database]\npooler = \"transaction\"\n").unwrap();
    folder
}

// req: KEEP-15, KEEP-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_work_together_through_a_pooler() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let pooler = PgBouncer::before(&database.url, 4, &[]).await;
    let (url, folder) = (pooler.url_of(&database.url), configured());
    let token = new_token(&database.url, "owner").await;
    let upstream = format!("test={} demo-server --test-tools", binary());
    let arguments = ["--upstream", &upstream];
    let start = || Server::start_in(Some(folder.path()), &url, &arguments);
    let (one, other) = tokio::join!(start(), start());
    let client = Client::connected(&one.url, &token).await;
    let there = client.at(&other.url);
    let mut done = Vec::new();
    for n in 0..10 {
        let task = client.task("echo", json!({ "n": n })).await;
        done.push((task["taskId"].clone(), there.result(&task["taskId"]).await.result()));
    }
    let sleeping = client.task("sleep", json!({ "ms": 60_000 })).await;
    client.until_status(&sleeping["taskId"], "working").await;
    there.cancel(&sleeping["taskId"]).await.result();
    assert_eq!(client.get(&sleeping["taskId"]).await.result()["status"], "cancelled");
    one.kill().await;
    for (id, result) in &done {
        assert_eq!(there.get(id).await.result()["status"], "completed");
        assert_eq!(there.result(id).await.result(), *result);
    }
    assert!(other.terminate().await.success());
}
