//! The end of rows: tasks past their TTL, work past its hard lifetime, idle sessions, dead nodes (`docs/retention.md`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use crate::domain::clock::Timestamp;
use crate::domain::outcome::{Failure, Outcome};
use crate::store::{End, Ended, StoreError};

const PERIOD: Duration = Duration::from_secs(2);
const BATCH: u32 = 500;
/// Dead nodes are forgotten a day after they were last heard of.
const NODE_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// What one round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reaped {
    /// Live tasks ended at their hard lifetime.
    pub ended: u64,
    /// Ended tasks deleted.
    pub tasks: u64,
    pub sessions: u64,
    pub nodes: u64,
}

impl Engine {
    pub(super) async fn reap_loop(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = self.stopped.cancelled() => return,
            }
            match self.reap_once().await {
                Ok(Reaped { ended: 0, tasks: 0, sessions: 0, nodes: 0 }) => {}
                Ok(reaped) => tracing::debug!(?reaped, "rows past their time were removed"),
                Err(error) => tracing::warn!(%error, "removing rows past their time failed; trying again"),
            }
        }
    }

    /// One round: everything whose time has come by now, in bounded batches. Does nothing while the clock is in doubt
    /// (KEEP-04).
    ///
    /// # Errors
    /// If the store fails; what was removed stays removed.
    pub async fn reap_once(self: &Arc<Self>) -> Result<Reaped, StoreError> {
        let mut reaped = Reaped::default();
        let Some(now) = self.membership.reaping_time(&*self.clock) else { return Ok(reaped) };
        let store = self.store.system();
        let ended = self.end_overdue(now).await;
        reaped.tasks = in_batches(|| store.reap(now, BATCH)).await?;
        let idle = now - self.rules.session_idle;
        reaped.sessions = in_batches(|| store.reap_sessions(idle, BATCH)).await?;
        reaped.nodes = store.forget_nodes(now - NODE_RETENTION).await?;
        // Last, so that one live row that cannot be ended does not keep all the ended ones.
        reaped.ended = ended?;
        Ok(reaped)
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
                if let Ended::Done(_) = store.end(task.id, end).await? {
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
