//! Cancelling a task at its caller's request.

use std::sync::Arc;

use super::{Caller, Engine, Refusal};
use crate::domain::ids::TaskId;
use crate::domain::outcome::Outcome;
use crate::domain::task::Task;
use crate::lifecycle;
use crate::store::{End, Ended};

impl Engine {
    /// Moves a live task to `cancelled`, then stops its work (TASK-12, TASK-14). Finished even if this future is dropped.
    ///
    /// # Errors
    /// [`Refusal::UnknownTask`]; [`Refusal::AlreadyEnded`] for a terminal one; [`Refusal::Store`].
    pub async fn cancel(self: &Arc<Self>, caller: &Caller, id: TaskId) -> Result<Task, Refusal> {
        let (engine, caller) = (Arc::clone(self), caller.clone());
        let cancel = async move { engine.cancel_to_the_end(&caller, id).await };
        lifecycle::spawn("cancel", cancel).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    async fn cancel_to_the_end(&self, caller: &Caller, id: TaskId) -> Result<Task, Refusal> {
        let store = self.store.scoped(&caller.auth);
        // The second round can only find the task ended or gone: nothing revives one.
        for _ in 0..2 {
            let task = self.get(caller, id).await?;
            if task.status.is_terminal() {
                return Err(Refusal::AlreadyEnded(task.status));
            }
            let now = self.clock.now();
            let end = End {
                outcome: Outcome::Cancelled,
                message: Some("cancelled by request".to_owned()),
                now,
                expires: self.rules.ttl.expires(task.created, task.granted, now),
            };
            if let Ended::Done(task) = store.cancel(id, end).await? {
                // Said before the answers of those who wait for it.
                self.streams.task_changed(&task);
                self.settled(id);
                tracing::debug!(task.id = %id, "task cancelled");
                return Ok(task);
            }
        }
        Err(Refusal::UnknownTask)
    }

    /// After a task ended: stops its work if it runs here, wakes who waits for it here.
    pub(super) fn settled(&self, id: TaskId) {
        self.runner.stop(id);
        self.waiters.wake(id);
    }
}
