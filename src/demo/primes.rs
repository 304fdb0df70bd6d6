//! Work that keeps a processor busy.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

/// How far the counting has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The number looked at now.
    pub(super) at: AtomicU64,
    pub(super) found: AtomicU64,
}

/// Counts the primes below a bound by trial division; `None` if it was stopped.
pub(super) fn count(below: u64, progress: &Progress, stop: &CancellationToken) -> Option<u64> {
    let mut found = 0;
    for number in 2..below {
        if number % 1024 == 0 {
            if stop.is_cancelled() {
                return None;
            }
            progress.at.store(number, Ordering::Relaxed);
            progress.found.store(found, Ordering::Relaxed);
        }
        found += u64::from(is_prime(number));
    }
    Some(found)
}

fn is_prime(number: u64) -> bool {
    if number < 4 {
        return number > 1;
    }
    if number.is_multiple_of(2) || number.is_multiple_of(3) {
        return false;
    }
    let mut divisor = 5;
    while divisor * divisor <= number {
        if number.is_multiple_of(divisor) || number.is_multiple_of(divisor + 2) {
            return false;
        }
        divisor += 6;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_are_counted_until_stopped() {
        let stop = CancellationToken::new();
        for (below, expected) in [(0, 0), (2, 0), (3, 1), (10, 4), (100, 25), (10_000, 1229)] {
            assert_eq!(count(below, &Progress::default(), &stop), Some(expected));
        }
        stop.cancel();
        assert_eq!(count(10_000, &Progress::default(), &stop), None);
    }
}
