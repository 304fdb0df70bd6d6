//! The requests of one link that wait for their answers, and what becomes of each message that the upstream sends,
//! whatever carries it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::era::Era;
use super::inbox::Inbox;
use super::link::task_id;
use super::modern::{self, Subscriptions};
use super::noise::Noise;
use super::outgoing::{Kind, Outgoing};
use super::requests::{NoReply, Reply};
use crate::domain::answer::own_error;
use crate::domain::json::RawJson;
use crate::protocol::jsonrpc::{
    ErrorObject, INVALID_PARAMS, Message, Notification, Request, Response, ResponseBody, write_error,
};
use crate::protocol::outline::{Named, Outline, outline};

/// What a message may hold besides the result.
const LINE_SLACK: usize = 64 << 10;

pub(super) struct Table {
    waiting: Mutex<Waiting>,
    next: AtomicU64,
    closed: CancellationToken,
    outbox: mpsc::Sender<Outgoing>,
    inbox: Arc<Inbox>,
    result_limit: usize,
    /// Whether each request stands alone.
    is_modern: AtomicBool,
    subscriptions: Subscriptions,
    /// The upstream's name for the session, where its transport has such.
    session: OnceLock<String>,
    /// Tasks in the session that go on without us, by the raw texts of their ids.
    left: Mutex<HashSet<String>>,
    /// Whether the session may have tasks that are not known here.
    is_resumed: AtomicBool,
    /// Whether the upstream does not know the session any more.
    session_over: AtomicBool,
    noise: Noise,
}

#[derive(Default)]
struct Waiting {
    by_number: HashMap<u64, Pending>,
    /// Why nothing more is taken, once that is so.
    closed: Option<String>,
}

/// A request that waits for its answer.
pub(super) struct Pending {
    pub(super) answer: oneshot::Sender<Result<Reply, NoReply>>,
    /// The call that it was sent for.
    pub(super) call: Option<u64>,
    /// Whether its result may be a task of the upstream, which then runs the call.
    pub(super) makes_task: bool,
}

impl Table {
    pub(super) fn new(result_limit: usize, outbox: mpsc::Sender<Outgoing>, inbox: Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            next: AtomicU64::new(1),
            closed: CancellationToken::new(),
            outbox,
            inbox,
            result_limit,
            is_modern: AtomicBool::new(false),
            subscriptions: Subscriptions::default(),
            session: OnceLock::new(),
            left: Mutex::default(),
            is_resumed: AtomicBool::new(false),
            session_over: AtomicBool::new(false),
            noise: Noise::default(),
        })
    }

    /// From now on this era is spoken.
    pub(super) fn turn(&self, era: Era) {
        self.is_modern.store(era == Era::Modern, Ordering::Release);
    }

    pub(super) fn is_modern(&self) -> bool {
        self.is_modern.load(Ordering::Acquire)
    }

    pub(super) const fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// Numbers begin anew above this one.
    pub(super) fn skip_numbers(&self, to: u64) {
        self.next.store(to, Ordering::Relaxed);
    }

    /// A number that was never given before.
    pub(super) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps the name that the upstream gave to the session; the first one stays.
    pub(super) fn set_session(&self, name: &str) {
        self.session.get_or_init(|| name.to_owned());
    }

    /// Goes on in a session that was opened elsewhere: others may follow tasks in it, too, so that it is never ended here.
    pub(super) fn resume_session(&self, name: &str) {
        self.set_session(name);
        self.is_resumed.store(true, Ordering::Release);
    }

    /// A task in the session goes on without us until it is told to have ended.
    pub(super) fn leave_task(&self, id: &str) {
        self.left().insert(id.to_owned());
    }

    pub(super) fn task_ended(&self, id: &str) {
        self.left().remove(id);
    }

    /// Whether the upstream still needs the session when the link ends.
    pub(super) fn is_left_open(&self) -> bool {
        self.is_resumed.load(Ordering::Acquire) || !self.left().is_empty()
    }

    fn left(&self) -> MutexGuard<'_, HashSet<String>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_session_over(&self) -> bool {
        self.session_over.load(Ordering::Acquire)
    }

    pub(super) fn session(&self) -> Option<String> {
        self.session.get().cloned()
    }

    /// The largest message that is held, in bytes.
    pub(super) fn message_limit(&self) -> usize {
        self.result_limit.saturating_add(LINE_SLACK)
    }

    pub(super) const fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    pub(super) fn outbox(&self) -> &mpsc::Sender<Outgoing> {
        &self.outbox
    }

    /// # Errors
    /// Why the link takes no more requests.
    pub(super) fn insert(&self, number: u64, pending: Pending) -> Result<(), String> {
        let mut waiting = self.lock();
        if let Some(why) = &waiting.closed {
            return Err(why.clone());
        }
        if let Some(call) = pending.call {
            self.inbox.asked(number, call);
        }
        waiting.by_number.insert(number, pending);
        Ok(())
    }

    /// Forgets a request that nobody waits for any more. One that was sent may be worked on until its answer comes.
    pub(super) fn remove(&self, number: u64, was_sent: bool) {
        self.lock().by_number.remove(&number);
        if !was_sent {
            self.inbox.answered(number);
        }
    }

    /// Whether the request has not been answered yet.
    pub(super) fn is_waiting(&self, number: u64) -> bool {
        self.lock().by_number.contains_key(&number)
    }

    /// The session is over: takes no more requests; those that wait go on.
    pub(super) fn expire(&self, why: &str) {
        self.session_over.store(true, Ordering::Release);
        self.lock().closed.get_or_insert_with(|| why.to_owned());
        self.closed.cancel();
    }

    /// Takes no more requests and ends those that wait; the first reason stays.
    pub(super) fn close(&self, why: &str) {
        {
            let mut waiting = self.lock();
            waiting.closed.get_or_insert_with(|| why.to_owned());
            waiting.by_number.clear();
        }
        self.closed.cancel();
    }

    /// Cancelled when no more requests are taken.
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Why no more requests are taken.
    pub(super) fn why_closed(&self) -> String {
        let why = self.lock().closed.clone();
        why.unwrap_or_else(|| "it does not read its input any more".to_owned())
    }

    /// Completes when the upstream has said, over any of its links, that one of its lists changed.
    pub(super) async fn lists_changed(&self) {
        self.inbox.lists_changed().notified().await;
    }

    /// One of its lists may have changed: whoever follows them reads them again.
    pub(super) fn lists_may_have_changed(&self) {
        self.inbox.lists_changed().notify_one();
    }

    /// Ends a request without an answer.
    pub(super) fn fail(&self, number: u64, why: NoReply) {
        self.settle(number, Err(why));
    }

    pub(super) fn answer(&self, number: u64, reply: Reply) {
        self.settle(number, Ok(reply));
    }

    fn settle(&self, number: u64, reply: Result<Reply, NoReply>) {
        let waiting = self.lock().by_number.remove(&number);
        self.inbox.answered(number);
        if let Some(Pending { call: Some(call), makes_task: true, .. }) = waiting
            && let Ok(Reply::Result(result)) = &reply
            && let Some(id) = task_id(result)
        {
            // At once: the next message may name the task.
            self.inbox.runs_as(call, &id);
        }
        let unheard = match waiting {
            // Its caller may have gone this very moment.
            Some(waiting) => waiting.answer.send(reply).err(),
            None => {
                tracing::debug!(rpc.id = number, "an answer came that nobody waits for");
                Some(reply)
            }
        };
        if self.is_modern()
            && let Some(Ok(Reply::Result(result))) = unheard
        {
            modern::abandon(self, &result);
        }
    }

    /// Takes the text of one message. `origin` is the request on whose own stream it came, if the carrier has such.
    pub(super) fn take(&self, text: &[u8], origin: Option<u64>) {
        if text.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match Message::parse(text) {
            Ok(message) => self.take_message(message, origin),
            Err(malformed) => {
                if let Some(lines) = self.noise.heard() {
                    tracing::warn!(error = %malformed, line.bytes = text.len(), lines, "bad lines were dropped");
                }
                let outline = outline(text);
                if !outline.is_rpc && origin.is_none() {
                    // A program's output may be its log as well: what has an `id` and no `jsonrpc` answers nothing.
                } else if outline.is_request {
                    self.refuse_request(
                        &outline,
                        origin,
                        &ErrorObject::new(malformed.code, malformed.message.as_str()).to_raw(),
                    );
                } else if let Some(number) =
                    outline.id.number().or_else(|| malformed.id.as_ref()?.as_raw().parse().ok())
                {
                    // A response that cannot be read ends the call it answers, and no other.
                    self.answer(number, Reply::Broken(format!("its answer cannot be read: {malformed}")));
                }
            }
        }
    }

    pub(super) fn take_message(&self, message: Message, origin: Option<u64>) {
        match message {
            Message::Response(response) => self.take_response(response),
            Message::Notification(notification) => self.take_notification(&notification, origin),
            Message::Request(request) => self.take_request(&request, origin),
        }
    }

    /// Takes what is known of a message that was too long to be held.
    pub(super) fn take_oversize(&self, long: &Outline, origin: Option<u64>) {
        let is_message = long.is_rpc || origin.is_some();
        match long.id.number().or(origin) {
            Some(number) if is_message && !long.is_request => {
                let limit = self.result_limit;
                let reply = match long.result.filter(|bytes| *bytes > limit) {
                    Some(bytes) => Reply::TooLarge { part: "result", bytes, limit },
                    // An error, or much around a result that would fit.
                    None => Reply::TooLarge { part: "message", bytes: long.bytes, limit: self.message_limit() },
                };
                self.answer(number, reply);
            }
            _ => {
                if let Some(lines) = self.noise.heard() {
                    tracing::warn!(line.bytes = long.bytes, lines, "lines that are too long were dropped");
                }
                if is_message && long.is_request {
                    let most = self.message_limit();
                    let message = format!("the request has {} bytes, more than the limit of {most} bytes", long.bytes);
                    self.refuse_request(long, origin, &own_error(INVALID_PARAMS, "question_too_large", &message));
                }
            }
        }
    }

    /// Answers a request that cannot be taken. Work that waits for an answer which cannot be addressed would wait for long:
    /// its call ends, or, where it is not known which one that is, the link; but no caller's work ends for another's.
    fn refuse_request(&self, request: &Outline, origin: Option<u64>, error: &RawJson) {
        match &request.id {
            Named::By(id) => self.respond(write_error(Some(id), error)),
            Named::Oddly if request.is_rpc => {
                let how = "it sent a request whose id is too long, or neither a string nor an integer";
                match origin.filter(|number| self.is_waiting(*number)) {
                    Some(number) => self.answer(number, Reply::Broken(how.to_owned())),
                    None if self.inbox.serves_several() => {
                        if let Some(lines) = self.noise.heard() {
                            tracing::warn!(lines, "a request of the upstream got no answer: {how}");
                        }
                    }
                    None => self.close(how),
                }
            }
            Named::Oddly | Named::No => {}
        }
    }

    /// Answers at once, unless the upstream has not read for long.
    fn respond(&self, text: String) {
        if self.is_modern() {
            return;
        }
        if self.outbox.try_send(Outgoing { text, kind: Kind::Response }).is_err() {
            tracing::debug!("a request got no answer: the upstream does not read");
        }
    }

    fn take_response(&self, response: Response) {
        let Some(number) = response.id.as_ref().and_then(|id| id.as_raw().parse().ok()) else {
            if let Some(lines) = self.noise.heard() {
                tracing::warn!(lines, "the upstream sent responses with ids that were never used");
            }
            return;
        };
        let (ResponseBody::Result(raw) | ResponseBody::Error(raw)) = &response.body;
        let reply = if raw.len() > self.result_limit {
            Reply::TooLarge { part: "result", bytes: raw.len(), limit: self.result_limit }
        } else {
            match response.body {
                ResponseBody::Result(result) if !result.as_str().starts_with('{') => {
                    Reply::Broken("its result is not an object".to_owned())
                }
                ResponseBody::Result(result) => Reply::Result(result),
                ResponseBody::Error(error) => Reply::Error(error),
            }
        };
        self.answer(number, reply);
    }

    fn take_notification(&self, notification: &Notification, origin: Option<u64>) {
        if self.is_modern() && modern::take_notification(self, notification, origin) {
            return;
        }
        match notification.method.as_str() {
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => self.lists_may_have_changed(),
            _ => self.inbox.take_notification(notification, self.call_of(origin)),
        }
    }

    fn take_request(&self, request: &Request, origin: Option<u64>) {
        if self.is_modern() {
            // In that era it may ask nothing so, and gets no response.
            if let Some(lines) = self.noise.heard() {
                tracing::warn!(rpc.method = request.method, lines, "requests of an upstream were dropped");
            }
            return;
        }
        let later = self.outbox.clone();
        // Fails only when the upstream is gone.
        let back = |text| async move { drop(later.send(Outgoing { text, kind: Kind::Answer }).await) };
        if let Some(text) = self.inbox.take_request(request, self.call_of(origin), back) {
            self.respond(text);
        }
    }

    /// The call for which a request was sent.
    fn call_of(&self, request: Option<u64>) -> Option<u64> {
        let number = request?;
        // A call's first request has its number.
        let known = self.lock().by_number.get(&number).and_then(|pending| pending.call);
        Some(known.unwrap_or(number))
    }

    /// A poisoned lock is taken all the same: the map is never left half changed.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
