//! Rounds that are their upstream's own (MOD-12): nothing is held for them. What the upstream asks goes to the caller under the
//! keys that it gave, its state inside ours; the retry is a new call of it. All that is stored is that a state was spent.

use super::Round;
use crate::domain::ids::{ContextId, LeaseToken, TaskId};
use crate::domain::input::Question;
use crate::domain::json::RawJson;
use crate::domain::round::{PassedState, RequestDigest, StateKey};
use crate::engine::{Caller, Engine, Refusal};

/// Bytes of an upstream's state that is carried in ours; one that is larger is kept here with the call.
const MOST_STATE: usize = 64 << 10;

/// What an upstream goes on with. It is spent when the request is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed(PassedState);

impl Passed {
    /// The JSON string that the upstream gave; `None` if it gave none.
    #[must_use]
    pub const fn state(&self) -> Option<&RawJson> {
        self.0.theirs.as_ref()
    }

    /// Whether this upstream may have the answers: the one that asked.
    pub(in crate::engine) fn is_for(&self, upstream: &str) -> bool {
        self.0.upstream == upstream
    }
}

impl Engine {
    /// The round with which a call ends; `None` if it is too large for that.
    pub(in crate::engine) fn pass_round(
        &self,
        context: ContextId,
        request: &RequestDigest,
        (upstream, asked): (&str, &[(String, Question)]),
        state: Option<&RawJson>,
    ) -> Option<Round> {
        if state.is_some_and(|state| state.len() > MOST_STATE) {
            return None;
        }
        let expires = self.clock.now() + self.rules.rounds.timeout;
        let (upstream, theirs) = (upstream.to_owned(), state.cloned());
        let passed = PassedState { id: TaskId::new(), expires, upstream, theirs };
        let state = self.parked.key.seal_passed(context, request, &passed);
        Some(Round { call: passed.id, state, questions: asked.to_vec() })
    }

    /// The state of such a round, for a request that is the same but for its answers. `None` if `state` is none of these: then it
    /// is for [`Self::retry`]. Nothing is spent before the request is run.
    ///
    /// # Errors
    /// [`Refusal::BadState`].
    pub fn open_passed(
        &self,
        caller: &Caller,
        request: &RequestDigest,
        state: &str,
    ) -> Result<Option<Passed>, Refusal> {
        if !StateKey::is_passed(state) {
            return Ok(None);
        }
        let opened = self.parked.key.open_passed(caller.auth.id(), request, state);
        let opened = opened.filter(|opened| opened.expires > self.clock.now());
        opened.map(|opened| Some(Passed(opened))).ok_or(Refusal::BadState)
    }

    /// Takes such a state back, once.
    ///
    /// # Errors
    /// [`Refusal::BadState`] if it was taken back before.
    pub async fn spend_passed(&self, caller: &Caller, passed: &Passed) -> Result<(), Refusal> {
        let PassedState { id, expires, .. } = passed.0;
        let is_spent = self.store.scoped(&caller.auth).spend_passed(id, LeaseToken::new(), expires).await?;
        is_spent.then_some(()).ok_or(Refusal::BadState)
    }
}
