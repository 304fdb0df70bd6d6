//! The runner: claims waiting tasks for its free slots and runs each attempt to its end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::create::{QUEUED, RUNNING};
use crate::domain::ids::{LeaseToken, TaskId};
use crate::domain::text::storable;
use crate::domain::work::Claim;
use crate::lifecycle;
use crate::store::StoreError;

mod attempt;

/// How often waiting rows are looked for that nobody here knows of: made at other nodes, or waiting for their retry.
const LOOK: Duration = Duration::from_secs(1);
/// Most claims of one round, so that nodes share a backlog.
const ROUND: usize = 64;
/// How often waiting tasks are told their place.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// Places above this are not counted.
const PLACES: u32 = 100;

/// The right to run one task on this node; given back on drop.
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    freed: Arc<Notify>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.freed.notify_one();
    }
}

pub(super) struct Runner {
    slots: Arc<Semaphore>,
    all_slots: usize,
    running: Mutex<HashMap<TaskId, Running>>,
    /// Whether a waiting row may exist that this node knows of; then new tasks do not overtake it.
    waiting: AtomicBool,
    /// Told when a slot is freed or a task begins to wait.
    claimable: Arc<Notify>,
    /// Told when something begins to run.
    pub(super) started: Notify,
}

struct Running {
    token: LeaseToken,
    stop: CancellationToken,
    hand_back: CancellationToken,
}

impl Runner {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(slots)),
            all_slots: slots,
            running: Mutex::default(),
            waiting: AtomicBool::new(true), // until the first look says otherwise
            claimable: Arc::default(),
            started: Notify::new(),
        }
    }

    pub(super) fn take_slot_if_nobody_waits(&self) -> Option<Slot> {
        if self.waiting.load(Ordering::SeqCst) { None } else { self.take_slot() }
    }

    pub(super) fn somebody_waits(&self) {
        self.waiting.store(true, Ordering::SeqCst);
        self.claimable.notify_one();
    }

    pub(super) fn running(&self) -> Vec<TaskId> {
        self.lock().keys().copied().collect()
    }

    pub(super) fn knows(&self, task: TaskId, token: LeaseToken) -> bool {
        self.lock().get(&task).is_some_and(|running| running.token == token)
    }

    /// Stops the work of a task that ended otherwise.
    pub(super) fn stop(&self, task: TaskId) {
        if let Some(running) = self.lock().get(&task) {
            running.stop.cancel();
        }
    }

    pub(super) fn stop_all(&self) {
        for running in self.lock().values() {
            running.stop.cancel();
        }
    }

    fn take_slot(&self) -> Option<Slot> {
        let permit = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        Some(Slot { _permit: permit, freed: Arc::clone(&self.claimable) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    pub(super) async fn claim_loop(self: Arc<Self>) {
        let mut announced: Option<Instant> = None;
        loop {
            let told = tokio::select! {
                () = self.runner.claimable.notified() => true,
                () = tokio::time::sleep(LOOK) => false,
                () = self.stopped.cancelled() => return,
            };
            // A slot that was freed while nobody waits is worth no question to the database.
            if self.is_draining() || told && !self.runner.waiting.load(Ordering::SeqCst) {
                continue;
            }
            if let Err(error) = self.claim_once().await {
                tracing::debug!(%error, "cannot claim waiting tasks; trying again");
                tokio::time::sleep(LOOK).await;
                continue;
            }
            let due = announced.is_none_or(|last| last.elapsed() >= ANNOUNCE);
            if due && self.runner.waiting.load(Ordering::SeqCst) {
                announced = Some(Instant::now());
                if let Err(error) = self.announce_queue().await {
                    tracing::debug!(%error, "cannot tell waiting tasks their place; trying again");
                }
            }
        }
    }

    /// Claims waiting tasks for the free slots and starts them; answers how many.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn claim_once(self: &Arc<Self>) -> Result<usize, StoreError> {
        let mut claimed = 0;
        loop {
            let slots: Vec<_> = std::iter::from_fn(|| self.runner.take_slot()).take(ROUND).collect();
            if slots.is_empty() {
                return Ok(claimed);
            }
            // Lowered before the look: a task that begins to wait after it raises it again.
            let knew = self.runner.waiting.swap(false, Ordering::SeqCst);
            let tokens = slots.iter().map(|_| LeaseToken::new()).collect();
            let wanted = slots.len();
            let claims = self.store.system().claim(self.membership.node(), tokens, RUNNING, self.clock.now()).await;
            let claims = claims.inspect_err(|_| self.runner.waiting.store(knew, Ordering::SeqCst))?;
            let got = claims.len();
            for (claim, slot) in claims.into_iter().zip(slots) {
                self.run_in_background(claim, slot);
            }
            claimed += got;
            if got < wanted {
                return Ok(claimed);
            }
            self.runner.waiting.store(true, Ordering::SeqCst);
        }
    }

    /// Runs a claim in the background; its panic becomes an outcome (EXEC-23).
    pub(super) fn run_in_background(self: &Arc<Self>, claim: Claim, slot: Slot) {
        let running =
            Running { token: claim.lease.token, stop: CancellationToken::new(), hand_back: CancellationToken::new() };
        let (stop, hand_back) = (running.stop.clone(), running.hand_back.clone());
        if self.is_draining() {
            hand_back.cancel();
        }
        self.runner.lock().insert(claim.lease.task, running);
        self.runner.started.notify_one();
        let engine = Arc::clone(self);
        lifecycle::spawn("attempt", async move {
            let task = claim.lease.task;
            let token = claim.lease.token;
            engine.run_attempt(&claim, &stop, &hand_back).await;
            let mut running = engine.runner.lock();
            if running.get(&task).is_some_and(|running| running.token == token) {
                running.remove(&task);
            }
            drop(running);
            engine.waiters.wake(task);
            drop(slot);
        });
    }

    /// Tells waiting tasks how many are ahead of them (LIFE-10).
    ///
    /// # Errors
    /// If the store fails.
    pub async fn announce_queue(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let store = self.store.system();
        let queue = store.queue(PLACES, now).await?;
        let places = queue.into_iter().enumerate().map(|(ahead, task)| (task, format!("{QUEUED}, {ahead} ahead")));
        let messages: Vec<_> = places.collect();
        if messages.is_empty() {
            return Ok(());
        }
        store.note_waiting(messages, now).await
    }

    /// Stops claiming, hands back at once what may be repeated, and waits up to `period` for the rest; what still runs then is
    /// stopped and ends with an unknown outcome.
    pub(super) async fn drain_runner(self: &Arc<Self>, period: Duration) {
        for running in self.runner.lock().values() {
            running.hand_back.cancel();
        }
        if tokio::time::timeout(period, self.runner_is_idle()).await.is_err() {
            let running = self.runner.running().len();
            tracing::warn!(running, "work did not end within the drain period and is stopped");
            self.stopped.cancel();
            // Each of them writes its end now; the writes have deadlines of their own.
            if tokio::time::timeout(Duration::from_secs(5), self.runner_is_idle()).await.is_err() {
                tracing::warn!("some ends could not be written; other nodes will settle those tasks");
            }
        }
    }

    async fn runner_is_idle(&self) {
        let all = u32::try_from(self.runner.all_slots).unwrap_or(u32::MAX);
        // Never closed, and never given back: the runner is done.
        if let Ok(permits) = self.runner.slots.acquire_many(all).await {
            permits.forget();
        }
    }

    fn status_message(&self, text: &str) -> String {
        storable(text, self.rules.message_limit)
    }
}
