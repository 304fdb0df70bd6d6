//! This process among the nodes: heartbeats, the clock's offset, and whether it may judge others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Engine;
use crate::domain::clock::{Clock, Timestamp};
use crate::domain::ids::NodeId;
use crate::store::{StoreError, SystemStore};

/// How often a node reports.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);
/// A node silent for longer than this may be declared dead.
pub(super) const LEASE: Duration = Duration::from_secs(20);
/// A claimed call is dispatched only while the node's last heartbeat is younger than this.
const FRESH: Duration = Duration::from_secs(10);
/// Heartbeats that must have landed in time before a node may judge others.
const TO_JUDGE: u32 = 4;
/// Forgotten leases are looked for with every so many heartbeats.
const LOOK_EVERY: u64 = 4;
/// A measurement that moves the clock by more than this is suspicious.
const SUSPICIOUS: Duration = Duration::from_secs(10);
/// A heartbeat that took longer measures nothing: where in that time the database read its clock is not known. On SQLite a
/// heartbeat waits for other processes' writes.
const TELLS_TIME: Duration = Duration::from_secs(1);
/// For so long nothing is reaped after a suspicious measurement.
const REAPER_HOLD: Duration = Duration::from_secs(600);

pub(super) struct Membership {
    state: Mutex<State>,
}

struct State {
    node: NodeId,
    /// When the last heartbeat that landed was sent, on the boot clock's scale as all times here. Not when its answer came:
    /// a process that stood still in between would take an old heartbeat for a young one.
    last_beat: Duration,
    on_time: u32,
    beats: u64,
    /// Whether it is time to compare the leases that the database says this node holds with what runs here.
    look_due: bool,
    reaper_held_until: Duration,
}

/// What a heartbeat found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeatOutcome {
    Alive,
    /// Others declared this node dead: its work was stopped and it goes on under a new id.
    Reborn,
}

impl Membership {
    pub(super) async fn join(store: &SystemStore, clock: &dyn Clock) -> Result<Self, StoreError> {
        let node = NodeId::new();
        let before = clock.boot();
        let database_now = store.register_node(node).await?;
        let took = clock.boot().saturating_sub(before);
        // However long it took: there is no better measurement yet.
        clock.adjust(database_now, before + took / 2);
        let state =
            State { node, last_beat: before, on_time: 0, beats: 0, look_due: false, reaper_held_until: Duration::ZERO };
        Ok(Self { state: Mutex::new(state) })
    }

    pub(super) fn node(&self) -> NodeId {
        self.lock().node
    }

    /// Whether a heartbeat has landed lately: one that is lost is no news.
    pub(super) fn reports(&self, boot: Duration) -> bool {
        boot.saturating_sub(self.lock().last_beat) < HEARTBEAT * 3
    }

    /// Whether the last heartbeat is young enough to dispatch work by it.
    pub(super) fn is_fresh(&self, boot: Duration) -> bool {
        boot.saturating_sub(self.lock().last_beat) < FRESH
    }

    /// Whether a call that was claimed by this id may be sent: others may be about to take it over, or have done so, when its
    /// last heartbeat is old or this node goes on under another id.
    pub(super) fn may_dispatch(&self, claimed_by: NodeId, boot: Duration) -> bool {
        let state = self.lock();
        state.node == claimed_by && boot.saturating_sub(state.last_beat) < FRESH
    }

    /// Whether this node has reported well enough to say of others that they have not. One that stood still until now has not,
    /// whatever it did before.
    pub(super) fn may_judge(&self, boot: Duration) -> bool {
        self.is_fresh(boot) && self.lock().on_time >= TO_JUDGE
    }

    /// The time by which rows are reaped; `None` while the clock is in doubt. Time and doubt are read together, so that a jump
    /// of the clock is not used before it is noticed.
    pub(super) fn reaping_time(&self, clock: &dyn Clock) -> Option<Timestamp> {
        let state = self.lock();
        (clock.boot() >= state.reaper_held_until).then(|| clock.now())
    }

    /// Whether it is time to look for forgotten leases; says so once.
    pub(super) fn take_look(&self) -> bool {
        std::mem::take(&mut self.lock().look_due)
    }

    /// Look for forgotten leases again: the last look failed.
    pub(super) fn look_again(&self) {
        self.lock().look_due = true;
    }

    /// Takes a measurement of the database's clock, and holds the reaper if it moved the clock suspiciously.
    fn measured(&self, clock: &dyn Clock, database_now: Timestamp, at: Duration) {
        let mut state = self.lock();
        let moved = clock.adjust(database_now, at);
        if moved > SUSPICIOUS {
            let (moved_s, held_s) = (moved.as_secs(), REAPER_HOLD.as_secs());
            tracing::warn!(
                moved_s,
                held_s,
                "the database's clock moved against this node's; nothing is deleted for a while"
            );
            state.reaper_held_until = clock.boot() + REAPER_HOLD;
        }
    }

    /// Notes a heartbeat that was sent at `sent` and had landed by `at`.
    fn landed(&self, sent: Duration, at: Duration) {
        let mut state = self.lock();
        let in_time = at.saturating_sub(state.last_beat) < 2 * HEARTBEAT;
        state.on_time = if in_time { state.on_time + 1 } else { 0 };
        state.last_beat = sent;
        state.beats += 1;
        state.look_due |= state.beats.is_multiple_of(LOOK_EVERY);
    }

    fn reborn(&self, node: NodeId, sent: Duration) {
        let mut state = self.lock();
        state.node = node;
        state.on_time = 0;
        state.last_beat = sent;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    pub(super) async fn heartbeat_loop(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(HEARTBEAT);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.stopped.cancelled() => return,
            }
            if let Err(error) = self.beat_once().await {
                tracing::warn!(%error, retry_s = HEARTBEAT.as_secs(), "heartbeat failed; trying again");
            }
        }
    }

    /// Reports once, measures the clock's offset, and notices its own death.
    ///
    /// # Errors
    /// If the heartbeat did not land; it then counts as missed.
    pub async fn beat_once(self: &Arc<Self>) -> Result<BeatOutcome, StoreError> {
        let store = self.store.system();
        let node = self.membership.node();
        let before = self.clock.boot();
        let beat = match store.heartbeat(node).await {
            Ok(beat) => beat,
            Err(error) => {
                self.membership.lock().on_time = 0;
                return Err(error);
            }
        };
        let at = self.clock.boot();
        let took = at.saturating_sub(before);
        if took <= TELLS_TIME {
            self.membership.measured(&*self.clock, beat.database_now, before + took / 2);
        }
        if !beat.alive {
            return self.rebirth().await;
        }
        self.membership.landed(before, at);
        Ok(BeatOutcome::Alive)
    }

    /// Stops what this node ran, which others have taken over by now, and joins again as a new node.
    async fn rebirth(self: &Arc<Self>) -> Result<BeatOutcome, StoreError> {
        let old = self.membership.node();
        self.runner.stop_all();
        let (node, sent) = (NodeId::new(), self.clock.boot());
        let store = self.store.system();
        store.register_node(node).await?;
        store.move_subscriptions(old, node).await?;
        self.membership.reborn(node, sent);
        tracing::warn!(node.old = %old, node.id = %node, "other nodes declared this one dead; its work was stopped");
        if let Err(error) = self.move_streams(old).await {
            tracing::warn!(%error, "streams could not be moved to the new node yet; the rounds of recovery do");
        }
        Ok(BeatOutcome::Reborn)
    }

    /// At the end of a clean stop: nobody needs to wait for this node's death.
    pub(super) async fn leave(&self) {
        if let Err(error) = self.hand_back_doubtful().await {
            tracing::debug!(%error, "claims of which this node has not heard could not be given back");
        }
        if let Err(error) = self.store.system().retire_node(self.membership.node()).await {
            tracing::debug!(%error, "this node could not be retired; others will find its heartbeat missing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The process stood still with a claim in its hands, long enough to be declared dead, and joined again before it came to
    // send the call: by then another node may run it.
    #[test]
    fn a_claim_of_an_earlier_id_is_not_dispatched_however_fresh_the_new_one_is() {
        let (old, new) = (NodeId::new(), NodeId::new());
        let state = State {
            node: old,
            last_beat: Duration::ZERO,
            on_time: 0,
            beats: 0,
            look_due: false,
            reaper_held_until: Duration::ZERO,
        };
        let membership = Membership { state: Mutex::new(state) };
        assert!(membership.may_dispatch(old, FRESH / 2) && !membership.may_dispatch(old, FRESH));
        membership.reborn(new, LEASE);
        assert!(!membership.may_dispatch(old, LEASE) && membership.may_dispatch(new, LEASE));
    }
}
