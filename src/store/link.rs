//! Connections. Every statement runs through this file, under a deadline.
//!
//! A connection whose statement timed out or was abandoned is thrown away, never handed back: a pool would keep its
//! place in a ping that never returns. Batch writers, gathered readers and the heartbeat own theirs, since each return
//! to a pool is a round trip.

use std::future::Future;
use std::sync::Arc;
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
}

impl<D: Dialect> Link<D> {
    pub fn new(pool: Pool<D::Database>, writer: Option<Arc<Own<D>>>) -> Self {
        Self { pool, writer }
    }

    /// A connection for reading.
    pub async fn reader(&self) -> Result<Session<D>, Fault> {
        Ok(Session { held: Held::Pooled(Some(self.pool.acquire().await?)), clean: true })
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

/// A connection with one owner or few, opened when first used and again when it broke.
pub struct Own<D: Dialect> {
    options: ConnectOptions<D>,
    state: Arc<Mutex<State<D>>>,
}

struct State<D: Dialect> {
    connection: Option<Connection<D>>,
    /// Failed tries to connect since the last good one, and when the next may be.
    failures: u32,
    retry_at: Option<Instant>,
    closed: bool,
}

impl<D: Dialect> Own<D> {
    pub fn new(options: ConnectOptions<D>) -> Arc<Self> {
        let state = State { connection: None, failures: 0, retry_at: None, closed: false };
        Arc::new(Self { options, state: Arc::new(Mutex::new(state)) })
    }

    /// Waits for its turn, then for a connection. While the database is away this answers a link fault at once, and
    /// tries to connect at most every second.
    pub async fn session(&self) -> Result<Session<D>, Fault> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        if state.closed {
            return Err(Fault::link("the store is closed"));
        }
        if state.connection.is_none() {
            if state.retry_at.is_some_and(|at| Instant::now() < at) {
                return Err(Fault::link("the connection is lost and not yet made again"));
            }
            match self.connect().await {
                Ok(connection) => {
                    state.connection = Some(connection);
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
        Ok(Session { held: Held::Own(state), clean: true })
    }

    async fn connect(&self) -> Result<Connection<D>, Fault> {
        match timeout(CONNECT_DEADLINE.max(D::DEADLINE), Connection::<D>::connect_with(&self.options)).await {
            Ok(connected) => Ok(connected?),
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
}

enum Held<D: Dialect> {
    Pooled(Option<PoolConnection<D::Database>>),
    Own(OwnedMutexGuard<State<D>>),
}

impl<D: Dialect> Session<D> {
    pub async fn fetch(&mut self, sql: &'static str, args: Args) -> Result<Vec<Row<D>>, Fault> {
        let (connection, clean) = self.parts();
        guarded::<D, _>(clean, D::fetch(connection, sql, args)).await
    }

    pub async fn execute(&mut self, sql: &'static str, args: Args) -> Result<u64, Fault> {
        let (connection, clean) = self.parts();
        guarded::<D, _>(clean, D::execute(connection, sql, args)).await
    }

    /// Reads for many rows.
    pub async fn read_many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        let (connection, clean) = self.parts();
        guarded::<D, _>(clean, D::many(connection, statement, rows)).await
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
        let (connection, clean) = self.parts();
        let transaction = guarded::<D, _>(clean, connection.begin_with(D::BEGIN)).await?;
        Ok(Transaction { transaction, clean })
    }

    fn parts(&mut self) -> (&mut Connection<D>, &mut bool) {
        let connection = match &mut self.held {
            Held::Pooled(connection) => connection.as_deref_mut(),
            Held::Own(state) => state.connection.as_mut(),
        };
        (connection.expect("a session holds its connection until it is dropped"), &mut self.clean)
    }
}

impl<D: Dialect> Drop for Session<D> {
    fn drop(&mut self) {
        if self.clean {
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
    clean: &'s mut bool,
}

impl<D: Dialect> Transaction<'_, D> {
    pub async fn fetch(&mut self, sql: &'static str, args: Args) -> Result<Vec<Row<D>>, Fault> {
        guarded::<D, _>(self.clean, D::fetch(&mut self.transaction, sql, args)).await
    }

    pub async fn execute(&mut self, sql: &'static str, args: Args) -> Result<u64, Fault> {
        guarded::<D, _>(self.clean, D::execute(&mut self.transaction, sql, args)).await
    }

    pub async fn many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        guarded::<D, _>(self.clean, D::many(&mut self.transaction, statement, rows)).await
    }

    pub async fn commit(self) -> Result<(), Fault> {
        guarded::<D, _>(self.clean, self.transaction.commit()).await
    }
}

/// Runs one statement. Its connection counts as broken until it has answered.
async fn guarded<D: Dialect, T>(
    clean: &mut bool,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    *clean = false;
    match timeout(D::DEADLINE, statement).await {
        Ok(Ok(answer)) => {
            *clean = true;
            Ok(answer)
        }
        Ok(Err(error)) => {
            let fault = Fault::from(error);
            *clean = !matches!(fault, Fault::Link(_));
            Err(fault)
        }
        Err(_) => Err(Fault::link(format!("no answer within {} s", D::DEADLINE.as_secs()))),
    }
}
