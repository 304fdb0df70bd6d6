//! An executor whose work is done by the test, call by call, and a catalogue of its tools. It stands for no real upstream: those
//! are tested with real processes. It makes races of the engine happen in the order that a test wants.

use std::sync::Arc;

use async_trait::async_trait;
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::mode::TaskMode;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::{ArgumentCheck, Attempt, Call, Catalogue, Event, Executor, Tool};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Hands every call to the test.
pub struct Script {
    calls: mpsc::UnboundedSender<ScriptedCall>,
    taken: Mutex<mpsc::UnboundedReceiver<ScriptedCall>>,
}

/// A call that waits for the test to say how it ends.
pub struct ScriptedCall {
    pub call: Call,
    pub events: mpsc::Sender<Event>,
    pub stop: CancellationToken,
    end: oneshot::Sender<Attempt>,
}

impl Script {
    pub fn new() -> Arc<Self> {
        let (calls, taken) = mpsc::unbounded_channel();
        Arc::new(Self { calls, taken: Mutex::new(taken) })
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

    /// Ends the call by a panic of the executor.
    pub fn panic(self) {
        drop(self.end);
    }
}

#[async_trait]
impl Executor for Script {
    async fn run(&self, call: Call, events: mpsc::Sender<Event>, stop: CancellationToken) -> Attempt {
        let (end, ended) = oneshot::channel();
        let scripted = ScriptedCall { call, events, stop: stop.clone(), end };
        assert!(self.calls.send(scripted).is_ok(), "the script's receiver lives as long as its executor");
        tokio::select! {
            attempt = ended => attempt.expect("the test ended this call by a panic"),
            () = stop.cancelled() => Attempt::Stopped,
        }
    }
}

/// Answers every call at once.
pub struct Prompt;

#[async_trait]
impl Executor for Prompt {
    async fn run(&self, call: Call, _: mpsc::Sender<Event>, _: CancellationToken) -> Attempt {
        Attempt::Answered(result(&call.upstream_tool))
    }
}

/// A tool result with one text block.
pub fn result(text: &str) -> Outcome {
    let content = serde_json::json!({ "content": [{ "type": "text", "text": text }] });
    Outcome::Result { json: RawJson::from_value(&content), is_error: false }
}

/// A fixed list of tools.
pub struct Tools(Arc<Vec<Arc<Tool>>>);

impl Tools {
    pub fn new(tools: Vec<Tool>) -> Arc<Self> {
        Arc::new(Self(Arc::new(tools.into_iter().map(Arc::new).collect())))
    }
}

impl Catalogue for Tools {
    fn tools(&self) -> Arc<Vec<Arc<Tool>>> {
        Arc::clone(&self.0)
    }

    fn tool(&self, exposed: &str) -> Option<Arc<Tool>> {
        self.0.iter().find(|tool| tool.exposed == exposed).cloned()
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
        restart,
        run_limit: None,
        ttl: None,
        poll_interval: None,
        immediate_response: None,
        arguments: ArgumentCheck::new(|arguments| {
            if arguments.as_str().contains("\"bad\"") { Err("/bad: not allowed".to_owned()) } else { Ok(()) }
        }),
    }
}
