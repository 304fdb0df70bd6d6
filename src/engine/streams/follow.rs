//! Following clients' own tasks for questions that streams of this node hold (CAP-08).
//!
//! The stream that put a question to a client as a task goes on with `tasks/get` at the pace that the client asks for, and
//! with `tasks/result` once there is one, each a request under an id of its own. Only the client's own session is asked.
//! While it has no stream, its task waits; after a while another session may be asked the question anew.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::delivery::{Delivery, Step};
use super::put::{Placed, RETRY, Sending};
use super::questions::{Found, Subject, Target};
use super::{State, Streams};
use crate::domain::client_task::{ClientStatus, ClientTask};
use crate::domain::ids::{ContextId, DeliveryId, SessionId, TaskId};
use crate::domain::json::RawJson;
use crate::engine::{Caller, Engine};
use crate::lifecycle;
use crate::store::{Last, OpenInput, Purpose};

/// Another node may have taken the client's task while its hint was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// After this long a request that was not answered is made again.
const UNANSWERED: Duration = Duration::from_secs(60);
/// How long a client may be without a stream before its task is given up, if another session could be asked.
const AWAY: Duration = Duration::from_secs(60);

/// What goes on beside a question that was sent as a task.
#[derive(Clone)]
pub(super) struct Following {
    pub(super) known: Option<ClientTask>,
    /// Whether the client said so in answer to what was sent last.
    pub(super) answered: bool,
    /// Whether the client serves `tasks/cancel`.
    pub(super) cancels: bool,
    /// Told when the client has said something of its task. Each follower has its own.
    pub(super) told: Arc<Notify>,
}

impl Following {
    pub(super) fn new(known: Option<ClientTask>, cancels: bool) -> Self {
        Self { known, answered: false, cancels, told: Arc::default() }
    }

    /// The request that ends the client's task; `None` if it has none, or does not serve that.
    pub(super) fn cancel(&self) -> Option<Delivery> {
        let id = DeliveryId::new().to_string();
        let client_task = self.known.as_ref().filter(|_| self.cancels)?.id.clone();
        Some(Delivery::ClientTask { id, step: Step::Cancel, client_task })
    }
}

/// The message that is sent for this purpose about a client's task; `None` if that is the question.
pub(super) fn request(purpose: Purpose, delivery: DeliveryId, client_task: &RawJson) -> Option<Delivery> {
    let step = match purpose {
        Purpose::Question => return None,
        Purpose::TaskGet => Step::Get,
        Purpose::TaskResult => Step::Result,
    };
    Some(Delivery::ClientTask { id: delivery.to_string(), step, client_task: client_task.clone() })
}

impl Streams {
    /// Notes what the client said in answer to this delivery; false if no stream of this node sent it last.
    pub(in crate::engine) fn client_task_is(&self, delivery: DeliveryId, task: ClientTask) -> bool {
        let mut state = self.lock();
        let following = state.held.get_mut(&delivery).and_then(|held| held.following.as_mut());
        let Some(following) = following else { return false };
        (following.known, following.answered) = (Some(task), true);
        following.told.notify_one();
        true
    }

    /// Ends a task that a client made of a question after that was withdrawn, if its stream is here.
    pub(in crate::engine) fn cancel_late(&self, caller: &Caller, task: ClientTask) {
        let following = Following::new(Some(task), caller.declared().cancels_tasks());
        let (now, state) = (self.clock.now(), self.lock());
        let opened = caller.session.and_then(|session| state.session_line(session));
        if let (Some(opened), Some(cancel)) = (opened, following.cancel()) {
            opened.line.push(cancel, now);
        }
    }

    /// A stream of the session that has the client's task.
    pub(super) fn find_holder(&self, question: &OpenInput, last: Last, known: &ClientTask) -> Option<Target> {
        let state = self.lock();
        let mut target = state.target_in(question, last.holder)?;
        target.after = known.poll_interval.saturating_sub(self.clock.now().since(last.at));
        Some(target)
    }

    fn followed(&self, delivery: DeliveryId, told: &Arc<Notify>) -> Option<(Subject, Target, Following)> {
        let state = self.lock();
        let held = state.held.get(&delivery)?;
        let following = held.following.as_ref().filter(|following| Arc::ptr_eq(&following.told, told))?;
        Some((held.subject.clone(), held.target.clone(), following.clone()))
    }
}

impl State {
    /// Of the streams of one session that may carry what is about this question.
    fn target_in(&self, question: &OpenInput, session: SessionId) -> Option<Target> {
        let results = self.results.get(&question.task).into_iter().flatten();
        let mut results = results.filter(|stream| stream.context == question.context && stream.is_usable());
        if let Some(stream) = results.find(|stream| stream.session == Some(session)) {
            return Some(stream.target(session));
        }
        let streams = self.sessions.get(&session).filter(|streams| streams.context == question.context)?;
        self.session_line(session).filter(|opened| opened.is_ready).map(|opened| streams.target(session, opened))
    }
}

impl Engine {
    /// Where a question goes for which a client has a task of its own.
    pub(super) async fn find_client(&self, question: &mut OpenInput, last: Last, known: &ClientTask) -> Found {
        if let Some(target) = self.streams.find_holder(question, last, known) {
            return Found::Stream(target);
        }
        if self.now().since(last.at) < AWAY.max(known.poll_interval * 2) {
            return Found::Nothing;
        }
        let found = self.streams.find(question);
        if !matches!(found, Found::Stream(_)) {
            return found;
        }
        match self.store.system().forget_client_task(question.id, last.delivery).await {
            Ok(true) => {
                tracing::debug!(task.id = %question.task, "a client with a task of its own stays away; asking another");
                (question.client_task, question.last) = (None, None);
                found
            }
            Ok(false) => Found::Nothing,
            Err(error) => {
                tracing::debug!(task.id = %question.task, %error, "cannot give up a client's task; the next round does");
                Found::Nothing
            }
        }
    }

    /// How long the client should keep its task: no longer than ours can need it.
    pub(super) async fn time_left(&self, context: ContextId, task: TaskId) -> Option<Duration> {
        let task = self.store.system().get(context, task).await.ok().flatten()?;
        let now = self.now();
        let left = match task.shown_ttl(now, &self.rules.ttl).milliseconds() {
            Some(ms) => Duration::from_millis(ms.unsigned_abs()).saturating_sub(now.since(task.created)),
            None => self.rules.ttl.hard_end(task.created).since(now),
        };
        Some(left.min(self.rules.hard_run_limit).max(Duration::from_secs(1)))
    }

    /// Begins to follow the client's task, should it make one of what was sent as `delivery`.
    pub(super) fn follow(self: &Arc<Self>, delivery: DeliveryId, told: Arc<Notify>, sent: Purpose) {
        let engine = Arc::clone(self);
        lifecycle::spawn("client task", async move {
            tokio::select! {
                () = engine.follow_to_the_end(delivery, told, sent) => {}
                () = engine.stopped.cancelled() => {}
            }
        });
    }

    async fn follow_to_the_end(self: &Arc<Self>, mut delivery: DeliveryId, told: Arc<Notify>, mut sent: Purpose) {
        loop {
            let patience = if sent == Purpose::Question { LOOK_AGAIN } else { UNANSWERED };
            let heard = tokio::time::timeout(patience, told.notified()).await.is_ok();
            let Some((_, _, following)) = self.streams.followed(delivery, &told) else { return };
            if heard && !following.answered {
                continue;
            }
            let known = if heard { following.known } else { self.look_for_client_task(delivery, &told).await };
            let Some(known) = known else { continue };
            // What was waited for in vain is asked for anew: the client may have lost it.
            let next = match (sent, known.status) {
                (Purpose::TaskResult, _) | (_, ClientStatus::Working) => Purpose::TaskGet,
                // Also where it wants input: the request for its result is where it would ask.
                _ => Purpose::TaskResult,
            };
            if next == Purpose::TaskGet {
                tokio::time::sleep(known.poll_interval).await;
            }
            let Some((mut subject, target, following)) = self.streams.followed(delivery, &told) else { return };
            if following.known.as_ref() != Some(&known) {
                told.notify_one();
                continue;
            }
            subject.client_task = Some(known);
            let (before, told_too) = (Some(delivery), Some(Arc::clone(&told)));
            let sending = Sending { purpose: next, before, again: None, told: told_too };
            match self.put(subject, target, sending).await {
                Placed::At(new) => (delivery, sent) = (new, next),
                Placed::Nowhere => return,
                Placed::NoRoom | Placed::NotNow => {
                    tokio::time::sleep(RETRY).await;
                    told.notify_one();
                }
            }
        }
    }

    /// Without a word from the client: its task as it is stored.
    async fn look_for_client_task(&self, delivery: DeliveryId, told: &Arc<Notify>) -> Option<ClientTask> {
        let (subject, _, _) = self.streams.followed(delivery, told)?;
        let found = self.store.system().delivered(subject.context, delivery).await.ok()??;
        let known = found.client_task.as_ref().and_then(ClientTask::read)?;
        self.streams.client_task_is(delivery, known.clone());
        Some(known)
    }
}

impl std::fmt::Debug for Following {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Following").field("known", &self.known).finish_non_exhaustive()
    }
}
