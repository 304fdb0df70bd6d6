//! How many tasks run on a node at once. Slots count tasks that work: one that waits for input gives its slot up, and goes
//! on without waiting for one when it is answered, so that there may be fewer than none free for a while.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub(in crate::engine) struct Slots {
    all: i64,
    /// Below zero while answered tasks run beyond the slots.
    free: AtomicI64,
    /// How many more tasks may wait for input without a slot.
    places: AtomicI64,
    closed: AtomicBool,
    /// Told when one is freed.
    pub(super) freed: Notify,
    /// Wakes everybody when one is freed.
    pub(super) changed: Notify,
}

/// The right to run one task; given back on drop.
pub(in crate::engine) struct Slot {
    slots: Arc<Slots>,
    /// Whether it was taken for a claim that has found nothing for it yet. To claim again because such a one came back would be
    /// to claim without end.
    is_spare: bool,
}

impl Slot {
    /// It was taken for a claim, which has a task for it.
    pub(super) fn used(self) -> Self {
        let mut slot = self;
        slot.is_spare = false;
        slot
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.free.fetch_add(1, Ordering::SeqCst);
        if !self.is_spare {
            self.slots.freed.notify_one();
        }
        self.slots.changed.notify_waiters();
    }
}

impl Slots {
    /// `all` for running tasks, and up to `asking` places for tasks that wait without one.
    pub(super) fn new(all: usize, asking: usize) -> Arc<Self> {
        let [all, asking] = [all, asking].map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        Arc::new(Self {
            all,
            free: AtomicI64::new(all),
            places: AtomicI64::new(asking),
            closed: AtomicBool::new(false),
            freed: Notify::new(),
            changed: Notify::new(),
        })
    }

    pub(super) fn take(self: &Arc<Self>) -> Option<Slot> {
        if self.closed.load(Ordering::SeqCst) {
            return None;
        }
        take_one(&self.free).then(|| self.slot())
    }

    /// One that tells nobody when it comes back unused.
    pub(super) fn take_for_claim(self: &Arc<Self>) -> Option<Slot> {
        self.take().map(|mut slot| {
            slot.is_spare = true;
            slot
        })
    }

    fn slot(self: &Arc<Self>) -> Slot {
        Slot { slots: Arc::clone(self), is_spare: false }
    }

    /// From now on none is taken; those that are out come back in their time.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn free(&self) -> i64 {
        self.free.load(Ordering::SeqCst)
    }

    /// Whether so few are free, less than `most` and less than a quarter, that others are about to be.
    pub(super) fn are_few(&self, most: usize) -> bool {
        let free = self.free();
        free < self.all / 4 && usize::try_from(free).is_ok_and(|free| free < most)
    }

    /// Whether every slot has come back. Of tasks that wait without one this knows nothing.
    pub(super) fn all_free(&self) -> bool {
        self.free() == self.all
    }

    /// A slot for work that runs already, whether or not one is free. `None` once they are closed.
    pub(super) fn take_for_running(self: &Arc<Self>) -> Option<Slot> {
        // Taken before the look: who closes them counts those that are out after it.
        let slot = self.take_anyway();
        (!self.closed.load(Ordering::SeqCst)).then_some(slot)
    }

    /// A slot for work that goes on, whether or not one is free.
    fn take_anyway(self: &Arc<Self>) -> Slot {
        self.free.fetch_sub(1, Ordering::SeqCst);
        self.slot()
    }
}

/// What a running task holds: its slot, but while it waits for input.
pub(super) struct Seat {
    slots: Arc<Slots>,
    state: Mutex<Seated>,
}

struct Seated {
    /// Questions that are waited for.
    questions: usize,
    slot: Option<Slot>,
    /// Whether it took one of the places for those that wait.
    placed: bool,
    /// Whether the attempt is over; then nothing is taken any more, whoever still waits.
    left: bool,
}

/// A question that is waited for, until dropped.
pub(super) struct Waits(Arc<Seat>);

impl Seat {
    pub(super) fn new(slot: Slot) -> Arc<Self> {
        let slots = Arc::clone(&slot.slots);
        Arc::new(Self {
            slots,
            state: Mutex::new(Seated { questions: 0, slot: Some(slot), placed: false, left: false }),
        })
    }

    /// Gives the slot up with the first question, if there is a place for one more that waits.
    pub(super) fn waits(self: &Arc<Self>) -> Waits {
        let mut state = self.state();
        state.questions += 1;
        if state.questions == 1 && !state.left && take_one(&self.slots.places) {
            state.placed = true;
            state.slot = None;
        }
        drop(state);
        Waits(Arc::clone(self))
    }

    /// Gives back what the task holds: its attempt is over. An executor may keep the host of a call, and so this seat, for
    /// longer.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.left = true;
        state.slot = None;
        if std::mem::take(&mut state.placed) {
            self.slots.places.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn state(&self) -> MutexGuard<'_, Seated> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.questions -= 1;
        if state.questions == 0 && std::mem::take(&mut state.placed) {
            self.0.slots.places.fetch_add(1, Ordering::SeqCst);
            state.slot = Some(self.0.slots.take_anyway());
        }
    }
}

fn take_one(count: &AtomicI64) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| (left > 0).then(|| left - 1)).is_ok()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_waits_for_input_leaves_its_slot_to_others_and_goes_on_without_waiting() {
        let slots = Slots::new(1, 10);
        let seat = Seat::new(slots.take().unwrap());
        assert!(slots.take().is_none());
        let (first, second) = (seat.waits(), seat.waits());
        let other = slots.take().unwrap();
        assert!(slots.take().is_none(), "two questions are one task");
        drop(first);
        drop(second);
        drop(other);
        assert!(slots.take().is_none(), "the answered task counts again");
        drop(seat);
        assert!(slots.all_free() && slots.take().is_some());
    }

    #[test]
    fn beyond_the_places_a_task_keeps_its_slot() {
        let slots = Slots::new(2, 1);
        let seats = [(); 2].map(|()| Seat::new(slots.take().unwrap()));
        let waits = [seats[0].waits(), seats[1].waits()];
        assert!(slots.take().is_some(), "the first gave its slot up");
        let third = slots.take().unwrap();
        assert!(slots.take().is_none(), "the second did not");
        drop(waits);
        drop(third);
        drop(seats);
        let seat = Seat::new(slots.take().unwrap());
        let _waits = seat.waits();
        assert!(slots.all_free(), "the place was given back");
    }

    #[test]
    fn who_leaves_gives_everything_back_whoever_still_holds_the_seat() {
        let slots = Slots::new(1, 1);
        let (working, asking) = (Seat::new(slots.take().unwrap()), 1);
        working.leave();
        assert!(slots.all_free());
        let waiting = Seat::new(slots.take().unwrap());
        let question = waiting.waits();
        waiting.leave();
        assert_eq!(slots.places.load(Ordering::SeqCst), asking);
        drop(question);
        let _late = working.waits();
        assert!(slots.all_free(), "nothing is taken for what is over");
        assert_eq!(slots.places.load(Ordering::SeqCst), asking);
    }

    #[test]
    fn what_a_claim_did_not_use_wakes_nobody() {
        let slots = Slots::new(2, 0);
        let [spare, used] = [(); 2].map(|()| slots.take_for_claim().unwrap());
        drop(spare);
        assert!(slots.freed.notified().now_or_never().is_none());
        drop(used.used());
        assert!(slots.freed.notified().now_or_never().is_some() && slots.all_free());
    }

    #[test]
    fn it_is_worth_waiting_for_more_while_most_are_at_work() {
        let few = |all, taken, most| {
            let slots = Slots::new(all, 0);
            let _taken: Vec<_> = (0..taken).map(|_| slots.take().unwrap()).collect();
            slots.are_few(most)
        };
        assert!(few(256, 256, 64) && few(256, 193, 64) && few(1_000, 937, 64));
        assert!(!few(256, 192, 64) && !few(1_000, 936, 64), "there are enough");
        assert!(!few(1, 1, 64) && !few(3, 3, 64), "all of them would stand still");
    }

    #[test]
    fn closed_slots_are_not_taken() {
        let slots = Slots::new(2, 0);
        let (slot, beyond) = (slots.take().unwrap(), [(); 3].map(|()| slots.take_for_running().unwrap()));
        assert!(slots.take().is_none(), "there are none left");
        slots.close();
        drop(beyond);
        assert!(slots.take().is_none() && slots.take_for_running().is_none() && !slots.all_free());
        drop(slot);
        assert!(slots.all_free());
    }
}
