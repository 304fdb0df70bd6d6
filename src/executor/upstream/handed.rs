//! Calls that an upstream runs as tasks of its own: made as such, followed to their end, cancelled its way (EXEC-11, EXEC-16).
//!
//! The task's handle is stored before the task is first asked for, so that it can be followed again after a restart. What
//! the upstream's notifications say only hastens the next look. Its ids are opaque, and shown to nobody.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::inbox::{OpenCall, RELATED_TASK, without};
use super::link::task_id;
use super::links::{Lease, Links, NoLink};
use super::modern;
use super::requests::{NoReply, Outbound, Reply};
use crate::domain::json::RawJson;
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::text::storable;
use crate::domain::work::UpstreamTask;
use crate::executor::{Attempt, Call, Host};
use crate::protocol::jsonrpc::{INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::protocol::legacy::SERVER_INFO;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, set_members};

/// A notification hastens the next poll, but not to less than this after the last one.
pub(super) const HASTE: Duration = Duration::from_millis(100);
/// How long one answer is waited for, except that of a `tasks/result` before the task's end.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The longest id of a task that is taken, in bytes.
const MOST_ID: usize = 4096;
pub(super) const MOST_DETAIL: usize = 300;

mod handle;
mod state;

pub(super) use handle::of_task;
use handle::{Creation, Handle};
use state::without_id;
pub(super) use state::{State, Status};

/// Whether the upstream runs tool calls as tasks of its own.
pub(super) fn runs_tool_tasks(capabilities: &RawJson) -> bool {
    declares(capabilities, &["tasks", "requests", "tools", "call"])
}

fn declares(capabilities: &RawJson, path: &[&str]) -> bool {
    path.iter().try_fold(capabilities.as_str(), |value, name| member(value, name)).is_some()
}

/// A call, its link, and whom it talks to.
pub(super) struct Caller<'a> {
    pub(super) links: &'a Arc<Links>,
    pub(super) call: &'a Call,
    pub(super) host: Arc<dyn Host>,
    pub(super) stop: CancellationToken,
}

/// What became of a call that was sent with the wish that it be a task.
pub(super) enum Made {
    /// The upstream did not make a task of it: this is its answer.
    Answered(Reply),
    Ended(Attempt),
    /// It was not sent.
    Not {
        detail: String,
    },
}

impl Caller<'_> {
    /// Sends the call with `task` in its `params` and follows the task that the upstream makes of it.
    pub(super) async fn make(self, lease: Lease, open: OpenCall, params: RawJson) -> Made {
        let mut creation = Creation::begin(self.links, &lease.link, &open, params);
        let reply = tokio::select! {
            biased;
            reply = &mut creation.reply => reply.unwrap_or_else(|_| Err(NoReply::Lost("its link was closed".to_owned()))),
            () = self.stop.cancelled() => return Made::Ended(Attempt::Stopped),
        };
        let created = match reply {
            Ok(Reply::Result(created)) => created,
            Ok(reply) => return Made::Answered(reply),
            Err(NoReply::NotSent(detail)) => return Made::Not { detail },
            Err(NoReply::Lost(how)) => return Made::Ended(Attempt::Lost { detail: ended(&how) }),
            Err(NoReply::Stopped) => return Made::Ended(Attempt::Stopped),
        };
        lease.answered();
        let Some(id) = task_id(&created) else {
            // It may run a call whose tool only can be a task at once.
            let is_result =
                ["content", "structuredContent"].iter().any(|name| member(created.as_str(), name).is_some());
            let detail = "it made neither a task nor a result of a call that was to be a task".to_owned();
            return Made::Answered(if is_result { Reply::Result(created) } else { Reply::Broken(detail) });
        };
        let state = member(created.as_str(), "task").map(|task| State::read(task, &id)).unwrap_or_default();
        self.adopt(lease, open, &id, state).await
    }

    /// Follows a task that the upstream has made of the call, once its handle is stored.
    pub(super) async fn adopt(self, lease: Lease, open: OpenCall, id: &RawJson, state: State) -> Made {
        let mut handle = self.handle(&lease, id);
        if id.len() > MOST_ID {
            return Made::Answered(Reply::Broken(format!("the id of its task has {} bytes", id.len())));
        }
        let task = UpstreamTask {
            id: id.as_str().to_owned(),
            session: lease.link.session(),
            revision: lease.link.revision.clone(),
        };
        let is_ours = tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            is_ours = self.host.handed_over(task.clone()) => is_ours,
        };
        if !is_ours {
            return Made::Ended(Attempt::Stopped);
        }
        handle.stay(self.call.is_task);
        Made::Ended(Follow { caller: self, task, handle, lease, open, state }.run().await)
    }

    /// Goes on following a task that an attempt before this one was given.
    pub(super) async fn resume(self, task: UpstreamTask) -> Attempt {
        let lease = match self.links.reach(self.call.context, &task, &self.stop).await {
            Ok(lease) => lease,
            Err(NoLink::Stopped) => return Attempt::Stopped,
            Err(NoLink::Unavailable(detail)) => return Attempt::NotDispatched { detail },
            Err(NoLink::Gone(detail)) => return Attempt::Lost { detail },
        };
        if let Some(detail) = spoken_otherwise(&lease, &task) {
            return Attempt::Lost { detail };
        }
        let id = RawJson::trusted(task.id.as_str());
        let mut handle = self.handle(&lease, &id);
        handle.stay(self.call.is_task);
        let open = lease.link.open_call(self.call.context, Arc::clone(&self.host));
        lease.link.runs_as(&open, &id);
        Follow { caller: self, task, handle, lease, open, state: State::default() }.run().await
    }

    fn handle(&self, lease: &Lease, id: &RawJson) -> Handle {
        Handle::new(self.links, &lease.link, id, (&self.host, &self.stop))
    }
}

type Answer = Result<Reply, NoReply>;

/// One task of an upstream as it is followed.
pub(super) struct Follow<'a> {
    pub(super) caller: Caller<'a>,
    task: UpstreamTask,
    pub(super) handle: Handle,
    pub(super) lease: Lease,
    pub(super) open: OpenCall,
    pub(super) state: State,
}

/// Why a task cannot be followed over this link: each era has tasks of its own.
fn spoken_otherwise(lease: &Lease, task: &UpstreamTask) -> Option<String> {
    let is_modern = task.revision == modern::REVISION;
    let is_same = lease.link.is_modern() == is_modern;
    (!is_same).then(|| format!("the tool's server does not speak {} any more", task.revision))
}

/// Why a look at the task brought nothing.
pub(super) enum Fault {
    /// The link is of no more use.
    NoLink(String),
    /// The upstream answers, but not with what was asked for.
    Useless(String),
    /// The upstream does not know the task.
    Unknown(String),
}

impl Follow<'_> {
    async fn run(mut self) -> Attempt {
        let stop = self.caller.stop.clone();
        let attempt = tokio::select! {
            biased;
            () = stop.cancelled() => return Attempt::Stopped,
            attempt = async {
                if self.lease.link.is_modern() { modern::follow(&mut self).await } else { self.follow().await }
            } => attempt,
        };
        // One that is to be resumed, and one that is unknown, are not cancelled either.
        self.handle.end(&attempt);
        attempt
    }

    async fn follow(&mut self) -> Attempt {
        let mut result: Option<Pin<Box<dyn Future<Output = Answer> + Send>>> = None;
        let mut ask_from = Instant::now();
        let mut failing_since: Option<Instant> = None;
        // A resumed one is looked at before anything else.
        let mut is_due = self.state.status.is_none();
        let mut looked = Instant::now();
        loop {
            let fault = match self.state.status {
                Some(Status::Cancelled) => return Attempt::Answered(self.cancelled_by_upstream()),
                Some(Status::Completed | Status::Failed) if !is_due => {
                    let was_open = result.is_some();
                    let answer = result.take().unwrap_or_else(|| self.ask_result());
                    match timeout(ANSWER_LIMIT, answer).await {
                        // It was asked for before the end, and may be told no more than that.
                        Ok(Ok(reply)) if was_open && !is_result(&reply) => continue,
                        Ok(Ok(reply)) => return Attempt::Answered(self.outcome(reply)),
                        Ok(Err(error)) => Some(no_link(error)),
                        Err(_) => Some(Fault::Useless("it does not answer tasks/result".to_owned())),
                    }
                }
                Some(Status::InputRequired) if result.is_none() && ask_from <= Instant::now() => {
                    result = Some(self.ask_result());
                    None
                }
                _ => None,
            };
            let fault = match fault {
                Some(fault) => Err(fault),
                None => {
                    if !is_due {
                        let due = looked + self.state.pause();
                        let hasty = sleep_until(looked + HASTE);
                        tokio::select! {
                            answer = answered(&mut result) => match answer {
                                Ok(reply) if is_result(&reply) => return Attempt::Answered(self.outcome(reply)),
                                // An error before the end may be one of this request alone: the poll will tell.
                                _ => {
                                    result = None;
                                    ask_from = Instant::now() + self.state.pause();
                                }
                            },
                            () = async { self.open.task_changed().await; hasty.await } => {}
                            () = sleep_until(due) => {}
                        }
                    }
                    looked = Instant::now();
                    is_due = false;
                    self.look().await
                }
            };
            match fault {
                Ok(state) => {
                    self.lease.answered();
                    self.state = state;
                    failing_since = None;
                }
                Err(fault) => {
                    if matches!(fault, Fault::NoLink(_)) {
                        result = None;
                    }
                    is_due = true;
                    if let Some(attempt) = self.trouble(fault, &mut failing_since).await {
                        return attempt;
                    }
                }
            }
        }
    }

    /// Waits after a look that brought nothing, and goes over to another link where that is needed; else how the attempt ends.
    pub(super) async fn trouble(&mut self, fault: Fault, failing_since: &mut Option<Instant>) -> Option<Attempt> {
        match fault {
            Fault::Unknown(detail) => return Some(Attempt::Lost { detail }),
            Fault::NoLink(detail) | Fault::Useless(detail)
                if failing_since.get_or_insert_with(Instant::now).elapsed() >= self.caller.links.task_reach() =>
            {
                return Some(self.given_up(&detail));
            }
            Fault::Useless(detail) => {
                tracing::debug!(error = detail, "a task of an upstream cannot be looked at; trying again");
                sleep(self.state.pause()).await;
            }
            Fault::NoLink(detail) => {
                if !self.task.outlives_us() {
                    return Some(Attempt::Lost { detail: ended(&detail) });
                }
                sleep(self.state.pause()).await;
                match self.relink().await {
                    Ok(()) | Err(NoLink::Unavailable(_)) => {}
                    Err(NoLink::Stopped) => return Some(Attempt::Stopped),
                    Err(NoLink::Gone(detail)) => return Some(Attempt::Lost { detail }),
                }
            }
        }
        None
    }

    /// Asks for the task's state.
    async fn look(&self) -> Result<State, Fault> {
        let params = of_task(&self.handle.id);
        let link = &self.lease.link;
        if link.is_closed() {
            return Err(Fault::NoLink(link.why_closed()));
        }
        let mut request = Outbound::new(link.next_number(), "tasks/get", Some(&params));
        request.call = Some(self.open.number());
        let answer = timeout(ANSWER_LIMIT, link.request(request, &self.caller.stop)).await;
        match answer {
            Err(_) => Err(Fault::Useless("it does not answer tasks/get".to_owned())),
            Ok(Err(error)) => Err(no_link(error)),
            Ok(Ok(Reply::Result(task))) => State::answer(task.as_str(), &self.handle.id)
                .map_err(|how| Fault::Useless(format!("it answers tasks/get {how}"))),
            Ok(Ok(Reply::Error(error))) => Err(refused(&error, &self.handle.id)),
            Ok(Ok(Reply::TooLarge { bytes, .. })) => {
                Err(Fault::Useless(format!("it answers tasks/get with {bytes} bytes")))
            }
            Ok(Ok(Reply::Broken(how))) => Err(Fault::Useless(how)),
        }
    }

    /// Opens `tasks/result`, on whose stream the task's questions come.
    fn ask_result(&self) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        let (link, call) = (Arc::clone(&self.lease.link), self.open.number());
        let (params, stop) = (of_task(&self.handle.id), self.caller.stop.clone());
        Box::pin(async move {
            let mut request = Outbound::new(link.next_number(), "tasks/result", Some(&params));
            request.call = Some(call);
            link.request(request, &stop).await
        })
    }

    /// Follows over another connection after the last one ended.
    async fn relink(&mut self) -> Result<(), NoLink> {
        if self.lease.link.is_session_over() {
            // Its tasks may still be known in another one.
            self.task.session = None;
        }
        let lease = self.caller.links.reach(self.caller.call.context, &self.task, &self.caller.stop).await?;
        if let Some(detail) = spoken_otherwise(&lease, &self.task) {
            return Err(NoLink::Gone(detail));
        }
        self.open = lease.link.open_call(self.caller.call.context, Arc::clone(&self.caller.host));
        lease.link.runs_as(&self.open, &self.handle.id);
        self.handle.follow_over(&lease.link);
        self.lease = lease;
        Ok(())
    }

    /// A stored call may be followed again; a plain one has nobody who would.
    fn given_up(&self, detail: &str) -> Attempt {
        if self.caller.call.is_task && self.task.outlives_us() {
            Attempt::NotDispatched { detail: format!("its server cannot be asked how the call is doing: {detail}") }
        } else {
            self.handle.give_up();
            Attempt::Lost { detail: format!("the tool's server cannot be asked how the call is doing: {detail}") }
        }
    }

    /// What the answer to `tasks/result` means. Some servers show the task in it.
    fn outcome(&self, reply: Reply) -> Outcome {
        let reply = match reply {
            Reply::Result(json) if task_id(&json).is_some() => Reply::Result(set_members(&json, &[], &["task"])),
            reply => reply,
        };
        outcome(reply)
    }

    pub(super) fn cancelled_by_upstream(&self) -> Outcome {
        let detail = self.state.message.clone().filter(|message| !message.trim().is_empty());
        let detail = detail.unwrap_or_else(|| "it gives no reason".to_owned());
        Outcome::failure(&Failure::UpstreamCancelled { detail })
    }
}

/// The answer of an open `tasks/result`; never ready if there is none.
async fn answered(result: &mut Option<Pin<Box<dyn Future<Output = Answer> + Send>>>) -> Answer {
    match result {
        Some(result) => result.await,
        None => std::future::pending().await,
    }
}

/// Whether the work has ended, whatever its status was when that was last asked for.
const fn is_result(reply: &Reply) -> bool {
    matches!(reply, Reply::Result(_) | Reply::TooLarge { .. })
}

/// What an error in the place of a task, whose id is shown to nobody, says of it.
pub(super) fn refused(error: &RawJson, id: &RawJson) -> Fault {
    let code = member(error.as_str(), "code").and_then(|raw| raw.parse().ok());
    let message = member(error.as_str(), "message").and_then(string_value).unwrap_or_default();
    let message = storable(&without_id(&message, id), MOST_DETAIL);
    match code {
        Some(INVALID_PARAMS | METHOD_NOT_FOUND) => {
            Fault::Unknown(format!("the tool's server does not know its task any more: {message}"))
        }
        _ => Fault::Useless(format!("it answers tasks/get with an error: {message}")),
    }
}

pub(super) fn no_link(error: NoReply) -> Fault {
    Fault::NoLink(match error {
        NoReply::NotSent(how) | NoReply::Lost(how) => how,
        NoReply::Stopped => "it was stopped".to_owned(),
    })
}

fn ended(how: &str) -> String {
    format!("the connection to the tool's server ended ({how})")
}

/// What an answer to `tools/call` or `tasks/result` means; ids of the upstream's tasks, and what it says of itself,
/// are taken out (LIFE-11).
pub(super) fn outcome(reply: Reply) -> Outcome {
    match reply {
        Reply::Result(json) => {
            let is_error = member(json.as_str(), "isError") == Some("true");
            Outcome::Result { json: without(&json, &[RELATED_TASK, SERVER_INFO]), is_error }
        }
        Reply::Error(json) => Outcome::Error { json },
        Reply::TooLarge { part, bytes, limit } => Outcome::failure(&Failure::ResultTooLarge { part, bytes, limit }),
        Reply::Broken(detail) => Outcome::failure(&Failure::UpstreamProtocol { detail }),
    }
}
