//! Streams of callers without a session, each opened for the kinds of news that it wants (NOTE-05, NOTE-12).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;

use super::delivery::Delivery;
use super::heard::{Due, Told};
use super::line::{Line, Read};
use super::{Item, State, Stream, Streams, WaitsFor};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, StreamId, TaskId};
use crate::engine::{Caller, Engine, Looked, Refusal};
use crate::executor::{Changes, Subscription};
use crate::store::StoreError;

/// How many tasks are looked up at once for one stream that is opened.
const LOOK_UPS: usize = 64;
/// How long a stream that could not look at a task waits before it tries again.
const RETRY: Duration = Duration::from_millis(500);

/// Of which lists a stream wants to hear that they have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct News {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
}

/// What a stream wants to hear.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wants {
    pub news: News,
    /// Of the changes of these tasks.
    pub tasks: Vec<TaskId>,
    /// Of the updates of these resources.
    pub resources: Vec<String>,
}

/// A stream that was opened, and of what it will hear: its caller's own tasks, and the resources that an upstream took a
/// subscription to, each once and in the order in which they were wanted.
#[derive(Debug)]
pub struct Listening {
    pub stream: Stream,
    pub tasks: Vec<TaskId>,
    pub resources: Vec<String>,
}

/// One stream that is open here.
pub(super) struct Listener {
    pub(super) context: ContextId,
    wants: News,
    pub(super) line: Arc<Line>,
    pub(super) told: Told,
    /// What is followed for it at upstreams.
    pub(super) follows: HashSet<Subscription>,
}

/// What comes next on such a stream: what its tasks do, or the rest. Each has its turn, so that neither can keep the other
/// away.
pub(super) struct Turn {
    caller: Box<Caller>,
    of_tasks: bool,
}

impl Engine {
    /// Opens a stream of news: first how each of its tasks stands. Nothing is kept for who is not there.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] if too many requests of its context wait here, [`Refusal::UriTooLong`],
    /// [`Refusal::ShuttingDown`], [`Refusal::Store`] if its tasks cannot be looked up.
    pub async fn listen(self: &Arc<Self>, caller: &Caller, wants: Wants) -> Result<Listening, Refusal> {
        self.refuse_while_draining()?;
        let Wants { news, tasks, resources } = wants;
        for uri in &resources {
            Self::check_uri(uri)?;
        }
        let stream = self.open_news(caller, news)?;
        let tasks = self.own_tasks(caller, once(tasks)).await?;
        self.streams.listen_to(stream.key, &tasks);
        // The rounds may have nothing else to ask for.
        self.waiters.arrived.notify_one();
        let resources = self.follow_for(caller.auth.id(), stream.key, once(resources)).await;
        Ok(Listening { stream, tasks, resources })
    }

    fn open_news(self: &Arc<Self>, caller: &Caller, wants: News) -> Result<Stream, Refusal> {
        let place = self.waiters.place(caller.auth.id())?;
        let line = Arc::new(Line::new(0, false));
        let reader = line.attach(None);
        let (context, told, follows) = (caller.auth.id(), Told::default(), HashSet::new());
        let listener = Listener { context, wants, line: Arc::clone(&line), told, follows };
        let key = self.streams.add_listener(listener);
        let turn = Turn { caller: Box::new(caller.clone()), of_tasks: true };
        let waits_for = WaitsFor::News { turn, _place: place };
        Ok(Stream { engine: Arc::clone(self), key, id: StreamId::new(), line, reader, waits_for })
    }

    /// Of these tasks those that the caller may see: what is said of a task later is not asked for by its owner any more.
    async fn own_tasks(&self, caller: &Caller, tasks: Vec<TaskId>) -> Result<Vec<TaskId>, Refusal> {
        let look_up = |id| async move {
            match self.get(caller, id).await {
                Ok(_) => Ok(Some(id)),
                Err(Refusal::UnknownTask) => Ok(None),
                Err(refusal) => Err(refusal),
            }
        };
        let found: Vec<_> = stream::iter(tasks).map(look_up).buffered(LOOK_UPS).collect().await;
        found.into_iter().filter_map(Result::transpose).collect()
    }

    /// What comes next on a stream of news. Dropping the future loses nothing.
    pub(super) async fn next_news(self: &Arc<Self>, (key, reader): (u64, u64), line: &Line, turn: &mut Turn) -> Item {
        loop {
            let ready = line.ready();
            tokio::pin!(ready);
            ready.as_mut().enable();
            turn.of_tasks = !turn.of_tasks;
            for of_tasks in [turn.of_tasks, !turn.of_tasks] {
                if of_tasks {
                    if let Some(looked) = self.next_due(key, line, &turn.caller).await {
                        return Item::Task(looked);
                    }
                    continue;
                }
                match line.try_next(reader) {
                    Some(Read::Message { count, delivery }) => return Item::Message { count, delivery },
                    Some(Read::End) => return Item::End,
                    None => {}
                }
            }
            ready.await;
        }
    }

    /// The state of the next task that is due, if there is one now.
    async fn next_due(self: &Arc<Self>, key: u64, line: &Line, caller: &Caller) -> Option<Box<Looked>> {
        loop {
            let id = match self.streams.due(key)? {
                Due::Known(task) => return Some(Box::new(Looked { task: *task, outcome: None, waiting: Vec::new() })),
                Due::Look(id) => id,
            };
            match self.look(caller, id).await {
                Ok(looked) => {
                    if self.streams.was_looked_at(key, &looked.task) {
                        return Some(Box::new(looked));
                    }
                }
                Err(Refusal::Store(StoreError::Unavailable(_))) => {
                    tokio::time::sleep(RETRY).await;
                    line.nudge();
                    return None;
                }
                Err(refusal) => {
                    if !matches!(refusal, Refusal::UnknownTask) {
                        tracing::warn!(task.id = %id, error = %refusal, "a task that is listened to cannot be read");
                    }
                    self.streams.stop_listening_to(key, id);
                }
            }
        }
    }

    /// What is followed for nobody else is given up.
    pub(super) fn listener_closed(self: &Arc<Self>, key: u64) {
        let follows = self.streams.remove_listener(key);
        if follows && !self.is_draining() && tokio::runtime::Handle::try_current().is_ok() {
            self.tend_subscriptions();
        }
    }
}

/// Each once, in this order.
fn once<T: Clone + Eq + std::hash::Hash>(all: Vec<T>) -> Vec<T> {
    let mut seen = HashSet::new();
    all.into_iter().filter(|one| seen.insert(one.clone())).collect()
}

impl Streams {
    fn add_listener(&self, listener: Listener) -> u64 {
        let mut state = self.lock();
        let key = state.number();
        state.listeners.insert(key, listener);
        key
    }

    /// Whether something was followed for it.
    fn remove_listener(&self, key: u64) -> bool {
        let mut state = self.lock();
        let Some(Listener { told, follows, .. }) = state.listeners.remove(&key) else { return false };
        state.listened_no_more(key, &told);
        for subscription in &follows {
            state.followers.remove(key, subscription);
        }
        !follows.is_empty()
    }
}

impl State {
    pub(super) fn tell_lists(&self, before: Changes, after: Changes, now: Timestamp) {
        for listener in self.listeners.values() {
            listener.tell(before, after, now);
        }
    }
}

impl Listener {
    fn tell(&self, before: Changes, after: Changes, now: Timestamp) {
        let changed = [
            (self.wants.tools && before.tools != after.tools, Delivery::ToolsChanged),
            (self.wants.prompts && before.prompts != after.prompts, Delivery::PromptsChanged),
            (self.wants.resources && before.resources != after.resources, Delivery::ResourcesChanged),
        ];
        for (_, delivery) in changed.into_iter().filter(|(is_told, _)| *is_told) {
            self.line.push(delivery, now);
        }
    }
}
