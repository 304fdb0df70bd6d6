//! Questions of running work: asked, waited for, answered (INPUT).
//!
//! A question is a row of the store, the work's wait for it is a future on the node that runs the attempt. Answers are
//! written by whichever node they reach; the waiting node is told at once if that is itself, else by its gathered look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::client_tasks::{Meant, made_of};
use super::{Caller, Engine, Refusal};
use crate::domain::answer::{check, refusal};
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::ids::{DeliveryId, InputId};
use crate::domain::input::{Answer, Question};
use crate::domain::json::RawJson;
use crate::domain::question::problem;
use crate::domain::task::RUNNING;
use crate::executor::Unasked;
use crate::lifecycle::{self, aside};
use crate::store::{Afterwards, Delivered, StoreError};

/// The codes of our errors in the place of answers: the question or the answer was bad, or there is none.
pub(super) const BAD: i64 = -32602;
pub(super) const NO_ANSWER: i64 = -32603;

/// Tries to write an answer while the database is away, and the pause between them: its client will not send it again.
pub(super) const TRIES: u32 = 20;
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// The questions whose answers are waited for on this node.
#[derive(Default)]
pub(super) struct Inputs {
    /// Several wait for one while an attempt that lost it is not gone yet and the next one has adopted it.
    waiting: Mutex<HashMap<InputId, Vec<Arc<Notify>>>>,
}

/// One of them, until dropped.
pub(super) struct Awaited<'a> {
    inputs: &'a Inputs,
    pub(super) id: InputId,
    /// Told when the question may be open no more; remembers one call.
    pub(super) settled: Arc<Notify>,
}

impl Inputs {
    pub(super) fn wait_for(&self, id: InputId) -> Awaited<'_> {
        let settled = Arc::new(Notify::new());
        self.lock().entry(id).or_default().push(Arc::clone(&settled));
        Awaited { inputs: self, id, settled }
    }

    pub(super) fn settled(&self, id: InputId) {
        for settled in self.lock().get(&id).into_iter().flatten() {
            settled.notify_one();
        }
    }

    pub(super) fn waits_for(&self, id: InputId) -> bool {
        self.lock().contains_key(&id)
    }

    pub(super) fn ids(&self) -> Vec<InputId> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<InputId, Vec<Arc<Notify>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut waiting = self.inputs.lock();
        if let Some(all) = waiting.get_mut(&self.id) {
            all.retain(|settled| !Arc::ptr_eq(settled, &self.settled));
            if all.is_empty() {
                waiting.remove(&self.id);
            }
        }
    }
}

impl Engine {
    /// Takes a client's answer to the question that was sent under this JSON-RPC id, at whichever node it arrives
    /// (INPUT-05). An answer that is late, or to an id that is unknown or another caller's, changes nothing (INPUT-14); one
    /// that does not fit leaves the question open, to be asked again (INPUT-13). Finished even if this future is dropped.
    ///
    /// # Errors
    /// [`Refusal::Store`] alone, when the answer could not be written.
    pub async fn answer(self: &Arc<Self>, caller: &Caller, id: &str, answer: Answer) -> Result<(), Refusal> {
        let Ok(id) = id.parse::<DeliveryId>() else {
            return self.answer_plain(caller.auth.id(), id, answer).await.map_err(Refusal::from);
        };
        let (engine, caller) = (Arc::clone(self), caller.clone());
        let write = async move { engine.answer_to_the_end(&caller, id, answer).await };
        let written = lifecycle::spawn("answer", write).await;
        written.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())).map_err(Refusal::from)
    }

    async fn answer_to_the_end(
        self: &Arc<Self>,
        caller: &Caller,
        id: DeliveryId,
        answer: Answer,
    ) -> Result<(), StoreError> {
        let mut tries = 1;
        loop {
            match self.try_answer(caller, id, answer.clone()).await {
                Err(StoreError::Unavailable(why)) if tries < TRIES => {
                    tracing::debug!(delivery.id = %id, %why, "an answer cannot be written; trying again");
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                written => return written,
            }
        }
    }

    async fn try_answer(self: &Arc<Self>, caller: &Caller, id: DeliveryId, answer: Answer) -> Result<(), StoreError> {
        let store = self.store.scoped(&caller.auth);
        let Some(sent) = store.delivered(id).await? else {
            tracing::debug!(delivery.id = %id, "an answer to no question was ignored");
            return Ok(());
        };
        if !sent.is_open {
            tracing::debug!(delivery.id = %id, "an answer to a question that is not open was ignored");
            if let Some(task) = made_of(caller, &sent, &answer) {
                self.streams.cancel_late(caller, task);
            }
            return Ok(());
        }
        let answer = match self.meant(caller, &sent, answer).await? {
            Meant::Told => return Ok(()),
            Meant::Answer(answer) => match self.check_answer(&sent.question, &answer).await {
                Ok(()) => Ok(answer),
                Err(why) => Err(bad_answer(&why)),
            },
            Meant::Lost { why, error } => Err(error.unwrap_or_else(|| bad_answer(why))),
        };
        let answer = match answer {
            Ok(answer) => answer,
            // The question has gone out again since, and may still be answered well.
            Err(_) if !sent.is_last => {
                tracing::debug!(delivery.id = %id, "a bad answer to an earlier delivery was ignored");
                return Ok(());
            }
            Err(_) if sent.refused < self.rules.input.refused => return self.refuse_answer(caller, &sent).await,
            Err(error) => error,
        };
        let answered = store.answer_input(id, answer, &self.afterwards(), self.clock.now()).await?;
        self.streams.question_answered(id);
        if let Some(task) = answered {
            tracing::debug!(task.id = %sent.task, "a question was answered");
            self.streams.question_closed(sent.input);
            self.streams.task_changed(&task);
        }
        self.inputs.settled(sent.input);
        Ok(())
    }

    /// What a task says once a question of it is closed.
    pub(super) fn afterwards(&self) -> Afterwards {
        Afterwards { message: RUNNING.to_owned(), limit: self.rules.message_limit }
    }

    /// Leaves the question open for another delivery.
    async fn refuse_answer(self: &Arc<Self>, caller: &Caller, sent: &Delivered) -> Result<(), StoreError> {
        self.store.scoped(&caller.auth).refuse_answer(sent.delivery).await?;
        tracing::debug!(task.id = %sent.task, refused = sent.refused + 1, "an answer did not fit its question");
        self.streams.question_answered(sent.delivery);
        self.question_opened(caller.auth.id(), sent.task, None);
        Ok(())
    }

    /// What the work gets in the place of an answer, if a client that declared this may not be asked that, or nobody.
    pub(super) async fn refuse_question(
        &self,
        declared: &ClientCapabilities,
        question: &Question,
    ) -> Option<Result<Answer, Unasked>> {
        if let Some(error) = declared.lacks(question) {
            return Some(Err(Unasked(error)));
        }
        let (bytes, limit) = (question.params.as_ref().map_or(0, RawJson::len), self.rules.input.question_limit);
        if bytes > limit {
            let message = format!("the question has {bytes} bytes, more than the limit of {limit} bytes");
            return Some(Ok(refusal(BAD, "question_too_large", &message)));
        }
        let question = question.clone();
        let problem = aside(bytes, move || problem(&question)).await;
        let problem = problem.unwrap_or_else(|| Some("it could not be checked".to_owned()));
        problem.map(|why| Ok(refusal(BAD, "bad_question", &format!("the question cannot be asked: {why}"))))
    }

    /// Size and shape of an answer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) async fn check_answer(&self, question: &Question, answer: &Answer) -> Result<(), String> {
        let (Answer::Result(json) | Answer::Error(json)) = answer;
        let (bytes, limit) = (json.len(), self.rules.input.answer_limit);
        if bytes > limit {
            return Err(format!("it has {bytes} bytes, more than the limit of {limit} bytes"));
        }
        let all = bytes + question.params.as_ref().map_or(0, RawJson::len);
        let (question, answer) = (question.clone(), answer.clone());
        aside(all, move || check(&question, &answer)).await.unwrap_or_else(|| Err("it could not be checked".to_owned()))
    }
}

/// The work gets this after one answer too many that did not fit.
pub(super) fn bad_answer(why: &str) -> Answer {
    refusal(BAD, "bad_answer", &format!("the client's answers did not fit: {why}"))
}

/// One question too many.
pub(super) fn full(limit: &str, most: usize) -> Answer {
    refusal(NO_ANSWER, "limit_reached", &format!("the limit {limit} of {most} is reached"))
}

/// Nobody answered in time.
pub(super) fn too_late(waited: Duration) -> Answer {
    let message = format!("nobody answered within {}", humantime::format_duration(waited));
    refusal(NO_ANSWER, "input_timeout", &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this one was told since it was last asked.
    fn told(awaited: &Awaited<'_>) -> bool {
        use futures_util::FutureExt as _;
        awaited.settled.notified().now_or_never().is_some()
    }

    #[test]
    fn who_leaves_takes_nobody_elses_place() {
        let (inputs, id) = (Inputs::default(), InputId::new());
        let (lost, adopted) = (inputs.wait_for(id), inputs.wait_for(id));
        inputs.settled(id);
        assert!(told(&lost) && told(&adopted));
        drop(lost);
        assert_eq!(inputs.ids(), [id], "it is still asked for");
        inputs.settled(id);
        assert!(told(&adopted));
        let late = inputs.wait_for(id);
        drop(adopted);
        inputs.settled(id);
        assert!(told(&late));
        drop(late);
        assert!(inputs.ids().is_empty());
    }
}
