//! Calls under a key of their caller's (KEEP-12): stored before they run, whatever the era and the form, so that the same call
//! under the same key is answered by the same execution.
//!
//! One that is no task is stored all the same, and shown by no method: parked. It becomes a task when somebody who takes one
//! asks for it. No disconnect touches either.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::parked::Waits;
use super::streams::{Asked, Stream};
use super::{Called, Caller, Created, Engine, Passed, Refusal, ToolCall};
use crate::domain::json::RawJson;
use crate::domain::task::Task;
use crate::domain::work::{CallKey, NewTask};
use crate::executor::Tool;
use crate::lifecycle;
use crate::store::{Keyed, StoreError};

/// How often a key is looked for and taken in turn by others, or by rows that go, before that is called a fault.
const TRIES: u32 = 8;
/// Pause between looks while the database is away.
const PAUSE: Duration = Duration::from_millis(500);

impl Engine {
    /// The task of a key: a new one, or that of the call that was made under it.
    pub(super) async fn keyed_task(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        (ttl_ms, passed): (Option<u64>, Option<Passed>),
        tool: &Arc<Tool>,
    ) -> Result<Created, Refusal> {
        let (engine, caller, tool) = (Arc::clone(self), caller.clone(), Arc::clone(tool));
        let make = async move {
            let found = engine.under_key(&caller, &call, (ttl_ms, passed), &tool, false).await?;
            engine.show_keyed(&caller, &found).await?;
            Ok(Created { task: found.task, immediate_response: tool.immediate_response.clone() })
        };
        lifecycle::spawn("keyed task", make).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// The outcome of a key's call; with a `grace`, past that the task.
    pub(super) fn keyed_call(
        self: &Arc<Self>,
        caller: &Caller,
        call: ToolCall,
        asked: Asked,
        tool: Arc<Tool>,
        grace: Option<Duration>,
    ) -> Result<Stream, Refusal> {
        let (engine, by) = (Arc::clone(self), caller.clone());
        // Its client finds it again by the key.
        let mut asked = Asked { ends_with_client: false, ..asked };
        // The key may refuse it yet.
        let passed = asked.passed.take();
        let by_rounds = asked.by_rounds.clone().filter(|_| grace.is_none());
        self.begin(caller, asked, None, move |_, stop| async move {
            let may_be_asked = grace.is_some() || by_rounds.is_some();
            // A task cannot be asked for by who takes none: nobody could answer its questions.
            let by = if may_be_asked { by } else { Caller { capabilities: RawJson::trusted("{}"), ..by } };
            let found = engine.under_key(&by, &call, (None, passed), &tool, true).await?;
            if let Some(request) = by_rounds {
                let call = found.task.id;
                let waits = Waits { caller: by, call, request, round: 0, becomes: None, is_alone: false };
                return engine.until_next(waits, stop).await;
            }
            engine.keyed_end(&by, &call, found, &tool, (grace, stop)).await
        })
    }

    /// Waits for what answers a call that does not have to be a task.
    async fn keyed_end(
        self: &Arc<Self>,
        caller: &Caller,
        call: &ToolCall,
        mut found: Keyed,
        tool: &Tool,
        (grace, stop): (Option<Duration>, CancellationToken),
    ) -> Result<Called, Refusal> {
        let waiter = self.waiters.wait_for(found.task.id, None);
        let parked = found.parked;
        let due = async move {
            match grace {
                // Somebody has it as a task already.
                Some(_) if !parked => {}
                Some(grace) => tokio::time::sleep(grace).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(due);
        loop {
            // Registered before the look, so that an end between the two is not missed.
            let ended = waiter.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            match self.look_under_key(caller, call).await {
                Ok(Some(now)) if now.task.id == found.task.id => found = now,
                // Its time to live is over.
                Ok(_) => return Err(Refusal::UnknownTask),
                Err(Refusal::Store(StoreError::Unavailable(_))) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(refusal) => return Err(refusal),
            }
            if let Some(outcome) = found.outcome {
                return Ok(Called::Outcome(outcome));
            }
            tokio::select! {
                () = ended => {}
                () = stop.cancelled() => {
                    self.cancel_unknown_task(found.task.id, "cancelled by request");
                    return Ok(Called::Stopped);
                }
                () = &mut due => {
                    self.show_keyed(caller, &found).await?;
                    let created = Created { task: found.task, immediate_response: tool.immediate_response.clone() };
                    return Ok(Called::Promoted(Box::new(created)));
                }
            }
        }
    }

    /// From now on it is a task.
    async fn show_keyed(&self, caller: &Caller, found: &Keyed) -> Result<(), Refusal> {
        // One that was given up at this moment is none.
        if found.parked && !self.store.scoped(&caller.auth).unpark(found.task.id).await? {
            return Err(Refusal::UnknownTask);
        }
        Ok(())
    }

    /// What is stored under the call's key, made now if there is nothing: then what was passed is spent.
    pub(super) async fn under_key(
        self: &Arc<Self>,
        caller: &Caller,
        call: &ToolCall,
        (ttl_ms, mut passed): (Option<u64>, Option<Passed>),
        tool: &Tool,
        parked: bool,
    ) -> Result<Keyed, Refusal> {
        let Some(key) = &call.key else { return Err(Refusal::KeyTaken) };
        for _ in 0..TRIES {
            if let Some(found) = self.look_under_key(caller, call).await? {
                return Ok(found);
            }
            let slot = self.slot_or_queue(caller, tool).await?;
            if let Some(passed) = passed.take() {
                match self.spend_passed(caller, &passed).await {
                    // Another sending of this call may be stored since.
                    Err(Refusal::BadState) => {
                        return self.look_under_key(caller, call).await?.ok_or(Refusal::BadState);
                    }
                    spent => spent?,
                }
            }
            let digest = digest(call);
            let keyed = CallKey { key: Some(key.clone()), digest: digest.clone(), parked };
            let of_call = ToolCall { progress_token: call.progress_token.clone().filter(|_| !parked), ..call.clone() };
            let new = self.new_task(caller, of_call, ttl_ms, tool, slot.is_some());
            // What is no task is no session's either.
            let session = new.session.filter(|_| !parked);
            let new = NewTask { keyed: Some(keyed), session, ..new };
            if let Some(task) = self.commit_new(caller, new, slot).await? {
                let task = Task { session, ..task };
                return Ok(Keyed { task, outcome: None, digest, parked });
            }
        }
        Err(StoreError::Unavailable("a key is taken and let go again and again".into()).into())
    }

    async fn look_under_key(&self, caller: &Caller, call: &ToolCall) -> Result<Option<Keyed>, Refusal> {
        let Some(key) = &call.key else { return Ok(None) };
        let (store, now) = (self.store.scoped(&caller.auth), self.clock.now());
        let Some(found) = store.keyed(key).await? else { return Ok(None) };
        if !found.task.is_visible(now) {
            store.free_key(key, now).await?;
            return Ok(None);
        }
        if found.digest == digest(call) { Ok(Some(found)) } else { Err(Refusal::KeyTaken) }
    }
}

/// Equal for equal calls: the text of the name and of the arguments.
fn digest(call: &ToolCall) -> String {
    let mut hasher = Sha256::new();
    hasher.update((call.name.len() as u64).to_be_bytes());
    hasher.update(call.name.as_bytes());
    hasher.update(call.arguments.as_str().as_bytes());
    HEXLOWER.encode(&hasher.finalize())
}
