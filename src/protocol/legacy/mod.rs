//! The handshake era: revisions 2025-11-25 and 2025-06-18 (the same without tasks).
//!
//! Typed parameters are read from raw `params`, members that are not known are ignored (TASK-25); results are written
//! with a fixed order of keys around raw parts. Nothing here decides anything: the engine does.

pub mod initialize;
pub mod notify;
pub mod relay;
pub mod tasks;
pub mod tools;

use crate::domain::json::RawJson;
use crate::protocol::jsonrpc::{ErrorObject, INVALID_PARAMS, Id};
use crate::protocol::splice::member;

/// Names the task that a message is about (NOTE-13).
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// Text for the model while a task runs (TASK-04).
pub const IMMEDIATE_RESPONSE: &str = "io.modelcontextprotocol/model-immediate-response";
/// Where two clients look for the id of a new task (TASK-27).
pub const CREATED_TASK: &str = "modelcontextprotocol.io/task";
/// What a server of the next era says of itself in every result.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// A revision of the protocol that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// Without tasks.
    V2025_06_18,
    V2025_11_25,
}

impl Revision {
    /// The oldest first.
    pub const ALL: [Self; 2] = [Self::V2025_06_18, Self::V2025_11_25];
    pub const LATEST: Self = Self::V2025_11_25;

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// The revision of this name, if it is served.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == name)
    }

    /// What `initialize` answers to what was asked (CAP-01).
    #[must_use]
    pub fn negotiate(asked: &str) -> Self {
        Self::from_name(asked).unwrap_or(Self::LATEST)
    }

    /// Whether streams of this revision are primed and can be resumed (HTTP-09).
    #[must_use]
    pub const fn resumes(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }

    /// Whether the revision knows tasks at all.
    #[must_use]
    pub const fn has_tasks(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }
}

/// A request of this era. What is not in [`Self::ALL`] is not served (CAP-09).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    Initialize,
    Ping,
    ToolsList,
    ToolsCall,
    PromptsList,
    PromptsGet,
    ResourcesList,
    ResourceTemplatesList,
    ResourcesRead,
    ResourcesSubscribe,
    ResourcesUnsubscribe,
    Complete,
    SetLogLevel,
    TasksGet,
    TasksResult,
    TasksList,
    TasksCancel,
}

impl Method {
    pub const ALL: [Self; 17] = [
        Self::Initialize,
        Self::Ping,
        Self::ToolsList,
        Self::ToolsCall,
        Self::PromptsList,
        Self::PromptsGet,
        Self::ResourcesList,
        Self::ResourceTemplatesList,
        Self::ResourcesRead,
        Self::ResourcesSubscribe,
        Self::ResourcesUnsubscribe,
        Self::Complete,
        Self::SetLogLevel,
        Self::TasksGet,
        Self::TasksResult,
        Self::TasksList,
        Self::TasksCancel,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Ping => "ping",
            Self::ToolsList => "tools/list",
            Self::ToolsCall => "tools/call",
            Self::PromptsList => "prompts/list",
            Self::PromptsGet => "prompts/get",
            Self::ResourcesList => "resources/list",
            Self::ResourceTemplatesList => "resources/templates/list",
            Self::ResourcesRead => "resources/read",
            Self::ResourcesSubscribe => "resources/subscribe",
            Self::ResourcesUnsubscribe => "resources/unsubscribe",
            Self::Complete => "completion/complete",
            Self::SetLogLevel => "logging/setLevel",
            Self::TasksGet => "tasks/get",
            Self::TasksResult => "tasks/result",
            Self::TasksList => "tasks/list",
            Self::TasksCancel => "tasks/cancel",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }
}

/// A member of `params` is missing or has the wrong type; the message names it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid params: {0}")]
pub struct InvalidParams(pub String);

impl InvalidParams {
    fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<InvalidParams> for ErrorObject {
    fn from(error: InvalidParams) -> Self {
        Self::new(INVALID_PARAMS, error.to_string())
    }
}

/// Which request a `notifications/cancelled` is about; `None` if it names none.
#[must_use]
pub fn cancelled_request(params: Option<&RawJson>) -> Option<Id> {
    member(params?.as_str(), "requestId").and_then(Id::from_raw)
}

/// The `progressToken` of a request: a string or a number.
#[must_use]
pub fn progress_token(params: Option<&RawJson>) -> Option<RawJson> {
    let token = param(params, "_meta").and_then(|meta| member(meta, "progressToken"))?;
    let is_token = token.starts_with(['"', '-']) || token.starts_with(|c: char| c.is_ascii_digit());
    is_token.then(|| RawJson::trusted(token))
}

fn param<'a>(params: Option<&'a RawJson>, name: &str) -> Option<&'a str> {
    member(params?.as_str(), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: CAP-01
    #[test]
    fn the_asked_revision_is_served_or_the_latest() {
        assert_eq!(Revision::negotiate("2025-06-18"), Revision::V2025_06_18);
        for asked in ["2025-11-25", "2025-03-26", "2024-11-05", "2026-07-28", "2027-01-01", "foobar", ""] {
            assert_eq!(Revision::negotiate(asked), Revision::V2025_11_25, "{asked}");
        }
    }

    #[test]
    fn a_cancellation_names_its_request() {
        let params = RawJson::trusted(r#"{"reason":"x","requestId":"a"}"#);
        assert_eq!(cancelled_request(Some(&params)), Id::from_raw(r#""a""#));
        assert_eq!(cancelled_request(Some(&RawJson::trusted(r#"{"requestId":null}"#))), None);
        assert_eq!(cancelled_request(None), None);
    }
}
