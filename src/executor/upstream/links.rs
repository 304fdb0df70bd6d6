//! The call links of one upstream: one per authorization context, or one for all if it is declared shared.
//!
//! Bounds how many run and how many start at once, ends idle ones, and slows down restarts of one that keeps dying.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, broadcast};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::config::{Settings, Target};
use super::era::Eras;
use super::inbox::Owner;
use super::link::Link;
use crate::domain::clock::Clock;
use crate::domain::ids::{ContextId, random_bytes};
use crate::domain::json::RawJson;
use crate::domain::lease::backoff;
use crate::domain::log_level::LogLevel;
use crate::domain::work::UpstreamTask;
use crate::executor::Notice;
use crate::lifecycle::spawn;

use self::followed::subscribe_anew;
pub(super) use self::lease::Lease;

mod followed;
mod lease;

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
    target: Target,
    eras: Arc<Eras>,
    shared: bool,
    settings: Settings,
    notices: broadcast::Sender<Notice>,
    lists_changed: Arc<Notify>,
    clock: Arc<dyn Clock>,
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
    /// The upstream's capabilities as it last declared them.
    declared: Mutex<Option<RawJson>>,
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

/// Why there is no link.
#[derive(Debug)]
pub(super) enum NoLink {
    Stopped,
    /// The text says why.
    Unavailable(String),
    /// What was to be reached is no more, and the text says why.
    Gone(String),
}

/// Whose a link is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    /// `None` if it is everybody's.
    context: Option<ContextId>,
    /// An older session at the upstream, and its revision, in which a task goes on.
    resumed: Option<(String, String)>,
}

/// What one context has.
#[derive(Default)]
struct Slot {
    /// Held by whoever starts its link.
    starting: Arc<tokio::sync::Mutex<()>>,
    /// Held by whoever asks for other log messages.
    leveling: tokio::sync::Mutex<()>,
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
    /// From which level on somebody wants log messages.
    level: Option<LogLevel>,
    /// From which level on the link was asked for them.
    level_set: Option<LogLevel>,
    /// The resources that are subscribed to, and for whom; a link with any does not become idle.
    followed: HashMap<String, HashSet<ContextId>>,
}

impl Links {
    pub(super) fn start(
        upstream: &str,
        (target, eras): (Target, Arc<Eras>),
        (shared, max_links): (bool, u32),
        settings: Settings,
        notices: broadcast::Sender<Notice>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let most = max_links.max(1);
        let links = Arc::new(Self {
            upstream: upstream.to_owned(),
            target,
            eras,
            shared,
            settings,
            notices,
            lists_changed: Arc::default(),
            clock,
            slots: Mutex::default(),
            declared: Mutex::default(),
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
            lease = self.running_or_started(self.key(context), None) => lease,
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

    /// `room` is there where it must not be made at the expense of others.
    async fn running_or_started(
        self: &Arc<Self>,
        key: Key,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Lease, NoLink> {
        let slot = Arc::clone(lock(&self.slots).entry(key.clone()).or_default());
        if let Some(lease) = self.running(&slot) {
            return Ok(lease);
        }
        let turn = Arc::clone(&slot.starting).lock_owned().await;
        if let Some(lease) = self.running(&slot) {
            return Ok(lease);
        }
        self.wait_for_restart(&slot).await?;
        let room = match room {
            Some(room) => room,
            None => self.room().await?,
        };
        // In the background, so that a caller who leaves does not throw away what others wait for.
        let started = spawn("upstream link start", Arc::clone(self).start_link(key, slot, turn, room));
        started.await.unwrap_or_else(|error| Err(NoLink::Unavailable(format!("its start failed: {error}"))))
    }

    /// The link over which a task of the upstream can be followed.
    pub(super) async fn reach(
        self: &Arc<Self>,
        context: ContextId,
        task: &UpstreamTask,
        stop: &CancellationToken,
    ) -> Result<Lease, NoLink> {
        if let Some(lease) = task.session.as_deref().and_then(|session| self.lease_of(context, session)) {
            return Ok(lease);
        }
        if !task.outlives_us() {
            let why = "the process of the tool's server that ran the call is gone";
            return Err(NoLink::Gone(why.to_owned()));
        }
        let Some(session) = task.session.clone() else { return self.lease(context, stop).await };
        let key = Key { resumed: Some((session, task.revision.clone())), ..self.key(context) };
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(NoLink::Stopped),
            () = self.stopped.cancelled() => Err(NoLink::Unavailable("this service is stopping".to_owned())),
            lease = self.running_or_started(key, None) => lease,
        }
    }

    fn key(&self, context: ContextId) -> Key {
        Key { context: (!self.shared).then_some(context), resumed: None }
    }

    /// The owner of a link of this upstream: a context, or everybody.
    pub(super) fn owner(&self, context: Option<ContextId>) -> Owner {
        Owner {
            upstream: self.upstream.clone(),
            context,
            notices: self.notices.clone(),
            open_questions: self.settings.open_questions,
            lists_changed: Arc::clone(&self.lists_changed),
        }
    }

    pub(super) const fn task_reach(&self) -> Duration {
        self.settings.reach
    }

    pub(super) const fn open_questions(&self) -> usize {
        self.settings.open_questions
    }

    /// The time in seconds.
    pub(super) fn now_s(&self) -> i64 {
        self.clock.now().micros() / 1_000_000
    }

    /// Keeps what the upstream declared.
    pub(super) fn learn(&self, capabilities: &RawJson) {
        *lock(&self.declared) = Some(capabilities.clone());
    }

    /// What it last declared; `None` as long as it has not been reached.
    pub(super) fn declared(&self) -> Option<RawJson> {
        lock(&self.declared).clone()
    }

    /// The context's link, if it is this very connection and stands.
    fn lease_of(self: &Arc<Self>, context: ContextId, session: &str) -> Option<Lease> {
        let slot = lock(&self.slots).get(&self.key(context)).map(Arc::clone)?;
        self.running(&slot).filter(|lease| lease.link.session().as_deref() == Some(session))
    }

    fn running(self: &Arc<Self>, slot: &Arc<Slot>) -> Option<Lease> {
        let mut state = slot.lock();
        let link = state.link.as_ref().filter(|link| !link.is_closed()).map(Arc::clone)?;
        state.calls += 1;
        Some(Lease { link, slot: Arc::clone(slot), links: Arc::clone(self) })
    }

    /// See [`crate::executor::Executor::listen_from`].
    pub(super) fn listen_from(self: &Arc<Self>, context: ContextId, level: LogLevel) {
        let slot = self.slot(context);
        let running = {
            let mut state = slot.lock();
            if state.level.is_some_and(|wanted| wanted <= level) {
                return;
            }
            state.level = Some(level);
            state.link.is_some()
        };
        if running && let Some(lease) = self.running(&slot) {
            spawn("upstream log level", async move { lease.prepare().await });
        }
    }

    fn slot(&self, context: ContextId) -> Arc<Slot> {
        Arc::clone(lock(&self.slots).entry(self.key(context)).or_default())
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

    /// The right to have one more process; ends the longest idle link when there is no room, or else one that is only
    /// subscribed to something, which is started again when there is room.
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
        let unused = slots.iter().filter_map(|slot| {
            let state = slot.lock();
            (state.calls == 0 && state.link.is_some()).then(|| (!state.is_idle(), state.idle_since, slot))
        });
        if self.leaving.load(Ordering::Acquire) < self.waiting.load(Ordering::Acquire)
            && let Some((_, _, slot)) = unused.min_by_key(|(is_followed, since, _)| (*is_followed, *since))
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
        key: Key,
        slot: Arc<Slot>,
        _turn: OwnedMutexGuard<()>,
        room: OwnedSemaphorePermit,
    ) -> Result<Lease, NoLink> {
        let started = tokio::select! {
            started = self.start_in_turn(&key) => started,
            () = self.stopped.cancelled() => return Err(NoLink::Unavailable("this service is stopping".to_owned())),
        };
        match started {
            Ok(link) => {
                tracing::debug!(upstream.name = self.upstream, "a link was started");
                let followed: Vec<String> = {
                    let mut state = slot.lock();
                    state.link = Some(Arc::clone(&link));
                    state.calls += 1;
                    state.level_set = None;
                    state.followed.keys().cloned().collect()
                };
                if !followed.is_empty() {
                    // What the link before it was subscribed to; no call waits for that.
                    spawn("upstream subscriptions", subscribe_anew(Arc::clone(&link), Arc::clone(&slot), followed));
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

    async fn start_in_turn(&self, key: &Key) -> Result<Arc<Link>, String> {
        let _turn = self.starting.acquire().await;
        let owner = self.owner(key.context);
        if let Some((session, revision)) = &key.resumed {
            let link = Link::resume(&self.settings, &self.target, owner, session, revision);
            return link.map(Arc::new).map_err(|error| error.to_string());
        }
        match Link::start(&self.settings, &self.target, owner, &self.eras).await {
            Ok(link) => {
                self.learn(&link.capabilities);
                Ok(Arc::new(link))
            }
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
                _ = ticks.tick() => {
                    self.end_idle();
                    self.restart_followers();
                }
                () = self.stopped.cancelled() => return,
            }
        }
    }

    fn end_idle(&self) {
        let now = self.clock.boot();
        lock(&self.slots).retain(|_, slot| {
            let mut state = slot.lock();
            if state.is_idle() && now.saturating_sub(state.idle_since) >= IDLE {
                // Dropping the last handle ends the process.
                state.link = None;
            }
            let starting = slot.starting.try_lock().is_err();
            starting || state.link.is_some() || !state.is_idle() || state.not_before > now
        });
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.calls == 0 && self.followed.is_empty()
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
