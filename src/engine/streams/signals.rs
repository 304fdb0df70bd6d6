//! Hints from node to node, as rows that each node's round finds. One that is lost costs a wait.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Streams;
use super::delivery::Delivery;
use crate::domain::client_task::ClientTask;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, InputId, SessionId, StreamId};
use crate::domain::input::Answer;
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::engine::Engine;
use crate::engine::input::{PAUSE, TRIES};
use crate::lifecycle;
use crate::store::{Signal, SignalKind, StoreError};

/// How far back each round looks again: a signal is dated before it is committed.
pub(super) const OVERLAP: Duration = Duration::from_secs(5);

/// A longer JSON-RPC id is not carried to other nodes.
const MOST_REQUEST_BYTES: usize = 512;
/// What one context may have written for other nodes in a second.
const MOST_GIVEN: u32 = 200;
const MOST_GIVEN_BYTES: usize = 4 << 20;

/// Sessions that were heard to have ended, for as long as they may be remembered elsewhere in this process.
#[derive(Default)]
pub(super) struct Ended(Mutex<LastEnded>);

#[derive(Default)]
struct LastEnded {
    sessions: HashSet<SessionId>,
    /// The same, in the order in which they were heard of.
    order: VecDeque<(Timestamp, SessionId)>,
}

/// Longer than a session is remembered without a look at its row.
const ENDED_KEPT: Duration = Duration::from_secs(60);

impl Ended {
    pub(super) fn add(&self, session: SessionId, now: Timestamp) {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, old)) = ended.order.pop_front_if(|(heard, _)| now.since(*heard) >= ENDED_KEPT) {
            ended.sessions.remove(&old);
        }
        if ended.sessions.insert(session) {
            ended.order.push_back((now, session));
        }
    }

    fn has(&self, session: SessionId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sessions.contains(&session)
    }
}

/// The signals that were heard within the time that rounds look back.
#[derive(Default)]
pub(super) struct Heard(Mutex<HashMap<Uuid, Timestamp>>);

impl Heard {
    /// Whether it is new.
    fn hear(&self, signal: &Signal) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(signal.id, signal.created).is_none()
    }

    /// Those dated at or after this: they need not be read again.
    pub(super) fn since(&self, since: Timestamp) -> Vec<Uuid> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.iter().filter(|(_, created)| **created >= since).map(|(id, _)| *id).collect()
    }

    fn forget(&self, before: Timestamp) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, created| *created >= before);
    }
}

/// How much each context has had written for other nodes in this second.
#[derive(Default)]
pub(super) struct Rates(Mutex<Given>);

#[derive(Default)]
struct Given {
    second: i64,
    signals_and_bytes: HashMap<ContextId, (u32, usize)>,
}

impl Rates {
    /// Whether the context may have so many more bytes written now. A single signal alone may be larger: its own limit
    /// bounds it.
    fn admits(&self, context: ContextId, bytes: usize, now: Timestamp) -> bool {
        let second = now.micros().div_euclid(1_000_000);
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rates.second != second {
            *rates = Given { second, signals_and_bytes: HashMap::new() };
        }
        let (given, given_bytes) = rates.signals_and_bytes.entry(context).or_default();
        let is_admitted = *given == 0 || (*given < MOST_GIVEN && *given_bytes + bytes <= MOST_GIVEN_BYTES);
        if is_admitted {
            (*given, *given_bytes) = (*given + 1, *given_bytes + bytes);
        }
        is_admitted
    }
}

impl Engine {
    /// Writes a signal in the background. What carries text of others is dropped over a bound. While the database is away it
    /// is tried again, unless others look by themselves for what it hints at, or it is no more so.
    pub(in crate::engine) fn signal(
        self: &Arc<Self>,
        kind: SignalKind,
        context: ContextId,
        session: Option<SessionId>,
        subject: String,
        payload: Option<RawJson>,
    ) {
        let signal = self.new_signal(kind, context, session, subject, payload);
        let bytes = bytes_of(&signal);
        let is_ours = matches!(kind, SignalKind::SessionEnded | SignalKind::SessionStream);
        if !is_ours && !self.streams.rates.admits(context, bytes, self.now()) {
            tracing::debug!(?kind, bytes, "a signal to other nodes was dropped: too many at once");
            return;
        }
        let engine = Arc::clone(self);
        lifecycle::spawn("signal", async move {
            let again = |signal: &Signal| !is_ours && engine.is_still_so(signal);
            if let Err(error) = engine.write_signal(signal, again).await {
                tracing::debug!(%error, ?kind, "a signal to other nodes was not written");
            }
        });
    }

    /// Whether what a signal says has not been overtaken meanwhile: it is dated anew when it is written.
    fn is_still_so(&self, signal: &Signal) -> bool {
        match (signal.kind, signal.session) {
            (SignalKind::LogLevel, Some(session)) => {
                self.streams.levels.of(session).is_none_or(|level| level.as_str() == signal.subject)
            }
            _ => true,
        }
    }

    /// Tries again while the database is away and `again` says so, for some seconds.
    async fn write_signal(&self, mut signal: Signal, again: impl Fn(&Signal) -> bool) -> Result<(), StoreError> {
        let mut tries = 1;
        loop {
            match self.store.system().signal(signal.clone()).await {
                Err(StoreError::Unavailable(why)) if tries < TRIES => {
                    tracing::debug!(kind = ?signal.kind, %why, "a signal cannot be written; trying again");
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                    if !again(&signal) {
                        return Err(StoreError::Unavailable(why));
                    }
                    signal.created = self.now();
                }
                written => return written,
            }
        }
    }

    fn new_signal(
        &self,
        kind: SignalKind,
        context: ContextId,
        session: Option<SessionId>,
        subject: String,
        payload: Option<RawJson>,
    ) -> Signal {
        Signal { id: InputId::new().as_uuid(), kind, context, session, subject, payload, created: self.now() }
    }

    /// Writes what its client will not say again: tried again while the database is away, and while its context has had as
    /// much written as it may. Finished even if this future is dropped.
    async fn signal_surely(self: &Arc<Self>, mut signal: Signal) -> Result<(), StoreError> {
        let engine = Arc::clone(self);
        let write = lifecycle::spawn("signal", async move {
            let mut tries = 1;
            loop {
                signal.created = engine.now();
                let written = if engine.streams.rates.admits(signal.context, bytes_of(&signal), signal.created) {
                    engine.store.system().signal(signal.clone()).await
                } else {
                    Err(StoreError::Unavailable("too much was said to other nodes at once".into()))
                };
                match written {
                    Err(StoreError::Unavailable(why)) if tries < TRIES => {
                        tracing::debug!(kind = ?signal.kind, %why, "a signal cannot be written; trying again");
                        tries += 1;
                        tokio::time::sleep(PAUSE).await;
                    }
                    written => return written,
                }
            }
        });
        write.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// Whether this node has heard within the last minute that the session ended: it is served no more (HTTP-16).
    #[must_use]
    pub fn session_has_ended(&self, session: SessionId) -> bool {
        self.streams.ended.has(session)
    }

    /// Others look where the session's stream is; whichever has the stream that was resumed here, before, lets it go.
    pub(super) fn signal_stream(
        self: &Arc<Self>,
        context: ContextId,
        session: SessionId,
        resumed: Option<(StreamId, Timestamp)>,
    ) {
        let node = self.membership.node().to_string();
        let resumed = resumed.map(|resumed| RawJson::from_value(&resumed_payload(resumed)));
        self.signal(SignalKind::SessionStream, context, Some(session), node, resumed);
    }

    /// The same for the stream of a `tasks/result`.
    pub(super) fn signal_resumed(self: &Arc<Self>, context: ContextId, resumed: StreamId, opened: Timestamp) {
        let node = self.membership.node().to_string();
        let resumed = RawJson::from_value(&resumed_payload((resumed, opened)));
        self.signal(SignalKind::SessionStream, context, None, node, Some(resumed));
    }

    /// `notifications/cancelled` from a client: a request of its session in flight at any node is stopped (CAP-10).
    pub fn cancel_request(self: &Arc<Self>, context: ContextId, session: SessionId, request: &str) {
        if !self.streams.in_flight.cancel(session, request) && request.len() <= MOST_REQUEST_BYTES {
            let signal = self.new_signal(SignalKind::CancelCall, context, Some(session), request.to_owned(), None);
            let engine = Arc::clone(self);
            lifecycle::spawn("cancel", async move {
                if let Err(error) = engine.signal_surely(signal).await {
                    tracing::warn!(%error, "other nodes could not be told of a cancellation");
                }
            });
        }
    }

    /// An answer to the question of a call that is no task, at this node or another. An id that is none of those changes
    /// nothing.
    ///
    /// # Errors
    /// If other nodes could not be told of it.
    pub(in crate::engine) async fn answer_plain(
        self: &Arc<Self>,
        context: ContextId,
        id: &str,
        answer: Answer,
    ) -> Result<(), StoreError> {
        if !self.streams.key.is_question_id(context, id) {
            return Ok(());
        }
        if let Err(answer) = self.streams.answered_here(context, id, answer) {
            let payload = match &answer {
                // Fits no question, so that the node which waits asks again.
                Answer::Result(json) | Answer::Error(json) if json.len() > self.rules.input.answer_limit => {
                    r#"{"result":0}"#.to_owned()
                }
                Answer::Result(json) => format!(r#"{{"result":{}}}"#, json.as_str()),
                Answer::Error(json) => format!(r#"{{"error":{}}}"#, json.as_str()),
            };
            let payload = Some(RawJson::trusted(payload));
            return self
                .signal_surely(self.new_signal(SignalKind::PlainAnswer, context, None, id.to_owned(), payload))
                .await;
        }
        Ok(())
    }

    /// A resource that the session subscribed to has changed: its stream is told, on whichever node it is (NOTE-12). Without
    /// one there is nobody to tell.
    pub(in crate::engine) async fn resource_updated(
        self: &Arc<Self>,
        context: ContextId,
        session: SessionId,
        uri: &str,
        params: RawJson,
    ) -> Result<(), StoreError> {
        if self.streams.resource_updated(context, session, params.clone()) {
            return Ok(());
        }
        let stored = self.store.system().session(context, session).await?;
        if stored.is_some_and(|session| session.stream.is_some()) {
            self.signal(SignalKind::ResourceUpdated, context, Some(session), uri.to_owned(), Some(params));
        }
        Ok(())
    }

    pub(super) fn take_signals(self: &Arc<Self>, signals: Vec<Signal>, since: Timestamp) {
        for signal in signals.into_iter().filter(|signal| self.streams.signals.hear(signal)) {
            self.take_signal(signal);
        }
        self.streams.signals.forget(since - OVERLAP);
    }

    fn take_signal(self: &Arc<Self>, signal: Signal) {
        let Signal { kind, context, session, subject, payload, created, .. } = signal;
        match (kind, session, payload) {
            (SignalKind::CancelCall, Some(session), _) => {
                self.streams.in_flight.cancel(session, &subject);
            }
            (SignalKind::PlainAnswer, _, Some(payload)) => {
                if let Some(answer) = read_answer(&payload) {
                    let _not_here = self.streams.answered_here(context, &subject, answer);
                }
            }
            (SignalKind::ResourceUpdated, Some(session), Some(params)) => {
                self.streams.resource_updated(context, session, params);
            }
            (SignalKind::LogLevel, Some(session), _) => {
                if let Some(level) = LogLevel::from_name(&subject) {
                    self.log_level_was_set(context, session, level, created);
                }
            }
            (SignalKind::ClientTask, _, Some(task)) => {
                if let (Ok(delivery), Some(task)) = (subject.parse(), ClientTask::read(&task)) {
                    self.streams.client_task_is(delivery, task);
                }
            }
            (SignalKind::SessionEnded, Some(session), _) => {
                self.streams.end_session(session);
                self.tend_subscriptions();
            }
            (SignalKind::SessionStream, session, resumed) => {
                let node = subject.parse().ok().filter(|node| *node != self.membership.node());
                if let Some(node) = node {
                    let resumed = resumed.and_then(|json| read_resumed(&json));
                    self.stream_moved(context, session, resumed, node);
                }
            }
            _ => {}
        }
    }
}

impl Streams {
    /// Whether the session's stream is here.
    fn resource_updated(&self, context: ContextId, session: SessionId, params: RawJson) -> bool {
        let state = self.lock();
        let streams = state.sessions.get(&session).filter(|streams| streams.context == context);
        match streams.and_then(super::SessionStreams::line) {
            Some(line) => {
                line.push(Delivery::ResourceUpdated { params }, self.clock.now());
                true
            }
            None => false,
        }
    }
}

fn bytes_of(signal: &Signal) -> usize {
    signal.subject.len() + signal.payload.as_ref().map_or(0, RawJson::len)
}

/// What others are told of a stream that was resumed here: which it is, and since when.
fn resumed_payload((stream, opened): (StreamId, Timestamp)) -> serde_json::Value {
    serde_json::json!({ "stream": stream.to_string(), "opened": opened.micros() })
}

fn read_resumed(payload: &RawJson) -> Option<(StreamId, Timestamp)> {
    let payload: serde_json::Value = serde_json::from_str(payload.as_str()).ok()?;
    let stream = payload["stream"].as_str()?.parse().ok()?;
    Some((stream, Timestamp::from_micros(payload["opened"].as_i64()?)))
}

fn read_answer(payload: &RawJson) -> Option<Answer> {
    #[derive(Deserialize)]
    struct Payload<'a> {
        #[serde(borrow)]
        result: Option<&'a RawValue>,
        #[serde(borrow)]
        error: Option<&'a RawValue>,
    }
    match serde_json::from_str(payload.as_str()).ok()? {
        Payload { result: Some(result), error: None } => Some(Answer::Result(RawJson::trusted(result.get()))),
        Payload { result: None, error: Some(error) } => Some(Answer::Error(RawJson::trusted(error.get()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_travels_as_it_arrived() {
        let read = |text: &str| read_answer(&RawJson::trusted(text));
        let raw = r#"{"b":1e400,"a":"\ud800"}"#;
        assert_eq!(read(&format!(r#"{{"result":{raw}}}"#)), Some(Answer::Result(RawJson::trusted(raw))));
        assert_eq!(read(&format!(r#"{{"error":{raw}}}"#)), Some(Answer::Error(RawJson::trusted(raw))));
        assert_eq!(read("{}"), None);
        assert_eq!(read("7"), None);
    }

    #[test]
    fn each_context_may_give_so_many_signals_a_second() {
        let (rates, [a, b]) = (Rates::default(), [ContextId::new(), ContextId::new()]);
        let now = Timestamp::from_micros(7_000_000);
        assert!(rates.admits(a, MOST_GIVEN_BYTES * 2, now), "one alone may be larger");
        assert!(!rates.admits(a, 1, now) && rates.admits(b, 1, now));
        let next = Timestamp::from_micros(8_000_000);
        assert!((0..MOST_GIVEN).all(|_| rates.admits(a, 1, next)));
        assert!(!rates.admits(a, 1, next) && rates.admits(b, 1, next));
    }

    #[test]
    fn ended_sessions_are_remembered_for_a_while() {
        let (ended, [first, second]) = (Ended::default(), [SessionId::new(), SessionId::new()]);
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        ended.add(first, at(0));
        ended.add(second, at(30));
        ended.add(first, at(59));
        assert!(ended.has(first) && ended.has(second));
        ended.add(second, at(60));
        assert!(!ended.has(first) && ended.has(second));
        assert_eq!(ended.0.lock().unwrap().order.len(), 1);
    }

    #[test]
    fn a_signal_is_heard_once() {
        let heard = Heard::default();
        let signal = Signal {
            id: InputId::new().as_uuid(),
            kind: SignalKind::CancelCall,
            context: ContextId::new(),
            session: None,
            subject: String::new(),
            payload: None,
            created: Timestamp::from_micros(7),
        };
        assert!(heard.hear(&signal) && !heard.hear(&signal));
        assert_eq!(heard.since(signal.created), [signal.id]);
        assert!(heard.since(Timestamp::from_micros(8)).is_empty());
        heard.forget(Timestamp::from_micros(7));
        assert!(!heard.hear(&signal));
        heard.forget(Timestamp::from_micros(8));
        assert!(heard.0.lock().unwrap().is_empty());
    }
}
