//! Calls that are no tasks, each with a stream of its own: its progress, its log lines, its questions (INPUT-15).
//!
//! A call outlives its reader. One that comes back in time gets what it has not seen, at this node alone; one that does not
//! is gone for good, and what the work still asks gets an error.

mod asked;
mod asking;
mod away;
mod nobody;
mod session;

pub use asked::{Asked, Logs};
use asking::{NotPut, Open};
pub(super) use away::PlainCalls;
pub(in crate::engine) use nobody::Nobody;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::delivery::Delivery;
use super::line::Line;
use super::{Stream, Streams, WaitsFor};
use crate::domain::answer::refusal;
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::clock::Clock;
use crate::domain::ids::{ContextId, SessionId, StreamId, TaskId};
use crate::domain::input::{Answer, Question};
use crate::domain::json::RawJson;
use crate::domain::work::UpstreamTask;
use crate::engine::input::{NO_ANSWER, bad_answer, full, too_late};
use crate::engine::promote::UNTOLD;
use crate::engine::wait::{LARGE, Place};
use crate::engine::{Called, Caller, Engine, Refusal};
use crate::executor::{Event, Host, Unasked};
use crate::lifecycle;

/// What our own notes add to `progress` each: less than any work's first step.
const OWN_STEP: f64 = 1e-6;
/// Notes that may follow each other at once: few are no flood, and a client may count them.
const BURST: u32 = 16;
/// As a client says that does not serve what is asked of it.
const NOT_SERVED: i64 = -32601;

/// One call under way, or ended and not read yet.
pub(super) struct PlainCall {
    id: StreamId,
    context: ContextId,
    session: Option<SessionId>,
    request: String,
    pub(super) is_call: bool,
    /// Stops the work of a call that ends with its client.
    end: Option<CancellationToken>,
    logs: Logs,
    takes_requests: bool,
    capabilities: ClientCapabilities,
    /// Before that it is asked nothing (HTTP-16).
    is_initialized: AtomicBool,
    token: Option<RawJson>,
    clock: Arc<dyn Clock>,
    /// Between two notes of progress.
    interval: Duration,
    line: Arc<Line>,
    state: Mutex<CallState>,
    answer: OnceLock<Result<Called, Refusal>>,
}

/// How a reader left.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Left {
    /// The number of the answer, if it took that.
    pub(super) answered_at: Option<i64>,
    /// Whether its client knows an id by which it can come back.
    pub(super) can_come_back: bool,
}

#[derive(Default)]
struct CallState {
    /// The reader that is there, or was last.
    reader: u64,
    is_away: bool,
    /// Nobody will read any more.
    is_gone: bool,
    /// It has ended, or its session has: its client is asked nothing any more.
    is_over: bool,
    /// The number of the answer that a reader took.
    answered_at: Option<i64>,
    questions: HashMap<String, oneshot::Sender<Answer>>,
    pace: Pace,
    /// Held to the end of the work, and until a reader takes a large answer.
    place: Option<Place>,
}

/// Thins progress: the newest value is sent when its time has come.
struct Pace {
    last: f64,
    /// When everything that was sent would have been, one interval apart.
    paid: Option<Instant>,
    held_back: Option<RawJson>,
    /// How often we spoke ourselves.
    own: f64,
}

impl Pace {
    /// When the next one may go, if that is not now.
    fn due(&self, now: Instant, interval: Duration) -> Option<Instant> {
        let ahead = self.paid?.saturating_duration_since(now);
        let wait = ahead.checked_sub(interval * (BURST - 1)).filter(|wait| !wait.is_zero())?;
        Some(now + wait)
    }

    fn sent(&mut self, now: Instant, interval: Duration) {
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + interval);
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { last: f64::NEG_INFINITY, paid: None, held_back: None, own: 0.0 }
    }
}

impl PlainCall {
    /// Its end, to the reader that is there, and what that holds until it has sent it.
    pub(super) fn answer(&self, reader: u64) -> Option<(Result<Called, Refusal>, Option<Place>)> {
        let mut state = self.lock();
        if state.reader != reader {
            return None;
        }
        Some((self.answer.get()?.clone(), state.place.take()))
    }

    pub(super) const fn ends_with_client(&self) -> bool {
        self.end.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, CallState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, delivery: Delivery) -> bool {
        self.line.push(delivery, self.clock.now())
    }

    /// Sends progress now, or the newest of it when the time has come (NOTE-04).
    fn progress(self: &Arc<Self>, value: f64, params: RawJson) {
        let Some(token) = &self.token else { return };
        let mut state = self.lock();
        if state.is_gone || value <= state.pace.last {
            return;
        }
        state.pace.last = value;
        let now = Instant::now();
        let Some(due) = state.pace.due(now, self.interval) else {
            // Under the lock, and the older one first: values only grow.
            for params in state.pace.held_back.take().into_iter().chain([params]) {
                state.pace.sent(now, self.interval);
                self.push(Delivery::Progress { task: None, token: token.clone(), params });
            }
            return;
        };
        if state.pace.held_back.replace(params).is_none() {
            let call = Arc::downgrade(self);
            lifecycle::spawn("progress", async move {
                tokio::time::sleep_until(due).await;
                if let Some(call) = call.upgrade() {
                    call.send_held_back();
                }
            });
        }
    }

    fn send_held_back(&self) {
        let mut state = self.lock();
        let Some((params, token)) = state.pace.held_back.take().zip(self.token.clone()) else { return };
        state.pace.sent(Instant::now(), self.interval);
        self.push(Delivery::Progress { task: None, token, params });
    }

    /// A note of our own, so that a host does not give the call up while its server starts.
    fn still_waiting(self: &Arc<Self>) {
        let (value, is_first_word) = {
            let mut state = self.lock();
            state.pace.own += 1.0;
            (state.pace.own * OWN_STEP, state.pace.last < 1.0)
        };
        if is_first_word {
            let note = json!({ "progress": value, "message": "waiting for the tool's server" });
            self.progress(value, RawJson::from_value(&note));
        }
    }

    fn is_gone(&self) -> bool {
        self.lock().is_gone
    }

    /// Nobody will answer any more what is open.
    fn give_up(&self) {
        let questions = {
            let mut state = self.lock();
            state.is_gone = true;
            std::mem::take(&mut state.questions)
        };
        drop(questions);
        self.line.close();
    }

    /// The task that the call became, or what is stored of one that asks, if its client left before it was told.
    fn untold_task(&self) -> Option<TaskId> {
        let state = self.lock();
        let is_untold = self.ends_with_client() && state.is_away && state.answered_at.is_none();
        match self.answer.get().filter(|_| is_untold)? {
            Ok(Called::Promoted(created)) => Some(created.task.id),
            Ok(Called::Asks(round)) => Some(round.call),
            _ => None,
        }
    }
}

/// The host of a call that is no task.
pub(in crate::engine) struct PlainHost {
    engine: Arc<Engine>,
    call: Arc<PlainCall>,
}

#[async_trait]
impl Host for PlainHost {
    fn tell(&self, event: Event) {
        match event {
            Event::Progress { progress, params, .. } => self.call.progress(progress, params),
            Event::Waiting => self.call.still_waiting(),
            Event::Log { .. } | Event::ElicitationComplete { .. } if self.call.is_gone() => {}
            Event::Log { params } => {
                let of_session = || self.engine.streams.levels.admits(self.call.session, &params);
                if self.call.logs.admit(&params, of_session) {
                    self.call.push(Delivery::Log { task: None, params });
                }
            }
            Event::ElicitationComplete { params } => {
                self.call.push(Delivery::ElicitationComplete { task: None, params });
            }
        }
    }

    async fn ask(&self, question: Question) -> Result<Answer, Unasked> {
        let rules = &self.engine.rules.input;
        if let Some(refused) = self.refuses(&question).await {
            return refused;
        }
        if !self.call.takes_requests || !self.engine.is_call_initialized(&self.call).await {
            return Err(Unasked(not_served()));
        }
        let asking = self.ask_until_it_fits(&question);
        match rules.timeout {
            None => asking.await,
            Some(limit) => tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| Ok(too_late(limit))),
        }
    }

    async fn handed_over(&self, _to: UpstreamTask) -> bool {
        true
    }
}

impl PlainHost {
    /// What the work gets if the caller may not be asked this.
    pub(in crate::engine) async fn refuses(&self, question: &Question) -> Option<Result<Answer, Unasked>> {
        self.engine.refuse_question(&self.call.capabilities, question).await
    }

    /// Its context's right to have it run.
    pub(in crate::engine) fn hold(&self, place: Place) {
        self.call.lock().place = Some(place);
    }

    async fn ask_until_it_fits(&self, question: &Question) -> Result<Answer, Unasked> {
        let mut refused = 0;
        loop {
            let (open, answered) = match self.put(question) {
                Ok(put) => put,
                Err(NotPut::Full) => return Ok(full("limits.open_questions", self.engine.rules.input.open)),
                Err(NotPut::Unheard) => return Err(Unasked(not_served())),
            };
            let Ok(answer) = answered.await else {
                return Err(Unasked(refusal(NO_ANSWER, "caller_gone", "the caller is gone")));
            };
            drop(open);
            match self.engine.check_answer(question, &answer).await {
                Ok(()) => return Ok(answer),
                Err(why) if refused >= self.engine.rules.input.refused => return Ok(bad_answer(&why)),
                Err(_) => refused += 1,
            }
        }
    }

    fn put(&self, question: &Question) -> Result<(Open<'_>, oneshot::Receiver<Answer>), NotPut> {
        let id = self.engine.streams.key.question_id(self.call.context);
        let (answer, answered) = oneshot::channel();
        // Before its client can answer it.
        self.engine.streams.plain.lock().questions.insert(id.clone(), Arc::clone(&self.call));
        let open = Open { host: self, id };
        self.call.put(&open.id, question, answer, self.engine.rules.input.open)?;
        Ok((open, answered))
    }
}

fn not_served() -> Answer {
    refusal(NOT_SERVED, "caller_takes_no_requests", "the caller takes no requests while it waits")
}

fn bytes_of(answer: &Result<Called, Refusal>) -> usize {
    match answer {
        Ok(Called::Outcome(outcome)) => outcome.json().map_or(0, RawJson::len),
        Ok(Called::Promoted(_) | Called::Asks(_) | Called::Stopped) | Err(_) => 0,
    }
}

impl Streams {
    /// Hands an answer to the question of a call of this node; false if there is none with this id, in this context.
    pub(super) fn answered_here(&self, context: ContextId, id: &str, answer: Answer) -> Result<(), Answer> {
        let call = self.plain.lock().questions.get(id).cloned();
        let Some(call) = call.filter(|call| call.context == context) else { return Err(answer) };
        // The first answer counts; the question may be gone this very moment.
        if let Some(waiting) = call.lock().questions.remove(id) {
            let _gone = waiting.send(answer);
        }
        Ok(())
    }
}

impl Engine {
    /// A call's stream, and the host of its work, which `stop` ends.
    pub(in crate::engine) fn open_call(
        self: &Arc<Self>,
        caller: &Caller,
        asked: Asked,
        token: Option<RawJson>,
        stop: CancellationToken,
    ) -> (Stream, Arc<PlainHost>) {
        let line = Arc::new(Line::new(0, true));
        let reader = line.attach(None);
        let is_gone = !asked.takes_events;
        let call = Arc::new(PlainCall {
            id: StreamId::new(),
            context: caller.auth.id(),
            session: caller.session,
            request: asked.request,
            is_call: asked.is_call,
            end: asked.ends_with_client.then_some(stop),
            logs: asked.logs,
            takes_requests: caller.takes_requests,
            capabilities: caller.declared(),
            is_initialized: AtomicBool::new(caller.initialized),
            token,
            clock: Arc::clone(&self.clock),
            interval: self.rules.progress_interval,
            line: Arc::clone(&line),
            state: Mutex::new(CallState { reader, is_gone, ..CallState::default() }),
            answer: OnceLock::new(),
        });
        if asked.takes_events {
            self.streams.plain.lock().calls.insert(call.id, Arc::clone(&call));
        }
        let host = Arc::new(PlainHost { engine: Arc::clone(self), call: Arc::clone(&call) });
        (self.stream_of(call, line, reader), host)
    }

    fn stream_of(self: &Arc<Self>, call: Arc<PlainCall>, line: Arc<Line>, reader: u64) -> Stream {
        let id = call.id;
        let waits_for = WaitsFor::Call { call, left: Left::default() };
        Stream { engine: Arc::clone(self), key: 0, id, line, reader, waits_for }
    }

    /// The call's end: nothing is said on its stream after it.
    pub(in crate::engine) fn close_call(self: &Arc<Self>, host: &PlainHost, answer: Result<Called, Refusal>) {
        let call = &host.call;
        call.send_held_back();
        let bytes = bytes_of(&answer);
        if call.answer.set(answer).is_err() {
            return;
        }
        call.withdraw_questions();
        call.line.close();
        self.cancel_untold(call);
        let (is_away, is_gone) = {
            let mut state = call.lock();
            // What is kept for one who is away has bounds of its own.
            if state.is_away || bytes <= LARGE {
                state.place = None;
            }
            (state.is_away, state.is_gone)
        };
        if is_away && is_gone {
            self.streams.plain.forget(call.id);
        } else if is_away {
            self.streams.plain.keep_unread(call, bytes);
        }
    }

    /// Goes on with a call's stream after the message of this number, in the place of any other reader. `None` if the call
    /// is not at this node, ended and was read, or is not this caller's.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] if its answer is there and large, and too many requests of its context wait or are sent such.
    pub fn resume_call(
        self: &Arc<Self>,
        caller: &Caller,
        stream: StreamId,
        request: &str,
        after: i64,
    ) -> Result<Option<Stream>, Refusal> {
        let Some(call) = self.streams.plain.lock().calls.get(&stream).cloned() else { return Ok(None) };
        if call.context != caller.auth.id() || call.session != caller.session || call.request != request {
            return Ok(None);
        }
        let reader = {
            let mut state = call.lock();
            // Who has seen the end has nothing to come back for.
            if state.is_gone || state.answered_at.is_some_and(|at| at <= after) {
                return Ok(None);
            }
            if state.place.is_none() && call.answer.get().is_some_and(|answer| bytes_of(answer) > LARGE) {
                state.place = Some(self.waiters.place(call.context)?);
            }
            state.is_away = false;
            state.reader = call.line.attach(Some(after));
            state.reader
        };
        self.streams.plain.is_read(call.id);
        let line = Arc::clone(&call.line);
        Ok(Some(self.stream_of(call, line, reader)))
    }

    /// A reader has left. What it was sent may not have arrived, the answer either.
    pub(super) fn call_left(self: &Arc<Self>, call: &Arc<PlainCall>, reader: u64, left: Left) {
        {
            let mut state = call.lock();
            if state.reader != reader {
                return;
            }
            state.is_away = true;
            state.answered_at = state.answered_at.or(left.answered_at);
            if call.answer.get().is_some() {
                state.place = None;
            }
        }
        if let Some(end) = &call.end {
            // Work that has ended does not notice.
            end.cancel();
        }
        self.cancel_untold(call);
        if !left.can_come_back {
            call.give_up();
            self.streams.plain.forget(call.id);
            return;
        }
        if let Some(answer) = call.answer.get() {
            self.streams.plain.keep_unread(call, bytes_of(answer));
        }
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        if self.streams.plain.left(call.id, reader, Instant::now() + self.rules.caller_grace) {
            let engine = Arc::clone(self);
            lifecycle::spawn("callers away", async move {
                tokio::select! {
                    () = engine.give_up_callers() => {}
                    () = engine.stopped.cancelled() => {}
                }
            });
        }
    }

    /// Whichever comes second sees it: that the call became a task, or that its client left without being told (MOD-10).
    fn cancel_untold(self: &Arc<Self>, call: &PlainCall) {
        if let Some(task) = call.untold_task() {
            self.cancel_unknown_task(task, UNTOLD);
        }
    }

    /// Gives up the calls that nobody comes back to, as long as there are any. It holds none of them meanwhile.
    async fn give_up_callers(&self) {
        while let Some(due) = self.streams.plain.next_due() {
            tokio::time::sleep_until(due).await;
            for call in self.streams.plain.take_due(Instant::now()) {
                call.give_up();
                self.streams.plain.forget(call.id);
            }
        }
    }
}
