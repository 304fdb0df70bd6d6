//! The questions of one call. Each is put before it is withdrawn, and withdrawn once: by whoever takes it from those that are
//! open, all under the call's lock.

use tokio::sync::oneshot;

use super::{PlainCall, PlainHost};
use crate::domain::input::{Answer, Question};
use crate::engine::streams::delivery::Delivery;

const NOT_OPEN: &str = "this question is not open any more";

/// Why a question is not asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotPut {
    /// The caller takes no messages, is gone, or does not read.
    Unheard,
    /// As many are open as may be.
    Full,
}

/// A question that somebody waits for; dropped while it is open, it is withdrawn.
pub(super) struct Open<'a> {
    pub(super) host: &'a PlainHost,
    pub(super) id: String,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.host.engine.streams.plain.lock().questions.remove(&self.id);
        self.host.call.let_go(&self.id);
    }
}

impl PlainCall {
    /// Asks the client, unless `most` are open.
    pub(super) fn put(
        &self,
        id: &str,
        question: &Question,
        answer: oneshot::Sender<Answer>,
        most: usize,
    ) -> Result<(), NotPut> {
        let mut state = self.lock();
        if state.is_gone || state.is_over {
            return Err(NotPut::Unheard);
        }
        if state.questions.len() >= most {
            return Err(NotPut::Full);
        }
        let (id, question) = (id.to_owned(), question.clone());
        if !self.push(Delivery::Ask { id: id.clone(), task: None, question, as_task: None }) {
            return Err(NotPut::Unheard);
        }
        state.questions.insert(id, answer);
        Ok(())
    }

    /// Nobody waits for the answer any more.
    pub(super) fn let_go(&self, id: &str) {
        let mut state = self.lock();
        if state.questions.remove(id).is_some() {
            self.withdraw(id.to_owned());
        }
    }

    /// The call or its session has ended: a client that goes on with the stream is not left with a question that nobody waits
    /// for.
    pub(super) fn withdraw_questions(&self) {
        let mut state = self.lock();
        state.is_over = true;
        for (id, _waiting) in std::mem::take(&mut state.questions) {
            self.withdraw(id);
        }
    }

    fn withdraw(&self, id: String) {
        if !self.line.take_back(&id) {
            self.push(Delivery::Withdrawn { id, task: None, reason: NOT_OPEN });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex, OnceLock};
    use std::time::Duration;

    use super::super::{CallState, Line};
    use super::*;
    use crate::domain::capabilities::ClientCapabilities;
    use crate::domain::clock::SystemClock;
    use crate::domain::ids::{ContextId, StreamId};
    use crate::domain::input::InputKind;
    use crate::engine::streams::line::Read;

    fn call() -> (PlainCall, u64) {
        let line = std::sync::Arc::new(Line::new(0, true));
        let reader = line.attach(None);
        let call = PlainCall {
            id: StreamId::new(),
            context: ContextId::new(),
            session: None,
            request: "1".to_owned(),
            is_call: true,
            capabilities: ClientCapabilities::default(),
            is_initialized: std::sync::atomic::AtomicBool::new(true),
            token: None,
            clock: SystemClock::new(),
            interval: Duration::ZERO,
            line,
            state: Mutex::new(CallState { reader, ..CallState::default() }),
            answer: OnceLock::new(),
            end: None,
            logs: crate::engine::Logs::OfSession,
            takes_requests: true,
        };
        (call, reader)
    }

    fn put(call: &PlainCall, id: &str, most: usize) -> Result<oneshot::Receiver<Answer>, NotPut> {
        let (answer, answered) = oneshot::channel();
        call.put(id, &Question { kind: InputKind::Roots, params: None }, answer, most).map(|()| answered)
    }

    /// What the client reads next.
    fn read(call: &PlainCall, reader: u64) -> Option<Delivery> {
        match call.line.try_next(reader)? {
            Read::Message { delivery, .. } => Some(delivery),
            Read::End => None,
        }
    }

    // req: INPUT-12
    #[test]
    fn a_question_is_withdrawn_once_whoever_lets_go_of_it() {
        let (call, reader) = call();
        let waiting = ["a", "b", "c"].map(|id| put(&call, id, 3).unwrap());
        assert_eq!(put(&call, "d", 3).unwrap_err(), NotPut::Full);
        let ids = [(); 2].map(|()| match read(&call, reader) {
            Some(Delivery::Ask { id, .. }) => id,
            other => panic!("a question: {other:?}"),
        });
        assert_eq!(ids, ["a", "b"]);
        call.let_go("a");
        call.withdraw_questions();
        assert!(waiting.into_iter().all(|mut waiting| waiting.try_recv().is_err()));
        // The work notices that nobody answers, before the stream is closed.
        for id in ["a", "b", "c"] {
            call.let_go(id);
        }
        for expected in ["a", "b"] {
            assert!(matches!(read(&call, reader), Some(Delivery::Withdrawn { id, .. }) if id == expected));
        }
        assert_eq!(read(&call, reader), None, "what was not shown is not withdrawn");
        assert_eq!(put(&call, "e", 3).unwrap_err(), NotPut::Unheard);
    }

    // req: INPUT-12
    #[test]
    fn no_question_comes_after_its_withdrawal() {
        for round in 0..2_000 {
            let ((call, reader), both) = (call(), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    both.wait();
                    let _answered = put(&call, "q", 1);
                });
                both.wait();
                call.withdraw_questions();
            });
            assert_eq!(read(&call, reader), None, "round {round}: nothing is left to read of it");
        }
    }
}
