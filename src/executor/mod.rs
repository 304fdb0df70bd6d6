//! Where work runs.
//!
//! An [`Executor`] runs one attempt of one call and says how it ended. It knows nothing of the store, of retries or of
//! clients. To add one: a file or folder here, a section in the configuration, a row in the executor contract test.

pub mod upstream;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::domain::ids::ContextId;
use crate::domain::json::RawJson;
use crate::domain::lease::RestartPolicy;
use crate::domain::mode::TaskMode;
use crate::domain::outcome::Outcome;

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
    /// 1 for the first run.
    pub attempt: u32,
}

/// What the work says while it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// `notifications/progress`; only values above the last one are sent.
    Progress { progress: f64, total: Option<f64>, message: Option<String> },
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// The work answered.
    Answered(Outcome),
    /// Nothing was sent to the work: trying again is safe.
    NotDispatched { detail: String },
    /// The call was sent and its answer will never come: the outcome is unknown.
    Lost { detail: String },
    /// `stop` was cancelled before an answer came; the work was told, if it could be.
    Stopped,
}

#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Runs one attempt to its end. Events that nobody takes in time are dropped, never waited for. When `stop` is
    /// cancelled it tells the work (for an MCP upstream `notifications/cancelled` with its request id) and returns at once.
    ///
    /// Dropping the future counts as `stop`.
    async fn run(&self, call: Call, events: mpsc::Sender<Event>, stop: CancellationToken) -> Attempt;
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
    pub restart: RestartPolicy,
    /// How long one attempt may run; `None` leaves it to the service's default.
    pub run_limit: Option<Duration>,
    /// Granted where the caller asks for no TTL; `None` leaves it to the service's default.
    pub ttl: Option<Duration>,
    pub poll_interval: Option<Duration>,
    /// Text for `io.modelcontextprotocol/model-immediate-response` (TASK-04).
    pub immediate_response: Option<String>,
    pub arguments: ArgumentCheck,
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

/// The tools that are offered now, in their stable order.
pub trait Catalogue: Send + Sync + 'static {
    fn tools(&self) -> Arc<Vec<Arc<Tool>>>;
    fn tool(&self, exposed: &str) -> Option<Arc<Tool>>;
}
