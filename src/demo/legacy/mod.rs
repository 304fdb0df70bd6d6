//! Clients of 2025-11-25 and 2025-06-18: calls side by side, cancellation, questions to the client, tasks that it asks for. What
//! carries the messages gives each of them with the way for what belongs to it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::caller::SessionCaller;
use self::tasks::{Task, Tasks};
use super::TaskOptions;
use super::toolbox::{Era, Mode, Reply, Toolbox};
use super::wire::{Incoming, Out, error, error_line, lock, notification, result_line, send, server_info};
use crate::lifecycle::spawn;

mod caller;
mod tasks;

/// What one client has.
pub(super) struct Session {
    toolbox: Arc<dyn Toolbox>,
    /// The names of the capabilities that the client declared.
    capabilities: Mutex<Vec<String>>,
    /// Calls in progress, by the text of their request id.
    running: Mutex<HashMap<String, CancellationToken>>,
    questions: Mutex<HashMap<u64, oneshot::Sender<Option<String>>>>,
    /// The least severe level of log messages that the client wants.
    level: Mutex<Option<String>>,
    /// URIs.
    subscribed: Mutex<HashSet<String>>,
    next_question: AtomicU64,
    tasks: Option<Tasks>,
    /// Where what belongs to no request goes.
    own: Mutex<Option<Out>>,
    closed: CancellationToken,
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<CallMeta<'a>>,
    #[serde(default)]
    task: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct CallMeta<'a> {
    #[serde(borrow, default, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
}

impl Session {
    pub(super) fn new(toolbox: Arc<dyn Toolbox>, tasks: Option<TaskOptions>) -> Arc<Self> {
        Arc::new(Self {
            toolbox,
            capabilities: Mutex::default(),
            running: Mutex::default(),
            questions: Mutex::default(),
            level: Mutex::default(),
            subscribed: Mutex::default(),
            next_question: AtomicU64::new(1),
            tasks: tasks.map(Tasks::new),
            own: Mutex::default(),
            closed: CancellationToken::new(),
        })
    }

    pub(super) fn set_own(&self, out: Out) {
        *lock(&self.own) = Some(out);
    }

    /// Ends its calls.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    /// Takes one message; its answer, and what is said while that is made, go to `out`.
    pub(super) async fn take(self: &Arc<Self>, incoming: &Incoming<'_>, out: &Out) {
        match (incoming.method.as_deref(), incoming.id()) {
            (Some(method), Some(id)) => self.request(id, method, incoming.params(), out).await,
            (Some("notifications/cancelled"), None) => self.cancelled(incoming.params()),
            (Some(_), None) | (None, None) => {}
            (None, Some(id)) => self.answered(id, incoming.result),
        }
    }

    async fn request(self: &Arc<Self>, id: &str, method: &str, params: &str, out: &Out) {
        let line = match method {
            "initialize" => result_line(id, &self.initialize(params)),
            "ping" => result_line(id, "{}"),
            "tools/list" => result_line(id, &format!(r#"{{"tools":[{}]}}"#, self.definitions().join(","))),
            "tools/call" => match serde_json::from_str::<CallParams<'_>>(params) {
                Ok(params) => return self.start_call(id, &params, out).await,
                Err(_) => error_line(id, &error(-32602, "tools/call needs the name of a tool")),
            },
            "tasks/result" if self.tasks.is_some() => return self.start_result(id, params, out).await,
            _ => match self.of_tasks(method, params).or_else(|| self.toolbox.request(Era::Legacy, method, params)) {
                Some(reply) => {
                    let answer = settle(reply);
                    if answer.is_ok() {
                        self.note(method, params);
                    }
                    answer_line(id, &answer)
                }
                None => error_line(id, &error(-32601, "this server does not know the method")),
            },
        };
        send(out, line).await;
    }

    fn of_tasks(&self, method: &str, params: &str) -> Option<Reply> {
        self.tasks.as_ref()?.request(method, params)
    }

    /// With what tasks are for, where the server runs them.
    fn definitions(&self) -> Vec<String> {
        let mut definitions = self.toolbox.definitions();
        if self.tasks.is_some() {
            for definition in &mut definitions {
                let support = match self.toolbox.mode(&name_of(definition), "{}") {
                    Mode::Never => "forbidden",
                    Mode::Optional | Mode::Eager => "optional",
                    Mode::Always => "required",
                };
                definition.truncate(definition.len() - 1);
                definition.push_str(&format!(r#","execution":{{"taskSupport":"{support}"}}}}"#));
            }
        }
        definitions
    }

    async fn start_result(self: &Arc<Self>, id: &str, params: &str, out: &Out) {
        let Some(task) = self.tasks.as_ref().and_then(|tasks| tasks.find(params)) else {
            return send(out, error_line(id, &error(-32602, "there is no such task"))).await;
        };
        let (id, out, closed) = (id.to_owned(), out.clone(), self.closed.clone());
        spawn("demo server task result", async move {
            tokio::select! {
                answer = task.result(&out) => send(&out, answer_line(&id, &answer)).await,
                () = closed.cancelled() => {}
            }
        });
    }

    /// Keeps what a request that was granted asks for.
    fn note(&self, method: &str, params: &str) {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Params {
            level: Option<String>,
            uri: String,
        }
        let params: Params = serde_json::from_str(params).unwrap_or_default();
        match method {
            "logging/setLevel" => *lock(&self.level) = params.level,
            "resources/subscribe" => drop(lock(&self.subscribed).insert(params.uri)),
            "resources/unsubscribe" => drop(lock(&self.subscribed).remove(&params.uri)),
            _ => {}
        }
    }

    fn initialize(&self, params: &str) -> String {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Params<'a> {
            #[serde(borrow, rename = "protocolVersion")]
            version: Cow<'a, str>,
            #[serde(borrow)]
            capabilities: HashMap<Cow<'a, str>, &'a RawValue>,
        }
        let params: Params<'_> = serde_json::from_str(params).unwrap_or_default();
        *lock(&self.capabilities) = params.capabilities.keys().map(|name| name.clone().into_owned()).collect();
        let version = if params.version == "2025-06-18" { "2025-06-18" } else { "2025-11-25" };
        let mut capabilities = self.toolbox.capabilities();
        if self.tasks.is_some() {
            capabilities["tasks"] = Tasks::declared();
        }
        json!({
            "protocolVersion": version,
            "capabilities": capabilities,
            "serverInfo": server_info(),
        })
        .to_string()
    }

    async fn start_call(self: &Arc<Self>, id: &str, params: &CallParams<'_>, out: &Out) {
        let stop = self.closed.child_token();
        let arguments = params.arguments.map_or("{}", RawValue::get).to_owned();
        let mode = self.toolbox.mode(&params.name, &arguments);
        let task = match &self.tasks {
            Some(_) if params.task.is_some() && mode == Mode::Never => {
                return send(out, error_line(id, &error(-32601, "this tool does not run as a task"))).await;
            }
            Some(tasks) if params.task.is_some() => Some(tasks.make(stop.clone())),
            Some(_) if mode == Mode::Always => {
                return send(out, error_line(id, &error(-32601, "this tool runs as a task only"))).await;
            }
            _ => None,
        };
        let caller = SessionCaller {
            session: Arc::clone(self),
            out: task.is_none().then(|| out.clone()),
            progress_token: params.meta.as_ref().and_then(|meta| meta.progress_token).map(|raw| raw.get().to_owned()),
            task: task.clone(),
            stop: stop.clone(),
        };
        if let Some(task) = task {
            let created = json!({ "task": task.to_json() }).to_string();
            spawn("demo server task status", Arc::clone(self).tell_changes(Arc::clone(&task)));
            send(out, result_line(id, &created)).await;
        } else {
            lock(&self.running).insert(id.to_owned(), stop);
        }
        let (id, name) = (id.to_owned(), params.name.clone().into_owned());
        spawn("demo server call", async move {
            let session = Arc::clone(&caller.session);
            let call = session.toolbox.call(&name, &arguments, &caller);
            let reply = if session.toolbox.is_deaf(&name) {
                call.await
            } else {
                tokio::select! {
                    reply = call => reply,
                    // A cancelled request gets no answer.
                    () = caller.stop.cancelled() => return,
                }
            };
            let reply = reply.unwrap_or_else(|| Reply::error(-32602, &format!("this server has no tool {name}")));
            let answer = settle(reply);
            match (&caller.task, &caller.out) {
                (Some(task), _) => task.finish(answer),
                (None, Some(out)) => {
                    lock(&session.running).remove(&id);
                    send(out, answer_line(&id, &answer)).await;
                }
                (None, None) => {}
            }
        });
    }

    /// Sends `notifications/tasks/status` until the task's end.
    async fn tell_changes(self: Arc<Self>, task: Arc<Task>) {
        loop {
            let change = task.changes();
            let told = task.to_json();
            let own = lock(&self.own).clone();
            if let Some(out) = own {
                send(&out, notification("notifications/tasks/status", &told.to_string())).await;
            }
            if matches!(told["status"].as_str(), Some("completed" | "failed" | "cancelled")) {
                return;
            }
            tokio::select! {
                is_there = change => if !is_there { return },
                () = self.closed.cancelled() => return,
            }
        }
    }

    fn cancelled(&self, params: &str) {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(borrow, rename = "requestId")]
            id: &'a RawValue,
        }
        if let Ok(params) = serde_json::from_str::<Params<'_>>(params)
            && let Some(stop) = lock(&self.running).remove(params.id.get())
        {
            stop.cancel();
        }
    }

    fn answered(&self, id: &str, result: Option<&RawValue>) {
        let number = serde_json::from_str::<String>(id).ok();
        let number = number.as_deref().and_then(|id| id.strip_prefix("question-")?.parse().ok());
        if let Some(question) = number.and_then(|number: u64| lock(&self.questions).remove(&number)) {
            // The asking call may have been cancelled meanwhile.
            let _ = question.send(result.map(|raw| raw.get().to_owned()));
        }
    }
}

/// The text of a result, or of an error.
type Answer = Result<String, String>;

/// A tool of this era that lacks a capability fails.
fn settle(reply: Reply) -> Answer {
    match reply {
        Reply::Result(result) => Ok(result),
        Reply::Error(error) => Err(error),
        Reply::Missing(capabilities) => {
            let names: Vec<_> = capabilities.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            settle(Reply::tool_error(&format!("this tool needs the client capability {}", names.join(", "))))
        }
    }
}

fn answer_line(id: &str, answer: &Answer) -> String {
    match answer {
        Ok(result) => result_line(id, result),
        Err(error) => error_line(id, error),
    }
}

fn name_of(definition: &str) -> String {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    serde_json::from_str(definition).map(|Named { name }| name).unwrap_or_default()
}
