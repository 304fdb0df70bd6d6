//! Latencies, counted in buckets that are less than 1 % wide: percentiles of any number of them from 58 KiB.

use std::time::Duration;

/// Between two powers of two there are `1 << BITS` buckets: each is at most 1/128 of its own value wide.
const BITS: u32 = 7;
const STEPS: usize = 1 << BITS;
/// For every number of nanoseconds that 64 bits can hold.
const BUCKETS: usize = (u64::BITS - BITS + 1) as usize * STEPS;

/// How often each latency was seen.
pub(super) struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    max: Duration,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { counts: vec![0; BUCKETS].into(), total: 0, max: Duration::ZERO }
    }

    pub(super) fn record(&mut self, latency: Duration) {
        self.counts[bucket(nanos(latency))] += 1;
        self.total += 1;
        self.max = self.max.max(latency);
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The longest, exactly.
    pub(super) fn max(&self) -> Duration {
        self.max
    }

    /// What so many of a thousand were not longer than, at most 1 % above the truth; zero if there are none.
    pub(super) fn per_mille(&self, share: u64) -> Duration {
        let rank = (u128::from(self.total) * u128::from(share)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                return Duration::from_nanos(longest(at)).min(self.max);
            }
        }
        self.max
    }
}

fn nanos(latency: Duration) -> u64 {
    latency.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Where a number of nanoseconds is counted.
fn bucket(nanos: u64) -> usize {
    let shift = nanos.checked_ilog2().unwrap_or(0).saturating_sub(BITS);
    // Eight bits are left of it, so that this fits any `usize`.
    shift as usize * STEPS + (nanos >> shift) as usize
}

/// The longest that is counted there.
fn longest(bucket: usize) -> u64 {
    let shift = (bucket / STEPS).saturating_sub(1);
    let first = (bucket - shift * STEPS) as u64;
    (first << shift) | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(nanos: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::new();
        nanos.into_iter().for_each(|nanos| histogram.record(Duration::from_nanos(nanos)));
        histogram
    }

    #[test]
    fn every_bucket_ends_where_the_next_one_begins() {
        for at in 0..BUCKETS {
            assert_eq!(bucket(longest(at)), at);
            if let Some(next) = longest(at).checked_add(1) {
                assert_eq!(bucket(next), at + 1);
            }
        }
        assert_eq!(longest(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let histogram = of((1..=1000).map(|n| n * 1_000_000));
        for (share, milliseconds) in [(500, 500), (950, 950), (990, 990)] {
            let (found, truth) = (histogram.per_mille(share), Duration::from_millis(milliseconds));
            assert!(found >= truth && found <= truth * 101 / 100, "{share}: {found:?}");
        }
        assert_eq!((histogram.total(), histogram.max()), (1000, Duration::from_secs(1)));
        assert_eq!(histogram.per_mille(1000), Duration::from_secs(1));
    }

    #[test]
    fn one_or_none_is_a_histogram_too() {
        assert_eq!(of([]).per_mille(500), Duration::ZERO);
        let one = of([1_234_567_891]);
        assert_eq!([500, 990, 1000].map(|share| one.per_mille(share).as_nanos()), [1_234_567_891; 3]);
    }

    proptest! {
        #[test]
        fn a_percentile_is_within_one_percent(mut latencies in prop::collection::vec(any::<u64>(), 1..200), share in 1_u64..=1000) {
            let histogram = of(latencies.iter().copied());
            latencies.sort_unstable();
            let rank = (latencies.len() as u64 * share).div_ceil(1000).max(1);
            let truth = u128::from(latencies[rank as usize - 1]);
            let found = histogram.per_mille(share).as_nanos();
            prop_assert!(found >= truth && found - truth <= truth / 100, "{} for {}", found, truth);
        }
    }
}
