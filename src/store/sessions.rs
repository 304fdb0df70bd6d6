//! Legacy sessions.

use std::sync::Arc;

use super::Result;
use super::dialect::Dialect;
use super::link::Link;
use super::sql::{Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::tasks::clean;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, SessionId};
use crate::domain::session::Session;

statements! {
    /// Done twice, it is done once: ids are nobody else's.
    ADD = "
        INSERT INTO sessions (id, context, revision, capabilities, created, last_used) VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT DO NOTHING";
    FIND = "
        SELECT id, context, revision, capabilities, created, last_used FROM sessions WHERE context = $1 AND id = $2";
    /// Never back: another node may have written a later use.
    TOUCH = "UPDATE sessions SET last_used = $3 WHERE context = $1 AND id = $2 AND last_used < $3";
    /// The index on (context, last_used) finds the last one that may stay.
    END_OLDEST = "
        DELETE FROM sessions WHERE context = $1 AND last_used < (
            SELECT last_used FROM sessions WHERE context = $1 ORDER BY last_used DESC LIMIT 1 OFFSET $2
        )";
    DELETE = "DELETE FROM sessions WHERE context = $1 AND id = $2";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn insert_session(&self, session: Session, most: u32) -> Result<()> {
        let Session { id, context, revision, capabilities, created, last_used } = session;
        let new = args![id, context, clean(&revision), &capabilities, created, last_used];
        let bound = args![context, most.saturating_sub(1)];
        // One piece of work: a client that leaves in between must not get around the limit.
        let work = move |link: Arc<Link<D>>| {
            let (new, bound) = (new.clone(), bound.clone());
            async move {
                let mut session = link.writer().await?;
                session.execute(ADD, new).await?;
                session.execute(END_OLDEST, bound).await
            }
        };
        let ended = self.again("store.add_session", work).await?;
        if ended > 0 {
            tracing::info!(auth.context = %context, ended, most, "the limit limits.sessions ended the oldest sessions");
        }
        Ok(())
    }

    pub(super) async fn find_session(&self, context: ContextId, id: SessionId) -> Result<Option<Session>> {
        let rows = self.read("store.session", FIND, args![context, id]).await?;
        Ok(rows.first().map(read).transpose()?)
    }

    pub(super) async fn use_session(&self, context: ContextId, id: SessionId, now: Timestamp) -> Result<()> {
        self.write("store.touch_session", TOUCH, args![context, id, now]).await.map(|_| ())
    }

    pub(super) async fn delete_session(&self, context: ContextId, id: SessionId) -> Result<bool> {
        Ok(self.write("store.end_session", DELETE, args![context, id]).await? > 0)
    }
}

fn read<R: Cells>(row: &R) -> std::result::Result<Session, Fault> {
    Ok(Session {
        id: SessionId::from_uuid(row.uuid("id")?),
        context: ContextId::from_uuid(row.uuid("context")?),
        revision: row.text("revision")?,
        capabilities: row.json("capabilities")?,
        created: row.time("created")?,
        last_used: row.time("last_used")?,
    })
}
