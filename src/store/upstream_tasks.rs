//! Calls that an upstream runs as tasks of its own: their ids there, so that a later attempt follows them (KEEP-07).

use std::sync::Arc;

use super::Result;
use super::dialect::Dialect;
use super::inputs::lock_live;
use super::link::Link;
use super::sql::{Args, Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::tasks::clean;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{LeaseToken, TaskId};
use crate::domain::work::UpstreamTask;

statements! {
    /// A later attempt may have to hand the call over anew.
    HAND_OVER = "
        INSERT INTO upstream_tasks (task, upstream_id, upstream_session, revision, created) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (task) DO UPDATE SET upstream_id = excluded.upstream_id,
            upstream_session = excluded.upstream_session, revision = excluded.revision, created = excluded.created";
    DROP = "DELETE FROM upstream_tasks WHERE task = $1";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn keep_upstream_task(
        &self,
        task: TaskId,
        token: LeaseToken,
        to: UpstreamTask,
        now: Timestamp,
    ) -> Result<bool> {
        let UpstreamTask { id, session, revision } = to;
        let row = args![task, clean(&id), session.as_deref().map(clean), clean(&revision), now];
        self.by_lease("store.hand_over", (task, token), HAND_OVER, row).await
    }

    pub(super) async fn drop_upstream_task(&self, task: TaskId, token: LeaseToken) -> Result<bool> {
        self.by_lease("store.take_back", (task, token), DROP, args![task]).await
    }

    async fn by_lease(
        &self,
        name: &'static str,
        (task, token): (TaskId, LeaseToken),
        statement: &'static str,
        row: Args,
    ) -> Result<bool> {
        self.again(name, move |link: Arc<Link<D>>| {
            let row = row.clone();
            async move {
                let mut session = link.writer().await?;
                let mut transaction = session.begin().await?;
                let live = lock_live(&mut transaction, [task.as_uuid()]).await?;
                let held = live.get(&task.as_uuid()) == Some(&Some(token.as_uuid()));
                if held {
                    transaction.execute(statement, row).await?;
                }
                transaction.commit().await?;
                Ok(held)
            }
        })
        .await
    }
}

/// Reads the columns that a claim has of it, too: all null where there is none.
pub(super) fn read<R: Cells>(row: &R) -> std::result::Result<Option<UpstreamTask>, Fault> {
    let Some(id) = row.maybe_text("upstream_id")? else { return Ok(None) };
    Ok(Some(UpstreamTask { id, session: row.maybe_text("upstream_session")?, revision: row.text("revision")? }))
}
