//! An executor whose work is done by the test, call by call, and a catalogue of its tools. It stands for no real upstream: those
//! are tested with real processes. It makes races of the engine happen in the order that a test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::mode::TaskMode;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::{ArgumentCheck, Attempt, Call, Catalogue, Changes, Executor, Host, Shelf, Tool};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::host::Answers as _;

/// Hands every call to the test.
pub struct Script {
    calls: mpsc::UnboundedSender<ScriptedCall>,
    taken: Mutex<mpsc::UnboundedReceiver<ScriptedCall>>,
    lacks_servers: AtomicBool,
}

/// A call that waits for the test to say how it ends.
pub struct ScriptedCall {
    pub call: Call,
    pub host: Arc<dyn Host>,
    pub stop: CancellationToken,
    end: oneshot::Sender<Attempt>,
}

impl Script {
    pub fn new() -> Arc<Self> {
        let (calls, taken) = mpsc::unbounded_channel();
        Arc::new(Self { calls, taken: Mutex::new(taken), lacks_servers: AtomicBool::new(false) })
    }

    /// From now on it serves no upstream, as a node of another configuration.
    pub fn lacks_servers(&self) {
        self.lacks_servers.store(true, Ordering::SeqCst);
    }

    /// The next call, as soon as the engine makes it.
    pub async fn next(&self) -> ScriptedCall {
        self.taken.lock().await.recv().await.expect("the script lives as long as its executor")
    }

    /// Whether a call was made that the test has not taken.
    pub async fn is_idle(&self) -> bool {
        self.taken.lock().await.is_empty()
    }
}

impl ScriptedCall {
    /// Ends the call; the engine may have given up on it by now.
    pub fn end(self, attempt: Attempt) {
        let _given_up = self.end.send(attempt);
    }

    pub fn answer(self, text: &str) {
        self.end(Attempt::Answered(result(text)));
    }

    /// The work asks; its answer, once there is one.
    pub fn ask(&self, question: Question) -> JoinHandle<Answer> {
        let host = self.host.clone();
        tokio::spawn(async move { host.answer_to(question).await })
    }

    /// Ends the call by a panic of the executor.
    pub fn panic(self) {
        drop(self.end);
    }
}

#[async_trait]
impl Executor for Script {
    async fn run(&self, call: Call, host: Arc<dyn Host>, stop: CancellationToken) -> Attempt {
        let (end, ended) = oneshot::channel();
        let scripted = ScriptedCall { call, host, stop: stop.clone(), end };
        assert!(self.calls.send(scripted).is_ok(), "the script's receiver lives as long as its executor");
        tokio::select! {
            attempt = ended => attempt.expect("the test ended this call by a panic"),
            () = stop.cancelled() => Attempt::Stopped,
        }
    }

    fn serves(&self, _upstream: &str) -> bool {
        !self.lacks_servers.load(Ordering::SeqCst)
    }
}

/// Answers every call at once.
pub struct Prompt;

#[async_trait]
impl Executor for Prompt {
    async fn run(&self, call: Call, _: Arc<dyn Host>, _: CancellationToken) -> Attempt {
        Attempt::Answered(result(&call.upstream_tool))
    }
}

/// A question for a number.
pub fn how_many() -> Question {
    let params = serde_json::json!({ "message": "How many?", "requestedSchema": {
        "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] } });
    Question { kind: InputKind::Elicitation, params: Some(RawJson::from_value(&params)) }
}

/// A tool result with one text block.
pub fn result(text: &str) -> Outcome {
    let content = serde_json::json!({ "content": [{ "type": "text", "text": text }] });
    Outcome::Result { json: RawJson::from_value(&content), is_error: false }
}

/// A fixed list of tools.
pub struct Tools {
    tools: Arc<Vec<Arc<Tool>>>,
    shelf: Arc<Shelf>,
    changes: watch::Sender<Changes>,
}

impl Tools {
    pub fn new(tools: Vec<Tool>) -> Arc<Self> {
        Self::beside(tools, Shelf::default())
    }

    /// Tools, and what is offered besides them.
    pub fn beside(tools: Vec<Tool>, shelf: Shelf) -> Arc<Self> {
        Arc::new(Self {
            tools: Arc::new(tools.into_iter().map(Arc::new).collect()),
            shelf: Arc::new(shelf),
            changes: watch::Sender::new(Changes::default()),
        })
    }

    /// Says that lists have changed, as a catalogue does whose upstreams offer other things than before.
    pub fn say_changed(&self, change: impl FnOnce(&mut Changes)) {
        self.changes.send_modify(change);
    }
}

impl Catalogue for Tools {
    fn tools(&self) -> Arc<Vec<Arc<Tool>>> {
        Arc::clone(&self.tools)
    }

    fn tool(&self, exposed: &str) -> Option<Arc<Tool>> {
        self.tools.iter().find(|tool| tool.exposed == exposed).cloned()
    }

    fn shelf(&self) -> Arc<Shelf> {
        Arc::clone(&self.shelf)
    }

    fn changes(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }
}

/// A tool that takes any arguments but those with a member `bad`.
pub fn tool(name: &str, mode: TaskMode, restart: RestartPolicy) -> Tool {
    Tool {
        exposed: name.to_owned(),
        upstream: "script".to_owned(),
        upstream_tool: name.to_owned(),
        definition: RawJson::from_value(&serde_json::json!({ "name": name, "inputSchema": { "type": "object" } })),
        mode,
        ask_first: false,
        restart,
        run_limit: None,
        slots: None,
        ttl: None,
        poll_interval: None,
        grace: None,
        input_timeout: None,
        immediate_response: None,
        param_headers: Vec::new(),
        arguments: ArgumentCheck::new(|arguments| {
            if arguments.as_str().contains("\"bad\"") { Err("/bad: not allowed".to_owned()) } else { Ok(()) }
        }),
    }
}
