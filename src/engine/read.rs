//! Looking at tasks: one, with its outcome, and the list.

use super::{Caller, Engine, Page, Refusal};
use crate::domain::cursor::Position;
use crate::domain::ids::TaskId;
use crate::domain::task::Task;

/// What list cursors are bound to, beside the caller.
const LIST: &str = "tasks/list";

impl Engine {
    /// # Errors
    /// [`Refusal::UnknownTask`] for missing, expired and foreign ids alike; [`Refusal::Store`].
    pub async fn get(&self, caller: &Caller, id: TaskId) -> Result<Task, Refusal> {
        let task = self.store.scoped(&caller.auth).get(id).await?;
        let now = self.clock.now();
        task.filter(|task| task.is_visible(now)).ok_or(Refusal::UnknownTask)
    }

    /// A page of the caller's tasks, newest first, starting after `cursor`.
    ///
    /// # Errors
    /// [`Refusal::BadCursor`]; [`Refusal::Store`].
    pub async fn list(&self, caller: &Caller, cursor: Option<&str>) -> Result<Page, Refusal> {
        let context = caller.auth.id();
        let after = cursor
            .map(|cursor| self.cursors.open(context, LIST, cursor))
            .transpose()
            .map_err(|_| Refusal::BadCursor)?;
        let size = self.rules.page_size;
        let mut tasks = self.store.scoped(&caller.auth).list(after, size + 1, self.clock.now()).await?;
        let more = tasks.len() > size as usize;
        tasks.truncate(size as usize);
        let next = tasks
            .last()
            .filter(|_| more)
            .map(|last| self.cursors.seal(context, LIST, Position { created: last.created, id: last.id }));
        Ok(Page { tasks, next })
    }
}
