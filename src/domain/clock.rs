//! Time. The only place that reads a system clock.
//!
//! Rules and statements never ask for the time: they are given `now`. A node's `now` is its boot-time clock
//! (which counts suspends and cannot be set) plus the offset to the database's clock that each heartbeat
//! measures, so that all nodes of one database agree.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::iso8601::{Config, EncodedConfig, TimePrecision};
use time::format_description::well_known::{Iso8601, Rfc3339};

/// Microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

const WIRE: EncodedConfig =
    Config::DEFAULT.set_time_precision(TimePrecision::Second { decimal_digits: std::num::NonZero::new(6) }).encode();

impl Timestamp {
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// RFC 3339 in UTC with six decimals, as task responses show it (LIFE-08).
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        let nanos = i128::from(self.0) * 1000;
        OffsetDateTime::from_unix_timestamp_nanos(nanos)
            .ok()
            .and_then(|time| time.format(&Iso8601::<WIRE>).ok())
            .unwrap_or_else(|| "9999-12-31T23:59:59.999999Z".to_owned())
    }

    /// # Errors
    /// If the text is no RFC 3339 time.
    pub fn parse_rfc3339(text: &str) -> Result<Self, time::error::Parse> {
        let time = OffsetDateTime::parse(text, &Rfc3339)?;
        Ok(Self((time.unix_timestamp_nanos() / 1000).try_into().unwrap_or(i64::MAX)))
    }

    /// Time from `earlier` to `self`, zero if that is negative.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).try_into().unwrap_or(0))
    }

    /// The smallest time that is after both `self` and not before `now`: how `updated` moves.
    #[must_use]
    pub fn moved_to(self, now: Self) -> Self {
        now.max(Self(self.0.saturating_add(1)))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_micros().try_into().unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration.as_micros().try_into().unwrap_or(i64::MAX)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

/// Where `now` comes from.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;

    /// Time since some fixed point, never set back, counting suspends. For judging the age of what this
    /// process itself did, such as its last heartbeat.
    fn boot(&self) -> Duration;

    /// Takes the database's time as measured at `at` on [`Clock::boot`]'s scale; answers by how much that
    /// moved the clock.
    fn adjust(&self, database: Timestamp, at: Duration) -> Duration;
}

/// The boot-time clock plus the measured offset to the database's clock.
///
/// Until the first measurement it goes by the system's wall clock.
#[derive(Debug)]
pub struct SystemClock {
    offset: AtomicI64,
}

impl SystemClock {
    #[must_use]
    pub fn new() -> Arc<Self> {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
        let wall = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
        let offset = i64::try_from(wall).unwrap_or(i64::MAX).saturating_sub(micros(boot_time()));
        Arc::new(Self { offset: AtomicI64::new(offset) })
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(micros(boot_time()).saturating_add(self.offset.load(Ordering::Relaxed)))
    }

    fn boot(&self) -> Duration {
        boot_time()
    }

    fn adjust(&self, database: Timestamp, at: Duration) -> Duration {
        let offset = database.0.saturating_sub(micros(at));
        let before = self.offset.swap(offset, Ordering::Relaxed);
        Duration::from_micros(before.abs_diff(offset))
    }
}

/// A clock that tests move by hand.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
}

impl ManualClock {
    #[must_use]
    pub fn at(now: Timestamp) -> Arc<Self> {
        Arc::new(Self { now: AtomicI64::new(now.0) })
    }

    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(micros(by), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn boot(&self) -> Duration {
        Duration::from_micros(self.now.load(Ordering::SeqCst).unsigned_abs())
    }

    /// A test's clock is moved by the test alone.
    fn adjust(&self, _database: Timestamp, _at: Duration) -> Duration {
        Duration::ZERO
    }
}

fn micros(duration: Duration) -> i64 {
    duration.as_micros().try_into().unwrap_or(i64::MAX)
}

fn boot_time() -> Duration {
    #[cfg(target_os = "linux")]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        let time = Timestamp::from_micros(1_796_000_000_000_001);
        assert_eq!(time.to_rfc3339(), "2026-11-30T00:53:20.000001Z");
        assert_eq!(Timestamp::parse_rfc3339(&time.to_rfc3339()).unwrap(), time);
    }

    #[test]
    fn the_system_clock_follows_the_database() {
        let clock = SystemClock::new();
        let database = clock.now() + Duration::from_secs(600);
        let moved = clock.adjust(database, clock.boot());
        assert!(moved.abs_diff(Duration::from_secs(600)) < Duration::from_secs(5), "{moved:?}");
        assert!(clock.now() >= database);
    }

    #[test]
    fn the_system_clock_moves_as_boot_time_does() {
        let clock = SystemClock::new();
        let now = clock.now();
        let boot = clock.boot();
        while clock.boot() < boot + Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        assert!(clock.now() >= now + Duration::from_millis(2));
    }

    #[test]
    fn a_manual_clock_is_moved_by_its_test_alone() {
        let clock = ManualClock::at(Timestamp::from_micros(5));
        clock.advance(Duration::from_micros(2));
        assert_eq!(clock.adjust(Timestamp::from_micros(900), Duration::ZERO), Duration::ZERO);
        assert_eq!((clock.now(), clock.boot()), (Timestamp::from_micros(7), Duration::from_micros(7)));
    }

    #[test]
    fn updated_always_moves() {
        let old = Timestamp::from_micros(50);
        assert_eq!(old.moved_to(Timestamp::from_micros(60)).micros(), 60);
        assert_eq!(old.moved_to(Timestamp::from_micros(50)).micros(), 51);
        assert_eq!(old.moved_to(Timestamp::from_micros(10)).micros(), 51);
    }
}
