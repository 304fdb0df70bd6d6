//! Waiting for a task's end. Waiters sit in memory and hold no database connection: what ends here is handed to them as it was
//! committed, ends at other nodes are found by one gathered question for all of them, and read once (KEEP-18).

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::outcomes::{Reading, SharedOutcome, Turn};
use super::{Caller, Engine, Refusal};
use crate::domain::ids::{ContextId, TaskId};
use crate::domain::outcome::Outcome;
use crate::domain::task::Task;
use crate::lifecycle;
use crate::store::StoreError;

/// How long a waiter that could not read its outcome waits before it tries again.
const RETRY: Duration = Duration::from_millis(500);
/// An outcome of more bytes counts among its reader's waiting requests until the client's connection has taken it (NOTE-10). A
/// smaller one leaves at once: it fits into what the system keeps for a connection.
pub(super) const LARGE: usize = 64 * 1024;

/// Who waits for what on this node.
pub(super) struct Waiters {
    state: Mutex<State>,
    per_context: usize,
    /// Whether a round of questions did not come to its end: the store says only once that something may have changed.
    pub(super) unasked: AtomicBool,
    /// Told when the first waiter comes, so that an idle node asks nothing.
    pub(super) arrived: Notify,
}

#[derive(Default)]
struct State {
    tasks: HashMap<TaskId, Entry>,
    contexts: HashMap<ContextId, usize>,
}

struct Entry {
    ended: Arc<Notify>,
    end: Arc<OnceLock<End>>,
    waiting: usize,
    /// How many of them wait for questions, too.
    for_questions: usize,
}

/// An end that was committed at this node.
struct End {
    task: Task,
    outcome: Arc<SharedOutcome>,
}

/// An ended task and its outcome, for one who is sent it.
#[derive(Debug)]
pub struct Answered {
    pub task: Task,
    pub outcome: Arc<SharedOutcome>,
    /// Of a large one.
    _place: Option<Place>,
}

/// A context's right to have one more request wait, or be sent a large outcome, given up on drop.
pub struct Place {
    waiters: Arc<Waiters>,
    context: ContextId,
}

/// A request that waits for a task.
pub(super) struct Waiter {
    waiters: Arc<Waiters>,
    /// Its own, unless its request has one already.
    place: Option<Place>,
    task: TaskId,
    for_questions: bool,
    /// Told when the task may have ended, or may have asked something.
    pub(super) ended: Arc<Notify>,
    /// How it ended, if that is known without a look at the store.
    end: Arc<OnceLock<End>>,
}

impl Waiters {
    pub(super) fn new(per_context: usize) -> Self {
        Self { state: Mutex::default(), per_context, unasked: AtomicBool::new(false), arrived: Notify::new() }
    }

    pub(super) fn wake(&self, task: TaskId) {
        if let Some(entry) = self.lock().tasks.get(&task) {
            entry.ended.notify_waiters();
        }
    }

    /// Whoever waits for the task has its end when it is next woken.
    fn has_ended(&self, task: &Task, outcome: impl FnOnce() -> Arc<SharedOutcome>) {
        let end = self.lock().tasks.get(&task.id).map(|entry| Arc::clone(&entry.end));
        if let Some(end) = end {
            end.get_or_init(|| End { task: task.clone(), outcome: outcome() });
        }
    }

    pub(super) fn waits_for(&self, task: TaskId) -> bool {
        self.lock().tasks.contains_key(&task)
    }

    pub(super) fn tasks(&self) -> Vec<TaskId> {
        self.lock().tasks.keys().copied().collect()
    }

    /// The task has asked something.
    pub(super) fn asked(&self, task: TaskId) {
        if let Some(entry) = self.lock().tasks.get(&task).filter(|entry| entry.for_questions > 0) {
            entry.ended.notify_waiters();
        }
    }

    /// Those whose questions are waited for.
    pub(super) fn asking(&self) -> Vec<TaskId> {
        let state = self.lock();
        state.tasks.iter().filter(|(_, entry)| entry.for_questions > 0).map(|(task, _)| *task).collect()
    }

    /// # Errors
    /// [`Refusal::LimitReached`].
    pub(super) fn place(self: &Arc<Self>, context: ContextId) -> Result<Place, Refusal> {
        let mut state = self.lock();
        let of_context = state.contexts.entry(context).or_default();
        if *of_context >= self.per_context {
            return Err(Refusal::LimitReached {
                limit: "limits.streams",
                most: self.per_context as u64,
                retry_after: Duration::from_secs(1),
            });
        }
        *of_context += 1;
        Ok(Place { waiters: Arc::clone(self), context })
    }

    pub(super) fn join(self: &Arc<Self>, context: ContextId, task: TaskId) -> Result<Waiter, Refusal> {
        let place = self.place(context)?;
        Ok(self.wait_for(task, Some(place)))
    }

    /// For a request that has a place, unless one is given.
    pub(super) fn wait_for(self: &Arc<Self>, task: TaskId, place: Option<Place>) -> Waiter {
        let mut state = self.lock();
        let new = || Entry { ended: Arc::default(), end: Arc::default(), waiting: 0, for_questions: 0 };
        let entry = state.tasks.entry(task).or_insert_with(new);
        entry.waiting += 1;
        let (ended, end) = (Arc::clone(&entry.ended), Arc::clone(&entry.end));
        drop(state);
        self.arrived.notify_one();
        Waiter { waiters: Arc::clone(self), place, task, for_questions: false, ended, end }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// The same, who is also told of questions.
    pub(super) fn for_questions(mut self) -> Self {
        if let Some(entry) = self.waiters.lock().tasks.get_mut(&self.task) {
            entry.for_questions += 1;
            self.for_questions = true;
        }
        self
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.waiters.lock();
        if let Some(entry) = state.tasks.get_mut(&self.task) {
            entry.waiting -= 1;
            entry.for_questions -= usize::from(self.for_questions);
            if entry.waiting == 0 {
                state.tasks.remove(&self.task);
            }
        }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.waiters.lock();
        if let Some(count) = state.contexts.get_mut(&self.context) {
            *count -= 1;
            if *count == 0 {
                state.contexts.remove(&self.context);
            }
        }
    }
}

impl Engine {
    /// An outcome for one who is sent it now.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] if it is large, and too many requests of its context wait or are sent such.
    pub(super) fn answered(
        &self,
        caller: &Caller,
        task: Task,
        outcome: Arc<SharedOutcome>,
    ) -> Result<Answered, Refusal> {
        let is_large = outcome.bytes() > LARGE;
        let place = is_large.then(|| self.waiters.place(caller.auth.id())).transpose()?;
        Ok(Answered { task, outcome, _place: place })
    }

    /// The task and its outcome, as soon as it has ended, on whichever node that happens (TASK-06, TASK-07). Dropping the
    /// future ends the waiting and nothing else. A database outage in the middle is waited out.
    pub(super) async fn wait(self: &Arc<Self>, caller: &Caller, mut waiter: Waiter) -> Result<Answered, Refusal> {
        loop {
            // Registered before the look, so that an end between the two is not missed.
            let woken = waiter.ended.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if let Some((task, outcome)) = self.end_known(caller, &waiter) {
                return Ok(answer(&mut waiter.place, task, outcome));
            }
            match self.task_and_outcome(caller, waiter.task).await {
                Ok((task, Some(outcome))) => return Ok(answer(&mut waiter.place, task, outcome)),
                Ok((_, None)) => woken.await,
                Err(Refusal::Store(StoreError::Unavailable(_))) => tokio::time::sleep(RETRY).await,
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Hands the end that this node has committed to those who wait for it here; they are woken when its attempt is over.
    pub(super) fn has_ended(&self, task: &Task, outcome: &Outcome) {
        self.waiters.has_ended(task, || self.outcomes.known(task.context, task.id, outcome.clone()));
    }

    /// The end that was handed to a waiter, if its caller may see it.
    fn end_known(&self, caller: &Caller, waiter: &Waiter) -> Option<(Task, Arc<SharedOutcome>)> {
        let End { task, outcome } = waiter.end.get()?;
        let is_seen = task.context == caller.auth.id() && task.is_visible(self.clock.now());
        is_seen.then(|| (task.clone(), Arc::clone(outcome)))
    }

    /// The task, with its outcome if it has ended. Each who asks looks at the task; one reads the outcome for all.
    pub(super) async fn task_and_outcome(
        self: &Arc<Self>,
        caller: &Caller,
        id: TaskId,
    ) -> Result<(Task, Option<Arc<SharedOutcome>>), Refusal> {
        loop {
            match self.outcomes.turn(caller.auth.id(), id) {
                Turn::First(reading) => {
                    let (engine, caller) = (Arc::clone(self), caller.clone());
                    // Apart from this request, which goes on only as fast as its client reads: others wait for it too.
                    let read = async move { engine.read_for_all(&caller, id, reading).await };
                    let read = lifecycle::spawn("read of an outcome", read).await;
                    return read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                }
                Turn::Later(awaiting) => {
                    let outcome = awaiting.outcome().await;
                    let task = self.get(caller, id).await?;
                    // What had not ended when it was read for others may have ended since.
                    if outcome.is_some() || !task.status.is_terminal() {
                        return Ok((task, outcome));
                    }
                }
            }
        }
    }

    async fn read_for_all(
        &self,
        caller: &Caller,
        id: TaskId,
        reading: Reading,
    ) -> Result<(Task, Option<Arc<SharedOutcome>>), Refusal> {
        let found = self.store.scoped(&caller.auth).outcome(id).await?;
        let now = self.clock.now();
        let (task, outcome) = found.filter(|(task, _)| task.is_visible(now)).ok_or(Refusal::UnknownTask)?;
        Ok((task, outcome.map(|outcome| reading.publish(outcome))))
    }
}

/// What a request that waited is answered.
fn answer(place: &mut Option<Place>, task: Task, outcome: Arc<SharedOutcome>) -> Answered {
    let place = place.take().filter(|_| outcome.bytes() > LARGE);
    Answered { task, outcome, _place: place }
}
