//! Legacy sessions: what `initialize` negotiated, bound to the caller.

use super::clock::Timestamp;
use super::ids::{ContextId, NodeId, SessionId, StreamId};
use super::json::RawJson;

/// A session of the legacy era (HTTP-07): valid on every node and after restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub context: ContextId,
    /// The negotiated protocol revision, such as `2025-11-25`.
    pub revision: String,
    /// The client's declared capabilities, an object.
    pub capabilities: RawJson,
    pub created: Timestamp,
    /// Written at most every ten minutes.
    pub last_used: Timestamp,
    /// Whether the client has said `notifications/initialized`: before that it is asked nothing (HTTP-16).
    pub initialized: bool,
    /// Where its GET stream is, while one is open.
    pub stream: Option<SessionStream>,
    /// The lowest level of log messages that it wants, as `logging/setLevel` named it.
    pub log_level: Option<String>,
}

/// Where a session's GET stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionStream {
    /// The node's own id for it: another one each time that the first stream of the session is opened there.
    pub id: StreamId,
    pub node: NodeId,
}
