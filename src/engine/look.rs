//! Looking at a task with all that belongs to it, and answering what it waits for by the keys that were seen there
//! (EXT-05, INPUT-08, INPUT-09).
//!
//! The key of a question is its id: unique, the same in every look, and the same for the next attempt that takes the question
//! over.

use std::sync::Arc;

use super::{Caller, Engine, Refusal};
use crate::domain::ids::{InputId, TaskId};
use crate::domain::input::Answer;
use crate::domain::json::RawJson;
use crate::domain::outcome::Outcome;
use crate::domain::task::{Status, Task};
use crate::lifecycle;
use crate::store::Waiting;

/// A task at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    pub task: Task,
    /// `Some` exactly if it has ended.
    pub outcome: Option<Outcome>,
    /// What it waits for, the oldest first: something exactly if it is `input_required`.
    pub waiting: Vec<Waiting>,
}

impl Engine {
    /// The task with its outcome or its open questions.
    ///
    /// # Errors
    /// [`Refusal::UnknownTask`] for missing, expired and foreign ids alike; [`Refusal::Store`].
    pub async fn look(self: &Arc<Self>, caller: &Caller, id: TaskId) -> Result<Looked, Refusal> {
        loop {
            let (task, outcome) = self.task_and_outcome(caller, id).await?;
            if task.status != Status::InputRequired {
                let outcome = outcome.map(|outcome| outcome.outcome().clone());
                return Ok(Looked { task, outcome, waiting: Vec::new() });
            }
            let asking = self.store.scoped(&caller.auth).asking(id).await?;
            let (task, waiting) = asking.ok_or(Refusal::UnknownTask)?;
            // One that has ended meanwhile has an outcome, and stays ended: the next round is the last.
            if !task.status.is_terminal() {
                return Ok(Looked { task, outcome: None, waiting });
            }
        }
    }

    /// Takes answers by the keys of their questions, at whichever node they arrive (INPUT-09): each reaches the work once.
    /// Keys that are unknown, answered or withdrawn are ignored, in any status. Finished even if this future is dropped.
    ///
    /// # Errors
    /// [`Refusal::UnknownTask`]; [`Refusal::InvalidAnswer`] for an answer that does not fit its open question: then none of
    /// these was used (INPUT-13); [`Refusal::Store`]: those before the one that could not be written were used, and the same
    /// update may be sent again.
    pub async fn update(
        self: &Arc<Self>,
        caller: &Caller,
        id: TaskId,
        answers: Vec<(String, RawJson)>,
    ) -> Result<(), Refusal> {
        let (engine, caller) = (Arc::clone(self), caller.clone());
        let update = async move { engine.update_to_the_end(&caller, id, answers).await };
        lifecycle::spawn("update", update).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    async fn update_to_the_end(
        self: &Arc<Self>,
        caller: &Caller,
        id: TaskId,
        answers: Vec<(String, RawJson)>,
    ) -> Result<(), Refusal> {
        let waiting = self.look(caller, id).await?.waiting;
        let mut fitting = Vec::with_capacity(answers.len());
        for (key, json) in answers {
            let input = key.parse::<InputId>().ok();
            let Some(open) = input.and_then(|input| waiting.iter().find(|open| open.id == input)) else {
                tracing::debug!(task.id = %id, "an answer under a key that is not open was ignored");
                continue;
            };
            let answer = Answer::Result(json);
            match self.check_answer(&open.question, &answer).await {
                Ok(()) => fitting.push((open.id, answer)),
                Err(message) => return Err(Refusal::InvalidAnswer { key, message }),
            }
        }
        let store = self.store.scoped(&caller.auth);
        for (input, answer) in fitting {
            let answered = store.answer_waiting((id, input), answer, &self.afterwards(), self.clock.now()).await?;
            if let Some(task) = answered {
                tracing::debug!(task.id = %id, input.id = %input, "a question was answered");
                self.streams.question_closed(input);
                self.streams.task_changed(&task);
            }
            self.inputs.settled(input);
        }
        Ok(())
    }
}
