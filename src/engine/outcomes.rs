//! Outcomes that are being read from the store or sent to clients at this node: each is read once, kept once, and prepared
//! for sending once, for all who are sent it (F-GW-17). Nobody's outcome is kept any longer than its slowest reader.
//!
//! It knows outcomes, not tasks: each for whom another reads asks the store for its task by itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{OnceCell, watch};

use crate::domain::ids::{ContextId, TaskId};
use crate::domain::outcome::Outcome;
use crate::domain::pieces::Pieces;
use crate::lifecycle::aside;

type Key = (ContextId, TaskId);
type Read = Option<Arc<SharedOutcome>>;

/// The outcome of an ended task.
pub struct SharedOutcome {
    outcome: Outcome,
    /// As it is sent.
    prepared: OnceCell<Pieces>,
    key: Key,
    home: Weak<Outcomes>,
}

impl SharedOutcome {
    fn new(outcome: Outcome, key: Key, home: &Arc<Outcomes>) -> Arc<Self> {
        Arc::new(Self { outcome, prepared: OnceCell::new(), key, home: Arc::downgrade(home) })
    }

    #[must_use]
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// What `prepare` makes of it, made once: away from the async threads if it is large. There is one form of it.
    pub async fn prepared(&self, prepare: fn(TaskId, &Outcome) -> Pieces) -> Pieces {
        let make = async || {
            let (task, outcome) = (self.key.1, self.outcome.clone());
            let made = aside(self.bytes(), move || prepare(task, &outcome)).await;
            // It panicked there; here the panic is this request's own.
            made.unwrap_or_else(|| prepare(task, &self.outcome))
        };
        self.prepared.get_or_init(make).await.clone()
    }

    /// Bytes of its text.
    pub(super) fn bytes(&self) -> usize {
        self.outcome.json().map_or(0, crate::domain::json::RawJson::len)
    }
}

impl Drop for SharedOutcome {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.forget(self.key);
        }
    }
}

impl std::fmt::Debug for SharedOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedOutcome").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Outcomes(Mutex<HashMap<Key, Entry>>);

enum Entry {
    /// Somebody reads it.
    Reading(watch::Receiver<Read>),
    /// Somebody is sent it.
    Read(Weak<SharedOutcome>),
}

/// Who reads an outcome, and who has it from somebody else.
pub(super) enum Turn {
    First(Reading),
    Later(Awaiting),
}

/// The right to read an outcome for all who want it; dropped, somebody else reads it.
pub(super) struct Reading {
    home: Arc<Outcomes>,
    key: Key,
    told: watch::Sender<Read>,
}

pub(super) struct Awaiting(Result<Arc<SharedOutcome>, watch::Receiver<Read>>);

impl Outcomes {
    pub(super) fn turn(self: &Arc<Self>, context: ContextId, task: TaskId) -> Turn {
        let key = (context, task);
        let mut entries = self.lock();
        let slot = match entries.entry(key) {
            Slot::Occupied(entry) => match entry.get() {
                Entry::Reading(told) => return Turn::Later(Awaiting(Err(told.clone()))),
                Entry::Read(outcome) => match outcome.upgrade() {
                    // Let go of outside the lock: it may be the last.
                    Some(outcome) => return Turn::Later(Awaiting(Ok(outcome))),
                    None => Slot::Occupied(entry),
                },
            },
            vacant @ Slot::Vacant(_) => vacant,
        };
        let (sender, told) = watch::channel(None);
        slot.insert_entry(Entry::Reading(told));
        Turn::First(Reading { home: Arc::clone(self), key, told: sender })
    }

    /// An outcome that nobody needs to read any more: it was read, or its task has just ended here.
    pub(super) fn known(self: &Arc<Self>, context: ContextId, task: TaskId, outcome: Outcome) -> Arc<SharedOutcome> {
        let key = (context, task);
        let mut entries = self.lock();
        if let Some(Entry::Read(outcome)) = entries.get(&key)
            && let Some(outcome) = outcome.upgrade()
        {
            return outcome;
        }
        let shared = SharedOutcome::new(outcome, key, self);
        entries.insert(key, Entry::Read(Arc::downgrade(&shared)));
        shared
    }

    /// How many are being read or sent.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }

    /// Unless somebody reads it anew.
    fn forget(&self, key: Key) {
        let mut entries = self.lock();
        if let Some(Entry::Read(outcome)) = entries.get(&key)
            && outcome.strong_count() == 0
        {
            entries.remove(&key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// Gives the outcome to all who wait for it.
    pub(super) fn publish(self, outcome: Outcome) -> Arc<SharedOutcome> {
        let (context, task) = self.key;
        // Its task may have ended here while it was read.
        let shared = self.home.known(context, task, outcome);
        self.told.send_replace(Some(Arc::clone(&shared)));
        shared
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut entries = self.home.lock();
        if let Some(Entry::Reading(_)) = entries.get(&self.key) {
            entries.remove(&self.key);
        }
    }
}

impl Awaiting {
    /// `None` if whoever read it found no outcome, failed or left.
    pub(super) async fn outcome(self) -> Option<Arc<SharedOutcome>> {
        match self.0 {
            Ok(outcome) => Some(outcome),
            Err(mut told) => told.wait_for(Option::is_some).await.ok()?.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::domain::json::RawJson;

    fn outcome() -> Outcome {
        Outcome::Result { json: RawJson::trusted("{}"), is_error: false }
    }

    fn ids() -> Key {
        (ContextId::new(), TaskId::new())
    }

    #[tokio::test]
    async fn the_first_reads_for_all_and_the_last_lets_go() {
        let (outcomes, (context, task)) = (Arc::new(Outcomes::default()), ids());
        let Turn::First(reading) = outcomes.turn(context, task) else { panic!("nobody else is there") };
        let Turn::Later(early) = outcomes.turn(context, task) else { panic!("it is being read") };
        assert!(matches!(outcomes.turn(ContextId::new(), task), Turn::First(_)), "another's is another");
        let read = reading.publish(outcome());
        let Turn::Later(late) = outcomes.turn(context, task) else { panic!("it is there") };
        for other in [early.outcome().await.unwrap(), late.outcome().await.unwrap()] {
            assert!(Arc::ptr_eq(&read, &other));
        }
        assert_eq!(outcomes.len(), 1);
        drop(read);
        assert_eq!(outcomes.len(), 0);
        assert!(matches!(outcomes.turn(context, task), Turn::First(_)), "it is read anew");
    }

    #[tokio::test]
    async fn who_comes_after_an_end_that_is_known_reads_nothing() {
        let (outcomes, (context, task)) = (Arc::new(Outcomes::default()), ids());
        // Somebody looked before the end, and has not come to an end of it.
        let Turn::First(reading) = outcomes.turn(context, task) else { panic!("nobody else is there") };
        let known = outcomes.known(context, task, outcome());
        assert!(Arc::ptr_eq(&known, &outcomes.known(context, task, outcome())));
        assert!(Arc::ptr_eq(&known, &reading.publish(outcome())), "in memory once");
        let Turn::Later(later) = outcomes.turn(context, task) else { panic!("it is there") };
        assert!(Arc::ptr_eq(&known, &later.outcome().await.unwrap()));
        assert!(matches!(outcomes.turn(ContextId::new(), task), Turn::First(_)), "another's is another");
        drop(known);
        assert_eq!(outcomes.len(), 0);
    }

    #[tokio::test]
    async fn who_does_not_come_to_the_end_of_reading_holds_nobody_up() {
        let (outcomes, (context, task)) = (Arc::new(Outcomes::default()), ids());
        let Turn::First(reading) = outcomes.turn(context, task) else { panic!("nobody else is there") };
        let Turn::Later(waiting) = outcomes.turn(context, task) else { panic!("it is being read") };
        let mut waiting = Box::pin(waiting.outcome());
        assert!((&mut waiting).now_or_never().is_none());
        drop(reading);
        assert!(waiting.await.is_none());
        assert_eq!(outcomes.len(), 0);
    }

    #[tokio::test]
    async fn it_is_prepared_once() {
        let (outcomes, (context, task)) = (Arc::new(Outcomes::default()), ids());
        let Turn::First(reading) = outcomes.turn(context, task) else { panic!("nobody else is there") };
        let shared = reading.publish(outcome());
        let first = shared.prepared(|task, _| Pieces::from(task.to_string())).await;
        let again = shared.prepared(|_, _| panic!("it is prepared")).await;
        assert_eq!((first.to_text(), again), (task.to_string(), first));
    }
}
