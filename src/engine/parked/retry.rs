//! The request that comes back with answers.

use std::sync::Arc;

use tokio::time::sleep;

use super::{Becomes, PAUSE, Retry, Waits, keys};
use crate::domain::ids::InputId;
use crate::domain::input::Answer;
use crate::domain::json::RawJson;
use crate::domain::round::RoundState;
use crate::engine::streams::{Asked, Stream};
use crate::engine::{Caller, Engine, Refusal};
use crate::store::{Parked, Spend, StoreError};

/// Tries to write an answer whose state is spent.
const TRIES: u32 = 20;

impl Engine {
    /// Serves a request that brings answers and the state of the round that asked for them, at whichever node: the call goes
    /// on where it runs. Answers that are missing or do not fit are asked for again. The stream ends as that of the first
    /// request would have. A client that leaves ends the call with it, unless that has a key (KEEP-12): a retry under that key
    /// whose state was spent, as by an earlier sending of it, answers nothing and is told what the call comes to next.
    ///
    /// # Errors
    /// [`Refusal::BadState`], also as the end of the stream, and then nothing was spent; [`Refusal::LimitReached`] if too
    /// many requests of the context wait here.
    pub async fn retry(
        self: &Arc<Self>,
        caller: &Caller,
        retry: Retry,
        asked: Asked,
        progress_token: Option<RawJson>,
    ) -> Result<Stream, Refusal> {
        self.refuse_while_draining()?;
        let digest = asked.by_rounds.clone().ok_or(Refusal::BadState)?;
        let opened = self.parked.key.open(caller.auth.id(), &digest, &retry.state);
        let (state, asked_then) = opened.ok_or(Refusal::BadState)?;
        let found = self.store.scoped(&caller.auth).parked(state.call).await?.ok_or(Refusal::BadState)?;
        let becomes = retry.tool.as_deref().and_then(|tool| self.becomes(caller, tool));
        let is_keyed = found.key.is_some();
        let is_found_by_key = is_keyed && found.key == retry.key;
        let waits = Waits {
            caller: caller.clone(),
            call: state.call,
            request: digest,
            round: state.round,
            becomes,
            is_alone: !is_keyed,
        };
        let asked = Asked { ends_with_client: asked.ends_with_client && !is_keyed, ..asked };
        let engine = Arc::clone(self);
        self.begin(caller, asked, progress_token, move |host, stop| async move {
            let taken = engine.take_answers(&waits, state, &asked_then, found, retry.responses).await;
            if !(is_found_by_key && matches!(taken, Err(Refusal::BadState))) {
                taken?;
            }
            if let Some(work) = engine.parked.host(state.call) {
                work.listens(host);
            }
            engine.until_next(waits, stop).await
        })
    }

    /// What a call of this tool comes to after its questions, if that is a task.
    fn becomes(&self, caller: &Caller, tool: &str) -> Option<Becomes> {
        let tool = self.catalogue.tool(tool)?;
        (caller.tasks_enabled && tool.asks_first()).then(|| Becomes::of(&tool, self.rules.grace))
    }

    /// Checks everything, then takes the state back, then gives the answers to the work: nothing is spent by a request that
    /// fails a check. What was not asked by that state is not answered, whatever key it has by now.
    async fn take_answers(
        self: &Arc<Self>,
        waits: &Waits,
        state: RoundState,
        asked: &[InputId],
        found: Parked,
        responses: Vec<(String, RawJson)>,
    ) -> Result<(), Refusal> {
        let store = self.store.scoped(&waits.caller.auth);
        let is_open = |(round, expires)| round == state.round && expires > self.clock.now();
        if !found.parked || !found.round.is_some_and(is_open) {
            return Err(Refusal::BadState);
        }
        let mut fitting = Vec::new();
        for (key, question) in keys(&found.waiting).filter(|(_, question)| asked.contains(&question.id)) {
            let Some((_, json)) = responses.iter().find(|(given, _)| *given == key) else { continue };
            let answer = Answer::Result(json.clone());
            match self.check_answer(&question.question, &answer).await {
                Ok(()) => fitting.push((question.id, answer)),
                Err(why) => tracing::debug!(%why, "an answer did not fit its question, which is asked again"),
            }
        }
        let now = self.clock.now();
        if !store.spend_round(Spend { state, now, until: now + self.rules.rounds.timeout }).await? {
            return Err(Refusal::BadState);
        }
        for (input, answer) in fitting {
            self.give(waits, input, answer).await?;
        }
        Ok(())
    }

    /// Answers a question of a parked call. The state is spent: this is tried again while the database is away.
    pub(super) async fn give(self: &Arc<Self>, waits: &Waits, input: InputId, answer: Answer) -> Result<(), Refusal> {
        let store = self.store.scoped(&waits.caller.auth);
        let mut tries = 1;
        loop {
            match store.answer_waiting((waits.call, input), answer.clone(), &self.afterwards(), self.clock.now()).await
            {
                Ok(_) => break,
                Err(StoreError::Unavailable(why)) if tries < TRIES => {
                    tracing::debug!(input.id = %input, %why, "an answer cannot be written; trying again");
                    tries += 1;
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.inputs.settled(input);
        Ok(())
    }
}
