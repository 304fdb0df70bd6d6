//! What a running tool may say to a client of the legacy era and ask of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Session;
use super::tasks::Task;
use crate::demo::toolbox::{Caller, Era, Question};
use crate::demo::wire::{Out, lock, log_params, notification, progress_params, rank, send, with_meta};

/// The client's side of one running call.
pub(super) struct SessionCaller {
    pub(super) session: Arc<Session>,
    /// Where what it says goes; for a task, whichever way is open.
    pub(super) out: Option<Out>,
    pub(super) progress_token: Option<String>,
    pub(super) task: Option<Arc<Task>>,
    /// Cancelled when the client cancels the call or goes away.
    pub(super) stop: CancellationToken,
}

#[async_trait]
impl Caller for SessionCaller {
    fn era(&self) -> Era {
        Era::Legacy
    }

    fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    fn declared(&self, capability: &str) -> bool {
        lock(&self.session.capabilities).iter().any(|name| name == capability)
    }

    async fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        let Some(token) = &self.progress_token else { return };
        self.notify("notifications/progress", &progress_params(token, progress, total, message)).await;
    }

    /// Unless the client asked for more severe ones only.
    async fn log(&self, level: &str, text: &str) {
        let lowest = lock(&self.session.level).as_deref().and_then(rank);
        if rank(level) >= lowest {
            self.notify("notifications/message", &log_params(level, text)).await;
        }
    }

    async fn resource_updated(&self, uri: &str) {
        let subscribed = lock(&self.session.subscribed).contains(uri);
        if subscribed {
            self.notify("notifications/resources/updated", &json!({ "uri": uri }).to_string()).await;
        }
    }

    async fn list_changed(&self, kind: &str) {
        self.notify(&format!("notifications/{kind}/list_changed"), "{}").await;
    }

    async fn ask(&self, question: Question) -> Option<String> {
        let id = self.session.next_question.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.session.questions).insert(id, answer);
        let (method, params) = (json!(question.method), self.related(&question.params));
        let request = format!(r#"{{"jsonrpc":"2.0","id":"question-{id}","method":{method},"params":{params}}}"#);
        let Some(task) = &self.task else {
            self.say(request).await;
            return answered.await.ok().flatten();
        };
        task.asks(true);
        let mut answered = answered;
        let answer = loop {
            let Some(out) = task.collector().await else { break None };
            send(&out, request.clone()).await;
            tokio::select! {
                answer = &mut answered => break answer.ok().flatten(),
                // Whoever collects the result next is asked again.
                () = out.closed() => {}
            }
        };
        task.asks(false);
        answer
    }

    async fn elicitation_complete(&self, id: &str) {
        let params = json!({ "elicitationId": id }).to_string();
        self.notify("notifications/elicitation/complete", &params).await;
    }
}

impl SessionCaller {
    async fn notify(&self, method: &str, params: &str) {
        self.say(notification(method, &self.related(params))).await;
    }

    async fn say(&self, line: String) {
        let own = || lock(&self.session.own).clone();
        if let Some(out) = self.out.clone().or_else(own) {
            send(&out, line).await;
        }
    }

    /// `params` tied to the task if there is one.
    fn related(&self, params: &str) -> String {
        self.task.as_ref().map_or_else(|| params.to_owned(), |task| with_meta(params, &task.related()))
    }
}
