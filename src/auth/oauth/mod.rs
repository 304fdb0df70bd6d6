//! `auth.mode = "oauth"`: access tokens of a configured issuer, as JWTs (AUTH-10).
//!
//! A token is verified once per process: its header, the issuer's key (`keys`, which `remote` fetches), its signature (`jwt`),
//! what it says (`claims`), and the row of its caller. What came out is remembered until the token ends or the issuer's keys
//! are others, so that most requests check no signature and ask no database. The caller is who the token names, never the
//! token: a refreshed one keeps its tasks (AUTH-11).

mod claims;
mod jwt;
mod keys;
mod remote;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use moka::sync::Cache;
use tokio::sync::OnceCell;

use self::jwt::Signed;
use self::keys::{KeyRing, Source};
use self::remote::Remote;
use super::bearer::bearer;
use super::digest::{Digest, DigestKey};
use super::{AuthRefusal, Authenticator};
use crate::domain::clock::{Clock, Timestamp};
use crate::domain::context::{AuthContext, ContextKey, Credential};
use crate::domain::ids::ContextId;
use crate::lifecycle;
use crate::store::SystemStore;

/// The most tokens, and the most callers, that are remembered; beyond it the least used are looked at anew.
const REMEMBERED: u64 = 10_000;
/// How often it is asked whether keys are to be fetched.
const TICK: Duration = Duration::from_secs(5);

/// Which tokens count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OauthRules {
    /// What `iss` has to be.
    pub issuer: String,
    /// What `aud` has to have.
    pub audience: String,
    /// Where the issuer's keys are; by its metadata when not set.
    pub jwks_url: Option<String>,
    /// The claim that names the caller's tenant; a token without it does not count then.
    pub tenant_claim: Option<String>,
    /// The claim that names the caller's client, if callers of different clients are different callers.
    pub client_claim: Option<String>,
    /// By how much the issuer's clock may differ from the database's.
    pub leeway: Duration,
    /// Whether a token allows only what its scopes say.
    pub require_scopes: bool,
}

impl OauthRules {
    /// Whether keys may be fetched from there: nobody on the way can put in others.
    #[must_use]
    pub fn is_protected(url: &str) -> bool {
        remote::is_protected(url)
    }

    /// Fetches the keys once; answers how many there are.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn try_keys(&self) -> Result<usize, String> {
        match Remote::new(self)?.fetch().await?.len() {
            0 => Err(format!(
                "what {} publishes has no key for RS256, ES256 or EdDSA: every token is refused",
                self.issuer
            )),
            count => Ok(count),
        }
    }
}

/// Verifies access tokens of the issuer.
pub struct OauthAuthenticator(Arc<Verifier>);

impl OauthAuthenticator {
    /// Does not wait for the issuer: while there are no keys, callers are told to try again.
    ///
    /// # Errors
    /// If no HTTP client can be made.
    pub fn open(rules: OauthRules, store: SystemStore, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let authenticator = Self::unattended(rules, store, clock)?;
        lifecycle::spawn("signing keys", attend(Arc::downgrade(&authenticator.0)));
        Ok(authenticator)
    }

    /// One whose keys are fetched only for requests, and by [`Self::refresh`].
    ///
    /// # Errors
    /// If no HTTP client can be made.
    pub fn unattended(rules: OauthRules, store: SystemStore, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let keys = Arc::new(KeyRing::new(Box::new(Remote::new(&rules)?), Arc::clone(&clock)));
        Ok(Self(Arc::new(Verifier {
            rules,
            keys,
            store,
            clock,
            digests: DigestKey::new(),
            remembered: Cache::new(REMEMBERED),
            contexts: Cache::new(REMEMBERED),
            verifications: AtomicU64::new(0),
        })))
    }

    /// Fetches the issuer's keys if it is time to.
    pub async fn refresh(&self) {
        self.0.keys.refresh().await;
    }

    /// How many signatures were checked.
    #[must_use]
    pub fn verifications(&self) -> u64 {
        self.0.verifications.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Authenticator for OauthAuthenticator {
    async fn authenticate(&self, authorization: &[&[u8]]) -> Result<AuthContext, AuthRefusal> {
        let token = bearer(authorization)?;
        let digest = self.0.digests.of(token);
        let generation = self.0.keys.current().map(|current| current.generation);
        if let Some(known) = self.0.remembered.get(&digest) {
            // No key makes a token good again that has lapsed: its caller needs another, whether keys can be had or not.
            if known.ends <= self.0.clock.now() {
                return Err(AuthRefusal::Invalid);
            }
            if generation == Some(known.generation) {
                return Ok(known.caller.clone());
            }
        }
        // On its own: a caller that goes away must not cut a statement off.
        let (verifier, token) = (Arc::clone(&self.0), token.to_owned());
        let work = async move { verifier.verify(&token).await };
        let known = lifecycle::spawn("token verification", work).await.map_err(|_| AuthRefusal::Unavailable)??;
        self.0.remembered.insert(digest, Arc::clone(&known));
        Ok(known.caller.clone())
    }
}

async fn attend(verifier: Weak<Verifier>) {
    while let Some(verifier) = verifier.upgrade() {
        verifier.keys.refresh().await;
        drop(verifier);
        tokio::time::sleep(TICK).await;
    }
}

struct Verifier {
    rules: OauthRules,
    keys: Arc<KeyRing>,
    store: SystemStore,
    clock: Arc<dyn Clock>,
    digests: DigestKey,
    remembered: Cache<Digest, Arc<Known>>,
    /// The rows of callers, which are never deleted. The cell makes concurrent first requests wait for one statement.
    contexts: Cache<ContextKey, Arc<OnceCell<ContextId>>>,
    verifications: AtomicU64,
}

/// A token that was good.
struct Known {
    caller: AuthContext,
    ends: Timestamp,
    /// Of the keys by which it was.
    generation: u64,
}

impl Verifier {
    async fn verify(&self, token: &str) -> Result<Arc<Known>, AuthRefusal> {
        let signed = Signed::read(token).ok_or_else(|| refused("it is no JWT that is signed as access tokens are"))?;
        let (key, generation) = self.keys.find(&signed).await.inspect_err(|refusal| {
            tracing::debug!(%refusal, "no key is known for an access token");
        })?;
        self.verifications.fetch_add(1, Ordering::Relaxed);
        let claims = key.verify(token).ok_or_else(|| refused("its signature is wrong"))?;
        if !signed.is_named_access_token() && claims::are_of_another_kind(&claims) {
            return Err(refused("it has claims of an ID token or an event (nonce, at_hash, c_hash, events)"));
        }
        let grant = claims::judge(&self.rules, &claims, self.clock.now()).map_err(refused)?;
        let tenant = (!grant.context.tenant.is_empty()).then(|| Arc::from(grant.context.tenant.as_str()));
        let context = self.context(grant.context).await?;
        let caller = AuthContext::verified(context, tenant, Credential::OAuth).limited_to(grant.scopes);
        Ok(Arc::new(Known { caller, ends: grant.ends, generation }))
    }

    async fn context(&self, key: ContextKey) -> Result<ContextId, AuthRefusal> {
        let cell = self.contexts.get_with(key.clone(), Arc::default);
        let ensured = cell.get_or_try_init(|| self.store.ensure_context(key, self.clock.now())).await;
        ensured.copied().map_err(|error| super::unavailable(&error))
    }
}

/// Why is for operators who wonder; the caller learns nothing (AUTH-01).
fn refused(why: &'static str) -> AuthRefusal {
    tracing::debug!(why, "an access token was refused");
    AuthRefusal::Invalid
}
