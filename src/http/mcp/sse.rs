//! Server-sent events: one message in one `data` line (EXEC-21), kept alive by comments (NOTE-08).

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use tokio::time::{Interval, MissedTickBehavior};

use super::answer::{Ending, LetGo, Watch, Work};

const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEP_ALIVE: &str = ": waiting\n\n";
/// Sent before a stream is closed early: how long to wait before asking again, in milliseconds.
const RETRY: &str = "retry: 1000\n\n";

/// A message as an event. Messages hold no line breaks: the scanner made spaces of those between tokens.
pub(super) fn event(message: &str) -> String {
    debug_assert!(!message.contains(['\n', '\r']));
    ["event: message\ndata: ", message, "\n\n"].concat()
}

pub(super) fn response(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream"),
        (header::CACHE_CONTROL.as_str(), "no-cache"),
        ("x-accel-buffering", "no"),
    ];
    (headers, body).into_response()
}

/// Ends with the work's message, without one if the work was cancelled, or when `watch` lets the client go. Dropping it (a
/// client that leaves) drops the work's future and nothing else.
pub(super) fn stream(work: Work, watch: Watch) -> Body {
    stream_with(work, watch, KEEP_ALIVE_EVERY)
}

fn stream_with(work: Work, watch: Watch, keep_alive_every: Duration) -> Body {
    let mut keep_alive = tokio::time::interval(keep_alive_every);
    // A client that did not read for a while is not sent what it missed.
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let state = Some(Waiting { work, watch, keep_alive });
    Body::from_stream(stream::unfold(state, |state| async move {
        let mut waiting = state?;
        let (text, state) = tokio::select! {
            biased;
            ending = &mut waiting.work => match ending {
                Ending::Message(message) => (event(&message), None),
                Ending::Silent => return None,
            },
            let_go = &mut waiting.watch => match let_go {
                LetGo::Draining => (RETRY.to_owned(), None),
                LetGo::Unauthorized => return None,
            },
            // The first tick comes at once, so that a proxy sees the stream begin.
            _ = waiting.keep_alive.tick() => (KEEP_ALIVE.to_owned(), Some(waiting)),
        };
        Some((Ok::<_, Infallible>(Bytes::from(text)), state))
    }))
}

struct Waiting {
    work: Work,
    watch: Watch,
    keep_alive: Interval,
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::sync::oneshot;

    use super::*;

    fn work(ending: oneshot::Receiver<Ending>) -> Work {
        Box::pin(async move { ending.await.unwrap_or(Ending::Silent) })
    }

    fn endless() -> Watch {
        Box::pin(std::future::pending())
    }

    async fn next(body: &mut Body) -> Option<String> {
        let bytes = body.frame().await?.unwrap().into_data().unwrap();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    // req: NOTE-08
    #[tokio::test]
    async fn a_waiting_stream_is_kept_alive_and_ends_with_its_message() {
        let (end, ending) = oneshot::channel();
        assert!(KEEP_ALIVE_EVERY <= Duration::from_secs(15));
        let every = Duration::from_millis(20);
        let began = std::time::Instant::now();
        let mut body = stream_with(work(ending), endless(), every);
        assert_eq!(next(&mut body).await.unwrap(), KEEP_ALIVE);
        assert_eq!(next(&mut body).await.unwrap(), KEEP_ALIVE);
        assert!(began.elapsed() >= every, "the first comes at once, the second after the interval");
        assert!(end.send(Ending::Message(r#"{"id":1}"#.to_owned())).is_ok());
        assert_eq!(next(&mut body).await.unwrap(), "event: message\ndata: {\"id\":1}\n\n");
        assert_eq!(next(&mut body).await, None);
    }

    // The half of CAP-10 that happens on one node.
    #[tokio::test]
    async fn a_cancelled_request_gets_no_response() {
        let (end, ending) = oneshot::channel();
        let mut body = stream(work(ending), endless());
        assert_eq!(next(&mut body).await.unwrap(), KEEP_ALIVE);
        assert!(end.send(Ending::Silent).is_ok());
        assert_eq!(next(&mut body).await, None);
    }

    // req: KEEP-10, AUTH-07
    #[tokio::test]
    async fn a_draining_node_says_when_to_come_back_and_a_revoked_token_is_told_nothing() {
        let (_end, ending) = oneshot::channel();
        let mut body = stream(work(ending), Box::pin(std::future::ready(LetGo::Draining)));
        assert_eq!(next(&mut body).await.unwrap(), RETRY);
        assert_eq!(next(&mut body).await, None);
        let (_end, ending) = oneshot::channel();
        let mut body = stream(work(ending), Box::pin(std::future::ready(LetGo::Unauthorized)));
        assert_eq!(next(&mut body).await, None);
    }
}
