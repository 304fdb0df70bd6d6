//! Status, progress and log lines of tasks: on which stream they go, and that each is said once (NOTE-01 to NOTE-04).

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::delivery::Delivery;
use super::line::Line;
use super::open::Resume;
use super::{SessionStreams, State, Streams};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, SessionId, TaskId};
use crate::domain::json::RawJson;
use crate::domain::schema;
use crate::domain::task::Task;
use crate::executor::{Changes, Event};

/// How long the end of a task is remembered: a look that began before it may still bring an older state.
const END_REMEMBERED: Duration = Duration::from_secs(30);
/// Tasks of one session whose last state is remembered.
pub(super) const MOST_SHOWN: usize = 10_000;
/// Of how many of them a stream that is resumed shows how they stand: those that changed last.
const MOST_RESUMED: usize = 200;

/// What was last said of a task on a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    updated: Timestamp,
    progress: f64,
    /// When its end was said.
    ended: Option<Timestamp>,
}

impl Shown {
    const NOTHING: Self = Self { updated: Timestamp::from_micros(i64::MIN), progress: f64::NEG_INFINITY, ended: None };

    /// All of this was said, or happened before there was anybody to say it to.
    pub(super) fn of(task: &Task) -> Self {
        Self { updated: task.updated, progress: progress_of(task).unwrap_or(f64::NEG_INFINITY), ended: None }
    }

    /// Puts on the line what is new. Progress goes only to the session that gave the token, as far as it was written since
    /// `progress_from`.
    fn show(&mut self, line: &Line, task: &Task, progress_from: Option<Timestamp>, now: Timestamp) {
        if self.ended.is_some() {
            return;
        }
        if let Some(from) = progress_from {
            self.show_progress(task, from, |delivery| line.push(delivery, now));
        }
        if self.show_status(task, |delivery| line.push(delivery, now)) && task.status.is_terminal() {
            self.ended = Some(now);
        }
    }

    /// False if there is something new, and no room for it.
    fn show_status(&mut self, task: &Task, say: impl FnOnce(Delivery) -> bool) -> bool {
        if task.updated > self.updated {
            if !say(Delivery::Status(Box::new(task.clone()))) {
                return false;
            }
            self.updated = task.updated;
        }
        true
    }

    /// Nothing is said of it after the end (NOTE-04), and nothing twice: progress is written before it is said, so that what was
    /// written while another stream had the turn may have been said there.
    fn show_progress(&mut self, task: &Task, from: Timestamp, say: impl FnOnce(Delivery) -> bool) {
        if let Some((token, params)) = task.progress_token.as_ref().zip(task.progress.as_ref())
            && !task.status.is_terminal()
            && let Some(value) = progress_of(task).filter(|value| *value > self.progress)
        {
            let delivery = Delivery::Progress { task: Some(task.id), token: token.clone(), params: params.clone() };
            if task.progress_at < from || say(delivery) {
                self.progress = value;
            }
        }
    }
}

/// The value of the newest progress that was stored.
pub(in crate::engine) fn progress_of(task: &Task) -> Option<f64> {
    schema::copy(task.progress.as_ref()?.as_str()).ok()?.get("progress")?.as_f64()
}

/// Tasks that streams of this node have shown.
#[derive(Default)]
pub(super) struct ShownTasks {
    /// Those whose end they have to show.
    pub(super) alive: HashMap<TaskId, ContextId>,
    /// Those whose end they have shown of late.
    pub(super) said: Vec<TaskId>,
}

impl Streams {
    /// A task was made, changed or ended by this node: its status and progress as they are stored now.
    pub(in crate::engine) fn task_changed(&self, task: &Task) {
        self.show(task, true);
    }

    /// The same by another node, as it was found in the store. Who waits here without a GET stream gets only its progress:
    /// the node that made the change sees to the rest.
    pub(in crate::engine) fn task_seen(&self, task: &Task) {
        self.show(task, false);
    }

    fn show(&self, task: &Task, is_ours: bool) {
        let now = self.clock.now();
        let mut state = self.lock();
        state.hear(task);
        match task.session.and_then(|session| state.sessions.get_mut(&session)) {
            Some(session) if session.line().is_some() => {
                if is_ours || session.is_ready() {
                    session.show(task, now);
                }
            }
            _ => state.show_to_waiters(task, is_ours, now),
        }
        if task.status.is_terminal() {
            Self::withdraw_all_of(&mut state, task.id, now);
        }
    }

    /// What a task's work said beside progress; best effort.
    pub(in crate::engine) fn task_event(&self, task: TaskId, session: Option<SessionId>, event: Event) {
        let delivery = match event {
            Event::Log { params } if !self.levels.admits(session, &params) => return,
            Event::Log { params } => Delivery::Log { task: Some(task), params },
            Event::ElicitationComplete { params } => Delivery::ElicitationComplete { task: Some(task), params },
            // Stored first, then shown with its task.
            Event::Progress { .. } | Event::Waiting => return,
        };
        let state = self.lock();
        let line = session.and_then(|session| state.session_line(session)).map(|opened| &opened.line);
        let waiting = || {
            let mut waiting = state.results.get(&task).into_iter().flatten();
            waiting.find(|stream| stream.hears_of_task(session)).map(|stream| &stream.line)
        };
        if let Some(line) = line.or_else(waiting) {
            line.push(delivery, self.clock.now());
        }
    }

    /// What an upstream said to a context outside of calls; best effort.
    pub(in crate::engine) fn log(&self, context: ContextId, params: &RawJson) {
        let state = self.lock();
        for (session, streams) in state.sessions.iter().filter(|(_, streams)| streams.context == context) {
            if let Some(line) = streams.line().filter(|_| self.levels.admits(Some(*session), params)) {
                line.push(Delivery::Log { task: None, params: params.clone() }, self.clock.now());
            }
        }
    }

    /// Tells every session of this node, and who listens, which lists changed (NOTE-12).
    pub(in crate::engine) fn lists_changed(&self, before: Changes, after: Changes) {
        let now = self.clock.now();
        let state = self.lock();
        for line in state.sessions.values().filter_map(SessionStreams::line) {
            if before.tools != after.tools {
                line.push(Delivery::ToolsChanged, now);
            }
            if before.prompts != after.prompts {
                line.push(Delivery::PromptsChanged, now);
            }
            if before.resources != after.resources {
                line.push(Delivery::ResourcesChanged, now);
            }
        }
        state.tell_lists(before, after, now);
    }

    /// What streams of this node have shown.
    pub(super) fn shown_tasks(&self, since: Timestamp) -> ShownTasks {
        let (mut state, now) = (self.lock(), self.clock.now());
        let mut all = ShownTasks::default();
        for session in state.sessions.values_mut() {
            let context = session.context;
            session.shown.retain(|task, shown| match shown.ended {
                None => {
                    all.alive.insert(*task, context);
                    true
                }
                Some(ended) => {
                    if ended >= since {
                        all.said.push(*task);
                    }
                    now.since(ended) < END_REMEMBERED
                }
            });
        }
        all
    }
}

impl State {
    /// Without a GET stream anywhere, whoever waits for the task here hears of it.
    fn show_to_waiters(&self, task: &Task, is_ours: bool, now: Timestamp) {
        let waiting = || self.results.get(&task.id).into_iter().flatten().filter(|stream| !stream.hears_elsewhere());
        let its_own = waiting().find(|stream| task.session.is_some() && stream.session == task.session);
        if let Some(stream) = its_own.or_else(|| waiting().next()) {
            let mut shown = stream.shown.lock().unwrap_or_else(PoisonError::into_inner);
            let is_its_own = stream.session == task.session;
            let from = is_its_own.then(|| Timestamp::from_micros(stream.progress_from.load(Ordering::Relaxed)));
            if is_ours {
                shown.show(&stream.line, task, from, now);
            } else if let Some(from) = from {
                shown.show_progress(task, from, |delivery| stream.line.push(delivery, now));
            }
        }
    }
}

impl SessionStreams {
    pub(super) fn show(&mut self, task: &Task, now: Timestamp) {
        let Some(line) = self.line().map(Arc::clone) else { return };
        if task.status.is_terminal() && task.updated < self.since && !self.shown.contains_key(&task.id) {
            self.shown.insert(task.id, Shown { ended: Some(now), ..Shown::of(task) });
            return;
        }
        if self.shown.len() >= MOST_SHOWN && !self.shown.contains_key(&task.id) {
            return;
        }
        self.shown.entry(task.id).or_insert(Shown::NOTHING).show(&line, task, Some(self.progress_from), now);
    }

    fn is_ready(&self) -> bool {
        self.open.last().is_some_and(|opened| opened.is_ready)
    }

    /// How its live tasks stand as a stream is opened, those that changed last first. One that is resumed shows it, as far
    /// as there is room, of their progress what was written after what its client has seen; another hears nothing of what was
    /// so before.
    pub(super) fn stands(&mut self, tasks: &[Task], resume: Option<Resume>) {
        let line = self.line().map(Arc::clone);
        for (at, task) in tasks.iter().enumerate() {
            if self.shown.len() >= MOST_SHOWN && !self.shown.contains_key(&task.id) {
                return;
            }
            let (Some(line), Some(resume), true) = (&line, resume, at < MOST_RESUMED) else {
                self.shown.entry(task.id).or_insert_with(|| Shown::of(task));
                continue;
            };
            let shown = self.shown.entry(task.id).or_insert(Shown::NOTHING);
            if shown.ended.is_none() {
                shown.show_progress(task, resume.unseen_from(), |delivery| line.push_later(delivery));
                shown.show_status(task, |delivery| line.push_later(delivery));
            }
        }
    }
}

impl super::ResultStream {
    fn hears_elsewhere(&self) -> bool {
        self.elsewhere.load(Ordering::Relaxed)
    }

    fn hears_of_task(&self, session: Option<SessionId>) -> bool {
        !self.hears_elsewhere() && self.session == session
    }
}
