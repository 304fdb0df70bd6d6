//! Creating a task: committed first, then run (LIFE-06).

use std::sync::Arc;

use super::runner::Slot;
use super::{Caller, Created, Engine, Passed, Refusal, ToolCall};
use crate::domain::ids::{LeaseToken, TaskId};
use crate::domain::lease::Lease;
use crate::domain::mode::TaskMode;
use crate::domain::task::{QUEUED, RUNNING, Task};
use crate::domain::transition;
use crate::domain::work::{Claim, NewTask, Work};
use crate::executor::Tool;
use crate::lifecycle;
use crate::store::StoreError;

impl Engine {
    /// Commits a task for the call and returns it before the work ends. Once the commit is under way it is finished even if
    /// this future is dropped.
    ///
    /// # Errors
    /// A [`Refusal`]; then no task exists.
    pub async fn create_task(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        ttl_ms: Option<u64>,
    ) -> Result<Created, Refusal> {
        self.create_passed(caller, call, ttl_ms, None).await
    }

    /// The same for a call that may come back from a round: that is spent when nothing can refuse the call any more.
    pub(super) async fn create_passed(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        ttl_ms: Option<u64>,
        passed: Option<Passed>,
    ) -> Result<Created, Refusal> {
        self.refuse_while_draining()?;
        let tool = self.wanted_tool(&call)?;
        if tool.mode == TaskMode::Never {
            return Err(Refusal::TaskForbidden { tool: call.name });
        }
        self.check_arguments(&tool, &call).await?;
        if call.key.is_some() {
            return self.keyed_task(caller, call, (ttl_ms, passed), &tool).await;
        }
        let (engine, caller) = (Arc::clone(self), caller.clone());
        let commit = async move {
            let slot = engine.slot_or_queue(&caller, &tool).await?;
            if let Some(passed) = passed {
                engine.spend_passed(&caller, &passed).await?;
            }
            engine.commit_task(&caller, call, (ttl_ms, slot), &tool).await
        };
        lifecycle::spawn("create", commit).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    async fn commit_task(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        (ttl_ms, slot): (Option<u64>, Option<Slot>),
        tool: &Tool,
    ) -> Result<Created, Refusal> {
        let new = self.new_task(caller, call, ttl_ms, tool, slot.is_some());
        let task = self.commit_new(caller, new, slot).await?;
        // Ids are nobody else's, and it has no key.
        let task = task.ok_or_else(|| StoreError::BrokenRow("a task was not written".into()))?;
        Ok(Created { task, immediate_response: tool.immediate_response.clone() })
    }

    /// Writes a new task and runs it; `None` if its key is another's.
    pub(super) async fn commit_new(
        self: &Arc<Self>,
        caller: &Caller,
        new: NewTask,
        slot: Option<Slot>,
    ) -> Result<Option<Task>, StoreError> {
        let (task, claim) = (first_state(caller, &new), claim_of(caller, &new));
        let _claiming = self.runner.claiming(claim.iter().map(|claim| claim.lease.token).collect());
        if !self.store.scoped(&caller.auth).create(new).await? {
            return Ok(None);
        }
        tracing::debug!(task.id = %task.id, tool = task.tool, claimed = claim.is_some(), "task created");
        self.streams.task_changed(&task);
        self.run_or_queue(claim, slot);
        Ok(Some(task))
    }

    fn run_or_queue(self: &Arc<Self>, claim: Option<Claim>, slot: Option<Slot>) {
        match (claim, slot) {
            (Some(claim), Some(slot)) => self.run_in_background(claim, slot),
            _ => self.runner.somebody_waits(),
        }
    }

    pub(super) fn new_task(
        &self,
        caller: &Caller,
        call: ToolCall,
        ttl_ms: Option<u64>,
        tool: &Tool,
        claimed: bool,
    ) -> NewTask {
        let created = self.clock.now();
        let poll_interval = tool.poll_interval.unwrap_or(self.rules.poll_interval);
        NewTask {
            id: TaskId::new(),
            session: caller.session,
            tool: tool.exposed.clone(),
            upstream: tool.upstream.clone(),
            upstream_tool: tool.upstream_tool.clone(),
            params: call.params,
            created,
            granted: self.rules.ttl.grant(ttl_ms, tool.ttl),
            hard_end: self.rules.ttl.hard_end(created),
            poll_interval_ms: poll_interval.as_millis().try_into().unwrap_or(i64::MAX),
            restart: tool.restart,
            attempts_allowed: self.rules.attempts,
            run_limit: self.run_limit(tool),
            capabilities: caller.capabilities.clone(),
            progress_token: call.progress_token,
            keyed: None,
            counted: self.counted(caller, Some(tool)),
            claim: claimed.then(|| (self.membership.node(), LeaseToken::new())),
        }
    }
}

/// A task as it stands when it was made.
pub(super) fn first_state(caller: &Caller, new: &NewTask) -> Task {
    Task {
        id: new.id,
        context: caller.auth.id(),
        tool: new.tool.clone(),
        status: transition::INITIAL,
        message: Some(if new.claim.is_some() { RUNNING } else { QUEUED }.to_owned()),
        created: new.created,
        updated: new.created,
        granted: new.granted,
        poll_interval_ms: new.poll_interval_ms,
        expires: None,
        session: new.session,
        progress_token: new.progress_token.clone(),
        progress: None,
        progress_at: new.created,
    }
}

/// The claim of a task that is made claimed.
pub(super) fn claim_of(caller: &Caller, new: &NewTask) -> Option<Claim> {
    new.claim.map(|(node, token)| Claim {
        lease: Lease { task: new.id, node, token, attempt: 1, claimed: new.created },
        work: Work {
            context: caller.auth.id(),
            tool: new.tool.clone(),
            upstream: new.upstream.clone(),
            upstream_tool: new.upstream_tool.clone(),
            params: new.params.clone(),
            created: new.created,
            granted: new.granted,
            hard_end: new.hard_end,
            restart: new.restart,
            attempts_allowed: new.attempts_allowed,
            run_limit: new.run_limit,
            session: new.session,
            capabilities: new.capabilities.clone(),
        },
        handed_over: None,
    })
}
