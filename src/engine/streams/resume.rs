//! A stream that goes on, on whichever node: the questions that it held stay its own, under the ids that its client knows, and
//! are shown again only if the client has not seen them (HTTP-09, INPUT-14).

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::delivery::Delivery;
use super::follow::Following;
use super::open::{Place, Resume};
use super::put::{Again, Placed, Sending};
use super::questions::{Subject, Target};
use super::{Held, Opened, SessionStreams, State, Streams};
use crate::domain::client_task::ClientTask;
use crate::domain::ids::{ContextId, DeliveryId, NodeId, StreamId, TaskId};
use crate::engine::{Caller, Engine};
use crate::lifecycle;
use crate::store::{Closing, Delivered, OpenInput, Purpose, Renamed, StoreError, Watch};

impl Engine {
    /// What this stream held when it broke, on whichever node, it holds again; its client is shown what it has not seen. The
    /// node that had it may not have noticed, and is to be told after this: what it then lets go is not its own any more.
    pub(super) async fn take_back(
        self: &Arc<Self>,
        caller: &Caller,
        opened: &Opened,
        resume: Resume,
    ) -> Result<(), StoreError> {
        // The stream that broke may have been noticed this very moment.
        loop {
            let given_back = self.streams.given_back.notified();
            tokio::pin!(given_back);
            given_back.as_mut().enable();
            if !self.streams.lock().leaving.contains(&resume.stream) {
                break;
            }
            given_back.await;
        }
        // Together, whether or not the client is still there: what is held without a stream nobody would be asked.
        let (engine, caller, opened) = (Arc::clone(self), caller.clone(), opened.clone());
        let hold = lifecycle::spawn("resume", async move { engine.hold_what_broke(&caller, &opened, resume).await });
        hold.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a stream could not take back what it held");
            Ok(())
        })
    }

    async fn hold_what_broke(
        self: &Arc<Self>,
        caller: &Caller,
        opened: &Opened,
        resume: Resume,
    ) -> Result<(), StoreError> {
        let store = self.store.scoped(&caller.auth);
        let taken = store.rehold_stream(resume.stream, self.membership.node()).await?;
        let context = caller.auth.id();
        for sent in taken {
            let Delivered { delivery, task, purpose, .. } = sent;
            let held = self.streams.lock().hold_again(context, opened, sent, resume.after);
            match held {
                Some(Some(told)) => self.follow(delivery, told, purpose),
                Some(None) => {}
                None => self.give_back(vec![(delivery, task)], context, None),
            }
        }
        let unseen = self.streams.lock().unseen(opened.key, resume.after);
        for delivery in unseen {
            self.show_again(delivery, opened.key).await;
        }
        Ok(())
    }

    /// Sends what this stream holds and its client has not seen, under its id and with a number of its own: what a client has
    /// seen is told by the numbers of this stream.
    async fn show_again(self: &Arc<Self>, delivery: DeliveryId, key: u64) {
        let again = Some(Again { delivery, seen: None });
        let Some((subject, target, sending)) = self.streams.lock().held_by(delivery, key).map(|held| {
            let told = held.following.as_ref().map(|following| Arc::clone(&following.told));
            let sending = Sending { purpose: held.purpose, before: None, again, told };
            (held.subject.clone(), held.target.clone(), sending)
        }) else {
            return;
        };
        let (context, task) = (subject.context, subject.task);
        let placed = self.put(subject, target, sending).await;
        if matches!(placed, Placed::At(_)) {
            return;
        }
        let mut state = self.streams.lock();
        let was_held = state.held_by(delivery, key).is_some();
        if was_held {
            state.held.remove(&delivery);
        }
        drop(state);
        // Once: under this id it may be held again by the time of a second time.
        if was_held && !matches!(placed, Placed::NotNow) {
            self.give_back(vec![(delivery, task)], context, None);
        }
    }

    /// Where an open question goes for which a stream of this node was found: on the stream that had it last, under its old
    /// id, if that is here and has room or its client has seen it; else there, under a new one.
    ///
    /// # Errors
    /// If the store fails; the next round finds the question again.
    pub(super) async fn where_it_was(
        &self,
        question: &OpenInput,
        found: Target,
    ) -> Result<(Target, Option<Again>), StoreError> {
        let Some(last) = question.last.filter(|_| question.client_task.is_none()) else { return Ok((found, None)) };
        let sent = self.store.system().delivered(question.context, last.delivery).await?;
        let sent = sent.filter(|sent| sent.is_last && sent.purpose == Purpose::Question);
        let was = sent.and_then(|sent| self.streams.lock().target_again(&sent, question.context));
        Ok(was.map_or((found, None), |(target, again)| (target, Some(again))))
    }

    /// This process goes on as another node: what its streams held they hold on, unless others have it by now.
    pub(super) async fn keep_holds(self: &Arc<Self>, old: NodeId) -> Result<(), StoreError> {
        let (store, node, keys) = (self.store.system(), self.membership.node(), self.streams.held());
        let mut lost = Vec::new();
        for ((context, stream), held) in self.streams.held_by_streams() {
            let kept = store.keep_stream(context, stream, Renamed { old, new: node }).await?;
            let is_kept = |id: &DeliveryId| kept.iter().any(|sent| sent.delivery == *id);
            lost.extend(held.into_iter().filter(|id| !is_kept(id)));
            self.give_back(self.streams.without_a_stream(kept), context, None);
        }
        if lost.is_empty() {
            return Ok(());
        }
        let watch = Watch { held: lost, node: Some(node), ..Watch::nothing(self.now()) };
        let closed = store.watch(watch).await?.closed;
        let (moved, closed): (Vec<_>, Vec<_>) = closed.into_iter().partition(|closed| closed.how == Closing::Moved);
        self.questions_closed(moved, &keys, node);
        self.streams.lose(closed.into_iter().map(|closed| closed.delivery));
        Ok(())
    }
}

impl Streams {
    fn held_by_streams(&self) -> HashMap<(ContextId, StreamId), Vec<DeliveryId>> {
        let mut streams = HashMap::<_, Vec<_>>::new();
        for (delivery, held) in &self.lock().held {
            streams.entry((held.subject.context, held.target.stream)).or_default().push(*delivery);
        }
        streams
    }

    /// Of what this node holds by the database: what no stream here has, nor is about to. It was let go by the old id.
    fn without_a_stream(&self, kept: Vec<Delivered>) -> Vec<(DeliveryId, TaskId)> {
        let state = self.lock();
        let has_none =
            |sent: &Delivered| !state.held.contains_key(&sent.delivery) && !state.offering.contains(&sent.input);
        kept.into_iter().filter(has_none).map(|sent| (sent.delivery, sent.task)).collect()
    }

    /// Others have these questions now.
    fn lose(&self, deliveries: impl Iterator<Item = DeliveryId>) {
        let now = self.clock.now();
        let mut state = self.lock();
        for delivery in deliveries {
            let following = state.held.get(&delivery).and_then(|held| held.following.as_ref());
            if following.is_some_and(|following| following.known.is_some()) {
                // Whoever has the question next goes on with the client's task.
                state.held.remove(&delivery);
            } else {
                state.withdraw(delivery, now);
            }
        }
    }
}

impl State {
    /// What a stream of this node held goes over to the one that continues it.
    pub(super) fn take_over(&mut self, old: u64, place: &Place) {
        for (delivery, held) in self.held.iter_mut().filter(|(_, held)| held.target.key == old) {
            // Whoever reads on there is not shown what is shown here.
            held.target.line.take_back(&delivery.to_string());
            (held.target.key, held.target.line) = (place.key, Arc::clone(&place.line));
        }
    }

    pub(super) fn held_by(&self, delivery: DeliveryId, key: u64) -> Option<&Held> {
        self.held.get(&delivery).filter(|held| held.target.key == key)
    }

    /// What a stream that was resumed holds and has not sent, in the order in which it was sent before.
    fn unseen(&self, key: u64, after: i64) -> Vec<DeliveryId> {
        let of_it = self.held.iter().filter(|(_, held)| held.target.key == key && held.sent_on != key);
        let unseen = of_it.filter(|(_, held)| held.sequence > after && held.is_still_asked());
        let mut unseen: Vec<_> = unseen.map(|(delivery, held)| (held.sequence, *delivery)).collect();
        unseen.sort_unstable();
        unseen.into_iter().map(|(_, delivery)| delivery).collect()
    }

    /// Whom to tell of the client's task, if it may have one; `None` if the stream has gone.
    fn hold_again(
        &mut self,
        context: ContextId,
        opened: &Opened,
        delivered: Delivered,
        after: i64,
    ) -> Option<Option<Arc<Notify>>> {
        let Delivered { delivery, input, task, sequence, purpose, question, client_task, .. } = delivered;
        let client_task = client_task.as_ref().and_then(ClientTask::read);
        let target = self.target_of(task, opened)?;
        if let Some(held) = self.held.get_mut(&delivery) {
            // The node that had it since may have sent it again.
            (held.target, held.sequence, held.regained) = (target, sequence, true);
            return Some(None);
        }
        let subject = Subject { input, task, context, question, client_task: client_task.clone() };
        let is_task = purpose != Purpose::Question || target.capabilities.takes_tasks(subject.question.kind);
        let following = is_task.then(|| Following::new(client_task, target.capabilities.cancels_tasks()));
        let again = following.as_ref().map(|following| Arc::clone(&following.told));
        let mut held = Held { subject, target, purpose, sequence, sent_on: 0, regained: true, following };
        let is_shown = sequence > after && held.is_still_asked();
        if let Some(following) = held.following.as_mut().filter(|following| !is_shown && following.known.is_some()) {
            // It may have been answered while nobody listened.
            following.answered = true;
            following.told.notify_one();
        }
        self.held.insert(delivery, held);
        Some(again)
    }

    /// The place of a stream that was just opened.
    fn target_of(&self, task: TaskId, opened: &Opened) -> Option<Target> {
        let mut results = self.results.get(&task).into_iter().flatten();
        if let Some(stream) = results.find(|stream| stream.key == opened.key) {
            return stream.session.map(|session| stream.target(session));
        }
        let mut sessions = self.sessions.iter();
        let has_it = |streams: &SessionStreams| streams.open.iter().any(|open| open.key == opened.key);
        sessions.find(|(_, streams)| has_it(streams)).map(|(session, streams)| streams.target(*session, opened))
    }

    /// The stream on which this was sent, if it is open here and has the turn, and room for it unless its client has seen it.
    fn target_again(&self, sent: &Delivered, context: ContextId) -> Option<(Target, Again)> {
        let results = self.results.get(&sent.task).into_iter().flatten();
        let mut results = results.filter(|stream| stream.context == context && stream.is_usable());
        let result = results.find(|stream| stream.stream == sent.stream && stream.session == Some(sent.session));
        let of_session = || {
            let streams = self.sessions.get(&sent.session).filter(|streams| streams.context == context)?;
            let opened = self.session_line(sent.session)?;
            let is_it = opened.stream == sent.stream && opened.is_ready && !opened.line.is_closed();
            is_it.then(|| streams.target(sent.session, opened))
        };
        let target = result.map(|stream| stream.target(sent.session)).or_else(of_session)?;
        let is_sent = self.held_by(sent.delivery, target.key).is_some();
        let seen = (is_sent || sent.sequence <= target.line.after()).then_some(sent.sequence);
        if seen.is_none() && !target.line.has_room(Delivery::weight_of(&sent.question)) {
            return None;
        }
        Some((target, Again { delivery: sent.delivery, seen }))
    }
}

impl Held {
    /// Whether its client is to answer what was sent: not a question of which it has made a task.
    fn is_still_asked(&self) -> bool {
        let known = self.following.as_ref().is_some_and(|following| following.known.is_some());
        self.purpose != Purpose::Question || !(known || self.subject.client_task.is_some())
    }
}
