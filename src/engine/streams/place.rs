//! Where a session's GET stream is. The session's row says so, and whoever wrote it last has the turn; what nodes tell each
//! other only says that it is worth to look again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::line::Line;
use super::{Opened, ResultStream, SessionStreams, State, Streams};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, DeliveryId, NodeId, SessionId, StreamId, TaskId};
use crate::domain::session::SessionStream;
use crate::engine::Engine;
use crate::lifecycle;
use crate::store::{Closing, StoreError, StreamPlace, Watch};

/// An open stream counts as a use of its session, written at most this often.
const USED_EVERY: Duration = Duration::from_secs(600);
/// Sessions that one round looks at one by one: the rest have their turn in the next.
const MOST_LOOKS: usize = 500;

/// What a session's row means for its streams here.
enum Turn {
    /// They were told.
    Known,
    /// Something was opened meanwhile: the row may have changed.
    LookAgain,
    /// No node has its stream: those here take their turn, as this one.
    Ours(StreamId),
    /// The session has ended.
    Over,
}

/// A stream of this node.
struct Found<'s> {
    key: u64,
    line: &'s Arc<Line>,
    is_ready: bool,
}

impl Engine {
    /// After the row was written: others look at it, and so do we if it may be another node's already.
    pub(super) async fn session_stream_placed(
        self: &Arc<Self>,
        context: ContextId,
        session: SessionId,
        resumed: Option<(StreamId, Timestamp)>,
    ) {
        self.signal_stream(context, session, resumed);
        if self.streams.was_placed(session) {
            self.look_for_session_stream(context, session).await;
        }
    }

    /// Looks in a session's row where its stream is, for its streams here and for those who wait for its tasks.
    pub(super) async fn look_for_session_stream(self: &Arc<Self>, context: ContextId, session: SessionId) {
        loop {
            let seen = self.streams.version(session);
            let row = match self.store.system().session(context, session).await {
                Ok(row) => row,
                Err(error) => {
                    tracing::debug!(%error, "cannot look for a session's stream");
                    return;
                }
            };
            let found = row.map(|row| row.stream);
            match self.streams.turn(session, found, seen, self.membership.node()) {
                Turn::Known => return,
                Turn::LookAgain => {}
                Turn::Over => {
                    self.streams.end_session(session);
                    return;
                }
                Turn::Ours(id) => {
                    let stream = SessionStream { id, node: self.membership.node() };
                    match self.store.system().open_session_stream(context, session, stream).await {
                        Ok(true) => {
                            self.signal_stream(context, session, None);
                            // Another node may have taken the turn in the same moment.
                            if !self.streams.was_placed(session) {
                                return;
                            }
                        }
                        Ok(false) => {}
                        Err(error) => {
                            tracing::debug!(%error, "cannot write where a session's stream is; the next round does");
                            return;
                        }
                    }
                }
            }
        }
    }

    /// The last stream of a session here was closed.
    pub(super) fn displace_session_stream(self: &Arc<Self>, context: ContextId, session: SessionId, id: StreamId) {
        let engine = Arc::clone(self);
        lifecycle::spawn("stream closed", async move {
            match engine.store.system().close_session_stream(context, session, id).await {
                Ok(()) => engine.signal_stream(context, session, None),
                Err(error) => tracing::debug!(%error, "cannot write that a session's stream was closed"),
            }
        });
    }

    /// What no hint has told: streams whose turn it is or is not any more, sessions that have ended, and sessions that are
    /// in use by nothing but their streams.
    pub(in crate::engine) async fn tend_session_streams(self: &Arc<Self>) -> Result<(), StoreError> {
        let watched = self.streams.sessions_to_tend();
        let ids: Vec<_> = watched.keys().copied().collect();
        let store = self.store.system();
        let rows = store.session_streams(&ids).await?;
        let rows: HashMap<_, _> = rows.into_iter().map(|row| (row.session, row)).collect();
        let node = self.membership.node();
        let is_news = |session: &SessionId| {
            let row = rows.get(session).map(|row| row.stream);
            !self.streams.is_known(*session, row, node)
        };
        let news = watched.iter().filter(|(session, _)| is_news(session)).take(MOST_LOOKS);
        for (session, context) in news {
            self.look_for_session_stream(*context, *session).await;
        }
        let (now, often) = (self.now(), USED_EVERY.min(self.rules.session_idle / 4));
        let is_due =
            |row: &&StreamPlace| now.since(row.last_used) > often && self.streams.place_of(row.session).is_some();
        for StreamPlace { context, session, .. } in rows.values().filter(is_due).take(MOST_LOOKS) {
            store.touch_session(*context, *session, now).await?;
        }
        Ok(())
    }

    /// Compares what the database says that streams of this node have with what they have: a write may land after the
    /// stream that it was for is gone.
    pub(in crate::engine) async fn recover_streams(self: &Arc<Self>) -> Result<(), StoreError> {
        let (store, node) = (self.store.system(), self.membership.node());
        for StreamPlace { context, session, stream, .. } in store.streams_at(node).await? {
            if let Some(stream) = stream.filter(|stream| self.streams.place_of(session) != Some(stream.id)) {
                self.displace_session_stream(context, session, stream.id);
            }
        }
        for (context, task, delivery) in self.streams.adrift(store.holds_at(node).await?) {
            tracing::warn!(task.id = %task, "a question that this node held had no stream");
            self.give_back(vec![(delivery, task)], context, None);
        }
        Ok(())
    }

    /// This process goes on as another node: what it held as the old one it holds on, and its streams are where it is.
    pub(in crate::engine) async fn move_streams(self: &Arc<Self>, old: NodeId) -> Result<(), StoreError> {
        self.keep_holds(old).await?;
        self.store.system().let_go_dead_nodes().await?;
        self.tend_session_streams().await
    }

    /// Another node says that the session's stream is there now, or not any more; that it goes on with a stream that may
    /// be here still. This may be heard after the client has come back here.
    pub(super) fn stream_moved(
        self: &Arc<Self>,
        context: ContextId,
        session: Option<SessionId>,
        resumed: Option<(StreamId, Timestamp)>,
        node: NodeId,
    ) {
        let engine = Arc::clone(self);
        lifecycle::spawn("stream moved", async move {
            if let Some(session) = session {
                engine.look_for_session_stream(context, session).await;
            }
            // The client may have come back here since.
            let is_here = session.is_some_and(|session| engine.streams.has_turn(session));
            if let Some((stream, opened)) = resumed.filter(|_| !is_here) {
                engine.let_stream_go(context, stream, (opened, node)).await;
            }
        });
    }

    /// A stream that was here goes on at another node: what it holds, that one may have. Where its client came back to both in
    /// the same moment, the stream stays that took back last what both had; if that was nothing, the one that was opened
    /// last. So both nodes decide alike, and as the database does.
    async fn let_stream_go(self: &Arc<Self>, context: ContextId, stream: StreamId, there: (Timestamp, NodeId)) {
        let Some((key, regained)) = self.streams.once_settled(context, stream).await else { return };
        let here = self.membership.node();
        let mut is_moved = false;
        if !regained.is_empty() {
            let watch = Watch { held: regained.clone(), node: Some(here), ..Watch::nothing(self.now()) };
            let closed = match self.store.system().watch(watch).await {
                Ok(news) => news.closed,
                Err(error) => {
                    tracing::debug!(%error, "cannot look for what a stream holds; the next round does");
                    return;
                }
            };
            if regained.iter().any(|id| closed.iter().all(|closed| closed.delivery != *id)) {
                return;
            }
            is_moved = closed.iter().any(|closed| closed.how == Closing::Moved);
        }
        let held = {
            let mut state = self.streams.lock();
            // Its client may have come back here since.
            let Some(found) = state.stream(context, stream).filter(|found| found.key == key) else { return };
            if !is_moved && (found.line.opened(), here) > there {
                return;
            }
            found.line.close();
            let line = Arc::clone(found.line);
            Streams::leave(&mut state, key, stream, &line)
        };
        self.give_back(held, context, Some(stream));
    }

    /// Another node has this question under its id, as the look found: the stream that had it here goes on there, and no hint
    /// has said so.
    pub(super) fn goes_on_elsewhere(self: &Arc<Self>, delivery: DeliveryId, key: u64) {
        let (held, context, stream) = {
            let mut state = self.streams.lock();
            let Some(held) = state.held_by(delivery, key) else { return };
            let (context, stream, line) = (held.subject.context, held.target.stream, Arc::clone(&held.target.line));
            line.close();
            (Streams::leave(&mut state, key, stream, &line), context, stream)
        };
        self.give_back(held, context, Some(stream));
    }
}

impl Streams {
    /// The id of this node's streams of a session, if it has any.
    pub(super) fn place_of(&self, session: SessionId) -> Option<StreamId> {
        self.lock().sessions.get(&session).map(|streams| streams.id)
    }

    /// A stream of this node, as soon as it has taken back what it had: its key, and what that was. `None` if it is not here,
    /// or not any more.
    async fn once_settled(&self, context: ContextId, stream: StreamId) -> Option<(u64, Vec<DeliveryId>)> {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            {
                let state = self.lock();
                let Found { key, is_ready, .. } = state.stream(context, stream)?;
                if is_ready {
                    let of_it = state.held.iter().filter(|(_, held)| held.target.key == key && held.regained);
                    return Some((key, of_it.map(|(delivery, _)| *delivery).collect()));
                }
            }
            settled.await;
        }
    }

    /// Forgets what a stream held that goes on at another node, to be given back.
    fn leave(state: &mut State, key: u64, stream: StreamId, line: &Line) -> Vec<(DeliveryId, TaskId)> {
        let held = Self::let_go_of(state, key, stream);
        for (delivery, _) in &held {
            // Its client may read on here, what is shown there.
            line.take_back(&delivery.to_string());
        }
        held
    }

    fn has_turn(&self, session: SessionId) -> bool {
        self.lock().sessions.get(&session).is_some_and(|streams| !streams.elsewhere)
    }

    fn version(&self, session: SessionId) -> Option<u64> {
        self.lock().sessions.get(&session).map(|streams| streams.version)
    }

    /// Notes that the row was written; whether its streams were found to be silent meanwhile.
    fn was_placed(&self, session: SessionId) -> bool {
        let mut state = self.lock();
        let Some(streams) = state.sessions.get_mut(&session) else { return false };
        streams.version += 1;
        streams.elsewhere
    }

    /// `found` is what a session's row says, `None` if it has gone; `seen` the version from before it was read.
    fn turn(&self, session: SessionId, found: Option<Option<SessionStream>>, seen: Option<u64>, node: NodeId) -> Turn {
        let (mut state, now) = (self.lock(), self.clock.now());
        let is_elsewhere = found.flatten().is_some_and(|stream| stream.node != node);
        for stream in state.results.values().flatten().filter(|stream| stream.maker == Some(session)) {
            stream.sessions_stream_is(is_elsewhere, now);
        }
        let Some(streams) = state.sessions.get_mut(&session) else { return Turn::Known };
        match found {
            None => Turn::Over,
            _ if seen != Some(streams.version) => Turn::LookAgain,
            Some(None) => {
                streams.has_turn(true, now);
                Turn::Ours(streams.id)
            }
            Some(Some(stream)) => {
                streams.has_turn(stream.id == streams.id, now);
                Turn::Known
            }
        }
    }

    /// Whether its streams here stand as the session's row says.
    fn is_known(&self, session: SessionId, found: Option<Option<SessionStream>>, node: NodeId) -> bool {
        let state = self.lock();
        let is_elsewhere = found.flatten().is_some_and(|stream| stream.node != node);
        let mut waiters = state.results.values().flatten().filter(|stream| stream.maker == Some(session));
        let is_as_found = |streams: &SessionStreams| match found.flatten() {
            None => false,
            Some(stream) => streams.elsewhere == (stream.id != streams.id),
        };
        waiters.all(|stream| stream.elsewhere.load(Ordering::Relaxed) == is_elsewhere)
            && state.sessions.get(&session).is_none_or(is_as_found)
    }

    /// Sessions with streams here, and those for whose tasks the waiters here are.
    fn sessions_to_tend(&self) -> HashMap<SessionId, ContextId> {
        let state = self.lock();
        let sessions = state.sessions.iter().map(|(session, streams)| (*session, streams.context));
        let waiters = state.results.values().flatten().filter_map(|stream| Some((stream.maker?, stream.context)));
        waiters.chain(sessions).collect()
    }

    /// Of what the database says that streams here hold: what none of them has, now and when this was last asked.
    fn adrift(&self, held: Vec<(ContextId, TaskId, DeliveryId)>) -> Vec<(ContextId, TaskId, DeliveryId)> {
        let mut state = self.lock();
        let missing: Vec<_> = held.into_iter().filter(|(_, _, id)| !state.held.contains_key(id)).collect();
        // One that is just being put is missing too.
        let now: HashSet<_> = missing.iter().map(|(_, _, delivery)| *delivery).collect();
        let before = std::mem::replace(&mut state.adrift, now);
        missing.into_iter().filter(|(_, _, delivery)| before.contains(delivery)).collect()
    }
}

impl SessionStreams {
    fn has_turn(&mut self, has_turn: bool, now: Timestamp) {
        if has_turn && self.elsewhere {
            self.progress_from = now;
        }
        self.elsewhere = !has_turn;
    }
}

impl ResultStream {
    /// The stream of the session that made the task was here and has gone.
    pub(super) fn said_elsewhere_until(&self, now: Timestamp) {
        if self.progress_from.load(Ordering::Relaxed) != i64::MAX {
            self.progress_from.store(now.micros(), Ordering::Relaxed);
        }
    }

    /// Where the stream of the session is that made the task: progress goes there while it is at another node.
    fn sessions_stream_is(&self, is_elsewhere: bool, now: Timestamp) {
        self.elsewhere.store(is_elsewhere, Ordering::Relaxed);
        if is_elsewhere {
            self.progress_from.store(i64::MAX, Ordering::Relaxed);
        } else if self.progress_from.load(Ordering::Relaxed) == i64::MAX {
            self.progress_from.store(now.micros(), Ordering::Relaxed);
        }
    }
}

impl State {
    fn stream(&self, context: ContextId, stream: StreamId) -> Option<Found<'_>> {
        let mut sessions = self.sessions.values().filter(|streams| streams.context == context);
        let opened = sessions.find_map(|streams| streams.open.iter().find(|opened| opened.stream == stream));
        if let Some(Opened { key, line, is_ready, .. }) = opened {
            return Some(Found { key: *key, line, is_ready: *is_ready });
        }
        let mut results = self.results.values().flatten();
        let result = results.find(|result| result.stream == stream && result.context == context)?;
        Some(Found { key: result.key, line: &result.line, is_ready: result.is_ready.load(Ordering::Relaxed) })
    }
}
