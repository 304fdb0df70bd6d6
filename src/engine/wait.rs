//! Waiting for a task's end. Waiters sit in memory and hold no database connection: local ends wake them at once, ends at
//! other nodes are found by one gathered question for all of them (KEEP-18).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Caller, Engine, Refusal};
use crate::domain::ids::{ContextId, TaskId};
use crate::domain::outcome::Outcome;
use crate::domain::task::Task;
use crate::store::StoreError;

/// How long a waiter that could not read its outcome waits before it tries again.
const RETRY: Duration = Duration::from_millis(500);

/// Who waits on this node: for tasks, and for calls that are none.
pub(super) struct Waiters {
    state: Mutex<State>,
    per_context: usize,
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
    waiting: usize,
}

/// One place among those of a context, given up on drop.
pub(super) struct Seat {
    waiters: Arc<Waiters>,
    context: ContextId,
}

/// A seat of one who waits for a task.
struct Place {
    seat: Seat,
    task: TaskId,
    ended: Arc<Notify>,
}

impl Waiters {
    pub(super) fn new(per_context: usize) -> Self {
        Self { state: Mutex::default(), per_context, arrived: Notify::new() }
    }

    pub(super) fn wake(&self, task: TaskId) {
        if let Some(entry) = self.lock().tasks.get(&task) {
            entry.ended.notify_waiters();
        }
    }

    pub(super) fn tasks(&self) -> Vec<TaskId> {
        self.lock().tasks.keys().copied().collect()
    }

    /// # Errors
    /// [`Refusal::LimitReached`] if the context has no seat left.
    pub(super) fn sit(self: &Arc<Self>, context: ContextId) -> Result<Seat, Refusal> {
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
        drop(state);
        Ok(Seat { waiters: Arc::clone(self), context })
    }

    fn join(self: &Arc<Self>, context: ContextId, task: TaskId) -> Result<Place, Refusal> {
        let seat = self.sit(context)?;
        let mut state = self.lock();
        let entry = state.tasks.entry(task).or_insert_with(|| Entry { ended: Arc::default(), waiting: 0 });
        entry.waiting += 1;
        let ended = Arc::clone(&entry.ended);
        drop(state);
        self.arrived.notify_one();
        Ok(Place { seat, task, ended })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.seat.waiters.lock();
        if let Some(entry) = state.tasks.get_mut(&self.task) {
            entry.waiting -= 1;
            if entry.waiting == 0 {
                state.tasks.remove(&self.task);
            }
        }
    }
}

impl Drop for Seat {
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
    /// The task and its outcome, as soon as it has ended, on whichever node that happens (TASK-06, TASK-07). Dropping the
    /// future ends the waiting and nothing else. A database outage in the middle is waited out.
    ///
    /// # Errors
    /// [`Refusal::UnknownTask`]; [`Refusal::LimitReached`] before the wait, never as its end; [`Refusal::Store`] if the first
    /// look fails.
    pub async fn result(&self, caller: &Caller, id: TaskId) -> Result<(Task, Outcome), Refusal> {
        if let Some(ended) = self.ended_outcome(caller, id).await? {
            return Ok(ended);
        }
        let place = self.waiters.join(caller.auth.id(), id)?;
        loop {
            // Registered before the look, so that an end between the two is not missed.
            let woken = place.ended.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            match self.ended_outcome(caller, id).await {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => woken.await,
                Err(Refusal::Store(StoreError::Unavailable(_))) => tokio::time::sleep(RETRY).await,
                Err(refusal) => return Err(refusal),
            }
        }
    }

    async fn ended_outcome(&self, caller: &Caller, id: TaskId) -> Result<Option<(Task, Outcome)>, Refusal> {
        let found = self.store.scoped(&caller.auth).outcome(id).await?;
        let now = self.clock.now();
        match found {
            Some((task, outcome)) if task.is_visible(now) => Ok(outcome.map(|outcome| (task, outcome))),
            _ => Err(Refusal::UnknownTask),
        }
    }

    pub(super) async fn watch_loop(self: Arc<Self>) {
        let interval = self.store.system().watch_interval();
        while !self.stopped.is_cancelled() {
            let began = Instant::now();
            if self.waiters.tasks().is_empty() && self.runner.running().is_empty() {
                tokio::select! {
                    () = self.waiters.arrived.notified() => {}
                    () = self.runner.started.notified() => {}
                    () = self.stopped.cancelled() => return,
                }
            }
            if let Err(error) = self.watch_once().await {
                tracing::debug!(%error, "cannot ask for ended tasks; asking again");
            }
            // A question that takes long is asked less often.
            let pause = interval.max(began.elapsed().min(Duration::from_secs(1)) * 3);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stopped.cancelled() => return,
            }
        }
    }

    /// Asks once which of the tasks that are waited for or run here have ended, wakes and stops accordingly.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn watch_once(&self) -> Result<(), StoreError> {
        let store = self.store.system();
        if !store.may_have_changed().await? {
            return Ok(());
        }
        let mut ids = self.waiters.tasks();
        ids.extend(self.runner.running());
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Ok(());
        }
        for id in store.ended(&ids).await? {
            self.settled(id);
        }
        Ok(())
    }
}
