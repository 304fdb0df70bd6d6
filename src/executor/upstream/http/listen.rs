//! Streams that a GET opens: the one for what the upstream says by itself, and those that go on with a broken answer.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderName};
use reqwest::{Method, Response, StatusCode};
use tokio::time::{Instant, sleep, timeout};

use super::exchange::Followed;
use super::refusal::{Media, media};
use super::{Http, SESSION_OVER, remote};
use crate::domain::ids::random_bytes;
use crate::domain::lease::backoff;
use crate::protocol::sse::Parser;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Before a reconnection, where the stream does not say how long; and the bounds of what it may say.
const PAUSE: Duration = Duration::from_secs(1);
const LEAST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_secs(60);
/// How long a stream may take to begin.
const BEGINS: Duration = Duration::from_secs(30);
/// A stream that brought nothing and ended sooner counts as a failure.
pub(super) const SHORT: Duration = Duration::from_secs(5);

/// Where a stream is to go on.
#[derive(Default)]
pub(super) struct Cursor {
    pub(super) last_id: Option<String>,
    retry: Option<Duration>,
}

impl Cursor {
    pub(super) fn take(&mut self, parser: &Parser) {
        self.last_id = parser.last_id().map(str::to_owned);
        self.retry = parser.retry().or(self.retry);
    }

    /// How long to wait before the reconnection.
    pub(super) fn pause(&self) -> Duration {
        self.retry.map_or(PAUSE, |retry| retry.clamp(LEAST_PAUSE, MOST_PAUSE))
    }
}

/// What became of a GET.
pub(super) enum Opened {
    Stream(Response),
    /// Later it may be different.
    NotNow,
    /// There is none; the text says why.
    Never(String),
}

impl Http {
    /// Keeps the upstream's own stream open while the link lives, if it has one.
    pub(super) async fn listen(self: Arc<Self>) {
        tokio::select! {
            () = self.control.ending.cancelled() => {}
            () = self.listen_on() => {}
        }
    }

    async fn listen_on(&self) {
        let mut cursor = Cursor::default();
        let mut failures = 0;
        loop {
            let had_id = cursor.last_id.is_some();
            match self.open_stream(&cursor).await {
                Opened::Stream(response) => {
                    let began = Instant::now();
                    let followed = self.follow(response, &mut cursor, None).await;
                    let was_good = followed != Followed::Ended { heard: false } || began.elapsed() >= SHORT;
                    failures = if was_good { 0 } else { failures + 1 };
                }
                Opened::NotNow => failures += 1,
                // The events after that id may be gone; what comes from now on is wanted all the same.
                Opened::Never(_) if had_id && !self.table.closed().is_cancelled() => {
                    cursor = Cursor::default();
                    failures += 1;
                }
                Opened::Never(why) => {
                    tracing::debug!("an upstream has no stream of its own: {why}");
                    return;
                }
            }
            let pause =
                if failures < 2 { Duration::ZERO } else { backoff(failures - 1, u32::from_le_bytes(random_bytes())) };
            sleep(cursor.pause().max(pause)).await;
        }
    }

    /// Opens a stream, after the cursor's last event if it has one.
    pub(super) async fn open_stream(&self, cursor: &Cursor) -> Opened {
        let mut request = self.request(Method::GET).header(ACCEPT, "text/event-stream");
        if let Some(id) = &cursor.last_id {
            request = request.header(LAST_EVENT_ID, id);
        }
        let response = match timeout(BEGINS, self.send(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                tracing::debug!(error = remote::describe(&error), "a stream could not be opened");
                return Opened::NotNow;
            }
            Err(_) => return Opened::NotNow,
        };
        let status = response.status();
        match status {
            StatusCode::NOT_FOUND if self.lose_session() => Opened::Never(SESSION_OVER.to_owned()),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Opened::NotNow,
            _ if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => Opened::NotNow,
            _ if !status.is_success() => Opened::Never(format!("it answered HTTP {status}")),
            _ if !matches!(media(&response), Media::Events) => Opened::Never("it answered with no stream".to_owned()),
            _ => Opened::Stream(response),
        }
    }
}
