//! Many clients on one database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use taskhold::lifecycle::spawn;
use tokio_util::sync::CancellationToken;

use crate::http::harness::{Front, Names, Parts, engine_rules, tools};
use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase};
use crate::support::script::{Prompt, Tools};

const CLIENTS: usize = 64;
/// How long a stranger's program holds the file's lock.
const LOCKED: Duration = Duration::from_secs(1);

// req: KEEP-14
// field case: F-SQL-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_hears_that_sqlite_is_locked() {
    let database = TestDatabase::new(Backend::Sqlite).await;
    let names = Arc::new(Names::new(database.store.clone()));
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let parts = Parts {
            store: database.another().await,
            executor: Arc::new(Prompt),
            catalogue: Tools::new(tools()),
            auth: names.clone(),
            rules: engine_rules(),
        };
        nodes.push(Front::start(parts).await);
    }
    let stop = CancellationToken::new();
    let reapers: Vec<_> = nodes
        .iter()
        .map(|node| {
            let (engine, stop) = (node.engine.clone(), stop.clone());
            spawn("reaper", async move {
                while !stop.is_cancelled() {
                    engine.reap_once().await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let nodes = &nodes;
    let clients = join_all((0..CLIENTS).map(|at| connect(&nodes[at % 2].url, at)));
    let clients = clients.await;
    let work = clients.iter().map(|client| async move {
        for _ in 0..4 {
            let id = client.task("optional", json!({})).await["taskId"].clone();
            assert_eq!(client.result(&id).await.result()["content"][0]["text"], "optional");
            assert_eq!(client.get(&id).await.result()["status"], "completed");
            assert!(client.list().await.contains(&id));
        }
    });
    // Every answer above is a result: an error would have ended the test.
    let began = Instant::now();
    tokio::join!(database.lock(LOCKED), join_all(work));
    assert!(began.elapsed() >= LOCKED, "the lock was there");
    stop.cancel();
    for reaper in reapers {
        reaper.await.unwrap();
    }
    let done = (CLIENTS * 4) as i64;
    assert_eq!(database.rows().await[..4], [done, 0, done, done]);
}

async fn connect(url: &str, number: usize) -> Client {
    Client::connected(url, &format!("client{number}")).await
}
