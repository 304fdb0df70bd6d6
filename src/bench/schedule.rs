//! When operations are to begin, and when that is over. Reads no clock: it is told the time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SECOND: u128 = 1_000_000_000;

/// How long is measured, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Operations a second of all connections together. `None`: each connection begins the next when the last one is done.
    pub rate: Option<u32>,
    pub duration: Option<Duration>,
    /// The most operations.
    pub requests: Option<u64>,
}

/// The plan that all connections share. Times are those of one clock, from any fixed point.
pub(super) struct Schedule {
    start: Duration,
    until: Option<Duration>,
    rate: Option<u32>,
    /// How many there are.
    all: u64,
    taken: AtomicU64,
    stopped: OnceLock<Duration>,
}

impl Schedule {
    pub(super) fn new(pace: Pace, start: Duration) -> Self {
        let most = pace.requests.unwrap_or(u64::MAX);
        let all = match (pace.rate, pace.duration) {
            (Some(rate), Some(duration)) => most.min(to_u64((duration.as_nanos() * u128::from(rate)).div_ceil(SECOND))),
            _ => most,
        };
        Self {
            start,
            until: pace.duration.map(|duration| start + duration),
            rate: pace.rate,
            all,
            taken: AtomicU64::new(0),
            stopped: OnceLock::new(),
        }
    }

    /// Takes the next operation: from when on its latency counts, which is when it was planned, however late it begins.
    /// `None`: it is over.
    pub(super) fn take(&self, now: Duration) -> Option<Duration> {
        if self.stopped.get().is_some() || self.until.is_some_and(|until| now >= until) {
            return None;
        }
        let next = |taken: u64| (taken < self.all).then(|| taken + 1);
        let number = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(self.rate.map_or(now, |rate| self.nth(number, rate)))
    }

    /// When an operation is planned, where they are; `None` if there is no such one.
    pub(super) fn planned(&self, number: u64) -> Option<Duration> {
        (number < self.all).then(|| self.rate.map(|rate| self.nth(number, rate)))?
    }

    /// How many operations should have begun.
    pub(super) fn due(&self, now: Duration) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let Some(elapsed) = now.checked_sub(self.start) else { return 0 };
        self.all.min(to_u64(elapsed.as_nanos() * u128::from(rate) / SECOND + 1))
    }

    /// No further operation begins.
    pub(super) fn stop(&self, now: Duration) {
        let _it_was_stopped_before = self.stopped.set(now);
    }

    /// How many were due and never began: the server, or this client, did not keep up.
    pub(super) fn behind(&self, now: Duration) -> u64 {
        let end = self.stopped.get().copied().unwrap_or(now);
        self.due(end).saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Rounded up, so that whoever waits for it finds it due.
    fn nth(&self, number: u64, rate: u32) -> Duration {
        let nanos = (u128::from(number) * SECOND).div_ceil(u128::from(rate.max(1)));
        self.start + Duration::from_nanos(to_u64(nanos))
    }
}

fn to_u64(number: u128) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::histogram::Histogram;
    use super::*;
    use crate::domain::clock::{Clock, ManualClock, Timestamp};

    const START: Duration = Duration::from_secs(100);
    const OPEN: Pace = Pace { rate: Some(10), duration: Some(Duration::from_secs(2)), requests: None };
    const CLOSED: Pace = Pace { rate: None, ..OPEN };

    fn at(milliseconds: u64) -> Duration {
        START + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_closed_loop_begins_when_it_can() {
        let schedule = Schedule::new(CLOSED, START);
        assert_eq!(schedule.take(at(0)), Some(at(0)));
        assert_eq!(schedule.take(at(1999)), Some(at(1999)));
        assert_eq!((schedule.take(at(2000)), schedule.planned(0), schedule.behind(at(2000))), (None, None, 0));
        let three = Schedule::new(Pace { duration: None, requests: Some(3), ..CLOSED }, START);
        let taken: Vec<_> = (0..5).map(|hour| three.take(at(hour * 3_600_000)).is_some()).collect();
        assert_eq!(taken, [true, true, true, false, false]);
    }

    #[test]
    fn an_open_loop_has_its_starts_planned() {
        let schedule = Schedule::new(OPEN, START);
        assert_eq!(schedule.planned(0), Some(at(0)));
        assert_eq!(schedule.planned(19), Some(at(1900)));
        assert_eq!(schedule.planned(20), None, "that would be at the end");
        assert_eq!([0, 99, 100, 1900, 60_000].map(|now| schedule.due(at(now))), [1, 1, 2, 20, 20]);
        assert_eq!(schedule.due(START - Duration::from_millis(1)), 0);
        let odd = Schedule::new(Pace { rate: Some(7), duration: None, requests: Some(1000) }, START);
        for number in 0..1000 {
            let planned = odd.planned(number).unwrap();
            assert_eq!((odd.due(planned), odd.due(planned - Duration::from_nanos(1))), (number + 1, number));
        }
    }

    /// Without this a server that stalls would be measured by the requests that were not sent meanwhile.
    #[test]
    fn what_begins_late_is_counted_from_its_planned_start() {
        let clock = ManualClock::at(Timestamp::from_micros(100_000_000));
        let schedule = Schedule::new(OPEN, clock.boot());
        let mut latencies = Histogram::new();
        // One connection, and a server that stalls for a second once and else answers after 10 ms.
        for stall in [1000, 10, 10, 10, 10] {
            let planned = schedule.take(clock.boot()).unwrap();
            clock.advance(Duration::from_millis(stall));
            latencies.record(clock.boot() - planned);
        }
        // 1000, then 1010 - 100, 1020 - 200, ...
        assert_eq!(latencies.max(), Duration::from_secs(1));
        let fastest = latencies.per_mille(1);
        assert!(fastest >= Duration::from_millis(640) && fastest < Duration::from_millis(650), "{fastest:?}");
    }

    #[test]
    fn what_was_due_and_never_began_is_told() {
        let schedule = Schedule::new(OPEN, START);
        for _ in 0..5 {
            assert!(schedule.take(at(1500)).is_some());
        }
        assert_eq!(schedule.take(at(2000)), None);
        assert_eq!(schedule.behind(at(2500)), 15);
        let stopped = Schedule::new(OPEN, START);
        stopped.stop(at(450));
        assert_eq!((stopped.take(at(460)), stopped.behind(at(2500))), (None, 5));
    }
}
