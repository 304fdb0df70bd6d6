//! Calls: what is checked before anything is made or run, and calls that run plainly, without a task.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::streams::{Asked, Logs, PlainHost, Stream};
use super::{Called, Caller, Engine, Refusal, ToolCall};
use crate::domain::json::RawJson;
use crate::domain::mode::TaskMode;
use crate::domain::outcome::{Failure, Outcome};
use crate::executor::{Attempt, Call, Host, Tool};
use crate::lifecycle::{self, aside};

impl Engine {
    /// Runs a call; its stream ends with its end. `notifications/cancelled` stops the work, dropping the stream only where
    /// [`Asked::ends_with_client`] says so.
    ///
    /// # Errors
    /// A [`Refusal`] if the call was not run; [`Refusal::LimitReached`] if too many requests of its context wait here.
    pub async fn call(self: &Arc<Self>, caller: &Caller, call: ToolCall, asked: Asked) -> Result<Stream, Refusal> {
        self.refuse_while_draining()?;
        let tool = self.wanted_tool(&call)?;
        asked.may_be_passed_to(&tool.upstream)?;
        // A caller to whom tasks were not offered cannot ask for one: such a tool runs plainly (CAP-07).
        if tool.mode == TaskMode::Always && caller.tasks_enabled {
            return Err(Refusal::TaskRequired { tool: call.name });
        }
        self.check_arguments(&tool, &call).await?;
        if call.key.is_some() {
            return self.keyed_call(caller, call, asked, tool, None);
        }
        self.call_to_its_end(caller, call, asked, &tool)
    }

    /// Runs a call that was checked, and that stays what it is.
    pub(super) fn call_to_its_end(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        asked: Asked,
        tool: &Arc<Tool>,
    ) -> Result<Stream, Refusal> {
        if let Some(request) = asked.by_rounds.clone() {
            return self.call_by_rounds(caller, call, (asked, request), Arc::clone(tool));
        }
        let (engine, tool, token) = (Arc::clone(self), Arc::clone(tool), call.progress_token.clone());
        let call = plain_call(caller, &call, &tool);
        self.begin(caller, asked, token, move |host, stop| async move {
            Ok(engine.run_to_its_end(&tool, call, host, stop).await)
        })
    }

    /// Runs a request that is no task, with a stream of its own, which ends with the end of the work.
    pub(super) fn begin<F>(
        self: &Arc<Self>,
        caller: &Caller,
        asked: Asked,
        token: Option<RawJson>,
        work: impl FnOnce(Arc<PlainHost>, CancellationToken) -> F,
    ) -> Result<Stream, Refusal>
    where
        F: Future<Output = Result<Called, Refusal>> + Send + 'static,
    {
        if let Logs::From(level) = asked.logs {
            self.executor.listen_from(caller.auth.id(), level);
        }
        // Held to the end of the work, which may outlast its client, and until a large answer has been taken.
        let place = self.waiters.place(caller.auth.id())?;
        let entry = self.streams.in_flight.enter(caller.session, &asked.request);
        let (passed, by, here) = (asked.passed.clone(), caller.clone(), Arc::clone(self));
        let (stream, host) = self.open_call(caller, asked, token, entry.stop());
        host.hold(place);
        self.waiters.arrived.notify_one();
        let work = work(host.clone(), entry.stop());
        let work = lifecycle::spawn("call", async move {
            // Nothing refuses it any more: one that its key may refuse brings none here.
            if let Some(passed) = passed {
                here.spend_passed(&by, &passed).await?;
            }
            work.await
        });
        let engine = Arc::clone(self);
        let ending = async move {
            let called = work.await.unwrap_or_else(|_| Ok(panicked()));
            engine.close_call(&host, called);
            drop(entry);
        };
        lifecycle::spawn("end of call", self.calls.track_future(ending));
        Ok(stream)
    }

    async fn run_to_its_end(&self, tool: &Tool, call: Call, host: Arc<dyn Host>, stop: CancellationToken) -> Called {
        run_limited(self.run_limit(tool), (&stop, &self.cut), |stop| self.executor.run(call, host, stop)).await
    }

    pub(super) fn wanted_tool(&self, call: &ToolCall) -> Result<Arc<Tool>, Refusal> {
        self.catalogue.tool(&call.name).ok_or_else(|| Refusal::UnknownTool(call.name.clone()))
    }

    /// Size and schema of the arguments (EXEC-10).
    pub(super) async fn check_arguments(&self, tool: &Arc<Tool>, call: &ToolCall) -> Result<(), Refusal> {
        let (bytes, limit) = (call.arguments.len(), self.rules.arguments_limit);
        if bytes > limit {
            return Err(Refusal::ArgumentsTooLarge { bytes, limit });
        }
        let (checker, arguments) = (Arc::clone(tool), call.arguments.clone());
        let checked = aside(bytes, move || checker.arguments.check(&arguments)).await;
        let checked = checked.unwrap_or_else(|| Err("the check of the arguments failed".to_owned()));
        checked.map_err(|message| Refusal::InvalidArguments { tool: call.name.clone(), message })
    }
}

/// What the executor is to run for a call that is no task.
pub(super) fn plain_call(caller: &Caller, call: &ToolCall, tool: &Tool) -> Call {
    Call {
        context: caller.auth.id(),
        upstream: tool.upstream.clone(),
        upstream_tool: tool.upstream_tool.clone(),
        params: call.params.clone(),
        capabilities: caller.capabilities.clone(),
        attempt: 1,
        is_task: false,
        resume: None,
    }
}

/// Runs what is no task, for no longer than `limit`, and not past [`Engine::cut_calls`].
pub(super) async fn run_limited<F>(
    limit: Duration,
    (stop, cut): (&CancellationToken, &CancellationToken),
    run: impl FnOnce(CancellationToken) -> F,
) -> Called
where
    F: Future<Output = Attempt>,
{
    let work_stop = stop.child_token();
    let attempt = tokio::select! {
        attempt = run(work_stop.clone()) => attempt,
        () = tokio::time::sleep(limit) => {
            work_stop.cancel();
            return ran_too_long(limit);
        }
        () = cut.cancelled() => {
            work_stop.cancel();
            return cut_off();
        }
    };
    plain_end(attempt)
}

/// A call was stopped for having run as long as it may.
pub(super) fn ran_too_long(limit: Duration) -> Called {
    Called::Outcome(Outcome::failure(&Failure::RunTimeExceeded { limit_s: limit.as_secs() }))
}

/// A call was stopped since its node shuts down.
pub(super) fn cut_off() -> Called {
    let detail = "the service shut down while the call ran".to_owned();
    Called::Outcome(Outcome::failure(&Failure::OutcomeUnknown { detail, attempts: 1 }))
}

/// How an attempt ends a call that is no task.
pub(super) fn plain_end(attempt: Attempt) -> Called {
    let failure = match attempt {
        Attempt::Answered(outcome) => return Called::Outcome(outcome),
        // Whose host takes rounds has looked for them before.
        Attempt::Stopped | Attempt::Asked => return Called::Stopped,
        Attempt::NotDispatched { detail } => Failure::UpstreamUnavailable { detail },
        Attempt::Lost { detail } => Failure::OutcomeUnknown { detail, attempts: 1 },
    };
    Called::Outcome(Outcome::failure(&failure))
}

/// The panic itself was logged where it happened.
pub(super) fn panicked() -> Called {
    Called::Outcome(Outcome::failure(&Failure::Internal { detail: "the request's runner panicked".to_owned() }))
}
