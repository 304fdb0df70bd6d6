//! Several servers of one database, of which one goes and another takes its place.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use secrecy::SecretString;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::ids::{ContextId, NodeId, TaskId};
use taskhold::lifecycle::spawn;
use taskhold::store::{self, DatabaseOptions, StoreError, SystemStore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::client::Client;
use crate::support::cluster::{Cluster, Stop};
use crate::support::database::{Backend, TestDatabase, number};
use crate::support::server::{Server, binary, lasting_address, new_token};
use crate::support::tasks::new_task;

/// From the moment at which another server can be used until it is.
const SOON: Duration = Duration::from_secs(10);
const CONNECTIONS: &str = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'taskhold'";

fn at(second: i64) -> Timestamp {
    Timestamp::from_micros(1_764_000_000_000_000 + second * 1_000_000)
}

fn several(urls: &[&str]) -> DatabaseOptions {
    let urls = urls.iter().map(|&url| SecretString::from(url)).collect();
    DatabaseOptions { urls, ..DatabaseOptions::new("sqlite://not-used.db") }
}

/// A primary, its standby, and a store that knows both.
struct Pair {
    primary: Cluster,
    standby: Cluster,
    store: Arc<SystemStore>,
    context: ContextId,
}

impl Pair {
    async fn new() -> Self {
        let primary = Cluster::new(&[]).await;
        let url = primary.create_database("tasks").await;
        let standby = primary.standby().await;
        let options = several(&[&url, &standby.url("tasks")]);
        store::migrate(&options).await.unwrap();
        let store = store::open(&options).await.unwrap().system();
        let context = store.ensure_context(ContextKey::default(), at(0)).await.unwrap();
        Self { primary, standby, store: Arc::new(store), context }
    }

    async fn create(&self) -> Option<TaskId> {
        let id = TaskId::new();
        self.store.create(self.context, new_task(id, at(0), None)).await.ok().map(|_| id)
    }

    /// Waits until a task can be made; answers how long that took.
    async fn until_written(&self, soon: Duration) -> Duration {
        let start = Instant::now();
        while self.create().await.is_none() {
            assert!(start.elapsed() < soon, "no other server is used");
            sleep(Duration::from_millis(20)).await;
        }
        start.elapsed()
    }
}

// req: KEEP-11, KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_there_after_the_primary_is_lost() {
    let pair = Arc::new(Pair::new().await);
    let stop = CancellationToken::new();
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let (pair, stop) = (Arc::clone(&pair), stop.clone());
            spawn("writer", async move {
                let mut acknowledged = Vec::new();
                while !stop.is_cancelled() {
                    match pair.create().await {
                        Some(id) => acknowledged.push(id),
                        None => sleep(Duration::from_millis(10)).await,
                    }
                }
                acknowledged
            })
        })
        .collect();
    let reader = {
        let (pair, stop) = (Arc::clone(&pair), stop.clone());
        spawn("reader", async move {
            while !stop.is_cancelled() {
                // Goes through the pool. What it answers while nobody is there is another test's.
                let _ = pair.store.list(pair.context, None, 1, at(0)).await;
                sleep(Duration::from_millis(10)).await;
            }
        })
    };
    let rows = "SELECT COUNT(*) FROM tasks";
    while number(&pair.primary.url("tasks"), rows).await < 200 {
        sleep(Duration::from_millis(10)).await;
    }
    pair.primary.stop(Stop::Kill).await;
    pair.standby.promote().await;
    let took = pair.until_written(SOON).await;
    let before = number(&pair.standby.url("tasks"), rows).await;
    while number(&pair.standby.url("tasks"), rows).await < before + 200 {
        sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    let acknowledged: Vec<TaskId> = join_all(writers).await.into_iter().flat_map(Result::unwrap).collect();
    reader.await.unwrap();
    for id in &acknowledged {
        assert!(pair.store.get(pair.context, *id).await.unwrap().is_some(), "{id} was acknowledged");
    }
    let page = pair.store.list(pair.context, None, 10, at(0)).await.unwrap();
    assert_eq!(page.len(), 10, "the pool leads to the new server too");
    pair.store.register_node(NodeId::new()).await.unwrap();
    eprintln!("{} acknowledged, written again after {took:?}", acknowledged.len());
}

/// Nothing is closed and nothing answered: a statement and a try to connect have to run out.
// req: KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_is_left() {
    let pair = Pair::new().await;
    assert!(pair.create().await.is_some());
    pair.standby.promote().await;
    pair.primary.stop(Stop::Freeze).await;
    let (took, page) = tokio::join!(pair.until_written(SOON * 2), async {
        while pair.store.list(pair.context, None, 1, at(0)).await.is_err() {}
        pair.store.list(pair.context, None, 10, at(0)).await
    });
    eprintln!("written again after {took:?}");
    assert!(!page.unwrap().is_empty(), "the pool leads to the new server too");
}

// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_comes_back_is_used_again() {
    let pair = Pair::new().await;
    let acknowledged = pair.create().await.unwrap();
    for stop in [Stop::Fast, Stop::Immediate] {
        pair.primary.restart(stop).await;
        pair.until_written(SOON).await;
    }
    assert!(pair.store.get(pair.context, acknowledged).await.unwrap().is_some());
    assert_eq!(number(&pair.standby.url("tasks"), CONNECTIONS).await, 0, "a standby is no place to stay");
}

// req: KEEP-11, OPS-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_when_its_primary_is_lost() {
    let primary = Cluster::new(&[]).await;
    primary.create_database("tasks").await;
    let standby = primary.standby().await;
    let secret = |url: String| url.replace("postgres@", "postgres:hunter2@");
    let (first, second) = (secret(primary.url("tasks")), secret(standby.url("tasks")));
    let folder = tempfile::tempdir().unwrap();
    let settings = format!("[database]\nurls = [{first:?}, {second:?}]\n");
    std::fs::write(folder.path().join("taskhold.toml"), settings).unwrap();
    let upstream = format!("test={} demo-server --test-tools", binary());
    let mut server = Server::start_in(Some(folder.path()), &first, &["--upstream", &upstream]).await;
    let client = Client::connected(&server.url, &new_token(&first, "owner").await).await;
    let mut tasks = Vec::new();
    for n in 0..5 {
        tasks.push(client.task("echo", json!({ "n": n })).await["taskId"].clone());
    }
    primary.stop(Stop::Immediate).await;
    standby.promote().await;
    let deadline = Instant::now() + SOON;
    let ask = json!({ "name": "echo", "arguments": {}, "task": { "ttl": 60_000 } });
    loop {
        let answer = client.request("tools/call", ask.clone()).await;
        // Until then it says that it cannot, as KEEP-11 has it.
        assert_eq!(answer.status, 200, "{answer:?}");
        if answer.json()["result"]["task"]["taskId"].is_string() {
            break;
        }
        assert_eq!(answer.error().0, -32603, "{answer:?}");
        assert!(Instant::now() < deadline, "no other server is used");
    }
    for id in &tasks {
        client.until_status(id, "completed").await;
    }
    server.wait_for_line("the database is used on another server from now on").await;
    let log = server.kill().await.join("\n");
    assert_eq!(log.matches("on another server").count(), 1, "{log}");
    assert!(!log.contains("hunter2"), "{log}");
}

// req: OPS-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_says_once_that_it_passed_a_server_over() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let folder = tempfile::tempdir().unwrap();
    let dead = format!("postgres://postgres:hunter2@{}/tasks", lasting_address());
    let settings = format!("[database]\nurls = [{dead:?}, {:?}]\n", database.url);
    std::fs::write(folder.path().join("taskhold.toml"), settings).unwrap();
    let server = Server::start_in(Some(folder.path()), &dead, &["--demo"]).await;
    let log = server.kill().await.join("\n");
    assert_eq!(log.matches("on another server").count(), 1, "{log}");
    assert!(!log.contains("hunter2"), "{log}");
}

/// A primary that was set aside answers, and takes no writes.
// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_became_read_only_is_left() {
    let pair = Pair::new().await;
    assert!(pair.create().await.is_some());
    join_all((0..8).map(|_| pair.store.list(pair.context, None, 1, at(0)))).await;
    pair.standby.promote().await;
    pair.primary.set("default_transaction_read_only", "on").await;
    pair.until_written(SOON).await;
    let on_new = pair.create().await.unwrap();
    assert!(pair.store.get(pair.context, on_new).await.unwrap().is_some(), "look-ups moved too");
    assert_eq!(pair.store.list(pair.context, None, 10, at(0)).await.unwrap().len(), 3, "and pages");
    let deadline = Instant::now() + SOON;
    while number(&pair.primary.url("tasks"), CONNECTIONS).await > 0 {
        assert!(Instant::now() < deadline, "connections to the server that was left are kept");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(number(&pair.standby.url("tasks"), CONNECTIONS).await > 0);
}

/// What a connection was told when it was made stays so: connections of that time are left, though there is no other server.
// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_server_takes_writes_again_after_it_was_read_only() {
    let server = Cluster::new(&[]).await;
    let url = server.create_database("tasks").await;
    let options = DatabaseOptions::new(url.as_str());
    store::migrate(&options).await.unwrap();
    let store = store::open(&options).await.unwrap().system();
    let context = store.ensure_context(ContextKey::default(), at(0)).await.unwrap();
    let set_read_only = async |change: &str| {
        let mut connection = PgConnection::connect(&server.url("postgres")).await.unwrap();
        let change = format!("ALTER DATABASE tasks {change}");
        (&mut connection).execute(AssertSqlSafe(change)).await.unwrap();
    };
    let mut connection = PgConnection::connect(&server.url("postgres")).await.unwrap();
    for _ in 0..2 {
        set_read_only("SET default_transaction_read_only = on").await;
        let leave = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'taskhold'";
        (&mut connection).execute(leave).await.unwrap();
        let deadline = Instant::now() + SOON;
        loop {
            let refused = store.create(context, new_task(TaskId::new(), at(0), None)).await;
            match refused {
                Err(StoreError::Refused(detail)) => {
                    assert!(detail.contains("read-only"), "{detail}");
                    break;
                }
                // It had not noticed yet.
                other => assert!(Instant::now() < deadline, "{other:?}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
        // Other ways to the database have their own connections by now.
        let node = NodeId::new();
        assert!(store.register_node(node).await.is_err() && store.heartbeat(node).await.is_err());
        set_read_only("RESET default_transaction_read_only").await;
        let writes = async || store.create(context, new_task(TaskId::new(), at(0), None)).await.is_ok();
        let deadline = Instant::now() + SOON;
        for _ in 0..8 {
            while !writes().await {
                assert!(Instant::now() < deadline, "writes are refused for ever");
                sleep(Duration::from_millis(50)).await;
            }
        }
        assert!(store.register_node(node).await.is_ok() && store.heartbeat(node).await.is_ok());
    }
}

// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_whose_first_is_a_standby_starts() {
    let pair = Pair::new().await;
    let options = several(&[&pair.standby.url("tasks"), &pair.primary.url("tasks")]);
    assert!(store::check_migrations(&options).await.unwrap().is_empty());
    let empty = pair.primary.create_database("empty").await;
    let standby = pair.standby.url("empty");
    let new = several(&[&standby, &empty]);
    store::migrate(&new).await.unwrap();
    assert!(store::check_migrations(&new).await.unwrap().is_empty());
    let store = store::open(&options).await.unwrap().system();
    let id = TaskId::new();
    store.create(pair.context, new_task(id, at(0), None)).await.unwrap();
    assert!(pair.store.get(pair.context, id).await.unwrap().is_some());
}

// req: KEEP-11, OPS-02
#[tokio::test]
async fn servers_that_are_all_away_are_named_without_their_passwords() {
    let options = several(&["postgres://u:hunter2@127.0.0.1:1/d", "postgres://u:hunter2@127.0.0.1:2/d"]);
    let error = store::migrate(&options).await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1/d: ") && error.contains("; 127.0.0.1:2/d: "), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}
