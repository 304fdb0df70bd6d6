//! Requests that `notifications/cancelled` can reach: plain calls and waiting `tasks/result`, by session and id (CAP-10).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::domain::ids::SessionId;
use crate::protocol::jsonrpc::Id;

#[derive(Debug, Default)]
pub(in crate::http) struct InFlight {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A client may use one id twice; each use has a number of its own.
    requests: HashMap<(SessionId, Id), Vec<(u64, CancellationToken)>>,
    next: u64,
}

/// One request in flight, until it is dropped.
#[derive(Debug)]
pub(in crate::http) struct Entry {
    in_flight: Arc<InFlight>,
    key: (SessionId, Id),
    number: u64,
    stop: CancellationToken,
}

impl InFlight {
    pub(super) fn enter(self: &Arc<Self>, session: SessionId, id: Id) -> Entry {
        let stop = CancellationToken::new();
        let key = (session, id);
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.requests.entry(key.clone()).or_default().push((number, stop.clone()));
        drop(state);
        Entry { in_flight: Arc::clone(self), key, number, stop }
    }

    /// Stops what runs under this id in this session; unknown and finished ids change nothing.
    pub(super) fn cancel(&self, session: SessionId, id: Id) {
        if let Some(requests) = self.lock().requests.get(&(session, id)) {
            for (_, stop) in requests {
                stop.cancel();
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    pub(super) fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.in_flight.lock();
        if let Some(requests) = state.requests.get_mut(&self.key) {
            requests.retain(|(number, _)| *number != self.number);
            if requests.is_empty() {
                state.requests.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: &str) -> Id {
        Id::from_raw(raw).unwrap()
    }

    // The half of CAP-10 that happens on one node.
    #[test]
    fn a_cancellation_reaches_its_own_session_and_id_alone() {
        let in_flight = Arc::new(InFlight::default());
        let (mine, other) = (SessionId::new(), SessionId::new());
        let entry = in_flight.enter(mine, id("1"));
        let twin = in_flight.enter(mine, id("1"));
        let text = in_flight.enter(mine, id(r#""1""#));
        let strange = in_flight.enter(other, id("1"));
        in_flight.cancel(mine, id("2"));
        assert!(!entry.stop().is_cancelled());
        in_flight.cancel(mine, id("1"));
        assert!(entry.stop().is_cancelled() && twin.stop().is_cancelled());
        assert!(!text.stop().is_cancelled() && !strange.stop().is_cancelled());
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let in_flight = Arc::new(InFlight::default());
        let session = SessionId::new();
        let first = in_flight.enter(session, id("1"));
        let second = in_flight.enter(session, id("1"));
        drop(first);
        in_flight.cancel(session, id("1"));
        assert!(second.stop().is_cancelled());
        drop(second);
        assert!(in_flight.lock().requests.is_empty());
    }
}
