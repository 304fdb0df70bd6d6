//! The demo server's JSON-RPC loop: one message a line, calls side by side, cancellation, questions to the client.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::lifecycle::spawn;

/// A set of tools.
#[async_trait]
pub(super) trait Toolbox: Send + Sync + 'static {
    /// The definitions for `tools/list`: JSON objects, each on one line.
    fn definitions(&self) -> Vec<String>;

    /// Runs a call to its end; dropped when the client cancels. `None` if there is no such tool.
    async fn call(&self, name: &str, arguments: &str, caller: &Caller) -> Option<Reply>;

    /// Whether calls of this tool go on, and answer, after a cancellation.
    fn is_deaf(&self, _name: &str) -> bool {
        false
    }
}

/// What a call answers: JSON text on one line.
#[derive(Debug)]
pub(super) enum Reply {
    Result(String),
    Error(String),
}

impl Reply {
    /// A result with one text block.
    pub(super) fn text(text: &str) -> Self {
        Self::Result(json!({ "content": [{ "type": "text", "text": text }] }).to_string())
    }

    /// A tool error with one text block.
    pub(super) fn tool_error(text: &str) -> Self {
        Self::Result(json!({ "content": [{ "type": "text", "text": text }], "isError": true }).to_string())
    }

    pub(super) fn error(code: i64, message: &str) -> Self {
        Self::Error(json!({ "code": code, "message": message }).to_string())
    }
}

/// The client's side of one running call.
pub(super) struct Caller {
    session: Arc<Session>,
    progress_token: Option<String>,
    /// Cancelled when the client cancels the call or goes away.
    pub(super) stop: CancellationToken,
}

impl Caller {
    /// Sends `notifications/progress` if the call asked for it.
    pub(super) async fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        let Some(token) = &self.progress_token else { return };
        let mut rest = json!({ "progress": progress });
        if let Some(total) = total {
            rest["total"] = json!(total);
        }
        if let Some(message) = message {
            rest["message"] = json!(message);
        }
        let rest = rest.to_string();
        let params = format!("{{\"progressToken\":{token},{}", &rest[1..]);
        self.session.send(format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)).await;
    }

    /// Whether the client declared a capability such as `elicitation`.
    pub(super) fn declared(&self, capability: &str) -> bool {
        lock(&self.session.capabilities).iter().any(|name| name == capability)
    }

    /// Asks the client; its result, or `None` if it answered with an error or went away.
    pub(super) async fn ask(&self, method: &str, params: &str) -> Option<String> {
        let id = self.session.next_question.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.session.questions).insert(id, answer);
        self.session
            .send(format!(r#"{{"jsonrpc":"2.0","id":"question-{id}","method":{},"params":{params}}}"#, json!(method)))
            .await;
        answered.await.ok().flatten()
    }
}

/// Serves standard input and output until the input is closed.
pub(super) async fn serve(toolbox: Arc<dyn Toolbox>) -> anyhow::Result<()> {
    let (out, queue) = mpsc::channel(256);
    let writer = spawn("demo server output", write(queue));
    let session = Arc::new(Session {
        toolbox,
        out,
        capabilities: Mutex::default(),
        running: Mutex::default(),
        questions: Mutex::default(),
        next_question: AtomicU64::new(1),
        closed: CancellationToken::new(),
    });
    let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
    while let Some(line) = lines.next_segment().await? {
        if line.iter().any(|byte| !byte.is_ascii_whitespace()) {
            session.take(&line).await;
        }
    }
    session.closed.cancel();
    writer.abort();
    Ok(())
}

struct Session {
    toolbox: Arc<dyn Toolbox>,
    out: mpsc::Sender<String>,
    /// The names of the capabilities that the client declared.
    capabilities: Mutex<Vec<String>>,
    /// Calls in progress, by the text of their request id.
    running: Mutex<HashMap<String, CancellationToken>>,
    questions: Mutex<HashMap<u64, oneshot::Sender<Option<String>>>>,
    next_question: AtomicU64,
    closed: CancellationToken,
}

#[derive(Deserialize)]
struct Incoming<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<CallMeta<'a>>,
}

#[derive(Deserialize)]
struct CallMeta<'a> {
    #[serde(borrow, default, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
}

impl Session {
    async fn take(self: &Arc<Self>, line: &[u8]) {
        let Ok(incoming) = serde_json::from_slice::<Incoming<'_>>(line) else {
            return self.send(error_line("null", &error(-32700, "this line is no JSON-RPC message"))).await;
        };
        let params = incoming.params.map_or("{}", RawValue::get);
        match (incoming.method.as_deref(), incoming.id.map(RawValue::get)) {
            (Some(method), Some(id)) => self.request(id, method, params).await,
            (Some("notifications/cancelled"), None) => self.cancelled(params),
            (Some(_), None) | (None, None) => {}
            (None, Some(id)) => self.answered(id, incoming.result),
        }
    }

    async fn request(self: &Arc<Self>, id: &str, method: &str, params: &str) {
        let line = match method {
            "initialize" => result_line(id, &self.initialize(params)),
            "ping" => result_line(id, "{}"),
            "tools/list" => result_line(id, &format!(r#"{{"tools":[{}]}}"#, self.toolbox.definitions().join(","))),
            "tools/call" => match serde_json::from_str::<CallParams<'_>>(params) {
                Ok(params) => return self.start_call(id, &params),
                Err(_) => error_line(id, &error(-32602, "tools/call needs the name of a tool")),
            },
            _ => error_line(id, &error(-32601, "this server does not know the method")),
        };
        self.send(line).await;
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
        json!({
            "protocolVersion": version,
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "taskhold-demo", "version": env!("CARGO_PKG_VERSION") },
        })
        .to_string()
    }

    fn start_call(self: &Arc<Self>, id: &str, params: &CallParams<'_>) {
        let stop = self.closed.child_token();
        lock(&self.running).insert(id.to_owned(), stop.clone());
        let caller = Caller {
            session: Arc::clone(self),
            progress_token: params.meta.as_ref().and_then(|meta| meta.progress_token).map(|raw| raw.get().to_owned()),
            stop,
        };
        let (id, name) = (id.to_owned(), params.name.clone().into_owned());
        let arguments = params.arguments.map_or("{}", RawValue::get).to_owned();
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
            lock(&session.running).remove(&id);
            let line = match reply {
                Some(Reply::Result(result)) => result_line(&id, &result),
                Some(Reply::Error(error)) => error_line(&id, &error),
                None => error_line(&id, &error(-32602, &format!("this server has no tool {name}"))),
            };
            session.send(line).await;
        });
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

    async fn send(&self, line: String) {
        // Fails only when the output is gone, and with it everybody who could read.
        let _ = self.out.send(line).await;
    }
}

async fn write(mut queue: mpsc::Receiver<String>) {
    let mut out = tokio::io::stdout();
    while let Some(mut line) = queue.recv().await {
        line.push('\n');
        if out.write_all(line.as_bytes()).await.is_err() || out.flush().await.is_err() {
            return;
        }
    }
}

fn result_line(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

fn error_line(id: &str, error: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

fn error(code: i64, message: &str) -> String {
    json!({ "code": code, "message": message }).to_string()
}

/// A poisoned lock is taken all the same: its data are single inserts and removals, never half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
