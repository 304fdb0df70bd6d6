//! Sending a link's requests and waiting for their answers, whatever carries them.
//!
//! Request ids and progress tokens are ours, one number for both (EXEC-12). A request of the modern era says with each what
//! one of the legacy era has agreed on by `initialize`.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::modern::{self, Said};
use super::outgoing::{Departure, Kind, Outgoing};
use super::table::{Pending, Table};
use crate::domain::json::RawJson;
use crate::protocol::jsonrpc::{Id, error_code, write_notification, write_request};
use crate::protocol::modern::errors::UNSUPPORTED_VERSION;

/// A request to send, made with a number of [`Table::next_number`].
pub(super) struct Outbound<'a> {
    pub(super) number: u64,
    pub(super) method: &'a str,
    pub(super) params: Option<&'a RawJson>,
    /// The call that it is made for.
    pub(super) call: Option<u64>,
    /// Whether its result may be a task of the upstream, which then runs the call.
    pub(super) makes_task: bool,
    /// What it says of its client, where each request does.
    pub(super) said: Said,
}

impl<'a> Outbound<'a> {
    /// A request that belongs to no call.
    pub(super) fn new(number: u64, method: &'a str, params: Option<&'a RawJson>) -> Self {
        Self { number, method, params, call: None, makes_task: false, said: Said::default() }
    }
}

/// An answer.
#[derive(Debug)]
pub(super) enum Reply {
    /// An object.
    Result(RawJson),
    Error(RawJson),
    /// As [`crate::domain::outcome::Failure::ResultTooLarge`].
    TooLarge {
        part: &'static str,
        bytes: usize,
        limit: usize,
    },
    /// The answer breaks the protocol; the text says how.
    Broken(String),
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoReply {
    /// The request was not sent.
    NotSent(String),
    /// The request was sent and the link ended.
    Lost(String),
    Stopped,
}

impl Table {
    /// Sends a request and waits for its answer. When `stop` is cancelled, or the future dropped, the upstream is told
    /// and a late answer ignored.
    pub(super) async fn request(
        self: &Arc<Self>,
        request: Outbound<'_>,
        stop: &CancellationToken,
    ) -> Result<Reply, NoReply> {
        let Outbound { number, method, params, call, makes_task, said } = request;
        let (answer, answered) = oneshot::channel();
        self.insert(number, Pending { answer, call, makes_task }).map_err(NoReply::NotSent)?;
        let (text, departure) = self.write(number, method, params, &said);
        let mut in_flight = InFlight { table: self, departure: departure.clone(), answered: false, method };
        let sent = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(NoReply::Stopped),
            sent = self.outbox().send(Outgoing { text, kind: Kind::Request(departure.clone()) }) => sent,
        };
        let reply = match sent {
            Err(_) => None,
            Ok(()) => tokio::select! {
                biased;
                reply = answered => reply.ok(),
                () = stop.cancelled() => return Err(NoReply::Stopped),
            },
        };
        in_flight.answered = true;
        let reply = reply.unwrap_or_else(|| {
            let why = self.why_closed();
            Err(if departure.gate.was_opened() { NoReply::Lost(why) } else { NoReply::NotSent(why) })
        });
        if !self.is_modern() {
            return reply;
        }
        match reply {
            // It was refused before anything of it ran; the next link asks what it speaks.
            Ok(Reply::Error(error))
                if method != modern::DISCOVER && error_code(&error) == Some(UNSUPPORTED_VERSION) =>
            {
                let why = format!("it does not speak {} any more", modern::REVISION);
                self.expire(&why);
                Err(NoReply::NotSent(why))
            }
            reply => reply.map(|reply| modern::expected(method, reply)),
        }
    }

    /// Sends a request whose answer nobody waits for, unless the upstream has not read for long.
    pub(super) fn request_only(&self, method: &str, params: &RawJson) {
        let (text, departure) = self.write(self.next_number(), method, Some(params), &Said::default());
        self.tell(Outgoing { text, kind: Kind::Request(departure) });
    }

    fn write(&self, number: u64, method: &str, params: Option<&RawJson>, said: &Said) -> (String, Departure) {
        let id = Id::from_number(number);
        if !self.is_modern() {
            return (write_request(&id, method, params), Departure::new(number, Vec::new()));
        }
        let text = write_request(&id, method, Some(&said.with(params)));
        (text, Departure::new(number, said.heading(method, params)))
    }

    /// Sends a message without an answer, unless the upstream has not read for long.
    pub(super) fn tell(&self, message: Outgoing) {
        if self.outbox().try_send(message).is_err() {
            tracing::debug!("a notification was dropped: the upstream does not read");
        }
    }
}

/// A request under way: dropped before its answer, it is withdrawn or cancelled.
struct InFlight<'a> {
    table: &'a Arc<Table>,
    departure: Departure,
    answered: bool,
    method: &'a str,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let Departure { number, gate, given_up, .. } = &self.departure;
        let withdrawn = gate.withdraw();
        self.table.remove(*number, !withdrawn);
        // `initialize` must not be cancelled, and a server of that era may not know the probe; a task is only ever cancelled
        // by `tasks/cancel` (EXEC-16).
        let is_opening = matches!(self.method, "initialize" | modern::DISCOVER);
        if !withdrawn && !is_opening && !self.method.starts_with("tasks/") {
            let params = format!(r#"{{"requestId":{number},"reason":"the call was cancelled"}}"#);
            let text = write_notification("notifications/cancelled", Some(&RawJson::trusted(params)));
            self.table.tell(Outgoing { text, kind: Kind::Notification });
        }
        given_up.cancel();
    }
}
