//! Answers: at once in the form that the client takes, or later.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;

use super::sse;
use crate::auth::{AuthRefusal, Authenticator};
use crate::domain::context::AuthContext;
use crate::http::error::Rejection;
use crate::http::middleware::auth::verify;
use crate::http::middleware::media::Accepts;

/// What ends within this time is answered as JSON, although a stream would do.
const STREAM_AFTER: Duration = Duration::from_millis(500);
/// How often the token of a waiting request is looked at (AUTH-07).
const VERIFY_EVERY: Duration = Duration::from_secs(1);

/// How a request ends that may take long.
pub(super) enum Ending {
    /// The response, one JSON-RPC message.
    Message(String),
    /// Its client cancelled it: it gets no response.
    Silent,
}

pub(super) type Work = Pin<Box<dyn Future<Output = Ending> + Send>>;

/// Why a waiting request is let go before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LetGo {
    /// It can go on waiting at another node.
    Draining,
    /// Its token is not good any more.
    Unauthorized,
}

/// Becomes ready when a waiting request has to be let go.
pub(super) type Watch = Pin<Box<dyn Future<Output = LetGo> + Send>>;

/// One message, now.
pub(super) fn now(accepts: Accepts, message: String) -> Response {
    if accepts.json {
        return ([(header::CONTENT_TYPE, "application/json")], Body::from(message)).into_response();
    }
    sse::response(Body::from(sse::event(&message)))
}

/// Answers when the work ends: as JSON if that is soon, or if the client takes nothing else; else by a stream.
pub(super) async fn later(accepts: Accepts, mut work: Work, mut watch: Watch) -> Response {
    if accepts.events {
        return tokio::select! {
            biased;
            ending = &mut work => ended(accepts, ending),
            () = tokio::time::sleep(STREAM_AFTER) => sse::response(sse::stream(work, watch)),
        };
    }
    tokio::select! {
        biased;
        ending = &mut work => ended(accepts, ending),
        let_go = &mut watch => match let_go {
            LetGo::Draining => Rejection::Draining.to_response(None),
            LetGo::Unauthorized => Rejection::TokenInvalid.to_response(None),
        },
    }
}

fn ended(accepts: Accepts, ending: Ending) -> Response {
    match ending {
        Ending::Message(message) => now(accepts, message),
        Ending::Silent if accepts.events => sse::response(Body::empty()),
        // Nobody reads it; no status says "no response".
        Ending::Silent => StatusCode::ACCEPTED.into_response(),
    }
}

/// Watches the token of a request, and `drain` if the wait can go on elsewhere.
pub(super) fn watch(
    auth: Arc<dyn Authenticator>,
    caller: &AuthContext,
    headers: &HeaderMap,
    drain: Option<CancellationToken>,
) -> Watch {
    let mut authorization = HeaderMap::new();
    for value in headers.get_all(header::AUTHORIZATION) {
        authorization.append(header::AUTHORIZATION, value.clone());
    }
    let identified = caller.is_identified();
    let revoked = async move {
        loop {
            tokio::time::sleep(VERIFY_EVERY).await;
            match verify(&*auth, &authorization).await {
                Err(AuthRefusal::Invalid | AuthRefusal::Missing | AuthRefusal::Malformed) => return,
                Ok(_) | Err(AuthRefusal::Unavailable) => {}
            }
        }
    };
    Box::pin(async move {
        let drained = async {
            match &drain {
                Some(drain) => drain.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = drained => LetGo::Draining,
            () = revoked, if identified => LetGo::Unauthorized,
        }
    })
}
