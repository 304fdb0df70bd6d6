//! `auth.mode = "none"`: callers cannot be told apart (AUTH-09).

use async_trait::async_trait;

use super::{AuthRefusal, Authenticator};
use crate::domain::clock::Clock;
use crate::domain::context::{AuthContext, ContextKey, Credential};
use crate::store::{self, SystemStore};

/// Everybody is the one anonymous caller, whatever they send.
#[derive(Debug, Clone)]
pub struct Anonymous {
    caller: AuthContext,
}

impl Anonymous {
    /// Finds or makes the anonymous context.
    ///
    /// # Errors
    /// If the store cannot answer.
    pub async fn open(store: &SystemStore, clock: &dyn Clock) -> store::Result<Self> {
        let key = ContextKey { issuer: "none".to_owned(), ..ContextKey::default() };
        let context = store.ensure_context(key, clock.now()).await?;
        Ok(Self { caller: AuthContext::verified(context, None, Credential::Anonymous) })
    }
}

#[async_trait]
impl Authenticator for Anonymous {
    async fn authenticate(&self, _authorization: &[&[u8]]) -> Result<AuthContext, AuthRefusal> {
        Ok(self.caller.clone())
    }
}
