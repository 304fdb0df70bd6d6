//! What the log says of a wait for somebody else's migration.

use std::time::Duration;

use tokio::time::Instant;

/// From one line to the next.
const PERIOD: Duration = Duration::from_secs(10);

/// A wait, and when it is worth a line: soon after it began, and then now and then.
#[derive(Debug)]
pub struct Wait {
    since: Instant,
    next: Instant,
}

impl Wait {
    /// One that begins now, of which nothing is said before it took so long.
    pub fn new(now: Instant, quiet: Duration) -> Self {
        Self { since: now, next: now + quiet }
    }

    /// When the next line is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// How long it has lasted, if that is to be said now.
    pub fn is_due(&mut self, now: Instant) -> Option<Duration> {
        if now < self.next {
            return None;
        }
        self.next = now + PERIOD;
        Some(now.duration_since(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_said_when_it_begins_and_every_ten_seconds() {
        let start = Instant::now();
        let said = |quiet| {
            let mut wait = Wait::new(start, Duration::from_secs(quiet));
            let looks = (0..350_u64).map(|tenth| start + Duration::from_millis(tenth * 100));
            looks.filter_map(|now| wait.is_due(now)).map(|waited| waited.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(said(0), [0, 10, 20, 30]);
        assert_eq!(said(1), [1, 11, 21, 31]);
    }
}
