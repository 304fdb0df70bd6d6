//! What a request says of its answer.

use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::domain::round::RequestDigest;
use crate::engine::{Passed, Refusal};

/// How a request's answer may travel, and what may come before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The text of the request's JSON-RPC id.
    pub request: String,
    /// Whether the client takes messages before the answer.
    pub takes_events: bool,
    /// Whether it is a call of a tool.
    pub is_call: bool,
    /// Whether the work is stopped when the client leaves before its answer (MOD-10).
    pub ends_with_client: bool,
    /// What makes it the same request when it comes again with what its answer asked for; `None` if that may not ask
    /// (MOD-12).
    pub by_rounds: Option<RequestDigest>,
    /// Set if it comes back from a round that its upstream keeps itself. Spent when the request is run.
    pub passed: Option<Passed>,
    pub logs: Logs,
}

impl Asked {
    /// A request in a session of the handshake era: its work outlasts its client.
    #[must_use]
    pub const fn in_session(request: String, takes_events: bool, is_call: bool) -> Self {
        Self {
            request,
            takes_events,
            is_call,
            ends_with_client: false,
            by_rounds: None,
            passed: None,
            logs: Logs::OfSession,
        }
    }

    /// # Errors
    /// [`Refusal::BadState`] if it brings the answers to what another upstream has asked.
    pub(in crate::engine) fn may_be_passed_to(&self, upstream: &str) -> Result<(), Refusal> {
        let is_fine = self.passed.as_ref().is_none_or(|passed| passed.is_for(upstream));
        is_fine.then_some(()).ok_or(Refusal::BadState)
    }
}

/// Which log messages of the work go to the client, before its answer (MOD-14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logs {
    /// Those that its session did not rule out.
    OfSession,
    /// Those of this level and above.
    From(LogLevel),
    None,
}

impl Logs {
    /// Whether a message with these params goes to the client; `of_session` says what its session admits.
    pub(super) fn admit(self, params: &RawJson, of_session: impl FnOnce() -> bool) -> bool {
        match self {
            Self::OfSession => of_session(),
            Self::From(lowest) => crate::engine::logging::level_of(params).is_some_and(|level| level >= lowest),
            Self::None => false,
        }
    }
}
