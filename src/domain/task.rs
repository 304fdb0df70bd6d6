//! A task and its status.

use super::clock::Timestamp;
use super::ids::{ContextId, SessionId, TaskId};
use super::json::RawJson;
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

/// What a task that waits for a slot says of itself, before anybody counted those ahead of it.
pub const QUEUED: &str = "queued";
/// What a task says while its work runs and has said nothing itself.
pub const RUNNING: &str = "running";

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
    /// The legacy session that made it: what is said while it runs goes there.
    pub session: Option<SessionId>,
    /// The `progressToken` that its maker gave.
    pub progress_token: Option<RawJson>,
    /// The `params` of the newest progress notification that was written.
    pub progress: Option<RawJson>,
    /// When that was written; of a task that has told of none, when it was made.
    pub progress_at: Timestamp,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CREATED: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn task(status: Status, expires: Option<Timestamp>) -> Task {
        Task {
            id: TaskId::new(),
            context: ContextId::new(),
            tool: "tool".to_owned(),
            status,
            message: None,
            created: CREATED,
            updated: CREATED,
            granted: Ttl::Milliseconds(60_000),
            poll_interval_ms: 1000,
            expires,
            session: None,
            progress_token: None,
            progress: None,
            progress_at: CREATED,
        }
    }

    #[test]
    fn only_ends_are_terminal() {
        let terminal = Status::ALL.map(Status::is_terminal);
        assert_eq!(terminal, [false, false, true, true, true, true]);
    }

    // req: KEEP-02, KEEP-05
    #[test]
    fn a_task_is_visible_while_it_lives_and_then_until_it_expires() {
        let later = Timestamp::from_micros(i64::MAX);
        for live in [Status::Working, Status::InputRequired] {
            assert!(task(live, None).is_visible(later));
        }
        for ending in [Ending::Completed, Ending::ToolError, Ending::Failed, Ending::Cancelled] {
            let expires = CREATED + Duration::from_secs(60);
            let ended = task(Status::Ended(ending), Some(expires));
            assert!(ended.is_visible(CREATED));
            assert!(ended.is_visible(expires - Duration::from_micros(1)));
            assert!(!ended.is_visible(expires), "at its TTL it is gone");
            assert!(!ended.is_visible(later));
            assert!(task(Status::Ended(ending), None).is_visible(later), "kept for ever");
        }
    }

    // req: LIFE-09, KEEP-05
    #[test]
    fn the_ttl_that_is_shown_is_the_one_that_decides() {
        let hour = Duration::from_secs(3600);
        let rules = TtlRules {
            default: Some(hour),
            min: Duration::from_secs(10),
            max: None,
            min_retention: Duration::from_secs(600),
            hard_lifetime: 26 * hour,
        };
        let at = |seconds| CREATED + Duration::from_secs(seconds);
        let live = task(Status::Working, None);
        assert_eq!(live.shown_ttl(at(0), &rules), Ttl::Milliseconds(60_000));
        assert_eq!(live.shown_ttl(at(100), &rules), Ttl::Milliseconds(240_000));
        let ended = task(Status::Ended(Ending::Failed), Some(at(700)));
        assert_eq!(ended.shown_ttl(at(100), &rules), Ttl::Milliseconds(700_000));
        let kept = task(Status::Ended(Ending::Completed), None);
        assert_eq!(kept.shown_ttl(at(100), &rules), Ttl::Unlimited);
    }
}
