//! How an operation can fail.

use std::fmt;
use std::time::Duration;

use crate::domain::text::storable;

/// How much of a server's own words is kept.
const MOST_WORDS: usize = 200;

/// An operation that was not done.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    /// For people; may hold what the server said.
    pub(super) detail: String,
    /// How long the server asks its client to stay away.
    pub(super) pause: Option<Duration>,
    /// Whether the server refused it for how much there is of something.
    pub(super) is_limit: bool,
}

/// What failures are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A status that is no success, and the code of the JSON-RPC error that came with it.
    Http(u16, Option<i64>),
    /// A JSON-RPC error.
    Rpc(i64),
    /// No connection, or one that broke.
    Connection,
    /// A stream that ended before its answer.
    StreamEnded,
    Timeout,
    /// An answer that is none by the protocol.
    BadAnswer,
    /// A call that was to become a task and did not.
    NoTask,
    /// A result that says that it is an error.
    ToolError,
    /// A task that ended so.
    TaskFailed,
    TaskCancelled,
    /// Work that asks something, which nobody answers here.
    InputRequired,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(status, None) => write!(f, "http {status}"),
            Self::Http(status, Some(code)) => write!(f, "http {status}, rpc {code}"),
            Self::Rpc(code) => write!(f, "rpc {code}"),
            Self::Connection => f.write_str("connection"),
            Self::StreamEnded => f.write_str("stream ended"),
            Self::Timeout => f.write_str("timeout"),
            Self::BadAnswer => f.write_str("bad answer"),
            Self::NoTask => f.write_str("no task"),
            Self::ToolError => f.write_str("tool error"),
            Self::TaskFailed => f.write_str("task failed"),
            Self::TaskCancelled => f.write_str("task cancelled"),
            Self::InputRequired => f.write_str("input required"),
        }
    }
}

impl Failure {
    pub(super) fn new(kind: Kind, detail: impl AsRef<str>) -> Self {
        Self { kind, detail: storable(detail.as_ref(), MOST_WORDS), pause: None, is_limit: false }
    }

    pub(super) fn bad_answer(detail: &str) -> Self {
        Self::new(Kind::BadAnswer, detail)
    }

    pub(super) fn connection(detail: impl AsRef<str>) -> Self {
        Self::new(Kind::Connection, detail)
    }

    pub(super) fn stream_ended() -> Self {
        Self::new(Kind::StreamEnded, "the stream ended before the answer")
    }

    pub(super) fn timeout(limit: Duration) -> Self {
        Self::new(Kind::Timeout, format!("it was not done within {}", humantime::format_duration(limit)))
    }

    pub(super) fn pausing(self, pause: Option<Duration>) -> Self {
        Self { pause, ..self }
    }

    pub(super) fn of_limit(self, is_limit: bool) -> Self {
        Self { is_limit, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, detail, .. } = self;
        if detail.is_empty() { write!(f, "{kind}") } else { write!(f, "{kind}: {detail}") }
    }
}
