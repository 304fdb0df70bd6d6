//! A connection pooler in transaction mode between the store and PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use taskhold::domain::ids::{ContextId, SessionId};
use taskhold::domain::outcome::Outcome;
use taskhold::lifecycle::spawn;
use taskhold::store::{DatabaseOptions, Ended, OpenError, Pooler, ScopedStore, Store, check_migrations, migrate, open};
use tokio::time::timeout;

use super::sessions::new_session;
use super::{at, caller, end, new_task};
use crate::support::database::{Backend, EmptyDatabase, TestDatabase, options};
use crate::support::pgbouncer::{PgBouncer, database_behind_a_pooler};
use crate::support::pgproxy::{Moment, PgProxy};

const CALLERS: usize = 16;
const ROUNDS: usize = 100;

/// One whose rows are told from everybody else's.
struct Known {
    subject: String,
    context: ContextId,
    scoped: ScopedStore,
    session: SessionId,
    /// In the order of a page.
    tasks: Vec<taskhold::domain::ids::TaskId>,
}

impl Known {
    async fn new(store: &Store, number: usize) -> Self {
        let subject = format!("caller {number}");
        let (context, scoped) = caller(store, &subject).await;
        let session = new_session(context, 0);
        scoped.add_session(session.clone(), 10).await.unwrap();
        let mut tasks = Vec::new();
        for second in 0..=number as u64 {
            let task = new_task(at(second));
            tasks.insert(0, task.id);
            scoped.create(task).await.unwrap();
        }
        Self { subject, context, scoped, session: session.id, tasks }
    }

    /// Four statements that differ in what goes in and in what comes out.
    async fn ask(&self, store: &Store, round: usize) {
        let page = self.scoped.list(None, 100, at(50)).await.unwrap();
        assert_eq!(page.iter().map(|task| task.id).collect::<Vec<_>>(), self.tasks, "{}", self.subject);
        assert_eq!(self.scoped.session(self.session).await.unwrap().unwrap().id, self.session, "{}", self.subject);
        let key = store.system().context(self.context).await.unwrap().unwrap();
        assert_eq!(key.subject, self.subject);
        let task = self.tasks[round % self.tasks.len()];
        let details = store.system().details(task).await.unwrap().unwrap();
        assert_eq!((details.task.id, details.task.context), (task, self.context), "{}", self.subject);
    }
}

/// 6,400 calls of four statements over a pool of four connections.
// req: KEEP-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_of_many_clients_are_never_mixed_up() {
    let db = database_behind_a_pooler().await;
    let store = Arc::new(db.another().await);
    let mut calls = Vec::new();
    for number in 0..CALLERS {
        let (known, store) = (Known::new(&db.store, number).await, Arc::clone(&store));
        calls.push(spawn("caller", async move {
            for round in 0..ROUNDS {
                known.ask(&store, round).await;
            }
        }));
    }
    for call in calls {
        call.await.unwrap();
    }
}

// req: KEEP-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_database_is_migrated_through_a_pooler() {
    let db = EmptyDatabase::new(Backend::Postgres).await;
    let pooler = PgBouncer::before(&db.url, 2, &[]).await;
    let pooled = DatabaseOptions { pooler: Pooler::Transaction, ..options(&pooler.url_of(&db.url)) };
    let own = check_migrations(&pooled).await.unwrap();
    assert_eq!(own, check_migrations(&options(&db.url)).await.unwrap());
    let (one, other) = tokio::join!(migrate(&pooled), migrate(&pooled));
    one.unwrap();
    other.unwrap();
    assert!(check_migrations(&pooled).await.unwrap().is_empty());
    // Whoever comes without the pooler finds what it expects, and so does the second time.
    migrate(&options(&db.url)).await.unwrap();
    migrate(&pooled).await.unwrap();
    let (_, scoped) = caller(&open(&pooled).await.unwrap(), "a").await;
    let task = new_task(at(0));
    scoped.create(task.clone()).await.unwrap();
    let ended = scoped.cancel(task.id, end(Outcome::Cancelled, at(1))).await.unwrap();
    assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
}

/// It would mix up statements: whether it refuses our settings or takes no notice of them.
// req: KEEP-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_nothing_was_said_of_is_refused() {
    let db = TestDatabase::new(Backend::Postgres).await;
    let careless = [("ignore_startup_parameters", "extra_float_digits, options")];
    for settings in [&[][..], &careless] {
        let pooler = PgBouncer::before(&db.url, 4, settings).await;
        let direct = options(&pooler.url_of(&db.url));
        for error in [migrate(&direct).await.err(), open(&direct).await.err(), check_migrations(&direct).await.err()] {
            let error = error.expect("it is noticed");
            assert!(matches!(error, OpenError::Pooler), "{error}");
            assert!(error.to_string().contains("set database.pooler = \"transaction\""), "{error}");
        }
    }
}

/// Who has the connection next would be sent what was listened to, in the middle of something else.
// req: KEEP-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_is_named_to_listen_at_is_not_listened_at() {
    let db = TestDatabase::new(Backend::Postgres).await;
    let (proxy, url) = PgProxy::before_url(&db.url).await;
    let pooler = PgBouncer::before(&url, 4, &[]).await;
    let pooled = pooler.url_of(&db.url);
    let listen_urls = vec![pooled.as_str().into()];
    let options = DatabaseOptions { pooler: Pooler::Transaction, listen_urls, ..options(&pooled) };
    let store = open(&options).await.unwrap();
    let listened = proxy.cut("LISTEN", Moment::Before);
    let probed = proxy.cut("taskhold.probe", Moment::Before);
    let _hints = store.system().hints().unwrap();
    timeout(Duration::from_secs(30), probed).await.expect("it is asked what is there").unwrap();
    // The first try was cut off; the next ones come after a tenth of a second.
    assert!(timeout(Duration::from_secs(2), listened).await.is_err(), "it is listened at");
    store.system().close().await;
}
