//! What an upstream says of its own accord on one link: its questions, its logs, its progress, and whose each of them is.
//!
//! A message belongs to a call by what the transport knows of it, by related-task metadata of the upstream's task, or
//! because no other call is in progress. Between calls of one context the last one that began is the likely one; between
//! calls of several contexts nothing is guessed; a call that was given up counts until its response comes. What belongs to
//! no call goes out as a [`Notice`]. Knows no transport: answers go back through what the link gives.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use crate::domain::ids::ContextId;
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::domain::text::storable;
use crate::executor::{Event, Host, Notice, Said};
use crate::protocol::jsonrpc::{Id, Notification};
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted, set_members, set_meta};

mod asking;
mod elicitations;
mod revision;

use elicitations::Elicitations;

/// The `_meta` key that ties a message to a task.
pub(super) const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// Requests of ended calls that may still be worked on; with more of them nothing is guessed.
const MOST_UNANSWERED: usize = 1024;
/// Progress messages wait in memory, so they are cut before; what is shown of them is cut again.
const MOST_MESSAGE: usize = 4096;
/// Longer notifications are dropped: they, too, wait in memory.
const MOST_NOTE: usize = 256 << 10;

/// Whose the link is.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    pub(super) upstream: String,
    /// `None`: everybody's, or nobody's.
    pub(super) context: Option<ContextId>,
    pub(super) notices: broadcast::Sender<Notice>,
    /// Questions of one call that may be open at once.
    pub(super) open_questions: usize,
    /// Told when any link of the upstream hears that one of its lists may have changed.
    pub(super) lists_changed: Arc<Notify>,
}

/// The open calls of one link and what is asked for them.
pub(super) struct Inbox {
    owner: Owner,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the numbers of the requests that began them, which are their progress tokens; in the order of their beginning.
    calls: BTreeMap<u64, Entry>,
    /// Which call an upstream's task belongs to, by the task's id.
    tasks: HashMap<String, u64>,
    /// Questions that wait for their answers, by the upstream's ids for them.
    questions: HashMap<Id, CancellationToken>,
    elicitations: Elicitations,
    /// Requests on everybody's link without a response so far, by number, and whose they are if that is known: one that was
    /// given up may go on at the upstream, and what it says is for nobody else.
    unanswered: HashMap<u64, Option<ContextId>>,
    /// There were too many of them.
    is_muddled: bool,
    /// Whether there ever was a call.
    has_served: bool,
    /// What `initialize` agreed on.
    revision: String,
}

/// A call in progress.
struct Entry {
    context: ContextId,
    host: Arc<dyn Host>,
    /// The last value that was passed on.
    progress: f64,
    questions: usize,
    /// The upstream's task that runs it, as the raw text of its id.
    task: Option<RawJson>,
    /// Told when the upstream says that its task changed.
    task_changed: Arc<Notify>,
    ended: CancellationToken,
}

/// Whose a message is.
enum Whose {
    Call(u64),
    /// One of the open calls, all of one context, this one rather than another.
    Likely(u64),
    /// No call that it could belong to is in progress.
    Nobody,
    /// Calls of several contexts are, and it does not say.
    Unclear,
}

/// A call that takes messages of its link until this is dropped.
pub(super) struct OpenCall {
    inbox: Arc<Inbox>,
    number: u64,
    task_changed: Arc<Notify>,
}

impl OpenCall {
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Ready when the upstream says that the task which runs this call has changed.
    pub(super) async fn task_changed(&self) {
        self.task_changed.notified().await;
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut state = self.inbox.lock();
        if let Some(entry) = state.calls.remove(&self.number) {
            entry.ended.cancel();
        }
        state.tasks.retain(|_, call| *call != self.number);
        state.elicitations.call_ended(self.number);
    }
}

impl Inbox {
    pub(super) fn new(owner: Owner) -> Arc<Self> {
        Arc::new(Self { owner, state: Mutex::default() })
    }

    /// Notes the revision that was agreed on: a question that it does not know gets an error.
    pub(super) fn speaks(&self, revision: &str) {
        revision.clone_into(&mut self.lock().revision);
    }

    /// From now on messages may belong to this call, whose first request has the number.
    pub(super) fn open(self: &Arc<Self>, number: u64, context: ContextId, host: Arc<dyn Host>) -> OpenCall {
        let task_changed = Arc::new(Notify::new());
        let entry = Entry {
            context,
            host,
            progress: f64::NEG_INFINITY,
            questions: 0,
            task: None,
            task_changed: Arc::clone(&task_changed),
            ended: CancellationToken::new(),
        };
        let mut state = self.lock();
        state.has_served = true;
        state.calls.insert(number, entry);
        drop(state);
        OpenCall { inbox: Arc::clone(self), number, task_changed }
    }

    /// A request is about to be sent for a call.
    pub(super) fn asked(&self, number: u64, call: u64) {
        if self.owner.context.is_some() {
            return;
        }
        let mut state = self.lock();
        if state.unanswered.len() >= MOST_UNANSWERED + state.calls.len() {
            state.is_muddled = true;
            return;
        }
        let context = state.calls.get(&call).map(|entry| entry.context);
        state.unanswered.insert(number, context);
    }

    pub(super) fn upstream(&self) -> &str {
        &self.owner.upstream
    }

    pub(super) fn lists_changed(&self) -> &Notify {
        &self.owner.lists_changed
    }

    /// Whether what the upstream says may be of several callers' calls.
    pub(super) fn serves_several(&self) -> bool {
        self.lock().is_unclear()
    }

    /// The request has its response, or was never sent.
    pub(super) fn answered(&self, number: u64) {
        self.lock().unanswered.remove(&number);
    }

    /// Notes that a task of the upstream runs the call; `id` is the raw text of its id.
    pub(super) fn runs_as(&self, call: u64, id: &RawJson) {
        let mut state = self.lock();
        let Some(name) = string_value(id.as_str()).map(std::borrow::Cow::into_owned) else { return };
        if let Some(entry) = state.calls.get_mut(&call) {
            entry.task = Some(id.clone());
            state.tasks.insert(name, call);
        }
    }

    /// A notification of the upstream; `origin` as for requests.
    pub(super) fn take_notification(&self, notification: &Notification, origin: Option<u64>) {
        let empty = RawJson::trusted("{}");
        let params = notification.params.as_ref().unwrap_or(&empty);
        match notification.method.as_str() {
            "notifications/progress" => self.take_progress(params).unwrap_or_else(|| {
                tracing::debug!("a progress note was dropped: it fits no running call");
            }),
            "notifications/cancelled" => self.take_cancellation(params),
            "notifications/tasks/status" => self.take_status(params),
            method if params.len() > MOST_NOTE => {
                tracing::debug!(
                    rpc.method = method,
                    bytes = params.len(),
                    "a notification was dropped: it is too long"
                );
            }
            "notifications/message" => self.take_log(params, origin),
            "notifications/elicitation/complete" => self.take_completion(params, origin),
            "notifications/resources/updated" => {
                self.say(self.owner.context, Said::ResourceUpdated(without_ours(params)));
            }
            _ => {}
        }
    }

    fn take_progress(&self, params: &RawJson) -> Option<()> {
        let text = params.as_str();
        let progress: f64 = serde_json::from_str(member(text, "progress")?).ok()?;
        let total = member(text, "total").and_then(|raw| serde_json::from_str(raw).ok());
        let mistyped = mistyped_progress(text);
        let message = member(text, "message").and_then(string_value).map(|text| storable(&text, MOST_MESSAGE));
        let host = {
            let mut state = self.lock();
            // One that was made before a restart is known by its task only: its token was another process's.
            let number = match related(Some(params)) {
                Some(task) => *state.tasks.get(&task)?,
                None => member(text, "progressToken")?.parse().ok()?,
            };
            let call = state.calls.get_mut(&number)?;
            if progress <= call.progress {
                return Some(());
            }
            call.progress = progress;
            Arc::clone(&call.host)
        };
        let params = match &message {
            Some(message) if text.len() > MOST_MESSAGE => {
                set_members(params, &[("message", &quoted(message))], &mistyped)
            }
            _ => set_members(params, &[], &mistyped),
        };
        if params.len() <= MOST_NOTE {
            host.tell(Event::Progress { progress, total, message, params: without(&params, &[RELATED_TASK]) });
        }
        Some(())
    }

    /// The upstream takes a question back.
    fn take_cancellation(&self, params: &RawJson) {
        let id = member(params.as_str(), "requestId").and_then(Id::from_raw);
        if let Some(withdrawn) = id.and_then(|id| self.lock().questions.remove(&id)) {
            withdrawn.cancel();
        }
    }

    /// A task of the upstream changed, it says; whoever follows it will look.
    fn take_status(&self, params: &RawJson) {
        let Some(id) = member(params.as_str(), "taskId").and_then(string_value) else { return };
        let state = self.lock();
        if let Some(call) = state.tasks.get(&*id).and_then(|call| state.calls.get(call)) {
            call.task_changed.notify_one();
        }
    }

    fn take_log(&self, params: &RawJson, origin: Option<u64>) {
        if !is_log(params.as_str()) {
            tracing::debug!("a log message was dropped: it has no data, or none of the eight levels");
            return;
        }
        let (host, is_free) = {
            let state = self.lock();
            match state.whose(origin, Some(params)) {
                Whose::Call(call) | Whose::Likely(call) => (state.host_of(call), false),
                // On a link of everybody's, what belonged to a call that has ended is for nobody else to read.
                Whose::Nobody => {
                    (None, self.owner.context.is_some() || (origin, related(Some(params))) == (None, None))
                }
                Whose::Unclear => (None, false),
            }
        };
        let params = without_ours(params);
        match host {
            Some(host) => host.tell(Event::Log { params }),
            None if is_free => self.say(self.owner.context, Said::Log(params)),
            None => tracing::debug!("a log message was dropped: it is not known whose it is"),
        }
    }

    fn take_completion(&self, params: &RawJson, origin: Option<u64>) {
        let Some(id) = member(params.as_str(), "elicitationId").and_then(string_value) else { return };
        let hosts: Vec<_> = {
            let mut state = self.lock();
            let calls = state.completed(&id, origin, params);
            for call in &calls {
                state.elicitations.forget(&id, *call);
            }
            calls.into_iter().filter_map(|call| state.host_of(call)).collect()
        };
        if hosts.is_empty() {
            tracing::debug!("the completion of an elicitation was dropped: it fits no running call");
        }
        for host in hosts {
            host.tell(Event::ElicitationComplete { params: without_ours(params) });
        }
    }

    fn say(&self, context: Option<ContextId>, said: Said) {
        // Fails only where nobody listens.
        let _ = self.owner.notices.send(Notice { upstream: self.owner.upstream.clone(), context, said });
    }

    /// A poisoned lock is taken all the same: each change under it is one insertion or removal.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn whose(&self, origin: Option<u64>, params: Option<&RawJson>) -> Whose {
        let known = |call: Option<&u64>| {
            call.filter(|call| self.calls.contains_key(call)).map_or(Whose::Nobody, |call| Whose::Call(*call))
        };
        if let Some(task) = related(params) {
            return known(self.tasks.get(&task));
        }
        if origin.is_some() {
            return known(origin.as_ref());
        }
        if self.is_unclear() {
            return Whose::Unclear;
        }
        self.likeliest().next().map_or(Whose::Nobody, Whose::Likely)
    }

    /// The calls for which an elicitation is complete: the one that the message names, else all of one context that were asked.
    fn completed(&self, id: &str, origin: Option<u64>, params: &RawJson) -> Vec<u64> {
        let asked = self.elicitations.calls(id);
        if let Whose::Call(named) = self.whose(origin, Some(params))
            && asked.contains(&named)
        {
            return vec![named];
        }
        let mut contexts = asked.iter().filter_map(|call| self.calls.get(call)).map(|call| call.context);
        let first = contexts.next();
        if contexts.any(|context| Some(context) != first) { Vec::new() } else { asked }
    }

    /// Whether calls of several contexts are in progress, or it is not known whose they are.
    fn is_unclear(&self) -> bool {
        let open = self.calls.values().map(|call| Some(call.context));
        let mut contexts = open.chain(self.unanswered.values().copied());
        let first = contexts.next();
        contexts.any(|context| Some(context) != first) || (self.is_muddled && first.is_some())
    }

    /// The calls that may have said what says not whose it is, the likeliest first.
    fn likeliest(&self) -> impl Iterator<Item = u64> {
        let newest = || self.calls.iter().rev();
        // Tasks name themselves, so it is rather one of the others.
        let plain = newest().filter(|(_, call)| call.task.is_none());
        plain.chain(newest().filter(|(_, call)| call.task.is_some())).map(|(number, _)| *number)
    }

    fn host_of(&self, call: u64) -> Option<Arc<dyn Host>> {
        self.calls.get(&call).map(|call| Arc::clone(&call.host))
    }
}

fn is_log(params: &str) -> bool {
    let level = member(params, "level").and_then(string_value);
    level.is_some_and(|level| LogLevel::from_name(&level).is_some()) && member(params, "data").is_some()
}

/// What a progress note may do without, and has of a type that clients refuse.
fn mistyped_progress(params: &str) -> Vec<&'static str> {
    let is = |name: &str, fits: fn(char) -> bool| member(params, name).is_none_or(|raw| raw.starts_with(fits));
    let fits = [
        ("total", is("total", |first| first == '-' || first.is_ascii_digit())),
        ("message", is("message", |first| first == '"')),
    ];
    fits.into_iter().filter(|(_, fits)| !fits).map(|(name, _)| name).collect()
}

/// The task that a message names.
fn related(params: Option<&RawJson>) -> Option<String> {
    let meta = member(params?.as_str(), "_meta")?;
    Some(string_value(member(member(meta, RELATED_TASK)?, "taskId")?)?.into_owned())
}

/// Without what was meant for us alone.
fn without_ours(params: &RawJson) -> RawJson {
    without(&set_members(params, &[], &["task"]), &[RELATED_TASK, "progressToken"])
}

/// Without these keys of `_meta`, and without a `_meta` that held nothing else.
pub(super) fn without(params: &RawJson, keys: &[&str]) -> RawJson {
    let cleaned = set_meta(params, &[], keys);
    if cleaned != *params && member(cleaned.as_str(), "_meta") == Some("{}") {
        return set_members(&cleaned, &[], &["_meta"]);
    }
    cleaned
}

#[cfg(test)]
mod tests;
