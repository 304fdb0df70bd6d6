//! Calls: what is checked before anything is made or run, and calls that run plainly, without a task.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Called, Caller, Engine, Refusal, ToolCall};
use crate::domain::mode::TaskMode;
use crate::domain::outcome::{Failure, Outcome};
use crate::executor::{Attempt, Call, Tool};
use crate::lifecycle;

/// Arguments above this are checked away from the async threads.
const CHECK_ASIDE_BYTES: usize = 64 * 1024;

impl Engine {
    /// Runs a call and waits for its end. `stop` stops the work; dropping the future does not.
    ///
    /// # Errors
    /// A [`Refusal`] if the call was not run.
    pub async fn call(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        stop: CancellationToken,
    ) -> Result<Called, Refusal> {
        self.refuse_while_draining()?;
        let tool = self.wanted_tool(&call)?;
        // A caller to whom tasks were not offered cannot ask for one: such a tool runs plainly (CAP-07).
        if tool.mode == TaskMode::Always && caller.tasks_enabled {
            return Err(Refusal::TaskRequired { tool: call.name });
        }
        self.check_arguments(&tool, &call).await?;
        // Kept by the call, not by the client: who leaves and calls again must not pile up work.
        let seat = self.waiters.sit(caller.auth.id())?;
        let engine = Arc::clone(self);
        let run = lifecycle::spawn("call", {
            let call = Call {
                context: caller.auth.id(),
                upstream: tool.upstream.clone(),
                upstream_tool: tool.upstream_tool.clone(),
                params: call.params,
                attempt: 1,
            };
            async move {
                let _seat = seat;
                engine.run_plainly(&tool, call, stop).await
            }
        });
        run.await.map_err(|_| Failure::Internal { detail: "the call's runner panicked".to_owned() }).or_else(
            |failure| {
                tracing::error!("a plain call's runner panicked");
                Ok(Called::Outcome(Outcome::failure(&failure)))
            },
        )
    }

    async fn run_plainly(&self, tool: &Tool, call: Call, stop: CancellationToken) -> Called {
        // Nobody listens to a plain call's events yet: a full channel drops them.
        let (events, _nobody) = mpsc::channel(1);
        let limit = self.run_limit(tool);
        let work_stop = stop.child_token();
        let run = self.executor.run(call, events, work_stop.clone());
        let attempt = tokio::select! {
            attempt = run => attempt,
            () = tokio::time::sleep(limit) => {
                work_stop.cancel();
                let failure = Failure::RunTimeExceeded { limit_s: limit.as_secs() };
                return Called::Outcome(Outcome::failure(&failure));
            }
        };
        let failure = match attempt {
            Attempt::Answered(outcome) => return Called::Outcome(outcome),
            Attempt::Stopped => return Called::Stopped,
            Attempt::NotDispatched { detail } => Failure::UpstreamUnavailable { detail },
            Attempt::Lost { detail } => Failure::OutcomeUnknown { detail },
        };
        Called::Outcome(Outcome::failure(&failure))
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
        let checked = if bytes > CHECK_ASIDE_BYTES {
            let (tool, arguments) = (Arc::clone(tool), call.arguments.clone());
            tokio::task::spawn_blocking(move || tool.arguments.check(&arguments))
                .await
                .unwrap_or_else(|_| Err("the check of the arguments failed".to_owned()))
        } else {
            tool.arguments.check(&call.arguments)
        };
        checked.map_err(|message| Refusal::InvalidArguments { tool: call.name.clone(), message })
    }
}
