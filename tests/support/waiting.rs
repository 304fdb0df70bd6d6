//! Waiting for a task at an engine, as `tasks/result` does it for a client that takes nothing but the answer.

use std::sync::Arc;

use taskhold::domain::ids::TaskId;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::task::Task;
use taskhold::engine::{Asked, Caller, Engine, Item, Refusal};

pub trait Waiting {
    /// The task and its outcome, as soon as it has ended.
    async fn result(&self, caller: &Caller, id: TaskId) -> Result<(Task, Outcome), Refusal>;
}

impl Waiting for Arc<Engine> {
    async fn result(&self, caller: &Caller, id: TaskId) -> Result<(Task, Outcome), Refusal> {
        let asked = Asked::in_session("1".to_owned(), false, false);
        let mut stream = self.open_result_stream(caller, id, asked, None).await?;
        match stream.next().await {
            Item::Result { answer, .. } => {
                answer.map(|answered| (answered.task.clone(), answered.outcome.outcome().clone()))
            }
            other => panic!("not a result: {other:?}"),
        }
    }
}
