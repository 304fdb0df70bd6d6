//! A connection in use: its statements and transactions, and what becomes of it after them.

use std::future::Future;

use sqlx::Connection as _;
use sqlx::pool::PoolConnection;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout};

use super::super::connect::{CONNECT_DEADLINE, search};
use super::super::dialect::{Connection, Dialect, Many, Row};
use super::super::sql::{Args, Fault, is_read_only};
use super::Shared;
use super::own::State;
use crate::lifecycle;

/// A connection in use.
pub struct Session<D: Dialect> {
    held: Held<D>,
    /// False while a statement runs and after it broke the link: then the connection is thrown away.
    clean: bool,
    /// Whether a transaction was begun and neither committed nor rolled back.
    open: bool,
    shared: Shared<D>,
}

pub(super) enum Held<D: Dialect> {
    Pooled(Option<PoolConnection<D::Database>>),
    Own(OwnedMutexGuard<State<D>>),
}

impl<D: Dialect> Session<D> {
    pub(super) fn new(held: Held<D>, shared: &Shared<D>) -> Self {
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

    /// Has the statements planned anew. That they are not keeps nobody from going on.
    pub(super) async fn forget_plans(&mut self, sql: &'static str) -> Result<(), Fault> {
        let forgotten = self.execute(sql, Vec::new()).await;
        if let Held::Own(state) = &mut self.held {
            state.planned = Instant::now();
        }
        match forgotten {
            Err(fault @ Fault::Link(_)) => Err(fault),
            _ => Ok(()),
        }
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
    // A connection stays as its server was when it was made: where writes are refused, one of later may take them.
    let mut is_outdated = false;
    let (fault, answered) = match timeout(D::DEADLINE, statement).await {
        Ok(Ok(answer)) => {
            *guard.clean = true;
            return Ok(answer);
        }
        // With another server to turn to, one that takes no writes is as good as gone.
        Ok(Err(error)) if targets.several() && is_read_only(&error) => (Fault::link(Fault::from(error).detail()), true),
        Ok(Err(error)) => {
            let answered = matches!(error, sqlx::Error::Database(_));
            is_outdated = is_read_only(&error);
            (Fault::from(error), answered)
        }
        Err(_) => (Fault::link(format!("no answer within {} s", D::DEADLINE.as_secs())), false),
    };
    *guard.clean = !matches!(fault, Fault::Link(_)) && !is_outdated;
    if matches!(fault, Fault::Link(_)) {
        if !answered {
            guard.shared.doubt.raise(sent);
        }
        search::<D>(targets);
    }
    Err(fault)
}
