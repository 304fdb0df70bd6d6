//! Connections. Every statement runs through this file, under a deadline.
//!
//! A connection whose statement timed out or was abandoned is thrown away, never handed back: a pool would keep its
//! place in a ping that never returns. Batch writers, gathered readers and the heartbeat own theirs, since each return
//! to a pool is a round trip.

use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use sqlx::Connection as _;
use sqlx::pool::{Pool, PoolConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::connect::{Backoff, CONNECT_DEADLINE, connect, search};
use super::dialect::{ConnectOptions, Connection, Dialect, Many, Row};
use super::options::Pooler;
use super::sql::{Args, Fault, is_read_only};
use super::targets::Targets;
use crate::lifecycle;

/// The ways to the database.
pub struct Link<D: Dialect> {
    pool: RwLock<Pooled<D>>,
    new_pool: NewPool<D>,
    /// The connection through which every write goes, where there may be one writer only.
    writer: Option<Arc<Own<D>>>,
    shared: Shared<D>,
}

/// What all connections of a store to one list of servers have in common.
pub struct Shared<D: Dialect> {
    pub targets: Arc<Targets<ConnectOptions<D>>>,
    pub doubt: Arc<Doubt>,
    pub pooler: Pooler,
}

impl<D: Dialect> Shared<D> {
    /// Behind a pooler that gives each transaction another connection, every statement is in one: to prepare it and to run
    /// it takes two messages, between which another client's could be prepared.
    const fn wraps(&self) -> bool {
        matches!(self.pooler, Pooler::Transaction)
    }

    /// Whether prepared statements may be kept.
    const fn keeps(&self) -> bool {
        !self.wraps()
    }
}

impl<D: Dialect> Clone for Shared<D> {
    fn clone(&self) -> Self {
        Self { targets: Arc::clone(&self.targets), doubt: Arc::clone(&self.doubt), pooler: self.pooler }
    }
}

/// Makes a pool of connections to one server, which asks [`Doubt`] before it gives one.
pub type NewPool<D> = Box<dyn Fn(&ConnectOptions<D>) -> Pool<<D as Dialect>::Database> + Send + Sync>;

/// The pool of one server, which has this place in the list.
struct Pooled<D: Dialect> {
    pool: Pool<D::Database>,
    at: usize,
}

impl<D: Dialect> Link<D> {
    pub fn new(new_pool: NewPool<D>, writer: Option<Arc<Own<D>>>, shared: Shared<D>) -> Self {
        let at = shared.targets.held();
        let pool = new_pool(shared.targets.options(at));
        Self { pool: RwLock::new(Pooled { pool, at }), new_pool, writer, shared }
    }

    /// A connection for reading.
    pub async fn reader(&self) -> Result<Session<D>, Fault> {
        let mut moves = self.shared.targets.moves();
        loop {
            let pool = self.pool();
            let acquired = tokio::select! {
                acquired = pool.acquire() => acquired,
                Ok(()) = moves.changed() => continue,
            };
            return match acquired {
                Ok(connection) => Ok(Session::new(Held::Pooled(Some(connection)), &self.shared)),
                Err(error) => {
                    search::<D>(&self.shared.targets);
                    Err(Fault::no_connection(error))
                }
            };
        }
    }

    /// A connection for writing outside the batches.
    pub async fn writer(&self) -> Result<Session<D>, Fault> {
        match &self.writer {
            Some(own) => own.session().await,
            None => self.reader().await,
        }
    }

    /// The pool of the server in use; that of one that was left is closed. Each server has its own: of a connection that was
    /// being opened when the pool moved on, nobody could say where it leads.
    fn pool(&self) -> Pool<D::Database> {
        let held = self.shared.targets.held();
        {
            let pooled = self.pool.read().unwrap_or_else(PoisonError::into_inner);
            if pooled.at == held || pooled.pool.is_closed() {
                return pooled.pool.clone();
            }
        }
        let mut pooled = self.pool.write().unwrap_or_else(PoisonError::into_inner);
        if pooled.at != held && !pooled.pool.is_closed() {
            let new = Pooled { pool: (self.new_pool)(self.shared.targets.options(held)), at: held };
            let left = std::mem::replace(&mut *pooled, new).pool;
            lifecycle::spawn("store.leave", async move { left.close().await });
        }
        pooled.pool.clone()
    }

    /// Leaves the servers that are not in use any more, as soon as there is another one: connections to them may live, and
    /// what is read on them is old.
    pub fn leave_others(self: &Arc<Self>, owned: impl Iterator<Item = Arc<Own<D>>>) {
        if !self.shared.targets.several() {
            return;
        }
        let mut moves = self.shared.targets.moves();
        let (link, owned) = (Arc::downgrade(self), owned.map(|own| Arc::downgrade(&own)).collect::<Vec<_>>());
        lifecycle::spawn("store.leave", async move {
            while moves.changed().await.is_ok() {
                if let Some(link) = link.upgrade() {
                    link.pool();
                }
                for own in owned.iter().filter_map(Weak::upgrade) {
                    own.leave().await;
                }
            }
        });
    }

    pub async fn close(&self) {
        let pool = self.pool.read().unwrap_or_else(PoisonError::into_inner).pool.clone();
        pool.close().await;
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
    /// Held by the next in line, so that whoever is urgent waits for one ordinary session at most besides the current one.
    turn: Mutex<()>,
    state: Arc<Mutex<State<D>>>,
    shared: Shared<D>,
}

struct State<D: Dialect> {
    connection: Option<Connection<D>>,
    /// The place of its server in the list.
    at: usize,
    /// When the connection was last known to be alive.
    answered: Instant,
    /// Of failed tries to connect since the last good one, and when the next may be.
    backoff: Backoff,
    retry_at: Option<Instant>,
    closed: bool,
}

impl<D: Dialect> Own<D> {
    pub fn new(shared: &Shared<D>) -> Arc<Self> {
        let state = State {
            connection: None,
            at: 0,
            answered: Instant::now(),
            backoff: Backoff::default(),
            retry_at: None,
            closed: false,
        };
        Arc::new(Self { turn: Mutex::new(()), state: Arc::new(Mutex::new(state)), shared: shared.clone() })
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
        if self.shared.doubt.covers(state.answered) || state.at != self.shared.targets.held() {
            state.connection = None;
        }
        if state.connection.is_none() {
            if state.retry_at.is_some_and(|at| Instant::now() < at) {
                return Err(Fault::link("the connection is lost and not yet made again"));
            }
            match connect::<D>(&self.shared.targets).await {
                Ok((at, connection)) => {
                    state.connection = Some(connection);
                    state.at = at;
                    state.answered = Instant::now();
                    state.backoff = Backoff::default();
                    state.retry_at = None;
                }
                Err(fault) => {
                    state.retry_at = Some(Instant::now() + state.backoff.pause());
                    return Err(fault);
                }
            }
        }
        Ok(Session::new(Held::Own(state), &self.shared))
    }

    /// Closes the connection if it leads to a server that was left.
    pub async fn leave(&self) {
        let mut state = self.state.lock().await;
        if state.at != self.shared.targets.held()
            && let Some(connection) = state.connection.take()
        {
            // Nothing is left to be done on it; a failed goodbye changes nothing.
            let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
        }
    }

    /// Whether the last try to connect failed: then a caller need not wait for the next.
    pub async fn is_down(&self) -> bool {
        self.state.lock().await.backoff.has_failed()
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
    /// Whether a transaction was begun and neither committed nor rolled back.
    open: bool,
    shared: Shared<D>,
}

enum Held<D: Dialect> {
    Pooled(Option<PoolConnection<D::Database>>),
    Own(OwnedMutexGuard<State<D>>),
}

impl<D: Dialect> Session<D> {
    fn new(held: Held<D>, shared: &Shared<D>) -> Self {
        Self { held, clean: true, open: false, shared: shared.clone() }
    }

    pub async fn fetch(&mut self, sql: &'static str, args: Args) -> Result<Vec<Row<D>>, Fault> {
        if self.shared.wraps() {
            let mut transaction = self.begin().await?;
            let answer = transaction.fetch(sql, args).await;
            return transaction.end(answer).await;
        }
        let (connection, mut guard) = self.parts();
        guarded(&mut guard, D::fetch(connection, sql, args, true)).await
    }

    pub async fn execute(&mut self, sql: &'static str, args: Args) -> Result<u64, Fault> {
        if self.shared.wraps() {
            let mut transaction = self.begin().await?;
            let answer = transaction.execute(sql, args).await;
            return transaction.end(answer).await;
        }
        let (connection, mut guard) = self.parts();
        guarded(&mut guard, D::execute(connection, sql, args, true)).await
    }

    /// Reads for many rows.
    pub async fn read_many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        if self.shared.wraps() {
            return self.write_together(statement, rows).await;
        }
        let (connection, mut guard) = self.parts();
        guarded(&mut guard, D::many(connection, statement, rows, true)).await
    }

    /// Writes many rows, all or none.
    pub async fn write_many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        if D::MANY_IS_SEVERAL_STATEMENTS {
            return self.write_together(statement, rows).await;
        }
        self.read_many(statement, rows).await
    }

    async fn write_together(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        let mut transaction = self.begin().await?;
        let answer = transaction.many(statement, rows).await;
        transaction.end(answer).await
    }

    /// Begins a write transaction; dropping it rolls back.
    pub async fn begin(&mut self) -> Result<Transaction<'_, D>, Fault> {
        let begin = if self.shared.wraps() { D::BEGIN_POOLED } else { D::BEGIN };
        let is_several = self.shared.wraps();
        let (connection, mut guard) = self.parts();
        let begun = guarded(&mut guard, connection.begin_with(begin)).await;
        if begun.is_err() && is_several {
            // What failed may have come after its `BEGIN`: a failed transaction is open then of which the driver knows nothing.
            *guard.clean = false;
        }
        let transaction = begun?;
        *guard.open = true;
        Ok(Transaction { transaction, guard })
    }

    fn parts(&mut self) -> (&mut Connection<D>, Guard<'_, D>) {
        let connection = match &mut self.held {
            Held::Pooled(connection) => connection.as_deref_mut(),
            Held::Own(state) => state.connection.as_mut(),
        };
        let guard = Guard { clean: &mut self.clean, open: &mut self.open, shared: &self.shared };
        (connection.expect("a session holds its connection until it is dropped"), guard)
    }
}

impl<D: Dialect> Drop for Session<D> {
    fn drop(&mut self) {
        // A rollback goes out with the next statement. Until then a pooler would keep one of its connections for us.
        let waits = self.open && self.shared.wraps() && matches!(self.held, Held::Own(_));
        if self.clean && !waits {
            match &mut self.held {
                Held::Pooled(connection) => release(connection.take()),
                Held::Own(state) => state.answered = Instant::now(),
            }
            return;
        }
        match &mut self.held {
            Held::Pooled(connection) => drop(connection.take().map(PoolConnection::detach)),
            Held::Own(state) => drop(state.connection.take()),
        }
    }
}

/// Hands a connection back. The pool asks it for a sign of life first, for ever: on a link that has fallen silent since the last
/// answer that would cost the pool a place, and its end would never come.
fn release<DB: sqlx::Database>(connection: Option<PoolConnection<DB>>) {
    let Some(mut connection) = connection else { return };
    lifecycle::spawn("store.release", timeout(CONNECT_DEADLINE, connection.return_to_pool()));
}

/// A write transaction in progress.
pub struct Transaction<'s, D: Dialect> {
    transaction: sqlx::Transaction<'s, D::Database>,
    guard: Guard<'s, D>,
}

impl<D: Dialect> Transaction<'_, D> {
    pub async fn fetch(&mut self, sql: &'static str, args: Args) -> Result<Vec<Row<D>>, Fault> {
        let keep = self.guard.shared.keeps();
        guarded(&mut self.guard, D::fetch(&mut self.transaction, sql, args, keep)).await
    }

    pub async fn execute(&mut self, sql: &'static str, args: Args) -> Result<u64, Fault> {
        let keep = self.guard.shared.keeps();
        guarded(&mut self.guard, D::execute(&mut self.transaction, sql, args, keep)).await
    }

    pub async fn many(&mut self, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>, Fault> {
        let keep = self.guard.shared.keeps();
        guarded(&mut self.guard, D::many(&mut self.transaction, statement, rows, keep)).await
    }

    pub async fn commit(mut self) -> Result<(), Fault> {
        *self.guard.open = false;
        guarded(&mut self.guard, self.transaction.commit()).await
    }

    /// Commits after an answer, rolls back after a fault.
    async fn end<T>(mut self, answer: Result<T, Fault>) -> Result<T, Fault> {
        match answer {
            Ok(answer) => self.commit().await.map(|()| answer),
            // A broken link takes the transaction with it.
            Err(fault) if !*self.guard.clean => Err(fault),
            Err(fault) => {
                *self.guard.open = false;
                guarded(&mut self.guard, self.transaction.rollback()).await?;
                Err(fault)
            }
        }
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
struct Guard<'s, D: Dialect> {
    clean: &'s mut bool,
    open: &'s mut bool,
    shared: &'s Shared<D>,
}

/// Runs one statement. Its connection counts as broken until it has answered.
async fn guarded<D: Dialect, T>(
    guard: &mut Guard<'_, D>,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    let sent = Instant::now();
    *guard.clean = false;
    let targets = &guard.shared.targets;
    let (fault, answered) = match timeout(D::DEADLINE, statement).await {
        Ok(Ok(answer)) => {
            *guard.clean = true;
            return Ok(answer);
        }
        // With another server to turn to, one that takes no writes is as good as gone.
        Ok(Err(error)) if targets.several() && is_read_only(&error) => (Fault::link(Fault::from(error).detail()), true),
        Ok(Err(error)) => {
            let answered = matches!(error, sqlx::Error::Database(_));
            (Fault::from(error), answered)
        }
        Err(_) => (Fault::link(format!("no answer within {} s", D::DEADLINE.as_secs())), false),
    };
    *guard.clean = !matches!(fault, Fault::Link(_));
    if !*guard.clean {
        if !answered {
            guard.shared.doubt.raise(sent);
        }
        search::<D>(targets);
    }
    Err(fault)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;
    use crate::store::sqlite::SqliteDialect;

    #[tokio::test]
    async fn who_is_urgent_waits_for_no_crowd() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("x.db")).create_if_missing(true);
        let shared =
            Shared { targets: Arc::new(Targets::one("x.db", options)), doubt: Arc::default(), pooler: Pooler::None };
        let own = Own::<SqliteDialect>::new(&shared);
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
