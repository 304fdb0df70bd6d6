//! Questions of tasks on their way to a client (INPUT-02, INPUT-12, INPUT-14).
//!
//! A question is claimed in the store before it is sent: by a waiting `tasks/result` at once, by the GET stream of its
//! session a moment later. A stream that ends lets go what it holds, and the question goes out anew, under a new id, on
//! whichever stream is next.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;

use super::delivery::Delivery;
use super::follow::{Following, request};
use super::line::Line;
use super::{Held, Opened, ResultStream, SessionStreams, State, Streams};
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::client_task::ClientTask;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, DeliveryId, InputId, SessionId, StreamId, TaskId};
use crate::domain::input::Question;
use crate::engine::Engine;
use crate::lifecycle;
use crate::store::{Closed, Hold, OpenInput, Purpose};

/// How long a question waits for a `tasks/result` before the session's GET stream takes it.
const GET_WAITS: Duration = Duration::from_millis(200);
/// Between tries to give a question back while the database is away.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// How long a stream stands still while the store is asked for a question that goes on it.
const STALLS: Duration = Duration::from_secs(1);

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
    stream: StreamId,
    session: SessionId,
    pub(super) capabilities: ClientCapabilities,
    pub(super) line: Arc<Line>,
    /// Not before this.
    pub(super) after: Duration,
}

/// What became of a message for a client.
pub(super) enum Placed {
    /// Sent under this id.
    At(DeliveryId),
    /// The question is not open any more, or another stream's.
    Nowhere,
    /// It may be tried again.
    NotNow,
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

    /// The questions that clients of this node hold.
    pub(super) fn held(&self) -> Vec<DeliveryId> {
        self.lock().held.keys().copied().collect()
    }

    /// Of what this node held: not open any more, or another stream's by now.
    pub(super) fn closed(&self, deliveries: Vec<Closed>) {
        let now = self.clock.now();
        let mut state = self.lock();
        for Closed { delivery, is_answer } in deliveries {
            if is_answer {
                state.held.remove(&delivery);
            } else {
                state.withdraw(delivery, now);
            }
        }
    }

    /// Forgets what a stream held; answers what that was, to be given back. Until it is, the stream is leaving.
    pub(super) fn let_go_of(state: &mut State, key: u64, stream: StreamId) -> Vec<(DeliveryId, TaskId)> {
        let gone = state.held.extract_if(|_, held| held.target.key == key);
        let gone: Vec<_> = gone.map(|(delivery, held)| (delivery, held.subject.task)).collect();
        if !gone.is_empty() {
            state.leaving.push(stream);
        }
        gone
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

    /// Puts a question that the store says is ours in its place; false if its stream has gone.
    fn hold(&self, held: Held, delivery: DeliveryId, before: Option<DeliveryId>) -> bool {
        let mut state = self.lock();
        let message = state.is_open(&held).then(|| held.message.clone());
        let is_open = message.is_some();
        let is_put = held.target.line.fill(held.sequence, message) && is_open;
        if is_put {
            if let Some(before) = before {
                state.held.remove(&before);
            }
            state.held.insert(delivery, held);
        }
        is_put
    }
}

impl State {
    /// Whether the stream on which it was put is still there.
    fn is_open(&self, Held { subject, target, .. }: &Held) -> bool {
        let is_result = self.results.get(&subject.task).into_iter().flatten().any(|stream| stream.key == target.key);
        let session = || self.sessions.get(&target.session);
        is_result || session().is_some_and(|streams| streams.open.iter().any(|opened| opened.key == target.key))
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
            if target.after.is_zero() {
                engine.ask_or_go_on(&question, target).await;
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
    async fn ask_or_go_on(self: &Arc<Self>, question: &OpenInput, target: Target) {
        let OpenInput { id: input, task, context, .. } = *question;
        let client_task = question.client_task.as_ref().and_then(ClientTask::read);
        let purpose = if client_task.is_some() { Purpose::TaskGet } else { Purpose::Question };
        let told = (purpose != Purpose::Question || target.capabilities.takes_tasks(question.question.kind))
            .then(Arc::<Notify>::default);
        let subject = Subject { input, task, context, question: question.question.clone(), client_task };
        let placed = self.put(subject, target, purpose, (None, told.clone())).await;
        if let (Placed::At(delivery), Some(told)) = (placed, told) {
            self.follow(delivery, told, purpose);
        }
    }

    /// Sends what `purpose` says, in the place of what was sent before. Whoever follows the client's task listens to `told`.
    pub(super) async fn put(
        self: &Arc<Self>,
        subject: Subject,
        target: Target,
        purpose: Purpose,
        (before, told): (Option<DeliveryId>, Option<Arc<Notify>>),
    ) -> Placed {
        let (now, delivery) = (self.now(), DeliveryId::new());
        let as_task = match (purpose, &told) {
            (Purpose::Question, Some(_)) => self.time_left(subject.context, subject.task).await,
            _ => None,
        };
        let message = subject.message(purpose, delivery, as_task);
        let Some(place) = target.line.reserve(message.weight(), now) else { return Placed::NotNow };
        let sequence = place.count;
        let (task, context) = (subject.task, subject.context);
        let hold = Hold {
            input: subject.input,
            task,
            delivery,
            session: target.session,
            stream: target.stream,
            sequence,
            node: self.membership.node(),
            purpose,
            now,
        };
        let store = self.store.system();
        let mut holding = store.hold_input(hold);
        let Ok(is_held) = tokio::time::timeout(STALLS, &mut holding).await else {
            // The stream goes on without it.
            drop(place);
            return match holding.await {
                Ok(false) => Placed::Nowhere,
                Ok(true) | Err(_) => {
                    self.give_back(vec![(delivery, task)], context, None);
                    Placed::NotNow
                }
            };
        };
        match is_held {
            Ok(true) => {
                let following = told.map(|told| Following {
                    known: subject.client_task.clone(),
                    answered: false,
                    cancels: target.capabilities.cancels_tasks(),
                    told,
                });
                let held = Held { subject, target, message, sequence, following };
                if self.streams.hold(held, delivery, before) {
                    return Placed::At(delivery);
                }
                self.give_back(vec![(delivery, task)], context, None);
                Placed::Nowhere
            }
            Ok(false) => Placed::Nowhere,
            Err(error) => {
                tracing::debug!(task.id = %task, %error, "cannot hold a question; another stream will");
                // It may have been written all the same.
                self.give_back(vec![(delivery, task)], context, None);
                Placed::NotNow
            }
        }
    }

    /// Lets others have what a stream held, which is leaving by [`Streams::let_go_of`], however long the database is away, and offers it here again.
    pub(super) fn give_back(
        self: &Arc<Self>,
        held: Vec<(DeliveryId, TaskId)>,
        context: ContextId,
        stream: Option<StreamId>,
    ) {
        if held.is_empty() {
            return;
        }
        let leaving = Leaving { engine: Arc::clone(self), stream };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let node = self.membership.node();
        let engine = Arc::clone(self);
        lifecycle::spawn("let go", async move {
            let deliveries: Vec<_> = held.iter().map(|(delivery, _)| *delivery).collect();
            while let Err(error) = engine.store.system().let_go(node, &deliveries).await {
                tracing::debug!(%error, "cannot give questions back; trying again");
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    // Whoever finds this node gone takes them.
                    () = engine.stopped.cancelled() => return,
                }
            }
            drop(leaving);
            let mut tasks: Vec<_> = held.into_iter().map(|(_, task)| task).collect();
            tasks.dedup();
            for task in tasks {
                engine.offer_of(context, task).await;
            }
        });
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

/// A stream whose questions are being given back, until dropped.
struct Leaving {
    engine: Arc<Engine>,
    stream: Option<StreamId>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut state = self.engine.streams.lock();
        if let Some(at) = state.leaving.iter().position(|leaving| Some(*leaving) == self.stream) {
            state.leaving.swap_remove(at);
        }
        drop(state);
        self.engine.streams.given_back.notify_waiters();
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
