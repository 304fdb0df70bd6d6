//! Reading bodies within bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::EXPECT;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use crate::http::error::Rejection;

/// A body has to arrive in this time (HTTP-12).
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the body of a refused request is still read.
const LINGER: Duration = Duration::from_secs(2);

/// The whole body.
pub(in crate::http) async fn read(body: Body, limit: usize) -> Result<Bytes, Rejection> {
    read_within(body, limit, BODY_TIMEOUT).await
}

async fn read_within(body: Body, limit: usize, time: Duration) -> Result<Bytes, Rejection> {
    let read = async {
        let mut body = body;
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Rejection::BodyBroken)?;
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + data.len() > limit {
                drain(body, limit).await;
                return Err(Rejection::BodyTooLarge { limit });
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(time, read).await.unwrap_or(Err(Rejection::BodyTooSlow))
}

/// Refuses a request without looking at its body. What is under way of it is taken off the wire first, in bounds:
/// otherwise the close of the connection may reach the client before the answer does.
pub(in crate::http) async fn refuse(request: Request, limit: usize, rejection: &Rejection) -> Response {
    // Who waits for our consent has not sent it yet; reading would be that consent.
    if !request.headers().contains_key(EXPECT) {
        drain(request.into_body(), limit).await;
    }
    rejection.to_response(None)
}

async fn drain(mut body: Body, limit: usize) {
    let take = async {
        let mut left = limit;
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(size) else { return };
            left = rest;
        }
    };
    // Whether it ended or ran out of time makes no difference to the answer.
    let _ = tokio::time::timeout(LINGER, take).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream::{self, StreamExt};

    use super::*;

    // req: HTTP-12
    #[tokio::test]
    async fn a_body_that_does_not_come_is_given_up() {
        let begun = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{"))]);
        let endless = Body::from_stream(begun.chain(stream::pending()));
        assert_eq!(read_within(endless, 10, Duration::from_millis(20)).await, Err(Rejection::BodyTooSlow));
    }

    // req: HTTP-04
    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        let chunks = |count| Body::from_stream(stream::iter((0..count).map(|_| Ok::<_, Infallible>("12345"))));
        assert_eq!(read(chunks(2), 10).await.unwrap(), "1234512345");
        assert_eq!(read(chunks(3), 10).await, Err(Rejection::BodyTooLarge { limit: 10 }));
        let broken = Body::from_stream(stream::iter([Err::<Bytes, _>(std::io::Error::other("gone"))]));
        assert_eq!(read(broken, 10).await, Err(Rejection::BodyBroken));
    }
}
