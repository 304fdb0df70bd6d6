//! The runner: claims waiting tasks for its free slots and runs each attempt to its end.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::recovery::unless_refused;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{LeaseToken, NodeId, TaskId};
use crate::domain::lease::Lease;
use crate::domain::task::QUEUED;
use crate::domain::text::storable;
use crate::domain::work::Claim;
use crate::lifecycle;
use crate::store::{Release, StoreError, Wish};

mod attempt;
mod host;
mod notes;
mod slots;

pub(super) use self::attempt::Begun;
pub(super) use self::host::TaskHost;
pub(super) use self::slots::Slot;
use self::slots::{Seat, Slots};

/// How often waiting rows are looked for that nobody here knows of: made at other nodes, or waiting for their retry.
const LOOK: Duration = Duration::from_secs(1);
/// Most claims of one round, so that nodes share a backlog.
const ROUND: usize = 64;
/// A claim costs about the same for one slot as for many: with a backlog, what is freed within this time is claimed together.
/// Meanwhile three quarters of the slots are at work.
const GATHER: Duration = Duration::from_millis(5);
/// How long a claim is looked for of which this node has not heard.
const DOUBTED: Duration = Duration::from_secs(120);
/// How often waiting tasks are told their place.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// Places above this are not counted.
const PLACES: u32 = 100;

pub(super) struct Runner {
    slots: Arc<Slots>,
    running: Mutex<HashMap<TaskId, Running>>,
    /// Tokens of claims that are being committed: nothing runs under them yet, and yet they are not forgotten.
    claiming: Mutex<HashSet<LeaseToken>>,
    /// Claims of which it is not known whether they were committed, or will be: nothing was sent under them.
    doubtful: Mutex<HashMap<LeaseToken, Doubt>>,
    /// Whether a waiting row may exist that this node knows of; then new tasks do not overtake it.
    waiting: AtomicBool,
    /// Whether another node has said so since the last look.
    hinted: AtomicBool,
    /// Whether limits held rows back when they were last looked for: the end of any task may be what they wait for. New tasks
    /// may pass them.
    held_back: AtomicBool,
    /// Claims that were sent.
    claims: AtomicU64,
    /// When the gathered look last found that there was none.
    none_waited: Mutex<Option<Instant>>,
    /// Told when something begins to run.
    pub(super) started: Notify,
}

#[derive(Clone, Copy)]
struct Doubt {
    node: NodeId,
    since: Instant,
    is_new: bool,
}

/// Claims under way, until it is known here what became of them.
pub(super) struct Claiming<'r> {
    runner: &'r Runner,
    tokens: Vec<LeaseToken>,
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        let mut claiming = lock(&self.runner.claiming);
        for token in &self.tokens {
            claiming.remove(token);
        }
    }
}

/// An attempt in progress; forgotten on drop, also by a panic, so that recovery finds a claim that lost its runner.
struct Attempting {
    engine: Arc<Engine>,
    task: TaskId,
    token: LeaseToken,
    seat: Arc<Seat>,
}

impl Drop for Attempting {
    fn drop(&mut self) {
        let mut running = self.engine.runner.lock();
        if running.get(&self.task).is_some_and(|running| running.token == self.token) {
            running.remove(&self.task);
        }
        drop(running);
        self.seat.leave();
        self.engine.runner.slots.changed.notify_waiters();
        self.engine.waiters.wake(self.task);
    }
}

struct Running {
    token: LeaseToken,
    orders: Orders,
}

/// What may be asked of an attempt in progress.
#[derive(Clone, Default)]
struct Orders {
    /// Its task has ended otherwise: stop the work.
    stop: CancellationToken,
    /// Others may have taken it over: stop, but not what goes on at an upstream.
    leave: CancellationToken,
    /// The service drains: give back what may go on elsewhere.
    hand_back: CancellationToken,
}

impl Runner {
    /// Runs up to `slots` tasks at once, and up to `asking` more that wait for input.
    pub(super) fn new(slots: usize, asking: usize) -> Self {
        Self {
            slots: Slots::new(slots, asking),
            running: Mutex::default(),
            claiming: Mutex::default(),
            doubtful: Mutex::default(),
            waiting: AtomicBool::new(true), // until the first look says otherwise
            hinted: AtomicBool::new(false),
            held_back: AtomicBool::new(false),
            claims: AtomicU64::new(0),
            none_waited: Mutex::default(),
            started: Notify::new(),
        }
    }

    pub(super) fn take_slot_if_nobody_waits(&self) -> Option<Slot> {
        if self.waiting.load(Ordering::SeqCst) { None } else { self.slots.take() }
    }

    /// For work that runs already, beyond the slots if none is free. `None` while the service drains.
    pub(super) fn take_slot_for_running(&self) -> Option<Slot> {
        self.slots.take_for_running()
    }

    pub(super) fn somebody_waits(&self) {
        self.waiting.store(true, Ordering::SeqCst);
        self.slots.freed.notify_one();
    }

    /// Another node says so. A free slot looks at once; one that is freed later does.
    pub(super) fn somebody_may_wait(&self) {
        if self.slots.free() > 0 {
            self.hinted.store(true, Ordering::SeqCst);
            self.slots.freed.notify_one();
        } else {
            self.waiting.store(true, Ordering::SeqCst);
        }
    }

    /// What the gathered look that began then has found.
    pub(super) fn was_looked_for(&self, began: Instant, is_waiting: bool) {
        if !is_waiting {
            *lock(&self.none_waited) = Some(began);
        } else if !self.waiting.load(Ordering::SeqCst) && !self.held_back.load(Ordering::SeqCst) {
            self.somebody_waits();
        }
    }

    pub(super) fn runs(&self, task: TaskId) -> bool {
        self.lock().contains_key(&task)
    }

    pub(super) fn running(&self) -> Vec<TaskId> {
        self.lock().keys().copied().collect()
    }

    /// To be held from before a claim is sent until what it got runs.
    pub(super) fn claiming(&self, tokens: Vec<LeaseToken>) -> Claiming<'_> {
        lock(&self.claiming).extend(&tokens);
        Claiming { runner: self, tokens }
    }

    pub(super) fn knows(&self, task: TaskId, token: LeaseToken) -> bool {
        // In the order in which a claim passes through them.
        lock(&self.claiming).contains(&token)
            || self.lock().get(&task).is_some_and(|running| running.token == token)
            || lock(&self.doubtful).contains_key(&token)
    }

    fn doubts(&self, node: NodeId, tokens: &[LeaseToken]) {
        let doubt = Doubt { node, since: Instant::now(), is_new: true };
        lock(&self.doubtful).extend(tokens.iter().map(|&token| (token, doubt)));
    }

    /// Stops the work of a task that ended otherwise.
    pub(super) fn stop(&self, task: TaskId) {
        if let Some(running) = self.lock().get(&task) {
            running.orders.stop.cancel();
        }
    }

    pub(super) fn free_slots(&self) -> i64 {
        self.slots.free()
    }

    pub(super) fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    /// Stops everything that runs; what goes on at an upstream is left to whoever takes it over.
    pub(super) fn stop_all(&self) {
        for running in self.lock().values() {
            running.orders.leave.cancel();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Running>> {
        lock(&self.running)
    }
}

/// A poisoned lock is taken all the same: nothing under it is left half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) async fn claim_loop(self: Arc<Self>) {
        let mut announced: Option<Instant> = None;
        let mut looked = Instant::now();
        loop {
            tokio::select! {
                () = self.runner.slots.freed.notified() => {}
                // Counted from the last look: slots that are freed all the time must not put it off for ever.
                () = tokio::time::sleep_until(looked + LOOK) => {}
                () = self.stopped.cancelled() => return,
            }
            let nobody_waits =
                [&self.runner.waiting, &self.runner.held_back].iter().all(|flag| !flag.load(Ordering::SeqCst));
            // Another may have looked meanwhile, for everything that this node waits for.
            if let Some(at) = lock(&self.runner.none_waited).filter(|_| nobody_waits) {
                looked = looked.max(at);
            }
            let is_hinted = self.runner.hinted.swap(false, Ordering::SeqCst);
            // A slot that was freed while nobody waits is worth no question to the database.
            if nobody_waits && !is_hinted && looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            // What a node claims that does not report would only be handed back.
            if self.is_draining() || !self.membership.is_fresh(self.clock.boot()) {
                continue;
            }
            if let Err(error) = self.claim_if_any(nobody_waits).await {
                match error {
                    // The heartbeats say it.
                    StoreError::Unavailable(_) => tracing::debug!(%error, "cannot claim waiting tasks; trying again"),
                    error => tracing::warn!(%error, "cannot claim waiting tasks; trying again"),
                }
                tokio::time::sleep(LOOK).await;
                continue;
            }
            if self.runner.waiting.load(Ordering::SeqCst) && self.runner.slots.are_few(ROUND) {
                tokio::time::sleep(GATHER).await;
            }
            let due = announced.is_none_or(|last| last.elapsed() >= ANNOUNCE);
            if due && [&self.runner.waiting, &self.runner.held_back].iter().any(|flag| flag.load(Ordering::SeqCst)) {
                announced = Some(Instant::now());
                if let Err(error) = self.announce_queue().await {
                    tracing::debug!(%error, "cannot tell waiting tasks their place; trying again");
                }
            }
        }
    }

    /// A look takes no lock, and finds nothing as a rule where nobody is known to wait.
    async fn claim_if_any(self: &Arc<Self>, nobody_is_known: bool) -> Result<usize, StoreError> {
        if nobody_is_known && !self.store.system().anybody_waits(self.clock.now()).await? {
            return Ok(0);
        }
        self.claim_once().await
    }

    /// Claims waiting tasks for the free slots and starts them; answers how many.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn claim_once(self: &Arc<Self>) -> Result<usize, StoreError> {
        if lock(&self.runner.doubtful).values().any(|doubt| doubt.is_new) {
            self.hand_back_doubtful().await?;
        }
        let limits = self.slot_limits();
        let mut claimed = 0;
        loop {
            let slots: Vec<_> = std::iter::from_fn(|| self.runner.slots.take_for_claim()).take(ROUND).collect();
            if slots.is_empty() {
                return Ok(claimed);
            }
            // Lowered before the look: a task that begins to wait after it raises it again.
            self.runner.waiting.store(false, Ordering::SeqCst);
            let tokens: Vec<_> = slots.iter().map(|_| LeaseToken::new()).collect();
            let (node, _claiming) = (self.membership.node(), self.runner.claiming(tokens.clone()));
            let wish = Wish { node, tokens: tokens.clone(), now: self.clock.now() };
            self.runner.claims.fetch_add(1, Ordering::Relaxed);
            let taken = self.store.system().claim_within(&limits, wish).await.inspect_err(|_| {
                // Not what was known before: a task may have begun to wait meanwhile.
                self.runner.waiting.store(true, Ordering::SeqCst);
                self.runner.doubts(node, &tokens);
            })?;
            self.runner.held_back.store(taken.is_held_back, Ordering::SeqCst);
            let (wanted, got) = (slots.len(), taken.claims.len());
            let mut slots = slots.into_iter();
            for (claim, slot) in taken.claims.into_iter().zip(slots.by_ref()) {
                self.run_in_background(claim, slot.used());
            }
            drop(slots);
            // Whoever began to wait meanwhile may have found no slot to wake.
            if got < wanted && self.runner.waiting.load(Ordering::SeqCst) {
                self.runner.slots.freed.notify_one();
            }
            claimed += got;
            if got == wanted || taken.is_short {
                self.runner.waiting.store(true, Ordering::SeqCst);
            }
            // Slots that were freed meanwhile are not claimed for one by one.
            let is_over = if got < wanted { got == 0 || !taken.is_short } else { wanted < ROUND };
            if is_over {
                return Ok(claimed);
            }
        }
    }

    /// Gives back what was claimed without this node hearing of it: those calls were never sent, so that they may be made
    /// whatever the policy.
    pub(super) async fn hand_back_doubtful(&self) -> Result<(), StoreError> {
        let doubtful = lock(&self.runner.doubtful).clone();
        let nodes: HashSet<NodeId> = doubtful.values().map(|doubt| doubt.node).collect();
        let (store, now) = (self.store.system(), self.clock.now());
        for node in nodes {
            for lease in store.held(node).await? {
                if doubtful.contains_key(&lease.token) {
                    let released = unless_refused(store.release(never_sent(&lease, now)).await)?;
                    tracing::debug!(task.id = %lease.task, released, "a claim of which this node had not heard is given back");
                }
            }
        }
        // Its server may still commit what nobody waits for any more.
        lock(&self.runner.doubtful).retain(|token, doubt| {
            doubt.is_new &= !doubtful.contains_key(token);
            doubt.since.elapsed() < DOUBTED
        });
        Ok(())
    }

    /// Runs a claim in the background; its panic becomes an outcome (EXEC-23).
    pub(super) fn run_in_background(self: &Arc<Self>, claim: Claim, slot: Slot) {
        let (attempting, orders) = self.begin_attempt(&claim, slot);
        lifecycle::spawn("attempt", async move {
            attempting.engine.run_attempt(&claim, &attempting.seat, &orders).await;
            drop(attempting);
        });
    }

    /// The work that a call has begun goes on as the attempt that holds this claim: it is not begun again. Answers the host
    /// to which the work speaks from now on.
    pub(super) fn adopt(self: &Arc<Self>, claim: Claim, slot: Slot, begun: Begun) -> Arc<TaskHost> {
        let (attempting, orders) = self.begin_attempt(&claim, slot);
        let host = Arc::new(TaskHost::new(self, &claim, &attempting.seat));
        lifecycle::spawn("attempt", {
            let host = Arc::clone(&host);
            async move {
                attempting.engine.follow_begun(&claim, begun, host, &orders).await;
                drop(attempting);
            }
        });
        host
    }

    fn begin_attempt(self: &Arc<Self>, claim: &Claim, slot: Slot) -> (Attempting, Orders) {
        let orders = Orders::default();
        let lease = &claim.lease;
        let running = Running { token: lease.token, orders: orders.clone() };
        self.runner.lock().insert(lease.task, running);
        // After the insertion: a drain that begins before it does not find this one among the running.
        if self.is_draining() {
            orders.hand_back.cancel();
        }
        self.runner.started.notify_one();
        let attempting =
            Attempting { engine: Arc::clone(self), task: lease.task, token: lease.token, seat: Seat::new(slot) };
        (attempting, orders)
    }

    /// Tells waiting tasks how many are ahead of them, or which limit holds them back (LIFE-10).
    ///
    /// # Errors
    /// If the store fails.
    pub async fn announce_queue(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let store = self.store.system();
        let queue = store.queue_within(&self.slot_limits(), PLACES, now).await?;
        let places = queue.next.into_iter().enumerate().map(|(ahead, task)| {
            // Those who were not looked at may come before it.
            (task, if queue.is_partial { QUEUED.to_owned() } else { format!("{QUEUED}, {ahead} ahead") })
        });
        let held_back = queue.held_back.into_iter().map(|(task, limit)| (task, format!("{QUEUED}: {limit}")));
        let messages: Vec<_> = places.chain(held_back).collect();
        if messages.is_empty() {
            return Ok(());
        }
        store.note_waiting(messages, now).await
    }

    /// Stops claiming, hands back at once what may be repeated, and waits up to `period` for the rest; what still runs then is
    /// stopped and ends with an unknown outcome.
    pub(super) async fn drain_runner(self: &Arc<Self>, period: Duration) {
        self.runner.slots.close();
        for running in self.runner.lock().values() {
            running.orders.hand_back.cancel();
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
        loop {
            let changed = self.runner.slots.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            // A slot that is out may not be among the running yet; who runs without one is.
            if self.runner.slots.all_free() && self.runner.running().is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn status_message(&self, text: &str) -> String {
        storable(text, self.rules.message_limit)
    }
}

fn never_sent(lease: &Lease, now: Timestamp) -> Release {
    Release {
        task: lease.task,
        token: lease.token,
        not_before: now,
        counted: false,
        keep_inputs: true,
        message: format!("{QUEUED}: the node that claimed it did not hear of that"),
        now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Its commit may take longer than the patience with forgotten claims.
    #[test]
    fn a_claim_under_way_is_not_forgotten() {
        let runner = Runner::new(1, 0);
        let (task, token) = (TaskId::new(), LeaseToken::new());
        let claiming = runner.claiming(vec![token]);
        assert!(runner.knows(task, token) && !runner.knows(task, LeaseToken::new()));
        drop(claiming);
        assert!(!runner.knows(task, token));
    }
}
