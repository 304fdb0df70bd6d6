//! Who may run a task, how often, and what follows when its runner dies.

use std::time::Duration;

use super::clock::Timestamp;
use super::ids::{LeaseToken, NodeId, TaskId};

/// The right to run one task, held by one node until it is given back, ended or taken by recovery. Every write of
/// the attempt matches `token`, so that a zombie cannot speak (KEEP-09).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub task: TaskId,
    pub node: NodeId,
    pub token: LeaseToken,
    /// 1 for the first run.
    pub attempt: u32,
    pub claimed: Timestamp,
}

/// What follows when the outcome of a dispatched call is lost (KEEP-07).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RestartPolicy {
    /// Run it again: only for tools that are read-only or idempotent, or configured so.
    Retry,
    /// End it `failed`, saying that the outcome is unknown.
    Fail,
}

impl RestartPolicy {
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::Retry => 0,
            Self::Fail => 1,
        }
    }

    #[must_use]
    pub const fn from_code(code: i64) -> Option<Self> {
        match code {
            0 => Some(Self::Retry),
            1 => Some(Self::Fail),
            _ => None,
        }
    }

    /// Whether a call whose outcome is lost with this attempt is made again.
    #[must_use]
    pub const fn repeats(self, attempt: u32, attempts_allowed: u32) -> bool {
        matches!(self, Self::Retry) && attempt < attempts_allowed
    }
}

/// How long a retry waits (KEEP-08): 1 s, doubled for each attempt made, up to 60 s, give or take 20 %.
/// `jitter` is any random number.
#[must_use]
pub fn backoff(attempts_made: u32, jitter: u32) -> Duration {
    const BASE_MS: u64 = 1_000;
    const MOST_MS: u64 = 60_000;
    let plain = BASE_MS.saturating_mul(1 << attempts_made.saturating_sub(1).min(16)).min(MOST_MS);
    let percent = 80 + u64::from(jitter % 41);
    Duration::from_millis(plain * percent / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_stable_codes() {
        assert_eq!([RestartPolicy::Retry, RestartPolicy::Fail].map(RestartPolicy::code), [0, 1]);
        assert_eq!(
            [0, 1, 2, -1].map(RestartPolicy::from_code),
            [Some(RestartPolicy::Retry), Some(RestartPolicy::Fail), None, None]
        );
    }

    // req: KEEP-07, KEEP-08
    #[test]
    fn only_retries_repeat_and_only_while_attempts_are_left() {
        let repeats = |policy: RestartPolicy| [1, 2, 3, 4].map(|attempt| policy.repeats(attempt, 3));
        assert_eq!(repeats(RestartPolicy::Retry), [true, true, false, false]);
        assert_eq!(repeats(RestartPolicy::Fail), [false; 4]);
    }

    // req: KEEP-08
    #[test]
    fn retries_back_off_with_jitter_up_to_a_minute() {
        assert_eq!(backoff(1, 20), Duration::from_secs(1));
        assert_eq!(backoff(2, 20), Duration::from_secs(2));
        assert_eq!(backoff(5, 20), Duration::from_secs(16));
        assert_eq!(backoff(50, 20), Duration::from_secs(60));
        assert_eq!(backoff(1, 0), Duration::from_millis(800));
        assert_eq!(backoff(1, 40), Duration::from_millis(1200));
        assert_ne!(backoff(3, 7), backoff(3, 8));
    }
}
