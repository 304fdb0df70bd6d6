//! A `tools/call`. It never waits for its client: a tool that asks is dropped when its questions have gone out, and runs again from
//! its beginning when the retry brings the answers.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::listen::News;
use super::meta::Meta;
use super::refusal::Refusal;
use super::state::{Answers, Sealer};
use super::{Called, Server, complete, reply_line, tasks};
use crate::demo::toolbox::{Caller, Era, Mode, Question, Reply};
use crate::demo::wire::{Out, lock, log_params, notification, progress_params, result_line, send};

/// A call as its request gives it.
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) meta: Meta,
    /// The answers that came back in the state; `None` without one.
    state: Option<Answers>,
    /// The answers that the request itself brings.
    responses: Answers,
}

impl Call {
    pub(super) fn read(sealer: &Sealer, params: &str, meta: Meta) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow, default)]
            input_responses: Option<&'a RawValue>,
            #[serde(borrow, default)]
            request_state: Option<&'a RawValue>,
        }
        let called = Called::read(params).ok_or_else(|| Refusal::params("tools/call needs the name of a tool"))?;
        // What it does not know in them has been read once already.
        let Params { input_responses, request_state } =
            serde_json::from_str(params).map_err(|_| Refusal::params("these params cannot be read"))?;
        let responses = match input_responses {
            Some(responses) => read_answers(responses.get())?,
            None => Answers::new(),
        };
        let state = request_state.map(|state| {
            let state = serde_json::from_str::<String>(state.get()).ok();
            let answers = state.and_then(|state| sealer.open(&called.name, &called.arguments, &state));
            answers.ok_or_else(|| Refusal::params("requestState was not given out for this call"))
        });
        let Called { name, arguments } = called;
        Ok(Self { name, arguments, meta, state: state.transpose()?, responses })
    }
}

/// The answers of an `inputResponses`; those that are no objects are no answers.
pub(super) fn read_answers(responses: &str) -> Result<Answers, Refusal> {
    let responses: std::collections::BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(responses).map_err(|_| Refusal::params("inputResponses must be an object"))?;
    let objects = responses.into_iter().filter(|(_, answer)| answer.get().starts_with('{'));
    Ok(objects.map(|(key, answer)| (key, answer.get().to_owned())).collect())
}

/// How an attempt of a call ends.
enum End {
    Replied(Option<Reply>),
    /// It waits for answers to the questions that it asked.
    Asked,
    /// Its work begins, which is a task's.
    Begun,
}

/// Runs a call to the line that answers its request.
pub(super) async fn run(server: &Arc<Server>, id: &str, call: Call, out: &Out, stop: &CancellationToken) -> String {
    let mode = server.toolbox.mode(&call.name, &call.arguments);
    let runner =
        server.tasks.as_ref().filter(|_| call.meta.declares_tasks() && matches!(mode, Mode::Eager | Mode::Always));
    if let Some(tasks) = runner
        && !server.toolbox.asks_first(&call.name)
    {
        return result_line(id, &tasks::start(server, tasks, call, Answers::new()));
    }
    let caller = PlainCaller {
        server,
        call: &call,
        out,
        stop,
        leads_to_task: runner.is_some(),
        asked: Mutex::default(),
        used: Mutex::default(),
        begun: AtomicBool::new(false),
    };
    match caller.attempt().await {
        End::Replied(Some(reply)) => reply_line(id, reply),
        End::Replied(None) => reply_line(id, Reply::error(-32602, &format!("this server has no tool {}", call.name))),
        End::Asked => result_line(id, &caller.input_required()),
        End::Begun => {
            let used = std::mem::take(&mut *lock(&caller.used));
            match runner {
                Some(tasks) => result_line(id, &tasks::start(server, tasks, call, used)),
                None => reply_line(id, Reply::error(-32603, "this server runs no tasks")),
            }
        }
    }
}

/// The client's side of one attempt.
struct PlainCaller<'a> {
    server: &'a Arc<Server>,
    call: &'a Call,
    out: &'a Out,
    stop: &'a CancellationToken,
    leads_to_task: bool,
    /// Questions that have no answer yet.
    asked: Mutex<Vec<Question>>,
    /// The answers that the tool got.
    used: Mutex<Answers>,
    begun: AtomicBool,
}

impl PlainCaller<'_> {
    async fn attempt(&self) -> End {
        let mut work = pin!(self.server.toolbox.call(&self.call.name, &self.call.arguments, self));
        // A tool that asks several questions at once has asked all of them when it is pending.
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(reply) => Poll::Ready(End::Replied(reply)),
            Poll::Pending if !lock(&self.asked).is_empty() => Poll::Ready(End::Asked),
            Poll::Pending if self.begun.load(Ordering::Relaxed) => Poll::Ready(End::Begun),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    fn input_required(&self) -> String {
        let (asked, used) = (lock(&self.asked), lock(&self.used));
        let mut result = json!({ "resultType": "input_required", "inputRequests": requests(&asked) });
        if asked.iter().any(|question| question.needs_state) {
            let state = self.server.sealer.seal(&self.call.name, &self.call.arguments, used.clone());
            result["requestState"] = json!(state);
        }
        complete(&result.to_string())
    }

    fn answer(&self, question: &Question) -> Option<String> {
        let of_state = self.call.state.as_ref().and_then(|answers| answers.get(&question.key));
        let counts = !question.needs_state || self.call.state.is_some();
        of_state.or_else(|| self.call.responses.get(&question.key).filter(|_| counts)).cloned()
    }
}

/// The `inputRequests` of questions.
pub(super) fn requests(questions: &[Question]) -> Value {
    let all = questions.iter().map(|Question { key, method, params, .. }| {
        // The questions of our tools are ours: nothing is lost.
        let params = serde_json::from_str::<Value>(params).unwrap_or_default();
        (key.clone(), json!({ "method": method, "params": params }))
    });
    all.collect::<Map<_, _>>().into()
}

/// Whether a client that said this may be asked a question.
pub(super) fn may_ask(meta: &Meta, question: &Question) -> bool {
    meta.declares(question.capability()) && (!question.params.contains(r#""mode":"url""#) || meta.opens_urls())
}

#[async_trait]
impl Caller for PlainCaller<'_> {
    fn era(&self) -> Era {
        Era::Modern
    }

    fn stop(&self) -> &CancellationToken {
        self.stop
    }

    fn declared(&self, capability: &str) -> bool {
        self.call.meta.declares(capability)
    }

    async fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        let Some(token) = &self.call.meta.progress_token else { return };
        let params = progress_params(token, progress, total, message);
        send(self.out, notification("notifications/progress", &params)).await;
    }

    async fn log(&self, level: &str, text: &str) {
        if self.call.meta.wants_log(level) {
            send(self.out, notification("notifications/message", &log_params(level, text))).await;
        }
    }

    async fn resource_updated(&self, uri: &str) {
        self.server.tell(News::Resource(uri.to_owned()));
    }

    async fn list_changed(&self, kind: &str) {
        self.server.tell(News::List(kind.to_owned()));
    }

    async fn ask(&self, question: Question) -> Option<String> {
        if !may_ask(&self.call.meta, &question) {
            return None;
        }
        if let Some(answer) = self.answer(&question) {
            lock(&self.used).insert(question.key, answer.clone());
            return Some(answer);
        }
        lock(&self.asked).push(question);
        std::future::pending().await
    }

    async fn begin(&self) {
        if self.leads_to_task {
            self.begun.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
    }

    async fn elicitation_complete(&self, _id: &str) {}
}
