//! Clients of 2026-07-28: every request stands alone and says what its client can do. Questions go out as results that the client
//! answers by a retry (`call`), slow calls become tasks (`tasks`), news go to those who listen (`listen`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

pub(super) use self::headers::Headers;
pub(super) use self::meta::speaks;
pub(super) use self::refusal::Refusal;

use self::listen::News;
use self::meta::{Meta, SUPPORTED, TASKS, VERSION, tasks_capability};
use self::state::Sealer;
use self::tasks::Tasks;
use super::TaskOptions;
use super::toolbox::{Era, Mode, Reply, Toolbox};
use super::wire::{Incoming, Out, error_line, lock, result_line, send, server_info, with_member, with_meta};
use crate::lifecycle::spawn;

mod call;
mod headers;
mod listen;
mod meta;
mod refusal;
mod state;
mod tasks;

/// For how long a list may be kept, in milliseconds.
const TTL_MS: u64 = 60_000;

/// What all clients of this era share: nothing is kept for one of them but the tasks.
pub(super) struct Server {
    toolbox: Arc<dyn Toolbox>,
    tasks: Option<Tasks>,
    sealer: Sealer,
    news: broadcast::Sender<News>,
    /// Calls and subscriptions in progress, by the text of their request id, for `notifications/cancelled`.
    running: Mutex<HashMap<String, CancellationToken>>,
    closed: CancellationToken,
}

/// A request that may run.
pub(super) struct Request<'a> {
    id: &'a str,
    method: &'a str,
    params: &'a str,
    meta: Meta,
}

impl Server {
    pub(super) fn new(toolbox: Arc<dyn Toolbox>, tasks: Option<TaskOptions>) -> Arc<Self> {
        Arc::new(Self {
            toolbox,
            tasks: tasks.map(Tasks::new),
            sealer: Sealer::new(),
            news: broadcast::Sender::new(256),
            running: Mutex::default(),
            closed: CancellationToken::new(),
        })
    }

    /// Ends its calls and subscriptions.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    /// Takes one message that came on a standard stream.
    pub(super) async fn take(self: &Arc<Self>, incoming: &Incoming<'_>, out: &Out) {
        match self.admit(incoming, None) {
            None => {}
            Some(Ok(request)) => self.serve(request, out).await,
            Some(Err(refusal)) => {
                let id = incoming.id().unwrap_or("null");
                send(out, error_line(id, &refusal.error)).await;
            }
        }
    }

    /// Whether a message is to be served, before anything of it runs; the first reason against it counts. `None` if it is no request.
    pub(super) fn admit<'a>(
        &self,
        incoming: &'a Incoming<'_>,
        headers: Option<&Headers>,
    ) -> Option<Result<Request<'a>, Refusal>> {
        let (id, method) = (incoming.id()?, incoming.method.as_deref()?);
        Some(self.check(method, incoming.params(), headers).map(|meta| Request {
            id,
            method,
            params: incoming.params(),
            meta,
        }))
    }

    fn check(&self, method: &str, params: &str, headers: Option<&Headers>) -> Result<Meta, Refusal> {
        let meta = Meta::read(params)?;
        if let Some(headers) = headers {
            headers.check_version(&meta.version)?;
        }
        if meta.version != VERSION {
            return Err(Refusal::version(&meta.version));
        }
        let called = (method == "tools/call").then(|| Called::read(params)).flatten();
        if let Some(headers) = headers {
            let definition = called.as_ref().and_then(|called| self.definition(&called.name));
            headers.check_routing(method, params, definition.as_deref())?;
        }
        if !self.knows(method) {
            return Err(Refusal::method(method));
        }
        let needs_tasks = match method {
            "tasks/get" | "tasks/update" | "tasks/cancel" => true,
            "subscriptions/listen" => listen::names_tasks(params),
            _ => {
                let mode = called.map(|called| self.toolbox.mode(&called.name, &called.arguments));
                self.tasks.is_some() && mode == Some(Mode::Always)
            }
        };
        if needs_tasks && !meta.declares_tasks() {
            return Err(Refusal::capability(&tasks_capability()));
        }
        Ok(meta)
    }

    fn knows(&self, method: &str) -> bool {
        let capabilities = self.toolbox.capabilities();
        let has = |name: &str| capabilities.get(name).is_some();
        match method {
            "server/discover" | "tools/list" | "tools/call" => true,
            "prompts/list" | "prompts/get" => has("prompts"),
            "resources/list" | "resources/templates/list" | "resources/read" => has("resources"),
            "completion/complete" => has("completions"),
            "tasks/get" | "tasks/update" | "tasks/cancel" => self.tasks.is_some(),
            "subscriptions/listen" => self.tasks.is_some() || listen::has_news(&capabilities),
            _ => false,
        }
    }

    fn definition(&self, tool: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let mut definitions = self.toolbox.definitions().into_iter();
        definitions.find(|text| serde_json::from_str::<Named>(text).is_ok_and(|named| named.name == tool))
    }

    /// Serves a request; its answer, and what is said while that is made, go to `out`. When nobody reads that any more it is
    /// cancelled.
    pub(super) async fn serve(self: &Arc<Self>, request: Request<'_>, out: &Out) {
        let Request { id, method, params, meta } = request;
        let reply = match method {
            "tools/call" => return self.start_call(id, params, meta, out).await,
            "subscriptions/listen" => return self.start_listening(id, params, out),
            "server/discover" => Reply::Result(self.discover()),
            "tools/list" => Reply::Result(format!(r#"{{"tools":[{}]}}"#, self.toolbox.definitions().join(","))),
            _ => match self.tasks.as_ref().and_then(|tasks| tasks.request(method, params)) {
                Some(reply) => reply,
                None => self.toolbox.request(Era::Modern, method, params).unwrap_or_else(|| unserved(method)),
            },
        };
        let reply = match reply {
            Reply::Result(result) if may_be_kept(method, &result) => {
                let result = with_member(&result, "ttlMs", &TTL_MS.to_string());
                Reply::Result(with_member(&result, "cacheScope", r#""public""#))
            }
            reply => reply,
        };
        send(out, reply_line(id, reply)).await;
    }

    fn discover(&self) -> String {
        let mut capabilities = self.toolbox.capabilities();
        if self.tasks.is_some() {
            capabilities["extensions"] = json!({ TASKS: {} });
        }
        json!({ "supportedVersions": SUPPORTED, "capabilities": capabilities }).to_string()
    }

    async fn start_call(self: &Arc<Self>, id: &str, params: &str, meta: Meta, out: &Out) {
        let call = match call::Call::read(&self.sealer, params, meta) {
            Ok(call) => call,
            Err(refusal) => return send(out, error_line(id, &refusal.error)).await,
        };
        let (stop, out) = (self.running(id), out.clone());
        let (server, id) = (Arc::clone(self), id.to_owned());
        spawn("demo server call", async move {
            let is_deaf = server.toolbox.is_deaf(&call.name);
            tokio::select! {
                biased;
                // A cancelled request gets no answer.
                () = stop.cancelled(), if !is_deaf => {}
                () = out.closed(), if !is_deaf => {}
                line = call::run(&server, &id, call, &out, &stop) => send(&out, line).await,
            }
            // Also what the tool has left to run.
            stop.cancel();
            lock(&server.running).remove(&id);
        });
    }

    fn start_listening(self: &Arc<Self>, id: &str, params: &str, out: &Out) {
        let (server, out, stop) = (Arc::clone(self), out.clone(), self.running(id));
        let (id, params) = (id.to_owned(), params.to_owned());
        spawn("demo server subscription", async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = out.closed() => {}
                () = listen::listen(&server, &id, &params, &out) => {}
            }
            lock(&server.running).remove(&id);
        });
    }

    fn running(&self, id: &str) -> CancellationToken {
        let stop = self.closed.child_token();
        lock(&self.running).insert(id.to_owned(), stop.clone());
        stop
    }

    /// Takes the params of a `notifications/cancelled` of the one client that has these ids.
    pub(super) fn cancelled(&self, params: &str) {
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
}

/// What a `tools/call` calls.
struct Called {
    name: String,
    arguments: String,
}

impl Called {
    fn read(params: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Params<'a> {
            name: String,
            #[serde(borrow, default)]
            arguments: Option<&'a RawValue>,
        }
        let Params { name, arguments } = serde_json::from_str(params).ok()?;
        Some(Self { name, arguments: arguments.map_or("{}", RawValue::get).to_owned() })
    }
}

/// The line that answers a request.
fn reply_line(id: &str, reply: Reply) -> String {
    match settle(reply) {
        Ok(result) => result_line(id, &complete(&result)),
        Err(error) => error_line(id, &error),
    }
}

/// The text of a result, or of an error.
fn settle(reply: Reply) -> Result<String, String> {
    match reply {
        Reply::Result(result) => Ok(result),
        Reply::Error(error) => Err(error),
        Reply::Missing(capabilities) => Err(Refusal::capability(&capabilities).error),
    }
}

/// The result with what every result has; one that says of which type it is keeps that.
fn complete(result: &str) -> String {
    let info = json!({ "io.modelcontextprotocol/serverInfo": server_info() });
    let result = with_meta(result, &info.to_string());
    if has_type(&result) { result } else { with_member(&result, "resultType", r#""complete""#) }
}

fn has_type(result: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Outline {
        #[serde(default)]
        result_type: Option<IgnoredAny>,
    }
    serde_json::from_str::<Outline>(result).is_ok_and(|outline| outline.result_type.is_some())
}

fn may_be_kept(method: &str, result: &str) -> bool {
    let is_kind = matches!(
        method,
        "server/discover"
            | "tools/list"
            | "prompts/list"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
    );
    is_kind && !has_type(result)
}

fn unserved(method: &str) -> Reply {
    Reply::Error(Refusal::method(method).error)
}
