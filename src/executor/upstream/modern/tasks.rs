//! Calls that an upstream of this era runs as tasks: it decides so, and tells all of a task by `tasks/get` (EXEC-11, EXEC-18).
//!
//! What a task asks is asked of the caller, each key once, and answered by `tasks/update`; what came of it is inlined. Its
//! messages stand for the progress that it does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::super::handed::{
    ANSWER_LIMIT, Caller, Fault, Follow, HASTE, Made, State, Status, no_link, of_task, outcome, refused,
};
use super::super::inbox::OpenCall;
use super::super::links::Lease;
use super::super::requests::{Outbound, Reply};
use super::super::table::Table;
use super::Said;
use super::rounds::{question, sendable};
use crate::domain::json::RawJson;
use crate::domain::outcome::{Failure, Outcome};
use crate::executor::{Attempt, Event, Host};
use crate::protocol::modern::client::{
    InputRequest, ResultType, input_requests, input_responses, result_type, task_id,
};
use crate::protocol::splice::{member, quoted, set_members};

/// Cancels the task that an answer names which nobody waits for any more.
pub(in super::super) fn abandon(table: &Table, result: &RawJson) {
    if result_type(result) == ResultType::Task
        && let Some(id) = task_id(result)
    {
        table.request_only("tasks/cancel", &of_task(&id));
    }
}

impl Caller<'_> {
    /// Goes on with a call of which the upstream has made a task.
    pub(in super::super) async fn follow_made(self, lease: Lease, open: OpenCall, created: RawJson) -> Made {
        let Some(id) = task_id(&created) else {
            return Made::Answered(Reply::Broken("it made a task without an id".to_owned()));
        };
        let state = State::read(created.as_str(), &id);
        self.adopt(lease, open, &id, state).await
    }
}

/// What a look at a task brings.
enum Seen {
    Live { state: State, asked: Vec<InputRequest> },
    Over(Outcome),
    Cancelled(State),
}

/// Follows a task to its end.
pub(in super::super) async fn follow(follow: &mut Follow<'_>) -> Attempt {
    let said = Said::of_caller(&follow.caller.call.capabilities);
    let mut desk = Desk::new(Arc::clone(&follow.caller.host), follow.handle.id.clone());
    let mut failing_since = None;
    let mut progress = Progress::begin(follow.caller.call.resume.is_some(), follow.caller.links.now_s());
    // The result that made it may not say all of it.
    let mut is_due = follow.state.status != Some(Status::Working);
    let mut looked = Instant::now();
    loop {
        if !is_due {
            let due = sleep_until(looked + follow.state.pause());
            tokio::select! {
                Some(answered) = desk.waiting.next() => match desk.take(answered) {
                    Ok(()) if send(follow, &said, &mut desk).await => sleep(HASTE).await,
                    // It is sent again with what the next look tells.
                    Ok(()) => {}
                    Err(error) => {
                        follow.handle.give_up();
                        return Attempt::Answered(Outcome::Error { json: error });
                    }
                },
                () = due => {}
            }
        }
        looked = Instant::now();
        is_due = false;
        let fault = match look(follow, &said).await {
            Ok(Seen::Over(outcome)) => return Attempt::Answered(outcome),
            Ok(Seen::Cancelled(state)) => {
                follow.state = state;
                return Attempt::Answered(follow.cancelled_by_upstream());
            }
            Ok(Seen::Live { state, asked }) => {
                follow.lease.answered();
                failing_since = None;
                if state.message != follow.state.message {
                    progress.tell(follow, state.message.as_deref());
                }
                follow.state = state;
                if asked.len() > follow.caller.links.open_questions() {
                    follow.handle.give_up();
                    let detail = format!("its task asks {} things at once", asked.len());
                    return Attempt::Answered(Outcome::failure(&Failure::UpstreamProtocol { detail }));
                }
                desk.put(&asked);
                if desk.has_unsent() {
                    send(follow, &said, &mut desk).await;
                }
                continue;
            }
            Err(fault) => fault,
        };
        is_due = true;
        if let Some(attempt) = follow.trouble(fault, &mut failing_since).await {
            return attempt;
        }
    }
}

async fn look(follow: &Follow<'_>, said: &Said) -> Result<Seen, Fault> {
    let task = match follow.ask(said, "tasks/get", &of_task(&follow.handle.id)).await? {
        Reply::Result(task) => task,
        Reply::Error(error) => return Err(refused(&error, &follow.handle.id)),
        // Nothing of a task is large but what came of it.
        too_large @ Reply::TooLarge { .. } => return Ok(Seen::Over(outcome(too_large))),
        Reply::Broken(how) => return Err(Fault::Useless(how)),
    };
    let state = State::answer(task.as_str(), &follow.handle.id)
        .map_err(|how| Fault::Useless(format!("it answers tasks/get {how}")))?;
    let object = |name| member(task.as_str(), name).filter(|raw| raw.starts_with('{')).map(RawJson::trusted);
    let without = |name: &str| Reply::Broken(format!("its task has ended and has no {name}"));
    Ok(match state.status {
        Some(Status::Working) | None => Seen::Live { state, asked: Vec::new() },
        Some(Status::InputRequired) => {
            let asked = input_requests(member(task.as_str(), "inputRequests").unwrap_or_default());
            Seen::Live { state, asked: asked.map_err(Fault::Useless)? }
        }
        Some(Status::Completed) => {
            let result = object("result").map_or_else(|| without("result"), Reply::Result);
            Seen::Over(outcome(super::expected("tasks/get", result)))
        }
        Some(Status::Failed) => Seen::Over(outcome(object("error").map_or_else(|| without("error"), Reply::Error))),
        Some(Status::Cancelled) => Seen::Cancelled(state),
    })
}

/// Sends what is answered; whether the upstream has taken it.
async fn send(follow: &Follow<'_>, said: &Said, desk: &mut Desk) -> bool {
    let (keys, responses) = desk.due();
    if keys.is_empty() {
        return false;
    }
    let params = set_members(&of_task(&follow.handle.id), &[("inputResponses", &responses)], &[]);
    let is_taken = matches!(follow.ask(said, "tasks/update", &params).await, Ok(Reply::Result(_)));
    if is_taken {
        desk.sent.extend(keys);
    } else {
        tracing::debug!("a task of an upstream did not take its answers; they are sent again if it still asks");
    }
    is_taken
}

impl Follow<'_> {
    /// Asks something about the task.
    async fn ask(&self, said: &Said, method: &'static str, params: &RawJson) -> Result<Reply, Fault> {
        let link = &self.lease.link;
        if link.is_closed() {
            return Err(Fault::NoLink(link.why_closed()));
        }
        let call = Some(self.open.number());
        let request = Outbound { call, said: said.clone(), ..Outbound::new(link.next_number(), method, Some(params)) };
        match timeout(ANSWER_LIMIT, link.request(request, &self.caller.stop)).await {
            Err(_) => Err(Fault::Useless(format!("it does not answer {method}"))),
            Ok(Err(error)) => Err(no_link(error)),
            Ok(Ok(reply)) => Ok(reply),
        }
    }
}

type Answered = (String, Option<Result<RawJson, RawJson>>);

/// What a task asks, and what became of it.
struct Desk {
    host: Arc<dyn Host>,
    task: RawJson,
    waiting: FuturesUnordered<Pin<Box<dyn Future<Output = Answered> + Send>>>,
    /// All keys that were ever asked, and how to withdraw each.
    asked: BTreeMap<String, CancellationToken>,
    answers: BTreeMap<String, RawJson>,
    /// What the upstream asks now.
    open: BTreeSet<String>,
    /// Those whose answers it has taken.
    sent: BTreeSet<String>,
}

impl Desk {
    fn new(host: Arc<dyn Host>, task: RawJson) -> Self {
        Self {
            host,
            task,
            waiting: FuturesUnordered::new(),
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            open: BTreeSet::new(),
            sent: BTreeSet::new(),
        }
    }

    /// Asks what is new of these, and withdraws what is not among them any more.
    fn put(&mut self, requests: &[InputRequest]) {
        self.open = requests.iter().map(|request| request.key.clone()).collect();
        for (key, withdrawn) in &self.asked {
            if !self.open.contains(key) {
                withdrawn.cancel();
                self.answers.remove(key);
            }
        }
        for request in requests {
            if self.asked.contains_key(&request.key) {
                continue;
            }
            let withdrawn = CancellationToken::new();
            self.asked.insert(request.key.clone(), withdrawn.clone());
            let (host, key, kind) = (Arc::clone(&self.host), request.key.clone(), request.question.kind);
            let (name, question) = (request.name(), question(request, &[self.task.as_str().as_bytes()]));
            self.waiting.push(Box::pin(async move {
                let answered = tokio::select! {
                    biased;
                    () = withdrawn.cancelled() => None,
                    answer = host.ask_named(&name, question) => Some(sendable(kind, answer)),
                };
                (key, answered)
            }));
        }
    }

    /// Takes the answer of a caller.
    ///
    /// # Errors
    /// The caller's error, where nothing can stand for it.
    fn take(&mut self, (key, answered): Answered) -> Result<(), RawJson> {
        if let Some(answer) = answered {
            self.answers.insert(key, answer?);
        }
        Ok(())
    }

    fn has_unsent(&self) -> bool {
        !self.due().0.is_empty()
    }

    /// The answers to send, and their keys. A server that takes no part of its answers gets them all when all are there.
    fn due(&self) -> (BTreeSet<String>, String) {
        let are_all_there = self.open.iter().all(|key| self.answers.contains_key(key));
        let keys: BTreeSet<_> = self
            .open
            .iter()
            .filter(|key| self.answers.contains_key(*key) && (are_all_there || !self.sent.contains(*key)))
            .cloned()
            .collect();
        let responses = input_responses(self.answers.iter().filter(|(key, _)| keys.contains(*key)));
        (keys, responses)
    }
}

/// Tells the messages of a task as its progress, which only has to grow.
struct Progress(f64);

impl Progress {
    /// One that goes on begins above all that was told of it before.
    #[expect(clippy::cast_precision_loss, reason = "seconds of this epoch are small enough")]
    fn begin(is_resumed: bool, now_s: i64) -> Self {
        Self(if is_resumed { now_s as f64 } else { 0.0 })
    }

    fn tell(&mut self, follow: &Follow<'_>, message: Option<&str>) {
        let Some(message) = message.filter(|message| !message.is_empty()) else { return };
        self.0 += 1.0;
        let params = format!(
            r#"{{"progressToken":{},"progress":{},"message":{}}}"#,
            follow.open.number(),
            self.0,
            quoted(message)
        );
        follow.caller.host.tell(Event::Progress {
            progress: self.0,
            total: None,
            message: Some(message.to_owned()),
            params: RawJson::trusted(params),
        });
    }
}
