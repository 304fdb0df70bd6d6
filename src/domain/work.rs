//! A call on its way to becoming a task, and a stored call on its way to being run.

use std::time::Duration;

use super::clock::Timestamp;
use super::ids::{ContextId, LeaseToken, NodeId, SessionId, TaskId};
use super::json::RawJson;
use super::lease::{Lease, RestartPolicy};
use super::retention::Ttl;

/// Everything a task needs for the rest of its life, fixed at creation: recovery asks no upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    pub id: TaskId,
    /// The legacy session that made it, if there is one.
    pub session: Option<SessionId>,
    /// The tool's exposed name.
    pub tool: String,
    pub upstream: String,
    /// The tool's name at its upstream.
    pub upstream_tool: String,
    /// The call's `params` as they arrived.
    pub params: RawJson,
    pub message: String,
    pub created: Timestamp,
    pub granted: Ttl,
    pub hard_end: Timestamp,
    pub poll_interval_ms: i64,
    pub restart: RestartPolicy,
    pub attempts_allowed: u32,
    pub run_limit: Duration,
    /// What the client that made it declared, an object.
    pub capabilities: RawJson,
    /// The `progressToken` that its maker gave: a JSON string or number.
    pub progress_token: Option<RawJson>,
    /// Set if the creating node runs it at once: the row is committed already claimed, as attempt 1.
    pub claim: Option<(NodeId, LeaseToken)>,
}

/// A stored call as its runner needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    pub context: ContextId,
    pub tool: String,
    pub upstream: String,
    pub upstream_tool: String,
    pub params: RawJson,
    pub created: Timestamp,
    pub granted: Ttl,
    pub hard_end: Timestamp,
    pub restart: RestartPolicy,
    pub attempts_allowed: u32,
    pub run_limit: Duration,
}

/// A claimed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub lease: Lease,
    pub work: Work,
}
