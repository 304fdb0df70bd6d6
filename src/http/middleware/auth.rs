//! Who is calling: the token becomes a verified context, or the request ends here.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;

use super::access_log::Served;
use super::body::refuse;
use crate::auth::{AuthRefusal, Authenticator};
use crate::domain::context::AuthContext;
use crate::http::Front;
use crate::http::error::Rejection;

/// What is known of the caller.
#[derive(Debug, Clone)]
pub(in crate::http) enum Verified {
    Caller(AuthContext),
    /// Tokens cannot be checked now. The message is still read, so that its answer can name its id (KEEP-11).
    Unknown,
}

pub(in crate::http) async fn authenticate(
    State(front): State<Arc<Front>>,
    mut request: Request,
    next: Next,
) -> Response {
    let verified = match verify(&*front.state.auth, request.headers()).await {
        Ok(caller) => Verified::Caller(caller),
        Err(AuthRefusal::Unavailable) => Verified::Unknown,
        Err(refusal) => {
            let mut response = refuse(request, front.state.rules.body_limit, &Rejection::from(refusal)).await;
            complete(&front, &mut response);
            return response;
        }
    };
    let context = match &verified {
        Verified::Caller(caller) => Some(caller.id()),
        Verified::Unknown => None,
    };
    request.extensions_mut().insert(verified);
    let mut response = next.run(request).await;
    complete(&front, &mut response);
    let served = response.extensions().get::<Served>().copied().unwrap_or_default();
    response.extensions_mut().insert(Served { context, ..served });
    response
}

/// A challenge says whatever this service has to say in one, wherever it comes from.
fn complete(front: &Front, response: &mut Response) {
    if let Some(resource) = &front.state.rules.resource {
        resource.complete(response);
    }
}

/// # Errors
/// As [`Authenticator::authenticate`].
async fn verify(auth: &dyn Authenticator, headers: &HeaderMap) -> Result<AuthContext, AuthRefusal> {
    let values: Vec<&[u8]> = headers.get_all(AUTHORIZATION).iter().map(|value| value.as_bytes()).collect();
    auth.authenticate(&values).await
}
