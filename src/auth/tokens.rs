//! `auth.mode = "token"`: verifying access tokens.
//!
//! A token is verified once per process (AUTH-08): its check first, then its row, then argon2; what came out is
//! remembered by a digest that means nothing outside this process. What can change afterwards, revocation and expiry, is
//! read again for all tokens in use with one query, before it is [`STALE`] (AUTH-07). When it cannot be read, tokens
//! that are known are served for [`GRACE`] more; then the answer is "unavailable", never "invalid".

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OnceCell, Semaphore, watch};

use super::bearer::bearer;
use super::digest::{Digest, DigestKey};
use super::format::{Parsed, TokenKey};
use super::{AuthRefusal, Authenticator, hash, unavailable};
use crate::domain::clock::{Clock, Timestamp};
use crate::domain::context::{AuthContext, Credential};
use crate::domain::ids::{ContextId, TokenId};
use crate::lifecycle;
use crate::store::{self, SystemStore, TokenRecord};

/// From this age on, what is known of a token is read again while it is still believed.
const AGING: Duration = Duration::from_secs(3);
/// At this age it is believed no more, unless it cannot be read.
const STALE: Duration = Duration::from_secs(5);
/// How much longer it is believed while it cannot be read.
const GRACE: Duration = Duration::from_secs(30);
/// How soon after one change of tokens the next is looked at.
const CHANGES_GAP: Duration = Duration::from_millis(100);
/// Tokens unused for this long are not read again with the others.
const IN_USE: Duration = Duration::from_secs(60);
/// How long a request waits for the database when the last attempt to read it failed.
const PATIENCE: Duration = Duration::from_millis(200);
/// The most tokens that are remembered; beyond it the least used are verified anew.
const REMEMBERED: u64 = 10_000;
/// The most rows that one query reads.
const READ_AT_ONCE: usize = 1_000;

/// Verifies access tokens of this installation.
pub struct TokenAuthenticator(Arc<Verifier>);

impl TokenAuthenticator {
    /// # Errors
    /// If the installation's key cannot be read.
    pub async fn open(store: SystemStore, clock: Arc<dyn Clock>) -> store::Result<Self> {
        let key = TokenKey::new(store.server_key(super::issue::KEY_KIND).await?);
        let changes = store.token_changes();
        let verifier = Arc::new(Verifier::new(Box::new(store), clock, key));
        lifecycle::spawn("token changes", follow_changes(Arc::downgrade(&verifier), changes));
        Ok(Self(verifier))
    }

    /// How many argon2 verifications have run.
    #[must_use]
    pub fn verifications(&self) -> u64 {
        self.0.verifications.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Authenticator for TokenAuthenticator {
    async fn authenticate(&self, authorization: &[&[u8]]) -> Result<AuthContext, AuthRefusal> {
        let token = bearer(authorization)?;
        let parsed = self.0.key.read(token).ok_or(AuthRefusal::Invalid)?;
        let known = Arc::clone(&self.0).known(token, parsed).await?;
        if Arc::clone(&self.0).is_valid(&known).await? {
            Ok(AuthContext::verified(known.context, known.tenant.clone(), Credential::Token(known.id)))
        } else {
            Err(AuthRefusal::Invalid)
        }
    }

    async fn changed(&self) {
        // The verifier keeps the sender.
        let _ = self.0.revocations.subscribe().changed().await;
    }
}

/// Reads the rows again when some may have changed, at most so often.
async fn follow_changes(verifier: Weak<Verifier>, mut changes: watch::Receiver<()>) {
    while changes.changed().await.is_ok() {
        let Some(verifier) = verifier.upgrade() else { return };
        verifier.read_anew().await;
        drop(verifier);
        tokio::time::sleep(CHANGES_GAP).await;
    }
}

/// Where token rows are read.
#[async_trait]
trait Records: Send + Sync {
    async fn read(&self, ids: &[TokenId]) -> store::Result<Vec<TokenRecord>>;
}

#[async_trait]
impl Records for SystemStore {
    async fn read(&self, ids: &[TokenId]) -> store::Result<Vec<TokenRecord>> {
        self.tokens(ids).await
    }
}

struct Verifier {
    records: Box<dyn Records>,
    clock: Arc<dyn Clock>,
    key: TokenKey,
    digests: DigestKey,
    remembered: moka::sync::Cache<Digest, Arc<Slot>>,
    hashing: Semaphore,
    verifications: AtomicU64,
    /// Whether rows are being read again now.
    reading: AtomicBool,
    /// Moves whenever such a reading ends.
    readings: watch::Sender<()>,
    /// Moves when a token that was believed is not any more, as far as that is heard.
    revocations: watch::Sender<()>,
    /// Whether the last of them failed.
    failed: AtomicBool,
}

/// One token text. The cell makes concurrent first requests wait for one verification.
#[derive(Default)]
struct Slot(OnceCell<Verdict>);

#[derive(Clone)]
enum Verdict {
    /// Its secret is right; whether it still counts, [`Known::state`] says.
    Genuine(Arc<Known>),
    /// Its row says that it never counts again, or its secret is wrong.
    Bad,
    /// There is no row. Asked again after a while: a database can be behind, or put back.
    Unknown { since: Duration },
}

struct Known {
    id: TokenId,
    context: ContextId,
    tenant: Option<Arc<str>>,
    /// When it was last shown: milliseconds of [`Clock::boot`].
    used: AtomicU64,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    expires: Option<Timestamp>,
    revoked: bool,
    /// When the reading of it began, by [`Clock::boot`].
    read: Duration,
}

impl Verifier {
    fn new(records: Box<dyn Records>, clock: Arc<dyn Clock>, key: TokenKey) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            records,
            clock,
            key,
            digests: DigestKey::new(),
            remembered: moka::sync::Cache::new(REMEMBERED),
            hashing: Semaphore::new(threads.div_ceil(2)),
            verifications: AtomicU64::new(0),
            reading: AtomicBool::new(false),
            readings: watch::Sender::default(),
            revocations: watch::Sender::default(),
            failed: AtomicBool::new(false),
        }
    }

    async fn known(self: Arc<Self>, token: &str, parsed: Parsed) -> Result<Arc<Known>, AuthRefusal> {
        let digest = self.digests.of(token);
        let mut slot = self.remembered.get_with(digest, Arc::default);
        if let Some(Verdict::Unknown { since }) = slot.0.get()
            && self.clock.boot().saturating_sub(*since) >= STALE
        {
            self.remembered.invalidate(&digest);
            slot = self.remembered.get_with(digest, Arc::default);
        }
        let verdict = match slot.0.get() {
            Some(verdict) => verdict.clone(),
            None => {
                // On its own: a caller that goes away must not make the next one pay for argon2 again.
                let work = async move { slot.0.get_or_try_init(|| self.verify(parsed)).await.cloned() };
                lifecycle::spawn("token verification", work).await.map_err(|_| AuthRefusal::Unavailable)??
            }
        };
        match verdict {
            Verdict::Genuine(known) => Ok(known),
            Verdict::Bad | Verdict::Unknown { .. } => Err(AuthRefusal::Invalid),
        }
    }

    /// The first look at a token whose check is right.
    async fn verify(&self, parsed: Parsed) -> Result<Verdict, AuthRefusal> {
        let read = self.clock.boot();
        let records = self.records.read(&[parsed.id]).await.map_err(|error| unavailable(&error))?;
        let Some(record) = records.into_iter().find(|record| record.id == parsed.id) else {
            return Ok(Verdict::Unknown { since: read });
        };
        // Both are for good, so argon2 has nothing to add.
        if record.revoked.is_some() || record.expires.is_some_and(|expires| expires <= self.clock.now()) {
            return Ok(Verdict::Bad);
        }
        let state = State { expires: record.expires, revoked: false, read };
        let permit = self.hashing.acquire().await.map_err(|_| AuthRefusal::Unavailable)?;
        self.verifications.fetch_add(1, Ordering::Relaxed);
        let hash = record.hash;
        let genuine = tokio::task::spawn_blocking(move || hash::verify(&hash, &parsed.secret));
        let genuine = genuine.await.map_err(|_| AuthRefusal::Unavailable)?;
        drop(permit);
        if !genuine {
            return Ok(Verdict::Bad);
        }
        Ok(Verdict::Genuine(Arc::new(Known {
            id: record.id,
            context: record.context,
            tenant: (!record.tenant.is_empty()).then(|| record.tenant.into()),
            used: AtomicU64::new(millis(read)),
            state: Mutex::new(state),
        })))
    }

    async fn is_valid(self: Arc<Self>, known: &Known) -> Result<bool, AuthRefusal> {
        known.used.store(millis(self.clock.boot()), Ordering::Relaxed);
        // A reading that was under way may have begun before this token counted as used; the next one has it.
        for _ in 0..2 {
            let age = self.age(known);
            if age < AGING {
                break;
            }
            let mut ended = self.readings.subscribe();
            Arc::clone(&self).read_again();
            if age < STALE {
                break;
            }
            let failed = self.failed.load(Ordering::Relaxed);
            if !failed {
                // Whatever came of it, the state says how old it is.
                let _ = ended.changed().await;
            } else if tokio::time::timeout(PATIENCE, ended.changed()).await.is_err() {
                break;
            }
        }
        if self.age(known) >= STALE + GRACE {
            return Err(AuthRefusal::Unavailable);
        }
        let state = known.state();
        Ok(!state.revoked && state.expires.is_none_or(|expires| self.clock.now() < expires))
    }

    fn age(&self, known: &Known) -> Duration {
        self.clock.boot().saturating_sub(known.state().read)
    }

    /// Starts reading the rows of all tokens in use, unless that is going on.
    fn read_again(self: Arc<Self>) {
        if !self.reading.swap(true, Ordering::AcqRel) {
            let reading = Reading(self);
            lifecycle::spawn("token refresh", async move { reading.0.read_rows().await });
        }
    }

    /// Reads them, in a reading that begins from now on.
    async fn read_anew(self: &Arc<Self>) {
        let mut ended = self.readings.subscribe();
        if self.reading.load(Ordering::Acquire) {
            let _ = ended.changed().await;
        }
        let mut ended = self.readings.subscribe();
        Arc::clone(self).read_again();
        let _ = ended.changed().await;
        self.revocations.send_replace(());
    }

    async fn read_rows(&self) {
        let read = self.clock.boot();
        let in_use: Vec<Arc<Known>> = self.remembered.iter().filter_map(|(_, slot)| slot.in_use(read)).collect();
        for some in in_use.chunks(READ_AT_ONCE) {
            let ids: Vec<TokenId> = some.iter().map(|known| known.id).collect();
            let result = self.records.read(&ids).await;
            if self.failed.swap(result.is_err(), Ordering::Relaxed) != result.is_err() {
                match &result {
                    Ok(_) => tracing::info!("access tokens can be read again"),
                    Err(error) => tracing::warn!(error = %error, "access tokens cannot be read; known ones are served"),
                }
            }
            let Ok(records) = result else { return };
            let records: HashMap<TokenId, TokenRecord> =
                records.into_iter().map(|record| (record.id, record)).collect();
            for known in some {
                known.take(records.get(&known.id), read);
            }
        }
    }
}

/// A reading that is going on; its end, a panic too, lets the next one start and wakes those who wait for it.
struct Reading(Arc<Verifier>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.reading.store(false, Ordering::Release);
        self.0.readings.send_replace(());
    }
}

impl Slot {
    fn in_use(&self, now: Duration) -> Option<Arc<Known>> {
        match self.0.get() {
            Some(Verdict::Genuine(known)) => {
                let idle = millis(now).saturating_sub(known.used.load(Ordering::Relaxed));
                (idle < millis(IN_USE)).then(|| Arc::clone(known))
            }
            _ => None,
        }
    }
}

impl Known {
    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, record: Option<&TokenRecord>, read: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.revoked = record.is_none_or(|record| record.revoked.is_some());
        state.expires = record.and_then(|record| record.expires);
        state.read = read;
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
