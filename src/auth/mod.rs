//! Who is calling: from a request's `Authorization` headers to a verified [`AuthContext`].
//!
//! * [`TokenAuthenticator`]: access tokens that this installation issued ([`issue`]).
//! * [`OauthAuthenticator`]: access tokens of a configured OAuth issuer.
//! * [`Anonymous`]: authentication is off; everybody is the same caller.
//!
//! Knows nothing of HTTP beyond the header's value, and nothing of tasks. To add a way to authenticate: a file here that
//! implements [`Authenticator`], a mode in the configuration, a line in `app.rs`.

mod anonymous;
pub mod bearer;
mod digest;
pub mod format;
mod hash;
pub mod issue;
mod oauth;
mod tokens;

use async_trait::async_trait;

pub use anonymous::Anonymous;
pub use oauth::{OauthAuthenticator, OauthRules};
pub use tokens::TokenAuthenticator;

use crate::domain::context::AuthContext;
use crate::store::StoreError;

/// Why a caller is not let in (AUTH-01). It says nothing about which tokens there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthRefusal {
    /// No credential was sent: 401 with a bare challenge.
    #[error("no access token was sent")]
    Missing,
    /// The header is repeated or no bearer credential: 400.
    #[error("the Authorization header is malformed or repeated")]
    Malformed,
    /// The token is not, or no longer, good: 401 with `error="invalid_token"`.
    #[error("the access token is not valid")]
    Invalid,
    /// Whether it is good cannot be found out now, because the database or the issuer does not answer: 503, never 401.
    #[error("access tokens cannot be checked now")]
    Unavailable,
}

#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Verifies the values of all `Authorization` headers of a request. Cheap for a credential seen before, so that open
    /// streams can be checked again with it (AUTH-07).
    ///
    /// # Errors
    /// Why the caller is not let in.
    async fn authenticate(&self, authorization: &[&[u8]]) -> Result<AuthContext, AuthRefusal>;

    /// Waits until what was once answered may be answered otherwise, where that is heard.
    async fn changed(&self) {
        std::future::pending::<()>().await;
    }
}

fn unavailable(error: &StoreError) -> AuthRefusal {
    tracing::warn!(error = %error, "an access token cannot be checked");
    AuthRefusal::Unavailable
}
