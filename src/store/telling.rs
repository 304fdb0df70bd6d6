//! Writes of which other nodes are told: each says by hints what it has committed, so that they look at once.

use std::iter::once;

use super::claims::Released;
use super::dialect::Dialect;
use super::hints::Hint;
use super::sql_store::SqlStore;
use super::tasks::EndTask;
use super::{Afterwards, Asked, Claimed, Ended, NewInput, Note, Release, Result, Signal, Wish};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, DeliveryId, InputId, LeaseToken, NodeId, SessionId, TaskId, TokenId};
use crate::domain::input::Answer;
use crate::domain::queue::SlotLimits;
use crate::domain::task::Task;
use crate::domain::work::NewTask;

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn create_told(&self, context: ContextId, new: NewTask) -> Result<bool> {
        let (id, session, waits) = (new.id, new.session, new.claim.is_none());
        let made = self.create_task(context, new).await?;
        if made {
            let of_session = session.map(|_| Hint::Task(id, session));
            self.wakeups.post(of_session.into_iter().chain(waits.then_some(Hint::Waiting)));
        }
        Ok(made)
    }

    pub(super) async fn unpark_told(&self, context: ContextId, id: TaskId) -> Result<bool> {
        let made = self.make_task(context, id).await?;
        self.wakeups.post(made.then_some(Hint::Task(id, None)));
        Ok(made)
    }

    pub(super) async fn end_told(&self, item: EndTask) -> Result<Ended> {
        let ended = self.end_task(item).await?;
        if let Ended::Done(task) = &ended {
            self.wakeups.task(task);
        }
        Ok(ended)
    }

    pub(super) async fn claim_told(&self, wish: Wish, limits: &SlotLimits) -> Result<Claimed> {
        let claimed = self.claim_tasks(wish, limits).await?;
        self.wakeups.post(claimed.claims.iter().map(|claim| Hint::Task(claim.lease.task, claim.work.session)));
        Ok(claimed)
    }

    pub(super) async fn note_told(&self, note: Note) -> Result<Option<Task>> {
        Ok(self.note_task(note).await?.inspect(|task| self.wakeups.task(task)))
    }

    pub(super) async fn release_told(&self, release: Release) -> Result<bool> {
        let (task, waits) = (release.task, release.not_before <= release.now);
        let released = self.release_task(release).await?;
        if let Some(Released { session }) = released {
            self.wakeups.post(once(Hint::Task(task, session)).chain(waits.then_some(Hint::Waiting)));
        }
        Ok(released.is_some())
    }

    pub(super) async fn ask_told(&self, new: NewInput) -> Result<Asked> {
        let asked = self.ask_question(new).await?;
        if let Asked::Stored(task) | Asked::Adopted { task, .. } = &asked {
            self.wakeups.task(task);
        }
        Ok(asked)
    }

    pub(super) async fn withdraw_told(
        &self,
        input: InputId,
        token: LeaseToken,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        Ok(self.told_of_closing(input, self.withdraw(input, token, then, now).await?))
    }

    pub(super) async fn answer_told(
        &self,
        context: ContextId,
        id: DeliveryId,
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        let answered = self.answer_question(context, id, answer, then, now).await?;
        Ok(answered.and_then(|(input, task)| self.told_of_closing(input, task)))
    }

    pub(super) async fn answer_by_id_told(
        &self,
        context: ContextId,
        input: (TaskId, InputId),
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        Ok(self.told_of_closing(input.1, self.answer_by_id(context, input, answer, then, now).await?))
    }

    /// A question that was closed by this, if there is a task.
    fn told_of_closing(&self, input: InputId, task: Option<Task>) -> Option<Task> {
        task.inspect(|task| self.wakeups.post([Hint::Input(input), Hint::Task(task.id, task.session)]))
    }

    pub(super) async fn let_go_told(&self, node: NodeId, deliveries: &[DeliveryId]) -> Result<()> {
        let tasks = self.drop_holds(node, deliveries).await?;
        self.wakeups.post(tasks.into_iter().map(|(task, session)| Hint::Task(task, session)));
        Ok(())
    }

    pub(super) async fn let_go_dead_told(&self) -> Result<u64> {
        let freed = self.drop_dead_holds().await?;
        self.wakeups.post((freed > 0).then_some(Hint::Anything));
        Ok(freed)
    }

    pub(super) async fn signal_told(&self, signal: Signal) -> Result<()> {
        self.add_signal(signal).await?;
        self.wakeups.post([Hint::Signals]);
        Ok(())
    }

    pub(super) async fn end_session_told(&self, context: ContextId, id: SessionId) -> Result<bool> {
        let ended = self.delete_session(context, id).await?;
        self.wakeups.post(ended.then_some(Hint::SessionEnded(id)));
        Ok(ended)
    }

    pub(super) async fn revoke_told(&self, id: TokenId, now: Timestamp) -> Result<bool> {
        let revoked = self.revoke(id, now).await?;
        self.wakeups.post(revoked.then_some(Hint::Token(id)));
        Ok(revoked)
    }

    pub(super) async fn expire_told(&self, id: TokenId, at: Timestamp) -> Result<bool> {
        let moved = self.expire(id, at).await?;
        self.wakeups.post(moved.then_some(Hint::Token(id)));
        Ok(moved)
    }
}
