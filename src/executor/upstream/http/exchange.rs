//! One request and its answer: JSON, or a stream that may break off and be resumed.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Response, StatusCode};
use tokio::time::{Instant, sleep, timeout};

use super::super::outgoing::Departure;
use super::super::requests::{NoReply, Reply};
use super::body::{self, Body};
use super::listen::{Cursor, Opened, SHORT};
use super::refusal::{self, Media, media};
use super::{Http, SESSION_OVER, SPEAKS_OTHERWISE, remote};
use crate::domain::ids::random_bytes;
use crate::domain::lease::backoff;
use crate::protocol::sse::{Event, Parser};

/// How long after the answer the rest of its stream is awaited, so that its connection can be used again.
const LINGER: Duration = Duration::from_millis(500);
/// How often in a row a broken stream cannot be resumed before its request is given up.
const MOST_FAILURES: u32 = 5;
/// The least pause after a stream that ended at once and brought nothing.
const QUIET_PAUSE: Duration = Duration::from_millis(500);

/// How a stream ended.
#[derive(PartialEq, Eq)]
pub(super) enum Followed {
    /// The answer that was waited for came.
    Answered,
    /// It ended, or broke off.
    Ended { heard: bool },
}

impl Http {
    /// Sends a request unless it was withdrawn, and sees to it that it is answered, or told why it is not.
    pub(super) async fn run_request(self: Arc<Self>, departure: Departure, text: String) {
        let Departure { number, gate, given_up, heading } = departure;
        if !gate.open() {
            return;
        }
        let ended = tokio::select! {
            biased;
            () = given_up.cancelled() => return,
            () = self.control.ending.cancelled() => return,
            ended = self.exchange(number, text, &heading) => ended,
        };
        if let Err(why) = ended
            && self.table.is_waiting(number)
        {
            self.table.fail(number, why);
        }
    }

    async fn exchange(&self, number: u64, text: String, heading: &[(String, String)]) -> Result<(), NoReply> {
        let request = heading.iter().fold(self.post(text), |request, (name, value)| request.header(name, value));
        let mut response = self.send(request).await.map_err(|error| {
            let how = remote::describe(&error);
            // Without a connection nothing was written.
            if error.is_connect() || error.is_builder() { NoReply::NotSent(how) } else { NoReply::Lost(how) }
        })?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && self.lose_session() {
            return Err(NoReply::NotSent(SESSION_OVER.to_owned()));
        }
        if !status.is_success() {
            return self.take_refusal(number, response).await;
        }
        match media(&response) {
            Media::Json => {
                let limit = self.table.message_limit();
                let body = body::read(&mut response, limit).await;
                match body
                    .map_err(|error| NoReply::Lost(format!("its answer broke off: {}", remote::describe(&error))))?
                {
                    Body::Whole(text) => self.table.take(&text, Some(number)),
                    Body::TooLong(long) => self.table.take_oversize(&long, Some(number)),
                }
                self.break_unless_answered(number, "its answer is no message that answers the request");
                Ok(())
            }
            Media::Events => self.take_stream(number, response).await,
            Media::Other(kind) => {
                let what = match (status, kind) {
                    (StatusCode::ACCEPTED, _) => "it accepted the request without an answer (HTTP 202)".to_owned(),
                    (_, None) => format!("it answered without a content type (HTTP {})", status.as_u16()),
                    (_, Some(kind)) => {
                        format!("it answered with {kind:?}, which is neither JSON nor a stream of events")
                    }
                };
                self.break_unless_answered(number, &what);
                Ok(())
            }
        }
    }

    fn break_unless_answered(&self, number: u64, how: &str) {
        if self.table.is_waiting(number) {
            self.table.answer(number, Reply::Broken(how.to_owned()));
        }
    }

    /// A status that is no success. Some servers give a JSON-RPC error with it, which is then the answer.
    async fn take_refusal(&self, number: u64, response: Response) -> Result<(), NoReply> {
        let refused = refusal::read(response, number, self.table.is_modern()).await;
        if let Some(answer) = refused.answer {
            self.table.take_message(answer, Some(number));
            return Ok(());
        }
        if refused.is_about_session && self.lose_session() {
            return Err(NoReply::NotSent(format!("{SESSION_OVER}: {}", refused.detail)));
        }
        if refused.speaks_otherwise && self.table.is_modern() {
            // The next link asks again.
            self.table.expire(SPEAKS_OTHERWISE);
        }
        Err(if refused.may_have_run { NoReply::Lost(refused.detail) } else { NoReply::NotSent(refused.detail) })
    }

    /// Reads the answer's own stream, and goes on with it after a break as long as the upstream lets us.
    async fn take_stream(&self, number: u64, response: Response) -> Result<(), NoReply> {
        let mut cursor = Cursor::default();
        let mut followed = self.follow(response, &mut cursor, Some(number)).await;
        let mut failures = 0;
        let mut is_quiet = false;
        while followed != Followed::Answered && self.table.is_waiting(number) {
            if cursor.last_id.is_none() || self.table.is_modern() {
                return Err(NoReply::Lost("its answer broke off".to_owned()));
            }
            if failures >= MOST_FAILURES {
                return Err(NoReply::Lost("its answer broke off and could not be resumed".to_owned()));
            }
            let pause =
                if failures == 0 { Duration::ZERO } else { backoff(failures, u32::from_le_bytes(random_bytes())) };
            let least = if is_quiet { QUIET_PAUSE } else { Duration::ZERO };
            sleep(cursor.pause().max(pause).max(least)).await;
            match self.open_stream(&cursor).await {
                Opened::Stream(response) => {
                    let (began, before) = (Instant::now(), cursor.last_id.clone());
                    followed = self.follow(response, &mut cursor, Some(number)).await;
                    is_quiet = followed == Followed::Ended { heard: false } && began.elapsed() < SHORT;
                    // One that only gives a new place is a server that wants to be polled.
                    failures = if is_quiet && cursor.last_id == before { failures + 1 } else { 0 };
                }
                Opened::NotNow => failures += 1,
                Opened::Never(why) => return Err(NoReply::Lost(format!("its answer broke off; resumed, {why}"))),
            }
        }
        Ok(())
    }

    /// Takes what a stream brings until it ends, or shortly after the answer to `origin` came.
    pub(super) async fn follow(&self, mut response: Response, cursor: &mut Cursor, origin: Option<u64>) -> Followed {
        let limit = self.table.message_limit();
        let mut parser = Parser::new(limit, cursor.last_id.take());
        let mut heard = false;
        let mut events = Vec::new();
        let mut take_piece = |piece: &[u8], parser: &mut Parser| {
            parser.feed(piece, &mut events);
            let any = !events.is_empty();
            for event in events.drain(..) {
                match event {
                    Event::Message(text) => self.table.take(&text, origin),
                    Event::TooLong(long) => self.table.take_oversize(&long, origin),
                }
            }
            any
        };
        loop {
            match response.chunk().await {
                Ok(Some(piece)) => {
                    heard |= take_piece(&piece, &mut parser);
                    if origin.is_some_and(|number| !self.table.is_waiting(number)) {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(error = remote::describe(&error), "a stream of an upstream broke off");
                    break;
                }
            }
        }
        cursor.take(&parser);
        if origin.is_none_or(|number| self.table.is_waiting(number)) {
            return Followed::Ended { heard };
        }
        let rest = async {
            while let Ok(Some(piece)) = response.chunk().await {
                take_piece(&piece, &mut parser);
            }
        };
        let _it_goes_on = timeout(LINGER, rest).await;
        Followed::Answered
    }
}
