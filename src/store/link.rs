//! Connections. Every statement runs through this file, under a deadline.
//!
//! A connection whose statement timed out or was abandoned is thrown away, never handed back: a pool would keep its
//! place in a ping that never returns. Batch writers, gathered readers and the heartbeat own theirs, since each return
//! to a pool is a round trip.

use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::pool::{Pool, PoolConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::dialect::{ConnectOptions, Connection, Dialect, Many, Row};
use super::sql::{Args, Fault};

/// How long opening a connection may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// The shortest and the longest pause between two tries to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The ways to the database.
pub struct Link<D: Dialect> {
    pool: Pool<D::Database>,
    /// The connection through which every write goes, where there may be one writer only.
    writer: Option<Arc<Own<D>>>,
    doubt: Arc<Doubt>,
}

impl<D: Dialect> Link<D> {
    /// The pool asks `doubt` before it gives a connection.
    pub fn new(pool: Pool<D::Database>, writer: Option<Arc<Own<D>>>, doubt: Arc<Doubt>) -> Self {
        Self { pool, writer, doubt }
    }

    /// A connection for reading.
    pub async fn reader(&self) -> Result<Session<D>, Fault> {
        let held = Held::Pooled(Some(self.pool.acquire().await.map_err(Fault::no_connection)?));
        Ok(Session { held, clean: true, doubt: Arc::clone(&self.doubt) })
    }

    /// A connection for writing outside the batches.
    pub async fn writer(&self) -> Result<Session<D>, Fault> {
        match &self.writer {
            Some(own) => own.session().await,
            None => self.reader().await,
        }
    }

    pub async fn close(&self) {
        self.pool.close().await;
        if let Some(writer) = &self.writer {
            writer.close().await;
        }
    }
}

/// What a broken link says of a store's others: one that has not answered since a statement was sent in vain on another
/// may be as dead, and is left instead of being waited for. So a database that fell silent costs one deadline, not one
/// for each connection.
#[derive(Debug, Default)]
pub struct Doubt {
    since: std::sync::Mutex<Option<Instant>>,
}

impl Doubt {
    /// Whether a connection that last answered at `answered` may be dead.
    pub fn covers(&self, answered: Instant) -> bool {
        self.since().is_some_and(|since| answered <= since)
    }

    /// A statement that was sent at `sent` broke its link.
    fn raise(&self, sent: Instant) {
        let mut since = self.since();
        *since = Some(since.map_or(sent, |since| since.max(sent)));
    }

    fn since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection with one owner or few, opened when first used and again when it broke.
pub struct Own<D: Dialect> {
    options: ConnectOptions<D>,
    /// Held by the next in line, so that whoever is urgent waits for one ordinary session at most besides the current one.
    turn: Mutex<()>,
    state: Arc<Mutex<State<D>>>,
    doubt: Arc<Doubt>,
}

struct State<D: Dialect> {
    connection: Option<Connection<D>>,
    /// When the connection was last known to be alive.
    answered: Instant,
    /// Failed tries to connect since the last good one, and when the next may be.
    failures: u32,
    retry_at: Option<Instant>,
    closed: bool,
}

impl<D: Dialect> Own<D> {
    pub fn new(options: ConnectOptions<D>, doubt: &Arc<Doubt>) -> Arc<Self> {
        let state = State { connection: None, answered: Instant::now(), failures: 0, retry_at: None, closed: false };
        Arc::new(Self { options, turn: Mutex::new(()), state: Arc::new(Mutex::new(state)), doubt: Arc::clone(doubt) })
    }

    /// Waits for its turn, then for a connection. While the database is away this answers a link fault at once, and
    /// tries to connect at most every second.
    pub async fn session(&self) -> Result<Session<D>, Fault> {
        let turn = self.turn.lock().await;
        let state = Arc::clone(&self.state).lock_owned().await;
        drop(turn);
        self.open(state).await
    }

    /// The same, before all but one of those who wait for an ordinary one: a heartbeat that waits its turn behind a crowd of
    /// writers makes a busy node look dead.
    pub async fn urgent_session(&self) -> Result<Session<D>, Fault> {
        let state = Arc::clone(&self.state).lock_owned().await;
        self.open(state).await
    }

    async fn open(&self, mut state: OwnedMutexGuard<State<D>>) -> Result<Session<D>, Fault> {
        if state.closed {
            return Err(Fault::link("the store is closed"));
        }
        if self.doubt.covers(state.answered) {
            state.connection = None;
        }
        if state.connection.is_none() {
            if state.retry_at.is_some_and(|at| Instant::now() < at) {
                return Err(Fault::link("the connection is lost and not yet made again"));
            }
            match self.connect().await {
                Ok(connection) => {
                    state.connection = Some(connection);
                    state.answered = Instant::now();
                    state.failures = 0;
                    state.retry_at = None;
                }
                Err(fault) => {
                    let pause = BACKOFF.0.saturating_mul(1 << state.failures.min(8)).min(BACKOFF.1);
                    state.failures += 1;
                    state.retry_at = Some(Instant::now() + pause);
                    return Err(fault);
                }
            }
        }
        Ok(Session { held: Held::Own(state), clean: true, doubt: Arc::clone(&self.doubt) })
    }

    async fn connect(&self) -> Result<Connection<D>, Fault> {
        match timeout(CONNECT_DEADLINE.max(D::DEADLINE), Connection::<D>::connect_with(&self.options)).await {
            Ok(connected) => connected.map_err(Fault::no_connection),
            Err(_) => Err(Fault::link("no connection in time")),
        }
    }

    /// Whether the last try to connect failed: then a caller need not wait for the next.
    pub async fn is_down(&self) -> bool {
        self.state.lock().await.failures > 0
    }

    pub async fn close(&self) {
        let mut state = self.state.lock().await;
        state.closed = true;
        if let Some(connection) = state.connection.take() {
            // Nothing is left to be done on it; a failed goodbye changes nothing.
            let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
        }
    }
}

/// A connection in use.
pub struct Session<D: Dialect> {
    held: Held<D>,
    /// False while a statement runs and after it broke the link: then the connection is thrown away.
    clean: bool,
    doubt: Arc<Doubt>,
}

enum Held<D: Dialect> {
    Pooled(Option<PoolConnection<D::Database>>),
    Own(OwnedMutexGuard<State<D>>),
}

impl<D: Dialect> Session<D> {
    pub async fn fetch(&mut self, sql: &'static str, args: Args) -> Result<Vec<Row<D>>, Fault> {
        let (connection, mut guard) = self.parts();
        guarded::<D, _>(&mut guard, D::fetch(connection, sql, args)).await
    }

    pub async fn execute(&mut self, sql: &'static str, args: Args) -> Result<u64, Fault> {
        let (connection, mut guard) = self.parts();
        guarded::<D, _>(&mut guard, D::execute(connection, sql, args)).await
    }

    /// Reads for many rows.
    pub async fn read_many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        let (connection, mut guard) = self.parts();
        guarded::<D, _>(&mut guard, D::many(connection, statement, rows)).await
    }

    /// Writes many rows, all or none.
    pub async fn write_many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        if !D::MANY_IS_SEVERAL_STATEMENTS {
            return self.read_many(statement, rows).await;
        }
        let mut transaction = self.begin().await?;
        let answer = transaction.many(statement, rows).await?;
        transaction.commit().await?;
        Ok(answer)
    }

    /// Begins a write transaction; dropping it rolls back.
    pub async fn begin(&mut self) -> Result<Transaction<'_, D>, Fault> {
        let (connection, mut guard) = self.parts();
        let transaction = guarded::<D, _>(&mut guard, connection.begin_with(D::BEGIN)).await?;
        Ok(Transaction { transaction, guard })
    }

    fn parts(&mut self) -> (&mut Connection<D>, Guard<'_>) {
        let connection = match &mut self.held {
            Held::Pooled(connection) => connection.as_deref_mut(),
            Held::Own(state) => state.connection.as_mut(),
        };
        let guard = Guard { clean: &mut self.clean, doubt: &self.doubt };
        (connection.expect("a session holds its connection until it is dropped"), guard)
    }
}

impl<D: Dialect> Drop for Session<D> {
    fn drop(&mut self) {
        if self.clean {
            if let Held::Own(state) = &mut self.held {
                state.answered = Instant::now();
            }
            return;
        }
        match &mut self.held {
            Held::Pooled(connection) => drop(connection.take().map(PoolConnection::detach)),
            Held::Own(state) => drop(state.connection.take()),
        }
    }
}

/// A write transaction in progress.
pub struct Transaction<'s, D: Dialect> {
    transaction: sqlx::Transaction<'s, D::Database>,
    guard: Guard<'s>,
}

impl<D: Dialect> Transaction<'_, D> {
    pub async fn fetch(&mut self, sql: &'static str, args: Args) -> Result<Vec<Row<D>>, Fault> {
        guarded::<D, _>(&mut self.guard, D::fetch(&mut self.transaction, sql, args)).await
    }

    pub async fn execute(&mut self, sql: &'static str, args: Args) -> Result<u64, Fault> {
        guarded::<D, _>(&mut self.guard, D::execute(&mut self.transaction, sql, args)).await
    }

    pub async fn many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        guarded::<D, _>(&mut self.guard, D::many(&mut self.transaction, statement, rows)).await
    }

    pub async fn commit(mut self) -> Result<(), Fault> {
        guarded::<D, _>(&mut self.guard, self.transaction.commit()).await
    }
}

/// What reads, within a transaction or without one.
pub trait Reads<D: Dialect>: Send {
    fn rows(&mut self, sql: &'static str, args: Args) -> impl Future<Output = Result<Vec<Row<D>>, Fault>> + Send;

    fn rows_of_many(
        &mut self,
        statement: Many,
        rows: Vec<Args>,
    ) -> impl Future<Output = Result<Vec<Row<D>>, Fault>> + Send;
}

impl<D: Dialect> Reads<D> for Session<D> {
    async fn rows(&mut self, sql: &'static str, args: Args) -> Result<Vec<Row<D>>, Fault> {
        self.fetch(sql, args).await
    }

    async fn rows_of_many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        self.read_many(statement, rows).await
    }
}

impl<D: Dialect> Reads<D> for Transaction<'_, D> {
    async fn rows(&mut self, sql: &'static str, args: Args) -> Result<Vec<Row<D>>, Fault> {
        self.fetch(sql, args).await
    }

    async fn rows_of_many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        self.many(statement, rows).await
    }
}

/// Notes what becomes of a connection's statements.
struct Guard<'s> {
    clean: &'s mut bool,
    doubt: &'s Doubt,
}

/// Runs one statement. Its connection counts as broken until it has answered.
async fn guarded<D: Dialect, T>(
    guard: &mut Guard<'_>,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    let sent = Instant::now();
    *guard.clean = false;
    match timeout(D::DEADLINE, statement).await {
        Ok(Ok(answer)) => {
            *guard.clean = true;
            Ok(answer)
        }
        Ok(Err(error)) => {
            let answered = matches!(error, sqlx::Error::Database(_));
            let fault = Fault::from(error);
            *guard.clean = !matches!(fault, Fault::Link(_));
            if !*guard.clean && !answered {
                guard.doubt.raise(sent);
            }
            Err(fault)
        }
        Err(_) => {
            guard.doubt.raise(sent);
            Err(Fault::link(format!("no answer within {} s", D::DEADLINE.as_secs())))
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;
    use crate::store::sqlite::SqliteDialect;

    #[tokio::test]
    async fn who_is_urgent_waits_for_no_crowd() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("x.db")).create_if_missing(true);
        let own = Own::<SqliteDialect>::new(options, &Arc::default());
        let held = own.session().await.unwrap();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let wait = |name: &'static str| {
            let (own, order) = (Arc::clone(&own), Arc::clone(&order));
            async move {
                let session = if name == "urgent" { own.urgent_session().await } else { own.session().await };
                order.lock().unwrap().push(name);
                drop(session);
            }
        };
        let release = async {
            tokio::task::yield_now().await; // all the others are polled, in their order, before this goes on
            drop(held);
        };
        tokio::join!(wait("first"), wait("second"), wait("third"), wait("urgent"), release);
        assert_eq!(*order.lock().unwrap(), ["first", "urgent", "second", "third"]);
    }

    #[test]
    fn a_broken_link_casts_doubt_on_those_that_were_silent_since() {
        let doubt = Doubt::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!doubt.covers(at(0)));
        doubt.raise(at(5));
        assert!(doubt.covers(at(0)) && doubt.covers(at(5)));
        assert!(!doubt.covers(at(6)), "it answered after the other was sent a statement in vain");
        doubt.raise(at(3));
        assert!(doubt.covers(at(5)), "an older doubt takes nothing back");
    }
}
