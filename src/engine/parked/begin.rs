//! How calls begin that may be parked: most run plainly until they ask.

use std::sync::Arc;
use std::time::Duration;

use super::{Becomes, Waits};
use crate::domain::ids::{LeaseToken, TaskId};
use crate::domain::json::RawJson;
use crate::domain::lease::RestartPolicy;
use crate::domain::round::RequestDigest;
use crate::domain::work::{CallKey, NewTask};
use crate::engine::call::plain_call;
use crate::engine::promote::{MakeRow, Run, Stored, Turned, Work};
use crate::engine::streams::{Asked, Stream};
use crate::engine::{Caller, Engine, Refusal, ToolCall};
use crate::executor::{Relay, Tool, Wanted};
use crate::store::StoreError;

impl Engine {
    /// Runs a call that stays what it is, and that is parked when it asks.
    pub(in crate::engine) fn call_by_rounds(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        (asked, request): (Asked, RequestDigest),
        tool: Arc<Tool>,
    ) -> Result<Stream, Refusal> {
        let (token, limit) = (call.progress_token.clone(), self.run_limit(&tool));
        let work = self.work_of(plain_call(caller, &call, &tool));
        let digest = request.clone();
        let new_task = move |engine: &Engine, caller: &Caller| {
            let call = ToolCall { progress_token: None, ..call.clone() };
            parked(engine.new_task(caller, call, Some(0), &tool, true), &digest)
        };
        self.run_by_rounds(caller, asked, token, (request, limit), Box::new(new_task), work)
    }

    /// The same for a request about what is on the shelf.
    pub(in crate::engine) fn relay_by_rounds(
        self: &Arc<Self>,
        caller: &Caller,
        relay: Relay,
        request: RequestDigest,
        asked: Asked,
        token: Option<RawJson>,
    ) -> Result<Stream, Refusal> {
        let (limit, digest) = (self.rules.run_limit.min(self.rules.hard_run_limit), request.clone());
        let (wanted, upstream, params) = (relay.wanted.clone(), relay.upstreams.first().cloned(), relay.params.clone());
        let executor = Arc::clone(&self.executor);
        let work: Work = Box::new(move |host, stop| Box::pin(async move { executor.relay(relay, host, stop).await }));
        let new_task = move |engine: &Engine, caller: &Caller| {
            let created = engine.clock.now();
            let name = match &wanted {
                Wanted::Prompt(name) | Wanted::Contents(name) => name.clone(),
                other => other.method().to_owned(),
            };
            let new = NewTask {
                id: TaskId::new(),
                session: None,
                tool: wanted.method().to_owned(),
                upstream: upstream.clone().unwrap_or_default(),
                upstream_tool: name,
                params: params.clone(),
                created,
                granted: engine.rules.ttl.grant(Some(0), None),
                hard_end: engine.rules.ttl.hard_end(created),
                poll_interval_ms: engine.rules.poll_interval.as_millis().try_into().unwrap_or(i64::MAX),
                restart: RestartPolicy::Fail,
                attempts_allowed: 1,
                run_limit: limit,
                capabilities: caller.capabilities.clone(),
                progress_token: None,
                keyed: None,
                counted: engine.counted(caller, None),
                claim: Some((engine.node(), LeaseToken::new())),
            };
            parked(new, &digest)
        };
        self.run_by_rounds(caller, asked, token, (request, limit), Box::new(new_task), work)
    }

    fn run_by_rounds(
        self: &Arc<Self>,
        caller: &Caller,
        asked: Asked,
        token: Option<RawJson>,
        (request, limit): (RequestDigest, Duration),
        new_task: MakeRow,
        work: Work,
    ) -> Result<Stream, Refusal> {
        let (engine, caller_of_it) = (Arc::clone(self), caller.clone());
        self.begin(caller, asked, token, move |host, stop| async move {
            let stored = Stored { what: "a call by rounds".to_owned(), limit, parked: Some(request.clone()), new_task };
            let run = Run::begin(Arc::clone(&engine), caller_of_it.clone(), stored, host, work);
            match run.until_turned(None, &stop).await {
                Turned::Ended(called) => Ok(called),
                Turned::Stored(task) => {
                    let waits =
                        Waits { caller: caller_of_it, call: task.id, request, round: 0, becomes: None, is_alone: true };
                    engine.until_next(waits, stop).await
                }
            }
        })
    }

    /// Runs a call that was checked and that becomes a task when what it asks first was answered (EXT-11). It is stored from
    /// the start.
    pub(in crate::engine) fn call_that_asks_first(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        (asked, request): (Asked, RequestDigest),
        tool: Arc<Tool>,
    ) -> Result<Stream, Refusal> {
        let (engine, by, is_alone) = (Arc::clone(self), caller.clone(), call.key.is_none());
        // A client finds one that has a key again by that.
        let mut asked = Asked { ends_with_client: asked.ends_with_client && is_alone, ..asked };
        // The key may refuse it yet.
        let passed = if is_alone { None } else { asked.passed.take() };
        self.begin(caller, asked, None, move |_, stop| async move {
            // Nothing of it can be relayed once the task was returned (NOTE-03).
            let call = ToolCall { progress_token: None, ..call };
            let task = if is_alone {
                let slot = engine.slot_or_queue(&by, &tool).await?;
                let new = engine.new_task(&by, call, None, &tool, slot.is_some());
                let keyed = Some(CallKey { key: None, digest: request.to_text(), parked: true });
                let made = engine.commit_new(&by, NewTask { keyed, ..new }, slot).await?;
                made.ok_or_else(|| StoreError::BrokenRow("a call was not written".into()))?
            } else {
                engine.under_key(&by, &call, (None, passed), &tool, true).await?.task
            };
            let becomes = Some(Becomes::of(&tool, engine.rules.grace));
            let waits = Waits { caller: by, call: task.id, request, round: 0, becomes, is_alone };
            engine.until_next(waits, stop).await
        })
    }
}

/// A call that is parked: it is no task, and not made again by anybody.
fn parked(new: NewTask, request: &RequestDigest) -> NewTask {
    NewTask {
        keyed: Some(CallKey { key: None, digest: request.to_text(), parked: true }),
        restart: RestartPolicy::Fail,
        attempts_allowed: 1,
        ..new
    }
}
