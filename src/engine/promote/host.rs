//! Whom the work of a call speaks to that may be stored in the middle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::domain::ids::{ContextId, TaskId};
use crate::domain::input::{Answer, Question};
use crate::domain::json::RawJson;
use crate::domain::round::RequestDigest;
use crate::domain::work::UpstreamTask;
use crate::engine::call::{panicked, plain_end};
use crate::engine::parked::Round;
use crate::engine::runner::TaskHost;
use crate::engine::streams::PlainHost;
use crate::engine::{Called, Engine};
use crate::executor::{Attempt, Event, Host, Unasked};

/// The host of a call that may be stored: that of the call, and from then on that of the task. What a parked call says goes to
/// whichever request waits for it.
pub(in crate::engine) struct CallHost {
    engine: Arc<Engine>,
    plain: Arc<PlainHost>,
    context: ContextId,
    /// Set if it is no task when it is stored.
    parked: Option<RequestDigest>,
    state: Mutex<State>,
    /// How it stands; whoever asks waits for it.
    phase: watch::Sender<Phase>,
}

#[derive(Default)]
struct State {
    task: Option<(TaskId, Arc<TaskHost>)>,
    /// The newest note of progress, for the status of the task.
    progress: Option<Event>,
    /// The request that came back last.
    listener: Option<Arc<PlainHost>>,
    /// What the work has ended with.
    passed: Option<Round>,
    /// The upstream's task that runs the call, until that is stored.
    handed_over: Option<UpstreamTask>,
    /// Whether it is.
    is_kept: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Runs,
    /// The work has asked something.
    Asks,
    IsTask,
    StaysPlain,
}

impl CallHost {
    pub(super) fn new(
        engine: &Arc<Engine>,
        plain: Arc<PlainHost>,
        context: ContextId,
        parked: Option<RequestDigest>,
    ) -> Self {
        let phase = watch::Sender::new(Phase::Runs);
        Self { engine: Arc::clone(engine), plain, context, parked, state: Mutex::default(), phase }
    }

    pub(super) fn ended(&self, attempt: Result<Attempt, tokio::task::JoinError>) -> Called {
        match self.lock().passed.take() {
            Some(round) => Called::Asks(Box::new(round)),
            None => attempt.map_or_else(|_panic| panicked(), plain_end),
        }
    }

    /// From now on this request's stream has what the work says.
    pub(in crate::engine) fn listens(&self, host: Arc<PlainHost>) {
        self.lock().listener = Some(host);
    }

    /// Ready when the work has asked something that its caller may be asked.
    pub(super) async fn asked(&self) {
        let mut phase = self.phase.subscribe();
        // The sender is here, so this cannot end otherwise.
        drop(phase.wait_for(|phase| *phase == Phase::Asks).await);
    }

    pub(super) fn speaks_to(&self, id: TaskId, task: Arc<TaskHost>) {
        let mut state = self.lock();
        if let Some(progress) = state.progress.take().filter(|_| self.parked.is_none()) {
            task.tell(progress);
        }
        state.task = Some((id, task));
        drop(state);
        self.phase.send_replace(Phase::IsTask);
    }

    /// Stores the upstream's task that runs the call, if it was handed over before it was stored itself.
    pub(super) async fn keep_handed_over(&self) {
        let (task, to) = {
            let mut state = self.lock();
            let Some(((_, task), to)) = state.task.clone().zip(state.handed_over.take()) else { return };
            (task, to)
        };
        self.keep(&task, to).await;
    }

    async fn keep(&self, task: &TaskHost, to: UpstreamTask) -> bool {
        let is_held = task.handed_over(to).await;
        self.lock().is_kept = is_held;
        is_held
    }

    pub(super) fn stays_plain(&self) {
        self.phase.send_replace(Phase::StaysPlain);
    }

    /// A poisoned lock is taken all the same: nothing under it is left half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only what is stored can wait for the answer of a caller that takes no requests.
    async fn put(&self, name: Option<&str>, question: Question) -> Result<Answer, Unasked> {
        if let Some(refused) = self.plain.refuses(&question).await {
            return refused;
        }
        let mut phase = self.phase.subscribe();
        self.phase.send_if_modified(|phase| {
            *phase == Phase::Runs && {
                *phase = Phase::Asks;
                true
            }
        });
        drop(phase.wait_for(|phase| matches!(phase, Phase::IsTask | Phase::StaysPlain)).await);
        let task = self.lock().task.clone();
        match (task, name) {
            (Some((_, task)), Some(name)) => task.ask_named(name, question).await,
            (Some((_, task)), None) => task.ask(question).await,
            (None, _) => self.plain.ask(question).await,
        }
    }
}

impl Drop for CallHost {
    fn drop(&mut self) {
        if let Some((id, _)) = self.lock().task.take() {
            self.engine.parked.is_gone(id);
        }
    }
}

#[async_trait]
impl Host for CallHost {
    fn tell(&self, event: Event) {
        let mut state = self.lock();
        match &state.task {
            Some((_, task)) if self.parked.is_none() => task.tell(event),
            Some(_) => {
                let listener = Arc::clone(state.listener.as_ref().unwrap_or(&self.plain));
                drop(state);
                listener.tell(event);
            }
            None => {
                if matches!(event, Event::Progress { .. }) {
                    state.progress = Some(event.clone());
                }
                drop(state);
                self.plain.tell(event);
            }
        }
    }

    async fn ask(&self, question: Question) -> Result<Answer, Unasked> {
        self.put(None, question).await
    }

    async fn ask_named(&self, name: &str, question: Question) -> Result<Answer, Unasked> {
        self.put(Some(name), question).await
    }

    async fn takes_round(&self, upstream: &str, asked: &[(String, Question)], state: Option<&RawJson>) -> bool {
        let Some(request) = self.parked.as_ref().filter(|_| *self.phase.borrow() == Phase::Runs) else { return false };
        for (_, question) in asked {
            if self.plain.refuses(question).await.is_some() {
                return false;
            }
        }
        let round = self.engine.pass_round(self.context, request, (upstream, asked), state);
        let is_taken = round.is_some();
        self.lock().passed = round;
        is_taken
    }

    fn is_kept(&self) -> bool {
        self.lock().is_kept
    }

    /// Until the call is stored its upstream's task ends with it; a parked call is not followed by another attempt.
    async fn handed_over(&self, to: UpstreamTask) -> bool {
        let task = {
            let mut state = self.lock();
            match &state.task {
                _ if self.parked.is_some() => return true,
                Some((_, task)) => Arc::clone(task),
                None => {
                    state.handed_over = Some(to);
                    return true;
                }
            }
        };
        self.keep(&task, to).await
    }
}
