//! What every client sent and saw, with the times at which it did.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::work::Work;

/// The book of all clients of one scenario.
#[derive(Clone)]
pub struct History {
    began: Instant,
    pages: Arc<Mutex<Pages>>,
}

/// Its content.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    pub works: Vec<Work>,
    pub events: Vec<Event>,
}

/// A request and what came back.
#[derive(Debug, Clone)]
pub struct Event {
    /// Since the beginning, by a clock that never goes back.
    pub asked: Duration,
    pub answered: Duration,
    /// Of which context the client was that asked.
    pub context: usize,
    pub what: What,
}

/// A protocol era, in which the same task may read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    Legacy,
    Modern,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A creation was answered with an id.
    Made { work: usize, task: String, status: String },
    /// A creation whose answer did not come, or leaves open whether it happened.
    Unanswered { work: usize },
    /// A look at a task.
    Seen { task: String, era: Era, status: String, created: String, updated: String, text: String },
    /// How a task ended, as the text that arrived.
    Outcome { task: String, era: Era, text: String },
    /// Somebody is about to ask for a cancellation.
    Cancels { task: String },
    /// A cancellation was answered with a cancelled task.
    Cancelled { task: String },
    /// A task that was told is not there.
    Missing { task: String },
    /// What somebody saw of a task of another context.
    Trespassed { task: String, text: String },
    /// A context's list, whole.
    Listed { tasks: Vec<String> },
    /// A plain call's result or error.
    Plain { work: usize, text: String },
    /// A node that stops sent a request away, or ended a stream before its answer (KEEP-10): nothing went wrong.
    SentAway,
    /// A request that was refused for now, or whose connection broke.
    Hiccup { text: String },
    /// An answer that nobody should get.
    Strange { text: String },
}

impl History {
    pub fn new() -> Self {
        Self { began: Instant::now(), pages: Arc::default() }
    }

    /// The time since it began.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Enters a call that is about to be made; answers its number.
    pub fn plan(&self, work: impl FnOnce(usize) -> Work) -> (usize, Work) {
        let mut pages = self.lock();
        let number = pages.works.len();
        let work = work(number);
        pages.works.push(work.clone());
        (number, work)
    }

    /// Notes what came back of a request that was sent at `asked`.
    pub fn note(&self, asked: Duration, context: usize, what: What) {
        let answered = self.now();
        self.lock().events.push(Event { asked, answered, context, what });
    }

    /// All of it so far.
    pub fn read(&self) -> Pages {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    /// When each task was first seen to have ended.
    pub fn ends(&self) -> HashMap<&str, Duration> {
        let mut ends: HashMap<&str, Duration> = HashMap::new();
        for event in &self.events {
            let task = match &event.what {
                What::Outcome { task, .. } => task,
                What::Seen { task, status, .. } if is_terminal(status) => task,
                _ => continue,
            };
            let end = ends.entry(task).or_insert(event.answered);
            *end = event.answered.min(*end);
        }
        ends
    }

    /// Which call each acknowledged task runs.
    pub fn made(&self) -> HashMap<&str, usize> {
        let made = self.events.iter().filter_map(|event| match &event.what {
            What::Made { work, task, .. } => Some((task.as_str(), *work)),
            _ => None,
        });
        made.collect()
    }
}

/// A status that is an end.
pub fn is_terminal(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "cancelled")
}
