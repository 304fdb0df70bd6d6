//! The messages of one stream on their way to its reader: bounded in number and bytes, numbered in their order.
//!
//! Whoever writes never waits. A reader that does not keep up loses what it can do without, oldest first (NOTE-10).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::delivery::Delivery;
use crate::domain::clock::Timestamp;

/// Messages that may wait for a reader, or be kept for one that comes back.
const MOST_MESSAGES: usize = 64;
/// Their bytes. One message alone may be larger: its own limit bounds it.
const MOST_BYTES: usize = 256 << 10;
/// States that may wait beside them; their bytes are bounded alike.
const MOST_LATER: usize = 400;

pub(super) struct Line {
    /// What others said of its stream before this was about an earlier reader of it.
    opened: Timestamp,
    /// The number of the last event that its client had seen when it was opened.
    after: i64,
    state: Mutex<State>,
    ready: Notify,
}

struct State {
    queue: VecDeque<Entry>,
    /// States that a reader takes after everything else, as fast as it can.
    later: VecDeque<Delivery>,
    /// How many at the front the reader has taken: kept for it in case it comes back.
    taken: usize,
    bytes: usize,
    /// The last number that was given.
    last: i64,
    keeps: bool,
    /// Which reader is the one that reads.
    reader: u64,
    /// No more will come.
    closed: bool,
}

struct Entry {
    count: i64,
    /// `None` while its place is kept: nothing after it is read before it is filled or given up.
    delivery: Option<Delivery>,
    weight: usize,
}

/// A place on a line, given up when dropped unfilled.
pub(super) struct Reserved {
    line: Arc<Line>,
    pub(super) count: i64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.line.fill(self.count, None);
    }
}

/// What a reader gets.
#[derive(Debug, PartialEq)]
pub(super) enum Read {
    Message {
        count: i64,
        delivery: Delivery,
    },
    /// The line was closed and everything on it was read, or another reader has taken its place.
    End,
}

impl Line {
    /// `last` is the number after which it goes on; `keeps` holds messages back that were read, as far as its bounds allow.
    pub(super) fn new(last: i64, keeps: bool) -> Self {
        let (queue, later) = (VecDeque::new(), VecDeque::new());
        let state = State { queue, later, taken: 0, bytes: 0, last, keeps, reader: 0, closed: false };
        Self { opened: Timestamp::from_micros(0), after: last, state: Mutex::new(state), ready: Notify::new() }
    }

    pub(super) fn opened_at(self, opened: Timestamp) -> Self {
        Self { opened, ..self }
    }

    pub(super) const fn opened(&self) -> Timestamp {
        self.opened
    }

    pub(super) const fn after(&self) -> i64 {
        self.after
    }

    /// False if nobody will read it: the line is closed, or full of what cannot be dropped.
    pub(super) fn push(&self, delivery: Delivery, now: Timestamp) -> bool {
        let mut state = self.lock();
        let weight = delivery.weight();
        let pushed = state.push(Some(delivery), weight, now).is_some();
        drop(state);
        self.ready.notify_one();
        pushed
    }

    /// Keeps a place for a message of this weight, so that its number is known before it is there. To be followed by
    /// [`Self::fill`].
    pub(super) fn reserve(self: &Arc<Self>, weight: usize, now: Timestamp) -> Option<Reserved> {
        let count = self.lock().push(None, weight, now)?;
        Some(Reserved { line: Arc::clone(self), count })
    }

    /// Whether a question of this weight would find a place.
    pub(super) fn has_room(&self, weight: usize) -> bool {
        let state = self.lock();
        let kept = state.queue.iter().enumerate().filter(|(at, entry)| !state.is_spare(*at, entry));
        let (count, bytes) = kept.fold((0, 0), |(count, bytes), (_, entry)| (count + 1, bytes + entry.weight));
        !state.closed && (count == 0 || (count < MOST_MESSAGES && bytes + weight <= MOST_BYTES))
    }

    /// A state that can wait until the reader has taken everything else; what is said of its task meanwhile goes in its
    /// place. False if too many wait already.
    pub(super) fn push_later(&self, delivery: Delivery) -> bool {
        let mut state = self.lock();
        let waiting: usize = state.later.iter().map(Delivery::weight).sum();
        if state.closed || state.later.len() >= MOST_LATER || waiting + delivery.weight() > MOST_BYTES {
            return false;
        }
        state.later.push_back(delivery);
        drop(state);
        self.ready.notify_one();
        true
    }

    /// Puts the message in its place, or gives the place up. False if there is no such place any more.
    pub(super) fn fill(&self, count: i64, delivery: Option<Delivery>) -> bool {
        let mut state = self.lock();
        let Some(at) = state.queue.iter().position(|entry| entry.count == count && entry.delivery.is_none()) else {
            return false;
        };
        if let Some(delivery) = delivery {
            let weight = delivery.weight();
            state.bytes = (state.bytes + weight).saturating_sub(state.queue[at].weight);
            (state.queue[at].delivery, state.queue[at].weight) = (Some(delivery), weight);
        } else {
            state.remove(at);
        }
        drop(state);
        self.ready.notify_one();
        true
    }

    /// Takes an unread request back; false if the reader has it, or never had.
    pub(super) fn take_back(&self, id: &str) -> bool {
        let mut state = self.lock();
        let taken = state.taken;
        let is_it = |entry: &Entry| match &entry.delivery {
            Some(Delivery::Ask { id: sent, .. } | Delivery::ClientTask { id: sent, .. }) => sent == id,
            _ => false,
        };
        match state.queue.iter().skip(taken).position(is_it) {
            Some(at) => {
                state.remove(taken + at);
                true
            }
            None => false,
        }
    }

    /// A number for a message that does not pass through the line.
    pub(super) fn stamp(&self, now: Timestamp) -> i64 {
        self.lock().next_number(now)
    }

    /// What is on it may still be read.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Begins to read, in the place of any other reader, after the message of this number if one is given.
    pub(super) fn attach(&self, after: Option<i64>) -> u64 {
        let mut state = self.lock();
        state.reader += 1;
        if let Some(after) = after {
            state.taken = state.queue.iter().take_while(|entry| entry.count <= after).count();
        }
        let reader = state.reader;
        drop(state);
        // Whoever read before learns that it does not any more.
        self.ready.notify_waiters();
        self.ready.notify_one();
        reader
    }

    /// Has the reader look again: there is something to say that does not pass through the line.
    pub(super) fn nudge(&self) {
        self.ready.notify_one();
    }

    /// Told when there may be something to read, from when it is enabled on.
    pub(super) fn ready(&self) -> Notified<'_> {
        self.ready.notified()
    }

    /// The next message; dropping the future loses nothing.
    pub(super) async fn next(&self, reader: u64) -> Read {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            ready.as_mut().enable();
            if let Some(read) = self.try_next(reader) {
                return read;
            }
            ready.await;
        }
    }

    /// `None` if there is nothing to read now.
    pub(super) fn try_next(&self, reader: u64) -> Option<Read> {
        let mut state = self.lock();
        if state.reader != reader {
            return Some(Read::End);
        }
        let at = state.taken;
        if at == state.queue.len()
            && let Some(delivery) = state.later.pop_front()
        {
            let weight = delivery.weight();
            state.push(Some(delivery), weight, Timestamp::from_micros(0));
        }
        // What was read before may have made room for it.
        let at = state.taken;
        match state.queue.get(at) {
            Some(Entry { delivery: None, .. }) => None,
            Some(Entry { count, delivery: Some(delivery), .. }) if state.keeps => {
                let read = Read::Message { count: *count, delivery: delivery.clone() };
                state.taken += 1;
                Some(read)
            }
            Some(_) => {
                let (count, delivery) = state.remove(at)?;
                Some(Read::Message { count, delivery })
            }
            None => state.closed.then_some(Read::End),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is taken all the same: nothing under it is left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// `delivery` is `None` to keep a place for a question.
    fn push(&mut self, delivery: Option<Delivery>, weight: usize, now: Timestamp) -> Option<i64> {
        if self.closed {
            return None;
        }
        if let Some(new) = &delivery {
            self.later.retain(|old| !new.overtakes(old));
            let old = |entry: &Entry| entry.delivery.as_ref().is_some_and(|old| new.replaces(old));
            if let Some(at) = self.queue.iter().skip(self.taken).position(old) {
                self.remove(self.taken + at);
            }
        }
        while !self.queue.is_empty() && (self.queue.len() >= MOST_MESSAGES || self.bytes + weight > MOST_BYTES) {
            let spare = self.queue.iter().enumerate().position(|(at, entry)| self.is_spare(at, entry));
            match spare {
                Some(at) => drop(self.remove(at)),
                // A question without room waits for another stream; its withdrawal is worth a few bytes.
                None if delivery.as_ref().is_some_and(Delivery::withdraws) => break,
                None => return None,
            }
        }
        let count = self.next_number(now);
        self.bytes += weight;
        self.queue.push_back(Entry { count, delivery, weight });
        Some(count)
    }

    /// Whether it may make room: what was read, before what was not and can be done without.
    fn is_spare(&self, at: usize, entry: &Entry) -> bool {
        at < self.taken || entry.delivery.as_ref().is_some_and(Delivery::is_best_effort)
    }

    fn remove(&mut self, at: usize) -> Option<(i64, Delivery)> {
        let entry = self.queue.remove(at)?;
        if at < self.taken {
            self.taken -= 1;
        }
        self.bytes = self.bytes.saturating_sub(entry.weight);
        Some((entry.count, entry.delivery?))
    }

    /// The time, so that a stream which goes on at another node has greater numbers there.
    fn next_number(&mut self, now: Timestamp) -> i64 {
        self.last = now.micros().max(self.last.saturating_add(1));
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::TaskId;
    use crate::domain::input::{InputKind, Question};
    use crate::domain::json::RawJson;
    use crate::engine::streams::delivery::Step;

    const NOW: Timestamp = Timestamp::from_micros(1000);

    fn log(number: usize) -> Delivery {
        Delivery::Log { task: None, params: RawJson::trusted(number.to_string()) }
    }

    fn ask(id: &str) -> Delivery {
        let question = Question { kind: InputKind::Roots, params: None };
        Delivery::Ask { id: id.to_owned(), task: Some(TaskId::new()), question, as_task: None }
    }

    fn withdrawn(id: &str) -> Delivery {
        Delivery::Withdrawn { id: id.to_owned(), task: None, reason: "test" }
    }

    /// All that can be read now.
    fn drain(line: &Line, reader: u64) -> Vec<(i64, Delivery)> {
        let mut all = Vec::new();
        while let Some(Read::Message { count, delivery }) = line.try_next(reader) {
            all.push((count, delivery));
        }
        all
    }

    #[test]
    fn messages_come_in_order_under_growing_numbers() {
        let line = Line::new(5000, false);
        let reader = line.attach(None);
        assert!(line.push(log(1), NOW) && line.push(ask("a"), NOW));
        let counts: Vec<_> = drain(&line, reader).into_iter().map(|(count, _)| count).collect();
        assert_eq!(counts, [5001, 5002], "it goes on after the number that it was given");
        assert_eq!(line.stamp(Timestamp::from_micros(9000)), 9000);
        line.close();
        assert!(!line.push(log(2), NOW));
        assert_eq!(line.try_next(reader), Some(Read::End));
    }

    // req: NOTE-10
    #[test]
    fn a_reader_that_does_not_read_loses_the_oldest_of_what_it_can_do_without() {
        let line = Line::new(0, false);
        let reader = line.attach(None);
        assert!(line.push(ask("kept"), NOW));
        for number in 0..1000 {
            assert!(line.push(log(number), NOW));
        }
        let read = drain(&line, reader);
        assert_eq!(read.len(), MOST_MESSAGES);
        assert!(matches!(&read[0].1, Delivery::Ask { .. }));
        assert_eq!((&read[1].1, &read[MOST_MESSAGES - 1].1), (&log(937), &log(999)));
        let large = || Delivery::Log { task: None, params: RawJson::trusted(format!("\"{}\"", "x".repeat(100_000))) };
        for _ in 0..10 {
            assert!(line.push(large(), NOW));
        }
        assert_eq!(drain(&line, reader).len(), 2, "bytes are bounded as well");
    }

    // req: NOTE-10
    #[test]
    fn questions_are_bounded_too_and_never_dropped() {
        let line = Line::new(0, false);
        let reader = line.attach(None);
        for number in 0..MOST_MESSAGES {
            assert!(line.push(ask(&number.to_string()), NOW));
        }
        assert!(!line.push(ask("over"), NOW), "it waits for another stream");
        assert!(!line.push(log(1), NOW));
        assert!(line.push(withdrawn("0"), NOW));
        assert_eq!(drain(&line, reader).len(), MOST_MESSAGES + 1);
    }

    #[test]
    fn a_kept_place_holds_back_what_comes_after_it() {
        let line = Arc::new(Line::new(0, false));
        let reader = line.attach(None);
        let place = line.reserve(ask("a").weight(), NOW).unwrap();
        assert!(line.push(log(1), NOW));
        assert_eq!(line.try_next(reader), None);
        assert!(line.fill(place.count, Some(ask("a"))) && !line.fill(place.count, None));
        let read = drain(&line, reader);
        assert_eq!((read.len(), read[0].0), (2, place.count));
        let given_up = line.reserve(256, NOW).unwrap();
        assert!(line.push(log(2), NOW));
        assert_eq!(line.try_next(reader), None);
        drop(given_up);
        assert_eq!(drain(&line, reader).len(), 1, "whoever kept it is gone");
        assert_eq!(line.lock().bytes, 0);
    }

    // req: NOTE-10
    #[test]
    fn the_bytes_of_questions_are_bounded_too() {
        let line = Arc::new(Line::new(0, false));
        let reader = line.attach(None);
        let large = |id: &str| {
            let params = Some(RawJson::trusted(format!("\"{}\"", "x".repeat(MOST_BYTES))));
            let question = Question { kind: InputKind::Sampling, params };
            Delivery::Ask { id: id.to_owned(), task: None, question, as_task: None }
        };
        assert!(line.has_room(large("a").weight()) && line.push(large("a"), NOW), "one alone may be larger");
        for full in [ask("b"), large("c")] {
            assert!(!line.has_room(full.weight()) && line.reserve(full.weight(), NOW).is_none());
            assert!(!line.push(full, NOW), "it waits for another stream");
        }
        assert_eq!(drain(&line, reader).len(), 1);
        let kept = line.reserve(large("d").weight(), NOW).unwrap();
        assert!(!line.has_room(1) && line.reserve(1, NOW).is_none(), "a kept place weighs as much as what it is for");
        drop(kept);
        assert!(line.has_room(1));
    }

    // req: HTTP-09
    #[test]
    fn states_wait_for_their_reader() {
        let line = Line::new(0, false);
        let reader = line.attach(None);
        let progress = |task, value: u32| Delivery::Progress {
            task: Some(task),
            token: RawJson::trusted("1"),
            params: RawJson::trusted(value.to_string()),
        };
        let tasks: Vec<_> = (0..200).map(|_| TaskId::new()).collect();
        assert!(tasks.iter().all(|task| line.push_later(progress(*task, 1))));
        assert!(line.push(progress(tasks[7], 2), NOW) && line.push(log(1), NOW));
        let read = drain(&line, reader);
        assert_eq!(read.len(), 201);
        assert_eq!([&read[0].1, &read[1].1], [&progress(tasks[7], 2), &log(1)], "what is new comes first");
        assert!(read.is_sorted_by(|a, b| a.0 < b.0));
        assert!(!read[2..].iter().any(|(_, delivery)| *delivery == progress(tasks[7], 1)), "it is overtaken");
        for _ in 0..MOST_LATER {
            assert!(line.push_later(log(1)));
        }
        assert!(!line.push_later(log(1)));
    }

    #[test]
    fn an_unread_question_is_taken_back() {
        let line = Line::new(0, true);
        let reader = line.attach(None);
        assert!(line.push(ask("a"), NOW) && line.push(ask("b"), NOW));
        assert!(matches!(line.try_next(reader), Some(Read::Message { .. })));
        assert!(!line.take_back("a"), "the reader has it");
        assert!(line.take_back("b") && !line.take_back("b"));
        assert_eq!(line.try_next(reader), None);
    }

    #[test]
    fn an_unread_request_about_a_clients_task_is_taken_back_and_no_notification_is() {
        let line = Line::new(0, true);
        let reader = line.attach(None);
        let about = |id: &str, step| Delivery::ClientTask {
            id: id.to_owned(),
            step,
            client_task: RawJson::trusted("\"theirs\""),
        };
        for delivery in [withdrawn("a"), about("b", Step::Get), about("c", Step::Cancel)] {
            assert!(line.push(delivery, NOW));
        }
        assert!(!line.take_back("a"), "its question was read before");
        assert!(line.take_back("b") && !line.take_back("b"));
        let read: Vec<_> = drain(&line, reader).into_iter().map(|(_, delivery)| delivery).collect();
        assert_eq!(read, [withdrawn("a"), about("c", Step::Cancel)]);
        assert!(!line.take_back("c"), "the reader has it");
    }

    #[tokio::test]
    async fn a_reader_that_comes_back_gets_what_it_has_not_seen() {
        let line = Line::new(0, true);
        let first = line.attach(None);
        for number in 0..3 {
            assert!(line.push(log(number), NOW));
        }
        let read = drain(&line, first);
        let second = line.attach(Some(read[0].0));
        assert_eq!(line.next(first).await, Read::End, "one reads at a time");
        assert_eq!(drain(&line, second), read[1..]);
        let third = line.attach(None);
        assert_eq!(line.try_next(third), None, "without a number it goes on where the last one was");
    }

    #[test]
    fn a_newer_state_takes_the_place_of_an_older_one() {
        let line = Line::new(0, false);
        let reader = line.attach(None);
        assert!(
            line.push(Delivery::ToolsChanged, NOW) && line.push(log(1), NOW) && line.push(Delivery::ToolsChanged, NOW)
        );
        let read: Vec<_> = drain(&line, reader).into_iter().map(|(_, delivery)| delivery).collect();
        assert_eq!(read, [log(1), Delivery::ToolsChanged]);
    }
}
