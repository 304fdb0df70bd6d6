//! What clients say of their own tasks for our questions (CAP-08): the server as requestor.
//!
//! A question may go out as a task to a client that declared it. Its answer is then such a task, and what the question
//! asked for is the answer to `tasks/result`. The stream that holds the question asks for both (`streams/follow`); what
//! the client says arrives here, at any node.

use std::sync::Arc;

use super::{Caller, Engine};
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::client_task::{ClientStatus, ClientTask};
use crate::domain::input::Answer;
use crate::domain::json::RawJson;
use crate::store::{Delivered, Purpose, SignalKind, StoreError};

/// Codes by which a client says that it does not know a task, or nothing of tasks.
const UNKNOWN: [i64; 2] = [-32602, -32601];

/// What a client's response comes to.
pub(super) enum Meant {
    /// The answer to the question.
    Answer(Answer),
    /// There is no answer to be had this way; with that which the work gets if it is not asked again.
    Lost { why: &'static str, error: Option<Answer> },
    /// Something of the client's task, and that was seen to.
    Told,
}

impl Caller {
    /// What this caller's client may be asked. Only revisions that have tasks can declare some.
    #[must_use]
    pub fn declared(&self) -> ClientCapabilities {
        let declared = ClientCapabilities::parse(&self.capabilities);
        if self.tasks_enabled { declared } else { declared.without_tasks() }
    }
}

impl Engine {
    /// Keeps what a response says of the client's task.
    pub(super) async fn meant(
        self: &Arc<Self>,
        caller: &Caller,
        sent: &Delivered,
        answer: Answer,
    ) -> Result<Meant, StoreError> {
        let known = sent.client_task.as_ref().and_then(ClientTask::read);
        let (task, why) = match (sent.purpose, &answer) {
            (Purpose::Question, _) => match made_of(caller, sent, &answer) {
                Some(task) => (task, ""),
                None => return Ok(Meant::Answer(answer)),
            },
            (Purpose::TaskGet, Answer::Result(result)) => {
                match ClientTask::read(result).filter(|task| known.as_ref().is_some_and(|known| known.id == task.id)) {
                    Some(task) => (task, ""),
                    None => return Ok(Meant::Lost { why: "tasks/get of its own task gave no such task", error: None }),
                }
            }
            (Purpose::TaskGet, Answer::Error(error)) => match known {
                Some(known) if !code(error).is_some_and(|code| UNKNOWN.contains(&code)) => (known, "tasks/get failed"),
                _ => return Ok(Meant::Lost { why: "it does not know its own task any more", error: None }),
            },
            (Purpose::TaskResult, Answer::Error(error)) => {
                // The error of a task that failed is its answer, whatever its code.
                let failed = known.is_some_and(|known| known.status == ClientStatus::Failed);
                let unknown = !failed && code(error).is_some_and(|code| UNKNOWN.contains(&code));
                if unknown {
                    return Ok(Meant::Lost { why: "it does not know its own task any more", error: Some(answer) });
                }
                return Ok(Meant::Answer(answer));
            }
            (Purpose::TaskResult, Answer::Result(_)) => return Ok(Meant::Answer(answer)),
        };
        if !why.is_empty() {
            tracing::debug!(task.id = %sent.task, why, "asking for a client's task again");
        }
        self.keep_client_task(caller, sent, task).await?;
        Ok(Meant::Told)
    }

    async fn keep_client_task(
        self: &Arc<Self>,
        caller: &Caller,
        sent: &Delivered,
        task: ClientTask,
    ) -> Result<(), StoreError> {
        let (store, raw) = (self.store.scoped(&caller.auth), task.to_raw());
        if !store.set_client_task(sent.delivery, raw.clone()).await? {
            // The question went out once more meanwhile, or is closed.
            if sent.purpose == Purpose::Question {
                self.streams.cancel_late(caller, task);
            }
            return Ok(());
        }
        tracing::debug!(task.id = %sent.task, status = ?task.status, "a client has a task of its own for a question");
        if !self.streams.client_task_is(sent.delivery, task) {
            let (context, subject) = (caller.auth.id(), sent.delivery.to_string());
            self.signal(SignalKind::ClientTask, context, Some(sent.session), subject, Some(raw));
        }
        Ok(())
    }
}

/// The task that the client made of a question, if it did. By the request, not by the look of the answer: a client that was
/// not offered a task has none.
pub(super) fn made_of(caller: &Caller, sent: &Delivered, answer: &Answer) -> Option<ClientTask> {
    let Answer::Result(result) = answer else { return None };
    let was_offered = sent.purpose == Purpose::Question
        && caller.session == Some(sent.session)
        && caller.declared().takes_tasks(sent.question.kind);
    was_offered.then(|| ClientTask::created(result)).flatten()
}

fn code(error: &RawJson) -> Option<i64> {
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
    }
    serde_json::from_str(error.as_str()).ok().map(|Error { code }| code)
}
