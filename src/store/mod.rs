//! Persistence. The only place that knows SQL.
//!
//! [`Database`] is the contract: one generic implementation, `SqlStore`, and one contract suite that runs the same
//! cases on every database. Code outside this folder holds one of two handles:
//!
//! * [`ScopedStore`], made from a verified [`AuthContext`](crate::domain::context::AuthContext): request-facing code.
//!   It has no method that reaches another context's rows (AUTH-13).
//! * [`SystemStore`]: the runner, recovery, the reaper, authentication itself, and operators' commands.
//!
//! Every write of a task is conditional: on its status, and on the lease token where an attempt speaks. An
//! implementation gathers concurrent calls into few transactions ("group commit") and answers each caller after
//! *its* commit with *its* outcome. The future of a call may be dropped at any time without cancelling SQL.

mod batch;
mod catalog;
mod check;
mod check_listen;
mod check_postgres;
mod check_sqlite;
mod claims;
mod connect;
mod contexts;
mod deliveries;
mod dialect;
mod handles;
mod hints;
mod inputs;
mod keyed;
mod keys;
mod link;
mod methods;
mod migrate;
mod migrate_pooled;
mod migrate_wait;
mod nodes;
mod open;
mod open_postgres;
mod open_sqlite;
mod operators;
mod options;
mod postgres;
mod prepared;
mod queue;
mod retention;
mod rounds;
mod schema;
mod sessions;
mod signals;
mod sql;
mod sql_store;
mod sqlite;
mod subscriptions;
mod targets;
mod tasks;
mod telling;
mod tokens;
mod upstream_tasks;
mod wakeup;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::clock::Timestamp;
use crate::domain::context::ContextKey;
use crate::domain::cursor::Position;
use crate::domain::ids::{ContextId, DeliveryId, InputId, LeaseToken, NodeId, SessionId, StreamId, TaskId, TokenId};
use crate::domain::input::Answer;
use crate::domain::json::RawJson;
use crate::domain::lease::Lease;
use crate::domain::outcome::Outcome;
use crate::domain::queue::SlotLimits;
use crate::domain::round::RoundState;
use crate::domain::session::{Session, SessionStream};
use crate::domain::task::Task;
use crate::domain::work::{Claim, NewTask, UpstreamTask};

pub use catalog::CatalogItem;
pub use check::{Checked, Finding, check};
pub use claims::{Claimed, Wish};
pub use deliveries::{Delivered, Held, Hold, Last, Purpose, Renamed};
pub use handles::{ScopedStore, Store, SystemStore};
pub use hints::Hint;
pub use inputs::{Afterwards, Asked, NewInput, OpenInput, Taken, Waiting};
pub use keyed::Keyed;
pub use migrate::{check_migrations, migrate};
pub use open::{OpenError, open};
pub use operators::TaskDetails;
pub use options::{DatabaseOptions, Pooler};
pub use queue::Queue;
pub use retention::Firsts;
pub use rounds::{Given, Parked, Spend};
pub use sessions::StreamPlace;
pub use signals::{Signal, SignalKind};
pub use subscriptions::{NewSubscription, SubscriptionRow};
pub use tokens::TokenRecord;
pub use wakeup::Hints;
pub use watch::{Closed, Closing, News, Watch};

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
    /// Whether open questions stay open for the next attempt, as those of a call that was handed over; else they are
    /// withdrawn and the task is `working` again.
    pub keep_inputs: bool,
    pub message: String,
    pub now: Timestamp,
}

/// A new `statusMessage` of a running task, and its progress.
#[derive(Debug, Clone)]
pub struct Note {
    pub task: TaskId,
    pub token: LeaseToken,
    /// `None` leaves what is stored.
    pub message: Option<String>,
    /// The `params` of the progress notification; `None` leaves what is stored.
    pub progress: Option<RawJson>,
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

/// The contract of a database. Methods with a [`ContextId`] have it in the WHERE clause or join of their statement.
#[async_trait]
pub trait Database: Send + Sync + 'static {
    // --- tasks, request-facing -------------------------------------------------------------------------------

    /// Commits the task, its request and its live row, claimed if `new.claim` is set: all or nothing. False if its key is
    /// another row's of this context; then nothing was written.
    async fn create(&self, context: ContextId, new: NewTask) -> Result<bool>;
    /// What is stored under a key, whether or not it has expired.
    async fn keyed(&self, context: ContextId, key: &str) -> Result<Option<Keyed>>;
    /// A stored call that was no task is one from now on, without rounds; false of one that was given up.
    async fn unpark(&self, context: ContextId, id: TaskId) -> Result<bool>;
    /// Takes a key from a row that expired before or at `now`.
    async fn free_key(&self, context: ContextId, key: &str, now: Timestamp) -> Result<()>;
    /// The task if its row exists in this context, whether or not it has expired. Not a call that is no task.
    async fn get(&self, context: ContextId, id: TaskId) -> Result<Option<Task>>;
    /// The same with the outcome, `Some` exactly for ended tasks.
    async fn outcome(&self, context: ContextId, id: TaskId) -> Result<Option<(Task, Option<Outcome>)>>;
    /// Visible tasks after `after`, newest first (created descending, id descending), at most `limit`.
    async fn list(&self, context: ContextId, after: Option<Position>, limit: u32, now: Timestamp) -> Result<Vec<Task>>;
    /// Ends a live task of this context without its lease: the caller's cancel. The lease goes with it.
    async fn cancel(&self, context: ContextId, id: TaskId, end: End) -> Result<Ended>;

    // --- tasks, running --------------------------------------------------------------------------------------

    /// Claims as many waiting tasks whose time has come as there are tokens, by the turns of their contexts and within the
    /// limits (`domain/queue`). Rows that another node is claiming are skipped, not waited for. A row that cannot
    /// be read is left out and ended as a broken row, so that it never stops the others.
    async fn claim_within(&self, limits: &SlotLimits, wish: Wish) -> Result<Claimed>;
    /// The same where nothing is limited.
    async fn claim(&self, node: NodeId, tokens: Vec<LeaseToken>, now: Timestamp) -> Result<Vec<Claim>> {
        Ok(self.claim_within(&SlotLimits::default(), Wish { node, tokens, now }).await?.claims)
    }
    /// Ends a task by its lease. A repeated finish with the same token finds itself done.
    async fn finish(&self, finish: Finish) -> Result<Ended>;
    /// Writes a running task's message and progress if the lease still holds; `None` if it does not. Progress alone
    /// does not move `updated`.
    async fn note(&self, note: Note) -> Result<Option<Task>>;
    /// Gives a lease back; false if it was not held any more.
    async fn release(&self, release: Release) -> Result<bool>;
    /// Whether a task waits whose time has come.
    async fn anybody_waits(&self, now: Timestamp) -> Result<bool>;
    /// The waiting tasks whose time has come, at most `limit` of those that go next and as many that limits hold back.
    async fn queue_within(&self, limits: &SlotLimits, limit: u32, now: Timestamp) -> Result<Queue>;
    /// Those that go next where nothing is limited.
    async fn queue(&self, limit: u32, now: Timestamp) -> Result<Vec<TaskId>> {
        Ok(self.queue_within(&SlotLimits::default(), limit, now).await?.next)
    }
    /// How many tasks of the context wait, counted up to `most`.
    async fn waiting(&self, context: ContextId, most: u64) -> Result<u64>;
    /// The same of a tenant, as far as its tasks name it as counted.
    async fn waiting_of_tenant(&self, tenant: &str, most: u64) -> Result<u64>;
    /// Sets the message of tasks that still wait, where it differs.
    async fn note_waiting(&self, messages: Vec<(TaskId, String)>, now: Timestamp) -> Result<()>;
    /// False only if nothing can have changed since the last call that answered true. Costs no query on SQLite; always true
    /// on PostgreSQL.
    async fn may_have_changed(&self) -> Result<bool>;
    /// How often it is worth asking [`Self::may_have_changed`]: more often while other nodes' hints are not heard.
    fn watch_interval(&self) -> Duration;
    /// Begins to hear other nodes' hints, for one reader; `None` where there is no such thing, and where one reads already.
    fn hints(&self) -> Option<Hints>;
    /// Moves when a token may have been revoked, or may expire earlier, as far as that is heard.
    fn token_changes(&self) -> tokio::sync::watch::Receiver<()>;

    /// One gathered question for all that waits on this node: one statement. To be asked when [`Self::may_have_changed`].
    async fn watch(&self, watch: Watch) -> Result<News>;

    // --- questions -------------------------------------------------------------------------------------------

    /// Stores a question of an attempt, by its lease, and moves the task to `input_required`.
    async fn ask(&self, new: NewInput) -> Result<Asked>;
    /// An answer goes to the work once, by the lease.
    async fn take_answer(&self, input: InputId, token: LeaseToken) -> Result<Taken>;
    /// Closes an open question by the lease of the attempt that asks; the task is `working` again if it
    /// was the last one. `None` if it was not open.
    async fn withdraw_input(
        &self,
        input: InputId,
        token: LeaseToken,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>>;
    /// Stores that the upstream runs the call as a task of its own, by lease; false if it is not held.
    async fn hand_over(&self, task: TaskId, token: LeaseToken, to: UpstreamTask, now: Timestamp) -> Result<bool>;
    /// Forgets that, by lease, before the call is made anew; false if it is not held.
    async fn take_back(&self, task: TaskId, token: LeaseToken) -> Result<bool>;
    /// The open questions of a task, the oldest first.
    async fn open_inputs(&self, context: ContextId, task: TaskId) -> Result<Vec<OpenInput>>;
    /// What was sent to this context under a JSON-RPC id.
    async fn delivered(&self, context: ContextId, id: DeliveryId) -> Result<Option<Delivered>>;
    /// Answers an open question of a live task under any id that was sent for it: the first one wins, and gets the task,
    /// which is `working` again if it was the last question. `None` if the id is unknown or it is late.
    async fn answer_input(
        &self,
        context: ContextId,
        id: DeliveryId,
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>>;
    /// The same for a question by its own id, whether or not it was ever sent.
    async fn answer_waiting(
        &self,
        context: ContextId,
        input: (TaskId, InputId),
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>>;
    /// The task and its open questions, the oldest first, as they stood at one moment; whether or not it has expired.
    async fn asking(&self, context: ContextId, task: TaskId) -> Result<Option<(Task, Vec<Waiting>)>>;
    /// Counts a bad answer to the last delivery of an open question, which no stream has any more and which will be sent
    /// under another id. Of an earlier delivery nothing is counted.
    async fn refuse_answer(&self, context: ContextId, id: DeliveryId) -> Result<()>;
    /// Keeps the client's own task for an open question, as the client sent it in answer to its last delivery; false if it
    /// is not open, or was sent under another id since.
    async fn set_client_task(&self, context: ContextId, id: DeliveryId, task: RawJson) -> Result<bool>;

    // --- rounds ----------------------------------------------------------------------------------------------

    /// A stored call, task or not, with its outcome or its open questions, and its round.
    async fn parked(&self, context: ContextId, id: TaskId) -> Result<Option<Parked>>;
    /// Opens a stored call's next round, until `expires`; gives the round that is open, if one is.
    async fn give_round(&self, context: ContextId, id: TaskId, expires: Timestamp, most: usize) -> Result<Given>;
    /// Closes a round: of several writes one gets true, and none once it has expired.
    async fn spend_round(&self, context: ContextId, spend: Spend) -> Result<bool>;
    /// Notes that a round was spent of which nothing else is stored, until `expires`: of several spenders one gets true.
    async fn spend_passed(
        &self,
        context: ContextId,
        id: TaskId,
        spender: LeaseToken,
        expires: Timestamp,
    ) -> Result<bool>;
    /// Whoever closed this round is still there; false if there is a later one, or none any more.
    async fn keep_round(&self, context: ContextId, state: RoundState, until: Timestamp) -> Result<bool>;
    /// The call has no rounds any more.
    async fn close_rounds(&self, context: ContextId, id: TaskId) -> Result<()>;
    /// Closes the rounds of at most `limit` running calls that expired before or at `now`, for good; answers of which, so that
    /// these are ended. One that still runs after a while is answered again. Forgets the others that expired.
    async fn give_up_rounds(&self, now: Timestamp, limit: u32) -> Result<Vec<TaskId>>;

    // --- streams ---------------------------------------------------------------------------------------------

    /// Gives an open question that no stream has to a stream, under an id that is new, or its last one and of this stream; false
    /// if another was first, or a client has a task of its own for it. For requests about that task, the stream that has the
    /// question may go on with a new id.
    async fn hold_input(&self, hold: Hold) -> Result<bool>;
    /// Gives up the client's own task for an open question that no stream has, so that it can be asked anew; false if it
    /// was sent under another id than `last` since.
    async fn forget_client_task(&self, input: InputId, last: DeliveryId) -> Result<bool>;
    /// Gives to a resumed stream, on this node now, the open questions that it had last, unless this node has them already.
    async fn rehold_stream(&self, context: ContextId, stream: StreamId, node: NodeId) -> Result<Vec<Delivered>>;
    /// The same for a stream of a node that has a new id: what that holds already is among them, what a third node has is not.
    async fn keep_stream(&self, context: ContextId, stream: StreamId, node: Renamed) -> Result<Vec<Delivered>>;
    /// The questions that streams of this node hold, each with its context and task.
    async fn holds_at(&self, node: NodeId) -> Result<Vec<(ContextId, TaskId, DeliveryId)>>;
    /// Takes from this node's streams the questions that they hold under these ids, so that others may have them.
    async fn let_go(&self, node: NodeId, deliveries: &[DeliveryId]) -> Result<()>;
    /// The same for all that dead and unknown nodes hold, GET streams of sessions too; answers how many questions.
    async fn let_go_dead_nodes(&self) -> Result<u64>;
    async fn signal(&self, signal: Signal) -> Result<()>;
    /// Deletes at most `limit` signals given before `before`.
    async fn reap_signals(&self, before: Timestamp, limit: u32) -> Result<u64>;

    // --- nodes and recovery ----------------------------------------------------------------------------------

    async fn register_node(&self, node: NodeId) -> Result<Timestamp>;
    /// Reads the database's clock inside the statement; conditional on not being dead. On a connection of its own.
    async fn heartbeat(&self, node: NodeId) -> Result<Beat>;
    /// Whether [`Self::declare_dead`] or the recovery of what dead and unknown nodes have may find something: one statement.
    async fn anything_lost(&self, judge: NodeId, age: Duration) -> Result<bool>;
    /// Declares dead every node but `judge` whose heartbeat is older than `age` by the database's clock.
    async fn declare_dead(&self, judge: NodeId, age: Duration) -> Result<Vec<NodeId>>;
    /// Whether there are nodes besides this one that nobody has declared dead.
    async fn has_other_nodes(&self, node: NodeId) -> Result<bool>;
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

    /// What goes first of each kind that ends by its age: one statement, which reads a row of each.
    async fn firsts(&self) -> Result<Firsts>;
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
    /// Notes that the client has said that it is initialized.
    async fn session_initialized(&self, context: ContextId, id: SessionId) -> Result<()>;
    /// Notes that a session's GET stream is there now; false if there is no such session.
    async fn open_session_stream(&self, context: ContextId, session: SessionId, stream: SessionStream) -> Result<bool>;
    /// Notes that it was closed, unless another one was opened since.
    async fn close_session_stream(&self, context: ContextId, session: SessionId, stream: StreamId) -> Result<()>;
    /// Where the GET streams of these sessions are; sessions that have ended are left out.
    async fn session_streams(&self, sessions: &[SessionId]) -> Result<Vec<StreamPlace>>;
    /// The sessions whose GET streams are on this node.
    async fn streams_at(&self, node: NodeId) -> Result<Vec<StreamPlace>>;
    async fn set_log_level(&self, context: ContextId, session: SessionId, level: &str) -> Result<()>;
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
    /// Deletes items by (upstream, kind, name). Answers the whole catalogue after.
    async fn drop_catalog(&self, items: Vec<CatalogItem>) -> Result<Vec<CatalogItem>>;
    /// Deletes the items of upstreams not in `keep` that no stored task names.
    async fn prune_catalog(&self, keep: &[String]) -> Result<u64>;

    // --- subscriptions ---------------------------------------------------------------------------------------

    /// Adds a subscription, or moves it to this node; false if there is no such session, or it has `most` others.
    async fn add_subscription(&self, context: ContextId, new: NewSubscription, most: u32) -> Result<bool>;
    /// The subscription that this took away.
    async fn end_subscription(
        &self,
        context: ContextId,
        session: SessionId,
        uri: &str,
    ) -> Result<Option<SubscriptionRow>>;
    async fn subscriptions(&self, context: ContextId, session: SessionId) -> Result<Vec<SubscriptionRow>>;
    /// The sessions for which this node follows a resource: those of one context, or of all.
    async fn subscribers(
        &self,
        node: NodeId,
        context: Option<ContextId>,
        upstream: &str,
        uri: &str,
    ) -> Result<Vec<(ContextId, SessionId)>>;
    /// Everything that this node follows, for sessions that have not ended.
    async fn subscriptions_at(&self, node: NodeId) -> Result<Vec<SubscriptionRow>>;
    /// What one node follows, another one does from now on; answers how many subscriptions.
    async fn move_subscriptions(&self, from: NodeId, to: NodeId) -> Result<u64>;
    /// Subscriptions that nodes followed which are dead or unknown.
    async fn orphaned_subscriptions(&self, limit: u32) -> Result<Vec<SubscriptionRow>>;
    /// Moves one to this node, unless another node was first.
    async fn take_subscription(&self, row: SubscriptionRow, node: NodeId) -> Result<bool>;
    /// Deletes the subscriptions of sessions that were reaped; those of one that is ended go with it.
    async fn reap_subscriptions(&self, limit: u32) -> Result<u64>;

    // --- operators -------------------------------------------------------------------------------------------

    /// Tasks of all contexts, newest first, expired ones too; without their outcomes, which may be large.
    async fn all_tasks(&self, after: Option<Position>, limit: u32) -> Result<Vec<TaskDetails>>;
    async fn details(&self, id: TaskId) -> Result<Option<TaskDetails>>;

    /// Whether the database answers now (for readiness).
    async fn ping(&self) -> Result<()>;
    /// Commits what is gathered and closes every connection.
    async fn close(&self);
}
