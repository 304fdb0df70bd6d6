//! What was measured.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::failure::{Failure, Kind};
use super::histogram::Histogram;
use super::{Era, Mode, Options};

/// Taken by all workers.
pub(super) struct Record(Mutex<Taken>);

struct Taken {
    latencies: Histogram,
    failures: BTreeMap<Kind, Failures>,
    limited: u64,
    /// When the last operation was done, or failed.
    last: Duration,
}

/// Those of one kind, and what the first one said.
struct Failures {
    count: u64,
    first: String,
}

/// What was measured, as it is printed.
#[derive(Debug, Serialize)]
pub struct Report {
    pub era: Era,
    pub mode: Mode,
    pub connections: usize,
    /// Operations a second that were asked for.
    pub rate: Option<u32>,
    /// From the first planned start to the last answer.
    pub seconds: f64,
    /// Those that were done; latencies are theirs alone.
    pub operations: u64,
    pub operations_per_second: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    /// Operations that were not done.
    pub errors: u64,
    pub errors_by_kind: BTreeMap<String, u64>,
    /// What the first error of each kind said.
    #[serde(skip)]
    pub first_errors: BTreeMap<String, String>,
    /// Of the errors, those by which the server refused more for now: 429, or a limit's own code.
    pub limited: u64,
    /// How often a connection had to be made anew.
    pub reconnects: u64,
    /// Operations that were due and were never begun.
    pub behind: u64,
}

impl Record {
    pub(super) fn new() -> Self {
        let latencies = Histogram::new();
        Self(Mutex::new(Taken { latencies, failures: BTreeMap::new(), limited: 0, last: Duration::ZERO }))
    }

    pub(super) fn done(&self, latency: Duration, at: Duration) {
        let mut taken = self.lock();
        taken.latencies.record(latency);
        taken.last = taken.last.max(at);
    }

    pub(super) fn failed(&self, failure: Failure, at: Duration) {
        let mut taken = self.lock();
        taken.limited += u64::from(failure.is_limit);
        taken.last = taken.last.max(at);
        taken.failures.entry(failure.kind).or_insert_with(|| Failures { count: 0, first: failure.detail }).count += 1;
    }

    /// What was measured from `start` on, but what only the connections and the schedule know.
    pub(super) fn report(&self, options: &Options, start: Duration, reconnects: u64, behind: u64) -> Report {
        let taken = self.lock();
        let seconds = taken.last.saturating_sub(start).as_secs_f64();
        let operations = taken.latencies.total();
        Report {
            era: options.era,
            mode: options.mode,
            connections: options.connections,
            rate: options.pace.rate,
            seconds,
            operations,
            operations_per_second: if seconds > 0.0 { operations as f64 / seconds } else { 0.0 },
            p50_ms: milliseconds(taken.latencies.per_mille(500)),
            p95_ms: milliseconds(taken.latencies.per_mille(950)),
            p99_ms: milliseconds(taken.latencies.per_mille(990)),
            max_ms: milliseconds(taken.latencies.max()),
            errors: taken.failures.values().map(|found| found.count).sum(),
            errors_by_kind: taken.failures.iter().map(|(kind, found)| (kind.to_string(), found.count)).collect(),
            first_errors: taken.failures.iter().map(|(kind, found)| (kind.to_string(), found.first.clone())).collect(),
            limited: taken.limited,
            reconnects,
            behind,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
