//! Calls that are no tasks, of callers that take no requests: what such a call asks is its answer, and the same request brings
//! what was asked for (MOD-12). One answer that asks, and the retry that it waits for, is a round.
//!
//! The call runs on meanwhile, stored and parked: its row is claimed by the node that runs it, its questions are those of a
//! task's attempt, and no method shows it. So a retry is served by any node. The state of a round is authenticated
//! (`domain/round`), and the store takes each back once.

mod begin;
mod passed;
mod retry;
mod wait;

pub use passed::Passed;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::sleep;

use super::promote::CallHost;
use super::{Caller, Refusal};
use crate::domain::ids::TaskId;
use crate::domain::input::Question;
use crate::domain::json::RawJson;
use crate::domain::round::{RequestDigest, StateKey};
use crate::executor::Tool;
use crate::store::{StoreError, Waiting};

/// Pause between tries while the database is away.
const PAUSE: Duration = Duration::from_millis(500);

/// The configured limits of calls that ask by rounds.
#[derive(Debug, Clone)]
pub struct RoundRules {
    /// How long the retry may be away.
    pub timeout: Duration,
    /// Calls of one context that may wait for a retry at once.
    pub calls: usize,
}

/// An answer that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    pub(super) call: TaskId,
    /// To be given back with the answers.
    pub state: String,
    /// By the keys under which their answers are expected, the oldest first.
    pub questions: Vec<(String, Question)>,
}

/// What a request brings that was asked before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// The tool that is called, by its exposed name, if it is a call.
    pub tool: Option<String>,
    /// The idempotency key that it brings.
    pub key: Option<String>,
    pub state: String,
    /// By their keys, each as it arrived.
    pub responses: Vec<(String, RawJson)>,
}

/// What this node knows of parked calls.
pub(super) struct Rounds {
    key: StateKey,
    /// Whom the work of those that run here speaks to.
    hosts: Mutex<HashMap<TaskId, Weak<CallHost>>>,
}

impl Rounds {
    pub(super) fn new(key: StateKey) -> Self {
        Self { key, hosts: Mutex::default() }
    }

    pub(super) fn runs_here(&self, call: TaskId, host: &Arc<CallHost>) {
        self.lock().insert(call, Arc::downgrade(host));
    }

    pub(super) fn is_gone(&self, call: TaskId) {
        self.lock().remove(&call);
    }

    fn host(&self, call: TaskId) -> Option<Arc<CallHost>> {
        self.lock().get(&call).and_then(Weak::upgrade)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Weak<CallHost>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A parked call, and the request that waits for what it comes to.
pub(super) struct Waits {
    pub(super) caller: Caller,
    pub(super) call: TaskId,
    pub(super) request: RequestDigest,
    /// The round that this request came back from; 0 if it is the first.
    pub(super) round: u32,
    /// Set if the call is to become a task as soon as it has not asked anything for so long (EXT-11).
    pub(super) becomes: Option<Becomes>,
    /// Whether nobody else can come back to the call when this request leaves.
    pub(super) is_alone: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Becomes {
    pub(super) grace: Duration,
    pub(super) immediate_response: Option<String>,
}

impl Becomes {
    pub(super) fn of(tool: &Tool, default: Duration) -> Self {
        Self { grace: tool.grace.unwrap_or(default), immediate_response: tool.immediate_response.clone() }
    }
}

/// The questions by their keys: the names that the work's server gave them, as far as no earlier one of the call had it (the
/// store sees to that), else their ids.
fn keys(waiting: &[Waiting]) -> impl Iterator<Item = (String, &Waiting)> {
    waiting.iter().map(|open| (open.name.clone().unwrap_or_else(|| open.id.to_string()), open))
}

/// `None` if the database was away: whoever asked it does so again after the pause that this makes.
async fn unless_away<T>(asked: Result<T, StoreError>) -> Result<Option<T>, Refusal> {
    match asked {
        Ok(answer) => Ok(Some(answer)),
        Err(StoreError::Unavailable(why)) => {
            tracing::debug!(%why, "the database of a parked call is away; trying again");
            sleep(PAUSE).await;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
