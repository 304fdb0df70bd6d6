//! Requests that `notifications/cancelled` can reach: plain calls and waiting `tasks/result`, by session and the text of
//! their JSON-RPC id (CAP-10).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::domain::clock::Timestamp;
use crate::domain::ids::{SessionId, StreamId};
use crate::engine::Engine;

/// How long the streams of cancelled requests are remembered, and how many: a client comes back at once, or not at all.
const REMEMBERED: Duration = Duration::from_secs(60);
const MOST_REMEMBERED: usize = 1_000;

#[derive(Debug, Default)]
pub(in crate::engine) struct InFlight {
    state: Mutex<State>,
    /// Streams that ended because their requests were cancelled, the newest last.
    cancelled: Mutex<VecDeque<(StreamId, Timestamp)>>,
}

#[derive(Debug, Default)]
struct State {
    /// A client may use one id twice; each use has a number of its own.
    requests: HashMap<(SessionId, String), Vec<(u64, CancellationToken)>>,
    next: u64,
}

/// One request in flight, until it is dropped.
#[derive(Debug)]
pub(in crate::engine) struct Entry {
    in_flight: Arc<InFlight>,
    key: (SessionId, String),
    number: u64,
    stop: CancellationToken,
}

impl InFlight {
    /// Without a session nobody can cancel it.
    pub(in crate::engine) fn enter(self: &Arc<Self>, session: Option<SessionId>, id: &str) -> Entry {
        let stop = CancellationToken::new();
        let key = (session.unwrap_or_else(SessionId::new), id.to_owned());
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.requests.entry(key.clone()).or_default().push((number, stop.clone()));
        drop(state);
        Entry { in_flight: Arc::clone(self), key, number, stop }
    }

    /// Stops what runs under this id in this session; unknown and finished ids change nothing. Whether there was something.
    pub(in crate::engine) fn cancel(&self, session: SessionId, id: &str) -> bool {
        let state = self.lock();
        let requests = state.requests.get(&(session, id.to_owned()));
        for (_, stop) in requests.into_iter().flatten() {
            stop.cancel();
        }
        requests.is_some()
    }

    /// This stream ended because its request was cancelled.
    pub(super) fn was_cancelled(&self, stream: StreamId, now: Timestamp) {
        let mut cancelled = self.cancelled.lock().unwrap_or_else(PoisonError::into_inner);
        // It is said by whoever notices first, and again by who drops the stream.
        cancelled.retain(|(known, at)| *known != stream && now.since(*at) < REMEMBERED);
        if cancelled.len() >= MOST_REMEMBERED {
            cancelled.pop_front();
        }
        cancelled.push_back((stream, now));
    }

    fn is_cancelled(&self, stream: StreamId, now: Timestamp) -> bool {
        let cancelled = self.cancelled.lock().unwrap_or_else(PoisonError::into_inner);
        cancelled.iter().any(|(known, at)| *known == stream && now.since(*at) < REMEMBERED)
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.lock().requests.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Whether the request of this stream was cancelled at this node a short time ago: it is not answered any more (CAP-10).
    #[must_use]
    pub fn is_cancelled(&self, stream: StreamId) -> bool {
        self.streams.in_flight.is_cancelled(stream, self.now())
    }
}

impl Entry {
    pub(in crate::engine) fn stop(&self) -> CancellationToken {
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

    // The half of CAP-10 that happens on one node.
    #[test]
    fn a_cancellation_reaches_its_own_session_and_id_alone() {
        let in_flight = Arc::new(InFlight::default());
        let (mine, other) = (SessionId::new(), SessionId::new());
        let entry = in_flight.enter(Some(mine), "1");
        let twin = in_flight.enter(Some(mine), "1");
        let text = in_flight.enter(Some(mine), r#""1""#);
        let strange = in_flight.enter(Some(other), "1");
        in_flight.cancel(mine, "2");
        assert!(!entry.stop().is_cancelled());
        in_flight.cancel(mine, "1");
        assert!(entry.stop().is_cancelled() && twin.stop().is_cancelled());
        assert!(!text.stop().is_cancelled() && !strange.stop().is_cancelled());
    }

    #[test]
    fn streams_of_cancelled_requests_are_remembered_for_a_while_and_within_bounds() {
        let in_flight = InFlight::default();
        let at = |seconds| Timestamp::from_micros(0) + Duration::from_secs(seconds);
        let streams: Vec<_> = (0..=MOST_REMEMBERED).map(|_| StreamId::new()).collect();
        for stream in &streams {
            in_flight.was_cancelled(*stream, at(1));
        }
        let remembered = |now| streams.iter().filter(|stream| in_flight.is_cancelled(**stream, now)).count();
        assert_eq!(remembered(at(2)), MOST_REMEMBERED);
        assert!(!in_flight.is_cancelled(streams[0], at(2)), "the oldest made room");
        in_flight.was_cancelled(streams[MOST_REMEMBERED], at(2));
        assert_eq!(remembered(at(2)), MOST_REMEMBERED, "what is said twice takes one place");
        assert_eq!(remembered(at(61)), 1, "by its age alone, whether or not another was cancelled since");
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let in_flight = Arc::new(InFlight::default());
        let session = SessionId::new();
        let first = in_flight.enter(Some(session), "1");
        let second = in_flight.enter(Some(session), "1");
        drop(first);
        in_flight.cancel(session, "1");
        assert!(second.stop().is_cancelled());
        drop(second);
        assert!(in_flight.lock().requests.is_empty());
    }
}
