//! What becomes of a session's calls when its client is initialized, and when it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{PlainCall, PlainCalls};
use crate::domain::ids::SessionId;
use crate::engine::Engine;

impl PlainCalls {
    fn of_session(&self, session: SessionId) -> Vec<Arc<PlainCall>> {
        let state = self.lock();
        state.calls.values().filter(|call| call.session == Some(session)).cloned().collect()
    }

    /// The session's client is initialized.
    pub(in crate::engine::streams) fn initialized(&self, session: SessionId) {
        for call in self.of_session(session) {
            call.is_initialized.store(true, Ordering::Relaxed);
        }
    }

    /// What its calls have asked gets an error; their answers may still be read.
    pub(in crate::engine::streams) fn end_session(&self, session: SessionId) {
        for call in self.of_session(session) {
            call.withdraw_questions();
        }
    }
}

impl Engine {
    /// Whether the call's client may be asked: it may have said so since, at any node.
    pub(super) async fn is_call_initialized(&self, call: &PlainCall) -> bool {
        if !call.is_initialized.load(Ordering::Relaxed)
            && let Some(session) = call.session
            && let Ok(Some(session)) = self.store.system().session(call.context, session).await
            && session.initialized
        {
            call.is_initialized.store(true, Ordering::Relaxed);
        }
        call.is_initialized.load(Ordering::Relaxed)
    }
}
