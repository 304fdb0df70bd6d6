//! Legacy sessions: what `initialize` negotiated, bound to the caller.

use super::clock::Timestamp;
use super::ids::{ContextId, SessionId};
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
}
