//! Server-sent events: one message in one `data` line (EXEC-21), kept alive by comments (NOTE-08).

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::convert::Infallible;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::answer::{Encode, LetGo, Watch, unless};
use super::outgoing::Outgoing;
use crate::domain::pieces::Pieces;
use crate::engine::{Item, Stream};

const KEEP_ALIVE: &str = ": waiting\n\n";
/// How long a client should wait before it comes back, in milliseconds. Clients try twice, so that a restart may take twice
/// as long.
const RETRY_MS: u64 = 3000;

/// A message as an event. Messages hold no line breaks: the scanner made spaces of those between tokens.
pub(super) fn event(id: Option<&str>, message: Outgoing) -> Outgoing {
    message.map(|message| {
        let mut event = Pieces::from(id.map_or_else(String::new, |id| format!("id: {id}\n")));
        event.push_text("event: message\ndata: ");
        event.push(message);
        event.push_text("\n\n");
        event
    })
}

/// The event without data by which a client can come back before there was any other (HTTP-09).
fn primer(id: &str) -> String {
    format!("id: {id}\nretry: {RETRY_MS}\ndata: \n\n")
}

fn retry() -> String {
    format!("retry: {RETRY_MS}\n\n")
}

pub(super) fn response(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream"),
        (header::CACHE_CONTROL.as_str(), "no-cache"),
        ("x-accel-buffering", "no"),
    ];
    (headers, body).into_response()
}

/// Everything on the stream up to its end, or until `watch` lets the client go. `first` is what was read of it already; a
/// stream that is new is primed. Dropping it (a client that leaves) drops the stream and nothing else.
pub(super) async fn stream(
    mut stream: Stream,
    encoder: Box<dyn Encode>,
    watch: Watch,
    is_new: bool,
    first: Option<Item>,
) -> Body {
    stream.begin();
    let every = encoder.keep_alive();
    let mut keep_alive = tokio::time::interval_at(Instant::now() + every, every);
    // A client that did not read for a while is not sent what it missed.
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A proxy has to see the stream begin, whatever it begins with. The primer's number is below that of any message.
    let after = match &first {
        Some(Item::Message { count, .. } | Item::Result { count, .. } | Item::Called { count, .. }) => count - 1,
        Some(Item::Task(_) | Item::End) | None => stream.stamp(),
    };
    let id = if is_new { encoder.event_id(stream.id(), after) } else { None };
    let begin: Outgoing = match encoder.opening().filter(|_| is_new) {
        Some(message) => event(None, message.into()),
        None => id.map_or_else(|| KEEP_ALIVE.to_owned(), |id| primer(&id)).into(),
    };
    // Boxed: the futures around it would hold it several times over.
    let mut going = Some(Box::new(Going { stream, encoder, watch, keep_alive }));
    let mut pieces = Vec::new().into_iter();
    if let Some(item) = first
        && let Some(at_first) = going.take()
    {
        let (event, rest) = at_first.write(item).await;
        pieces = event.map_or_else(Vec::new, Outgoing::into_pieces).into_iter();
        going = rest;
    }
    let rest = stream::unfold((pieces, going), |(mut pieces, mut going)| async move {
        loop {
            if let Some(piece) = pieces.next() {
                return Some((Ok::<_, Infallible>(piece), (pieces, going)));
            }
            let (event, rest) = going?.next().await;
            pieces = event?.into_pieces().into_iter();
            going = rest;
        }
    });
    let begin = stream::iter(begin.into_pieces().into_iter().map(Ok));
    Body::from_stream(stream::StreamExt::chain(begin, rest))
}

struct Going {
    stream: Stream,
    encoder: Box<dyn Encode>,
    watch: Watch,
    keep_alive: Interval,
}

impl Going {
    async fn next(mut self: Box<Self>) -> (Option<Outgoing>, Option<Box<Self>>) {
        let Self { stream, watch, keep_alive, .. } = &mut *self;
        let next = async {
            tokio::select! {
                biased;
                item = stream.next() => Some(item),
                _ = keep_alive.tick() => None,
            }
        };
        match unless(watch, next).await {
            Ok(Some(item)) => self.write(item).await,
            Ok(None) => (Some(KEEP_ALIVE.to_owned().into()), Some(self)),
            Err(LetGo::Draining) => {
                let last = self.encoder.drained();
                (Some(last.map_or_else(|| retry().into(), |last| event(None, last.into()))), None)
            }
            Err(LetGo::Unauthorized) => (None, None),
        }
    }

    /// The event, and whether the stream goes on.
    async fn write(self: Box<Self>, item: Item) -> (Option<Outgoing>, Option<Box<Self>>) {
        match item {
            Item::Message { count, delivery } => {
                let id = self.encoder.event_id(self.stream.id(), count);
                let message = self.encoder.message(&delivery);
                // Nothing to say is no end of the stream.
                let event = message.map(|message| event(id.as_deref(), message.into()));
                (Some(event.unwrap_or_else(|| String::new().into())), Some(self))
            }
            Item::Task(looked) => {
                let message = self.encoder.task(looked).await;
                let event = message.map(|message| event(None, message.into()));
                (Some(event.unwrap_or_else(|| String::new().into())), Some(self))
            }
            Item::Result { count, .. } | Item::Called { count, .. } => {
                let id = self.encoder.event_id(self.stream.id(), count);
                (self.encoder.answer(item).await.map(|answer| event(id.as_deref(), answer.message)), None)
            }
            Item::End => (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: HTTP-09
    #[test]
    fn events_have_one_line_of_data() {
        let text = |id| {
            let pieces = event(id, r#"{"id":1}"#.to_owned().into()).into_pieces();
            String::from_utf8(pieces.concat()).unwrap()
        };
        assert_eq!(text(None), "event: message\ndata: {\"id\":1}\n\n");
        assert_eq!(text(Some("x")), "id: x\nevent: message\ndata: {\"id\":1}\n\n");
        assert_eq!(primer("x"), "id: x\nretry: 3000\ndata: \n\n");
    }
}
