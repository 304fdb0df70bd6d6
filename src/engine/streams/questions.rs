//! Questions of tasks on their way to a client (INPUT-02, INPUT-12, INPUT-14).
//!
//! A question is claimed in the store before it is sent (`put`): by a waiting `tasks/result` at once, by the GET stream of its
//! session a moment later. A stream that ends lets go what it holds, and the question goes out anew, under a new id, on
//! whichever stream is next; on the same stream, resumed on whichever node, it goes on under its old one (`resume`).

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;

use super::delivery::Delivery;
use super::follow::request;
use super::line::Line;
use super::put::{Again, Placed, Sending};
use super::{Held, Opened, ResultStream, SessionStreams, State, Streams};
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::client_task::ClientTask;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, DeliveryId, InputId, NodeId, SessionId, StreamId, TaskId};
use crate::domain::input::Question;
use crate::engine::Engine;
use crate::lifecycle;
use crate::store::{Closed, Closing, OpenInput, Purpose};

/// How long a question waits for a `tasks/result` before the session's GET stream takes it.
const GET_WAITS: Duration = Duration::from_millis(200);

/// An open question.
#[derive(Clone)]
pub(super) struct Subject {
    pub(super) input: InputId,
    pub(super) task: TaskId,
    pub(super) context: ContextId,
    pub(super) question: Question,
    /// The client's own task for it.
    pub(super) client_task: Option<ClientTask>,
}

/// Where a question can go.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) key: u64,
    pub(super) stream: StreamId,
    pub(super) session: SessionId,
    pub(super) capabilities: ClientCapabilities,
    pub(super) line: Arc<Line>,
    /// Not before this.
    pub(super) after: Duration,
}

/// Which streams of this node a question finds.
pub(super) enum Found {
    Stream(Target),
    /// Only clients that have not said yet that they are initialized, in these sessions (HTTP-16).
    Uninitialized(Vec<SessionId>),
    Nothing,
}

impl Streams {
    /// Its client answered: it does not hold the question any more, and needs not be told. An answer that was refused goes
    /// the same way; the question is open again then.
    pub(in crate::engine) fn question_answered(&self, delivery: DeliveryId) {
        self.lock().held.remove(&delivery);
    }

    /// The question was withdrawn, ran out of time, or was answered by another way: who holds it is told.
    pub(in crate::engine) fn question_closed(&self, input: InputId) {
        let now = self.clock.now();
        let mut state = self.lock();
        let of_it = state.held.iter().filter(|(_, held)| held.subject.input == input);
        let held: Vec<_> = of_it.map(|(id, _)| *id).collect();
        for delivery in held {
            state.withdraw(delivery, now);
        }
    }

    pub(super) fn withdraw_all_of(state: &mut State, task: TaskId, now: Timestamp) {
        let of_it = state.held.iter().filter(|(_, held)| held.subject.task == task);
        let held: Vec<_> = of_it.map(|(id, _)| *id).collect();
        for delivery in held {
            state.withdraw(delivery, now);
        }
    }

    /// The questions that clients of this node hold, each with the key of its stream; without one while that takes back what
    /// it had, from whichever node.
    pub(super) fn held(&self) -> HashMap<DeliveryId, Option<u64>> {
        let state = self.lock();
        state.held.iter().map(|(delivery, held)| (*delivery, state.key_of(held))).collect()
    }

    pub(super) fn find(&self, question: &OpenInput) -> Found {
        let state = self.lock();
        let mut uninitialized = Vec::new();
        let weight = Delivery::weight_of(&question.question);
        let results = state.results.get(&question.task).into_iter().flatten();
        let is_open = |stream: &&Arc<ResultStream>| stream.is_usable() && stream.context == question.context;
        for stream in results.filter(is_open) {
            let Some(session) = stream.session.filter(|_| stream.capabilities.lacks(&question.question).is_none())
            else {
                continue;
            };
            if !stream.is_initialized() {
                uninitialized.push(session);
            } else if stream.line.has_room(weight) {
                return Found::Stream(stream.target(session));
            }
        }
        if let Some(id) = question.session
            && let Some(session) = state.sessions.get(&id)
            && session.context == question.context
            && session.capabilities.lacks(&question.question).is_none()
            && let Some(opened) = state.session_line(id).filter(|opened| opened.is_ready)
        {
            if !session.initialized {
                uninitialized.push(id);
            } else if opened.line.has_room(weight) {
                let after = GET_WAITS.saturating_sub(self.clock.now().since(question.created));
                return Found::Stream(Target { after, ..session.target(id, opened) });
            }
        }
        if uninitialized.is_empty() { Found::Nothing } else { Found::Uninitialized(uninitialized) }
    }

    /// Notes that the session's client is initialized; whether that is news.
    pub(super) fn initialized(&self, session: SessionId) -> bool {
        let mut state = self.lock();
        let mut is_news = false;
        if let Some(session) = state.sessions.get_mut(&session) {
            is_news |= !std::mem::replace(&mut session.initialized, true);
        }
        for stream in state.results.values().flatten().filter(|stream| stream.session == Some(session)) {
            is_news |= !stream.initialized.swap(true, Ordering::Relaxed);
        }
        drop(state);
        self.plain.initialized(session);
        is_news
    }

    /// The tasks that streams of this session may be asked about.
    fn tasks_of(&self, session: SessionId) -> Vec<(ContextId, TaskId)> {
        let state = self.lock();
        let waiting = state.results.values().flatten().filter(|stream| stream.session == Some(session));
        let mut tasks: Vec<_> = waiting.map(|stream| (stream.context, stream.task)).collect();
        if let Some(session) = state.sessions.get(&session) {
            tasks.extend(session.shown.keys().map(|task| (session.context, *task)));
        }
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }
}

impl State {
    /// The key of the stream that has the question; `None` while that takes back what it had.
    pub(super) fn key_of(&self, held: &Held) -> Option<u64> {
        self.is_settled(held).then_some(held.target.key)
    }

    /// Whether the stream of a question is open, and has taken back what it had.
    fn is_settled(&self, Held { subject, target, .. }: &Held) -> bool {
        let mut results = self.results.get(&subject.task).into_iter().flatten();
        let mut opened = self.sessions.get(&target.session).into_iter().flat_map(|streams| &streams.open);
        results.any(|stream| stream.key == target.key && stream.is_ready.load(Ordering::Relaxed))
            || opened.any(|opened| opened.key == target.key && opened.is_ready)
    }

    pub(super) fn withdraw(&mut self, delivery: DeliveryId, now: Timestamp) {
        let Some(Held { subject, target, following, .. }) = self.held.remove(&delivery) else { return };
        let id = delivery.to_string();
        let was_unread = target.line.take_back(&id);
        match following.filter(|following| following.known.is_some()) {
            // Never `notifications/cancelled` for a task.
            Some(following) => {
                if let Some(cancel) = following.cancel() {
                    target.line.push(cancel, now);
                }
            }
            None if !was_unread => {
                let reason = "this question is not open any more";
                target.line.push(Delivery::Withdrawn { id, task: Some(subject.task), reason }, now);
            }
            None => {}
        }
    }
}

impl Engine {
    /// Of what this node, under this id, was found to hold: not open any more, or another stream's by now.
    pub(super) fn questions_closed(
        self: &Arc<Self>,
        closed: Vec<Closed>,
        held: &HashMap<DeliveryId, Option<u64>>,
        node: NodeId,
    ) {
        let now = self.now();
        for Closed { delivery, how } in closed {
            match how {
                Closing::Answered => self.streams.question_answered(delivery),
                Closing::Withdrawn => self.streams.lock().withdraw(delivery, now),
                // Asked by an id that this node had before, its own may look like another's.
                Closing::Moved if node != self.membership.node() => {}
                Closing::Moved => {
                    if let Some(key) = held.get(&delivery).copied().flatten() {
                        self.goes_on_elsewhere(delivery, key);
                    }
                }
            }
        }
    }

    /// A hint: the task has a question that nobody holds.
    pub(in crate::engine) fn question_opened(
        self: &Arc<Self>,
        context: ContextId,
        task: TaskId,
        session: Option<SessionId>,
    ) {
        self.waiters.asked(task);
        let is_heard = {
            let state = self.streams.lock();
            let by_session = |session| state.sessions.contains_key(&session);
            state.results.contains_key(&task) || session.is_none_or(by_session)
        };
        if is_heard {
            let engine = Arc::clone(self);
            lifecycle::spawn("offer", async move { engine.offer_of(context, task).await });
        }
    }

    /// Puts the open questions of a task on streams of this node.
    pub(super) async fn offer_of(self: &Arc<Self>, context: ContextId, task: TaskId) {
        match self.store.system().open_inputs(context, task).await {
            Ok(open) => {
                for question in open {
                    self.offer(question).await;
                }
            }
            Err(error) => tracing::debug!(task.id = %task, %error, "cannot look for questions; the next round does"),
        }
    }

    /// Puts a question on a stream of this node, if it has one for it, now or when its time has come.
    pub(super) fn offer(
        self: &Arc<Self>,
        mut question: OpenInput,
    ) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        let engine = Arc::clone(self);
        Box::pin(async move {
            if question.held.is_some() || !engine.streams.lock().offering.insert(question.id) {
                return;
            }
            let offering = Offering { engine: Arc::clone(&engine), input: question.id };
            let known = question.client_task.as_ref().and_then(ClientTask::read);
            let found = match (&known, question.last) {
                (Some(known), Some(last)) => engine.find_client(&mut question, last, known).await,
                _ => engine.streams.find(&question),
            };
            let target = match found {
                Found::Stream(target) => target,
                Found::Uninitialized(sessions) => {
                    drop(offering);
                    engine.look_whether_initialized(question.context, sessions).await;
                    return;
                }
                Found::Nothing => return,
            };
            let (target, again) = match engine.where_it_was(&question, target).await {
                Ok(was) => was,
                Err(error) => {
                    let task = question.task;
                    tracing::debug!(task.id = %task, %error, "cannot look where a question was; the next round does");
                    return;
                }
            };
            if target.after.is_zero() {
                engine.ask_or_go_on(&question, target, again).await;
                return;
            }
            if !engine.streams.lock().waiting.insert(question.id) {
                return;
            }
            drop(offering);
            lifecycle::spawn("offer", async move {
                tokio::time::sleep(target.after).await;
                engine.streams.lock().waiting.remove(&question.id);
                // It may be gone by now, and so may the stream; or a better one has come.
                let due = OpenInput { created: Timestamp::from_micros(0), ..question };
                engine.offer(due).await;
            });
        })
    }

    /// Puts a question to a client, or goes on with the client's own task for it.
    async fn ask_or_go_on(self: &Arc<Self>, question: &OpenInput, target: Target, again: Option<Again>) {
        let OpenInput { id: input, task, context, .. } = *question;
        let client_task = question.client_task.as_ref().and_then(ClientTask::read);
        let purpose = if client_task.is_some() { Purpose::TaskGet } else { Purpose::Question };
        let told = (purpose != Purpose::Question || target.capabilities.takes_tasks(question.question.kind))
            .then(Arc::<Notify>::default);
        let subject = Subject { input, task, context, question: question.question.clone(), client_task };
        let placed = self.put(subject, target, Sending { purpose, before: None, again, told: told.clone() }).await;
        if let (Placed::At(delivery), Some(told)) = (placed, told) {
            self.follow(delivery, told, purpose);
        }
    }

    /// The client of this session has said `notifications/initialized`, at this node (HTTP-16).
    pub fn session_initialized(self: &Arc<Self>, session: SessionId) {
        if self.streams.initialized(session) {
            for (context, task) in self.streams.tasks_of(session) {
                self.question_opened(context, task, Some(session));
            }
        }
    }

    /// The same said at another node is found in the session's row.
    async fn look_whether_initialized(self: &Arc<Self>, context: ContextId, sessions: Vec<SessionId>) {
        for id in sessions {
            if let Ok(Some(session)) = self.store.system().session(context, id).await
                && session.initialized
            {
                self.session_initialized(id);
            }
        }
    }
}

impl Subject {
    /// What is sent for this purpose under this id.
    pub(super) fn message(&self, purpose: Purpose, delivery: DeliveryId, as_task: Option<Duration>) -> Delivery {
        let about = self.client_task.as_ref().and_then(|known| request(purpose, delivery, &known.id));
        about.unwrap_or_else(|| {
            let question = self.question.clone();
            Delivery::Ask { id: delivery.to_string(), task: Some(self.task), question, as_task }
        })
    }
}

impl ResultStream {
    /// As a place for questions; `session` is its own.
    pub(super) fn target(&self, session: SessionId) -> Target {
        let (key, stream, line) = (self.key, self.stream, Arc::clone(&self.line));
        Target { key, stream, session, capabilities: self.capabilities, line, after: Duration::ZERO }
    }
}

impl SessionStreams {
    /// One of its streams as a place for questions; `session` is its own.
    pub(super) fn target(&self, session: SessionId, opened: &Opened) -> Target {
        let (key, stream, line) = (opened.key, opened.stream, Arc::clone(&opened.line));
        Target { key, stream, session, capabilities: self.capabilities, line, after: Duration::ZERO }
    }
}

/// A question that is being put; may be put again once this is dropped.
struct Offering {
    engine: Arc<Engine>,
    input: InputId,
}

impl Drop for Offering {
    fn drop(&mut self) {
        self.engine.streams.lock().offering.remove(&self.input);
    }
}
