//! Streams to clients: which are open here, and what goes on which of them.
//!
//! A session's own stream (GET) gets what is about its tasks; without one, a `tasks/result` that waits for the task gets it;
//! a call that is no task has a stream of its own. One message goes on one stream (INPUT-04). Clients without sessions listen
//! on streams of news, as many as they like. Nothing here is the truth: the store is, and each round of
//! [`Engine::watch_once`] finds again what a hint has missed.
//!
//! Hints are methods of [`Streams`] that never wait. To add a kind of message: a variant of [`Delivery`], and its text in
//! `protocol/legacy/notify`.

mod delivery;
mod follow;
mod heard;
mod hints;
mod in_flight;
mod line;
mod listen;
mod open;
mod place;
mod plain;
mod put;
mod questions;
mod resume;
mod rounds;
mod show;
mod signals;
mod updates;

pub use delivery::{Delivery, Step};
pub(super) use hints::Hinted;
pub use listen::{Listening, News, Wants};
pub use open::Resume;
pub use plain::{Asked, Logs};
pub(super) use plain::{Nobody, PlainHost};
pub(super) use show::progress_of;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::logging::LogLevels;
use tokio::sync::Notify;

use super::wait::{Answered, Place};
use super::{Called, Engine, Looked, Refusal};
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::clock::{Clock, Timestamp};
use crate::domain::event_id::EventKey;
use crate::domain::ids::{ContextId, DeliveryId, InputId, SessionId, StreamId, TaskId};
use crate::store::Purpose;

use follow::Following;
use heard::Heard;
use in_flight::{Entry, InFlight};
use line::{Line, Read};
use listen::{Listener, Turn};
use plain::{Left, PlainCall, PlainCalls};
use questions::{Subject, Target};
use show::Shown;
use updates::Followers;

/// What is open on this node.
pub(super) struct Streams {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    pub(super) key: EventKey,
    pub(super) in_flight: Arc<InFlight>,
    plain: PlainCalls,
    pub(super) levels: LogLevels,
    signals: signals::Heard,
    rates: signals::Rates,
    ended: signals::Ended,
    /// Told when a stream has given back what it held.
    given_back: Notify,
    /// Told when a stream has taken back what it had, or is gone.
    settled: Notify,
    /// When the last whole round of questions began, in microseconds; 0 before the first.
    last_round: AtomicI64,
}

#[derive(Default)]
struct State {
    next: u64,
    sessions: HashMap<SessionId, SessionStreams>,
    results: HashMap<TaskId, Vec<Arc<ResultStream>>>,
    listeners: HashMap<u64, Listener>,
    /// Which of them follow a resource.
    followers: Followers,
    /// Tasks that they listen to.
    heard: HashMap<TaskId, Heard>,
    /// Questions that streams of this node have put to their clients.
    held: HashMap<DeliveryId, Held>,
    /// Questions that are being put to a client.
    offering: HashSet<InputId>,
    /// Questions whose moment has not come.
    waiting: HashSet<InputId>,
    /// Streams that ended and whose questions are being given back.
    leaving: Vec<StreamId>,
    /// Questions that no stream here had when the database was last asked what they hold.
    adrift: HashSet<DeliveryId>,
}

/// The GET streams of one session. The one that was opened last gets the messages.
struct SessionStreams {
    context: ContextId,
    capabilities: ClientCapabilities,
    initialized: bool,
    /// What the session's row names while it is their turn.
    id: StreamId,
    /// Whether the session's row names another node's: those here are silent.
    elsewhere: bool,
    /// Counts what makes an earlier look at the row worthless.
    version: u64,
    /// What had ended before this was never to be said.
    since: Timestamp,
    /// Progress that was written before this was another stream's to say.
    progress_from: Timestamp,
    open: Vec<Opened>,
    /// What was last said of each of its tasks.
    shown: HashMap<TaskId, Shown>,
}

#[derive(Clone)]
struct Opened {
    key: u64,
    stream: StreamId,
    line: Arc<Line>,
    /// False until it is known how its session's tasks stood when it was opened, and one that is resumed has taken back
    /// what it held: before that it is given no questions, and nothing that others did.
    is_ready: bool,
}

/// A `tasks/result` that waits on a stream.
struct ResultStream {
    key: u64,
    stream: StreamId,
    task: TaskId,
    context: ContextId,
    /// The session that waits.
    session: Option<SessionId>,
    /// The session that made the task.
    maker: Option<SessionId>,
    capabilities: ClientCapabilities,
    initialized: AtomicBool,
    /// As [`Opened::is_ready`].
    is_ready: AtomicBool,
    /// Whether the GET stream of the session that made the task is open at another node.
    elsewhere: AtomicBool,
    line: Arc<Line>,
    shown: Mutex<Shown>,
    /// As [`SessionStreams::progress_from`], in microseconds; the greatest number while that is so.
    progress_from: AtomicI64,
}

/// A question that a client of this node has.
struct Held {
    subject: Subject,
    target: Target,
    /// What was sent last for it.
    purpose: Purpose,
    /// Its number on the stream.
    sequence: i64,
    /// The key of the stream of this node on which that was, 0 if it was on another node's.
    sent_on: u64,
    /// Whether its stream, when it was resumed, took it from whoever had it.
    regained: bool,
    /// Of one that was sent as a task.
    following: Option<Following>,
}

impl Streams {
    pub(super) fn new(key: EventKey, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            key,
            in_flight: Arc::default(),
            plain: PlainCalls::default(),
            levels: LogLevels::default(),
            signals: signals::Heard::default(),
            rates: signals::Rates::default(),
            ended: signals::Ended::default(),
            given_back: Notify::new(),
            settled: Notify::new(),
            last_round: AtomicI64::new(0),
        }
    }

    /// Whether anything here may be told something by another node.
    pub(super) fn listens(&self) -> bool {
        let state = self.lock();
        let streams = !state.sessions.is_empty() || !state.results.is_empty();
        drop(state);
        streams || !self.in_flight.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is taken all the same: nothing under it is left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The stream that gets what is about a task of this session, if that is a GET stream of this node.
    fn session_line(&self, session: SessionId) -> Option<&Opened> {
        self.sessions.get(&session).filter(|session| !session.elsewhere)?.open.last()
    }
}

impl SessionStreams {
    fn line(&self) -> Option<&Arc<Line>> {
        self.open.last().filter(|_| !self.elsewhere).map(|opened| &opened.line)
    }
}

impl ResultStream {
    fn is_initialized(&self) -> bool {
        self.initialized.load(Ordering::Relaxed)
    }

    /// Whether questions may go on it.
    fn is_usable(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed) && !self.line.is_closed()
    }
}

/// One stream, read by whoever answers its client. Dropping it closes it: what it holds may go to another.
pub struct Stream {
    engine: Arc<Engine>,
    key: u64,
    id: StreamId,
    line: Arc<Line>,
    reader: u64,
    waits_for: WaitsFor,
}

type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum WaitsFor {
    /// Nothing: it goes on until it is closed.
    Nothing {
        session: SessionId,
        _place: Place,
    },
    News {
        turn: Turn,
        _place: Place,
    },
    Result {
        task: TaskId,
        wait: Waiting<Option<Result<Answered, Refusal>>>,
        entry: Entry,
    },
    Call {
        call: Arc<PlainCall>,
        left: Left,
    },
}

/// What a stream carries next.
#[derive(Debug)]
pub enum Item {
    Message {
        count: i64,
        delivery: Delivery,
    },
    /// How a task stands that the stream listens to.
    Task(Box<Looked>),
    /// The last: the answer of a `tasks/result`.
    Result {
        count: i64,
        answer: Result<Answered, Refusal>,
    },
    /// The last: the answer of a call that is no task.
    Called {
        count: i64,
        of_tool: bool,
        answer: Result<Called, Refusal>,
        /// Of a large one: to be held until the client has taken it.
        place: Option<Place>,
    },
    /// The end without an answer: its request was cancelled, its session ended, or another reader took it over.
    End,
}

impl Stream {
    #[must_use]
    pub const fn id(&self) -> StreamId {
        self.id
    }

    /// From now on the client knows ids of events: it can come back, unless its leaving ends its call.
    pub fn begin(&mut self) {
        if let WaitsFor::Call { call, left } = &mut self.waits_for {
            left.can_come_back = !call.ends_with_client();
        }
    }

    fn place(&self) -> Opened {
        Opened { key: self.key, stream: self.id, line: Arc::clone(&self.line), is_ready: false }
    }

    /// A number for an event that is no message.
    #[must_use]
    pub fn stamp(&self) -> i64 {
        self.line.stamp(self.engine.now())
    }

    /// Waits for what comes next. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Item {
        let (line, reader) = (&self.line, self.reader);
        let count = |line: &Line| line.stamp(self.engine.now());
        match &mut self.waits_for {
            WaitsFor::News { turn, .. } => self.engine.next_news((self.key, reader), line, turn).await,
            WaitsFor::Nothing { .. } => match line.next(reader).await {
                Read::Message { count, delivery } => Item::Message { count, delivery },
                Read::End => Item::End,
            },
            WaitsFor::Result { wait, .. } => tokio::select! {
                // What was said before the end comes before it.
                biased;
                read = line.next(reader) => match read {
                    Read::Message { count, delivery } => Item::Message { count, delivery },
                    Read::End => Item::End,
                },
                answer = wait => match answer {
                    Some(answer) => Item::Result { count: count(line), answer },
                    None => {
                        // Known before its client sees the end.
                        self.engine.streams.in_flight.was_cancelled(self.id, self.engine.now());
                        Item::End
                    }
                },
            },
            WaitsFor::Call { call, left } => match line.next(reader).await {
                Read::Message { count, delivery } => Item::Message { count, delivery },
                Read::End => match call.answer(reader) {
                    Some((answer, place)) => {
                        let count = count(line);
                        left.answered_at = Some(count);
                        Item::Called { count, of_tool: call.is_call, answer, place }
                    }
                    None => Item::End,
                },
            },
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        match &self.waits_for {
            WaitsFor::Nothing { session, .. } => self.engine.session_stream_closed(*session, self.key),
            WaitsFor::News { .. } => self.engine.listener_closed(self.key),
            WaitsFor::Result { task, entry, .. } => {
                if entry.stop().is_cancelled() {
                    self.engine.streams.in_flight.was_cancelled(self.id, self.engine.now());
                }
                self.engine.result_stream_closed(*task, self.key);
            }
            WaitsFor::Call { call, left } => self.engine.call_left(call, self.reader, *left),
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}
