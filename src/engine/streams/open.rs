//! Opening, resuming and closing streams. A stream is known before anything is looked up for it, so that nothing which
//! happens meanwhile is missed.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::line::Line;
use super::show::{MOST_SHOWN, Shown};
use super::{Opened, ResultStream, SessionStreams, State, Stream, Streams, WaitsFor};
use crate::domain::clock::Timestamp;
use crate::domain::context::AuthContext;
use crate::domain::ids::{SessionId, StreamId, TaskId};
use crate::domain::session::SessionStream;
use crate::domain::task::{Status, Task};
use crate::engine::{Caller, Engine, Refusal};

use super::plain::Asked;
use crate::lifecycle;
use crate::store::{SignalKind, StoreError, Watch};

/// Where a client left a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    pub stream: StreamId,
    /// The number of the last event that it has seen.
    pub after: i64,
}

/// Within this the clocks of two nodes agree: of what happened in so short a time after an event on another node it is not known
/// whether it came before that.
const CLOCKS_AGREE: Duration = Duration::from_secs(1);

/// Most waits that are shorter than this are over before anything could be said on their streams: they are not worth a question
/// to the database.
const SHORT_WAIT: Duration = Duration::from_millis(20);

impl Resume {
    /// What happened at this time or later the client has not seen: the numbers of events are times.
    pub(super) fn unseen_from(self) -> Timestamp {
        Timestamp::from_micros(self.after) + CLOCKS_AGREE
    }
}

/// A place on a stream that was just opened.
pub(super) struct Place {
    pub(super) key: u64,
    stream: StreamId,
    pub(super) line: Arc<Line>,
    reader: u64,
}

impl Place {
    fn new(state: &mut State, resume: Option<Resume>, now: Timestamp) -> Self {
        let line = Line::new(resume.map_or(0, |resume| resume.after), false);
        let line = Arc::new(line.opened_at(now));
        let reader = line.attach(None);
        Self { key: state.number(), stream: resume.map_or_else(StreamId::new, |resume| resume.stream), line, reader }
    }
}

impl Engine {
    /// The session's own stream (HTTP-06). Of several the one that was opened last gets the messages, on whichever node; the
    /// others wait for their turn in silence. One that is resumed shows how its newest live tasks stand (HTTP-09).
    ///
    /// # Errors
    /// [`Refusal::LimitReached`]; [`Refusal::UnknownSession`] if it has ended; [`Refusal::Store`].
    pub async fn open_session_stream(
        self: &Arc<Self>,
        caller: &Caller,
        session: SessionId,
        resume: Option<Resume>,
    ) -> Result<Stream, Refusal> {
        let context = caller.auth.id();
        let place_among_waiters = self.waiters.place(context)?;
        let place = {
            let mut state = self.streams.lock();
            let now = self.now();
            let place = Place::new(&mut state, resume, now);
            let streams = state.sessions.entry(session).or_insert_with(|| SessionStreams {
                context,
                capabilities: caller.declared(),
                initialized: false,
                id: StreamId::new(),
                // It has the turn from now on.
                elsewhere: true,
                version: 0,
                since: now,
                progress_from: now,
                open: Vec::new(),
                shown: std::collections::HashMap::new(),
            });
            streams.initialized |= caller.initialized;
            if std::mem::replace(&mut streams.elsewhere, false) {
                streams.progress_from = resume.map_or(now, |resume| resume.unseen_from().min(now));
            }
            streams.version += 1;
            let old = streams.open.iter().position(|opened| opened.stream == place.stream);
            let old = old.map(|at| streams.open.remove(at));
            streams.open.push(Opened {
                key: place.key,
                stream: place.stream,
                line: Arc::clone(&place.line),
                is_ready: false,
            });
            if let Some(old) = old {
                old.line.close();
                state.take_over(old.key, &place);
            }
            place
        };
        let waits_for = WaitsFor::Nothing { session, _place: place_among_waiters };
        let Place { key, stream, line, reader } = place;
        let opened = Stream { engine: Arc::clone(self), key, id: stream, line, reader, waits_for };
        self.waiters.arrived.notify_one();
        self.begin_session_stream(caller, session, opened.place(), resume).await?;
        Ok(opened)
    }

    async fn begin_session_stream(
        self: &Arc<Self>,
        caller: &Caller,
        session: SessionId,
        opened: Opened,
        resume: Option<Resume>,
    ) -> Result<(), Refusal> {
        let (store, context) = (self.store.system(), caller.auth.id());
        let Some(id) = self.streams.place_of(session) else { return Err(Refusal::UnknownSession) };
        let place = SessionStream { id, node: self.membership.node() };
        if !self.store.scoped(&caller.auth).open_session_stream(session, place).await? {
            self.streams.end_session(session);
            return Err(Refusal::UnknownSession);
        }
        let taken = match resume {
            Some(resume) => self.take_back(caller, &opened, resume).await,
            None => Ok(()),
        };
        let resumed = resume.map(|resume| (resume.stream, opened.line.opened()));
        self.session_stream_placed(context, session, resumed).await;
        taken?;
        let newest = MOST_SHOWN as u32;
        let watch = Watch { sessions: vec![session], newest, ..Watch::nothing(Timestamp::from_micros(0)) };
        let news = store.watch(watch).await?;
        if let Some(streams) = self.streams.lock().sessions.get_mut(&session) {
            streams.stands(&news.changed, resume);
        }
        self.streams.is_ready(opened.key);
        let (engine, caller) = (Arc::clone(self), caller.clone());
        lifecycle::spawn("offer", async move {
            for question in news.open {
                engine.offer(question).await;
            }
            if let Err(error) = engine.take_over_subscriptions(&caller).await {
                tracing::warn!(%error, "the subscriptions of a session cannot be read");
            }
        });
        Ok(())
    }

    /// The stream of a `tasks/result`: what is said of the task while it waits, and its outcome (TASK-07). A client that
    /// takes no messages before the answer is told and asked nothing.
    ///
    /// # Errors
    /// [`Refusal::UnknownTask`]; [`Refusal::LimitReached`]; [`Refusal::Store`] if the first look fails.
    pub async fn open_result_stream(
        self: &Arc<Self>,
        caller: &Caller,
        id: TaskId,
        asked: Asked,
        resume: Option<Resume>,
    ) -> Result<Stream, Refusal> {
        let entry = self.streams.in_flight.enter(caller.session, &asked.request);
        let stop = entry.stop();
        let (task, outcome) = self.task_and_outcome(caller, id).await?;
        if let Some(outcome) = outcome {
            let answered = self.answered(caller, task, outcome)?;
            let place = Place::new(&mut self.streams.lock(), resume, self.now());
            let wait = Box::pin(async move { Some(Ok(answered)) });
            return Ok(self.result_stream(place, WaitsFor::Result { task: id, wait, entry }));
        }
        let waiter = self.waiters.join(caller.auth.id(), id)?;
        let place = if asked.takes_events {
            self.register_result_stream(caller, &task, resume)
        } else {
            Place::new(&mut self.streams.lock(), None, self.now())
        };
        let (engine, waiting) = (Arc::clone(self), caller.clone());
        let wait = Box::pin(async move {
            tokio::select! {
                biased;
                answer = engine.wait(&waiting, waiter) => Some(answer),
                () = stop.cancelled() => None,
            }
        });
        let opened = self.result_stream(place, WaitsFor::Result { task: id, wait, entry });
        if !asked.takes_events {
            return Ok(opened);
        }
        if let Some(resume) = resume {
            let place = opened.place();
            let taken = self.take_back(caller, &place, resume).await;
            self.signal_resumed(task.context, resume.stream, place.line.opened());
            taken?;
            self.streams.is_ready(place.key);
        }
        self.tend_result_stream(&task, opened.key);
        Ok(opened)
    }

    /// What a new stream has to be told besides what happens from now on.
    fn tend_result_stream(self: &Arc<Self>, task: &Task, key: u64) {
        let engine = Arc::clone(self);
        let &Task { id, context, status, session, .. } = task;
        lifecycle::spawn("offer", async move {
            // What is asked from now on is offered when it is asked, or by the next gathered look.
            if status == Status::InputRequired {
                engine.offer_of(context, id).await;
            }
            let Some(session) = session else { return };
            tokio::time::sleep(SHORT_WAIT).await;
            if engine.streams.has_result_stream(id, key) {
                engine.look_for_session_stream(context, session).await;
            }
        });
    }

    fn register_result_stream(self: &Arc<Self>, caller: &Caller, task: &Task, resume: Option<Resume>) -> Place {
        let now = self.now();
        let mut state = self.streams.lock();
        let place = Place::new(&mut state, resume, now);
        let stream = ResultStream {
            key: place.key,
            stream: place.stream,
            task: task.id,
            context: task.context,
            session: caller.session,
            maker: task.session,
            capabilities: caller.declared(),
            initialized: AtomicBool::new(caller.initialized),
            is_ready: AtomicBool::new(resume.is_none()),
            // Until the maker's session was looked up: what is said twice is worse than what is not said.
            elsewhere: AtomicBool::new(task.session.is_some()),
            line: Arc::clone(&place.line),
            shown: Mutex::new(Shown::of(task)),
            progress_from: AtomicI64::new(0),
        };
        let streams = state.results.entry(task.id).or_default();
        let old = streams.iter().position(|old| old.stream == place.stream).map(|at| streams.remove(at));
        streams.push(Arc::new(stream));
        if let Some(old) = old {
            old.line.close();
            state.take_over(old.key, &place);
        }
        place
    }

    fn result_stream(self: &Arc<Self>, place: Place, waits_for: WaitsFor) -> Stream {
        let Place { key, stream, line, reader } = place;
        Stream { engine: Arc::clone(self), key, id: stream, line, reader, waits_for }
    }

    pub(super) fn session_stream_closed(self: &Arc<Self>, session: SessionId, key: u64) {
        let (held, context, last, stream) = {
            let mut state = self.streams.lock();
            let Some(streams) = state.sessions.get_mut(&session) else { return };
            let Some(at) = streams.open.iter().position(|opened| opened.key == key) else { return };
            let stream = streams.open.remove(at).stream;
            let (context, last) = (streams.context, streams.open.is_empty().then_some(streams.id));
            if last.is_some() {
                state.sessions.remove(&session);
                let waiting = state.results.values().flatten().filter(|stream| stream.maker == Some(session));
                for stream in waiting {
                    stream.said_elsewhere_until(self.now());
                }
            }
            (Streams::let_go_of(&mut state, key, stream), context, last, stream)
        };
        self.streams.settled.notify_waiters();
        self.give_back(held, context, Some(stream));
        // A node that leaves is found gone.
        if let Some(id) = last.filter(|_| !self.is_draining() && tokio::runtime::Handle::try_current().is_ok()) {
            self.displace_session_stream(context, session, id);
        }
    }

    pub(super) fn result_stream_closed(self: &Arc<Self>, task: TaskId, key: u64) {
        let (held, closed) = {
            let mut state = self.streams.lock();
            let Some(streams) = state.results.get_mut(&task) else { return };
            let Some(at) = streams.iter().position(|stream| stream.key == key) else { return };
            let closed = streams.remove(at);
            if streams.is_empty() {
                state.results.remove(&task);
            }
            (Streams::let_go_of(&mut state, key, closed.stream), closed)
        };
        self.streams.settled.notify_waiters();
        self.give_back(held, closed.context, Some(closed.stream));
    }

    /// Ends a session, whether or not its client waits for that; false if there was none: its streams end everywhere, its tasks and their questions live on (HTTP-16).
    ///
    /// # Errors
    /// If the store fails.
    pub async fn end_session(self: &Arc<Self>, caller: &AuthContext, session: SessionId) -> Result<bool, StoreError> {
        let (engine, store, context) = (Arc::clone(self), self.store.scoped(caller), caller.id());
        let ending = lifecycle::spawn("session end", async move {
            let ended = store.end_session(session).await?;
            if ended {
                engine.streams.end_session(session);
                engine.tend_subscriptions();
                engine.signal(SignalKind::SessionEnded, context, Some(session), String::new(), None);
            }
            Ok(ended)
        });
        ending.await.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string().into())))
    }
}

impl Streams {
    /// A stream knows how its tasks stand, and has taken back what it had.
    fn is_ready(&self, key: u64) {
        self.lock().is_ready(key);
        self.settled.notify_waiters();
    }

    fn has_result_stream(&self, task: TaskId, key: u64) -> bool {
        self.lock().results.get(&task).is_some_and(|streams| streams.iter().any(|stream| stream.key == key))
    }

    pub(super) fn end_session(&self, session: SessionId) {
        self.ended.add(session, self.clock.now());
        let state = self.lock();
        for opened in state.sessions.get(&session).into_iter().flat_map(|streams| &streams.open) {
            opened.line.close();
        }
        for stream in state.results.values().flatten().filter(|stream| stream.session == Some(session)) {
            stream.line.close();
        }
        drop(state);
        self.plain.end_session(session);
    }
}

impl State {
    fn is_ready(&mut self, key: u64) {
        for stream in self.results.values().flatten().filter(|stream| stream.key == key) {
            stream.is_ready.store(true, Ordering::Relaxed);
        }
        for opened in self.sessions.values_mut().flat_map(|session| &mut session.open) {
            opened.is_ready |= opened.key == key;
        }
    }
}
