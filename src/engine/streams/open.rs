//! Opening, resuming and closing streams. A stream is known before anything is looked up for it, so that nothing which
//! happens meanwhile is missed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::follow::Following;
use super::line::Line;
use super::questions::{Subject, Target};
use super::show::{MOST_SHOWN, Shown};
use super::{Held, Opened, ResultStream, SessionStreams, State, Stream, Streams, WaitsFor};
use crate::domain::client_task::ClientTask;
use crate::domain::clock::Timestamp;
use crate::domain::context::AuthContext;
use crate::domain::ids::{ContextId, DeliveryId, SessionId, StreamId, TaskId};
use crate::domain::session::SessionStream;
use crate::domain::task::Task;
use crate::engine::{Caller, Engine, Refusal};

use super::plain::Asked;
use crate::lifecycle;
use crate::store::{Delivered, Purpose, SignalKind, StoreError, Watch};

/// Where a client left a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    pub stream: StreamId,
    /// The number of the last event that it has seen.
    pub after: i64,
}

/// A place on a stream that was just opened.
struct Place {
    key: u64,
    stream: StreamId,
    line: Arc<Line>,
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
        let (place, lost) = {
            let mut state = self.streams.lock();
            let now = self.now();
            let place = Place::new(&mut state, resume, now);
            let mut lost = Vec::new();
            let streams = state.sessions.entry(session).or_insert_with(|| SessionStreams {
                context,
                capabilities: caller.declared(),
                initialized: false,
                id: StreamId::new(),
                elsewhere: false,
                version: 0,
                since: now,
                open: Vec::new(),
                shown: std::collections::HashMap::new(),
            });
            streams.initialized |= caller.initialized;
            streams.elsewhere = false;
            streams.version += 1;
            let old = streams.open.iter().position(|opened| opened.stream == place.stream);
            let old = old.map(|at| streams.open.remove(at));
            streams.open.push(Opened {
                key: place.key,
                stream: place.stream,
                line: Arc::clone(&place.line),
                is_ready: false,
            });
            if let (Some(old), Some(resume)) = (old, resume) {
                old.line.close();
                lost = state.take_over(old.key, &place, resume.after, now);
            }
            (place, lost)
        };
        self.give_back(lost, context, None);
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
        self.session_stream_placed(context, session, resume.map(|resume| resume.stream)).await;
        if let Some(resume) = resume {
            self.take_back(caller, &opened, resume).await?;
        }
        let newest = MOST_SHOWN as u32;
        let watch = Watch { sessions: vec![session], newest, ..Watch::nothing(Timestamp::from_micros(0)) };
        let news = store.watch(watch).await?;
        if let Some(streams) = self.streams.lock().sessions.get_mut(&session) {
            streams.stands(&news.changed, resume.is_some());
        }
        self.streams.lock().is_ready(opened.key);
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
            return Ok(self.result_stream(place, WaitsFor::Result { task: id, wait, _entry: entry }));
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
        let opened = self.result_stream(place, WaitsFor::Result { task: id, wait, _entry: entry });
        if !asked.takes_events {
            return Ok(opened);
        }
        if let Some(resume) = resume {
            self.signal_resumed(task.context, resume.stream);
            let place = opened.place();
            self.take_back(caller, &place, resume).await?;
            self.streams.lock().is_ready(place.key);
        }
        let engine = Arc::clone(self);
        lifecycle::spawn("offer", async move {
            engine.offer_of(task.context, task.id).await;
            if let Some(session) = task.session {
                engine.look_for_session_stream(task.context, session).await;
            }
        });
        Ok(opened)
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
        };
        let streams = state.results.entry(task.id).or_default();
        let old = streams.iter().position(|old| old.stream == place.stream).map(|at| streams.remove(at));
        streams.push(Arc::new(stream));
        if let (Some(old), Some(resume)) = (old, resume) {
            old.line.close();
            let lost = state.take_over(old.key, &place, resume.after, now);
            drop(state);
            self.give_back(lost, task.context, None);
        }
        place
    }

    fn result_stream(self: &Arc<Self>, place: Place, waits_for: WaitsFor) -> Stream {
        let Place { key, stream, line, reader } = place;
        Stream { engine: Arc::clone(self), key, id: stream, line, reader, waits_for }
    }

    /// What this stream held when it broke, on whichever node, it holds again; its client is shown what it has not seen.
    async fn take_back(self: &Arc<Self>, caller: &Caller, opened: &Opened, resume: Resume) -> Result<(), StoreError> {
        // The stream that broke may have been noticed this very moment.
        loop {
            let given_back = self.streams.given_back.notified();
            tokio::pin!(given_back);
            given_back.as_mut().enable();
            if !self.streams.lock().leaving.contains(&resume.stream) {
                break;
            }
            given_back.await;
        }
        // Together, whether or not the client is still there: what is held without a stream nobody would be asked.
        let (engine, caller, opened) = (Arc::clone(self), caller.clone(), opened.clone());
        let hold = lifecycle::spawn("resume", async move { engine.hold_what_broke(&caller, &opened, resume).await });
        hold.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a stream could not take back what it held");
            Ok(())
        })
    }

    async fn hold_what_broke(
        self: &Arc<Self>,
        caller: &Caller,
        opened: &Opened,
        resume: Resume,
    ) -> Result<(), StoreError> {
        let store = self.store.scoped(&caller.auth);
        let taken = store.rehold_stream(resume.stream, self.membership.node()).await?;
        let (context, declared) = (caller.auth.id(), caller.declared());
        for sent in taken {
            let Delivered { delivery, task, purpose, .. } = sent;
            let as_task = match purpose {
                Purpose::Question if declared.takes_tasks(sent.question.kind) => self.time_left(context, task).await,
                _ => None,
            };
            let held = self.streams.lock().hold_again(context, opened, sent, (resume.after, as_task), self.now());
            match held {
                Some(Some(told)) => self.follow(delivery, told, purpose),
                Some(None) => {}
                None => self.give_back(vec![(delivery, task)], context, None),
            }
        }
        Ok(())
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
            }
            (Streams::let_go_of(&mut state, key, stream), context, last, stream)
        };
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
    /// What a stream of this node held goes over to the one that continues it; answers what has no room there.
    fn take_over(&mut self, old: u64, place: &Place, after: i64, now: Timestamp) -> Vec<(DeliveryId, TaskId)> {
        for held in self.held.values_mut().filter(|held| held.target.key == old) {
            (held.target.key, held.target.line) = (place.key, Arc::clone(&place.line));
        }
        let has_no_room = |held: &mut Held| {
            held.target.key == place.key && held.sequence > after && !place.line.push(held.message.clone(), now)
        };
        let lost = self.held.extract_if(|_, held| has_no_room(held));
        lost.map(|(delivery, held)| (delivery, held.subject.task)).collect()
    }

    fn is_ready(&mut self, key: u64) {
        for stream in self.results.values().flatten().filter(|stream| stream.key == key) {
            stream.is_ready.store(true, Ordering::Relaxed);
        }
        for opened in self.sessions.values_mut().flat_map(|session| &mut session.open) {
            opened.is_ready |= opened.key == key;
        }
    }

    /// Whom to tell of the client's task, if it may have one; `None` if the stream has gone, or is full.
    fn hold_again(
        &mut self,
        context: ContextId,
        opened: &Opened,
        delivered: Delivered,
        (after, as_task): (i64, Option<Duration>),
        now: Timestamp,
    ) -> Option<Option<Arc<Notify>>> {
        let Delivered { delivery, input, task, sequence, purpose, question, client_task, .. } = delivered;
        let client_task = client_task.as_ref().and_then(ClientTask::read);
        let target = self.target_of(task, opened)?;
        if self.held.contains_key(&delivery) {
            return Some(None);
        }
        let subject = Subject { input, task, context, question, client_task: client_task.clone() };
        let is_task = purpose != Purpose::Question || target.capabilities.takes_tasks(subject.question.kind);
        let mut following = is_task.then(|| Following::new(client_task, target.capabilities.cancels_tasks()));
        let message = subject.message(purpose, delivery, as_task);
        if sequence > after && (purpose != Purpose::Question || subject.client_task.is_none()) {
            if !target.line.push(message.clone(), now) {
                return None;
            }
        } else if let Some(following) = following.as_mut().filter(|following| following.known.is_some()) {
            // It may have been answered while nobody listened.
            following.answered = true;
            following.told.notify_one();
        }
        let again = following.as_ref().map(|following| Arc::clone(&following.told));
        self.held.insert(delivery, Held { subject, target, message, sequence, following });
        Some(again)
    }

    /// The place of a stream that was just opened.
    fn target_of(&self, task: TaskId, opened: &Opened) -> Option<Target> {
        let mut results = self.results.get(&task).into_iter().flatten();
        if let Some(stream) = results.find(|stream| stream.key == opened.key) {
            return stream.session.map(|session| stream.target(session));
        }
        let mut sessions = self.sessions.iter();
        let has_it = |streams: &SessionStreams| streams.open.iter().any(|open| open.key == opened.key);
        sessions.find(|(_, streams)| has_it(streams)).map(|(session, streams)| streams.target(*session, opened))
    }
}
