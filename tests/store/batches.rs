//! Group commit.

use futures_util::future::join_all;
use sqlx::{Connection, SqliteConnection};
use taskhold::domain::ids::NodeId;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::work::NewTask;
use taskhold::store::{Ended, StoreError};

use super::{at, caller, claimed_task, contract_everywhere, end, finish, new_task, result};
use crate::support::database::{Backend, TestDatabase};

contract_everywhere! {
    concurrent_writes_share_commits,
    a_bad_row_fails_alone,
    a_caller_that_goes_away_cancels_nothing,
    a_lost_link_is_made_again,
    a_closed_store_refuses,
}

async fn concurrent_writes_share_commits(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let tasks: Vec<_> = (0..200).map(|_| claimed_task(at(0), NodeId::new())).collect();
    let log = Log::watch(&db).await;
    let made = join_all(tasks.iter().map(|(new, _)| scoped.create(new.clone()))).await;
    assert!(made.iter().all(Result::is_ok));
    let system = db.store.system();
    let ends =
        join_all(tasks.iter().map(|(new, token)| system.finish(finish(new.id, *token, result("x"), at(1))))).await;
    assert!(ends.into_iter().all(|ended| matches!(ended, Ok(Ended::Done(_)))));
    let commits = log.commits(&db).await;
    assert!((2..100).contains(&commits), "{commits} commits for 400 writes");
    let found = join_all(tasks.iter().map(|(new, _)| scoped.outcome(new.id))).await;
    assert!(found.into_iter().all(|found| found.unwrap().unwrap().1 == Some(result("x"))));
}

/// Counts commits from a moment on.
struct Log {
    before: i64,
    /// A reader that keeps SQLite from beginning its log again.
    _reader: Option<SqliteConnection>,
}

impl Log {
    async fn watch(db: &TestDatabase) -> Self {
        if db.backend == Backend::Postgres {
            return Self { before: 0, _reader: None };
        }
        let mut reader = SqliteConnection::connect(&db.url).await.unwrap();
        sqlx::raw_sql("BEGIN; SELECT COUNT(*) FROM tasks").execute(&mut reader).await.unwrap();
        Self { before: frames_that_commit(&db.url), _reader: Some(reader) }
    }

    /// On PostgreSQL each row says which transaction made it.
    async fn commits(&self, db: &TestDatabase) -> i64 {
        match db.backend {
            Backend::Postgres => {
                let transactions = "SELECT COUNT(*) FROM
                    (SELECT xmin::text FROM task_requests UNION SELECT xmin::text FROM task_outcomes) AS all_of_them";
                db.number(transactions).await
            }
            Backend::Sqlite => frames_that_commit(&db.url) - self.before,
        }
    }
}

fn frames_that_commit(url: &str) -> i64 {
    let log = std::fs::read(url.trim_start_matches("sqlite://").to_owned() + "-wal").unwrap();
    let (header, frames) = log.split_at(32);
    let page = u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize;
    let current = frames.chunks(24 + page).take_while(|frame| frame[8..16] == header[16..24]);
    current.filter(|frame| frame[4..8] != [0; 4]).count().try_into().unwrap()
}

async fn a_bad_row_fails_alone(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let mut tasks: Vec<NewTask> = (0..40).map(|_| new_task(at(0))).collect();
    // The table's own check refuses it.
    tasks[17].poll_interval_ms = -1;
    tasks[30].id = tasks[3].id;
    let made = join_all(tasks.iter().map(|new| scoped.create(new.clone()))).await;
    for (n, (made, new)) in made.iter().zip(&tasks).enumerate() {
        match n {
            17 => assert!(matches!(made, Err(StoreError::Refused(_))), "{made:?}"),
            // Of two with one id, one is written.
            3 | 30 => {}
            _ => assert!(made.is_ok(), "{n}: {made:?}"),
        }
        assert_eq!(scoped.get(new.id).await.unwrap().is_some(), n != 17, "{n}");
    }
    assert!(made[3].is_ok() != made[30].is_ok());
    assert_eq!(db.number("SELECT COUNT(*) FROM tasks").await, 38);
    assert_eq!(db.number("SELECT COUNT(*) FROM task_live").await, 38);
    assert_eq!(db.number("SELECT COUNT(*) FROM task_requests").await, 38);
}

async fn a_caller_that_goes_away_cancels_nothing(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let new = new_task(at(0));
    {
        // Polled once, so that it is on its way, and dropped.
        let mut create = Box::pin(scoped.create(new.clone()));
        let _ = futures_util::poll!(&mut create);
    }
    db.store.system().close().await;
    assert_eq!(db.number("SELECT COUNT(*) FROM tasks").await, 1);
}

// req: KEEP-11
async fn a_lost_link_is_made_again(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let node = NodeId::new();
    db.store.system().register_node(node).await.unwrap();
    let (new, token) = claimed_task(at(0), node);
    scoped.create(new.clone()).await.unwrap();
    scoped.get(new.id).await.unwrap();
    db.store.system().heartbeat(node).await.unwrap();
    if db.backend == Backend::Postgres {
        let kill = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'taskhold'";
        // Behind a pooler there may be few.
        assert!(db.number(kill).await >= 1);
    }
    scoped.create(new_task(at(1))).await.unwrap();
    let ended = db.store.system().finish(finish(new.id, token, result("x"), at(1))).await.unwrap();
    assert!(matches!(ended, Ended::Done(_)));
    assert!(scoped.get(new.id).await.unwrap().is_some());
    assert_eq!(scoped.list(None, 10, at(2)).await.unwrap().len(), 2);
}

async fn a_closed_store_refuses(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    db.store.system().close().await;
    let large = NewTask { params: RawJson::trusted("{}"), ..new_task(at(0)) };
    assert!(matches!(scoped.create(large).await, Err(StoreError::Unavailable(_))));
    let id = new_task(at(0)).id;
    assert!(matches!(scoped.get(id).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(scoped.cancel(id, end(Outcome::Cancelled, at(0))).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(scoped.list(None, 1, at(0)).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(db.store.system().ping().await, Err(StoreError::Unavailable(_))));
}
