//! The rounds that find what other nodes did: one gathered question for everything that this node waits for (KEEP-18).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::Streams;
use super::show::ShownTasks;
use super::signals::OVERLAP;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, SessionId, TaskId};
use crate::engine::Engine;
use crate::store::{Hint, News, StoreError, Watch};

/// How much longer than the interval a pause after a slow round is.
const MOST_LONGER: Duration = Duration::from_millis(250);

/// The least time from one round to the next, whatever other nodes hint at.
const LEAST: Duration = Duration::from_millis(100);

impl Engine {
    pub(in crate::engine) async fn watch_loop(self: Arc<Self>) {
        self.watch_until_stopped().await;
        // Calls that are no tasks may be under way still.
        while !self.closed.is_cancelled() {
            let began = Instant::now();
            if let Err(error) = self.hear_once().await {
                tracing::debug!(%error, "cannot ask for signals; asking again");
            }
            let next = began + self.store.system().watch_interval();
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.hinted.told.notified() => {
                    self.hinted.take();
                    tokio::time::sleep_until(next.min(began + LEAST)).await;
                }
                () = self.closed.cancelled() => return,
            }
        }
    }

    async fn watch_until_stopped(self: &Arc<Self>) {
        while !self.stopped.is_cancelled() {
            let is_idle = self.waiters.tasks().is_empty() && self.runner.running().is_empty();
            if is_idle && !self.streams.listens() && self.streams.listened().is_empty() {
                tokio::select! {
                    () = self.waiters.arrived.notified() => {}
                    () = self.runner.started.notified() => {}
                    () = self.stopped.cancelled() => return,
                }
                self.streams.was_idle();
            }
            let began = Instant::now();
            if let Err(error) = self.watch_once().await {
                tracing::debug!(%error, "cannot ask for news; asking again");
            }
            let pause = pause_after(self.store.system().watch_interval(), began.elapsed());
            tokio::select! {
                () = self.follow_hints_until(Instant::now() + pause) => {}
                () = self.stopped.cancelled() => return,
            }
        }
    }

    /// Looks at what other nodes hint at, until it is time for the next round; that is at once, or almost, if they may have done
    /// anything.
    async fn follow_hints_until(self: &Arc<Self>, mut next: Instant) {
        loop {
            let soon = Instant::now() + LEAST;
            tokio::select! {
                () = tokio::time::sleep_until(next) => return,
                () = self.hinted.told.notified() => {}
            }
            let hints = self.hinted.take();
            if hints.contains(&Hint::Anything) {
                next = next.min(soon);
            } else if !hints.is_empty()
                && let Err(error) = self.look_at_hinted(hints).await
            {
                tracing::debug!(%error, "cannot look at what other nodes hint at; the next round does");
            }
        }
    }

    /// Asks once for what other nodes say to requests in flight here, and nothing else: this node has left the others.
    async fn hear_once(self: &Arc<Self>) -> Result<(), StoreError> {
        if !self.streams.listens() {
            return Ok(());
        }
        let now = self.now();
        let since = self.streams.last_round(now) - OVERLAP;
        let heard = self.streams.signals.since(since);
        let watch = Watch { signals_since: Some(since), heard, ..Watch::nothing(now) };
        let news = self.store.system().watch(watch).await?;
        self.take_signals(news.signals, since);
        self.streams.round_ended(now);
        Ok(())
    }

    /// Tells the sessions of this node of lists that change (NOTE-12).
    pub(in crate::engine) async fn lists_loop(self: Arc<Self>) {
        let mut changes = self.catalogue.changes();
        let mut known = *changes.borrow_and_update();
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = self.stopped.cancelled() => return,
            }
            let now = *changes.borrow_and_update();
            self.streams.lists_changed(std::mem::replace(&mut known, now), now);
        }
    }

    /// Asks once for what other nodes did to the tasks that are waited for, shown, listened to or run here, to the questions of
    /// streams here and to the requests in flight here; wakes, tells and stops accordingly.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn watch_once(self: &Arc<Self>) -> Result<(), StoreError> {
        let store = self.store.system();
        // True until this round has come to its end, so that a round which fails or is dropped is made up for.
        let missed = self.waiters.unasked.swap(true, Ordering::SeqCst);
        if missed || store.may_have_changed().await? {
            let now = self.now();
            let since = self.streams.last_round(now) - OVERLAP;
            let mut tasks = self.waiters.tasks();
            tasks.extend(self.runner.running());
            let ShownTasks { alive, said } = self.streams.shown_tasks(since);
            tasks.extend(alive.keys());
            let listened = self.streams.listened();
            tasks.extend(&listened);
            tasks.sort_unstable();
            tasks.dedup();
            let (sessions, contexts, mut asking) = self.streams.watched();
            asking.extend(self.waiters.asking());
            let (held, node) = (self.streams.held(), self.membership.node());
            let watch = Watch {
                tasks,
                sessions,
                contexts,
                asking,
                listened,
                held: held.keys().copied().collect(),
                node: Some(node),
                inputs: self.inputs.ids(),
                changed_since: since,
                signals_since: self.streams.listens().then_some(since),
                heard: self.streams.signals.since(since),
                over_since: Some(since),
                said,
                newest: u32::MAX,
                waiting_by: Some(now),
            };
            let began = Instant::now();
            let mut news = store.watch(watch).await?;
            self.runner.was_looked_for(began, news.is_waiting);
            self.take_signals(std::mem::take(&mut news.signals), since);
            // Before the ends: what its own answer has closed is not withdrawn by the end of its task.
            self.questions_closed(std::mem::take(&mut news.closed), &held, node);
            self.take_news(news, &alive).await;
            self.streams.round_ended(now);
        }
        // Whoever began to wait after the ids were collected looked for itself after that.
        self.waiters.unasked.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// `alive` are the tasks that streams here have shown.
    pub(super) async fn take_news(self: &Arc<Self>, news: News, alive: &HashMap<TaskId, ContextId>) {
        let mut shown: HashMap<_, _> = news.over.iter().map(|(context, task)| (*task, *context)).collect();
        shown.extend(news.ended.iter().filter_map(|task| Some((*task, *alive.get(task)?))));
        for task in &news.changed {
            self.streams.task_seen(task);
        }
        // Said before the answer, which follows the end.
        join_all(shown.into_iter().map(|(task, context)| async move {
            match self.store.system().get(context, task).await {
                Ok(Some(task)) => self.streams.task_seen(&task),
                Ok(None) => self.streams.forget_task(task),
                Err(error) => tracing::debug!(task.id = %task, %error, "cannot read a task that ended"),
            }
        }))
        .await;
        for task in &news.ended {
            self.streams.listened_ended(*task);
            self.settled(*task);
        }
        for input in news.settled {
            self.inputs.settled(input);
        }
        for question in &news.open {
            self.waiters.asked(question.task);
        }
        join_all(news.open.into_iter().map(|question| self.offer(question))).await;
    }
}

/// A question that takes long is asked less often, as far as what other nodes did is still told in time (NOTE-09).
fn pause_after(interval: Duration, round: Duration) -> Duration {
    round.saturating_mul(3).clamp(interval, interval + MOST_LONGER)
}

impl Streams {
    /// When the last round that came to its end began.
    pub(super) fn last_round(&self, now: Timestamp) -> Timestamp {
        match self.last_round.load(Ordering::SeqCst) {
            0 => now,
            micros => Timestamp::from_micros(micros),
        }
    }

    /// Nothing has been waited for since: what was before is looked up by those who come.
    fn was_idle(&self) {
        self.last_round.store(0, Ordering::SeqCst);
    }

    fn round_ended(&self, began: Timestamp) {
        self.last_round.store(began.micros(), Ordering::SeqCst);
    }

    /// Sessions with streams here, their contexts, and tasks that are waited for on streams.
    fn watched(&self) -> (Vec<SessionId>, Vec<ContextId>, Vec<TaskId>) {
        let state = self.lock();
        let contexts: HashSet<_> = state.sessions.values().map(|streams| streams.context).collect();
        let (sessions, results) = (state.sessions.keys(), state.results.keys());
        (sessions.copied().collect(), contexts.into_iter().collect(), results.copied().collect())
    }

    fn forget_task(&self, task: TaskId) {
        for session in self.lock().sessions.values_mut() {
            session.shown.remove(&task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: NOTE-09
    #[test]
    fn a_slow_round_makes_the_next_pause_a_little_longer() {
        let [interval, millis] = [Duration::from_millis(250), Duration::from_millis(1)];
        assert_eq!(pause_after(interval, millis), interval);
        assert_eq!(pause_after(interval, millis * 100), millis * 300);
        assert_eq!(pause_after(interval, Duration::from_secs(600)), millis * 500);
        assert_eq!(pause_after(interval, Duration::MAX), millis * 500);
    }
}
