//! Persistence. The only place that knows SQL.
//!
//! [`Database`] is the contract: one generic implementation, `SqlStore`, and one contract suite that runs the same
//! cases on every database. Code outside this folder holds one of two handles:
//!
//! * [`ScopedStore`], made from a verified [`AuthContext`]: request-facing code. It has no method that reaches
//!   another context's rows (AUTH-13).
//! * [`SystemStore`]: the runner, recovery, the reaper, authentication itself, and operators' commands.
//!
//! Every write of a task is conditional: on its status, and on the lease token where an attempt speaks. An
//! implementation gathers concurrent calls into few transactions ("group commit") and answers each caller after
//! *its* commit with *its* outcome. The future of a call may be dropped at any time without cancelling SQL.

mod batch;
mod catalog;
mod claims;
mod contexts;
mod dialect;
mod keys;
mod link;
mod migrate;
mod nodes;
mod open;
mod open_postgres;
mod open_sqlite;
mod operators;
mod options;
mod postgres;
mod prepared;
mod retention;
mod sessions;
mod sql;
mod sql_store;
mod sqlite;
mod tasks;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::clock::Timestamp;
use crate::domain::context::{AuthContext, ContextKey};
use crate::domain::cursor::Position;
use crate::domain::ids::{ContextId, LeaseToken, NodeId, SessionId, TaskId, TokenId};
use crate::domain::json::RawJson;
use crate::domain::lease::Lease;
use crate::domain::outcome::Outcome;
use crate::domain::session::Session;
use crate::domain::task::Task;
use crate::domain::work::{Claim, NewTask};

pub use migrate::{check_migrations, migrate};
pub use open::{OpenError, open};
pub use options::DatabaseOptions;

/// Why the store could not answer. "Not found" is never an error here.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached or did not answer in time; the same call may succeed later (KEEP-11).
    #[error("the database is unavailable: {0}")]
    Unavailable(Arc<str>),
    /// The database refused a statement: disk full, read-only, corrupt, or a fault of ours (KEEP-13).
    #[error("the database refused the operation: {0}")]
    Refused(Arc<str>),
    /// A stored row cannot be read as what it should be.
    #[error("a stored row is broken: {0}")]
    BrokenRow(Arc<str>),
}

pub type Result<T> = std::result::Result<T, StoreError>;

/// The end of a task, written by whoever holds its lease.
#[derive(Debug, Clone)]
pub struct Finish {
    pub task: TaskId,
    pub token: LeaseToken,
    pub end: End,
}

/// What the write that ends a task stores.
#[derive(Debug, Clone)]
pub struct End {
    pub outcome: Outcome,
    pub message: Option<String>,
    pub now: Timestamp,
    /// When the row may go, by `domain/retention`; `None` keeps it for ever.
    pub expires: Option<Timestamp>,
}

/// What became of an attempt to end a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The task stands as this write left it (also when this very write had landed before).
    Done(Task),
    /// Another write was first: the task ended otherwise, its lease is held by someone else, or it is gone.
    Refused,
}

/// A lease given back: after a failed attempt, or uncounted when nothing was dispatched.
#[derive(Debug, Clone)]
pub struct Release {
    pub task: TaskId,
    pub token: LeaseToken,
    /// The next claim comes not before this.
    pub not_before: Timestamp,
    /// Whether the attempt counts towards the allowed ones.
    pub counted: bool,
    pub message: String,
    pub now: Timestamp,
}

/// A new `statusMessage` of a running task.
#[derive(Debug, Clone)]
pub struct Note {
    pub task: TaskId,
    pub token: LeaseToken,
    pub message: String,
    pub now: Timestamp,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// The database's clock, read inside the statement.
    pub database_now: Timestamp,
    /// False if another node has declared this one dead, which is final.
    pub alive: bool,
}

/// A live task past its hard lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    pub task: Task,
    pub hard_end: Timestamp,
}

/// An issued access token; the secret itself is nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: TokenId,
    pub context: ContextId,
    pub tenant: String,
    pub name: String,
    /// The argon2id hash in PHC form.
    pub hash: String,
    pub created: Timestamp,
    pub expires: Option<Timestamp>,
    pub revoked: Option<Timestamp>,
}

/// One item of an upstream, under the name that it is exposed by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogItem {
    pub upstream: String,
    /// `tool` today.
    pub kind: String,
    /// The upstream's own name for it.
    pub name: String,
    /// Unique per kind; once given, it does not move.
    pub exposed: String,
    /// The upstream's definition as it arrived.
    pub definition: RawJson,
    /// The order in the upstream's list.
    pub rank: i64,
    /// Whether the upstream's last complete list had it.
    pub listed: bool,
    pub seen: Timestamp,
}

/// A task as operators see it, across contexts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDetails {
    pub task: Task,
    pub tenant: String,
    pub upstream: String,
    pub upstream_tool: String,
    /// The last attempt, 0 before the first.
    pub attempt: u32,
    /// The node that runs it now.
    pub node: Option<NodeId>,
    pub outcome: Option<Outcome>,
}

/// The contract of a database.
///
/// Methods with a [`ContextId`] have it in the WHERE clause or join of their statement.
#[async_trait]
pub trait Database: Send + Sync + 'static {
    // --- tasks, request-facing -------------------------------------------------------------------------------

    /// Commits the task, its request and its live row, claimed if `new.claim` is set: all or nothing.
    async fn create(&self, context: ContextId, new: NewTask) -> Result<()>;
    /// The task if its row exists in this context, whether or not it has expired.
    async fn get(&self, context: ContextId, id: TaskId) -> Result<Option<Task>>;
    /// The same with the outcome, `Some` exactly for ended tasks.
    async fn outcome(&self, context: ContextId, id: TaskId) -> Result<Option<(Task, Option<Outcome>)>>;
    /// Visible tasks after `after`, newest first (created descending, id descending), at most `limit`.
    async fn list(&self, context: ContextId, after: Option<Position>, limit: u32, now: Timestamp) -> Result<Vec<Task>>;
    /// Ends a live task of this context without its lease: the caller's cancel. The lease goes with it.
    async fn cancel(&self, context: ContextId, id: TaskId, end: End) -> Result<Ended>;

    // --- tasks, running --------------------------------------------------------------------------------------

    /// Claims up to `tokens.len()` waiting tasks whose time has come, oldest first, each with one of the given tokens;
    /// sets their message to `message`. Rows that another node is claiming are skipped, not waited for. A row that cannot
    /// be read is left out and ended as a broken row, so that it never stops the others.
    async fn claim(&self, node: NodeId, tokens: Vec<LeaseToken>, message: &str, now: Timestamp) -> Result<Vec<Claim>>;
    /// Ends a task by its lease. A repeated finish with the same token finds itself done.
    async fn finish(&self, finish: Finish) -> Result<Ended>;
    /// Writes a running task's message if the lease still holds; false if it does not.
    async fn note(&self, note: Note) -> Result<bool>;
    /// Gives a lease back; false if it was not held any more.
    async fn release(&self, release: Release) -> Result<bool>;
    /// The waiting tasks whose time has come, in the order in which they will be claimed, at most `limit`.
    async fn queue(&self, limit: u32, now: Timestamp) -> Result<Vec<TaskId>>;
    /// Sets the message of tasks that still wait, where it differs.
    async fn note_waiting(&self, messages: Vec<(TaskId, String)>, now: Timestamp) -> Result<()>;
    /// Which of these tasks are not live any more.
    async fn ended(&self, ids: &[TaskId]) -> Result<Vec<TaskId>>;
    /// False only if nothing can have changed since the last call that answered true. Costs no query on SQLite; always true
    /// on PostgreSQL.
    async fn may_have_changed(&self) -> Result<bool>;
    /// How often it is worth asking [`Self::may_have_changed`].
    fn watch_interval(&self) -> Duration;

    // --- nodes and recovery ----------------------------------------------------------------------------------

    async fn register_node(&self, node: NodeId) -> Result<Timestamp>;
    /// Reads the database's clock inside the statement; conditional on not being dead. On a connection of its own.
    async fn heartbeat(&self, node: NodeId) -> Result<Beat>;
    /// Declares dead every node but `judge` whose heartbeat is older than `age` by the database's clock.
    async fn declare_dead(&self, judge: NodeId, age: Duration) -> Result<Vec<NodeId>>;
    /// Marks this node dead by its own will, at the end of a clean stop.
    async fn retire_node(&self, node: NodeId) -> Result<()>;
    /// Claims held by dead or unknown nodes, at most `limit`, in the order of task ids after `after`.
    async fn orphans(&self, after: Option<TaskId>, limit: u32) -> Result<Vec<Claim>>;
    /// The leases that this node holds by the database.
    async fn held(&self, node: NodeId) -> Result<Vec<Lease>>;
    /// One claim by its token, if it still holds.
    async fn claim_of(&self, task: TaskId, token: LeaseToken) -> Result<Option<Claim>>;
    /// Deletes dead nodes without leases that were last heard of before `before`.
    async fn forget_nodes(&self, before: Timestamp) -> Result<u64>;

    // --- retention -------------------------------------------------------------------------------------------

    /// Live tasks whose hard end has come, at most `limit`.
    async fn overdue(&self, now: Timestamp, limit: u32) -> Result<Vec<Overdue>>;
    /// Ends a live task whatever its lease: hard lifetime, operators' cancel.
    async fn end(&self, id: TaskId, end: End) -> Result<Ended>;
    /// Deletes at most `limit` ended tasks that expired before or at `now`, with all that belongs to them; answers how many.
    async fn reap(&self, now: Timestamp, limit: u32) -> Result<u64>;

    // --- sessions --------------------------------------------------------------------------------------------

    /// Of more than `most` sessions of a context, those that were used longest ago end.
    async fn add_session(&self, session: Session, most: u32) -> Result<()>;
    async fn session(&self, context: ContextId, id: SessionId) -> Result<Option<Session>>;
    async fn touch_session(&self, context: ContextId, id: SessionId, now: Timestamp) -> Result<()>;
    /// True if it was there.
    async fn end_session(&self, context: ContextId, id: SessionId) -> Result<bool>;
    /// Deletes at most `limit` sessions last used before `before`.
    async fn reap_sessions(&self, before: Timestamp, limit: u32) -> Result<u64>;

    // --- contexts, tokens, keys ------------------------------------------------------------------------------

    /// The context with this key, made if it is new.
    async fn ensure_context(&self, key: ContextKey, now: Timestamp) -> Result<ContextId>;
    async fn context(&self, id: ContextId) -> Result<Option<ContextKey>>;
    async fn add_token(&self, token: TokenRecord) -> Result<()>;
    async fn tokens(&self, ids: &[TokenId]) -> Result<Vec<TokenRecord>>;
    async fn all_tokens(&self) -> Result<Vec<TokenRecord>>;
    /// Sets the revocation unless it is set; false if there is no such token.
    async fn revoke_token(&self, id: TokenId, now: Timestamp) -> Result<bool>;
    /// Brings the expiry forward to `at`, never back; false if there is no such token.
    async fn expire_token(&self, id: TokenId, at: Timestamp) -> Result<bool>;
    /// The installation's key for a purpose (`cursor`, `token`); all nodes see the same.
    async fn server_key(&self, kind: &str) -> Result<[u8; 32]>;

    // --- catalogue -------------------------------------------------------------------------------------------

    async fn catalog(&self) -> Result<Vec<CatalogItem>>;
    /// Inserts or updates items by (upstream, kind, name), but never moves an exposed name: an item whose exposed name is
    /// taken by another row, or that already has another one, keeps what is stored. Answers the whole catalogue after.
    async fn put_catalog(&self, items: Vec<CatalogItem>) -> Result<Vec<CatalogItem>>;
    /// Deletes the items of upstreams not in `keep` that no stored task names.
    async fn prune_catalog(&self, keep: &[String]) -> Result<u64>;

    // --- operators -------------------------------------------------------------------------------------------

    /// Tasks of all contexts, newest first, expired ones too; without their outcomes, which may be large.
    async fn all_tasks(&self, after: Option<Position>, limit: u32) -> Result<Vec<TaskDetails>>;
    async fn details(&self, id: TaskId) -> Result<Option<TaskDetails>>;

    /// Whether the database answers now (for readiness).
    async fn ping(&self) -> Result<()>;
    /// Commits what is gathered and closes every connection.
    async fn close(&self);
}

/// The way to the store; cheap to clone.
#[derive(Clone)]
pub struct Store {
    database: Arc<dyn Database>,
}

impl Store {
    #[must_use]
    pub fn new(database: Arc<dyn Database>) -> Self {
        Self { database }
    }

    /// The handle of request-facing code.
    #[must_use]
    pub fn scoped(&self, caller: &AuthContext) -> ScopedStore {
        ScopedStore { context: caller.id(), database: Arc::clone(&self.database) }
    }

    /// The handle of code that acts for the installation, never for a caller.
    #[must_use]
    pub fn system(&self) -> SystemStore {
        SystemStore { database: Arc::clone(&self.database) }
    }
}

/// Reaches the rows of one authorization context and no others.
#[derive(Clone)]
pub struct ScopedStore {
    context: ContextId,
    database: Arc<dyn Database>,
}

/// See the methods of the same name of [`Database`].
impl ScopedStore {
    pub async fn create(&self, new: NewTask) -> Result<()> {
        self.database.create(self.context, new).await
    }

    pub async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.database.get(self.context, id).await
    }

    pub async fn outcome(&self, id: TaskId) -> Result<Option<(Task, Option<Outcome>)>> {
        self.database.outcome(self.context, id).await
    }

    pub async fn list(&self, after: Option<Position>, limit: u32, now: Timestamp) -> Result<Vec<Task>> {
        self.database.list(self.context, after, limit, now).await
    }

    pub async fn cancel(&self, id: TaskId, end: End) -> Result<Ended> {
        self.database.cancel(self.context, id, end).await
    }

    /// The session must have been made for this context.
    pub async fn add_session(&self, session: Session, most: u32) -> Result<()> {
        debug_assert_eq!(session.context, self.context);
        self.database.add_session(Session { context: self.context, ..session }, most).await
    }

    pub async fn session(&self, id: SessionId) -> Result<Option<Session>> {
        self.database.session(self.context, id).await
    }

    pub async fn touch_session(&self, id: SessionId, now: Timestamp) -> Result<()> {
        self.database.touch_session(self.context, id, now).await
    }

    pub async fn end_session(&self, id: SessionId) -> Result<bool> {
        self.database.end_session(self.context, id).await
    }
}

/// Reaches everything; never handed to request-facing code.
#[derive(Clone)]
pub struct SystemStore {
    database: Arc<dyn Database>,
}

impl std::ops::Deref for SystemStore {
    type Target = dyn Database;

    fn deref(&self) -> &Self::Target {
        &*self.database
    }
}
