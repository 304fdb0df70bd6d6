//! What follows when a runner is lost: by each tool's restart policy, each claim by its own token (KEEP-06 to KEEP-08).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Engine;
use super::membership::{HEARTBEAT, LEASE};
use crate::domain::clock::Timestamp;
use crate::domain::lease::backoff;
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::work::{Claim, UpstreamTask};
use crate::store::{End, Ended, Finish, Release, StoreError};

const BATCH: u32 = 200;
/// A lease of ours that no runner of ours knows is recovered after this: until then its creation may still be on its way.
const FORGOTTEN: Duration = Duration::from_secs(10);

impl Engine {
    /// Apart from the heartbeats: the recovery of a large node may take longer than others wait for a heartbeat.
    pub(super) async fn recover_loop(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(HEARTBEAT);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.stopped.cancelled() => return,
            }
            if let Err(error) = self.recover_once().await {
                tracing::warn!(%error, retry_s = HEARTBEAT.as_secs(), "recovery of lost tasks failed; trying again");
            }
        }
    }

    /// Recovers what this node itself has lost, if it is time to look; judges the other nodes, if this one may, and recovers
    /// the tasks of the dead. Answers how many of those.
    ///
    /// # Errors
    /// If the store fails; what was recovered stays recovered.
    pub async fn recover_once(self: &Arc<Self>) -> Result<usize, StoreError> {
        if self.membership.take_look() {
            let looked = async {
                self.hand_back_doubtful().await?;
                self.recover_forgotten().await?;
                self.recover_streams().await
            };
            looked.await.inspect_err(|_| self.membership.look_again())?;
        }
        if !self.membership.may_judge(self.clock.boot()) {
            self.tend_session_streams().await?;
            return Ok(0);
        }
        let (store, judge) = (self.store.system(), self.membership.node());
        // As a rule nothing is: one question instead of all that follow.
        if !store.anything_lost(judge, LEASE).await? {
            self.tend_session_streams().await?;
            return Ok(0);
        }
        for node in store.declare_dead(judge, LEASE).await? {
            tracing::warn!(node.id = %node, "a node stopped reporting and was declared dead");
        }
        // So that questions which its streams had go to others.
        store.let_go_dead_nodes().await?;
        self.tend_session_streams().await?;
        self.take_orphaned_subscriptions().await?;
        self.recover_orphans().await
    }

    /// Recovers every claim of a dead or unknown node.
    async fn recover_orphans(self: &Arc<Self>) -> Result<usize, StoreError> {
        let store = self.store.system();
        let mut after = None;
        let mut recovered = 0;
        loop {
            let claims = store.orphans(after, BATCH).await?;
            let Some(last) = claims.last() else { break };
            after = Some(last.lease.task);
            // Together, so that they share commits.
            for settled in join_all(claims.iter().map(|claim| self.recover(claim, "its node was lost"))).await {
                recovered += usize::from(unless_refused(settled)?);
            }
        }
        Ok(recovered)
    }

    /// Compares the leases that the database says this node holds with what its runner knows.
    async fn recover_forgotten(self: &Arc<Self>) -> Result<(), StoreError> {
        let store = self.store.system();
        let old = self.clock.now() - FORGOTTEN;
        for lease in store.held(self.membership.node()).await? {
            if lease.claimed >= old || self.runner.knows(lease.task, lease.token) {
                continue;
            }
            if let Some(claim) = store.claim_of(lease.task, lease.token).await? {
                tracing::warn!(task.id = %lease.task, "a claim of this node had no runner");
                unless_refused(self.recover(&claim, "its runner was lost").await)?;
            }
        }
        Ok(())
    }

    /// Settles a claim whose dispatched call will never answer. True if this was the write that did it.
    async fn recover(self: &Arc<Self>, claim: &Claim, why: &str) -> Result<bool, StoreError> {
        let store = self.store.system();
        let now = self.clock.now();
        if may_retry(claim) {
            let mut release = retry_later(claim, now, why);
            if goes_on(claim) {
                release.message = format!("{why}; following the server's own task");
            }
            let settled = store.release(release).await?;
            self.runner.somebody_waits();
            return Ok(settled);
        }
        let finish = Finish { task: claim.lease.task, token: claim.lease.token, end: self.lost_end(claim, why, now) };
        // Else another write was first; what runs under another lease, perhaps here, goes on.
        let Ended::Done(task) = store.finish(finish).await? else { return Ok(false) };
        self.streams.task_changed(&task);
        self.settled(task.id);
        Ok(true)
    }

    pub(super) fn lost_end(&self, claim: &Claim, detail: &str, now: Timestamp) -> End {
        // Of a call that its upstream runs as a task, later attempts only ask how that is doing.
        let attempts = if claim.handed_over.is_some() { 1 } else { claim.lease.attempt };
        let failure = Failure::OutcomeUnknown { detail: detail.to_owned(), attempts };
        self.end_of(claim, Outcome::failure(&failure), now)
    }

    /// How a claim ends with `outcome` now.
    pub(super) fn end_of(&self, claim: &Claim, outcome: Outcome, now: Timestamp) -> End {
        End {
            message: outcome.diagnosis(self.rules.message_limit),
            expires: self.rules.ttl.expires(claim.work.created, claim.work.granted, now),
            outcome,
            now,
        }
    }
}

/// A row of which the database takes no end, and no hand-back, stops none of the others.
pub(super) fn unless_refused(settled: Result<bool, StoreError>) -> Result<bool, StoreError> {
    match settled {
        Err(StoreError::Unavailable(why)) => Err(StoreError::Unavailable(why)),
        Err(error) => {
            tracing::error!(%error, "a lost task cannot be recovered; trying again");
            Ok(false)
        }
        settled => settled,
    }
}

/// Whether the next attempt of a claim whose runner is lost does no harm: the call may be made again, or is not made at all
/// because its upstream runs it as a task, which is followed.
pub(super) fn may_retry(claim: &Claim) -> bool {
    goes_on(claim) || may_repeat(claim)
}

/// Whether its call may be made again.
pub(super) fn may_repeat(claim: &Claim) -> bool {
    claim.work.restart.repeats(claim.lease.attempt, claim.work.attempts_allowed)
}

/// Whether its upstream runs it as a task that another attempt can follow.
fn goes_on(claim: &Claim) -> bool {
    claim.handed_over.as_ref().is_some_and(UpstreamTask::outlives_us)
}

pub(super) fn attempts_left(claim: &Claim) -> bool {
    claim.lease.attempt < claim.work.attempts_allowed
}

/// Gives a claim back for another attempt after its backoff.
pub(super) fn retry_later(claim: &Claim, now: Timestamp, why: &str) -> Release {
    let lease = &claim.lease;
    // The token is as good as any random number, and needs no generator here.
    let jitter = lease.token.as_uuid().as_fields().0;
    Release {
        task: lease.task,
        token: lease.token,
        not_before: now + backoff(lease.attempt, jitter),
        counted: !goes_on(claim),
        keep_inputs: goes_on(claim),
        message: format!(
            "attempt {} of {} did not end: {why}; trying again",
            lease.attempt, claim.work.attempts_allowed
        ),
        now,
    }
}
