//! The only place that says which refusal becomes which JSON-RPC error and which HTTP status.

pub(super) mod legacy;
pub(super) mod modern;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::auth::AuthRefusal;
use crate::domain::json::RawJson;
use crate::domain::scope::Scope;
use crate::domain::text::storable;
use crate::engine::Refusal;
use crate::protocol::jsonrpc::{
    ErrorObject, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Id, LIMIT_REACHED, METHOD_NOT_FOUND, Malformed,
    RESOURCE_NOT_FOUND, write_error,
};
use crate::protocol::legacy::tasks::status_name;
use crate::protocol::splice::quoted;
use crate::store::StoreError;

/// How long a client should stay away from a node that drains or has lost its database, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// A request that is refused by its HTTP status, before or beside JSON-RPC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("forbidden")]
    Forbidden,
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("the body did not arrive in time")]
    BodyTooSlow,
    #[error("the body could not be read")]
    BodyBroken,
    #[error("the body must be application/json, in no content encoding")]
    UnsupportedMediaType,
    #[error("answers are application/json or text/event-stream")]
    NotAcceptable,
    #[error("answers of {method} are text/event-stream, which the Accept header must name")]
    EventsOnly { method: &'static str },
    #[error("unauthorized")]
    TokenMissing,
    #[error("unauthorized")]
    TokenInvalid,
    #[error("the Authorization header is malformed: expected one, with Bearer and a token")]
    TokenMalformed,
    #[error("the access token lacks the scope {}", Scope::list(.scopes))]
    ScopeMissing { scopes: &'static [Scope] },
    #[error("{}", .0.message)]
    Malformed(Malformed),
    #[error("the Mcp-Session-Id header is missing or repeated; send initialize first")]
    SessionMissing,
    #[error("session not found; send initialize again")]
    SessionUnknown,
    #[error("unsupported MCP-Protocol-Version; supported are 2025-11-25 and 2025-06-18")]
    VersionHeader,
    #[error("unknown Last-Event-ID: that stream cannot be resumed here; open a new one")]
    EventUnknown,
    #[error("a JSON-RPC response is not accepted here: nothing was asked")]
    UnexpectedResponse,
    #[error("the limit {limit} of {most} is reached")]
    TooMany { limit: &'static str, most: u64 },
    #[error("the service is temporarily unavailable")]
    Unavailable,
    #[error("this node is shutting down; ask again")]
    Draining,
}

impl Rejection {
    /// The response; `id` is that of the request which is refused, where it is known.
    #[must_use]
    pub fn to_response(&self, id: Option<&Id>) -> Response {
        let status = self.status();
        // Who is not verified learns nothing but that (AUTH-01); who waits must take nothing for an outcome (KEEP-10).
        let silent = matches!(self, Self::TokenMissing | Self::TokenInvalid | Self::Draining);
        let mut response = if silent {
            status.into_response()
        } else {
            let (code, id) = match self {
                Self::Malformed(malformed) => (malformed.code, malformed.id.as_ref()),
                Self::Unavailable => (INTERNAL_ERROR, id),
                Self::TooMany { .. } => (LIMIT_REACHED, id),
                _ => (INVALID_REQUEST, id),
            };
            let body = write_error(id, &ErrorObject::new(code, self.to_string()).to_raw());
            (status, [(header::CONTENT_TYPE, "application/json")], Body::from(body)).into_response()
        };
        if let Some((name, value)) = self.header() {
            response.headers_mut().insert(name, value);
        }
        response
    }

    const fn status(&self) -> StatusCode {
        match self {
            Self::Forbidden | Self::ScopeMissing { .. } => StatusCode::FORBIDDEN,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotAcceptable | Self::EventsOnly { .. } => StatusCode::NOT_ACCEPTABLE,
            Self::TokenMissing | Self::TokenInvalid => StatusCode::UNAUTHORIZED,
            Self::BodyBroken
            | Self::TokenMalformed
            | Self::Malformed(_)
            | Self::SessionMissing
            | Self::VersionHeader
            | Self::EventUnknown
            | Self::UnexpectedResponse => StatusCode::BAD_REQUEST,
            Self::SessionUnknown => StatusCode::NOT_FOUND,
            Self::TooMany { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable | Self::Draining => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn header(&self) -> Option<(header::HeaderName, HeaderValue)> {
        match self {
            Self::TokenMissing => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            Self::TokenInvalid => {
                Some((header::WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer error="invalid_token""#)))
            }
            Self::ScopeMissing { scopes } => {
                let challenge = format!(r#"Bearer error="insufficient_scope", scope="{}""#, Scope::list(scopes));
                HeaderValue::try_from(challenge).ok().map(|challenge| (header::WWW_AUTHENTICATE, challenge))
            }
            Self::Unavailable | Self::Draining | Self::TooMany { .. } => {
                Some((header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S)))
            }
            _ => None,
        }
    }
}

impl From<AuthRefusal> for Rejection {
    fn from(refusal: AuthRefusal) -> Self {
        match refusal {
            AuthRefusal::Missing => Self::TokenMissing,
            AuthRefusal::Malformed => Self::TokenMalformed,
            AuthRefusal::Invalid => Self::TokenInvalid,
            AuthRefusal::Unavailable => Self::Unavailable,
        }
    }
}

/// What the engine refused, as an error; in the handshake era it travels at HTTP 200 (HTTP-15).
#[must_use]
pub fn refusal_error(refusal: &Refusal) -> ErrorObject {
    match refusal {
        Refusal::UnknownTask => task_not_found(),
        Refusal::AlreadyEnded(status) => ErrorObject::new(
            INVALID_PARAMS,
            format!("Cannot cancel task: already in terminal status '{}'", status_name(*status)),
        ),
        Refusal::UnknownTool(name) => {
            ErrorObject::new(INVALID_PARAMS, format!("unknown tool: {}", storable(name, 128)))
        }
        Refusal::UnknownPrompt(name) => {
            ErrorObject::new(INVALID_PARAMS, format!("unknown prompt: {}", storable(name, 128)))
        }
        Refusal::UnknownResource(uri) => ErrorObject::new(RESOURCE_NOT_FOUND, refusal.to_string())
            .with_data(RawJson::trusted(format!(r#"{{"uri":{}}}"#, quoted(&storable(uri, 2000))))),
        Refusal::UnknownSession
        | Refusal::UriTooLong { .. }
        | Refusal::BadCursor
        | Refusal::KeyTaken
        | Refusal::BadState
        | Refusal::InvalidArguments { .. }
        | Refusal::InvalidAnswer { .. }
        | Refusal::ArgumentsTooLarge { .. } => ErrorObject::new(INVALID_PARAMS, refusal.to_string()),
        Refusal::TaskForbidden { .. } | Refusal::TaskRequired { .. } => {
            ErrorObject::new(METHOD_NOT_FOUND, refusal.to_string())
        }
        Refusal::LimitReached { limit, most, retry_after } => {
            let data = format!(
                r#"{{"reason":"limit_reached","limit":{},"most":{most},"retryAfterMs":{}}}"#,
                quoted(limit),
                retry_after.as_millis()
            );
            ErrorObject::new(LIMIT_REACHED, refusal.to_string()).with_data(RawJson::trusted(data))
        }
        Refusal::ShuttingDown => failure("shutting_down", &refusal.to_string()),
        Refusal::Store(error) => store_error(error),
    }
}

/// The same where a client opens a stream: there is no request whose error it could be.
pub(super) fn stream_refused(refusal: &Refusal) -> Rejection {
    match refusal {
        Refusal::LimitReached { limit, most, .. } => Rejection::TooMany { limit, most: *most },
        Refusal::UnknownSession => Rejection::SessionUnknown,
        Refusal::ShuttingDown => Rejection::Draining,
        _ => {
            tracing::warn!(error = %refusal, "a stream cannot be opened");
            Rejection::Unavailable
        }
    }
}

/// Missing, expired, malformed and foreign task ids get the same answer from every method (TASK-11).
#[must_use]
pub fn task_not_found() -> ErrorObject {
    ErrorObject::new(INVALID_PARAMS, "Failed to retrieve task: task not found")
}

/// A database that does not answer or refuses (KEEP-11, KEEP-13): what it said is for our log only.
#[must_use]
pub fn store_error(error: &StoreError) -> ErrorObject {
    match error {
        StoreError::Unavailable(_) => {
            tracing::warn!(%error, "a request failed for want of the database");
            unavailable()
        }
        StoreError::Refused(_) | StoreError::BrokenRow(_) => {
            tracing::error!(%error, "a request failed in the database");
            failure("database_error", "the service could not store or read what was asked for")
        }
    }
}

/// Something that this request needs is away for now.
#[must_use]
pub fn unavailable() -> ErrorObject {
    failure("temporarily_unavailable", "the service is temporarily unavailable; try again")
}

/// A fault of ours; whether the request took effect is not known.
#[must_use]
pub fn internal() -> ErrorObject {
    failure("internal", "an error inside this service ended the request; it may or may not have taken effect")
}

fn failure(reason: &str, message: &str) -> ErrorObject {
    let data = RawJson::trusted(format!(r#"{{"reason":{}}}"#, quoted(reason)));
    ErrorObject::new(INTERNAL_ERROR, message).with_data(data)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::outcome::Ending;
    use crate::domain::task::Status;

    // req: TASK-13
    #[test]
    fn a_terminal_task_is_named_when_it_cannot_be_cancelled() {
        for (ending, name) in
            [(Ending::Completed, "completed"), (Ending::ToolError, "failed"), (Ending::Cancelled, "cancelled")]
        {
            let error = refusal_error(&Refusal::AlreadyEnded(Status::Ended(ending)));
            assert_eq!(error.code, INVALID_PARAMS);
            assert!(error.message.contains(name), "{}", error.message);
        }
    }

    #[test]
    fn a_limit_says_which_and_when() {
        let refusal =
            Refusal::LimitReached { limit: "limits.streams", most: 1000, retry_after: Duration::from_millis(1500) };
        let error = refusal_error(&refusal);
        assert!(!(-32768..=-32000).contains(&error.code), "{}", error.code);
        assert_eq!(
            error.data.unwrap().as_str(),
            r#"{"reason":"limit_reached","limit":"limits.streams","most":1000,"retryAfterMs":1500}"#
        );
    }

    // req: KEEP-11, KEEP-13
    #[test]
    fn what_the_database_said_is_not_told() {
        for error in [StoreError::Unavailable("host db1 is down".into()), StoreError::Refused("disk full".into())] {
            let told = refusal_error(&Refusal::Store(error)).to_raw();
            assert!(told.as_str().contains("-32603"), "{}", told.as_str());
            assert!(!told.as_str().contains("db1") && !told.as_str().contains("disk"), "{}", told.as_str());
        }
    }

    // req: AUTH-01
    #[test]
    fn who_is_not_verified_gets_a_challenge_and_nothing_else() {
        let response = Rejection::from(AuthRefusal::Invalid).to_response(None);
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], r#"Bearer error="invalid_token""#);
        let response = Rejection::from(AuthRefusal::Missing).to_response(None);
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
        assert_eq!(Rejection::from(AuthRefusal::Malformed).to_response(None).status(), StatusCode::BAD_REQUEST);
    }
}
