//! Connections: the pool and those that are owned ([`Own`]). Every statement runs through a [`Session`], under a deadline.
//!
//! A connection whose statement timed out or was abandoned is thrown away, never handed back: a pool would keep its
//! place in a ping that never returns. Batch writers, gathered readers, claims and the heartbeat own theirs, since each
//! return to a pool is a round trip.

mod own;
mod session;

use std::sync::{Arc, PoisonError, RwLock, Weak};

use sqlx::pool::Pool;
use tokio::time::Instant;

use super::connect::search;
use super::dialect::{ConnectOptions, Dialect};
use super::options::Pooler;
use super::sql::Fault;
use super::targets::Targets;
use crate::lifecycle;

pub use own::Own;
use session::Held;
pub use session::{Reads, Session, Transaction};

/// The ways to the database.
pub struct Link<D: Dialect> {
    pool: RwLock<Pooled<D>>,
    new_pool: NewPool<D>,
    /// The connection through which every write goes, where there may be one writer only.
    writer: Option<Arc<Own<D>>>,
    claimer: Arc<Own<D>>,
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
    /// Claims have a connection of their own, or the `writer`.
    pub fn new(new_pool: NewPool<D>, writer: Option<Arc<Own<D>>>, shared: Shared<D>) -> Self {
        let at = shared.targets.held();
        let pool = new_pool(shared.targets.options(at));
        let claimer = writer.clone().unwrap_or_else(|| Own::new(&shared));
        Self { pool: RwLock::new(Pooled { pool, at }), new_pool, writer, claimer, shared }
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

    /// The connection of claims: of a node's, one is under way.
    pub async fn claimer(&self) -> Result<Session<D>, Fault> {
        self.claimer.session().await
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
        let owned = owned.chain([Arc::clone(&self.claimer)]);
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
        for own in self.writer.iter().chain([&self.claimer]) {
            own.close().await;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
