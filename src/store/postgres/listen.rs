//! Wake-ups by LISTEN and NOTIFY. The channel is named after the schema in which the tables are: two installs in two schemas
//! of one database do not hear each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Executor as _, Row as _};

use super::super::connect::search;
use super::super::open_postgres::is_pooler;
use super::super::sql::Fault;
use super::super::targets::Targets;
use super::super::wakeup::{Ear, Ears};
use super::PostgresDialect;

/// A statement of its own, after the commit: in a task's transaction it would hold a lock of the whole server until that ends.
pub const NOTIFY: &str = "
    SELECT pg_notify('taskhold_' || relnamespace, $1) IS NULL FROM pg_class WHERE oid = 'nodes'::regclass";
pub const CHANNEL: &str = "SELECT 'taskhold_' || relnamespace FROM pg_class WHERE oid = 'nodes'::regclass";
/// How long the server's connection may take to be made.
const ACQUIRE: Duration = Duration::from_secs(3);

/// The servers to listen at, one at a time.
pub struct Listening {
    servers: Vec<PgConnectOptions>,
    /// The place of the one that was tried last.
    tried: AtomicUsize,
    /// The same servers as the store's others know them: the one in use is listened to. Without these they are tried one
    /// after the other, and what comes back shows whether one is of use.
    in_use: Option<Arc<Targets<PgConnectOptions>>>,
}

impl Listening {
    /// `None` where there is no server to listen at.
    pub fn at(servers: Vec<PgConnectOptions>, in_use: Option<Arc<Targets<PgConnectOptions>>>) -> Option<Box<dyn Ears>> {
        (!servers.is_empty()).then(|| Box::new(Self { servers, tried: AtomicUsize::new(0), in_use }) as _)
    }
}

#[async_trait]
impl Ears for Listening {
    async fn open(&self) -> Result<Box<dyn Ear>, Fault> {
        if let Some(targets) = &self.in_use {
            self.tried.store(targets.held(), Ordering::SeqCst);
        }
        let server = &self.servers[self.tried.load(Ordering::SeqCst) % self.servers.len()];
        // Nobody has looked yet what is at those that are named. Through a pooler nothing is heard; worse, whoever has the
        // connection next would be sent what we listened to.
        if self.in_use.is_none() && is_pooler(server).await? {
            return Err(Fault::link("there is a connection pooler"));
        }
        listen_at(server).await
    }

    fn turn(&self) {
        match &self.in_use {
            Some(targets) => search::<PostgresDialect>(targets),
            None => {
                self.tried.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    async fn moved(&self) {
        let Some(targets) = &self.in_use else { return std::future::pending().await };
        let tried = self.tried.load(Ordering::SeqCst);
        // It ends with the targets alone, which are held here.
        let _ = targets.moves().wait_for(|at| *at != tried).await;
    }
}

/// Opens a connection that hears what is said at this server, about the tables that it leads to.
pub async fn listen_at(server: &PgConnectOptions) -> Result<Box<dyn Ear>, Fault> {
    // sqlx takes a listener's connection from a pool: this one has no other, and is left to nobody.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(ACQUIRE)
        .test_before_acquire(false)
        .connect_lazy_with(server.clone());
    let mut listener = PgListener::connect_with(&pool).await.map_err(Fault::no_connection)?;
    // What was said until it listens again would be missed without a word: a lost one is given up, and another opened.
    listener.eager_reconnect(false);
    let channel: String = (&mut listener).fetch_one(CHANNEL).await?.try_get(0)?;
    listener.listen(&channel).await?;
    Ok(Box::new(Listener(listener)))
}

struct Listener(PgListener);

#[async_trait]
impl Ear for Listener {
    async fn next(&mut self) -> Result<String, Fault> {
        match self.0.try_recv().await? {
            Some(notification) => Ok(notification.payload().to_owned()),
            None => Err(Fault::link("the connection was closed")),
        }
    }
}
