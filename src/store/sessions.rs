//! Legacy sessions.

use std::sync::Arc;

use super::Result;
use super::dialect::Dialect;
use super::link::Link;
use super::sql::{Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::tasks::clean;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, NodeId, SessionId, StreamId};
use crate::domain::session::{Session, SessionStream};

/// Where the GET stream of a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPlace {
    pub context: ContextId,
    pub session: SessionId,
    pub last_used: Timestamp,
    /// `None` if it has none open.
    pub stream: Option<SessionStream>,
}

statements! {
    /// Done twice, it is done once: ids are nobody else's.
    ADD = "
        INSERT INTO sessions (id, context, revision, capabilities, created, last_used, initialized)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT DO NOTHING";
    FIND = "
        SELECT id, context, revision, capabilities, created, last_used, initialized, stream_node, stream, log_level
        FROM sessions WHERE context = $1 AND id = $2";
    /// Never back: another node may have written a later use.
    TOUCH = "UPDATE sessions SET last_used = $3 WHERE context = $1 AND id = $2 AND last_used < $3";
    /// The index on (context, last_used) finds the last one that may stay. An open stream is a use that is written seldom:
    /// whoever has one stays.
    END_OLDEST = "
        DELETE FROM sessions WHERE context = $1 AND stream IS NULL AND last_used < (
            SELECT last_used FROM sessions WHERE context = $1 ORDER BY last_used DESC LIMIT 1 OFFSET $2
        )";
    DELETE = "DELETE FROM sessions WHERE context = $1 AND id = $2";
    DELETE_SUBSCRIPTIONS = "DELETE FROM resource_subscriptions WHERE context = $1 AND session = $2";
    INITIALIZED = "UPDATE sessions SET initialized = 1 WHERE context = $1 AND id = $2 AND initialized = 0";
    OPEN_STREAM = "UPDATE sessions SET stream_node = $3, stream = $4 WHERE context = $1 AND id = $2";
    /// Another one may have been opened since, on this node too.
    CLOSE_STREAM = "
        UPDATE sessions SET stream_node = NULL, stream = NULL WHERE context = $1 AND id = $2 AND stream = $3";
    STREAMS_AT = "SELECT id, context, last_used, stream_node, stream FROM sessions WHERE stream_node = $1";
    SET_LOG_LEVEL = "UPDATE sessions SET log_level = $3 WHERE context = $1 AND id = $2";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn insert_session(&self, session: Session, most: u32) -> Result<()> {
        let Session { id, context, revision, capabilities, created, last_used, initialized, .. } = session;
        let new = args![id, context, clean(&revision), &capabilities, created, last_used, initialized];
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

    pub(super) async fn keep_initialized(&self, context: ContextId, id: SessionId) -> Result<()> {
        self.write("store.session_initialized", INITIALIZED, args![context, id]).await.map(|_| ())
    }

    pub(super) async fn place_stream(
        &self,
        context: ContextId,
        session: SessionId,
        stream: SessionStream,
    ) -> Result<bool> {
        let row = args![context, session, stream.node, stream.id];
        Ok(self.write("store.open_session_stream", OPEN_STREAM, row).await? > 0)
    }

    pub(super) async fn displace_stream(&self, context: ContextId, session: SessionId, id: StreamId) -> Result<()> {
        self.write("store.close_session_stream", CLOSE_STREAM, args![context, session, id]).await.map(|_| ())
    }

    pub(super) async fn find_streams(&self, sessions: &[SessionId]) -> Result<Vec<StreamPlace>> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = sessions.iter().map(|&id| args![id]).collect();
        let rows = self.read_many("store.session_streams", D::SESSION_STREAMS, wanted).await?;
        Ok(rows.iter().map(read_place).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn find_streams_at(&self, node: NodeId) -> Result<Vec<StreamPlace>> {
        let rows = self.read("store.streams_at", STREAMS_AT, args![node]).await?;
        Ok(rows.iter().map(read_place).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn keep_log_level(&self, context: ContextId, session: SessionId, level: &str) -> Result<()> {
        self.write("store.set_log_level", SET_LOG_LEVEL, args![context, session, clean(level)]).await.map(|_| ())
    }

    pub(super) async fn delete_session(&self, context: ContextId, id: SessionId) -> Result<bool> {
        let ends = args![context, id];
        self.again("store.end_session", move |link: Arc<Link<D>>| {
            let ends = ends.clone();
            async move {
                let mut session = link.writer().await?;
                let mut transaction = session.begin().await?;
                let ended = transaction.execute(DELETE, ends.clone()).await?;
                transaction.execute(DELETE_SUBSCRIPTIONS, ends).await?;
                transaction.commit().await?;
                Ok(ended > 0)
            }
        })
        .await
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
        initialized: row.int("initialized")? == 1,
        stream: read_stream(row)?,
        log_level: row.maybe_text("log_level")?,
    })
}

fn read_stream<R: Cells>(row: &R) -> std::result::Result<Option<SessionStream>, Fault> {
    let (Some(node), Some(id)) = (row.maybe_uuid("stream_node")?, row.maybe_uuid("stream")?) else { return Ok(None) };
    Ok(Some(SessionStream { id: StreamId::from_uuid(id), node: NodeId::from_uuid(node) }))
}

fn read_place<R: Cells>(row: &R) -> std::result::Result<StreamPlace, Fault> {
    Ok(StreamPlace {
        context: ContextId::from_uuid(row.uuid("context")?),
        session: SessionId::from_uuid(row.uuid("id")?),
        last_used: row.time("last_used")?,
        stream: read_stream(row)?,
    })
}
