//! The extension for tasks: `tasks/get`, `tasks/update`, `tasks/cancel`, and the calls that become tasks.

use axum::response::Response;

use super::Exchange;
use crate::domain::context::AuthContext;
use crate::domain::ids::TaskId;
use crate::domain::json::RawJson;
use crate::domain::mode::TaskMode;
use crate::engine::{Created, Directed, Engine, Looked, Refusal, Stream, ToolCall};
use crate::http::Front;
use crate::http::error::modern::Refused;
use crate::http::error::task_not_found;
use crate::protocol::legacy::tasks::task_id;
use crate::protocol::modern::{Method, errors, rounds, tasks};

/// Whether this context may have tasks.
pub(super) fn are_offered(front: &Front, auth: &AuthContext) -> bool {
    front.state.rules.offers_tasks(auth)
}

/// How a call is answered that became a task.
pub(super) fn create_result(engine: &Engine, created: &Created) -> RawJson {
    tasks::create_result(&created.task, engine.now(), engine.ttl_rules())
}

/// A task as a message of its own shows it: what `tasks/get` would show (NOTE-05).
pub(super) fn detailed(engine: &Engine, looked: &Looked) -> RawJson {
    let waiting = looked.waiting.iter().map(|open| (open.id, &open.question));
    tasks::detailed(&looked.task, looked.outcome.as_ref(), waiting, engine.now(), engine.ttl_rules())
}

impl Exchange<'_> {
    pub(super) async fn tasks(&self) -> Result<Response, Refused> {
        if !are_offered(&self.front, &self.caller.auth) {
            return Err(Refused::method_not_found());
        }
        if !self.caller.tasks_enabled {
            let message = format!("{} needs the extension for tasks to be declared", self.method.as_str());
            return Err(errors::missing_tasks_extension(&message).into());
        }
        let result = match self.method {
            Method::TasksUpdate => self.tasks_update().await?,
            Method::TasksCancel => self.tasks_cancel().await?,
            _ => self.tasks_get().await?,
        };
        Ok(self.answer(&result))
    }

    async fn tasks_get(&self) -> Result<RawJson, Refused> {
        let id = self.task_id()?;
        let engine = &self.front.state.engine;
        let Looked { task, outcome, waiting } = engine.look(&self.caller, id).await?;
        let waiting = waiting.iter().map(|open| (open.id, &open.question));
        Ok(tasks::get_result(&task, outcome.as_ref(), waiting, engine.now(), engine.ttl_rules()))
    }

    async fn tasks_update(&self) -> Result<RawJson, Refused> {
        // What is wrong with the parameters is said before it is known whether there is such a task.
        let (id, answers) = (self.task_id(), rounds::input_responses(&self.params)?);
        self.front.state.engine.update(&self.caller, id?, answers).await?;
        Ok(tasks::acknowledgement())
    }

    /// One that has ended is none the less acknowledged, and stays as it is (EXT-07).
    async fn tasks_cancel(&self) -> Result<RawJson, Refused> {
        match self.front.state.engine.cancel(&self.caller, self.task_id()?).await {
            Ok(_) | Err(Refusal::AlreadyEnded(_)) => Ok(tasks::acknowledgement()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Text that cannot be an id is the same as an unknown one (EXT-08).
    fn task_id(&self) -> Result<TaskId, Refused> {
        Ok(task_id(Some(&self.params))?.ok_or_else(task_not_found)?)
    }

    /// A tool that runs only as a task needs a client that takes tasks (EXT-02).
    pub(super) fn check_takes_tasks(&self, tool: &str) -> Result<(), Refused> {
        let found = self.front.state.engine.tool(tool);
        let needs_one = found.is_some_and(|tool| tool.mode == TaskMode::Always);
        if needs_one && !self.caller.tasks_enabled && are_offered(&self.front, &self.caller.auth) {
            return Err((&Refusal::TaskRequired { tool: tool.to_owned() }).into());
        }
        Ok(())
    }

    /// Runs the call; where tasks are offered, the service decides whether it becomes one.
    pub(super) async fn direct(&self, call: ToolCall) -> Result<Result<Directed, Refusal>, Refused> {
        let (engine, asked) = (&self.front.state.engine, self.asked(true)?);
        let plainly = |stream: Stream| Directed::Stream(stream);
        Ok(if are_offered(&self.front, &self.caller.auth) {
            engine.call_directed(&self.caller, call, asked).await
        } else {
            engine.call(&self.caller, call, asked).await.map(plainly)
        })
    }
}
