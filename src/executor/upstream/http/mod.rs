//! Carries a link's messages by Streamable HTTP.
//!
//! Each message is POSTed; answers come as JSON or on a stream of their own. In the legacy era the upstream's other messages come
//! on a stream that a GET opens, and a broken stream may be resumed; in the modern one there are no sessions, requests have
//! headers of their own, and closing a stream cancels its request. Knows nothing of tools or tasks, and nothing of callers: no
//! header of theirs comes this far (AUTH-12).

mod body;
mod exchange;
mod listen;
mod refusal;
mod remote;
mod session;

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

pub(super) use self::remote::Remote;

use self::session::Session;
use super::control::{Control, Exit, ExitSender};
use super::outgoing::{Kind, Outgoing};
use super::table::Table;
use crate::lifecycle::spawn;

/// How long the upstream has to take a message that gets no answer.
const ACCEPTED: Duration = Duration::from_secs(10);
/// How often such a message is sent where no connection could be made.
const NOTE_TRIES: u32 = 3;
const NOTE_PAUSE: Duration = Duration::from_millis(200);
/// How many such messages may be on their way; more are dropped.
const NOTES: usize = 64;
/// How long the last of them have at the end, and after them the end of the session.
const LAST_NOTES: Duration = Duration::from_secs(1);
const GOODBYE: Duration = Duration::from_secs(2);
/// What closes a link whose session the upstream does not know any more.
const SESSION_OVER: &str = "it does not know its session any more";
/// What closes one whose server takes no requests of its era any more.
const SPEAKS_OTHERWISE: &str = "it does not take requests of this revision any more";

/// One link's side of the conversation.
struct Http {
    remote: Arc<Remote>,
    session: Session,
    table: Arc<Table>,
    control: Control,
    exited: ExitSender,
    notes: TaskTracker,
    room: Arc<Semaphore>,
}

/// Begins to send what is queued.
pub(super) fn carry(remote: Arc<Remote>, table: Arc<Table>, queued: mpsc::Receiver<Outgoing>) -> Control {
    let (control, exited) = Control::new();
    let http = Arc::new(Http {
        remote,
        session: if table.is_modern() { Session::none() } else { Session::default() },
        table,
        control: control.clone(),
        exited,
        notes: TaskTracker::new(),
        room: Arc::new(Semaphore::new(NOTES)),
    });
    spawn("upstream requests", http.run(queued));
    control
}

impl Http {
    async fn run(self: Arc<Self>, mut queue: mpsc::Receiver<Outgoing>) {
        loop {
            tokio::select! {
                biased;
                () = self.control.ending.cancelled() => break,
                Some(message) = queue.recv() => self.dispatch(message).await,
            }
        }
        queue.close();
        while let Ok(message) = queue.try_recv() {
            if matches!(message.kind, Kind::Notification) {
                self.note(message.text);
            }
        }
        self.notes.close();
        let _some_are_left = timeout(LAST_NOTES, self.notes.wait()).await;
        if self.session.is_open() && !self.table.is_left_open() {
            let goodbye = self.request(Method::DELETE).send();
            match timeout(GOODBYE, goodbye).await {
                Ok(Ok(response)) => tracing::debug!(http.status = response.status().as_u16(), "a session was ended"),
                Ok(Err(error)) => tracing::debug!(error = remote::describe(&error), "a session could not be ended"),
                Err(_) => tracing::debug!("a session could not be ended in time"),
            }
        }
        self.exit("its session was ended by this service", true);
    }

    /// Says how the session ended, the first time.
    fn exit(&self, how: &str, asked: bool) {
        self.exited.send_if_modified(|exit| {
            let is_first = exit.is_none();
            if is_first {
                *exit = Some(Exit { how: how.to_owned(), asked });
            }
            is_first
        });
    }

    async fn dispatch(self: &Arc<Self>, Outgoing { text, kind }: Outgoing) {
        match kind {
            Kind::Request(departure) => {
                spawn("upstream request", Arc::clone(self).run_request(departure, text));
            }
            Kind::Opened { version } => {
                self.session.negotiated(&version);
                if let Some(id) = self.session.id() {
                    self.table.set_session(&id);
                }
                tokio::select! {
                    () = self.control.ending.cancelled() => return,
                    () = self.deliver(text) => {}
                }
                spawn("upstream listening", Arc::clone(self).listen());
            }
            Kind::Resumed { session, version } => {
                self.session.resume(&session);
                self.session.negotiated(&version);
                spawn("upstream listening", Arc::clone(self).listen());
            }
            // Its stream was closed, which says the same.
            Kind::Notification if self.table.is_modern() => {}
            Kind::Notification | Kind::Response => self.note(text),
            Kind::Answer => {
                // Some work waits for it: it may have to wait itself, but is not dropped. Their number is bounded by that
                // of the questions.
                let http = Arc::clone(self);
                spawn("upstream answer", self.notes.track_future(async move { http.deliver(text).await }));
            }
        }
    }

    /// Sends a message that gets no answer, in the background.
    fn note(self: &Arc<Self>, text: String) {
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::debug!("a message was dropped: the upstream takes none");
            return;
        };
        let http = Arc::clone(self);
        let work = async move {
            http.deliver(text).await;
            drop(place);
        };
        spawn("upstream message", self.notes.track_future(work));
    }

    async fn deliver(&self, text: String) {
        for attempt in 1..=NOTE_TRIES {
            match timeout(ACCEPTED, self.send(self.post(text.clone()))).await {
                Ok(Ok(response)) if response.status().is_success() => return,
                Ok(Ok(response)) => {
                    tracing::debug!(http.status = response.status().as_u16(), "a message was refused");
                    if response.status() == StatusCode::NOT_FOUND {
                        self.lose_session();
                    }
                    return;
                }
                Ok(Err(error)) if error.is_connect() && attempt < NOTE_TRIES => sleep(NOTE_PAUSE * attempt).await,
                Ok(Err(error)) => {
                    tracing::debug!(error = remote::describe(&error), "a message could not be sent");
                    return;
                }
                Err(_) => {
                    tracing::debug!("a message was not accepted in time");
                    return;
                }
            }
        }
    }

    /// The upstream answered that it does not know the session, which ends the link for new requests; whether there was one.
    fn lose_session(&self) -> bool {
        let had_one = self.session.has_id();
        if had_one {
            self.session.set_over();
            self.table.expire(SESSION_OVER);
            // It takes no room any more, though its last calls may still get their answers.
            self.exit(SESSION_OVER, false);
        }
        had_one
    }

    fn request(&self, method: Method) -> RequestBuilder {
        let url = &self.remote.url;
        self.remote
            .client
            .request(method, url.clone())
            .headers(self.remote.headers.clone())
            .headers(self.session.headers(url))
    }

    fn post(&self, text: String) -> RequestBuilder {
        self.request(Method::POST)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(text)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, reqwest::Error> {
        let response = request.send().await?;
        self.session.take(&response);
        Ok(response)
    }
}
