//! The use cases. Every execution has one door: requests, the runner, cancellation, the reaper and recovery change a task
//! through this engine, by the rules of `domain/transition`, as conditional writes of the store.
//!
//! Knows nothing of HTTP, of JSON-RPC envelopes or of SQL. It takes the time from its [`Clock`] and passes it on.
//!
//! Background work ([`Engine::start`]) is made of steps that tests call one by one: [`Engine::beat_once`],
//! [`Engine::recover_once`], [`Engine::claim_once`], [`Engine::watch_once`], [`Engine::reap_once`].

mod call;
mod cancel;
mod client_tasks;
mod create;
mod input;
mod keyed;
mod logging;
mod look;
mod membership;
mod outcomes;
mod parked;
mod promote;
mod queue;
mod read;
mod reaper;
mod recovery;
mod relay;
mod runner;
mod streams;
mod subscriptions;
mod wait;

pub use look::Looked;
pub use membership::BeatOutcome;
pub use outcomes::SharedOutcome;
pub use parked::{Passed, Retry, Round, RoundRules};
pub use promote::Directed;
pub use queue::{QueueRules, TenantRules};
pub use reaper::Reaped;
pub use relay::Errand;
pub use streams::{Asked, Delivery, Item, Listening, Logs, News, Resume, Step, Stream, Wants};
pub use wait::{Answered, Place};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::clock::{Clock, Timestamp};
use crate::domain::context::AuthContext;
use crate::domain::cursor::CursorKey;
use crate::domain::event_id::EventKey;
use crate::domain::ids::{NodeId, SessionId};
use crate::domain::json::RawJson;
use crate::domain::outcome::Outcome;
use crate::domain::retention::TtlRules;
use crate::domain::round::StateKey;
use crate::domain::task::{Status, Task};
use crate::executor::{Catalogue, Executor, Tool};
pub use crate::executor::{Prompt, Reference, Resource, Served, Shelf, Template};
use crate::lifecycle;
use crate::store::{Store, StoreError};

use input::Inputs;
use membership::Membership;
use outcomes::Outcomes;
use parked::Rounds;
use queue::Backlog;
use runner::Runner;
use streams::{Hinted, Streams};
use subscriptions::Turns;
use wait::Waiters;

/// The configured limits of the engine.
#[derive(Debug, Clone)]
pub struct EngineRules {
    pub ttl: TtlRules,
    /// How long a call may run before it becomes a task, where the service decides that and the tool says nothing; zero is at
    /// once.
    pub grace: Duration,
    /// Offered in task responses where the tool has no interval of its own.
    pub poll_interval: Duration,
    /// Tasks on a page of `tasks/list`.
    pub page_size: u32,
    /// Tasks that run on this node at once.
    pub slots: usize,
    /// Tasks that may wait for input without a slot; more keep theirs.
    pub asking: usize,
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
    /// Requests of one context that may wait on this node at once, or be sent a large outcome: `tasks/result`, and calls that
    /// are no tasks.
    pub waiters_per_context: usize,
    /// Resources that one session, or one stream of news, may be subscribed to.
    pub subscriptions_per_session: u32,
    /// The least time between two notes of progress of one call that is no task; those of a task are at least 500 ms apart.
    pub progress_interval: Duration,
    /// How long the caller of a call that is no task may be away before it counts as gone.
    pub caller_grace: Duration,
    /// Legacy sessions unused for longer than this are forgotten.
    pub session_idle: Duration,
    pub queue: QueueRules,
    pub input: InputRules,
    pub rounds: RoundRules,
}

/// The configured limits of what running work may ask.
#[derive(Debug, Clone)]
pub struct InputRules {
    /// How long the work waits for one answer where its tool says nothing; `None` leaves it to the run limit.
    pub timeout: Option<Duration>,
    /// Bytes of a question's parameters.
    pub question_limit: usize,
    /// Bytes of an answer.
    pub answer_limit: usize,
    /// Unanswered questions of one task.
    pub open: usize,
    /// Questions of one task in its life.
    pub questions: usize,
    /// How often a question is asked again after an answer that does not fit.
    pub refused: u32,
}

/// Who asks, and what its session negotiated or its request said.
#[derive(Debug, Clone)]
pub struct Caller {
    pub auth: AuthContext,
    /// `None` for a caller whose every request stands alone.
    pub session: Option<SessionId>,
    /// What the client declared, an object.
    pub capabilities: RawJson,
    /// Whether the client has said that it is initialized: before that it is asked nothing (HTTP-16).
    pub initialized: bool,
    /// Whether requests can be sent to the client while it waits for an answer.
    pub takes_requests: bool,
    /// Whether this caller may have tasks: its tenant may use them, its revision has them or its request declared them.
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
    /// The same key of the same caller is the same call (KEEP-12).
    pub key: Option<String>,
}

/// A new task, and the text that its maker may show meanwhile (TASK-04).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    pub task: Task,
    pub immediate_response: Option<String>,
}

/// How a plain call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Called {
    Outcome(Outcome),
    /// It became a task, which goes on.
    Promoted(Box<Created>),
    /// It goes on when the same request brings what it asks.
    Asks(Box<Round>),
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
    #[error("session not found")]
    UnknownSession,
    #[error("the task has already ended")]
    AlreadyEnded(Status),
    #[error("unknown cursor")]
    BadCursor,
    #[error("unknown tool: {0}")]
    UnknownTool(String),
    #[error("unknown prompt: {0}")]
    UnknownPrompt(String),
    #[error("resource not found")]
    UnknownResource(String),
    #[error("the uri has {bytes} bytes, more than the limit of {limit} bytes")]
    UriTooLong { bytes: usize, limit: usize },
    #[error("the tool {tool} does not run as a task; call it without the task field")]
    TaskForbidden { tool: String },
    #[error("the tool {tool} runs only as a task; add the task field to the call")]
    TaskRequired { tool: String },
    #[error("invalid answer to the input request {key}: {message}")]
    InvalidAnswer { key: String, message: String },
    #[error("invalid arguments for the tool {tool}: {message}")]
    InvalidArguments { tool: String, message: String },
    #[error("the arguments have {bytes} bytes, more than the limit of {limit} bytes")]
    ArgumentsTooLarge { bytes: usize, limit: usize },
    /// Forged, changed, given back before, expired, another caller's or another request's: all the same (MOD-12).
    #[error(
        "requestState is not one that this request may give back: it was not given out for it, was given back before, or \
         has expired"
    )]
    BadState,
    #[error("the idempotency key was given to another call")]
    KeyTaken,
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
    backlog: Backlog,
    waiters: Arc<Waiters>,
    outcomes: Arc<Outcomes>,
    inputs: Inputs,
    parked: Rounds,
    streams: Streams,
    hinted: Hinted,
    turns: Turns,
    draining: AtomicBool,
    stopped: CancellationToken,
    /// Calls that are no tasks have no more time.
    cut: CancellationToken,
    /// Calls that are no tasks.
    calls: TaskTracker,
    /// Nobody is served here any more.
    closed: CancellationToken,
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
        let events = EventKey::new(store.system().server_key("event").await?);
        let states = StateKey::new(store.system().server_key("state").await?);
        let membership = Membership::join(&store.system(), &*clock).await?;
        Ok(Arc::new(Self {
            cursors,
            membership,
            runner: Runner::new(rules.slots, rules.asking),
            backlog: Backlog::default(),
            waiters: Arc::new(Waiters::new(rules.waiters_per_context)),
            outcomes: Arc::default(),
            inputs: Inputs::default(),
            parked: Rounds::new(states),
            streams: Streams::new(events, Arc::clone(&clock)),
            hinted: Hinted::default(),
            turns: Turns::default(),
            draining: AtomicBool::new(false),
            stopped: CancellationToken::new(),
            cut: CancellationToken::new(),
            calls: TaskTracker::new(),
            closed: CancellationToken::new(),
            store,
            clock,
            executor,
            catalogue,
            rules,
        }))
    }

    /// Starts heartbeats, recovery, claiming, watching and reaping; they end with [`Self::drain`],
    /// and what hears other nodes and watches for their signals with [`Self::close`].
    pub fn start(self: &Arc<Self>) {
        lifecycle::spawn("heartbeat", Arc::clone(self).heartbeat_loop());
        lifecycle::spawn("recover", Arc::clone(self).recover_loop());
        lifecycle::spawn("claim", Arc::clone(self).claim_loop());
        lifecycle::spawn("watch", Arc::clone(self).watch_loop());
        lifecycle::spawn("hints", Arc::clone(self).hints_loop());
        lifecycle::spawn("lists", Arc::clone(self).lists_loop());
        lifecycle::spawn("reap", Arc::clone(self).reap_loop());
        lifecycle::spawn("subscriptions", Arc::clone(self).tend_subscriptions_loop());
        for notices in self.executor.notices() {
            lifecycle::spawn("notices", Arc::clone(self).notices_loop(notices));
        }
    }

    /// Stops taking work, hands back what may be repeated, gives the rest `period` to end, and leaves the nodes (KEEP-10).
    /// Work that is still running then ends with an unknown outcome.
    pub async fn drain(self: &Arc<Self>, period: Duration) {
        self.draining.store(true, Ordering::SeqCst);
        self.drain_runner(period).await;
        self.stopped.cancel();
        self.leave().await;
    }

    /// Completes when no call that is no task runs here. To be called after [`Self::drain`]; one whose arguments
    /// were being checked meanwhile may still begin.
    pub async fn calls_over(&self) {
        self.calls.close();
        self.calls.wait().await;
    }

    /// Stops the calls that are no tasks and still run here: their upstreams are told, and each ends with an unknown outcome. To
    /// be called after [`Self::drain`], when they have had their time.
    pub fn cut_calls(&self) {
        self.cut.cancel();
    }

    /// To be called after [`Self::drain`], when no request is served any more: until then calls that are no tasks hear what
    /// other nodes have for them.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Whether this node has reported lately that it lives.
    #[must_use]
    pub fn reports(&self) -> bool {
        self.membership.reports(self.clock.boot())
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Which start of the service this is.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.membership.node()
    }

    /// How many more tasks could run here now; less than none while answered ones run beyond the slots.
    #[must_use]
    pub fn free_slots(&self) -> i64 {
        self.runner.free_slots()
    }

    /// How many claims this node has asked the database for.
    #[must_use]
    pub fn claims(&self) -> u64 {
        self.runner.claims()
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    #[must_use]
    pub const fn ttl_rules(&self) -> &TtlRules {
        &self.rules.ttl
    }

    /// The most resources that one session or stream may be subscribed to.
    #[must_use]
    pub const fn most_subscriptions(&self) -> u32 {
        self.rules.subscriptions_per_session
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

    /// What authenticates the ids of events.
    #[must_use]
    pub const fn event_key(&self) -> &EventKey {
        &self.streams.key
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
