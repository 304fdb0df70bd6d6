//! Who is calling.

use async_trait::async_trait;

use crate::domain::context::AuthContext;

/// Turns credentials into a verified caller.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// `authorization` holds the values of all `Authorization` headers of the request.
    ///
    /// # Errors
    /// [`AuthRefusal`] says what the caller is told; it never says why a token is not valid.
    async fn authenticate(&self, authorization: &[&[u8]]) -> Result<AuthContext, AuthRefusal>;
}

/// Why a caller was not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthRefusal {
    #[error("no token was sent")]
    Missing,
    #[error("the authorization header is malformed or repeated")]
    Malformed,
    #[error("the token is not valid")]
    Invalid,
    #[error("tokens cannot be checked now")]
    Unavailable,
}
