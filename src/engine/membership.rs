//! This process among the nodes: heartbeats, the clock's offset, and whether it may judge others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Engine;
use crate::domain::clock::Clock;
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
/// A heartbeat that took longer does not measure the clock: when in all that time the database read its own is unknown.
const MEASURES: Duration = Duration::from_secs(1);
/// A measurement that moves the clock by more than this is suspicious.
const SUSPICIOUS: Duration = Duration::from_secs(10);
/// For so long nothing is reaped after a suspicious measurement.
const REAPER_HOLD: Duration = Duration::from_secs(600);

pub(super) struct Membership {
    state: Mutex<State>,
}

struct State {
    node: NodeId,
    /// On the boot clock's scale, as all times here.
    last_beat: Duration,
    on_time: u32,
    beats: u64,
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
        let at = clock.boot();
        clock.adjust(database_now, before + (at - before) / 2);
        let state = State { node, last_beat: at, on_time: 0, beats: 0, reaper_held_until: Duration::ZERO };
        Ok(Self { state: Mutex::new(state) })
    }

    pub(super) fn node(&self) -> NodeId {
        self.lock().node
    }

    /// Whether the last heartbeat is young enough to dispatch work by it.
    pub(super) fn is_fresh(&self, boot: Duration) -> bool {
        boot.saturating_sub(self.lock().last_beat) < FRESH
    }

    pub(super) fn may_judge(&self) -> bool {
        self.lock().on_time >= TO_JUDGE
    }

    pub(super) fn reaper_is_held(&self, boot: Duration) -> bool {
        boot < self.lock().reaper_held_until
    }

    /// Notes a heartbeat that landed at `at`; answers how many there were.
    fn landed(&self, at: Duration) -> u64 {
        let mut state = self.lock();
        let in_time = at.saturating_sub(state.last_beat) < 2 * HEARTBEAT;
        state.on_time = if in_time { state.on_time + 1 } else { 0 };
        state.last_beat = at;
        state.beats += 1;
        state.beats
    }

    fn reborn(&self, node: NodeId, at: Duration) {
        let mut state = self.lock();
        state.node = node;
        state.on_time = 0;
        state.last_beat = at;
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
                tracing::warn!(%error, "heartbeat failed; trying again in {} s", HEARTBEAT.as_secs());
                continue;
            }
            if let Err(error) = self.recover_once().await {
                tracing::warn!(%error, "recovery of other nodes' tasks failed; trying again with the next heartbeat");
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
        let moved =
            if took <= MEASURES { self.clock.adjust(beat.database_now, before + took / 2) } else { Duration::ZERO };
        if moved > SUSPICIOUS {
            let moved_s = moved.as_secs();
            tracing::warn!(
                moved_s,
                "the database's clock moved against this node's; nothing is deleted for ten minutes"
            );
            self.membership.lock().reaper_held_until = at + REAPER_HOLD;
        }
        if !beat.alive {
            return self.rebirth().await;
        }
        if self.membership.landed(at).is_multiple_of(4) {
            self.recover_forgotten().await?;
        }
        Ok(BeatOutcome::Alive)
    }

    /// Stops what this node ran, which others have taken over by now, and joins again as a new node.
    async fn rebirth(self: &Arc<Self>) -> Result<BeatOutcome, StoreError> {
        let old = self.membership.node();
        self.runner.stop_all();
        let node = NodeId::new();
        self.store.system().register_node(node).await?;
        self.membership.reborn(node, self.clock.boot());
        tracing::warn!(node.old = %old, node.id = %node, "other nodes declared this one dead; its work was stopped");
        Ok(BeatOutcome::Reborn)
    }

    /// At the end of a clean stop: nobody needs to wait for this node's death.
    pub(super) async fn leave(&self) {
        if let Err(error) = self.store.system().retire_node(self.membership.node()).await {
            tracing::debug!(%error, "this node could not be retired; others will find its heartbeat missing");
        }
    }
}
