//! Tasks of the demo server itself as a client of 2025-11-25 asks for them, kept in memory for as long as its session.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Answer;
use crate::demo::TaskOptions;
use crate::demo::toolbox::Reply;
use crate::demo::wire::{Out, error, with_meta};
use crate::domain::clock::{Clock, SystemClock};

/// How often clients are to ask, in milliseconds.
const POLL_INTERVAL: u64 = 100;
const PAGE: usize = 50;

/// The tasks of one session.
pub(super) struct Tasks {
    options: TaskOptions,
    made: Mutex<Vec<Arc<Task>>>,
    next: AtomicU64,
}

/// A call that runs as a task.
pub(super) struct Task {
    pub(super) id: String,
    created: String,
    state: watch::Sender<State>,
    /// Where a request for its result waits, on which its questions go.
    collector: watch::Sender<Option<Out>>,
    pub(super) stop: CancellationToken,
}

struct State {
    status: &'static str,
    message: Option<String>,
    updated: String,
    questions: usize,
    answer: Option<Answer>,
}

impl Tasks {
    pub(super) fn new(options: TaskOptions) -> Self {
        Self { options, made: Mutex::default(), next: AtomicU64::new(1) }
    }

    pub(super) fn declared() -> Value {
        json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } })
    }

    pub(super) fn make(&self, stop: CancellationToken) -> Arc<Task> {
        let id = format!("{}{}", self.options.id_prefix, self.next.fetch_add(1, Ordering::Relaxed));
        let created = now();
        let state = State {
            status: "working",
            message: Some("running".to_owned()),
            updated: created.clone(),
            questions: 0,
            answer: None,
        };
        let task = Task { id, created, state: watch::Sender::new(state), collector: watch::Sender::new(None), stop };
        let task = Arc::new(task);
        self.lock().push(Arc::clone(&task));
        task
    }

    /// Answers `tasks/get`, `tasks/list` and `tasks/cancel`.
    pub(super) fn request(&self, method: &str, params: &str) -> Option<Reply> {
        Some(match method {
            "tasks/list" => self.list(params),
            "tasks/get" => self.with(params, |task| Reply::Result(task.to_json().to_string())),
            "tasks/cancel" => self.with(params, |task| {
                if !task.end("cancelled", Some("cancelled as asked".to_owned()), None) {
                    return Reply::error(-32602, "the task has ended");
                }
                task.stop.cancel();
                Reply::Result(task.to_json().to_string())
            }),
            _ => return None,
        })
    }

    pub(super) fn find(&self, params: &str) -> Option<Arc<Task>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params {
            task_id: String,
        }
        let Params { task_id } = serde_json::from_str(params).ok()?;
        self.lock().iter().find(|task| task.id == task_id).map(Arc::clone)
    }

    fn with(&self, params: &str, answer: impl FnOnce(&Task) -> Reply) -> Reply {
        self.find(params).map_or_else(|| Reply::error(-32602, "there is no such task"), |task| answer(&task))
    }

    fn list(&self, params: &str) -> Reply {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Params {
            cursor: Option<String>,
        }
        let Params { cursor } = serde_json::from_str(params).unwrap_or_default();
        let Ok(start) = cursor.as_deref().unwrap_or("0").parse::<usize>() else {
            return Reply::error(-32602, "this cursor was never given");
        };
        let made = self.lock();
        let tasks: Vec<_> = made.iter().skip(start).take(PAGE).map(|task| task.to_json()).collect();
        let mut page = json!({ "tasks": tasks });
        if start + PAGE < made.len() {
            page["nextCursor"] = json!((start + PAGE).to_string());
        }
        Reply::Result(page.to_string())
    }

    /// A poisoned lock is taken all the same: nothing but insertions happen under it.
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Task>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task {
    pub(super) fn to_json(&self) -> Value {
        let state = self.state.borrow();
        let mut task = json!({
            "taskId": self.id,
            "status": state.status,
            "createdAt": self.created,
            "lastUpdatedAt": state.updated,
            "ttl": null,
            "pollInterval": POLL_INTERVAL,
        });
        if let Some(message) = &state.message {
            task["statusMessage"] = json!(message);
        }
        task
    }

    /// What ties a message to this task.
    pub(super) fn related(&self) -> String {
        json!({ "io.modelcontextprotocol/related-task": { "taskId": self.id } }).to_string()
    }

    /// One more question waits for its answer, or one less.
    pub(super) fn asks(&self, more: bool) {
        self.state.send_if_modified(|state| {
            if state.answer.is_some() || state.status == "cancelled" {
                return false;
            }
            state.questions = if more { state.questions + 1 } else { state.questions.saturating_sub(1) };
            state.status = if state.questions > 0 { "input_required" } else { "working" };
            state.updated = now();
            true
        });
    }

    /// Waits for somebody who collects the result, and may be asked on the way.
    pub(super) async fn collector(&self) -> Option<Out> {
        let mut collector = self.collector.subscribe();
        let found = collector.wait_for(|out| out.as_ref().is_some_and(|out| !out.is_closed())).await;
        found.ok().and_then(|out| out.clone())
    }

    pub(super) fn finish(&self, answer: Answer) {
        let status = match &answer {
            Ok(result) if !result.contains(r#""isError":true"#) => "completed",
            _ => "failed",
        };
        self.end(status, None, Some(answer));
    }

    /// False if it has ended before.
    fn end(&self, status: &'static str, message: Option<String>, answer: Option<Answer>) -> bool {
        self.state.send_if_modified(|state| {
            if state.answer.is_some() || state.status == "cancelled" {
                return false;
            }
            *state = State { status, message, updated: now(), questions: 0, answer };
            true
        })
    }

    /// Waits for the end; meanwhile the task's questions go to `out`.
    pub(super) async fn result(&self, out: &Out) -> Answer {
        self.collector.send_replace(Some(out.clone()));
        let mut state = self.state.subscribe();
        let Ok(state) = state.wait_for(|state| matches!(state.status, "completed" | "failed" | "cancelled")).await
        else {
            return Err(error(-32603, "the task is gone"));
        };
        match &state.answer {
            Some(Ok(result)) => Ok(with_meta(result, &self.related())),
            Some(Err(error)) => Err(error.clone()),
            None => Err(error(-32603, "the task was cancelled")),
        }
    }

    /// Completes whenever its status has changed.
    pub(super) fn changes(&self) -> impl Future<Output = bool> + Send + use<> {
        let mut changes = self.state.subscribe();
        async move { changes.changed().await.is_ok() }
    }
}

fn now() -> String {
    SystemClock::new().now().to_rfc3339()
}
