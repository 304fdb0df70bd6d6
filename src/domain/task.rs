//! A task and its status.

use super::clock::Timestamp;
use super::ids::{ContextId, TaskId};
use super::outcome::Ending;
use super::retention::{Ttl, TtlRules};

/// Where a task stands (LIFE-01 to LIFE-04). [`super::transition`] alone says what may follow what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    Working,
    InputRequired,
    /// Terminal: nothing of the task changes any more.
    Ended(Ending),
}

impl Status {
    /// Every status, in the order of its code.
    pub const ALL: [Self; 6] = [
        Self::Working,
        Self::InputRequired,
        Self::Ended(Ending::Completed),
        Self::Ended(Ending::ToolError),
        Self::Ended(Ending::Failed),
        Self::Ended(Ending::Cancelled),
    ];

    /// The number that stands for it in the database. Never renumbered.
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::Working => 0,
            Self::InputRequired => 1,
            Self::Ended(Ending::Completed) => 2,
            Self::Ended(Ending::ToolError) => 3,
            Self::Ended(Ending::Failed) => 4,
            Self::Ended(Ending::Cancelled) => 5,
        }
    }

    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }

    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

/// A stored task as its owner may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub id: TaskId,
    pub context: ContextId,
    /// The tool's exposed name.
    pub tool: String,
    pub status: Status,
    pub message: Option<String>,
    pub created: Timestamp,
    pub updated: Timestamp,
    /// What was granted at creation; [`Task::shown_ttl`] is what counts.
    pub granted: Ttl,
    pub poll_interval_ms: i64,
    /// When the row may go: fixed by the write that ended the task, `None` while live or kept for ever.
    pub expires: Option<Timestamp>,
}

impl Task {
    /// Whether its owner may see it at `now` (KEEP-02): always while live, until its end's `expires` after that.
    #[must_use]
    pub fn is_visible(&self, now: Timestamp) -> bool {
        !self.status.is_terminal() || self.expires.is_none_or(|expires| now < expires)
    }

    /// The TTL that decides, as responses show it (LIFE-09, KEEP-05).
    #[must_use]
    pub fn shown_ttl(&self, now: Timestamp, rules: &TtlRules) -> Ttl {
        match (self.status, self.expires) {
            (Status::Ended(_), None) => Ttl::Unlimited,
            (Status::Ended(_), Some(expires)) => Ttl::between(self.created, expires),
            (_, _) => rules.shown_while_live(self.created, self.granted, now),
        }
    }
}
