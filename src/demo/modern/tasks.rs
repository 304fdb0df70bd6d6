//! The tasks extension: calls that run on after their request was answered, kept in memory for as long as the process.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::call::{Call, may_ask, read_answers, requests};
use super::listen::News;
use super::meta::Meta;
use super::state::Answers;
use super::{Server, complete, settle};
use crate::demo::TaskOptions;
use crate::demo::toolbox::{Caller, Era, Question, Reply};
use crate::demo::wire::{lock, with_member};
use crate::domain::clock::{Clock, SystemClock};
use crate::domain::ids::random_bytes;
use crate::lifecycle::spawn;

/// How often clients are to ask, in milliseconds.
const POLL_INTERVAL: u64 = 100;

/// All tasks of this process; an id is all that is needed to reach one.
pub(super) struct Tasks {
    options: TaskOptions,
    made: Mutex<Vec<Arc<Task>>>,
}

/// A call that runs as a task.
pub(super) struct Task {
    id: String,
    created: String,
    state: watch::Sender<State>,
    stop: CancellationToken,
}

struct State {
    status: &'static str,
    message: Option<String>,
    updated: String,
    /// Questions that have no answer yet.
    open: Vec<Question>,
    answers: Answers,
    /// The keys of all questions there were.
    keys: BTreeSet<String>,
    outcome: Option<Result<String, String>>,
}

impl State {
    fn has_ended(&self) -> bool {
        matches!(self.status, "completed" | "failed" | "cancelled")
    }
}

/// Starts a call as a task; the text of the result that says so. `answers` are those to what it asked before.
pub(super) fn start(server: &Arc<Server>, tasks: &Tasks, call: Call, answers: Answers) -> String {
    let task = tasks.make(server.closed.child_token());
    let created = with_member(&task.show(&task.state.borrow()), "resultType", r#""task""#);
    let caller = TaskCaller { server: Arc::clone(server), meta: call.meta, task: Arc::clone(&task), first: answers };
    let (name, arguments) = (call.name, call.arguments);
    spawn("demo server task", async move {
        let call = caller.server.toolbox.call(&name, &arguments, &caller);
        let reply = if caller.server.toolbox.is_deaf(&name) {
            call.await
        } else {
            tokio::select! {
                reply = call => reply,
                () = caller.task.stop.cancelled() => return,
            }
        };
        task.finish(reply.unwrap_or_else(|| Reply::error(-32602, &format!("this server has no tool {name}"))));
    });
    complete(&created)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    task_id: String,
    #[serde(borrow, default)]
    input_responses: Option<&'a RawValue>,
}

impl Tasks {
    pub(super) fn new(options: TaskOptions) -> Self {
        Self { options, made: Mutex::default() }
    }

    fn make(&self, stop: CancellationToken) -> Arc<Task> {
        // There are no callers here that an id could be kept from: it must not be guessed.
        let id = format!("{}{}", self.options.id_prefix, data_encoding::HEXLOWER.encode(&random_bytes::<16>()));
        let created = now();
        let state = State {
            status: "working",
            message: Some("running".to_owned()),
            updated: created.clone(),
            open: Vec::new(),
            answers: Answers::new(),
            keys: BTreeSet::new(),
            outcome: None,
        };
        let task = Arc::new(Task { id, created, state: watch::Sender::new(state), stop });
        lock(&self.made).push(Arc::clone(&task));
        task
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Task>> {
        lock(&self.made).iter().find(|task| task.id == id).map(Arc::clone)
    }

    /// Answers `tasks/get`, `tasks/update` and `tasks/cancel`; `None` for other methods.
    pub(super) fn request(&self, method: &str, params: &str) -> Option<Reply> {
        if !matches!(method, "tasks/get" | "tasks/update" | "tasks/cancel") {
            return None;
        }
        let Ok(params) = serde_json::from_str::<Params<'_>>(params) else {
            return Some(Reply::error(-32602, "taskId must be a string"));
        };
        let Some(task) = self.find(&params.task_id) else {
            return Some(Reply::error(-32602, "there is no such task"));
        };
        Some(match method {
            "tasks/get" => Reply::Result(task.show(&task.state.borrow())),
            "tasks/cancel" => {
                task.cancel();
                Reply::Result("{}".to_owned())
            }
            _ => match params.input_responses.map(|responses| read_answers(responses.get())) {
                Some(Ok(answers)) => {
                    task.answer(answers);
                    Reply::Result("{}".to_owned())
                }
                _ => Reply::error(-32602, "inputResponses must be an object"),
            },
        })
    }
}

impl Task {
    /// What `tasks/get` shows of it.
    fn show(&self, state: &State) -> String {
        let mut task = json!({
            "taskId": self.id,
            "status": state.status,
            "createdAt": self.created,
            "lastUpdatedAt": state.updated,
            "ttlMs": null,
            "pollIntervalMs": POLL_INTERVAL,
        });
        if let Some(message) = &state.message {
            task["statusMessage"] = json!(message);
        }
        if state.status == "input_required" {
            task["inputRequests"] = requests(&state.open);
        }
        match &state.outcome {
            Some(Ok(result)) => with_member(&task.to_string(), "result", &complete(result)),
            Some(Err(error)) => with_member(&task.to_string(), "error", error),
            None => task.to_string(),
        }
    }

    /// What it shows now and after each change, to its end.
    pub(super) fn states(self: Arc<Self>) -> impl Stream<Item = String> + Send {
        let mut state = self.state.subscribe();
        state.mark_changed();
        unfold(Some((self, state)), async |watched| {
            let (task, mut state) = watched?;
            state.changed().await.ok()?;
            let (shown, has_ended) = {
                let state = state.borrow_and_update();
                (task.show(&state), state.has_ended())
            };
            Some((shown, (!has_ended).then_some((task, state))))
        })
    }

    /// Changes it unless it has ended.
    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_if_modified(|state| {
            if state.has_ended() {
                return false;
            }
            change(state);
            state.updated = now();
            true
        });
    }

    fn cancel(&self) {
        self.change(|state| {
            state.status = "cancelled";
            state.message = Some("cancelled as asked".to_owned());
            state.open.clear();
        });
        self.stop.cancel();
    }

    fn finish(&self, reply: Reply) {
        let outcome = settle(reply);
        self.change(|state| {
            (state.status, state.message) = match &outcome {
                Ok(_) => ("completed", None),
                Err(error) => ("failed", message_of(error)),
            };
            state.open.clear();
            state.outcome = Some(outcome);
        });
    }

    /// Takes the answers to open questions; others are nobody's.
    fn answer(&self, answers: Answers) {
        self.change(|state| {
            for (key, answer) in answers {
                if let Some(at) = state.open.iter().position(|question| question.key == key) {
                    state.open.remove(at);
                    state.answers.insert(key, answer);
                }
            }
            state.status = if state.open.is_empty() { "working" } else { "input_required" };
        });
    }

    async fn ask(&self, mut question: Question) -> Option<String> {
        let mut key = question.key.clone();
        self.change(|state| {
            let mut n = 2;
            while !state.keys.insert(key.clone()) {
                key = format!("{}-{n}", question.key);
                n += 1;
            }
            question.key.clone_from(&key);
            state.open.push(question);
            state.status = "input_required";
        });
        let mut state = self.state.subscribe();
        let state = state.wait_for(|state| state.has_ended() || state.answers.contains_key(&key)).await.ok()?;
        state.answers.get(&key).cloned()
    }
}

fn message_of(error: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Outline {
        message: String,
    }
    serde_json::from_str::<Outline>(error).ok().map(|outline| outline.message)
}

fn now() -> String {
    SystemClock::new().now().to_rfc3339()
}

/// The client's side of a call that runs as a task: it says nothing, and asks by the task.
struct TaskCaller {
    server: Arc<Server>,
    meta: Meta,
    task: Arc<Task>,
    /// The answers to what the call asked before it became a task.
    first: Answers,
}

#[async_trait]
impl Caller for TaskCaller {
    fn era(&self) -> Era {
        Era::Modern
    }

    fn stop(&self) -> &CancellationToken {
        &self.task.stop
    }

    fn declared(&self, capability: &str) -> bool {
        self.meta.declares(capability)
    }

    async fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        let of = total.map_or_else(|| progress.to_string(), |total| format!("{progress} of {total}"));
        self.task.change(|state| state.message = Some(message.map_or(of, str::to_owned)));
    }

    async fn log(&self, _level: &str, _text: &str) {}

    async fn resource_updated(&self, uri: &str) {
        self.server.tell(News::Resource(uri.to_owned()));
    }

    async fn list_changed(&self, kind: &str) {
        self.server.tell(News::List(kind.to_owned()));
    }

    async fn ask(&self, question: Question) -> Option<String> {
        if let Some(answer) = self.first.get(&question.key) {
            return Some(answer.clone());
        }
        if may_ask(&self.meta, &question) { self.task.ask(question).await } else { None }
    }

    async fn elicitation_complete(&self, _id: &str) {}
}
