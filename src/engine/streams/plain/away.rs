//! The calls that a reader may come back to, and the bounds of what is kept for those who are away.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::PlainCall;
use crate::domain::ids::{ContextId, StreamId};

/// Ended calls of one context whose caller is away, and the bytes of their answers.
const MOST_UNREAD: Sum = Sum { calls: 256, bytes: 32 << 20 };
/// The same of all contexts.
const MOST_UNREAD_IN_ALL: Sum = Sum { calls: 4096, bytes: 64 << 20 };
/// The calls of this node that a reader may come back to.
#[derive(Default)]
pub(in crate::engine::streams) struct PlainCalls {
    state: Mutex<CallsState>,
}

#[derive(Default)]
pub(super) struct CallsState {
    pub(super) calls: HashMap<StreamId, Arc<PlainCall>>,
    pub(super) questions: HashMap<String, Arc<PlainCall>>,
    /// Ended, with nobody there: the oldest first.
    unread: VecDeque<Unread>,
    /// Calls whose reader has left, with that reader, and when they are given up: the first one first.
    away: VecDeque<(Instant, StreamId, u64)>,
    /// Whether somebody sees to those.
    is_swept: bool,
}

struct Unread {
    id: StreamId,
    context: ContextId,
    bytes: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    calls: usize,
    bytes: usize,
}

impl Sum {
    const fn exceeds(self, most: Self) -> bool {
        self.calls > most.calls || self.bytes > most.bytes
    }

    const fn and(self, bytes: usize) -> Self {
        Self { calls: self.calls + 1, bytes: self.bytes + bytes }
    }
}

impl CallsState {
    /// The one to go, if too much was kept with the newest one, which is this context's: the context that has too much, or
    /// else the one that has the most, gives its oldest.
    fn surplus(&self, context: ContextId) -> Option<usize> {
        let mut sums = HashMap::<ContextId, Sum>::new();
        let mut all = Sum::default();
        for unread in &self.unread {
            let sum = sums.entry(unread.context).or_default();
            (*sum, all) = (sum.and(unread.bytes), all.and(unread.bytes));
        }
        let its_own = sums.get(&context).copied().unwrap_or_default();
        let from = if its_own.exceeds(MOST_UNREAD) {
            context
        } else if all.calls > MOST_UNREAD_IN_ALL.calls {
            *sums.iter().max_by_key(|(_, sum)| sum.calls)?.0
        } else if all.bytes > MOST_UNREAD_IN_ALL.bytes {
            *sums.iter().max_by_key(|(_, sum)| sum.bytes)?.0
        } else {
            return None;
        };
        self.unread.iter().position(|unread| unread.context == from)
    }
}

impl PlainCalls {
    pub(super) fn lock(&self) -> MutexGuard<'_, CallsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self, id: StreamId) {
        let mut state = self.lock();
        state.calls.remove(&id);
        state.unread.retain(|unread| unread.id != id);
    }

    /// Its reader is back.
    pub(super) fn is_read(&self, id: StreamId) {
        self.lock().unread.retain(|unread| unread.id != id);
    }

    /// Keeps the answer of a call whose caller is away, at the cost of those of the same context that are away the longest.
    pub(super) fn keep_unread(&self, call: &PlainCall, bytes: usize) {
        let (id, context) = (call.id, call.context);
        let mut state = self.lock();
        if !state.calls.contains_key(&id) {
            return;
        }
        state.unread.retain(|unread| unread.id != id);
        state.unread.push_back(Unread { id, context, bytes });
        while let Some(unread) = state.surplus(context).and_then(|at| state.unread.remove(at)) {
            state.calls.remove(&unread.id);
        }
    }

    /// Notes when a call is given up whose reader has left; whether the caller has to see to those that are away.
    pub(super) fn left(&self, id: StreamId, reader: u64, until: Instant) -> bool {
        let mut state = self.lock();
        state.away.push_back((until, id, reader));
        !std::mem::replace(&mut state.is_swept, true)
    }

    /// When the next one is to be given up; `None` if nobody is away, which ends the sweep.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let mut state = self.lock();
        let next = state.away.front().map(|(until, ..)| *until);
        state.is_swept = next.is_some();
        next
    }

    /// Those that nobody came back to.
    pub(super) fn take_due(&self, now: Instant) -> Vec<Arc<PlainCall>> {
        let mut state = self.lock();
        let due = state.away.iter().take_while(|(until, ..)| *until <= now).count();
        let due: Vec<_> = state.away.drain(..due).collect();
        let calls = due.into_iter().filter_map(|(_, id, reader)| Some((Arc::clone(state.calls.get(&id)?), reader)));
        let is_still_away = |call: &PlainCall, reader: u64| {
            let state = call.lock();
            state.is_away && state.reader == reader
        };
        calls.filter(|(call, reader)| is_still_away(call, *reader)).map(|(call, _)| call).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{OnceLock, Weak};
    use std::time::Duration;

    use super::super::{CallState, Line};
    use super::*;
    use crate::domain::capabilities::ClientCapabilities;
    use crate::domain::clock::SystemClock;

    const MIB: usize = 1 << 20;

    /// A call that has ended and that nobody holds but the calls of its node.
    fn ended(calls: &PlainCalls, context: ContextId) -> Weak<PlainCall> {
        let call = Arc::new(PlainCall {
            id: StreamId::new(),
            context,
            session: None,
            request: "1".to_owned(),
            is_call: true,
            end: None,
            logs: super::super::Logs::OfSession,
            takes_requests: true,
            capabilities: ClientCapabilities::default(),
            is_initialized: std::sync::atomic::AtomicBool::new(true),
            token: None,
            clock: SystemClock::new(),
            interval: Duration::ZERO,
            line: Arc::new(Line::new(0, true)),
            state: Mutex::new(CallState { is_away: true, ..CallState::default() }),
            answer: OnceLock::new(),
        });
        calls.lock().calls.insert(call.id, Arc::clone(&call));
        Arc::downgrade(&call)
    }

    fn keep(calls: &PlainCalls, call: &Weak<PlainCall>, bytes: usize) {
        calls.keep_unread(&call.upgrade().unwrap(), bytes);
    }

    fn alive(calls: &[Weak<PlainCall>]) -> usize {
        calls.iter().filter(|call| call.strong_count() > 0).count()
    }

    #[test]
    fn answers_that_are_not_read_are_bounded_for_each_context() {
        let (calls, [chatty, quiet]) = (PlainCalls::default(), [ContextId::new(), ContextId::new()]);
        let one = ended(&calls, quiet);
        keep(&calls, &one, 16 * MIB);
        let many: Vec<_> = (0..500).map(|_| ended(&calls, chatty)).collect();
        for call in &many {
            keep(&calls, call, MIB);
        }
        assert_eq!(alive(&many), 32, "what is over the bound is let go of at once");
        assert_eq!(alive(&many[500 - 32..]), 32, "the oldest goes first");
        let small: Vec<_> = (0..500).map(|_| ended(&calls, chatty)).collect();
        for call in &small {
            keep(&calls, call, 1);
        }
        assert_eq!(alive(&small), MOST_UNREAD.calls);
        assert_eq!(one.strong_count(), 1, "others' are left alone");
        // Over the bound of all, who has the most gives.
        let others: Vec<_> = (0..63).map(|_| ended(&calls, ContextId::new())).collect();
        for call in &others {
            keep(&calls, call, MIB);
        }
        assert_eq!((one.strong_count(), alive(&others)), (0, 63));
    }

    #[test]
    fn a_caller_that_leaves_again_is_counted_once() {
        let (calls, context) = (PlainCalls::default(), ContextId::new());
        let all = [ended(&calls, context), ended(&calls, context)];
        for _ in 0..10 {
            keep(&calls, &all[0], 16 * MIB);
            keep(&calls, &all[1], 16 * MIB);
        }
        assert_eq!(alive(&all), 2);
        calls.is_read(all[0].upgrade().unwrap().id);
        assert_eq!(calls.lock().unread.len(), 1);
    }

    #[tokio::test]
    async fn a_call_is_given_up_when_its_last_reader_has_been_away_for_long() {
        let (calls, now) = (PlainCalls::default(), Instant::now());
        let all = [ended(&calls, ContextId::new()), ended(&calls, ContextId::new())];
        let [stays, back] = all.each_ref().map(|call| call.upgrade().unwrap());
        assert!(calls.left(stays.id, 0, now) && !calls.left(back.id, 0, now), "one sees to all");
        back.lock().reader = 1;
        assert_eq!(calls.next_due(), Some(now));
        let due: Vec<_> = calls.take_due(now).iter().map(|call| call.id).collect();
        assert_eq!(due, [stays.id]);
        assert_eq!(calls.next_due(), None);
        assert!(calls.left(back.id, 1, now), "the sweep had come to its end");
    }
}
