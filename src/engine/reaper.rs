//! The end of rows: tasks past their TTL, work past its hard lifetime, idle sessions, dead nodes (`docs/retention.md`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use crate::domain::clock::Timestamp;
use crate::domain::outcome::{Failure, Outcome};
use crate::store::{End, Ended, Firsts, StoreError};

/// The shortest and the longest pause between two rounds: within it the reaper sleeps until something it knows of is due.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
const BATCH: u32 = 500;
/// Dead nodes are forgotten a day after they were last heard of.
const NODE_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Every node has asked for its signals many times by then.
const SIGNAL_RETENTION: Duration = Duration::from_secs(60);

/// What one round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reaped {
    /// Live tasks ended at their hard lifetime.
    pub ended: u64,
    /// Ended tasks deleted.
    pub tasks: u64,
    pub sessions: u64,
    pub nodes: u64,
    pub signals: u64,
    /// Calls ended whose callers did not come back to what they were asked.
    pub rounds: u64,
}

/// From when on rows of each kind go.
struct Ages {
    now: Timestamp,
    /// Sessions last used before this.
    idle: Timestamp,
    /// Signals given before this.
    old: Timestamp,
    /// Dead nodes last heard of before this.
    gone: Timestamp,
}

impl Engine {
    pub(super) async fn reap_loop(self: Arc<Self>) {
        let mut pause = PAUSE.0;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stopped.cancelled() => return,
            }
            pause = match self.reap_round().await {
                Ok((reaped, next)) if reaped == Reaped::default() => next,
                Ok((reaped, next)) => {
                    tracing::debug!(?reaped, "rows past their time were removed");
                    next
                }
                Err(error) => {
                    tracing::warn!(%error, "removing rows past their time failed; trying again");
                    PAUSE.0
                }
            };
        }
    }

    /// One round: everything whose time has come by now, in bounded batches. Does nothing while the clock is in doubt
    /// (KEEP-04).
    ///
    /// # Errors
    /// If the store fails; what was removed stays removed.
    pub async fn reap_once(self: &Arc<Self>) -> Result<Reaped, StoreError> {
        Ok(self.reap_round().await?.0)
    }

    /// The same; answers how long to wait for the next round, too. One question says what is due, so that a round in which
    /// nothing is costs no more.
    async fn reap_round(self: &Arc<Self>) -> Result<(Reaped, Duration), StoreError> {
        let mut reaped = Reaped::default();
        let Some(now) = self.membership.reaping_time(&*self.clock) else { return Ok((reaped, PAUSE.1)) };
        let ages =
            Ages { now, idle: now - self.rules.session_idle, old: now - SIGNAL_RETENTION, gone: now - NODE_RETENTION };
        let store = self.store.system();
        let firsts = store.firsts().await?;
        let ended = if ages.is_over(firsts.hard_end) { self.end_overdue(now).await } else { Ok(0) };
        if ages.is_over(firsts.expiry) {
            reaped.tasks = in_batches(|| store.reap(now, BATCH)).await?;
        }
        if firsts.session.is_some_and(|used| used < ages.idle) {
            reaped.sessions = in_batches(|| store.reap_sessions(ages.idle, BATCH)).await?;
        }
        if firsts.signal.is_some_and(|given| given < ages.old) {
            reaped.signals = in_batches(|| store.reap_signals(ages.old, BATCH)).await?;
        }
        if ages.is_over(firsts.round) {
            reaped.rounds = self.give_up_rounds(now, BATCH).await?;
        }
        if firsts.node.is_some_and(|heard| heard < ages.gone) {
            reaped.nodes = store.forget_nodes(ages.gone).await?;
        }
        // Last, so that one live row that cannot be ended does not keep all the ended ones.
        reaped.ended = ended?;
        Ok((reaped, ages.pause(&firsts)))
    }

    /// Ends tasks that reached the hard lifetime, whoever runs them (KEEP-05).
    async fn end_overdue(&self, now: Timestamp) -> Result<u64, StoreError> {
        let store = self.store.system();
        let mut ended = 0;
        loop {
            let overdue = store.overdue(now, BATCH).await?;
            for over in &overdue {
                let task = &over.task;
                let limit_s = over.hard_end.since(task.created).as_secs();
                let outcome = Outcome::failure(&Failure::LifetimeExceeded { limit_s });
                let end = End {
                    message: outcome.diagnosis(self.rules.message_limit),
                    expires: self.rules.ttl.expires(task.created, task.granted, now),
                    outcome,
                    now,
                };
                if let Ended::Done(task) = store.end(task.id, end).await? {
                    self.streams.task_changed(&task);
                    ended += 1;
                }
                self.settled(task.id);
            }
            if overdue.len() < BATCH as usize {
                return Ok(ended);
            }
        }
    }
}

impl Ages {
    fn is_over(&self, end: Option<Timestamp>) -> bool {
        end.is_some_and(|end| end <= self.now)
    }

    /// Until the first row is due that there was; another may be added before it, on any node, so that this is not long.
    fn pause(&self, firsts: &Firsts) -> Duration {
        let until = |end: Option<Timestamp>, limit: Timestamp| end.map(|end| end.since(limit));
        let first = [
            until(firsts.hard_end, self.now),
            until(firsts.expiry, self.now),
            until(firsts.round, self.now),
            until(firsts.session, self.idle),
            until(firsts.signal, self.old),
            until(firsts.node, self.gone),
        ];
        first.into_iter().flatten().min().unwrap_or(PAUSE.1).clamp(PAUSE.0, PAUSE.1)
    }
}

/// Runs a bounded deletion until nothing is left, resting as long as it worked so that others get their turn.
async fn in_batches<F>(delete: impl Fn() -> F) -> Result<u64, StoreError>
where
    F: Future<Output = Result<u64, StoreError>>,
{
    let mut total = 0;
    loop {
        let began = Instant::now();
        let deleted = delete().await?;
        total += deleted;
        if deleted < u64::from(BATCH) {
            return Ok(total);
        }
        tokio::time::sleep(began.elapsed()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_comes_when_something_is_due_and_before_long() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let ages = Ages { now: at(1000), idle: at(900), old: at(940), gone: at(100) };
        let nothing = Firsts::default();
        let pause = |firsts| ages.pause(&firsts).as_secs();
        assert_eq!(pause(nothing), 10, "another node may add a row meanwhile");
        assert_eq!(pause(Firsts { hard_end: Some(at(1007)), ..nothing }), 7);
        assert_eq!(pause(Firsts { expiry: Some(at(1006)), hard_end: Some(at(1007)), ..nothing }), 6);
        assert_eq!(pause(Firsts { round: Some(at(1008)), ..nothing }), 8);
        assert_eq!(pause(Firsts { session: Some(at(905)), ..nothing }), 5);
        assert_eq!(pause(Firsts { signal: Some(at(944)), ..nothing }), 4);
        assert_eq!(pause(Firsts { node: Some(at(103)), ..nothing }), 3);
        assert_eq!(pause(Firsts { expiry: Some(at(999)), ..nothing }), 2, "but not at once again");
        assert_eq!(pause(Firsts { expiry: Some(at(100_000)), ..nothing }), 10);
    }
}
