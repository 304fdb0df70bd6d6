//! The use cases. Every execution has one door: requests, the runner, cancellation, the reaper and recovery change a task
//! through this engine, by the rules of `domain/transition`, as conditional writes of the store.
//!
//! Knows nothing of HTTP, of JSON-RPC envelopes or of SQL. It takes the time from its [`Clock`] and passes it on.
//!
//! Background work ([`Engine::start`]) is made of steps that tests call one by one: [`Engine::beat_once`],
//! [`Engine::claim_once`], [`Engine::watch_once`], [`Engine::reap_once`].

mod call;
mod cancel;
mod create;
mod membership;
mod read;
mod reaper;
mod recovery;
mod runner;
mod wait;

pub use membership::BeatOutcome;
pub use reaper::Reaped;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::domain::clock::{Clock, Timestamp};
use crate::domain::context::AuthContext;
use crate::domain::cursor::CursorKey;
use crate::domain::ids::SessionId;
use crate::domain::json::RawJson;
use crate::domain::outcome::Outcome;
use crate::domain::retention::TtlRules;
use crate::domain::task::{Status, Task};
use crate::executor::{Catalogue, Executor, Tool};
use crate::lifecycle;
use crate::store::{Store, StoreError};

use membership::Membership;
use runner::Runner;
use wait::Waiters;

/// The configured limits of the engine.
#[derive(Debug, Clone)]
pub struct EngineRules {
    pub ttl: TtlRules,
    /// Offered in task responses where the tool has no interval of its own.
    pub poll_interval: Duration,
    /// Tasks on a page of `tasks/list`.
    pub page_size: u32,
    /// Tasks that run on this node at once.
    pub slots: usize,
    /// How long one attempt may run where the tool says nothing.
    pub run_limit: Duration,
    /// How long one attempt may run whatever the tool says.
    pub hard_run_limit: Duration,
    /// Attempts allowed to tools whose restart policy is `retry`, and to calls that were never dispatched.
    pub attempts: u32,
    /// Bytes of a call's arguments.
    pub arguments_limit: usize,
    /// Bytes of a status message.
    pub message_limit: usize,
    /// `tasks/result` calls that may wait, and plain calls that may run, of one context on this node at once.
    pub waiters_per_context: usize,
    /// Legacy sessions unused for longer than this are forgotten.
    pub session_idle: Duration,
}

/// Who asks, and what its session negotiated.
#[derive(Debug, Clone)]
pub struct Caller {
    pub auth: AuthContext,
    pub session: Option<SessionId>,
    /// What the client declared at `initialize`, an object.
    pub capabilities: RawJson,
    /// Whether task augmentation was offered to this caller: its revision has it and its tenant may use it.
    pub tasks_enabled: bool,
}

/// A `tools/call` as it arrived.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The tool's exposed name.
    pub name: String,
    pub params: RawJson,
    /// The `arguments` member, `{}` if absent.
    pub arguments: RawJson,
    pub progress_token: Option<RawJson>,
}

/// A new task, and the text that its maker may show meanwhile (TASK-04).
#[derive(Debug, Clone)]
pub struct Created {
    pub task: Task,
    pub immediate_response: Option<String>,
}

/// How a plain call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Called {
    Outcome(Outcome),
    /// Its caller stopped it: there is nobody to answer.
    Stopped,
}

/// One page of a list.
#[derive(Debug, Clone)]
pub struct Page {
    pub tasks: Vec<Task>,
    /// The cursor of the next page, present exactly when there is one (TASK-17).
    pub next: Option<String>,
}

/// Why the engine did not do what was asked. Nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// Missing, expired and foreign tasks are all the same (TASK-11).
    #[error("task not found")]
    UnknownTask,
    #[error("the task has already ended")]
    AlreadyEnded(Status),
    #[error("unknown cursor")]
    BadCursor,
    #[error("unknown tool: {0}")]
    UnknownTool(String),
    #[error("the tool {tool} does not run as a task; call it without the task field")]
    TaskForbidden { tool: String },
    #[error("the tool {tool} runs only as a task; add the task field to the call")]
    TaskRequired { tool: String },
    #[error("invalid arguments for the tool {tool}: {message}")]
    InvalidArguments { tool: String, message: String },
    #[error("the arguments have {bytes} bytes, more than the limit of {limit} bytes")]
    ArgumentsTooLarge { bytes: usize, limit: usize },
    #[error("the limit {limit} of {most} is reached")]
    LimitReached { limit: &'static str, most: u64, retry_after: Duration },
    #[error("the service is shutting down")]
    ShuttingDown,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What an engine is made of.
pub struct EngineParts {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub executor: Arc<dyn Executor>,
    pub catalogue: Arc<dyn Catalogue>,
    pub rules: EngineRules,
}

/// See the module's documentation.
pub struct Engine {
    store: Store,
    clock: Arc<dyn Clock>,
    executor: Arc<dyn Executor>,
    catalogue: Arc<dyn Catalogue>,
    rules: EngineRules,
    cursors: CursorKey,
    membership: Membership,
    runner: Runner,
    waiters: Arc<Waiters>,
    draining: AtomicBool,
    stopped: CancellationToken,
}

impl Engine {
    /// Joins the nodes of the store and takes its clock's first measurement. Nothing runs in the background before
    /// [`Self::start`].
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub async fn join(parts: EngineParts) -> Result<Arc<Self>, StoreError> {
        let EngineParts { store, clock, executor, catalogue, rules } = parts;
        let cursors = CursorKey::new(store.system().server_key("cursor").await?);
        let membership = Membership::join(&store.system(), &*clock).await?;
        Ok(Arc::new(Self {
            cursors,
            membership,
            runner: Runner::new(rules.slots),
            waiters: Arc::new(Waiters::new(rules.waiters_per_context)),
            draining: AtomicBool::new(false),
            stopped: CancellationToken::new(),
            store,
            clock,
            executor,
            catalogue,
            rules,
        }))
    }

    /// Starts heartbeats, claiming, watching and reaping; they end with [`Self::drain`].
    pub fn start(self: &Arc<Self>) {
        lifecycle::spawn("heartbeat", Arc::clone(self).heartbeat_loop());
        lifecycle::spawn("claim", Arc::clone(self).claim_loop());
        lifecycle::spawn("watch", Arc::clone(self).watch_loop());
        lifecycle::spawn("reap", Arc::clone(self).reap_loop());
    }

    /// Stops taking work, hands back what may be repeated, gives the rest `period` to end, and leaves the nodes (KEEP-10).
    /// Work that is still running then ends with an unknown outcome.
    pub async fn drain(self: &Arc<Self>, period: Duration) {
        self.draining.store(true, Ordering::SeqCst);
        self.drain_runner(period).await;
        self.stopped.cancel();
        self.leave().await;
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    #[must_use]
    pub const fn ttl_rules(&self) -> &TtlRules {
        &self.rules.ttl
    }

    /// The tools that are offered now, in their stable order.
    #[must_use]
    pub fn tools(&self) -> Arc<Vec<Arc<Tool>>> {
        self.catalogue.tools()
    }

    #[must_use]
    pub fn tool(&self, exposed: &str) -> Option<Arc<Tool>> {
        self.catalogue.tool(exposed)
    }

    fn refuse_while_draining(&self) -> Result<(), Refusal> {
        if self.is_draining() { Err(Refusal::ShuttingDown) } else { Ok(()) }
    }

    /// The run limit of one attempt: the tool's, else the default, never above the hard limit (EXEC-04).
    fn run_limit(&self, tool: &Tool) -> Duration {
        tool.run_limit.unwrap_or(self.rules.run_limit).min(self.rules.hard_run_limit)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("node", &self.membership.node()).finish_non_exhaustive()
    }
}
