//! Answers: at once in the form that the client takes, or later.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;

use super::outgoing::Outgoing;
use super::sse;
use crate::auth::{AuthRefusal, Authenticator};
use crate::domain::context::AuthContext;
use crate::domain::ids::StreamId;
use crate::engine::{Delivery, Item, Looked, Stream};
use crate::http::error::Rejection;
use crate::http::middleware::media::Accepts;

/// What ends within this time is answered as JSON, although a stream would do.
const STREAM_AFTER: Duration = Duration::from_millis(500);
/// How often the token of a waiting request is looked at (AUTH-07).
const VERIFY_EVERY: Duration = Duration::from_secs(1);

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

/// How an era writes what a stream carries.
#[async_trait]
pub(super) trait Encode: Send + Sync {
    /// How often a stream on which nothing happens carries a comment.
    fn keep_alive(&self) -> Duration;

    /// The id of an event; none where a stream cannot be resumed (HTTP-09).
    fn event_id(&self, stream: StreamId, count: i64) -> Option<String>;

    /// The first message of a new stream, if it begins with one.
    fn opening(&self) -> Option<String> {
        None
    }

    /// The last message of a stream that this node ends because it shuts down; `None` where the client is to come back for the
    /// rest.
    fn drained(&self) -> Option<String> {
        None
    }

    /// A message before the answer; `None` if clients of this era are not told that.
    fn message(&self, delivery: &Delivery) -> Option<String>;

    /// How a task stands that is listened to; `None` if clients of this era are not told that.
    async fn task(&self, _looked: Box<Looked>) -> Option<String> {
        None
    }

    /// The response that ends a stream; `None` if there is none, and for what is no end.
    async fn answer(&self, item: Item) -> Option<Ending>;
}

/// The response that ends a request.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) message: Outgoing,
    /// Its HTTP status, where nothing was sent before it.
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<u64>,
}

impl Ending {
    pub(super) fn ok(message: impl Into<Outgoing>) -> Self {
        Self { message: message.into(), status: StatusCode::OK, retry_after: None }
    }

    /// Another status than 200 has its message in the body whatever the client accepts: there is no stream then.
    pub(super) fn into_response(self, accepts: Accepts) -> Response {
        let mut response = if self.status == StatusCode::OK {
            now(accepts, self.message)
        } else {
            (self.status, [(header::CONTENT_TYPE, "application/json")], self.message.into_body()).into_response()
        };
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// One message, now.
pub(super) fn now(accepts: Accepts, message: impl Into<Outgoing>) -> Response {
    let message = message.into();
    if accepts.json {
        return ([(header::CONTENT_TYPE, "application/json")], message.into_body()).into_response();
    }
    sse::response(sse::event(None, message).into_body())
}

/// Answers with what the stream ends with: as JSON if that is soon and nothing comes before it, or if the client takes
/// nothing else; else by a stream of events.
pub(super) async fn later(
    accepts: Accepts,
    mut stream: Stream,
    encoder: Box<dyn Encode>,
    mut watch: Watch,
) -> Response {
    if accepts.events {
        return tokio::select! {
            biased;
            item = stream.next() => match item {
                item @ Item::Message { .. } => sse::response(sse::stream(stream, encoder, watch, true, Some(item)).await),
                end => ended(accepts, encoder.answer(end).await),
            },
            () = tokio::time::sleep(STREAM_AFTER) => sse::response(sse::stream(stream, encoder, watch, true, None).await),
        };
    }
    loop {
        let item = match unless(&mut watch, stream.next()).await {
            Ok(item) => item,
            Err(LetGo::Draining) => return Rejection::Draining.to_response(None),
            Err(LetGo::Unauthorized) => return Rejection::TokenInvalid.to_response(None),
        };
        if !matches!(item, Item::Message { .. }) {
            return ended(accepts, encoder.answer(item).await);
        }
    }
}

/// What is next, unless the client has to be let go: however much there is to say, that is looked at first.
pub(super) async fn unless<T>(watch: &mut Watch, next: impl Future<Output = T>) -> Result<T, LetGo> {
    tokio::select! {
        biased;
        let_go = watch => Err(let_go),
        next = next => Ok(next),
    }
}

fn ended(accepts: Accepts, answer: Option<Ending>) -> Response {
    match answer {
        Some(ending) => ending.into_response(accepts),
        None if accepts.events => sse::response(Body::empty()),
        // Nobody reads it; no status says "no response".
        None => StatusCode::ACCEPTED.into_response(),
    }
}

/// Watches the token of a request, and `drain` if the wait can go on elsewhere.
pub(super) fn watch(
    auth: Arc<dyn Authenticator>,
    caller: &AuthContext,
    headers: &HeaderMap,
    drain: Option<CancellationToken>,
) -> Watch {
    // A copy: a clone would keep the whole buffer that the request was read into.
    let copy = |value: &HeaderValue| Box::<[u8]>::from(value.as_bytes());
    let authorization: Box<[_]> = headers.get_all(header::AUTHORIZATION).iter().map(copy).collect();
    let identified = caller.is_identified();
    let revoked = async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(VERIFY_EVERY) => {}
                () = auth.changed() => {}
            }
            let values: Vec<&[u8]> = authorization.iter().map(|value| &**value).collect();
            match auth.authenticate(&values).await {
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

#[cfg(test)]
mod tests {
    use super::*;

    // req: AUTH-07, KEEP-10
    #[tokio::test]
    async fn a_client_is_let_go_although_there_is_always_more_to_say() {
        let mut watch: Watch = Box::pin(std::future::ready(LetGo::Unauthorized));
        assert_eq!(unless(&mut watch, std::future::ready(1)).await, Err(LetGo::Unauthorized));
        let mut watch: Watch = Box::pin(std::future::pending());
        assert_eq!(unless(&mut watch, std::future::ready(1)).await, Ok(1));
    }
}
