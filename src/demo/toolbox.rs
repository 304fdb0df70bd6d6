//! What a tool of the demo server is given and what it gives, whatever the era of its client.

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Which family of revisions a message is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// 2025-11-25 and 2025-06-18: sessions, and requests to the client.
    Legacy,
    /// 2026-07-28: each request stands alone, and questions are answered by a retry.
    Modern,
}

/// How calls of a tool run, where the server runs tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Never as a task.
    Never,
    /// As a task where the client asks for one; a client of the modern era cannot.
    Optional,
    /// As a task wherever the client takes one.
    Eager,
    /// As a task only.
    Always,
}

/// A set of tools.
#[async_trait]
pub(super) trait Toolbox: Send + Sync + 'static {
    /// The definitions for `tools/list`: JSON objects, each on one line.
    fn definitions(&self) -> Vec<String>;

    /// Runs a call to its end; dropped when the client cancels. `None` if there is no such tool.
    async fn call(&self, name: &str, arguments: &str, caller: &dyn Caller) -> Option<Reply>;

    /// What the server declares, beside its tasks.
    fn capabilities(&self) -> Value {
        json!({ "tools": {} })
    }

    /// Answers a request that is about no tool; `None` if the method is unknown.
    fn request(&self, _era: Era, _method: &str, _params: &str) -> Option<Reply> {
        None
    }

    /// How this call runs.
    fn mode(&self, _name: &str, _arguments: &str) -> Mode {
        Mode::Optional
    }

    /// Whether this tool asks before its work begins; it then says so by [`Caller::begin`].
    fn asks_first(&self, _name: &str) -> bool {
        false
    }

    /// Whether calls of this tool go on, and answer, after a cancellation.
    fn is_deaf(&self, _name: &str) -> bool {
        false
    }
}

/// The client's side of one running call.
#[async_trait]
pub(super) trait Caller: Send + Sync {
    fn era(&self) -> Era;

    /// Cancelled when the client cancels the call or goes away.
    fn stop(&self) -> &CancellationToken;

    /// Whether the client declared a capability such as `elicitation`.
    fn declared(&self, capability: &str) -> bool;

    /// Tells of progress if the call asked for it.
    async fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>);

    /// Sends a log message if the client wants those of this level.
    async fn log(&self, level: &str, text: &str);

    /// Tells whoever subscribed to the resource that it changed.
    async fn resource_updated(&self, uri: &str);

    /// Tells whoever listens that the list of `tools`, `prompts` or `resources` changed.
    async fn list_changed(&self, kind: &str);

    /// Asks the client; its result, or `None` if it gives none.
    async fn ask(&self, question: Question) -> Option<String>;

    /// Says that the questions before the work are answered. In the modern era a call that is to become a task does so here.
    async fn begin(&self) {}

    /// Tells that what a URL was opened for is done; the modern era has no such message.
    async fn elicitation_complete(&self, id: &str);
}

/// A question to the client.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// Its name within the call.
    pub(super) key: String,
    pub(super) method: String,
    /// The text of an object without `_meta`.
    pub(super) params: String,
    /// Whether its answer counts only together with the state that goes out with the question (modern plain calls).
    pub(super) needs_state: bool,
}

impl Question {
    pub(super) fn new(key: impl Into<String>, method: &str, params: String) -> Self {
        Self { key: key.into(), method: method.to_owned(), params, needs_state: true }
    }

    /// The capability that a client must have declared to be asked this.
    pub(super) fn capability(&self) -> &str {
        self.method.split('/').next().unwrap_or_default()
    }
}

/// What a call answers: JSON text on one line.
#[derive(Debug)]
pub(super) enum Reply {
    Result(String),
    Error(String),
    /// The client would have to declare these capabilities.
    Missing(Value),
}

impl Reply {
    /// A result with one text block.
    pub(super) fn text(text: &str) -> Self {
        Self::Result(json!({ "content": [{ "type": "text", "text": text }] }).to_string())
    }

    /// A tool error with one text block.
    pub(super) fn tool_error(text: &str) -> Self {
        Self::Result(json!({ "content": [{ "type": "text", "text": text }], "isError": true }).to_string())
    }

    pub(super) fn error(code: i64, message: &str) -> Self {
        Self::Error(json!({ "code": code, "message": message }).to_string())
    }
}
