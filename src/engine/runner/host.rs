//! The host of a task's attempt: takes what the work says, asks its questions, and waits for their answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::slots::Seat;
use crate::domain::answer::{refusal, summary};
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::ids::{ContextId, InputId, SessionId};
use crate::domain::input::{Answer, Question};
use crate::domain::lease::Lease;
use crate::domain::work::{Claim, UpstreamTask};
use crate::engine::input::{Awaited, NO_ANSWER, full, too_late};
use crate::engine::{Engine, InputRules};
use crate::executor::{Event, Host, Unasked};
use crate::lifecycle;
use crate::store::{Asked, NewInput, Taken};

/// Events that may wait for the note writer; what comes above is dropped.
const EVENTS: usize = 64;
/// Pause between tries while the database is away.
const PAUSE: Duration = Duration::from_millis(500);
/// A longer name of a question is not kept.
const MOST_NAME_BYTES: usize = 256;
/// How soon an attempt ends whose upstream is gone.
const GRACE: Duration = Duration::from_millis(500);

pub(in crate::engine) struct TaskHost {
    engine: Arc<Engine>,
    lease: Lease,
    context: ContextId,
    /// The session that made the task.
    session: Option<SessionId>,
    /// What the maker of the task declared.
    capabilities: ClientCapabilities,
    /// How long an answer may take.
    timeout: Option<Duration>,
    seat: Arc<Seat>,
    /// What the work says of its progress goes there.
    notes: Mutex<Notes>,
    over: CancellationToken,
    /// Set once the upstream runs the call as a task of its own.
    handed_over: Arc<Mutex<Option<UpstreamTask>>>,
    /// Questions of this attempt without an answer.
    open: Arc<AtomicUsize>,
}

/// Where notes of progress go: most work says nothing, and needs nobody who writes.
enum Notes {
    Unsaid,
    Said {
        events: mpsc::Sender<Event>,
        writer: JoinHandle<()>,
    },
    /// The attempt is over.
    Closed,
}

impl TaskHost {
    pub(super) fn new(engine: &Arc<Engine>, claim: &Claim, seat: &Arc<Seat>) -> Self {
        let tool = engine.catalogue.tool(&claim.work.tool);
        Self {
            engine: Arc::clone(engine),
            lease: claim.lease,
            context: claim.work.context,
            session: claim.work.session,
            capabilities: ClientCapabilities::parse(&claim.work.capabilities),
            timeout: tool.and_then(|tool| tool.input_timeout).or(engine.rules.input.timeout),
            seat: Arc::clone(seat),
            notes: Mutex::new(Notes::Unsaid),
            over: CancellationToken::new(),
            handed_over: Arc::new(Mutex::new(claim.handed_over.clone())),
            open: Arc::default(),
        }
    }

    /// Ends the attempt's say. What is still open is left to the write that settles the attempt. Answers who writes the last
    /// of what was said.
    pub(super) fn close(&self) -> Option<JoinHandle<()>> {
        self.over.cancel();
        match std::mem::replace(&mut *lock(&self.notes), Notes::Closed) {
            Notes::Said { writer, .. } => Some(writer),
            Notes::Unsaid | Notes::Closed => None,
        }
    }

    /// Has an event of progress written, as soon as may be.
    fn note(&self, event: Event) {
        let mut notes = lock(&self.notes);
        if matches!(*notes, Notes::Unsaid) {
            let (events, taken) = mpsc::channel(EVENTS);
            let writing = Arc::clone(&self.engine).write_notes(self.context, self.lease, taken);
            *notes = Notes::Said { events, writer: lifecycle::spawn("notes", writing) };
        }
        if let Notes::Said { events, .. } = &*notes {
            // A full channel drops the event: nobody waits for slow writers.
            drop(events.try_send(event));
        }
    }

    /// The upstream's own task that runs the call now.
    pub(super) fn upstream_task(&self) -> Option<UpstreamTask> {
        lock(&self.handed_over).clone()
    }

    /// The upstream's task is lost and the call is to be made anew: forgets the task, here and in the store, so that nobody
    /// follows it again. False if this attempt does not hold its task any more.
    pub(super) async fn take_back(&self) -> bool {
        loop {
            match self.engine.store.system().take_back(self.lease.task, self.lease.token).await {
                Ok(held) => {
                    if held {
                        *lock(&self.handed_over) = None;
                    }
                    return held;
                }
                Err(error) => {
                    tracing::debug!(task.id = %self.lease.task, %error, "a lost call cannot be taken back; trying again");
                    if pause(&self.over).await.is_none() {
                        return false;
                    }
                }
            }
        }
    }

    async fn put(&self, name: Option<String>, question: Question) -> Result<Answer, Unasked> {
        if let Some(refused) = self.engine.refuse_question(&self.capabilities, &question).await {
            return refused;
        }
        let open = match self.count_in(&self.engine.rules.input) {
            Ok(open) => open,
            Err(error) => return Ok(error),
        };
        // Dropping this future withdraws the question, which takes statements of its own.
        let left = CancellationToken::new();
        let _left_on_drop = left.clone().drop_guard();
        let asking = Asking {
            engine: Arc::clone(&self.engine),
            lease: self.lease,
            timeout: self.timeout,
            seat: Arc::clone(&self.seat),
            left,
            over: self.over.clone(),
            handed_over: Arc::clone(&self.handed_over),
            _open: open,
        };
        let asked = lifecycle::spawn("question", asking.run(name, question)).await;
        let internal = || refusal(NO_ANSWER, "internal", "an error inside this service ended the question");
        asked.unwrap_or_else(|_| Ok(internal()))
    }

    /// Counts a question in, or answers the limit that it would pass.
    fn count_in(&self, rules: &InputRules) -> Result<Open, Answer> {
        let open = Open::new(&self.open);
        if open.count > rules.open {
            return Err(full("limits.open_questions", rules.open));
        }
        Ok(open)
    }
}

/// One more open question, until dropped.
struct Open {
    all: Arc<AtomicUsize>,
    /// How many there are with this one.
    count: usize,
}

impl Open {
    fn new(all: &Arc<AtomicUsize>) -> Self {
        Self { all: Arc::clone(all), count: all.fetch_add(1, Ordering::SeqCst) + 1 }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Host for TaskHost {
    fn tell(&self, event: Event) {
        match event {
            Event::Progress { .. } => self.note(event),
            event => {
                // Held meanwhile: once the attempt is over nothing more is said.
                let notes = lock(&self.notes);
                if !matches!(*notes, Notes::Closed) {
                    self.engine.streams.task_event(self.lease.task, self.session, event);
                }
            }
        }
    }

    async fn ask(&self, question: Question) -> Result<Answer, Unasked> {
        self.put(None, question).await
    }

    async fn ask_named(&self, name: &str, question: Question) -> Result<Answer, Unasked> {
        self.put(Some(name.to_owned()).filter(|name| name.len() <= MOST_NAME_BYTES), question).await
    }

    async fn handed_over(&self, to: UpstreamTask) -> bool {
        loop {
            let (store, now) = (self.engine.store.system(), self.engine.clock.now());
            match store.hand_over(self.lease.task, self.lease.token, to.clone(), now).await {
                Ok(held) => {
                    if held {
                        *lock(&self.handed_over) = Some(to);
                    }
                    return held;
                }
                Err(error) => {
                    tracing::debug!(task.id = %self.lease.task, %error, "a handed-over call cannot be stored; trying again");
                    if pause(&self.over).await.is_none() {
                        return false;
                    }
                }
            }
        }
    }
}

/// One question on its way, independent of who waits for it.
struct Asking {
    engine: Arc<Engine>,
    lease: Lease,
    timeout: Option<Duration>,
    seat: Arc<Seat>,
    /// The work does not wait any more.
    left: CancellationToken,
    /// The attempt is over.
    over: CancellationToken,
    handed_over: Arc<Mutex<Option<UpstreamTask>>>,
    _open: Open,
}

/// What ended a wait.
enum Woken {
    Settled,
    Late,
    Left,
    Over,
}

impl Asking {
    async fn run(self, name: Option<String>, question: Question) -> Result<Answer, Unasked> {
        let engine = Arc::clone(&self.engine);
        let message = summary(&question, engine.rules.message_limit);
        let mut deadline = self.timeout.map(|timeout| engine.clock.now() + timeout);
        let most = engine.rules.input.questions;
        let mut awaited = engine.inputs.wait_for(InputId::new());
        let new = NewInput {
            id: awaited.id,
            task: self.lease.task,
            token: self.lease.token,
            question,
            name,
            deadline,
            most,
            message,
            now: engine.clock.now(),
        };
        let Some(asked) = self.ask(new).await else { return withdrawn() };
        let task = match asked {
            Asked::Stored(task) => task,
            Asked::Adopted { id, task, deadline: kept } => {
                deadline = kept;
                awaited = engine.inputs.wait_for(id);
                // It may have been answered while nobody ran the task.
                awaited.settled.notify_one();
                task
            }
            // One that may be another call's: that one may still ask.
            Asked::Full => return Err(Unasked(full("limits.questions", most))),
            Asked::Refused => return withdrawn(),
        };
        engine.streams.task_changed(&task);
        engine.question_opened(task.context, task.id, task.session);
        tracing::debug!(task.id = %self.lease.task, input.id = %awaited.id, "a question is open");
        let _waits = self.seat.waits();
        self.answer(&awaited, deadline.map(|deadline| deadline.since(engine.clock.now()))).await
    }

    /// Stores the question, however long the database is away. `None` if the attempt ended before that.
    async fn ask(&self, new: NewInput) -> Option<Asked> {
        loop {
            match self.engine.store.system().ask(new.clone()).await {
                Ok(asked) => return Some(asked),
                Err(error) => {
                    tracing::debug!(task.id = %self.lease.task, %error, "a question cannot be stored; trying again");
                    self.pause().await?;
                }
            }
        }
    }

    /// `left` is how long the question may still be open.
    async fn answer(&self, awaited: &Awaited<'_>, left: Option<Duration>) -> Result<Answer, Unasked> {
        let late = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(late);
        loop {
            let woken = tokio::select! {
                biased;
                () = awaited.settled.notified() => Woken::Settled,
                () = self.over.cancelled() => Woken::Over,
                () = self.left.cancelled() => Woken::Left,
                () = &mut late => Woken::Late,
            };
            let ended = match woken {
                Woken::Settled => self.take(awaited.id).await,
                Woken::Late => self.end_late(awaited.id).await,
                Woken::Left => {
                    if !self.is_kept().await {
                        self.withdraw(awaited.id).await;
                    }
                    Some(withdrawn())
                }
                Woken::Over => Some(withdrawn()),
            };
            if let Some(answer) = ended {
                return answer;
            }
        }
    }

    /// The answer if the question has one; `None` while it is open.
    async fn take(&self, id: InputId) -> Option<Result<Answer, Unasked>> {
        loop {
            match self.engine.store.system().take_answer(id, self.lease.token).await {
                Ok(Taken::Answer(answer)) => return Some(Ok(answer)),
                Ok(Taken::Open) => return None,
                Ok(Taken::Gone) => return Some(withdrawn()),
                Err(error) => {
                    tracing::debug!(task.id = %self.lease.task, %error, "an answer cannot be read; trying again");
                    if self.pause().await.is_none() {
                        return Some(withdrawn());
                    }
                }
            }
        }
    }

    async fn end_late(&self, id: InputId) -> Option<Result<Answer, Unasked>> {
        if self.withdraw(id).await {
            return Some(Ok(too_late(self.timeout.unwrap_or_default())));
        }
        // An answer was first.
        self.take(id).await.or_else(|| Some(withdrawn()))
    }

    /// Whether a question that the work left stays for the next attempt. An upstream that runs the call as a task of its own
    /// may be out of reach rather than have taken it back; then the attempt is over in a moment.
    async fn is_kept(&self) -> bool {
        if lock(&self.handed_over).is_none() {
            return false;
        }
        tokio::time::timeout(GRACE, self.over.cancelled()).await.is_ok()
    }

    /// True if the question was open until now.
    async fn withdraw(&self, id: InputId) -> bool {
        loop {
            let (store, now) = (self.engine.store.system(), self.engine.clock.now());
            match store.withdraw_input(id, self.lease.token, &self.engine.afterwards(), now).await {
                Ok(withdrawn) => {
                    if let Some(task) = &withdrawn {
                        self.engine.streams.question_closed(id);
                        self.engine.streams.task_changed(task);
                    }
                    return withdrawn.is_some();
                }
                Err(error) => {
                    tracing::debug!(task.id = %self.lease.task, %error, "a question cannot be withdrawn; trying again");
                    if self.pause().await.is_none() {
                        return false;
                    }
                }
            }
        }
    }

    async fn pause(&self) -> Option<()> {
        pause(&self.over).await
    }
}

/// A poisoned lock is taken all the same: each change under it is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None` if the attempt is over.
async fn pause(over: &CancellationToken) -> Option<()> {
    tokio::select! {
        () = tokio::time::sleep(PAUSE) => Some(()),
        () = over.cancelled() => None,
    }
}

/// The question, or the attempt that asked it, is gone.
fn withdrawn() -> Result<Answer, Unasked> {
    Err(Unasked(refusal(NO_ANSWER, "withdrawn", "the question was withdrawn")))
}
