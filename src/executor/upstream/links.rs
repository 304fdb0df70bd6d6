//! The call links of one upstream: one per authorization context, or one for all if it is declared shared.
//!
//! Bounds how many run and how many start at once, ends idle ones, and slows down restarts of one that keeps dying.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::config::Settings;
use super::link::Link;
use super::stdio::Program;
use crate::domain::clock::Clock;
use crate::domain::ids::{ContextId, random_bytes};
use crate::domain::lease::backoff;
use crate::lifecycle::spawn;

/// How long a link without a call is kept.
const IDLE: Duration = Duration::from_secs(60);
/// How many links of one upstream may be starting at once.
const STARTING: usize = 4;
/// A call waits so long for a restart that is held back, and is refused where it would have to wait longer.
const RESTART_WAIT: Duration = Duration::from_secs(5);
/// How long all processes together have to end at a stop.
const STOP_LIMIT: Duration = Duration::from_secs(12);

/// The links of one upstream.
pub(super) struct Links {
    upstream: String,
    program: Program,
    shared: bool,
    settings: Settings,
    clock: Arc<dyn Clock>,
    slots: Mutex<HashMap<Option<ContextId>, Arc<Slot>>>,
    /// One permit for each process that may exist.
    room: Arc<Semaphore>,
    most: u32,
    starting: Semaphore,
    /// Calls that wait for room.
    waiting: AtomicUsize,
    /// Processes told to end to make room.
    leaving: Arc<AtomicUsize>,
    stopped: CancellationToken,
}

/// A link in use. Dropping it lets the link become idle.
pub(super) struct Lease {
    pub(super) link: Arc<Link>,
    slot: Arc<Slot>,
    links: Arc<Links>,
}

/// Why there is no link.
#[derive(Debug)]
pub(super) enum NoLink {
    Stopped,
    /// The text says why.
    Unavailable(String),
}

/// What one context has.
#[derive(Default)]
struct Slot {
    /// Held by whoever starts its link.
    starting: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    calls: usize,
    /// On the scale of [`Clock::boot`].
    idle_since: Duration,
    /// Starts in a row that failed, and ends before any answer.
    failures: u32,
    not_before: Duration,
    last_error: String,
}

impl Links {
    pub(super) fn start(
        upstream: &str,
        program: Program,
        (shared, max_links): (bool, u32),
        settings: Settings,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let most = max_links.max(1);
        let links = Arc::new(Self {
            upstream: upstream.to_owned(),
            program,
            shared,
            settings,
            clock,
            slots: Mutex::default(),
            room: Arc::new(Semaphore::new(usize::try_from(most).unwrap_or(usize::MAX))),
            most,
            starting: Semaphore::new(STARTING),
            waiting: AtomicUsize::new(0),
            leaving: Arc::default(),
            stopped: CancellationToken::new(),
        });
        spawn("idle upstream links", Arc::clone(&links).sweep());
        links
    }

    /// The context's link, started if there is none; waits its turn when no more may run.
    pub(super) async fn lease(self: &Arc<Self>, context: ContextId, stop: &CancellationToken) -> Result<Lease, NoLink> {
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(NoLink::Stopped),
            () = self.stopped.cancelled() => Err(NoLink::Unavailable("this service is stopping".to_owned())),
            lease = self.running_or_started(context) => lease,
        }
    }

    /// Ends all links and waits until their processes are gone.
    pub(super) async fn stop(&self) {
        self.stopped.cancel();
        for slot in lock(&self.slots).values() {
            if let Some(link) = slot.lock().link.take() {
                link.end();
            }
        }
        if timeout(STOP_LIMIT, self.room.acquire_many(self.most)).await.is_err() {
            tracing::warn!(upstream.name = self.upstream, "some processes of an upstream did not end in time");
        }
    }

    async fn running_or_started(self: &Arc<Self>, context: ContextId) -> Result<Lease, NoLink> {
        let key = (!self.shared).then_some(context);
        let slot = Arc::clone(lock(&self.slots).entry(key).or_default());
        if let Some(lease) = self.running(&slot) {
            return Ok(lease);
        }
        let turn = Arc::clone(&slot.starting).lock_owned().await;
        if let Some(lease) = self.running(&slot) {
            return Ok(lease);
        }
        self.wait_for_restart(&slot).await?;
        let room = self.room().await?;
        // In the background, so that a caller who leaves does not throw away what others wait for.
        let started = spawn("upstream link start", Arc::clone(self).start_link(slot, turn, room));
        started.await.unwrap_or_else(|error| Err(NoLink::Unavailable(format!("its start failed: {error}"))))
    }

    fn running(self: &Arc<Self>, slot: &Arc<Slot>) -> Option<Lease> {
        let mut state = slot.lock();
        let link = state.link.as_ref().filter(|link| !link.is_closed()).map(Arc::clone)?;
        state.calls += 1;
        Some(Lease { link, slot: Arc::clone(slot), links: Arc::clone(self) })
    }

    async fn wait_for_restart(&self, slot: &Slot) -> Result<(), NoLink> {
        let wait = {
            let state = slot.lock();
            let wait = state.not_before.saturating_sub(self.clock.boot());
            if wait > RESTART_WAIT {
                let (times, error) = (state.failures, &state.last_error);
                return Err(NoLink::Unavailable(format!(
                    "its start failed {times} times in a row and is held back for {} s: {error}",
                    wait.as_secs()
                )));
            }
            wait
        };
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// The right to have one more process; ends the longest idle link when there is no room.
    async fn room(&self) -> Result<OwnedSemaphorePermit, NoLink> {
        if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
            return Ok(room);
        }
        let _waiting = Waiting::new(&self.waiting);
        self.make_room();
        let room = Arc::clone(&self.room).acquire_owned().await;
        room.map_err(|_| NoLink::Unavailable("its links are closed".to_owned()))
    }

    fn make_room(&self) {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        let idle = |slot: &&Arc<Slot>| {
            let state = slot.lock();
            state.calls == 0 && state.link.is_some()
        };
        if self.leaving.load(Ordering::Acquire) < self.waiting.load(Ordering::Acquire)
            && let Some(slot) = slots.iter().filter(idle).min_by_key(|slot| slot.lock().idle_since)
        {
            let mut state = slot.lock();
            if state.calls == 0
                && let Some(link) = state.link.take()
            {
                self.leaving.fetch_add(1, Ordering::AcqRel);
                let leaving = Arc::clone(&self.leaving);
                spawn("idle upstream link end", async move {
                    link.end();
                    link.control().exited().await;
                    leaving.fetch_sub(1, Ordering::AcqRel);
                });
            }
        }
    }

    async fn start_link(
        self: Arc<Self>,
        slot: Arc<Slot>,
        _turn: OwnedMutexGuard<()>,
        room: OwnedSemaphorePermit,
    ) -> Result<Lease, NoLink> {
        let started = tokio::select! {
            started = self.start_in_turn() => started,
            () = self.stopped.cancelled() => return Err(NoLink::Unavailable("this service is stopping".to_owned())),
        };
        match started {
            Ok(link) => {
                tracing::debug!(upstream.name = self.upstream, "a link was started");
                {
                    let mut state = slot.lock();
                    state.link = Some(Arc::clone(&link));
                    state.calls += 1;
                }
                spawn("upstream link watch", watch(self.upstream.clone(), Arc::downgrade(&link), room));
                Ok(Lease { link, slot, links: self })
            }
            Err(error) => {
                let mut state = slot.lock();
                state.failures += 1;
                state.not_before = self.clock.boot() + backoff(state.failures, jitter());
                state.last_error.clone_from(&error);
                Err(NoLink::Unavailable(error))
            }
        }
    }

    async fn start_in_turn(&self) -> Result<Arc<Link>, String> {
        let _turn = self.starting.acquire().await;
        match Link::start(&self.settings, &self.program).await {
            Ok(link) => Ok(Arc::new(link)),
            Err((error, stderr)) => {
                tracing::warn!(upstream.name = self.upstream, error = %error, "an upstream could not be started");
                for line in stderr {
                    tracing::debug!(upstream.name = self.upstream, upstream.stderr = line, "its standard error");
                }
                Err(error.to_string())
            }
        }
    }

    async fn sweep(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(Duration::from_secs(5));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.end_idle(),
                () = self.stopped.cancelled() => return,
            }
        }
    }

    fn end_idle(&self) {
        let now = self.clock.boot();
        lock(&self.slots).retain(|_, slot| {
            let mut state = slot.lock();
            if state.calls == 0 && now.saturating_sub(state.idle_since) >= IDLE {
                // Dropping the last handle ends the process.
                state.link = None;
            }
            let starting = slot.starting.try_lock().is_err();
            starting || state.link.is_some() || state.calls > 0 || state.not_before > now
        });
    }
}

impl Lease {
    /// Notes that the upstream has answered: a later end of the link is no failed start.
    pub(super) fn answered(&self) {
        self.slot.lock().failures = 0;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.slot.lock();
        state.calls -= 1;
        let ours = state.link.as_ref().is_some_and(|link| Arc::ptr_eq(link, &self.link));
        if ours && self.link.is_closed() {
            // The first restart is free; one that ends again before any answer is held back.
            state.link = None;
            let hold = if state.failures > 0 { backoff(state.failures, jitter()) } else { Duration::ZERO };
            state.not_before = self.links.clock.boot() + hold;
            state.failures += 1;
            state.last_error = self.link.why_closed();
        }
        state.idle_since = self.links.clock.boot();
        let idle = state.calls == 0;
        drop(state);
        if idle && self.links.waiting.load(Ordering::Acquire) > 0 {
            self.links.make_room();
        }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Counts a waiting call while it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Gives the room back when the process is gone, and reports an end that nobody asked for.
async fn watch(upstream: String, link: std::sync::Weak<Link>, room: OwnedSemaphorePermit) {
    let Some(control) = link.upgrade().map(|link| link.control()) else { return };
    let exit = control.exited().await;
    if !exit.asked {
        tracing::warn!(upstream.name = upstream, "an upstream is gone: {}", exit.how);
        for line in control.stderr() {
            tracing::debug!(upstream.name = upstream, upstream.stderr = line, "its standard error");
        }
    }
    drop(room);
}

fn jitter() -> u32 {
    u32::from_le_bytes(random_bytes())
}

/// A poisoned lock is taken all the same: nothing under it is left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
