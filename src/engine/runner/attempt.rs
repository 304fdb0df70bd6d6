//! One attempt: dispatched, watched, and settled by exactly one write.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::lease::RestartPolicy;
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::work::Claim;
use crate::engine::Engine;
use crate::engine::recovery::{attempts_left, may_retry, retry_later};
use crate::executor::{Attempt, Call, Event};
use crate::lifecycle;
use crate::store::{End, Finish, Note, Release, StoreError};

/// The newest progress of a task is written at most this often.
const NOTE_INTERVAL: Duration = Duration::from_millis(500);
/// Events that may wait for the note writer; the executor drops what comes above.
const EVENTS: usize = 64;
/// Pauses between tries to write an end while the database is away.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Why a draining node hands back.
const RESTARTING: &str = "the service is being restarted";

/// What becomes of the claim.
enum Settlement {
    End(End),
    Release(Release),
    /// Somebody else settled it: cancelled, expired, or taken over.
    Nothing,
}

/// Why the work was stopped.
enum Halt {
    Superseded,
    RunLimit,
    HandBack,
    ServiceStopped,
}

impl Engine {
    pub(super) async fn run_attempt(
        self: &Arc<Self>,
        claim: &Claim,
        stop: &CancellationToken,
        hand_back: &CancellationToken,
    ) {
        let settlement = if !self.membership.is_fresh(self.clock.boot()) {
            // Others may be about to take this task over: do not send a call that they might repeat.
            Settlement::Release(self.hand_back(claim, "the node that claimed it lost its database"))
        } else if self.is_draining() {
            // Nothing was sent yet, so it may go elsewhere whatever the policy.
            Settlement::Release(self.hand_back(claim, RESTARTING))
        } else {
            self.dispatch(claim, stop, hand_back).await
        };
        self.settle(claim, settlement).await;
    }

    async fn dispatch(
        self: &Arc<Self>,
        claim: &Claim,
        stop: &CancellationToken,
        hand_back: &CancellationToken,
    ) -> Settlement {
        let (events, taken) = mpsc::channel(EVENTS);
        let notes = lifecycle::spawn("notes", Arc::clone(self).write_notes(claim.clone(), taken));
        let work_stop = CancellationToken::new();
        let executor = Arc::clone(&self.executor);
        let call = Call {
            context: claim.work.context,
            upstream: claim.work.upstream.clone(),
            upstream_tool: claim.work.upstream_tool.clone(),
            params: claim.work.params.clone(),
            attempt: claim.lease.attempt,
        };
        let mut work = lifecycle::spawn("work", {
            let work_stop = work_stop.clone();
            async move { executor.run(call, events, work_stop).await }
        });
        let halt = tokio::select! {
            // An answer that is there counts, whatever else has come.
            biased;
            attempt = &mut work => {
                let _last_note_written = notes.await;
                return match attempt {
                    Ok(attempt) => self.settlement(claim, attempt),
                    Err(panic) => {
                        tracing::error!(task.id = %claim.lease.task, %panic, "running a task panicked");
                        self.failed(claim, &Failure::Internal { detail: "its runner panicked".to_owned() })
                    }
                };
            }
            () = stop.cancelled() => Halt::Superseded,
            () = tokio::time::sleep(claim.work.run_limit) => Halt::RunLimit,
            () = self.handed_back(claim, hand_back) => Halt::HandBack,
            () = self.stopped.cancelled() => Halt::ServiceStopped,
        };
        work_stop.cancel();
        // An executor returns at once when stopped. One that does not is abandoned: its late outcome is dropped.
        if tokio::time::timeout(Duration::from_secs(1), &mut work).await.is_err() {
            work.abort();
        }
        notes.abort();
        match halt {
            Halt::Superseded => Settlement::Nothing,
            Halt::RunLimit => self.failed(claim, &Failure::RunTimeExceeded { limit_s: claim.work.run_limit.as_secs() }),
            Halt::HandBack => Settlement::Release(self.hand_back(claim, RESTARTING)),
            Halt::ServiceStopped => {
                Settlement::End(self.lost_end(claim, "the service was stopped while it ran", self.clock.now()))
            }
        }
    }

    /// Ready when the service drains and this work may be repeated elsewhere.
    async fn handed_back(&self, claim: &Claim, hand_back: &CancellationToken) {
        if claim.work.restart == RestartPolicy::Retry {
            hand_back.cancelled().await;
        } else {
            std::future::pending::<()>().await;
        }
    }

    fn settlement(&self, claim: &Claim, attempt: Attempt) -> Settlement {
        let now = self.clock.now();
        match attempt {
            Attempt::Answered(outcome) => Settlement::End(self.end_of(claim, outcome, now)),
            Attempt::Stopped => Settlement::Nothing,
            Attempt::NotDispatched { detail } if attempts_left(claim) => {
                Settlement::Release(self.shorten(retry_later(claim, now, &detail)))
            }
            Attempt::NotDispatched { detail } => self.failed(claim, &Failure::UpstreamUnavailable { detail }),
            Attempt::Lost { detail } if may_retry(claim) => {
                Settlement::Release(self.shorten(retry_later(claim, now, &detail)))
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
            message: format!("{}: {why}", super::QUEUED),
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
        if matches!(settlement, Settlement::Release(_)) && !self.is_draining() {
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
                store.finish(Finish { task, token, end: end.clone() }).await?;
            }
        }
        Ok(())
    }

    /// Turns progress into status messages, the newest one at most twice a second, the last one before the outcome.
    async fn write_notes(self: Arc<Self>, claim: Claim, mut events: mpsc::Receiver<Event>) {
        let mut due = Instant::now();
        let mut pending = None;
        loop {
            // With a message in hand, wait for a newer one only until it is due.
            let event = match &pending {
                None => events.recv().await,
                Some(_) => match tokio::time::timeout_at(due, events.recv()).await {
                    Ok(event) => event,
                    Err(_due) => {
                        if !self.write_note(&claim, pending.take()).await {
                            return;
                        }
                        due = Instant::now() + NOTE_INTERVAL;
                        continue;
                    }
                },
            };
            match event {
                Some(event) => pending = progress_message(event).or(pending),
                None => {
                    self.write_note(&claim, pending).await;
                    return;
                }
            }
        }
    }

    /// False once the lease is gone: nobody listens any more.
    async fn write_note(&self, claim: &Claim, message: Option<String>) -> bool {
        let Some(message) = message else { return true };
        let note = Note {
            task: claim.lease.task,
            token: claim.lease.token,
            message: self.status_message(&message),
            now: self.clock.now(),
        };
        self.store.system().note(note).await.unwrap_or_else(|error| {
            tracing::debug!(task.id = %claim.lease.task, %error, "a progress message was not written");
            true
        })
    }
}

/// The text of a progress event: its message, else its numbers.
fn progress_message(event: Event) -> Option<String> {
    let Event::Progress { progress, total, message } = event;
    message.filter(|message| !message.trim().is_empty()).or_else(|| total.map(|total| format!("{progress} of {total}")))
}
