//! One connection to the server: requests one after the other, and their answers, be they JSON or a stream of events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};

use super::answer::{is_answer, refusal, result_of};
use super::failure::Failure;
use super::target::{Sender, Target, deepest};
use super::template::{Outgoing, Template};
use crate::domain::clock::Clock;
use crate::protocol::sse::{Event, Parser};

/// The largest answer that is read, in bytes.
const MOST_ANSWER: usize = 64 << 20;
/// What is read of a refusal.
const MOST_REFUSAL: usize = 64 << 10;
/// How long after an answer the end of its stream is awaited, so that the connection can be used again. To make a new one takes
/// less than to wait for a server that leaves its streams open.
const LINGER: Duration = Duration::from_millis(20);

/// A connection that is made anew when it is gone.
pub(super) struct Link {
    target: Arc<Target>,
    clock: Arc<dyn Clock>,
    sender: Option<Sender>,
    /// How many there were so far.
    connections: u64,
    last_id: u64,
}

/// The answer to a request.
pub(super) struct Answered {
    id: u64,
    text: Bytes,
    /// When it had come, by the clock's boot time.
    pub(super) at: Duration,
    pub(super) headers: HeaderMap,
}

impl Answered {
    /// The result, as raw text.
    pub(super) fn result(&self) -> Result<&str, Failure> {
        result_of(&self.text, self.id)
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }
}

impl Link {
    pub(super) fn new(target: Arc<Target>, clock: Arc<dyn Clock>) -> Self {
        Self { target, clock, sender: None, connections: 0, last_id: 0 }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// How often it was made anew.
    pub(super) fn reconnects(&self) -> u64 {
        self.connections.saturating_sub(1)
    }

    /// Closes the connection: an answer may still be on its way over it.
    pub(super) fn cut(&mut self) {
        self.sender = None;
    }

    /// Sends a request and reads its answer.
    pub(super) async fn request(&mut self, template: &Template, task: Option<&str>) -> Result<Answered, Failure> {
        self.last_id += 1;
        let Outgoing { id, body, headers } = template.fill(self.last_id, task);
        let response = self.exchange(Method::POST, headers, body).await?;
        let (head, body) = response.into_parts();
        let is_stream =
            head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let (text, at) = if is_stream {
            self.follow(body, id).await?
        } else {
            let text = self.whole(body, MOST_ANSWER).await?;
            (text, self.clock.boot())
        };
        Ok(Answered { id, text, at, headers: head.headers })
    }

    /// Sends what gets no answer but a status.
    pub(super) async fn send(&mut self, method: Method, headers: HeaderMap, body: Bytes) -> Result<(), Failure> {
        let response = self.exchange(method, headers, body).await?;
        self.whole(response.into_body(), MOST_REFUSAL).await.map(drop)
    }

    /// A response whose status is a success.
    async fn exchange(
        &mut self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.target.path().clone();
        *request.headers_mut() = headers;
        let mut sender = self.ready().await?;
        // Kept only when its answer has come: whoever gives up waiting leaves no connection with an answer on its way.
        let response = sender.send_request(request).await.map_err(|error| Failure::connection(deepest(&error)))?;
        self.sender = Some(sender);
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let body = self.whole(body, MOST_REFUSAL).await.unwrap_or_default();
        let status: StatusCode = head.status;
        Err(refusal(status.as_u16(), &body, retry_after.map(Duration::from_secs)))
    }

    /// The connection, taken out, made anew if the server has closed it.
    async fn ready(&mut self) -> Result<Sender, Failure> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let sender = self.target.connect().await?;
        self.connections += 1;
        Ok(sender)
    }

    async fn whole(&mut self, body: Incoming, limit: usize) -> Result<Bytes, Failure> {
        match Limited::new(body, limit).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) => {
                self.cut();
                Err(Failure::connection(format!("the answer broke off: {}", deepest(&*error))))
            }
        }
    }

    /// Reads a stream up to the answer, and then to its end if that comes soon.
    async fn follow(&mut self, mut body: Incoming, id: u64) -> Result<(Bytes, Duration), Failure> {
        let mut parser = Parser::new(MOST_ANSWER, None);
        let mut events = Vec::new();
        let mut answer = None;
        while answer.is_none() {
            let Some(frame) = body.frame().await else {
                let pause = parser.retry();
                return Err(Failure::stream_ended().pausing(pause));
            };
            let frame = frame.map_err(|error| {
                self.sender = None;
                Failure::connection(format!("the stream broke off: {}", deepest(&error)))
            })?;
            parser.feed(frame.data_ref().map(|data| &data[..]).unwrap_or_default(), &mut events);
            for event in events.drain(..) {
                match event {
                    Event::Message(text) if is_answer(&text, id) => {
                        answer = Some((Bytes::from(text), self.clock.boot()));
                    }
                    Event::Message(_) => {}
                    Event::TooLong(outline) if outline.id.number() == Some(id) => {
                        self.cut();
                        return Err(Failure::bad_answer(&format!("it has {} bytes", outline.bytes)));
                    }
                    Event::TooLong(_) => {}
                }
            }
        }
        let rest = async { while let Some(Ok(_)) = body.frame().await {} };
        if tokio::time::timeout(LINGER, rest).await.is_err() {
            self.cut();
        }
        answer.ok_or_else(Failure::stream_ended)
    }
}
