//! Tasks that streams listen to: what each stream has told of them, and what it has to tell (NOTE-05).
//!
//! A change puts no message on a stream, only the task's id among those that are due. What there is to say is looked up when
//! the reader comes to it: one that is slow is told the newest state, and never misses the end (NOTE-10).

use std::collections::{HashMap, VecDeque};

use super::{State, Streams};
use crate::domain::clock::Timestamp;
use crate::domain::ids::TaskId;
use crate::domain::task::{Status, Task};

/// A task that streams of this node listen to.
#[derive(Default)]
pub(super) struct Heard {
    /// Their keys.
    by: Vec<u64>,
    /// As it was last seen here; `None` before the first look.
    newest: Option<Task>,
    /// Whether it was found to have ended, and has not been looked at since.
    is_over: bool,
}

/// What one stream has told of the tasks that it listens to.
#[derive(Default)]
pub(super) struct Told {
    /// The tasks, each with the time of the change that was told last.
    tasks: HashMap<TaskId, Option<Timestamp>>,
    /// Those of which there may be something to tell, each once, in the order in which they changed.
    due: VecDeque<TaskId>,
}

/// What is to be told next.
pub(super) enum Due {
    /// The task, which has nothing beside it.
    Known(Box<Task>),
    /// This one is to be looked at with what belongs to it.
    Look(TaskId),
}

impl Streams {
    /// From now on this stream listens to these tasks, and is to tell how each stands.
    pub(super) fn listen_to(&self, key: u64, tasks: &[TaskId]) {
        let mut state = self.lock();
        let State { listeners, heard, .. } = &mut *state;
        let Some(listener) = listeners.get_mut(&key) else { return };
        for &task in tasks {
            if listener.told.tasks.insert(task, None).is_none() {
                listener.told.due.push_back(task);
                heard.entry(task).or_default().by.push(key);
            }
        }
    }

    /// The tasks that are listened to here and whose end has not been told to all.
    pub(super) fn listened(&self) -> Vec<TaskId> {
        self.lock().heard.keys().copied().collect()
    }

    /// The task was found to have ended, on whichever node.
    pub(super) fn listened_ended(&self, task: TaskId) {
        let mut state = self.lock();
        if let Some(heard) = state.heard.get_mut(&task) {
            heard.is_over = true;
            state.is_due(task);
        }
    }

    /// What this stream is to tell next, if there is something. Told of a task that has to be looked at is then
    /// [`Self::was_looked_at`] or [`Self::stop_listening_to`].
    pub(super) fn due(&self, key: u64) -> Option<Due> {
        let mut state = self.lock();
        let State { listeners, heard, .. } = &mut *state;
        let told = &mut listeners.get_mut(&key)?.told;
        while let Some(&task) = told.due.front() {
            let Some(said) = told.tasks.get_mut(&task) else {
                told.due.pop_front();
                continue;
            };
            let Some(Heard { newest: Some(newest), is_over: false, .. }) = heard.get(&task) else {
                return Some(Due::Look(task));
            };
            if said.is_some_and(|said| said >= newest.updated) {
                told.due.pop_front();
                continue;
            }
            if newest.status != Status::Working {
                return Some(Due::Look(task));
            }
            *said = Some(newest.updated);
            told.due.pop_front();
            return Some(Due::Known(Box::new(newest.clone())));
        }
        None
    }

    /// The stream has looked at a task that was due; whether that is news to it. Nothing follows the end (NOTE-05).
    pub(super) fn was_looked_at(&self, key: u64, task: &Task) -> bool {
        let mut state = self.lock();
        // The others have not been told either.
        state.hear(task);
        let State { listeners, heard, .. } = &mut *state;
        let Some(told) = listeners.get_mut(&key).map(|listener| &mut listener.told) else { return false };
        if let Some(heard) = heard.get_mut(&task.id) {
            heard.is_over = false;
            // It may have changed again meanwhile.
            if heard.newest.as_ref().is_none_or(|newest| newest.updated <= task.updated) {
                told.due.retain(|due| *due != task.id);
            }
        }
        let Some(said) = told.tasks.get_mut(&task.id) else { return false };
        let is_news = said.is_none_or(|said| said < task.updated);
        *said = Some(task.updated);
        if task.status.is_terminal() {
            state.unhear(key, task.id);
        }
        is_news
    }

    /// There is no such task any more, or it cannot be read: nothing more is said of it.
    pub(super) fn stop_listening_to(&self, key: u64, task: TaskId) {
        self.lock().unhear(key, task);
    }
}

impl State {
    /// The task as it stands now, if this is not older than what is known.
    pub(super) fn hear(&mut self, task: &Task) {
        let Some(heard) = self.heard.get_mut(&task.id) else { return };
        if heard.newest.as_ref().is_none_or(|newest| newest.updated < task.updated) {
            heard.newest = Some(task.clone());
            self.is_due(task.id);
        }
    }

    fn is_due(&mut self, task: TaskId) {
        let Some(heard) = self.heard.get(&task) else { return };
        for key in &heard.by {
            if let Some(listener) = self.listeners.get_mut(key)
                && !listener.told.due.contains(&task)
            {
                listener.told.due.push_back(task);
                listener.line.nudge();
            }
        }
    }

    fn unhear(&mut self, key: u64, task: TaskId) {
        if let Some(listener) = self.listeners.get_mut(&key) {
            listener.told.tasks.remove(&task);
            listener.told.due.retain(|due| *due != task);
        }
        self.forget_ear(key, task);
    }

    fn forget_ear(&mut self, key: u64, task: TaskId) {
        if let Some(heard) = self.heard.get_mut(&task) {
            heard.by.retain(|by| *by != key);
            if heard.by.is_empty() {
                self.heard.remove(&task);
            }
        }
    }

    /// A stream that listened to these has gone.
    pub(super) fn listened_no_more(&mut self, key: u64, told: &Told) {
        for task in told.tasks.keys() {
            self.forget_ear(key, *task);
        }
    }
}
