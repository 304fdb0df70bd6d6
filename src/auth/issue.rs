//! Issuing access tokens, and ending them.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;

use super::format::TokenKey;
use super::hash;
use crate::domain::clock::Clock;
use crate::domain::context::ContextKey;
use crate::domain::ids::{ContextId, TokenId, random_bytes};
use crate::domain::text::storable;
use crate::store::{StoreError, SystemStore, TokenRecord};

/// The kind of the server key that tokens' checks are made with.
pub(super) const KEY_KIND: &str = "token";

/// Longer names are cut.
const MOST_NAME_BYTES: usize = 200;

/// What a token is for.
#[derive(Debug, Clone, Default)]
pub struct NewToken {
    /// For people; need not be unique.
    pub name: String,
    /// The context whose tasks it shares; one of its own without (AUTH-05).
    pub context: Option<ContextId>,
    /// The tenant of a context of its own; must be the context's where one is given.
    pub tenant: Option<String>,
    /// How long it is good; without end when `None`.
    pub lifetime: Option<Duration>,
}

/// A new token. The secret is nowhere else and cannot be shown again (AUTH-06).
#[derive(Debug)]
pub struct Issued {
    pub token: SecretString,
    pub record: TokenRecord,
}

#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("there is no context {0}")]
    NoContext(ContextId),
    #[error("context {context} belongs to {}, not to tenant {given:?}", tenant_words(.found))]
    OtherTenant { context: ContextId, found: String, given: String },
    #[error("there is no token {0}")]
    NoToken(TokenId),
    #[error("token {0} is revoked or has expired and cannot be rotated: create a new one for context {1}")]
    Ended(TokenId, ContextId),
    #[error("the token store failed")]
    Store(#[from] StoreError),
}

/// Issues tokens of one installation.
pub struct Issuer {
    store: SystemStore,
    clock: Arc<dyn Clock>,
    key: TokenKey,
}

impl Issuer {
    /// # Errors
    /// If the installation's key cannot be read.
    pub async fn open(store: SystemStore, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let key = TokenKey::new(store.server_key(KEY_KIND).await?);
        Ok(Self { store, clock, key })
    }

    /// # Errors
    /// If the context is not there or is another tenant's, or the store fails.
    pub async fn mint(&self, new: NewToken) -> Result<Issued, IssueError> {
        let now = self.clock.now();
        let id = TokenId::new();
        let (context, tenant) = match new.context {
            Some(context) => {
                let key = self.store.context(context).await?.ok_or(IssueError::NoContext(context))?;
                if let Some(given) = new.tenant.filter(|given| *given != key.tenant) {
                    return Err(IssueError::OtherTenant { context, found: key.tenant, given });
                }
                (context, key.tenant)
            }
            None => {
                let tenant = storable(&new.tenant.unwrap_or_default(), MOST_NAME_BYTES);
                let key = ContextKey {
                    tenant: tenant.clone(),
                    issuer: "token".to_owned(),
                    subject: id.to_string(),
                    client: String::new(),
                };
                (self.store.ensure_context(key, now).await?, tenant)
            }
        };
        let secret = random_bytes();
        let record = TokenRecord {
            id,
            context,
            tenant,
            name: storable(&new.name, MOST_NAME_BYTES),
            hash: hash::hash(&secret),
            created: now,
            expires: new.lifetime.map(|lifetime| now + lifetime),
            revoked: None,
        };
        self.store.add_token(record.clone()).await?;
        Ok(Issued { token: self.key.write(id, &secret), record })
    }

    /// A new token for the same context, name and length of life; the old one ends after `grace` (AUTH-05).
    ///
    /// # Errors
    /// If the old one is not there or has ended, or the store fails.
    pub async fn rotate(&self, old: TokenId, grace: Duration) -> Result<Issued, IssueError> {
        let record = self.store.tokens(&[old]).await?.into_iter().next().ok_or(IssueError::NoToken(old))?;
        let now = self.clock.now();
        if record.revoked.is_some() || record.expires.is_some_and(|expires| expires <= now) {
            return Err(IssueError::Ended(old, record.context));
        }
        let issued = self
            .mint(NewToken {
                name: record.name,
                context: Some(record.context),
                tenant: None,
                lifetime: record.expires.map(|expires| expires.since(record.created)),
            })
            .await?;
        // The new one stands before the old one goes: a failure in between leaves both, never none.
        if grace.is_zero() {
            self.store.revoke_token(old, now).await?;
        } else {
            self.store.expire_token(old, now + grace).await?;
        }
        Ok(issued)
    }

    /// Ends a token on every node within five seconds (AUTH-07); its tasks stay with its context.
    ///
    /// # Errors
    /// If it is not there, or the store fails.
    pub async fn revoke(&self, id: TokenId) -> Result<(), IssueError> {
        if self.store.revoke_token(id, self.clock.now()).await? { Ok(()) } else { Err(IssueError::NoToken(id)) }
    }
}

fn tenant_words(tenant: &str) -> String {
    if tenant.is_empty() { "no tenant".to_owned() } else { format!("tenant {tenant:?}") }
}
