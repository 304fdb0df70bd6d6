//! One connection to an upstream: a raw JSON-RPC client over a child's standard streams.
//!
//! Request ids and progress tokens are ours, one number for both (EXEC-12). What an answer means is decided by the
//! request that was sent, on raw JSON: results and errors are carried as text. Knows nothing of tools or tasks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::config::Settings;
use super::lines::{Line, Lines, Oversize, id_of_broken};
use super::noise::Noise;
use super::stdio::{Control, Process, Program};
use crate::domain::json::RawJson;
use crate::domain::text::storable;
use crate::executor::Event;
use crate::lifecycle::spawn;
use crate::protocol::jsonrpc::{
    ErrorObject, Id, METHOD_NOT_FOUND, Message, Notification, Request, Response, ResponseBody, write_error,
    write_notification, write_request, write_result,
};
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted};

/// Revisions of the legacy era; the first one is asked for.
const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Messages that wait for the upstream to read; beyond it requests wait and answers to its own requests are dropped.
const QUEUE: usize = 256;
/// How long after the end of a stream the end of its process is waited for.
const END_SEEN: Duration = Duration::from_secs(1);
/// What a line may hold besides the result.
const LINE_SLACK: usize = 64 << 10;
/// Progress messages wait in memory, so they are cut before; what is shown of them is cut again.
const MOST_MESSAGE: usize = 4096;

/// An initialized connection. Dropping it ends the upstream's process.
pub(super) struct Link {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Outgoing>,
    control: Control,
    /// The upstream's `capabilities`, an object.
    pub(super) capabilities: RawJson,
}

/// A request to send, made with a number of [`Link::next_number`].
pub(super) struct Outbound<'a> {
    pub(super) number: u64,
    pub(super) method: &'a str,
    pub(super) params: Option<&'a RawJson>,
    /// Where its progress goes.
    pub(super) events: Option<mpsc::Sender<Event>>,
}

/// An answer.
#[derive(Debug)]
pub(super) enum Reply {
    /// An object.
    Result(RawJson),
    Error(RawJson),
    TooLarge {
        bytes: usize,
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

/// Why there is no link.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum StartError {
    #[error("its program cannot be started: {0}")]
    Spawn(Arc<str>),
    #[error("it did not answer initialize: {0}")]
    Lost(String),
    #[error("it refused initialize: {0}")]
    Refused(String),
    #[error("it did not answer initialize within {} s", .0.as_secs())]
    Late(Duration),
    #[error("it speaks protocol version {version:?}; this service speaks {}", VERSIONS.join(", "))]
    Version { version: String },
}

impl Link {
    /// Starts the program and initializes the connection. Standard error's last lines are with the error.
    pub(super) async fn start(settings: &Settings, program: &Program) -> Result<Self, (StartError, Vec<String>)> {
        let process = Process::start(&settings.launcher, program)
            .map_err(|error| (StartError::Spawn(error.to_string().into()), Vec::new()))?;
        let control = process.control.clone();
        match timeout(settings.start_timeout, Self::initialize(settings, process)).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err((error, control.stderr())),
            Err(_) => Err((StartError::Late(settings.start_timeout), control.stderr())),
        }
    }

    async fn initialize(settings: &Settings, process: Process) -> Result<Self, StartError> {
        let Process { stdin, stdout, control } = process;
        let (queue, queued) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            pending: Mutex::new(Some(HashMap::new())),
            next: AtomicU64::new(1),
            closed: CancellationToken::new(),
            why_closed: Mutex::default(),
            tools_changed: Notify::new(),
            result_limit: settings.result_limit,
            noise: Noise::default(),
        });
        spawn("upstream input", write(stdin, queued, control.ending.clone()));
        let lines = Lines::new(stdout, settings.result_limit.saturating_add(LINE_SLACK));
        spawn("upstream output", read(lines, Arc::clone(&shared), queue.clone(), control.clone()));
        let mut link = Self { shared, queue, control, capabilities: RawJson::trusted("{}") };
        let params = RawJson::from_value(&json!({
            "protocolVersion": VERSIONS[0],
            "capabilities": {},
            "clientInfo": { "name": "taskhold", "version": env!("CARGO_PKG_VERSION") },
        }));
        let number = link.next_number();
        let request = Outbound { number, method: "initialize", params: Some(&params), events: None };
        let result = match link.request(request, &CancellationToken::new()).await {
            Ok(Reply::Result(result)) => result,
            Ok(Reply::Error(error)) => {
                let message = member(error.as_str(), "message").and_then(string_value);
                return Err(StartError::Refused(message.unwrap_or_default().into_owned()));
            }
            Ok(Reply::TooLarge { bytes }) => return Err(StartError::Refused(format!("an answer of {bytes} bytes"))),
            Ok(Reply::Broken(how)) => return Err(StartError::Refused(how)),
            Err(NoReply::NotSent(why) | NoReply::Lost(why)) => return Err(StartError::Lost(why)),
            Err(NoReply::Stopped) => return Err(StartError::Lost("it was stopped".to_owned())),
        };
        let version = member(result.as_str(), "protocolVersion").and_then(string_value).unwrap_or_default();
        if !VERSIONS.contains(&&*version) {
            return Err(StartError::Version { version: version.into_owned() });
        }
        if let Some(capabilities) = member(result.as_str(), "capabilities").filter(|raw| raw.starts_with('{')) {
            link.capabilities = RawJson::trusted(capabilities);
        }
        link.notify("notifications/initialized", None);
        Ok(link)
    }

    /// A number that is the request's id and its progress token.
    pub(super) fn next_number(&self) -> u64 {
        self.shared.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request and waits for its answer. When `stop` is cancelled, or the future dropped, the upstream is told
    /// and a late answer ignored.
    pub(super) async fn request(&self, request: Outbound<'_>, stop: &CancellationToken) -> Result<Reply, NoReply> {
        let Outbound { number, method, params, events } = request;
        let (answer, answered) = oneshot::channel();
        let gate = Arc::new(Gate::default());
        match self.shared.lock_pending().as_mut() {
            Some(pending) => pending.insert(number, Pending { answer, events, progress: f64::NEG_INFINITY }),
            None => return Err(NoReply::NotSent(self.shared.why_closed())),
        };
        let mut in_flight = InFlight { link: self, number, gate: Arc::clone(&gate), answered: false, method };
        let text = write_request(&Id::from_number(number), method, params);
        let sent = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(NoReply::Stopped),
            sent = self.queue.send(Outgoing { text, gate: Some(Arc::clone(&gate)) }) => sent,
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
        reply.ok_or_else(|| {
            let why = self.shared.why_closed();
            if gate.was_opened() { NoReply::Lost(why) } else { NoReply::NotSent(why) }
        })
    }

    /// Sends a notification unless the upstream has not read for long.
    fn notify(&self, method: &str, params: Option<&RawJson>) {
        if self.queue.try_send(Outgoing { text: write_notification(method, params), gate: None }).is_err() {
            tracing::debug!(rpc.method = method, "a notification was dropped: the upstream does not read");
        }
    }

    /// Completes when the link can carry no more requests.
    pub(super) async fn closed(&self) {
        self.shared.closed.cancelled().await;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.closed.is_cancelled()
    }

    /// Why it closed.
    pub(super) fn why_closed(&self) -> String {
        self.shared.why_closed()
    }

    /// Completes when the upstream has said that its tools changed.
    pub(super) async fn tools_changed(&self) {
        self.shared.tools_changed.notified().await;
    }

    /// The process behind it; holding this does not keep the link.
    pub(super) fn control(&self) -> Control {
        self.control.clone()
    }

    /// Begins the end of the process: input closed, then signals.
    pub(super) fn end(&self) {
        self.shared.close("it was ended by this service");
        self.control.ending.cancel();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

struct Shared {
    /// `None` once the link is closed.
    pending: Mutex<Option<HashMap<u64, Pending>>>,
    next: AtomicU64,
    closed: CancellationToken,
    why_closed: Mutex<String>,
    tools_changed: Notify,
    result_limit: usize,
    noise: Noise,
}

/// A request that waits for its answer.
struct Pending {
    answer: oneshot::Sender<Reply>,
    events: Option<mpsc::Sender<Event>>,
    /// The last value that was passed on.
    progress: f64,
}

impl Shared {
    /// A poisoned lock is taken all the same: the map is never left half changed.
    fn lock_pending(&self) -> MutexGuard<'_, Option<HashMap<u64, Pending>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn why_closed(&self) -> String {
        let why = self.why_closed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if why.is_empty() { "it does not read its input any more".to_owned() } else { why }
    }

    /// Ends every waiting request; the first reason stays.
    fn close(&self, why: &str) {
        let mut pending = self.lock_pending();
        if pending.is_some() {
            why.clone_into(&mut self.why_closed.lock().unwrap_or_else(PoisonError::into_inner));
            *pending = None;
            self.closed.cancel();
        }
    }

    fn answer(&self, number: u64, reply: Reply) {
        let waiting = self.lock_pending().as_mut().and_then(|pending| pending.remove(&number));
        match waiting {
            // Its caller may have gone this very moment.
            Some(waiting) => drop(waiting.answer.send(reply)),
            None => tracing::debug!(rpc.id = number, "an answer came that nobody waits for"),
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
            Reply::TooLarge { bytes: raw.len() }
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

    fn take_notification(&self, notification: &Notification) {
        match notification.method.as_str() {
            "notifications/progress" => {
                let params = notification.params.as_ref().map_or("{}", RawJson::as_str);
                if self.take_progress(params).is_none() {
                    tracing::debug!("a progress note was dropped: it fits no running call");
                }
            }
            "notifications/tools/list_changed" => self.tools_changed.notify_one(),
            _ => {}
        }
    }

    fn take_progress(&self, params: &str) -> Option<()> {
        let number: u64 = member(params, "progressToken")?.parse().ok()?;
        let progress: f64 = serde_json::from_str(member(params, "progress")?).ok()?;
        let total = member(params, "total").and_then(|raw| serde_json::from_str(raw).ok());
        let message = member(params, "message").and_then(string_value).map(|text| storable(&text, MOST_MESSAGE));
        let mut pending = self.lock_pending();
        let waiting = pending.as_mut()?.get_mut(&number)?;
        let events = waiting.events.as_ref()?;
        if progress > waiting.progress {
            waiting.progress = progress;
            // A full channel drops the event: nobody waits for slow readers.
            let _ = events.try_send(Event::Progress { progress, total, message });
        }
        Some(())
    }

    fn take_oversize(&self, long: &Oversize) {
        match long.id.as_deref().and_then(|id| id.parse().ok()) {
            Some(number) => self.answer(number, Reply::TooLarge { bytes: long.result.unwrap_or(long.bytes) }),
            None => {
                if let Some(lines) = self.noise.heard() {
                    tracing::warn!(line.bytes = long.bytes, lines, "lines that are too long were dropped");
                }
            }
        }
    }
}

/// A request under way: dropped before its answer, it is withdrawn or cancelled.
struct InFlight<'a> {
    link: &'a Link,
    number: u64,
    gate: Arc<Gate>,
    answered: bool,
    method: &'a str,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if let Some(pending) = self.link.shared.lock_pending().as_mut() {
            pending.remove(&self.number);
        }
        // `initialize` must not be cancelled; its link ends anyway.
        if !self.gate.withdraw() && self.method != "initialize" {
            let params = format!(r#"{{"requestId":{},"reason":"the call was cancelled"}}"#, self.number);
            self.link.notify("notifications/cancelled", Some(&RawJson::trusted(params)));
        }
    }
}

struct Outgoing {
    text: String,
    gate: Option<Arc<Gate>>,
}

/// Decides once whether a queued request goes out or is withdrawn.
#[derive(Default)]
struct Gate(AtomicU8);

impl Gate {
    const OPENED: u8 = 1;
    const WITHDRAWN: u8 = 2;

    fn open(&self) -> bool {
        self.0.compare_exchange(0, Self::OPENED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn withdraw(&self) -> bool {
        self.0.compare_exchange(0, Self::WITHDRAWN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Also true if a part of it may have gone out.
    fn was_opened(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::OPENED
    }
}

/// Writes one message a line until the end is asked for, then closes the input.
async fn write(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Outgoing>, ending: CancellationToken) {
    let work = async {
        while let Some(Outgoing { mut text, gate }) = queue.recv().await {
            if gate.is_some_and(|gate| !gate.open()) {
                continue;
            }
            text.push('\n');
            if stdin.write_all(text.as_bytes()).await.is_err() {
                // Mostly the process has ended, which its reader sees and says better.
                sleep(END_SEEN).await;
                return;
            }
        }
    };
    tokio::select! {
        // One that does not hear us any more is of no use.
        () = work => ending.cancel(),
        () = ending.cancelled() => {}
    }
}

/// Reads until the output ends, and closes the link then.
async fn read(mut lines: Lines<ChildStdout>, shared: Arc<Shared>, queue: mpsc::Sender<Outgoing>, control: Control) {
    loop {
        match lines.next().await {
            Ok(Some(Line::Whole(line))) => take_line(&line, &shared, &queue),
            Ok(Some(Line::TooLong(long))) => shared.take_oversize(&long),
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(error = %error, "the upstream's output cannot be read");
                break;
            }
        }
    }
    match timeout(END_SEEN, control.exited()).await {
        Ok(exit) => shared.close(&exit.how),
        Err(_) => shared.close("it closed its output"),
    }
    control.ending.cancel();
}

fn take_line(line: &[u8], shared: &Shared, queue: &mpsc::Sender<Outgoing>) {
    if line.iter().all(u8::is_ascii_whitespace) {
        return;
    }
    match Message::parse(line) {
        Ok(Message::Response(response)) => shared.take_response(response),
        Ok(Message::Notification(notification)) => shared.take_notification(&notification),
        Ok(Message::Request(request)) => {
            let text = answer_request(&request);
            if queue.try_send(Outgoing { text, gate: None }).is_err() {
                tracing::debug!(rpc.method = request.method, "a request got no answer: the upstream does not read");
            }
        }
        Err(malformed) => {
            if let Some(lines) = shared.noise.heard() {
                tracing::warn!(error = %malformed, line.bytes = line.len(), lines, "bad lines were dropped");
            }
            // A response that cannot be read ends the call it answers, and no other.
            let id = malformed.id.as_ref().map(|id| id.as_raw().to_owned()).or_else(|| id_of_broken(line));
            let number = id.and_then(|id| id.parse().ok());
            if let Some(number) = number.filter(|_| !line.windows(8).any(|part| part == br#""method""#)) {
                shared.answer(number, Reply::Broken(format!("its answer cannot be read: {malformed}")));
            }
        }
    }
}

/// We declare no capabilities, so an upstream may ask for nothing but `ping`.
fn answer_request(request: &Request) -> String {
    if request.method == "ping" {
        return write_result(&request.id, &RawJson::trusted("{}"));
    }
    let message = format!("this client does not serve {}", quoted(&request.method));
    write_error(Some(&request.id), &ErrorObject::new(METHOD_NOT_FOUND, message).to_raw())
}
