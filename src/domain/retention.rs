//! How long tasks are kept. One rule decides for every method; physical deletion lags and nobody can tell.

use std::time::Duration;

use super::clock::Timestamp;

/// A time to live, counted from creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    Milliseconds(i64),
    Unlimited,
}

impl Ttl {
    /// The whole milliseconds from `created` to `expires`, rounded up.
    #[must_use]
    pub fn between(created: Timestamp, expires: Timestamp) -> Self {
        let micros = expires.since(created).as_micros();
        Self::Milliseconds(micros.div_ceil(1000).try_into().unwrap_or(i64::MAX))
    }

    /// As the wire and the database have it: `None` is without limit.
    #[must_use]
    pub const fn milliseconds(self) -> Option<i64> {
        match self {
            Self::Milliseconds(ms) => Some(ms),
            Self::Unlimited => None,
        }
    }

    #[must_use]
    pub fn from_milliseconds(ms: Option<i64>) -> Self {
        ms.map_or(Self::Unlimited, Self::Milliseconds)
    }
}

/// The configured limits (`[tasks]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TtlRules {
    /// Granted when none is asked for; `None` is without limit.
    pub default: Option<Duration>,
    pub min: Duration,
    /// `None` means that even "for ever" may be granted.
    pub max: Option<Duration>,
    /// How long an ended task stays readable at least.
    pub min_retention: Duration,
    /// The longest life of a task that does not end by itself.
    pub hard_lifetime: Duration,
}

impl TtlRules {
    /// What is granted for what was asked (TASK-02): raised to the minimum, lowered to the maximum. `tool` is a
    /// tool's own default.
    #[must_use]
    pub fn grant(&self, asked_ms: Option<u64>, tool: Option<Duration>) -> Ttl {
        let wanted = asked_ms.map(Duration::from_millis).or(tool).or(self.default);
        match (wanted, self.max) {
            (None, None) => Ttl::Unlimited,
            (None, Some(max)) => Ttl::Milliseconds(ms(max.max(self.min))),
            (Some(ttl), max) => {
                Ttl::Milliseconds(ms(ttl.max(self.min).min(max.unwrap_or(Duration::MAX).max(self.min))))
            }
        }
    }

    /// The TTL of a live task (KEEP-05): the smallest granted x 2^k that reaches half a granted TTL beyond `now`, at
    /// most the hard lifetime. Computed, the same on every node, never stored.
    #[must_use]
    pub fn shown_while_live(&self, created: Timestamp, granted: Ttl, now: Timestamp) -> Ttl {
        let Ttl::Milliseconds(granted) = granted else { return Ttl::Unlimited };
        let granted = u128::try_from(granted).unwrap_or(1).max(1);
        let needed = now.since(created).as_micros().div_ceil(1000) + granted / 2;
        let mut ttl = granted;
        while ttl < needed {
            ttl *= 2;
        }
        Ttl::Milliseconds(ttl.min(self.hard_lifetime.as_millis()).try_into().unwrap_or(i64::MAX))
    }

    /// When an unfinished task is ended for its age.
    #[must_use]
    pub fn hard_end(&self, created: Timestamp) -> Timestamp {
        created + self.hard_lifetime
    }

    /// What the write that ends a task stores (KEEP-05): the granted TTL counted from creation, or the end plus the
    /// minimum retention, whichever is later; whole milliseconds after creation, so that the TTL shown is exact.
    #[must_use]
    pub fn expires(&self, created: Timestamp, granted: Ttl, ended: Timestamp) -> Option<Timestamp> {
        let granted = granted.milliseconds()?;
        let kept = Ttl::between(created, ended + self.min_retention).milliseconds()?;
        Some(created + Duration::from_millis(granted.max(kept).unsigned_abs()))
    }
}

fn ms(duration: Duration) -> i64 {
    duration.as_millis().try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn rules() -> TtlRules {
        TtlRules {
            default: Some(HOUR),
            min: Duration::from_secs(10),
            max: Some(24 * HOUR),
            min_retention: Duration::from_secs(600),
            hard_lifetime: 26 * HOUR,
        }
    }

    // req: TASK-02
    #[test]
    fn the_granted_ttl_is_within_the_limits() {
        let rules = rules();
        assert_eq!(rules.grant(None, None), Ttl::Milliseconds(3_600_000));
        assert_eq!(rules.grant(None, Some(2 * HOUR)), Ttl::Milliseconds(7_200_000));
        assert_eq!(rules.grant(Some(0), None), Ttl::Milliseconds(10_000));
        assert_eq!(rules.grant(Some(60_000), None), Ttl::Milliseconds(60_000));
        assert_eq!(rules.grant(Some(1 << 53), None), Ttl::Milliseconds(86_400_000));
        let endless = TtlRules { default: None, max: None, ..rules };
        assert_eq!(endless.grant(None, None), Ttl::Unlimited);
        assert_eq!(endless.grant(Some(1 << 53), None), Ttl::Milliseconds(1 << 53));
    }

    // req: KEEP-05
    #[test]
    fn a_live_task_shows_a_ttl_that_reaches_beyond_now() {
        let rules = rules();
        let created = Timestamp::from_micros(1_000_000);
        let granted = Ttl::Milliseconds(60_000);
        let shown = |s: u64| rules.shown_while_live(created, granted, created + Duration::from_secs(s));
        assert_eq!(shown(0), Ttl::Milliseconds(60_000));
        assert_eq!(shown(30), Ttl::Milliseconds(60_000));
        assert_eq!(shown(31), Ttl::Milliseconds(120_000));
        assert_eq!(shown(91), Ttl::Milliseconds(240_000));
        assert_eq!(shown(1_000_000), Ttl::Milliseconds(26 * 3_600_000));
    }

    // req: KEEP-05
    #[test]
    fn an_unfinished_task_ends_at_the_hard_lifetime() {
        let created = Timestamp::from_micros(1_000_000);
        assert_eq!(rules().hard_end(created).since(created), 26 * HOUR);
    }

    proptest! {
        // req: KEEP-05
        #[test]
        fn what_is_shown_at_the_end_is_what_decides(
            created in 0_i64..4_000_000_000_000_000, ran in 0_u64..200_000_000_000, granted in 10_000_i64..86_400_000,
        ) {
            let rules = rules();
            let created = Timestamp::from_micros(created);
            let ended = created + Duration::from_micros(ran);
            let expires = rules.expires(created, Ttl::Milliseconds(granted), ended).unwrap();
            let Ttl::Milliseconds(shown) = Ttl::between(created, expires) else { unreachable!() };
            prop_assert_eq!(created + Duration::from_millis(shown.unsigned_abs()), expires);
            prop_assert!(expires >= ended + rules.min_retention);
            prop_assert!(shown >= granted);
        }

        #[test]
        fn a_live_ttl_never_shrinks(granted in 10_000_i64..86_400_000, a in 0_u64..200_000_000, b in 0_u64..200_000_000) {
            let rules = rules();
            let created = Timestamp::from_micros(0);
            let at = |ms| rules.shown_while_live(created, Ttl::Milliseconds(granted), created + Duration::from_millis(ms));
            let (early, late) = (at(a.min(b)).milliseconds(), at(a.max(b)).milliseconds());
            prop_assert!(early <= late);
        }
    }
}
