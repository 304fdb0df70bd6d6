//! How often an upstream's noise is worth a line in our log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two reports.
const NOISE_EVERY: Duration = Duration::from_secs(60);

/// Counts what an upstream writes besides the protocol, so that its noise does not fill our log.
#[derive(Default)]
pub(super) struct Noise(Mutex<(u64, Option<Instant>)>);

impl Noise {
    /// How many lines to report now, this one included; `None` if the last report is too fresh.
    pub(super) fn heard(&self) -> Option<u64> {
        self.heard_at(Instant::now())
    }

    fn heard_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, reported) = &mut *state;
        *count += 1;
        if reported.is_some_and(|reported| now.duration_since(reported) < NOISE_EVERY) {
            return None;
        }
        *reported = Some(now);
        Some(std::mem::take(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_counted_and_reported_seldom() {
        let (noise, now) = (Noise::default(), Instant::now());
        assert_eq!(noise.heard_at(now), Some(1));
        assert_eq!([noise.heard_at(now), noise.heard_at(now)], [None, None]);
        let later = now + NOISE_EVERY;
        assert_eq!([noise.heard_at(later), noise.heard_at(later)], [Some(3), None]);
    }
}
