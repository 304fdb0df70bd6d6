//! Putting a question on a stream, and giving back what a stream held. The store is asked first: of several streams that want
//! a question one gets it (INPUT-04).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::delivery::Delivery;
use super::follow::Following;
use super::questions::{Subject, Target};
use super::{Held, State, Streams};
use crate::domain::ids::{ContextId, DeliveryId, StreamId, TaskId};
use crate::engine::Engine;
use crate::lifecycle;
use crate::store::{Hold, Purpose};

/// Between tries to give a question back while the database is away.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// How long a stream stands still while the store is asked for a question that goes on it.
const STALLS: Duration = Duration::from_secs(1);

/// What is sent, and how it follows what was sent before.
pub(super) struct Sending {
    pub(super) purpose: Purpose,
    /// What it takes the place of.
    pub(super) before: Option<DeliveryId>,
    /// What goes on under its old id.
    pub(super) again: Option<Again>,
    /// Whom to tell of the client's task.
    pub(super) told: Option<Arc<Notify>>,
}

/// A delivery that its stream had before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Again {
    pub(super) delivery: DeliveryId,
    /// Its number on the stream, if its client has seen it: then nothing is sent.
    pub(super) seen: Option<i64>,
}

/// What became of a message for a client.
pub(super) enum Placed {
    /// Sent under this id.
    At(DeliveryId),
    /// The question is not open any more, or another stream's.
    Nowhere,
    /// Its stream has no room for it now: the store was not asked.
    NoRoom,
    /// It is being given back, and may be tried again.
    NotNow,
}

impl Streams {
    /// Forgets what a stream held; answers what that was, to be given back. Until it is, the stream is leaving.
    pub(super) fn let_go_of(state: &mut State, key: u64, stream: StreamId) -> Vec<(DeliveryId, TaskId)> {
        let gone = state.held.extract_if(|_, held| held.target.key == key);
        let gone: Vec<_> = gone.map(|(delivery, held)| (delivery, held.subject.task)).collect();
        if !gone.is_empty() {
            state.leaving.push(stream);
        }
        gone
    }

    /// Puts a question that the store says is ours in its place, with what is sent for it; false if its stream has gone.
    fn hold(&self, mut held: Held, delivery: DeliveryId, before: Option<DeliveryId>, sent: Option<Delivery>) -> bool {
        let mut state = self.lock();
        let is_put = state.is_open(&held) && sent.is_none_or(|sent| held.target.line.fill(held.sequence, Some(sent)));
        if is_put {
            if let Some(before) = before {
                state.held.remove(&before);
            }
            if let Some(old) = state.held.remove(&delivery) {
                held.regained = old.regained;
                // Whoever follows the client's task goes on.
                held.following = old.following.or(held.following);
            }
            state.held.insert(delivery, held);
        }
        is_put
    }
}

impl State {
    /// Whether the stream on which it was put is still there.
    fn is_open(&self, Held { subject, target, .. }: &Held) -> bool {
        let is_result = self.results.get(&subject.task).into_iter().flatten().any(|stream| stream.key == target.key);
        let session = || self.sessions.get(&target.session);
        is_result || session().is_some_and(|streams| streams.open.iter().any(|opened| opened.key == target.key))
    }
}

impl Engine {
    /// Sends what is wanted, in the place of what was sent before.
    pub(super) async fn put(self: &Arc<Self>, subject: Subject, target: Target, sending: Sending) -> Placed {
        let Sending { purpose, before, again, told } = sending;
        let now = self.now();
        let delivery = again.map_or_else(DeliveryId::new, |again| again.delivery);
        let as_task = match (purpose, &told) {
            (Purpose::Question, Some(_)) => self.time_left(subject.context, subject.task).await,
            _ => None,
        };
        let message = subject.message(purpose, delivery, as_task);
        let seen = again.and_then(|again| again.seen);
        let place = if seen.is_none() { target.line.reserve(message.weight(), now) } else { None };
        let Some(sequence) = seen.or(place.as_ref().map(|place| place.count)) else { return Placed::NoRoom };
        let (task, context) = (subject.task, subject.context);
        let hold = Hold {
            input: subject.input,
            task,
            delivery,
            session: target.session,
            stream: target.stream,
            sequence,
            node: self.membership.node(),
            purpose,
            now,
        };
        let store = self.store.system();
        let mut holding = store.hold_input(hold);
        let Ok(is_held) = tokio::time::timeout(STALLS, &mut holding).await else {
            // The stream goes on without it.
            drop(place);
            return match holding.await {
                Ok(false) => Placed::Nowhere,
                Ok(true) | Err(_) => {
                    self.give_back(vec![(delivery, task)], context, None);
                    Placed::NotNow
                }
            };
        };
        match is_held {
            Ok(true) => {
                let following = told.map(|told| Following {
                    known: subject.client_task.clone(),
                    answered: false,
                    cancels: target.capabilities.cancels_tasks(),
                    told,
                });
                let sent_on = target.key;
                let held = Held { subject, target, purpose, sequence, sent_on, regained: false, following };
                if self.streams.hold(held, delivery, before, place.is_some().then_some(message)) {
                    return Placed::At(delivery);
                }
                self.give_back(vec![(delivery, task)], context, None);
                Placed::NotNow
            }
            Ok(false) => Placed::Nowhere,
            Err(error) => {
                tracing::debug!(task.id = %task, %error, "cannot hold a question; another stream will");
                // It may have been written all the same.
                self.give_back(vec![(delivery, task)], context, None);
                Placed::NotNow
            }
        }
    }

    /// Lets others have what a stream held, which is leaving by [`Streams::let_go_of`], however long the database is away, and offers it here again.
    pub(super) fn give_back(
        self: &Arc<Self>,
        held: Vec<(DeliveryId, TaskId)>,
        context: ContextId,
        stream: Option<StreamId>,
    ) {
        if held.is_empty() {
            return;
        }
        let leaving = Leaving { engine: Arc::clone(self), stream };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let node = self.membership.node();
        let engine = Arc::clone(self);
        lifecycle::spawn("let go", async move {
            let deliveries: Vec<_> = held.iter().map(|(delivery, _)| *delivery).collect();
            while let Err(error) = engine.store.system().let_go(node, &deliveries).await {
                tracing::debug!(%error, "cannot give questions back; trying again");
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    // Whoever finds this node gone takes them.
                    () = engine.stopped.cancelled() => return,
                }
            }
            drop(leaving);
            let mut tasks: Vec<_> = held.into_iter().map(|(_, task)| task).collect();
            tasks.dedup();
            for task in tasks {
                engine.offer_of(context, task).await;
            }
        });
    }
}

/// A stream whose questions are being given back, until dropped.
struct Leaving {
    engine: Arc<Engine>,
    stream: Option<StreamId>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut state = self.engine.streams.lock();
        if let Some(at) = state.leaving.iter().position(|leaving| Some(*leaving) == self.stream) {
            state.leaving.swap_remove(at);
        }
        drop(state);
        self.engine.streams.given_back.notify_waiters();
    }
}
