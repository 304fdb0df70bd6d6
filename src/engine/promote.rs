//! Calls of which the service decides whether they become tasks (EXT-04): at once, or in the middle, when they outlast their
//! grace or ask something; and calls that are stored when they ask, without being tasks ([`super::parked`]).
//!
//! A call that becomes a task in the middle is not begun again: its work goes on as the first attempt of the task, whose row
//! is committed already claimed by this node. From the moment at which that commit is sent the answer is the task, and an
//! outcome that comes meanwhile is written like any other. If the commit fails the call goes on as it was.

mod host;

pub(super) use host::CallHost;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{cut_off, plain_call, ran_too_long};
use super::create::{claim_of, first_state};
use super::runner::Begun;
use super::streams::{Asked, PlainHost, Stream};
use super::{Called, Caller, Created, Engine, Passed, Refusal, ToolCall};
use crate::domain::ids::TaskId;
use crate::domain::mode::TaskMode;
use crate::domain::outcome::Outcome;
use crate::domain::round::RequestDigest;
use crate::domain::task::Task;
use crate::domain::work::{Claim, NewTask};
use crate::executor::{Attempt, Call, Host, Tool};
use crate::lifecycle;
use crate::store::{End, Ended, Finish, StoreError};

/// Tries to cancel a task that nobody was told of while the database is away, and the pause between them.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// What such a task says of its end.
pub(super) const UNTOLD: &str = "its caller left before it was told of this task";
/// An executor returns at once when it is stopped; one that does not is abandoned.
const STOPPING: Duration = Duration::from_secs(1);

/// How a call is answered.
#[derive(Debug)]
pub enum Directed {
    /// It is a task.
    Task(Created),
    /// It runs; its stream ends with its end, or with the task that it becomes.
    Stream(Stream),
}

impl Engine {
    /// Runs a call whose caller leaves it to the service whether it becomes a task: never if that was not offered to the
    /// caller, else by the tool's mode (EXT-01, EXT-04). A caller that leaves before it was answered stops the call, and
    /// cancels a task that it was not told of; afterwards nothing but a cancel does (MOD-10).
    ///
    /// # Errors
    /// A [`Refusal`]; then nothing was run, and no task exists.
    pub async fn call_directed(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        asked: Asked,
    ) -> Result<Directed, Refusal> {
        self.refuse_while_draining()?;
        let tool = self.wanted_tool(&call)?;
        asked.may_be_passed_to(&tool.upstream)?;
        if tool.mode == TaskMode::Always && !caller.tasks_enabled {
            return Err(Refusal::TaskRequired { tool: call.name });
        }
        if tool.asks_first()
            && caller.tasks_enabled
            && let Some(request) = asked.by_rounds.clone()
        {
            self.check_arguments(&tool, &call).await?;
            return self.call_that_asks_first(caller, call, (asked, request), tool).map(Directed::Stream);
        }
        let grace = tool.grace.unwrap_or(self.rules.grace);
        if tool.mode == TaskMode::Never || !caller.tasks_enabled {
            self.check_arguments(&tool, &call).await?;
            if call.key.is_some() {
                return self.keyed_call(caller, call, asked, tool, None).map(Directed::Stream);
            }
            return self.call_to_its_end(caller, call, asked, &tool).map(Directed::Stream);
        }
        if tool.mode == TaskMode::Optional && !grace.is_zero() {
            self.check_arguments(&tool, &call).await?;
            if call.key.is_some() {
                return self.keyed_call(caller, call, asked, tool, Some(grace)).map(Directed::Stream);
            }
            return self.call_with_grace(caller, call, asked, tool, grace).map(Directed::Stream);
        }
        self.create_told(caller, call, asked.passed).await.map(Directed::Task)
    }

    /// Creates a task that is cancelled if its caller is not told of it.
    async fn create_told(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        passed: Option<Passed>,
    ) -> Result<Created, Refusal> {
        // Nothing of it can be relayed once the task was returned (NOTE-03).
        let call = ToolCall { progress_token: None, ..call };
        let (engine, caller, is_keyed) = (Arc::clone(self), caller.clone(), call.key.is_some());
        // What it answers is dropped with the wait for it.
        let making = lifecycle::spawn("create", async move {
            let created = engine.create_passed(&caller, call, None, passed).await;
            // One under a key is found again by it.
            let told_of = created.as_ref().ok().filter(|_| !is_keyed);
            let untold = told_of.map(|created| Untold { engine, task: Some(created.task.id) });
            (created, untold)
        });
        let made = making.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        let (created, untold) = made;
        if let Some(untold) = untold {
            untold.told();
        }
        created
    }

    fn call_with_grace(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        asked: Asked,
        tool: Arc<Tool>,
        grace: Duration,
    ) -> Result<Stream, Refusal> {
        let (engine, by, token) = (Arc::clone(self), caller.clone(), call.progress_token.clone());
        self.begin(caller, asked, token, move |host, stop| async move {
            let work = engine.work_of(plain_call(&by, &call, &tool));
            let (limit, immediate_response) = (engine.run_limit(&tool), tool.immediate_response.clone());
            let stored = Stored {
                what: call.name.clone(),
                limit,
                parked: None,
                new_task: Box::new(move |engine, caller| {
                    // Nothing of it can be relayed once the task was returned (NOTE-03).
                    let call = ToolCall { progress_token: None, ..call.clone() };
                    engine.new_task(caller, call, None, &tool, true)
                }),
            };
            let run = Run::begin(engine, by, stored, host, work);
            Ok(match run.until_turned(Some(grace), &stop).await {
                Turned::Ended(called) => called,
                Turned::Stored(task) => Called::Promoted(Box::new(Created { task, immediate_response })),
            })
        })
    }

    /// How the executor runs a call.
    pub(super) fn work_of(&self, call: Call) -> Work {
        let executor = Arc::clone(&self.executor);
        Box::new(move |host, stop| Box::pin(async move { executor.run(call, host, stop).await }))
    }

    /// Cancels, in the background, a task whose id nobody has.
    pub(super) fn cancel_unknown_task(self: &Arc<Self>, task: TaskId, why: &'static str) {
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let engine = Arc::clone(self);
        lifecycle::spawn("cancel of an unknown task", async move {
            for _ in 0..TRIES {
                match engine.try_cancel_unknown_task(task, why).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::debug!(task.id = %task, %error, "a task that nobody knows of cannot be cancelled; trying again");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
            tracing::warn!(task.id = %task, "a task whose caller left before it was told of it could not be cancelled");
        });
    }

    pub(super) async fn try_cancel_unknown_task(&self, id: TaskId, why: &str) -> Result<(), StoreError> {
        let store = self.store.system();
        let Some(details) = store.details(id).await? else { return Ok(()) };
        let now = self.clock.now();
        let end = End {
            outcome: Outcome::Cancelled,
            message: Some(why.to_owned()),
            now,
            expires: self.rules.ttl.expires(details.task.created, details.task.granted, now),
        };
        if let Ended::Done(task) = store.end(id, end).await? {
            self.streams.task_changed(&task);
            self.settled(id);
            tracing::debug!(task.id = %id, "a task that its caller was not told of was cancelled");
        }
        Ok(())
    }
}

/// A task that was made and not told of: cancelled when dropped.
struct Untold {
    engine: Arc<Engine>,
    task: Option<TaskId>,
}

impl Untold {
    fn told(mut self) {
        self.task = None;
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        if let Some(task) = self.task {
            self.engine.cancel_unknown_task(task, UNTOLD);
        }
    }
}

/// Work on its way: what it says goes to the host, and it ends when it is stopped.
pub(super) type Work =
    Box<dyn FnOnce(Arc<dyn Host>, CancellationToken) -> Pin<Box<dyn Future<Output = Attempt> + Send>> + Send>;

/// Makes the row that a call is stored as, when it is.
pub(super) type MakeRow = Box<dyn Fn(&Engine, &Caller) -> NewTask + Send + Sync>;

/// What a call is stored as, when it is.
pub(super) struct Stored {
    /// What is called.
    pub(super) what: String,
    /// How long it may run.
    pub(super) limit: Duration,
    /// Set if it is no task then: what makes a request the same that comes back to it.
    pub(super) parked: Option<RequestDigest>,
    pub(super) new_task: MakeRow,
}

/// What a call came to.
pub(super) enum Turned {
    /// Its end, without being stored.
    Ended(Called),
    /// It is stored, and runs on.
    Stored(Task),
}

/// A call that runs and may be stored in the middle.
pub(super) struct Run {
    engine: Arc<Engine>,
    caller: Caller,
    stored: Stored,
    host: Arc<CallHost>,
    work: JoinHandle<Attempt>,
    stop: CancellationToken,
    began: Instant,
}

impl Run {
    pub(super) fn begin(
        engine: Arc<Engine>,
        caller: Caller,
        stored: Stored,
        plain: Arc<PlainHost>,
        work: Work,
    ) -> Self {
        let host = Arc::new(CallHost::new(&engine, plain, caller.auth.id(), stored.parked.clone()));
        let stop = CancellationToken::new();
        let work = lifecycle::spawn("work", work(Arc::<CallHost>::clone(&host), stop.clone()));
        Self { engine, caller, stored, host, work, stop, began: Instant::now() }
    }

    /// Ready with what answers the call, or once it is stored, when its work goes on: past `grace`, and when it asks.
    pub(super) async fn until_turned(mut self, grace: Option<Duration>, stopped: &CancellationToken) -> Turned {
        let limit = self.stored.limit;
        let host = Arc::clone(&self.host);
        let grace_is_over = async move {
            match grace {
                Some(grace) => tokio::time::sleep(grace).await,
                None => std::future::pending().await,
            }
        };
        let due = async {
            tokio::select! {
                () = grace_is_over => {}
                () = host.asked() => {}
            }
        };
        let (gone, engine) = (stopped.cancelled(), Arc::clone(&self.engine));
        let cut = engine.cut.cancelled();
        let over = tokio::time::sleep_until(self.began + limit);
        tokio::pin!(gone, over, cut);
        tokio::select! {
            // What is there counts, whatever else has come.
            biased;
            attempt = &mut self.work => return Turned::Ended(self.host.ended(attempt)),
            () = &mut gone => return Turned::Ended(self.stop(Called::Stopped).await),
            () = &mut over => return Turned::Ended(self.stop(ran_too_long(limit)).await),
            () = &mut cut => return Turned::Ended(self.stop(cut_off()).await),
            () = due => {}
        }
        let failed = match self.store(limit).await {
            Ok(task) => return Turned::Stored(task),
            Err((run, failed)) => {
                self = *run;
                failed
            }
        };
        let called = tokio::select! {
            biased;
            attempt = &mut self.work => self.host.ended(attempt),
            () = &mut gone => self.stop(Called::Stopped).await,
            () = &mut over => self.stop(ran_too_long(limit)).await,
            () = &mut cut => self.stop(cut_off()).await,
        };
        if let Some(claim) = failed {
            self.end_doubtful(&claim, &called).await;
        }
        Turned::Ended(called)
    }

    async fn stop(&mut self, called: Called) -> Called {
        self.stop.cancel();
        if tokio::time::timeout(STOPPING, &mut self.work).await.is_err() {
            self.work.abort();
        }
        called
    }

    /// Commits the task, and makes the running work its attempt. Else the call, which goes on, and a claim that may have
    /// been committed all the same.
    async fn store(self, limit: Duration) -> Result<Task, (Box<Self>, Option<Claim>)> {
        let engine = Arc::clone(&self.engine);
        // A node that does not report has lost its database, or is about to lose its leases.
        let may = engine.membership.is_fresh(engine.clock.boot()) && !engine.is_draining();
        let Some(slot) = may.then(|| engine.runner.take_slot_for_running()).flatten() else {
            tracing::debug!(what = self.stored.what, "a call cannot be stored now and goes on as it is");
            self.host.stays_plain();
            return Err((Box::new(self), None));
        };
        let new = (self.stored.new_task)(&engine, &self.caller);
        let Some(claim) = claim_of(&self.caller, &new) else {
            self.host.stays_plain();
            return Err((Box::new(self), None));
        };
        let task = first_state(&self.caller, &new);
        let _claiming = engine.runner.claiming(vec![claim.lease.token]);
        if let Err(error) = engine.store.scoped(&self.caller.auth).create(new).await {
            tracing::warn!(what = self.stored.what, %error, "a call could not be stored and goes on as it is");
            self.host.stays_plain();
            return Err((Box::new(self), Some(claim)));
        }
        tracing::debug!(task.id = %task.id, what = task.tool, parked = self.stored.parked.is_some(), "a running call was stored");
        engine.streams.task_changed(&task);
        if self.stored.parked.is_some() {
            engine.parked.runs_here(task.id, &self.host);
        }
        let left = limit.saturating_sub(self.began.elapsed());
        let begun = Begun { work: self.work, stop: self.stop, left };
        self.host.speaks_to(task.id, engine.adopt(claim, slot, begun));
        self.host.keep_handed_over().await;
        Ok(task)
    }

    /// The database may have kept a task of which it could not tell us: that one ends as the call did, and is not run again.
    async fn end_doubtful(&self, claim: &Claim, called: &Called) {
        let now = self.engine.clock.now();
        let outcome = match called {
            Called::Outcome(outcome) => outcome.clone(),
            Called::Promoted(_) | Called::Asks(_) | Called::Stopped => Outcome::Cancelled,
        };
        let end = self.engine.end_of(claim, outcome, now);
        let finish = Finish { task: claim.lease.task, token: claim.lease.token, end };
        if let Err(error) = self.engine.store.system().finish(finish).await {
            tracing::debug!(task.id = %claim.lease.task, %error, "whether a call became a task is not known");
        }
    }
}
