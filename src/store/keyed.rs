//! Calls under a key of their caller's: the same key of the same context is the same call (KEEP-12).

use std::sync::Arc;

use super::Result;
use super::dialect::Dialect;
use super::link::Link;
use super::sql::{Cells, args, statements, task_columns};
use super::sql_store::SqlStore;
use super::tasks::{read_outcome, read_task};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, TaskId};
use crate::domain::outcome::Outcome;
use crate::domain::task::Task;

/// What is stored under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyed {
    pub task: Task,
    /// `Some` exactly if it has ended.
    pub outcome: Option<Outcome>,
    /// Of the call that the key stands for.
    pub digest: String,
    /// Whether it is no task.
    pub parked: bool,
}

statements! {
    UNDER_KEY = concat!(
        "SELECT ", task_columns!(), ", o.outcome, t.digest, t.parked
         FROM tasks t LEFT JOIN task_outcomes o ON o.task = t.id
         WHERE t.context = $1 AND t.idempotency_key = $2"
    );
    /// A task has no rounds. That of a call that was given up stays: it locks who comes after it out.
    UNROUND = "DELETE FROM parked_calls WHERE context = $1 AND task = $2 AND open < 2";
    /// The row is kept as it is; that it is a task from now on is no change of the task.
    UNPARK = "
        UPDATE tasks SET parked = 0
        WHERE context = $1 AND id = $2 AND NOT EXISTS (SELECT 1 FROM parked_calls p WHERE p.task = $2)";
    /// Of a row that the reaper has not come to.
    FREE_KEY = "
        UPDATE tasks SET idempotency_key = NULL
        WHERE context = $1 AND idempotency_key = $2
            AND EXISTS (SELECT 1 FROM task_outcomes o WHERE o.task = tasks.id AND o.expires <= $3)";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn find_keyed(&self, context: ContextId, key: &str) -> Result<Option<Keyed>> {
        let rows = self.read("store.keyed", UNDER_KEY, args![context, key]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let task = read_task(row)?;
        let outcome = read_outcome(row, task.status)?;
        Ok(Some(Keyed { outcome, digest: row.text("digest")?, parked: row.int("parked")? == 1, task }))
    }

    pub(super) async fn make_task(&self, context: ContextId, id: TaskId) -> Result<bool> {
        let call = args![context, id];
        self.again("store.unpark", move |link: Arc<Link<D>>| {
            let call = call.clone();
            async move {
                let mut session = link.writer().await?;
                let mut transaction = session.begin().await?;
                transaction.execute(UNROUND, call.clone()).await?;
                let unparked = transaction.execute(UNPARK, call).await?;
                transaction.commit().await?;
                Ok(unparked > 0)
            }
        })
        .await
    }

    pub(super) async fn drop_key(&self, context: ContextId, key: &str, now: Timestamp) -> Result<()> {
        self.write("store.free_key", FREE_KEY, args![context, key, now]).await.map(|_| ())
    }
}
