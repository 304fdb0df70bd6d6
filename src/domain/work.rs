//! A call on its way to becoming a task, and a stored call on its way to being run.

use std::time::Duration;

use super::clock::Timestamp;
use super::ids::{ContextId, LeaseToken, NodeId, SessionId, TaskId};
use super::json::RawJson;
use super::lease::{Lease, RestartPolicy};
use super::queue::Counted;
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
    /// Set if its caller gave it a key (KEEP-12), or comes back to it by the same request (MOD-12).
    pub keyed: Option<CallKey>,
    pub counted: Counted,
    /// Set if the creating node runs it at once: the row is committed already claimed, as attempt 1.
    pub claim: Option<(NodeId, LeaseToken)>,
}

/// What makes a repeated call the same call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallKey {
    /// As its caller gave it; unique within the context. `None` if it gave none.
    pub key: Option<String>,
    /// Of the tool's name and the arguments.
    pub digest: String,
    /// Whether it is stored without being a task.
    pub parked: bool,
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
    /// The legacy session that made it, if there is one.
    pub session: Option<SessionId>,
    /// What the client that made it declared, an object (INPUT-07).
    pub capabilities: RawJson,
}

/// A call that its upstream runs as a task of its own (KEEP-07). Never shown to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTask {
    /// The upstream's id for it as the JSON string that it sent, with its quotes and escapes: opaque.
    pub id: String,
    /// The session at the upstream in which it was made, if its transport has them; for one on standard streams
    /// [`PROCESS_SESSION`] and a random name of the process.
    pub session: Option<String>,
    /// The protocol revision that was spoken.
    pub revision: String,
}

/// How the sessions of upstreams begin that are our own child processes.
pub const PROCESS_SESSION: &str = "process:";

impl UpstreamTask {
    /// Whether it goes on when our process ends, so that another one can follow it.
    #[must_use]
    pub fn outlives_us(&self) -> bool {
        !self.session.as_deref().is_some_and(|session| session.starts_with(PROCESS_SESSION))
    }
}

/// A claimed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub lease: Lease,
    pub work: Work,
    /// Set if an attempt before this one handed the call over: it is followed, not made again.
    pub handed_over: Option<UpstreamTask>,
}
