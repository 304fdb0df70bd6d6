//! What other nodes hint at: looked at at once, exactly that, between the rounds that look for everything.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::Streams;
use super::signals::OVERLAP;
use crate::domain::ids::{ContextId, DeliveryId, InputId, SessionId, TaskId};
use crate::engine::Engine;
use crate::store::{Hint, StoreError, Watch};

/// Hints of what is waited for here that nobody has looked at yet.
#[derive(Default)]
pub(in crate::engine) struct Hinted {
    hints: Mutex<HashSet<Hint>>,
    pub(super) told: Notify,
}

impl Hinted {
    fn add(&self, hints: impl IntoIterator<Item = Hint>) {
        let mut all = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(hints);
        if !all.is_empty() {
            self.told.notify_one();
        }
    }

    pub(super) fn take(&self) -> HashSet<Hint> {
        std::mem::take(&mut *self.hints.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Engine {
    /// Hears other nodes until nobody is served here any more.
    pub(in crate::engine) async fn hints_loop(self: Arc<Self>) {
        let Some(mut hints) = self.store.system().hints() else { return };
        loop {
            tokio::select! {
                heard = hints.next() => self.take_hints(heard),
                () = self.closed.cancelled() => return,
            }
        }
    }

    fn take_hints(&self, hints: HashSet<Hint>) {
        for hint in &hints {
            match hint {
                Hint::Waiting => self.runner.somebody_may_wait(),
                Hint::SessionEnded(session) => self.streams.end_session(*session),
                Hint::Anything => self.runner.somebody_may_wait(),
                Hint::Task(..) | Hint::Input(_) | Hint::Signals | Hint::Token(_) => {}
            }
        }
        self.hinted.add(hints.into_iter().filter(|hint| self.is_waited_for(*hint)));
    }

    /// Whether somebody here would be told. Who begins to wait after this looks for itself.
    fn is_waited_for(&self, hint: Hint) -> bool {
        match hint {
            Hint::Task(task, session) => {
                self.waiters.waits_for(task) || self.runner.runs(task) || self.streams.shows(task, session)
            }
            Hint::Input(input) => self.inputs.waits_for(input) || self.streams.has_sent(input),
            Hint::Signals => self.streams.listens(),
            Hint::Anything => true,
            Hint::SessionEnded(_) | Hint::Token(_) | Hint::Waiting => false,
        }
    }

    /// Looks at what was hinted at, and at nothing else; wakes, tells and stops accordingly. Beside these looks the rounds go on
    /// as if there were none: what one of them misses is found by the next round.
    pub(super) async fn look_at_hinted(self: &Arc<Self>, hints: HashSet<Hint>) -> Result<(), StoreError> {
        let now = self.now();
        let since = self.streams.last_round(now) - OVERLAP;
        let hinted = |task: Hint| if let Hint::Task(task, _) = task { Some(task) } else { None };
        let tasks: HashSet<TaskId> = hints.iter().copied().filter_map(hinted).collect();
        let closed = |hint: &Hint| if let Hint::Input(input) = hint { Some(*input) } else { None };
        let inputs: HashSet<InputId> = hints.iter().filter_map(closed).collect();
        let held = self.streams.held_of(&tasks, &inputs);
        let alive = self.streams.of_sessions(&hints);
        let signals_since = (hints.contains(&Hint::Signals) && self.streams.listens()).then_some(since);
        let (node, named): (_, Vec<_>) = (self.membership.node(), tasks.into_iter().collect());
        let watch = Watch {
            asking: named.clone(),
            listened: named.clone(),
            tasks: named,
            held: held.keys().copied().collect(),
            node: Some(node),
            inputs: inputs.into_iter().filter(|input| self.inputs.waits_for(*input)).collect(),
            changed_since: since,
            signals_since,
            heard: if signals_since.is_some() { self.streams.signals.since(since) } else { Vec::new() },
            ..Watch::nothing(now)
        };
        let mut news = self.store.system().watch(watch).await?;
        self.take_signals(std::mem::take(&mut news.signals), since);
        self.questions_closed(std::mem::take(&mut news.closed), &held, node);
        self.take_news(news, &alive).await;
        Ok(())
    }
}

impl Streams {
    /// Whether something about the task may go on a stream of this node.
    fn shows(&self, task: TaskId, session: Option<SessionId>) -> bool {
        let state = self.lock();
        session.is_some_and(|session| state.sessions.contains_key(&session))
            || state.results.contains_key(&task)
            || state.heard.contains_key(&task)
            || state.held.values().any(|held| held.subject.task == task)
    }

    /// Whether a client of this node has the question.
    fn has_sent(&self, input: InputId) -> bool {
        self.lock().held.values().any(|held| held.subject.input == input)
    }

    /// As [`Self::held`], of these tasks and questions.
    fn held_of(&self, tasks: &HashSet<TaskId>, inputs: &HashSet<InputId>) -> HashMap<DeliveryId, Option<u64>> {
        let state = self.lock();
        let of_these = state.held.iter().filter(|(_, held)| {
            let subject = &held.subject;
            tasks.contains(&subject.task) || inputs.contains(&subject.input)
        });
        of_these.map(|(delivery, held)| (*delivery, state.key_of(held))).collect()
    }

    /// The tasks whose sessions have streams here, each with its context.
    fn of_sessions(&self, hints: &HashSet<Hint>) -> HashMap<TaskId, ContextId> {
        let state = self.lock();
        let of_session = |hint: &Hint| match hint {
            Hint::Task(task, Some(session)) => Some((*task, state.sessions.get(session)?.context)),
            _ => None,
        };
        hints.iter().filter_map(of_session).collect()
    }
}
