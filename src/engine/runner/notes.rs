//! What a task's work says of its progress: stored first, then shown, so that what was shown is known after a crash and the
//! next value is always above it (NOTE-04).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::domain::ids::ContextId;
use crate::domain::json::RawJson;
use crate::domain::lease::Lease;
use crate::engine::Engine;
use crate::engine::streams::progress_of;
use crate::executor::Event;
use crate::store::Note;

/// The newest progress of a task is written at most this often.
const NOTE_INTERVAL: Duration = Duration::from_millis(500);

/// One attempt's notes.
struct Notes<'a> {
    engine: &'a Engine,
    context: ContextId,
    lease: Lease,
    /// What the work has said.
    message: Option<String>,
    /// What attempts before this one said, once it was looked up.
    before: Option<Before>,
    pending: Option<Pending>,
}

struct Before {
    /// Whether anybody wants notifications.
    has_token: bool,
    /// The newest value that was stored.
    last: f64,
}

#[derive(Default)]
struct Pending {
    message: Option<String>,
    progress: Option<(f64, RawJson)>,
}

impl Engine {
    /// Writes the newest progress at most twice a second, the last one before the outcome.
    pub(super) async fn write_notes(
        self: Arc<Self>,
        context: ContextId,
        lease: Lease,
        mut events: mpsc::Receiver<Event>,
    ) {
        let mut due = Instant::now();
        let mut notes = Notes { engine: &self, context, lease, message: None, before: None, pending: None };
        loop {
            // With something in hand, wait for what is newer only until it is due.
            let event = match &notes.pending {
                None => events.recv().await,
                Some(_) => match tokio::time::timeout_at(due, events.recv()).await {
                    Ok(event) => event,
                    Err(_due) => {
                        if !notes.write().await {
                            return;
                        }
                        due = Instant::now() + NOTE_INTERVAL;
                        continue;
                    }
                },
            };
            match event {
                Some(event) => notes.take(event).await,
                None => {
                    notes.write().await;
                    return;
                }
            }
        }
    }
}

impl Notes<'_> {
    async fn take(&mut self, event: Event) {
        let Event::Progress { progress, total, message, params } = event else { return };
        let message = message.filter(|message| !message.trim().is_empty());
        let message = message.or_else(|| total.map(|total| format!("{progress} of {total}")));
        self.look_back().await;
        let is_news = |before: &Before| before.has_token && progress > before.last;
        let progress = self.before.as_ref().is_some_and(is_news).then_some((progress, params));
        if message.is_none() && progress.is_none() {
            return;
        }
        let pending = self.pending.get_or_insert_default();
        pending.message = message.or(pending.message.take());
        let is_above = |(value, _): &(f64, RawJson)| pending.progress.as_ref().is_none_or(|(last, _)| value > last);
        if let Some(progress) = progress.filter(is_above) {
            pending.progress = Some(progress);
        }
    }

    /// Reads once what was stored before; until it could be read no value is known to be new.
    async fn look_back(&mut self) {
        if self.before.is_some() {
            return;
        }
        match self.engine.store.system().get(self.context, self.lease.task).await {
            Ok(task) => {
                let last = task.as_ref().and_then(progress_of).unwrap_or(f64::NEG_INFINITY);
                let has_token = task.is_some_and(|task| task.progress_token.is_some());
                self.before = Some(Before { has_token, last });
            }
            Err(error) => tracing::debug!(task.id = %self.lease.task, %error, "cannot read earlier progress"),
        }
    }

    /// False once the lease is gone: nobody listens any more.
    async fn write(&mut self) -> bool {
        let Some(Pending { message, progress }) = self.pending.take() else { return true };
        if let Some(message) = message {
            self.message = Some(self.engine.status_message(&message));
        }
        let (value, params) = progress.unzip();
        let note = Note {
            task: self.lease.task,
            token: self.lease.token,
            message: self.message.clone(),
            progress: params,
            now: self.engine.clock.now(),
        };
        match self.engine.store.system().note(note).await {
            Ok(Some(task)) => {
                if let (Some(before), Some(value)) = (&mut self.before, value) {
                    before.last = value;
                }
                self.engine.streams.task_changed(&task);
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(task.id = %self.lease.task, %error, "a progress note was not written");
                true
            }
        }
    }
}
