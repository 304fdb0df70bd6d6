//! `/mcp`: reads one message and hands it to its era.

pub(super) mod answer;
mod inputs;
mod key;
mod legacy;
mod modern;
mod outgoing;
mod relay;
mod scopes;
pub(super) mod sessions;
mod sse;
mod streams;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::Front;
use super::error::{Rejection, unavailable};
use super::middleware::auth::Verified;
use super::middleware::body;
use super::middleware::media::Accepts;
use crate::protocol::jsonrpc::{Message, write_error};

/// One message from a client.
pub(super) async fn post(
    State(front): State<Arc<Front>>,
    Extension(verified): Extension<Verified>,
    Extension(accepts): Extension<Accepts>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = match body::read(body, front.state.rules.body_limit).await {
        Ok(bytes) => bytes,
        Err(rejection) => return rejection.to_response(None),
    };
    let message = match Message::parse(&bytes) {
        Ok(message) => message,
        Err(malformed) => return Rejection::Malformed(malformed).to_response(None),
    };
    drop(bytes);
    let is_modern = modern::is_spoken(&parts.headers, &message);
    if let Verified::Caller(caller) = &verified
        && let Err(rejection) = scopes::check(caller, &message, is_modern)
    {
        let id = if let Message::Request(request) = &message { Some(&request.id) } else { None };
        return rejection.to_response(id);
    }
    if is_modern {
        return modern::post(front, verified, &parts.headers, accepts, message).await;
    }
    match verified {
        Verified::Caller(caller) => legacy::post(front, caller, &parts.headers, accepts, message).await,
        Verified::Unknown => match message {
            Message::Request(request) => answer::now(accepts, write_error(Some(&request.id), &unavailable().to_raw())),
            Message::Notification(_) | Message::Response(_) => Rejection::Unavailable.to_response(None),
        },
    }
}

/// A session's stream, or one that a client goes on with.
pub(super) async fn get(
    State(front): State<Arc<Front>>,
    Extension(verified): Extension<Verified>,
    headers: HeaderMap,
) -> Response {
    if modern::is_named(&headers) {
        return modern::method_not_allowed();
    }
    let Verified::Caller(caller) = verified else { return Rejection::Unavailable.to_response(None) };
    if let Err(rejection) = scopes::check_session(&caller) {
        return rejection.to_response(None);
    }
    streams::open(front, caller, &headers).await
}

/// The end of a session (HTTP-07); its tasks live on.
pub(super) async fn delete(
    State(front): State<Arc<Front>>,
    Extension(verified): Extension<Verified>,
    headers: HeaderMap,
) -> Response {
    if modern::is_named(&headers) {
        return modern::method_not_allowed();
    }
    let Verified::Caller(caller) = verified else { return Rejection::Unavailable.to_response(None) };
    if let Err(rejection) = scopes::check_session(&caller) {
        return rejection.to_response(None);
    }
    match front.sessions.end(&front.state.engine, &caller, &headers).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => error.to_rejection().to_response(None),
    }
}
