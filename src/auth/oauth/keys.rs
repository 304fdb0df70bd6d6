//! The issuer's keys as they are known now, and when they are fetched again.
//!
//! They are fetched every [`REFRESH`], and at once for a token that names a key which is not known, at most every [`GAP`]
//! however many such tokens come. Whatever one request starts goes on without it. While the issuer is away the known keys
//! serve on, up to [`MOST_AGE`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::jwt::{Key, KeySet, Signed};
use crate::auth::AuthRefusal;
use crate::domain::clock::Clock;
use crate::lifecycle;

/// How old keys get before they are fetched again: a key that the issuer takes back is believed so long.
const REFRESH: Duration = Duration::from_secs(600);
/// The least time between two fetches for the sake of unknown keys.
const GAP: Duration = Duration::from_secs(30);
/// After a fetch that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// Keys that could not be fetched again for so long are believed no more.
const MOST_AGE: Duration = Duration::from_secs(24 * 3600);

/// Where keys come from.
#[async_trait]
pub(super) trait Source: Send + Sync + 'static {
    /// # Errors
    /// Why there are none, in words for an operator.
    async fn fetch(&self) -> Result<KeySet, String>;
}

/// Keys that are believed now, by the number that each other set of keys gets.
pub(super) struct Current {
    keys: Arc<KeySet>,
    pub(super) generation: u64,
}

pub(super) struct KeyRing {
    source: Box<dyn Source>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    fetching: AtomicBool,
    /// Moves whenever a fetch has ended.
    ended: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    keys: Arc<KeySet>,
    generation: u64,
    /// When the fetch began that brought them, by [`Clock::boot`].
    fetched: Option<Duration>,
    /// When the last one ended, whatever came of it.
    tried: Option<Duration>,
    failed: bool,
}

impl KeyRing {
    pub(super) fn new(source: Box<dyn Source>, clock: Arc<dyn Clock>) -> Self {
        let (fetching, ended) = (AtomicBool::new(false), watch::Sender::default());
        Self { source, clock, state: Mutex::default(), fetching, ended }
    }

    pub(super) fn current(&self) -> Option<Current> {
        let state = self.state();
        let age = self.clock.boot().saturating_sub(state.fetched?);
        (age < MOST_AGE).then(|| Current { keys: Arc::clone(&state.keys), generation: state.generation })
    }

    /// The key that signed a token, and the generation of the keys that it is of.
    ///
    /// # Errors
    /// [`AuthRefusal::Invalid`] if the issuer has no such key, [`AuthRefusal::Unavailable`] if it could not be asked.
    pub(super) async fn find(self: &Arc<Self>, signed: &Signed) -> Result<(Arc<Key>, u64), AuthRefusal> {
        let look = || {
            let Current { keys, generation } = self.current()?;
            Some((keys.find(signed)?, generation))
        };
        let mut ended = self.ended.subscribe();
        if let Some(found) = look() {
            return Ok(found);
        }
        if self.fetches_again() {
            // Its time is bounded. The ring keeps the sender.
            let _ = ended.changed().await;
        }
        look().ok_or_else(|| {
            let is_known = self.current().is_some() && !self.state().failed;
            if is_known { AuthRefusal::Invalid } else { AuthRefusal::Unavailable }
        })
    }

    /// Fetches the keys if it is time to, and waits for them.
    pub(super) async fn refresh(self: &Arc<Self>) {
        let now = self.clock.boot();
        let is_due = {
            let state = self.state();
            match (state.fetched, state.tried) {
                (_, Some(tried)) if state.failed => now.saturating_sub(tried) >= AFTER_FAILURE,
                (Some(fetched), _) => now.saturating_sub(fetched) >= REFRESH,
                (None, _) => true,
            }
        };
        if is_due {
            let mut ended = self.ended.subscribe();
            self.start();
            let _ = ended.changed().await;
        }
    }

    /// Whether a fetch is under way, now that somebody would like one.
    fn fetches_again(self: &Arc<Self>) -> bool {
        if !self.fetching.load(Ordering::Acquire) {
            let state = self.state();
            let gap = if state.failed { AFTER_FAILURE } else { GAP };
            if state.tried.is_some_and(|tried| self.clock.boot().saturating_sub(tried) < gap) {
                return false;
            }
            drop(state);
            self.start();
        }
        true
    }

    /// Starts a fetch, unless one is under way.
    fn start(self: &Arc<Self>) {
        if !self.fetching.swap(true, Ordering::AcqRel) {
            let fetching = Fetching(Arc::clone(self));
            lifecycle::spawn("signing keys", async move { fetching.0.fetch().await });
        }
    }

    async fn fetch(&self) {
        let began = self.clock.boot();
        let fetched = self.source.fetch().await;
        let mut state = self.state();
        let before = std::mem::replace(&mut state.failed, fetched.is_err());
        state.tried = Some(self.clock.boot());
        match fetched {
            Ok(keys) => {
                if before {
                    tracing::info!("the issuer's signing keys can be fetched again");
                }
                if keys.len() == 0 && (state.fetched.is_none() || *state.keys != keys) {
                    tracing::warn!(
                        "the issuer publishes no signing key for RS256, ES256 or EdDSA: every token is refused until it does; \
                         taskhold check says when it works"
                    );
                }
                if *state.keys != keys {
                    tracing::info!(keys = keys.len(), "the issuer's signing keys are new");
                    state.keys = Arc::new(keys);
                    state.generation += 1;
                }
                state.fetched = Some(began);
            }
            Err(why) if !before => {
                let known = state.keys.len();
                tracing::warn!(
                    why,
                    known,
                    "the issuer's signing keys cannot be fetched: those that are known are believed for a day, and callers whose \
                     tokens need others are told to try again; taskhold check says when it works"
                );
            }
            Err(_) => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fetch that is going on; its end, a panic too, lets the next one start and wakes those who wait for it.
struct Fetching(Arc<KeyRing>);

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.fetching.store(false, Ordering::Release);
        self.0.ended.send_replace(());
    }
}
