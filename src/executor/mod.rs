//! Where work runs.
//!
//! An [`Executor`] runs one attempt of one call and says how it ended. It knows nothing of the store, of retries or of
//! clients. To add one: a file or folder here, a section in the configuration, a row in the executor contract test.

pub mod shelf;
pub mod upstream;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::domain::ids::ContextId;
use crate::domain::input::{Answer, Question};
use crate::domain::json::RawJson;
use crate::domain::lease::RestartPolicy;
use crate::domain::log_level::LogLevel;
use crate::domain::mode::TaskMode;
use crate::domain::outcome::Outcome;
use crate::domain::work::UpstreamTask;
use crate::protocol::modern::param_headers::ParamHeader;

pub use shelf::{Clash, Prompt, Reference, Resource, Served, Shelf, Template};

/// One attempt of one call.
#[derive(Debug, Clone)]
pub struct Call {
    pub context: ContextId,
    pub upstream: String,
    /// The tool's name at its upstream.
    pub upstream_tool: String,
    /// The caller's `params` as they arrived; the executor puts in the upstream's tool name, takes `task` out, and
    /// replaces the progress token with its own.
    pub params: RawJson,
    /// What the caller declared that it serves, an object: an upstream whose every request stands alone is told of it.
    pub capabilities: RawJson,
    /// 1 for the first run.
    pub attempt: u32,
    /// Whether the caller waits for a stored task. An upstream that offers tasks of its own is then asked for one, so
    /// that the work outlives this process.
    pub is_task: bool,
    /// Set if an attempt before this one handed the call over: nothing is sent anew, the upstream's task is followed.
    pub resume: Option<UpstreamTask>,
}

/// What the work says while it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// `notifications/progress`; only values above the last one are sent. `params` are those that arrived, with our
    /// progress token; a huge message is cut in them, too.
    Progress { progress: f64, total: Option<f64>, message: Option<String>, params: RawJson },
    /// `notifications/message`.
    Log { params: RawJson },
    /// `notifications/elicitation/complete`.
    ElicitationComplete { params: RawJson },
    /// The call cannot be sent yet: its server is starting, or busy. Told every few seconds while that lasts.
    Waiting,
}

/// The caller of this call cannot be asked, or not any more, or the call has ended: another call that may have asked is asked instead. The
/// error is what the work gets if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unasked(pub Answer);

/// Whom running work talks to: the engine, on behalf of the caller.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Takes an event or drops it; never waits.
    fn tell(&self, event: Event);

    /// Asks the caller and waits for the answer, or for the error that stands for it. Dropping the future withdraws the
    /// question.
    ///
    /// # Errors
    /// [`Unasked`] if no answer will come for this call, whatever the question.
    async fn ask(&self, question: Question) -> Result<Answer, Unasked>;

    /// The same for a question to which the work's server gave a name of its own: a caller that is asked by rounds is asked
    /// under it (MOD-12).
    ///
    /// # Errors
    /// As [`Self::ask`].
    async fn ask_named(&self, _name: &str, question: Question) -> Result<Answer, Unasked> {
        self.ask(question).await
    }

    /// Takes what the work asks at this upstream before it can be done as its end: the caller comes back with a new call, which brings the
    /// answers and `state`, the JSON string with which its server goes on (MOD-12). False if the caller is to be asked while
    /// the work waits.
    async fn takes_round(&self, _upstream: &str, _asked: &[(String, Question)], _state: Option<&RawJson>) -> bool {
        false
    }

    /// Whether the call is stored by now, with the task that it was handed over to: that one is left to a later attempt when
    /// this one is dropped.
    fn is_kept(&self) -> bool {
        false
    }

    /// Stores that the upstream runs the call as a task of its own, before that task is first asked for (KEEP-07).
    /// False if this attempt does not hold the task any more: it must not go on.
    async fn handed_over(&self, to: UpstreamTask) -> bool;
}

/// What an upstream says outside of calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    pub upstream: String,
    /// Whose link it came over; `None` if the link is everybody's: then it may be about anybody's work.
    pub context: Option<ContextId>,
    pub said: Said,
}

/// The `params` of a notification, as they arrived.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// `notifications/message` while no call was in progress.
    Log(RawJson),
    /// `notifications/resources/updated`.
    ResourceUpdated(RawJson),
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// The work answered.
    Answered(Outcome),
    /// Trying again is safe: nothing was sent to the work, or the upstream runs it as a task of its own that can be followed
    /// again.
    NotDispatched { detail: String },
    /// The call was sent and its answer will never come: the outcome is unknown.
    Lost { detail: String },
    /// `stop` was cancelled before an answer came; the work was told, if it could be.
    Stopped,
    /// The work ended with questions, which the host has taken ([`Host::takes_round`]).
    Asked,
}

#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Runs one attempt to its end. When `stop` is cancelled it tells the work (for an MCP upstream
    /// `notifications/cancelled` with its request id, `tasks/cancel` for a task of its own) and returns at once.
    ///
    /// Dropping the future counts as `stop`, with one exception: a stored call ([`Call::is_task`]) that was handed over runs on
    /// at its upstream, to be resumed.
    async fn run(&self, call: Call, host: Arc<dyn Host>, stop: CancellationToken) -> Attempt;

    /// Whether calls of this upstream can be run here at all: other nodes may be configured otherwise.
    fn serves(&self, _upstream: &str) -> bool {
        true
    }

    /// Passes a request on that is no call of a tool, over the link that calls of its context use; ends as [`Self::run`].
    async fn relay(&self, relay: Relay, _host: Arc<dyn Host>, _stop: CancellationToken) -> Attempt {
        Attempt::NotDispatched { detail: format!("{} is not served", relay.wanted.method()) }
    }

    /// From now on the context's links carry log messages of this level, at least until they end. A level above one that
    /// was asked for before changes nothing: others may rely on that one.
    fn listen_from(&self, _context: ContextId, _level: LogLevel) {}

    /// What upstreams say outside of calls, from now on: each by a queue of its own, so that a noisy one costs the others
    /// nothing.
    fn notices(&self) -> Vec<broadcast::Receiver<Notice>> {
        Vec::new()
    }

    /// Whether the subscription was made and not given up: its link has it again after each of its starts.
    fn follows(&self, _subscription: &Subscription) -> bool {
        true
    }

    /// Subscriptions at upstreams besides these are given up.
    fn keep_subscriptions(&self, _wanted: &HashSet<Subscription>) {}
}

/// A request to be passed on.
#[derive(Debug, Clone)]
pub struct Relay {
    pub context: ContextId,
    /// Who is asked, one after the other, until one has what is wanted. What a single one answers is the answer.
    pub upstreams: Vec<String>,
    pub wanted: Wanted,
    /// The caller's `params` as they arrived; the executor puts in the upstream's own names and replaces a progress token
    /// with its own.
    pub params: RawJson,
    /// What the caller declared that it serves, an object.
    pub capabilities: RawJson,
}

/// What a request that is passed on is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A prompt, by its name at the upstream.
    Prompt(String),
    /// The contents of a resource, by its URI.
    Contents(String),
    /// Completions for an argument of a prompt, by its name at the upstream.
    PromptArgument(String),
    /// Completions for a variable of a template.
    TemplateArgument,
    /// News of a resource, by its URI.
    Subscription(String),
    /// No more news of it.
    EndOfSubscription(String),
}

impl Wanted {
    /// The request.
    #[must_use]
    pub const fn method(&self) -> &'static str {
        match self {
            Self::Prompt(_) => "prompts/get",
            Self::Contents(_) => "resources/read",
            Self::PromptArgument(_) | Self::TemplateArgument => "completion/complete",
            Self::Subscription(_) => "resources/subscribe",
            Self::EndOfSubscription(_) => "resources/unsubscribe",
        }
    }
}

/// What a context follows at an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subscription {
    pub context: ContextId,
    pub upstream: String,
    pub uri: String,
}

/// A tool as it is offered.
#[derive(Debug)]
pub struct Tool {
    /// The name that clients use; unique and host-safe.
    pub exposed: String,
    pub upstream: String,
    pub upstream_tool: String,
    /// The upstream's definition as it arrived, still with the upstream's own name and `execution`.
    pub definition: RawJson,
    pub mode: TaskMode,
    /// Whether what it asks first is asked before there is a task (EXT-11).
    pub ask_first: bool,
    pub restart: RestartPolicy,
    /// How long one attempt may run; `None` leaves it to the service's default.
    pub run_limit: Option<Duration>,
    /// The most of its tasks that run at once, on all nodes together.
    pub slots: Option<u64>,
    /// Granted where the caller asks for no TTL; `None` leaves it to the service's default.
    pub ttl: Option<Duration>,
    pub poll_interval: Option<Duration>,
    /// How long a call may run before it becomes a task, where the service decides that; `None` leaves it to the service's
    /// default.
    pub grace: Option<Duration>,
    /// How long its work waits for one answer; `None` leaves it to the service's default.
    pub input_timeout: Option<Duration>,
    /// Text for `io.modelcontextprotocol/model-immediate-response` (TASK-04).
    pub immediate_response: Option<String>,
    pub arguments: ArgumentCheck,
    /// The arguments that headers of modern requests repeat (MOD-11).
    pub param_headers: Vec<ParamHeader>,
}

impl Tool {
    /// Whether a call that is to be a task at once is not one before its questions were answered.
    #[must_use]
    pub const fn asks_first(&self) -> bool {
        self.ask_first && matches!(self.mode, TaskMode::Eager | TaskMode::Always)
    }
}

/// A tool's input schema, ready to check arguments (EXEC-10, EXEC-24).
pub struct ArgumentCheck(Arc<Check>);

type Check = dyn Fn(&RawJson) -> Result<(), String> + Send + Sync;

impl ArgumentCheck {
    #[must_use]
    pub fn new(check: impl Fn(&RawJson) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    /// Whether `arguments` (an object) fit the schema; may take milliseconds for large ones.
    ///
    /// # Errors
    /// A message that says where and why they do not, or that the schema itself cannot be used.
    pub fn check(&self, arguments: &RawJson) -> Result<(), String> {
        (self.0)(arguments)
    }
}

impl std::fmt::Debug for ArgumentCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ArgumentCheck")
    }
}

/// What is offered now, in its stable order.
pub trait Catalogue: Send + Sync + 'static {
    fn tools(&self) -> Arc<Vec<Arc<Tool>>>;
    fn tool(&self, exposed: &str) -> Option<Arc<Tool>>;

    /// What is offered besides tools.
    fn shelf(&self) -> Arc<Shelf> {
        Arc::default()
    }

    /// Counts the changes of each list.
    fn changes(&self) -> watch::Receiver<Changes> {
        watch::Sender::new(Changes::default()).subscribe()
    }
}

/// How often each list has changed (EXEC-03).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    pub tools: u64,
    pub prompts: u64,
    /// Of resources, or of their templates.
    pub resources: u64,
}
