//! Rounds that are their upstream's own (MOD-12): nothing is held for them. What the upstream asks goes to the caller under the
//! keys that it gave, its state inside ours; the retry is a new call of it. All that is stored is that a state was spent.

use std::sync::Arc;

use super::Round;
use crate::domain::ids::{ContextId, LeaseToken, TaskId};
use crate::domain::input::Question;
use crate::domain::json::RawJson;
use crate::domain::round::{PassedState, RequestDigest, StateKey};
use crate::engine::{Caller, Engine, Refusal};

/// Bytes of an upstream's state that is carried in ours; one that is larger is kept here with the call.
const MOST_STATE: usize = 64 << 10;

/// What an upstream goes on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// The JSON string that it gave; `None` if it gave none.
    pub state: Option<RawJson>,
}

impl Engine {
    /// The round with which a call ends; `None` if it is too large for that.
    pub(in crate::engine) fn pass_round(
        &self,
        context: ContextId,
        request: &RequestDigest,
        asked: &[(String, Question)],
        state: Option<&RawJson>,
    ) -> Option<Round> {
        if state.is_some_and(|state| state.len() > MOST_STATE) {
            return None;
        }
        let expires = self.clock.now() + self.rules.rounds.timeout;
        let passed = PassedState { id: TaskId::new(), expires, theirs: state.cloned() };
        let state = self.parked.key.seal_passed(context, request, &passed);
        Some(Round { call: passed.id, state, questions: asked.to_vec() })
    }

    /// Takes the state of such a round back, once, for a request that is the same but for its answers. `None` if `state` is
    /// none of these: then it is for [`Self::retry`].
    ///
    /// # Errors
    /// [`Refusal::BadState`], and then nothing was spent.
    pub async fn take_passed(
        self: &Arc<Self>,
        caller: &Caller,
        request: &RequestDigest,
        state: &str,
    ) -> Result<Option<Passed>, Refusal> {
        if !StateKey::is_passed(state) {
            return Ok(None);
        }
        self.refuse_while_draining()?;
        let opened = self.parked.key.open_passed(caller.auth.id(), request, state);
        let PassedState { id, expires, theirs } =
            opened.filter(|opened| opened.expires > self.clock.now()).ok_or(Refusal::BadState)?;
        if !self.store.scoped(&caller.auth).spend_passed(id, LeaseToken::new(), expires).await? {
            return Err(Refusal::BadState);
        }
        Ok(Some(Passed { state: theirs }))
    }
}
