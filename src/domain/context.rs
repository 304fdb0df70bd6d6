//! Who is calling.

use std::sync::Arc;

use super::ids::{ContextId, TokenId};
use super::scope::{Scope, Scopes};

/// A verified caller. Only `auth/` makes one; request-facing code reaches tasks only through a store handle made
/// from it (AUTH-13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthContext {
    id: ContextId,
    tenant: Option<Arc<str>>,
    credential: Credential,
    scopes: Scopes,
}

/// What the caller showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// A bearer token of ours.
    Token(TokenId),
    /// An access token that the configured OAuth issuer signed.
    OAuth,
    /// Nothing: authentication is off, so callers cannot be told apart.
    Anonymous,
}

impl AuthContext {
    /// Call this only after the credential was verified. The caller may do everything that is its own.
    #[must_use]
    pub fn verified(id: ContextId, tenant: Option<Arc<str>>, credential: Credential) -> Self {
        Self { id, tenant, credential, scopes: Scopes::ALL }
    }

    /// The same caller with a credential that allows so much.
    #[must_use]
    pub fn limited_to(self, scopes: Scopes) -> Self {
        Self { scopes, ..self }
    }

    #[must_use]
    pub const fn may(&self, scope: Scope) -> bool {
        self.scopes.allow(scope)
    }

    #[must_use]
    pub const fn id(&self) -> ContextId {
        self.id
    }

    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    #[must_use]
    pub const fn credential(&self) -> Credential {
        self.credential
    }

    /// Whether this caller can be told from others. If not, tasks are not listed (AUTH-09).
    #[must_use]
    pub const fn is_identified(&self) -> bool {
        matches!(self.credential, Credential::Token(_) | Credential::OAuth)
    }
}

/// What an authorization context is made of in the database; unique as a whole. Empty text stands for "none".
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ContextKey {
    pub tenant: String,
    pub issuer: String,
    pub subject: String,
    pub client: String,
}
