//! One attempt: dispatched, watched, and settled by exactly one write.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Orders;
use super::host::TaskHost;
use super::slots::Seat;
use crate::domain::lease::RestartPolicy;
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::work::{Claim, UpstreamTask};
use crate::engine::Engine;
use crate::engine::recovery::{attempts_left, may_repeat, retry_later};
use crate::executor::{Attempt, Call};
use crate::lifecycle;
use crate::store::{End, Ended, Finish, Release, StoreError};

/// Pauses between tries to write an end while the database is away.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long a call waits at least that another node may be able to make.
const ELSEWHERE: Duration = Duration::from_secs(1);
/// Why a draining node hands back.
const RESTARTING: &str = "the service is being restarted";

/// What becomes of the claim.
enum Settlement {
    End(End),
    Release(Release),
    /// Somebody else settled it: cancelled, expired, or taken over.
    Nothing,
}

/// Work under way, and whom it talks to.
struct Dispatched {
    host: Arc<TaskHost>,
    work: JoinHandle<Attempt>,
    /// Stops the work.
    stop: CancellationToken,
}

/// Work that was begun as a call that is no task.
pub(in crate::engine) struct Begun {
    pub(in crate::engine) work: JoinHandle<Attempt>,
    /// Stops the work.
    pub(in crate::engine) stop: CancellationToken,
    /// How long it may still run.
    pub(in crate::engine) left: Duration,
}

/// Why the work was stopped.
enum Halt {
    Superseded,
    /// Another node may run it.
    TakenOver,
    RunLimit,
    HandBack,
    ServiceStopped,
}

impl Engine {
    pub(super) async fn run_attempt(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat>, orders: &Orders) {
        let settlement = if !self.membership.may_dispatch(claim.lease.node, self.clock.boot()) {
            // Others may be about to take this task over: do not send a call that they might repeat.
            Settlement::Release(self.hand_back(claim, "the node that claimed it lost its database"))
        } else if self.is_draining() {
            // Nothing was sent yet, so it may go elsewhere whatever the policy.
            Settlement::Release(self.hand_back(claim, RESTARTING))
        } else if let Some(release) = self.left_to_others(claim).await {
            Settlement::Release(release)
        } else {
            self.dispatch(claim, seat, orders).await
        };
        self.settle(claim, settlement).await;
    }

    /// Of a call whose server this node has not: while others live, one of them may have it, as while a deploy rolls that adds
    /// it. It is left to them for as long as it might run.
    async fn left_to_others(&self, claim: &Claim) -> Option<Release> {
        let now = self.clock.now();
        let is_in_time = now < claim.work.created + claim.work.run_limit;
        if self.executor.serves(&claim.work.upstream) || !is_in_time {
            return None;
        }
        // Where nobody can say, the next attempt asks again.
        let others = self.store.system().has_other_nodes(claim.lease.node).await.unwrap_or(true);
        let why = format!("the node that claimed it has no server {}", claim.work.upstream);
        // By chance: who looks each second would else be the first again each time.
        let jitter = Duration::from_millis(u64::from(claim.lease.token.as_uuid().as_fields().0) % 1_000);
        others.then(|| Release { not_before: now + ELSEWHERE + jitter, ..self.hand_back(claim, &why) })
    }

    /// Goes on with work that runs already, as the attempt that holds this claim.
    pub(super) async fn follow_begun(&self, claim: &Claim, begun: Begun, host: Arc<TaskHost>, orders: &Orders) {
        let Begun { work, stop, left } = begun;
        let settlement = self.watch(claim, Dispatched { host, work, stop }, orders, left).await;
        self.settle(claim, settlement).await;
    }

    async fn dispatch(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat>, orders: &Orders) -> Settlement {
        let host = Arc::new(TaskHost::new(self, claim, seat));
        if let Some(level) = claim.work.session.and_then(|session| self.streams.levels.of(session)) {
            self.executor.listen_from(claim.work.context, level);
        }
        let stop = CancellationToken::new();
        let executor = Arc::clone(&self.executor);
        let call = Call {
            context: claim.work.context,
            upstream: claim.work.upstream.clone(),
            upstream_tool: claim.work.upstream_tool.clone(),
            params: claim.work.params.clone(),
            capabilities: claim.work.capabilities.clone(),
            attempt: claim.lease.attempt,
            is_task: true,
            resume: claim.handed_over.clone(),
        };
        let repeats = claim.work.restart == RestartPolicy::Retry;
        let work = lifecycle::spawn("work", {
            let (host, stop) = (Arc::clone(&host), stop.clone());
            async move {
                let attempt = executor.run(call.clone(), Arc::<TaskHost>::clone(&host), stop.clone()).await;
                match attempt {
                    // Its upstream knows nothing of it any more, and a new call does no harm.
                    Attempt::Lost { .. } if call.resume.is_some() && repeats => {
                        if !host.take_back().await {
                            return Attempt::Stopped;
                        }
                        executor.run(Call { resume: None, ..call }, host, stop).await
                    }
                    attempt => attempt,
                }
            }
        });
        self.watch(claim, Dispatched { host, work, stop }, orders, claim.work.run_limit).await
    }

    /// Waits for the end of the work, for `limit` at most, or for what ends it before.
    async fn watch(&self, claim: &Claim, dispatched: Dispatched, orders: &Orders, limit: Duration) -> Settlement {
        let Dispatched { host, mut work, stop } = dispatched;
        let halt = tokio::select! {
            // An answer that is there counts, whatever else has come.
            biased;
            attempt = &mut work => {
                if let Some(notes) = host.close() {
                    let _last_note_written = notes.await;
                }
                return match attempt {
                    Ok(attempt) => self.settlement(&Claim { handed_over: host.upstream_task(), ..claim.clone() }, attempt),
                    Err(panic) => {
                        tracing::error!(task.id = %claim.lease.task, %panic, "running a task panicked");
                        self.failed(claim, &Failure::Internal { detail: "its runner panicked".to_owned() })
                    }
                };
            }
            () = orders.stop.cancelled() => Halt::Superseded,
            () = orders.leave.cancelled() => Halt::TakenOver,
            () = tokio::time::sleep(limit) => Halt::RunLimit,
            () = handed_back(claim, &host, &orders.hand_back) => Halt::HandBack,
            () = self.stopped.cancelled() => Halt::ServiceStopped,
        };
        let claim = &Claim { handed_over: host.upstream_task(), ..claim.clone() };
        let goes_on = claim.handed_over.as_ref().is_some_and(UpstreamTask::outlives_us);
        if goes_on && matches!(halt, Halt::TakenOver | Halt::HandBack | Halt::ServiceStopped) {
            // Without a word to the upstream, and with no answer to its questions: another attempt follows its task.
            work.abort();
            let _dropped = tokio::time::timeout(Duration::from_secs(1), &mut work).await;
            abort(host.close());
            return match halt {
                Halt::TakenOver => Settlement::Nothing,
                _ => Settlement::Release(self.hand_back(claim, RESTARTING)),
            };
        }
        // Before the work drops its questions: the settlement says what becomes of them.
        let notes = host.close();
        stop.cancel();
        // An executor returns at once when stopped. One that does not is abandoned: its late outcome is dropped.
        if tokio::time::timeout(Duration::from_secs(1), &mut work).await.is_err() {
            work.abort();
        }
        abort(notes);
        match halt {
            Halt::Superseded | Halt::TakenOver => Settlement::Nothing,
            Halt::RunLimit => self.failed(claim, &Failure::RunTimeExceeded { limit_s: claim.work.run_limit.as_secs() }),
            Halt::HandBack => Settlement::Release(self.hand_back(claim, RESTARTING)),
            Halt::ServiceStopped => {
                Settlement::End(self.lost_end(claim, "the service was stopped while it ran", self.clock.now()))
            }
        }
    }

    fn settlement(&self, claim: &Claim, attempt: Attempt) -> Settlement {
        let now = self.clock.now();
        match attempt {
            Attempt::Answered(outcome) => Settlement::End(self.end_of(claim, outcome, now)),
            // The host of what is stored takes no round.
            Attempt::Stopped | Attempt::Asked => Settlement::Nothing,
            // Nothing is sent anew: its upstream's task is looked for again; past the time that a call may take, each look is
            // an attempt.
            Attempt::NotDispatched { detail } if claim.handed_over.is_some() => {
                let counted = now >= claim.work.created + claim.work.run_limit;
                if counted && !attempts_left(claim) {
                    return Settlement::End(self.lost_end(claim, &detail, now));
                }
                Settlement::Release(self.shorten(Release { counted, ..retry_later(claim, now, &detail) }))
            }
            Attempt::NotDispatched { detail } if attempts_left(claim) => {
                Settlement::Release(self.shorten(retry_later(claim, now, &detail)))
            }
            Attempt::NotDispatched { detail } => self.failed(claim, &Failure::UpstreamUnavailable { detail }),
            Attempt::Lost { detail } if may_repeat(claim) => {
                let release = Release { counted: true, keep_inputs: false, ..retry_later(claim, now, &detail) };
                Settlement::Release(self.shorten(release))
            }
            Attempt::Lost { detail } => Settlement::End(self.lost_end(claim, &detail, now)),
        }
    }

    fn failed(&self, claim: &Claim, failure: &Failure) -> Settlement {
        Settlement::End(self.end_of(claim, Outcome::failure(failure), self.clock.now()))
    }

    fn shorten(&self, mut release: Release) -> Release {
        release.message = self.status_message(&release.message);
        release
    }

    fn hand_back(&self, claim: &Claim, why: &str) -> Release {
        let now = self.clock.now();
        Release {
            task: claim.lease.task,
            token: claim.lease.token,
            not_before: now,
            counted: false,
            keep_inputs: claim.handed_over.as_ref().is_some_and(UpstreamTask::outlives_us),
            message: format!("{}: {why}", crate::domain::task::QUEUED),
            now,
        }
    }

    /// Writes the settlement, however long the database is away: nothing is lost (KEEP-11). Ends when the write landed, was
    /// refused because another was first, or this process stops.
    async fn settle(&self, claim: &Claim, settlement: Settlement) {
        let task = claim.lease.task;
        let mut pause = FIRST_PAUSE;
        loop {
            let written = self.write(claim, &settlement).await;
            let Err(error) = written else { break };
            tracing::warn!(task.id = %task, %error, "the end of an attempt could not be written; trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        // What waits for its time is found when that has come.
        let is_due = |release: &Release| release.not_before <= release.now;
        if matches!(&settlement, Settlement::Release(release) if is_due(release)) && !self.is_draining() {
            self.runner.somebody_waits();
        }
    }

    async fn write(&self, claim: &Claim, settlement: &Settlement) -> Result<(), StoreError> {
        let store = self.store.system();
        match settlement {
            Settlement::Nothing => {}
            Settlement::Release(release) => {
                store.release(release.clone()).await?;
            }
            Settlement::End(end) => {
                let (task, token) = (claim.lease.task, claim.lease.token);
                if let Ended::Done(task) = store.finish(Finish { task, token, end: end.clone() }).await? {
                    self.streams.task_changed(&task);
                    self.has_ended(&task, &end.outcome);
                }
            }
        }
        Ok(())
    }
}

/// Nobody waits for what was said last.
fn abort(notes: Option<JoinHandle<()>>) {
    if let Some(notes) = notes {
        notes.abort();
    }
}

/// Ready when the service drains and this work may be repeated or followed elsewhere.
async fn handed_back(claim: &Claim, host: &TaskHost, hand_back: &CancellationToken) {
    hand_back.cancelled().await;
    let goes_on = host.upstream_task().is_some_and(|task| task.outlives_us());
    if claim.work.restart != RestartPolicy::Retry && !goes_on {
        std::future::pending::<()>().await;
    }
}
