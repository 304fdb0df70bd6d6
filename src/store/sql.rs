//! A thin layer over sqlx, so that each noun's statements are written once: arguments as values, rows with typed
//! getters, and what can go wrong.

use std::sync::Arc;

use uuid::Uuid;

use super::StoreError;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, DeliveryId, InputId, LeaseToken, NodeId, SessionId, StreamId, TaskId, TokenId};
use crate::domain::json::RawJson;

/// One argument of a statement. All are nullable, so that a batch can be turned into columns by the variant alone.
#[derive(Debug, Clone)]
pub enum Arg {
    Int(Option<i64>),
    Text(Option<Arc<str>>),
    Uuid(Option<Uuid>),
    Bytes(Option<Vec<u8>>),
    /// A list, each database's in its own form. Not for batches.
    Uuids(Vec<Uuid>),
}

pub type Args = Vec<Arg>;

/// The arguments of a statement, in the order of their numbers.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::store::sql::Arg::from($value)),*] };
}
pub(super) use args;

/// Constant statements that are the same on every database, and the list of them that a test prepares.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $text:expr;)*) => {
        $($(#[$doc])* const $name: &str = $text;)*
        /// Every statement of this file.
        #[cfg(test)]
        pub(super) const STATEMENTS: &[&str] = &[$($name),*];
    };
}
pub(super) use statements;

/// What a task is read from: `t` is its row in `tasks`, `o` that in `task_outcomes`, if there is one. A claim writes no
/// message: when it was is read where nothing else was said of the task.
macro_rules! task_columns {
    () => {
        "t.id, t.context, t.tool, t.status, t.message, t.created, t.updated, t.granted_ttl, t.poll_interval, \
         t.session, t.progress_token, t.progress, t.progress_at, o.expires, \
         CASE WHEN t.status = 0 AND t.message IS NULL \
            THEN (SELECT l.claimed FROM task_live l WHERE l.task = t.id) END AS claimed"
    };
}
pub(super) use task_columns;

/// `QUEUED` in a statement: what a task says that waits and of which nothing else was said.
macro_rules! queued {
    () => {
        "'queued'"
    };
}
pub(super) use queued;

/// `RUNNING` in a statement: what a task says that a node runs and of which nothing else was said.
macro_rules! running {
    () => {
        "'running'"
    };
}
pub(super) use running;

/// What the message of an end says besides, if somebody else than its work ended a task that a node ran: an upstream is told,
/// where that node still can, and does not answer.
macro_rules! unconfirmed {
    () => {
        "'; that its work has stopped is not confirmed'"
    };
}
pub(super) use unconfirmed;

/// What a claim is read from: `l` is its row in `task_live`, `t` that in `tasks`, `r` that in `task_requests`, `u` that
/// in `upstream_tasks`, if there is one.
macro_rules! claim_columns {
    () => {
        "l.task, l.node, l.token, l.attempt, l.claimed, l.hard_end, t.context, t.tool, t.upstream, t.upstream_tool, \
         t.created, t.granted_ttl, t.restart, t.attempts_allowed, t.run_limit, t.session, t.capabilities, r.params, \
         u.upstream_id, u.upstream_session, u.revision"
    };
}
pub(super) use claim_columns;

/// A row's cells by the names of their columns.
pub trait Cells: Send {
    fn maybe_int(&self, column: &str) -> Result<Option<i64>, Fault>;
    /// As it lies in the row.
    fn maybe_str(&self, column: &str) -> Result<Option<&str>, Fault>;
    fn maybe_uuid(&self, column: &str) -> Result<Option<Uuid>, Fault>;
    fn maybe_bytes(&self, column: &str) -> Result<Option<Vec<u8>>, Fault>;

    fn maybe_text(&self, column: &str) -> Result<Option<String>, Fault> {
        Ok(self.maybe_str(column)?.map(str::to_owned))
    }

    fn int(&self, column: &str) -> Result<i64, Fault> {
        self.maybe_int(column)?.ok_or_else(|| missing(column))
    }

    fn text(&self, column: &str) -> Result<String, Fault> {
        self.maybe_text(column)?.ok_or_else(|| missing(column))
    }

    fn uuid(&self, column: &str) -> Result<Uuid, Fault> {
        self.maybe_uuid(column)?.ok_or_else(|| missing(column))
    }

    fn bytes(&self, column: &str) -> Result<Vec<u8>, Fault> {
        self.maybe_bytes(column)?.ok_or_else(|| missing(column))
    }

    fn time(&self, column: &str) -> Result<Timestamp, Fault> {
        self.int(column).map(Timestamp::from_micros)
    }

    fn maybe_time(&self, column: &str) -> Result<Option<Timestamp>, Fault> {
        Ok(self.maybe_int(column)?.map(Timestamp::from_micros))
    }

    fn count(&self, column: &str) -> Result<u32, Fault> {
        self.int(column)?.try_into().map_err(|_| Fault::broken(format!("column {column} is out of range")))
    }

    /// Stored JSON. It was checked when it came in; this look at its ends finds rows that were cut or overwritten.
    fn json(&self, column: &str) -> Result<RawJson, Fault> {
        self.maybe_json(column)?.ok_or_else(|| missing(column))
    }

    fn maybe_json(&self, column: &str) -> Result<Option<RawJson>, Fault> {
        self.maybe_str(column)?.map(|text| carried(column, text)).transpose()
    }
}

/// Blocks that the search for line breaks looks at as a whole: results may be large.
const BLOCK: usize = 64;

fn carried(column: &str, text: &str) -> Result<RawJson, Fault> {
    let ends = (text.as_bytes().first(), text.as_bytes().last());
    let whole = match ends {
        (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')) => true,
        (Some(b'"'), Some(b'"')) => text.len() > 1,
        (Some(first), Some(last)) => first.is_ascii_alphanumeric() | (*first == b'-') && last.is_ascii_alphanumeric(),
        _ => false,
    };
    let breaks = |block: &[u8]| block.iter().fold(false, |found, &byte| found | (byte == b'\n') | (byte == b'\r'));
    if whole && !text.as_bytes().chunks(BLOCK).any(breaks) {
        Ok(RawJson::trusted(text))
    } else {
        Err(Fault::broken(format!("column {column} holds no JSON value")))
    }
}

fn missing(column: &str) -> Fault {
    Fault::broken(format!("column {column} is null"))
}

/// What can go wrong with a statement, by what follows from it.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The link, not the statement: whether it took effect is unknown.
    Link(Arc<str>),
    /// The transaction lost against another one (deadlock, serialization); nothing took effect, try again.
    Conflict(Arc<str>),
    /// The statement was refused; nothing took effect.
    Statement(Arc<str>),
    /// A row was read that cannot be.
    Broken(Arc<str>),
}

impl Fault {
    pub fn link(detail: impl Into<Arc<str>>) -> Self {
        Self::Link(detail.into())
    }

    /// Why there is no connection. Whatever a server says to who asks for one, it is away for us: its database may be
    /// closed to connections, renamed for a restore, or its roles not yet there. What SQLite says is of the file.
    pub fn no_connection(error: sqlx::Error) -> Self {
        let by_server = error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(is_sqlstate);
        match Self::from(error) {
            Self::Statement(text) if by_server => Self::Link(text),
            fault => fault,
        }
    }

    pub fn detail(&self) -> &str {
        match self {
            Self::Link(text) | Self::Conflict(text) | Self::Statement(text) | Self::Broken(text) => text,
        }
    }

    pub fn broken(detail: impl Into<Arc<str>>) -> Self {
        Self::Broken(detail.into())
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(refusal) => {
                let code = refusal.code().unwrap_or_default();
                let text: Arc<str> = format!("{} ({code})", refusal.message()).into();
                match kind_of(&code) {
                    Kind::Link => Self::Link(text),
                    Kind::Conflict => Self::Conflict(text),
                    Kind::Statement => Self::Statement(text),
                }
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                Self::Broken(error.to_string().into())
            }
            // What was asked for is wrong, not the link.
            sqlx::Error::Encode(_) | sqlx::Error::InvalidArgument(_) | sqlx::Error::TypeNotFound { .. } => {
                Self::Statement(error.to_string().into())
            }
            // May quote the URL, which may hold a password.
            sqlx::Error::Configuration(_) => Self::Link("the connection's settings are not usable".into()),
            _ => Self::Link(error.to_string().into()),
        }
    }
}

/// Whether a write was refused because the server takes none: it is a standby by now, or was set so.
pub fn is_read_only(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == "25006")
}

enum Kind {
    Link,
    Conflict,
    Statement,
}

fn is_sqlstate(code: impl AsRef<str>) -> bool {
    let code = code.as_ref();
    code.len() == 5 && !code.starts_with("00")
}

/// Judges a SQLSTATE (five characters) or an extended result code of SQLite (a number).
fn kind_of(code: &str) -> Kind {
    if is_sqlstate(code) {
        return match code {
            "40001" | "40P01" => Kind::Conflict,
            // Shut down, starting, too many connections, statement time-out, cancelled.
            "57P01" | "57P02" | "57P03" | "57P05" | "57014" | "53300" | "55P03" | "25P03" | "25P04" => Kind::Link,
            _ if code.starts_with("08") => Kind::Link,
            _ => Kind::Statement,
        };
    }
    // The primary code is the lowest byte: 5 is busy, 6 is locked.
    match code.parse::<u32>().map(|code| code & 0xff) {
        Ok(5 | 6) => Kind::Link,
        _ => Kind::Statement,
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Link(detail) | Fault::Conflict(detail) => Self::Unavailable(detail),
            Fault::Statement(detail) => Self::Refused(detail),
            Fault::Broken(detail) => Self::BrokenRow(detail),
        }
    }
}

macro_rules! arg_from {
    ($($type:ty => $variant:ident($value:ident) $convert:expr;)*) => {
        $(
            impl From<$type> for Arg {
                fn from($value: $type) -> Self {
                    Self::$variant(Some($convert))
                }
            }

            impl From<Option<$type>> for Arg {
                fn from(value: Option<$type>) -> Self {
                    Self::$variant(value.map(|$value| $convert))
                }
            }
        )*
    };
}

arg_from! {
    i64 => Int(value) value;
    u32 => Int(value) i64::from(value);
    bool => Int(value) i64::from(value);
    Timestamp => Int(value) value.micros();
    &str => Text(value) Arc::from(value);
    String => Text(value) Arc::from(value);
    &String => Text(value) Arc::from(value.as_str());
    &RawJson => Text(value) value.shared();
    Uuid => Uuid(value) value;
    TaskId => Uuid(value) value.as_uuid();
    ContextId => Uuid(value) value.as_uuid();
    NodeId => Uuid(value) value.as_uuid();
    LeaseToken => Uuid(value) value.as_uuid();
    SessionId => Uuid(value) value.as_uuid();
    TokenId => Uuid(value) value.as_uuid();
    InputId => Uuid(value) value.as_uuid();
    DeliveryId => Uuid(value) value.as_uuid();
    StreamId => Uuid(value) value.as_uuid();
    Vec<u8> => Bytes(value) value;
}

impl From<Vec<Uuid>> for Arg {
    fn from(ids: Vec<Uuid>) -> Self {
        Self::Uuids(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::{QUEUED, RUNNING};

    #[test]
    fn errors_are_told_apart_by_what_follows_from_them() {
        for code in ["57P01", "57014", "53300", "08006", "5", "517", "261", "6"] {
            assert!(matches!(kind_of(code), Kind::Link), "{code}");
        }
        for code in ["40001", "40P01"] {
            assert!(matches!(kind_of(code), Kind::Conflict), "{code}");
        }
        for code in ["23505", "23514", "53100", "25006", "13", "8", "11", "1555", "2067", "275"] {
            assert!(matches!(kind_of(code), Kind::Statement), "{code}");
        }
    }

    #[test]
    fn statements_know_what_tasks_say() {
        assert_eq!([queued!(), running!()], [QUEUED, RUNNING].map(|word| format!("'{word}'")));
    }

    #[test]
    fn a_cut_value_is_not_taken_for_json() {
        for text in [r#"{"a":1}"#, "[]", r#""x""#, "-1", "12", "null"] {
            assert!(carried("x", text).is_ok(), "{text}");
        }
        for text in ["", "{", r#"{"a":"#, "\"", "{}\n", "garbage!"] {
            assert!(carried("x", text).is_err(), "{text}");
        }
    }
}
