//! Hints between nodes: rows that every node finds in its gathered question and that go after a minute. A hint that is lost
//! costs a wait, never an answer.

use uuid::Uuid;

use super::Result;
use super::dialect::Dialect;
use super::sql::{Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::tasks::clean;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, SessionId};
use crate::domain::json::RawJson;

/// One hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// Made by the giver, so that a repeated write is one signal.
    pub id: Uuid,
    pub kind: SignalKind,
    pub context: ContextId,
    pub session: Option<SessionId>,
    pub subject: String,
    pub payload: Option<RawJson>,
    pub created: Timestamp,
}

/// What a hint is about, and what its subject and payload are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SignalKind {
    /// A client cancelled a plain call: the JSON-RPC id's text.
    CancelCall,
    /// A client answered a plain call's question: the delivery's id; `{"result": ..}` or `{"error": ..}`.
    PlainAnswer,
    /// A resource changed: its URI; the notification's params.
    ResourceUpdated,
    /// A session ended.
    SessionEnded,
    /// A session's GET stream was opened or closed: the node; the id of the stream that goes on there, if one does. Without
    /// a session, that of a `tasks/result`.
    SessionStream,
    /// A session set its log level: the level.
    LogLevel,
    /// A client said how its own task for a question stands: the delivery's id; that task.
    ClientTask,
}

impl SignalKind {
    pub const ALL: [Self; 7] = [
        Self::CancelCall,
        Self::PlainAnswer,
        Self::ResourceUpdated,
        Self::SessionEnded,
        Self::SessionStream,
        Self::LogLevel,
        Self::ClientTask,
    ];

    /// The number that stands for it in the database. Never renumbered.
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::CancelCall => 0,
            Self::PlainAnswer => 1,
            Self::ResourceUpdated => 2,
            Self::SessionEnded => 3,
            Self::SessionStream => 4,
            Self::LogLevel => 6,
            Self::ClientTask => 7,
        }
    }

    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

statements! {
    /// Done twice, it is done once: ids are nobody else's.
    ADD = "
        INSERT INTO signals (id, kind, context, session, subject, payload, created) VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT DO NOTHING";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn add_signal(&self, signal: Signal) -> Result<()> {
        let Signal { id, kind, context, session, subject, payload, created } = signal;
        let row = args![id, kind.code(), context, session, clean(&subject), payload.as_ref(), created];
        self.write("store.signal", ADD, row).await.map(|_| ())
    }
}

/// Reads a row of the gathered question. A kind of a newer version's is no fault: `None`.
pub(super) fn read<R: Cells>(row: &R) -> std::result::Result<Option<Signal>, Fault> {
    let Some(kind) = SignalKind::from_code(row.int("kind")?) else { return Ok(None) };
    Ok(Some(Signal {
        id: row.uuid("id")?,
        kind,
        context: ContextId::from_uuid(row.uuid("context")?),
        session: row.maybe_uuid("session")?.map(SessionId::from_uuid),
        subject: row.text("subject")?,
        payload: row.maybe_json("payload")?,
        created: row.time("created")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_stable_codes() {
        assert_eq!(SignalKind::ALL.map(SignalKind::code), [0, 1, 2, 3, 4, 6, 7]);
        assert!(SignalKind::ALL.into_iter().all(|kind| SignalKind::from_code(kind.code()) == Some(kind)));
        assert_eq!(SignalKind::from_code(8), None);
    }
}
