//! Connections that are scarce: waiters hold none, and who gets none is told soon.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::{Connection as _, PgConnection};
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::ids::{ContextId, TaskId};
use taskhold::domain::outcome::Ending;
use taskhold::domain::task::Status;
use taskhold::engine::Refusal;
use taskhold::store::{self, DatabaseOptions, StoreError, SystemStore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::engine::harness::World;
use crate::http::harness::until;
use crate::support::cluster::Cluster;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase, hold, options};
use crate::support::pgproxy::{Moment, PgProxy};
use crate::support::script::result;
use crate::support::tasks::new_task;
use crate::support::waiting::Waiting;

const WAITERS: usize = 3_000;
/// Long for what takes milliseconds: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// One who gets no connection is told within this; a statement that is stuck may take 5 s.
const SOON: Duration = Duration::from_secs(4);
/// A silent link is noticed within this.
const NOTICED: Duration = Duration::from_secs(10);

contract! {
    thousands_of_waiters_hold_no_connection,
}

// req: KEEP-18
async fn thousands_of_waiters_hold_no_connection(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.waiters_per_context = WAITERS;
    let (node, caller) = (world.node().await, world.caller("waits").await);
    let mut tasks = Vec::new();
    for _ in 0..world.rules.slots {
        tasks.push(node.create(&caller, "once").await.id);
    }
    let mut waiting = JoinSet::new();
    for &task in tasks.iter().cycle().take(WAITERS + 1) {
        let (engine, caller) = (Arc::clone(&node.engine), caller.clone());
        waiting.spawn(async move { engine.result(&caller, task).await });
    }
    // The one too many is refused when all others wait.
    let refused = timeout(PATIENCE, waiting.join_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(refused, Err(Refusal::LimitReached { .. })), "{refused:?}");
    // Far fewer connections than waiters: that all of this is served shows that they hold none.
    let other = world.caller("works").await;
    let work = async {
        let pages = join_all((0..100).map(|_| node.engine.list(&other, None))).await;
        assert!(pages.into_iter().all(|page| page.unwrap().tasks.is_empty()));
        for _ in 0..20 {
            let task = node.create(&other, "always").await;
            assert_eq!(node.engine.cancel(&other, task.id).await.unwrap().id, task.id);
        }
    };
    timeout(PATIENCE, work).await.expect("new work goes on");
    if world.database.backend == Backend::Postgres {
        let busy = "SELECT COUNT(*) FROM pg_stat_activity
            WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
                AND state <> 'idle'";
        until("no connection to be held", async || world.database.number(busy).await == 0).await;
        let most = i64::from(options(&world.database.url).max_connections);
        let open = "SELECT COUNT(*) FROM pg_stat_activity
            WHERE datname = current_database() AND backend_type = 'client backend'";
        let open = world.database.number(open);
        // And the one that asks.
        let open = open.await - 1;
        assert!(open <= most, "{open} connections, {most} are allowed");
    }
    assert_eq!(waiting.len(), WAITERS);
    for _ in &tasks {
        node.script.next().await.answer("over");
    }
    let ends = timeout(PATIENCE, waiting.join_all()).await.expect("all are told");
    for end in ends {
        let (task, outcome) = end.unwrap();
        assert_eq!((task.status, outcome), (Status::Ended(Ending::Completed), result("over")));
    }
}

// req: KEEP-11, KEEP-18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gets_no_connection_of_the_pool_is_told_soon() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let store = database.store.system();
    let context = store.ensure_context(ContextKey::default(), at(0)).await.unwrap();
    // The lists that read now are stuck, on every connection of the pool.
    let lock = hold(&database.url, "LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE").await;
    let began = Instant::now();
    let answers = timeout(PATIENCE, join_all((0..200).map(|_| list(&store, context)))).await.unwrap();
    let refused_after: Vec<_> = answers
        .iter()
        .map(|(answer, after)| {
            assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
            *after
        })
        .collect();
    let late = refused_after.iter().filter(|after| **after > SOON).count();
    let shared = options(&database.url).max_connections as usize;
    assert!(late < shared, "{late} of 200 were told later than {SOON:?}: {:?} in all", began.elapsed());
    drop(lock);
    let back = async { while store.list(context, None, 1, at(0)).await.is_err() {} };
    timeout(PATIENCE, back).await.expect("no restart is needed");
}

async fn list(store: &SystemStore, context: ContextId) -> (Result<(), StoreError>, Duration) {
    let began = Instant::now();
    let answer = store.list(context, None, 1, at(0)).await;
    (answer.map(drop), began.elapsed())
}

/// The pool asks each connection for a sign of life when it is handed back.
// req: KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_handed_back_on_a_silent_link_costs_the_pool_nothing_for_long() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let (proxy, url) = PgProxy::before_url(&database.url).await;
    let one = DatabaseOptions { max_connections: 1, ..options(&url) };
    let store = store::open(&one).await.unwrap().system();
    let context = store.ensure_context(ContextKey::default(), at(0)).await.unwrap();
    for _ in 0..2 {
        let silent = proxy.cut("ORDER BY t.created DESC", Moment::SilentAfter);
        let read = async { while store.list(context, None, 1, at(0)).await.is_err() {} };
        timeout(NOTICED, read).await.expect("its place is free again");
        silent.await.unwrap();
    }
    timeout(NOTICED, store.close()).await.expect("it can be closed");
}

// req: KEEP-11, KEEP-18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_free_connections_refuses_soon_and_is_tried_again() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let (proxy, url) = PgProxy::before_url(&database.url).await;
    let store = store::open(&options(&url)).await.unwrap().system();
    let context = store.ensure_context(ContextKey::default(), at(0)).await.unwrap();
    let kept = TaskId::new();
    store.create(context, new_task(kept, at(0), None)).await.unwrap();
    proxy.fill(true);
    proxy.reset_links();
    are_refused_soon(&store, context, kept).await;
    proxy.fill(false);
    let back = async {
        while store.get(context, kept).await.is_err() {}
        while store.create(context, new_task(TaskId::new(), at(0), None)).await.is_err() {}
        while store.list(context, None, 1, at(0)).await.is_err() {}
    };
    timeout(PATIENCE, back).await.expect("no restart is needed");
    assert_eq!(store.list(context, None, 10, at(0)).await.unwrap().len(), 2, "what was refused did not happen");
}

// req: KEEP-11, KEEP-18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_who_take_all_connections_of_a_server_are_outlasted() {
    let server = Cluster::new(&[("max_connections", "300")]).await;
    let url = server.create_database("tasks").await;
    store::migrate(&options(&url)).await.unwrap();
    let store = store::open(&options(&url)).await.unwrap().system();
    let context = store.ensure_context(ContextKey::default(), at(0)).await.unwrap();
    let kept = TaskId::new();
    store.create(context, new_task(kept, at(0), None)).await.unwrap();
    let mut others = Vec::new();
    while let Ok(other) = PgConnection::connect(&url).await {
        others.push(other);
    }
    assert!(others.len() > 280, "{}", others.len());
    // What the store has is lost as well, and its places are taken.
    let ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'taskhold'";
    sqlx::raw_sql(ours).execute(&mut others[0]).await.unwrap();
    timeout(PATIENCE, async {
        while others.len() < 300 {
            others.extend(PgConnection::connect(&url).await.ok());
        }
    })
    .await
    .expect("the places of the store are free");
    are_refused_soon(&store, context, kept).await;
    drop(others);
    let back = async {
        while store.get(context, kept).await.is_err() {}
        while store.create(context, new_task(TaskId::new(), at(0), None)).await.is_err() {}
        while store.list(context, None, 1, at(0)).await.is_err() {}
    };
    timeout(PATIENCE, back).await.expect("no restart is needed");
    assert_eq!(store.list(context, None, 10, at(0)).await.unwrap().len(), 2, "what was refused did not happen");
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000) + Duration::from_secs(seconds)
}

/// A list, a look at a task and a creation, again and again.
async fn are_refused_soon(store: &SystemStore, context: ContextId, kept: TaskId) {
    for _ in 0..3 {
        let began = Instant::now();
        let (listed, got, created) = tokio::join!(
            store.list(context, None, 1, at(0)),
            store.get(context, kept),
            store.create(context, new_task(TaskId::new(), at(0), None)),
        );
        for error in [listed.err(), got.err(), created.err()] {
            assert!(matches!(error, Some(StoreError::Unavailable(_))), "{error:?}");
        }
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}
