//! What a scenario prints: one line of counts, and how fast work was done before the fault and after it.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use super::checker::{Verdict, last_end};
use super::history::Pages;

/// When what happened.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The load had become even.
    pub even: Duration,
    pub broken: Duration,
    /// Nothing is broken any more; what follows is recovery.
    pub whole: Duration,
    /// The load was stopped.
    pub stopped: Duration,
    /// The length of the windows in which ends are counted.
    pub window: Duration,
}

/// One line of the table.
pub struct Row<'a> {
    pub name: &'a str,
    pub verdict: &'a Verdict,
    pub speed: Speed,
    pub notes: String,
}

/// Ends of tasks over time.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// Medians of windows, in ends a second.
    pub before: f64,
    pub after: f64,
    /// From the end of the fault until a second had four fifths of `before`; `None` if none had.
    pub recovered: Option<Duration>,
    /// From the end of the fault until the last of the tasks ended that had been told before.
    pub settled: Duration,
}

impl Speed {
    pub fn measure(pages: &Pages, times: Times) -> Self {
        let mut ends: Vec<Duration> = pages.ends().into_values().collect();
        ends.sort_unstable();
        let count = |from: Duration, to: Duration| {
            ends.partition_point(|end| *end < to) - ends.partition_point(|end| *end < from)
        };
        let median = |mut from: Duration, to: Duration| {
            let mut rates = Vec::new();
            while from + times.window <= to {
                rates.push(count(from, from + times.window) as f64 / times.window.as_secs_f64());
                from += times.window;
            }
            rates.sort_unstable_by(f64::total_cmp);
            rates.get(rates.len() / 2).copied().unwrap_or_default()
        };
        let before = median(times.even, times.broken);
        let (second, step) = (Duration::from_secs(1), Duration::from_millis(100));
        let mut from = times.whole;
        while from + second <= times.stopped && (count(from, from + second) as f64) < before * 0.8 {
            from += step;
        }
        let recovered = (from + second <= times.stopped).then(|| from - times.whole);
        let after = median(recovered.map_or(times.whole, |took| times.whole + took), times.stopped);
        let settled = last_end(pages, times.whole).unwrap_or_default().saturating_sub(times.whole);
        Self { before, after, recovered, settled }
    }

    /// Whether there were a few windows after the recovery, so long after the end of the fault.
    pub fn is_told_after(&self, time: Duration, window: Duration) -> bool {
        self.recovered.is_some_and(|took| took + 3 * window <= time)
    }

    fn recovery(&self) -> String {
        self.recovered.map_or("never".to_owned(), |took| format!("{:.1} s", took.as_secs_f64()))
    }

    pub fn ratio(&self) -> f64 {
        if self.before > 0.0 { self.after / self.before } else { 0.0 }
    }
}

const HEAD: &str = "
| scenario | acknowledged | lost | changed | run twice | stuck | other faults | unknown | recovered after | settled after \
| before | after | ratio |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

impl Row<'_> {
    /// Adds the line to the table in the file that `TASKHOLD_TEST_FAULT_REPORT` names, if it does.
    pub fn enter(&self) {
        let Some(file) = std::env::var_os("TASKHOLD_TEST_FAULT_REPORT") else { return };
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        if file.metadata().unwrap().len() == 0 {
            file.write_all(HEAD.as_bytes()).unwrap();
        }
        let Self { name, verdict, speed, .. } = self;
        let other = verdict.forbidden.len() + verdict.foreign.len() + verdict.dishonest.len();
        writeln!(
            file,
            "| {name} | {} | {} | {} | {} | {} | {other} | {} | {} | {:.1} s | {:.0}/s | {:.0}/s | {:.0} % |",
            verdict.acknowledged,
            verdict.lost.len(),
            verdict.changed.len(),
            verdict.twice.len(),
            verdict.stuck.len(),
            verdict.unknown,
            speed.recovery(),
            speed.settled.as_secs_f64(),
            speed.before,
            speed.after,
            speed.ratio() * 100.0,
        )
        .unwrap();
    }
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, verdict, speed, notes } = self;
        let recovered = speed.recovery();
        write!(f, "{name:<24} {} acknowledged", verdict.acknowledged)?;
        for (kind, faults) in verdict.faults() {
            write!(f, ", {} {kind}", faults.len())?;
        }
        write!(
            f,
            "; {} unknown, {} unanswered, {} hiccups, {} sent away; recovered after {recovered}, settled after {:.1} s; \
             {:.0}/s before, {:.0}/s after ({:.0} %){notes}",
            verdict.unknown,
            verdict.unanswered,
            verdict.hiccups,
            verdict.sent_away,
            speed.settled.as_secs_f64(),
            speed.before,
            speed.after,
            speed.ratio() * 100.0,
        )
    }
}
