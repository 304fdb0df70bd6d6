//! The handles to a store: request-facing code holds one that reaches a single context, the rest one that reaches all.

use std::sync::Arc;

use super::{
    Afterwards, Database, Delivered, End, Ended, Given, Keyed, NewSubscription, OpenInput, Parked, Result, Spend,
    SubscriptionRow, Waiting,
};
use crate::domain::clock::Timestamp;
use crate::domain::context::AuthContext;
use crate::domain::cursor::Position;
use crate::domain::ids::{ContextId, DeliveryId, InputId, LeaseToken, NodeId, SessionId, StreamId, TaskId};
use crate::domain::input::Answer;
use crate::domain::json::RawJson;
use crate::domain::outcome::Outcome;
use crate::domain::round::RoundState;
use crate::domain::session::{Session, SessionStream};
use crate::domain::task::Task;
use crate::domain::work::NewTask;

/// The way to the store; cheap to clone.
#[derive(Clone)]
pub struct Store {
    database: Arc<dyn Database>,
}

impl Store {
    #[must_use]
    pub fn new(database: Arc<dyn Database>) -> Self {
        Self { database }
    }

    /// The handle of request-facing code.
    #[must_use]
    pub fn scoped(&self, caller: &AuthContext) -> ScopedStore {
        ScopedStore { context: caller.id(), database: Arc::clone(&self.database) }
    }

    /// The handle of code that acts for the installation, never for a caller.
    #[must_use]
    pub fn system(&self) -> SystemStore {
        SystemStore { database: Arc::clone(&self.database) }
    }
}

/// Reaches the rows of one authorization context and no others.
#[derive(Clone)]
pub struct ScopedStore {
    context: ContextId,
    database: Arc<dyn Database>,
}

/// See the methods of the same name of [`Database`].
impl ScopedStore {
    pub async fn create(&self, new: NewTask) -> Result<bool> {
        self.database.create(self.context, new).await
    }

    pub async fn keyed(&self, key: &str) -> Result<Option<Keyed>> {
        self.database.keyed(self.context, key).await
    }

    pub async fn unpark(&self, id: TaskId) -> Result<bool> {
        self.database.unpark(self.context, id).await
    }

    pub async fn free_key(&self, key: &str, now: Timestamp) -> Result<()> {
        self.database.free_key(self.context, key, now).await
    }

    pub async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.database.get(self.context, id).await
    }

    pub async fn outcome(&self, id: TaskId) -> Result<Option<(Task, Option<Outcome>)>> {
        self.database.outcome(self.context, id).await
    }

    pub async fn list(&self, after: Option<Position>, limit: u32, now: Timestamp) -> Result<Vec<Task>> {
        self.database.list(self.context, after, limit, now).await
    }

    pub async fn cancel(&self, id: TaskId, end: End) -> Result<Ended> {
        self.database.cancel(self.context, id, end).await
    }

    pub async fn open_inputs(&self, task: TaskId) -> Result<Vec<OpenInput>> {
        self.database.open_inputs(self.context, task).await
    }

    pub async fn delivered(&self, id: DeliveryId) -> Result<Option<Delivered>> {
        self.database.delivered(self.context, id).await
    }

    pub async fn answer_input(
        &self,
        id: DeliveryId,
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        self.database.answer_input(self.context, id, answer, then, now).await
    }

    pub async fn answer_waiting(
        &self,
        input: (TaskId, InputId),
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        self.database.answer_waiting(self.context, input, answer, then, now).await
    }

    pub async fn asking(&self, task: TaskId) -> Result<Option<(Task, Vec<Waiting>)>> {
        self.database.asking(self.context, task).await
    }

    pub async fn waiting(&self, most: u64) -> Result<u64> {
        self.database.waiting(self.context, most).await
    }

    pub async fn parked(&self, id: TaskId) -> Result<Option<Parked>> {
        self.database.parked(self.context, id).await
    }

    pub async fn give_round(&self, id: TaskId, expires: Timestamp, most: usize) -> Result<Given> {
        self.database.give_round(self.context, id, expires, most).await
    }

    pub async fn spend_round(&self, spend: Spend) -> Result<bool> {
        self.database.spend_round(self.context, spend).await
    }

    pub async fn spend_passed(&self, id: TaskId, spender: LeaseToken, expires: Timestamp) -> Result<bool> {
        self.database.spend_passed(self.context, id, spender, expires).await
    }

    pub async fn keep_round(&self, state: RoundState, until: Timestamp) -> Result<bool> {
        self.database.keep_round(self.context, state, until).await
    }

    pub async fn close_rounds(&self, id: TaskId) -> Result<()> {
        self.database.close_rounds(self.context, id).await
    }

    pub async fn refuse_answer(&self, id: DeliveryId) -> Result<()> {
        self.database.refuse_answer(self.context, id).await
    }

    pub async fn set_client_task(&self, id: DeliveryId, task: RawJson) -> Result<bool> {
        self.database.set_client_task(self.context, id, task).await
    }

    pub async fn rehold_stream(&self, stream: StreamId, node: NodeId) -> Result<Vec<Delivered>> {
        self.database.rehold_stream(self.context, stream, node).await
    }

    pub async fn open_session_stream(&self, session: SessionId, stream: SessionStream) -> Result<bool> {
        self.database.open_session_stream(self.context, session, stream).await
    }

    pub async fn set_log_level(&self, session: SessionId, level: &str) -> Result<()> {
        self.database.set_log_level(self.context, session, level).await
    }

    /// The session must have been made for this context.
    pub async fn add_session(&self, session: Session, most: u32) -> Result<()> {
        debug_assert_eq!(session.context, self.context);
        self.database.add_session(Session { context: self.context, ..session }, most).await
    }

    pub async fn session(&self, id: SessionId) -> Result<Option<Session>> {
        self.database.session(self.context, id).await
    }

    pub async fn touch_session(&self, id: SessionId, now: Timestamp) -> Result<()> {
        self.database.touch_session(self.context, id, now).await
    }

    pub async fn session_initialized(&self, id: SessionId) -> Result<()> {
        self.database.session_initialized(self.context, id).await
    }

    pub async fn end_session(&self, id: SessionId) -> Result<bool> {
        self.database.end_session(self.context, id).await
    }

    pub async fn add_subscription(&self, new: NewSubscription, most: u32) -> Result<bool> {
        self.database.add_subscription(self.context, new, most).await
    }

    pub async fn end_subscription(&self, session: SessionId, uri: &str) -> Result<Option<SubscriptionRow>> {
        self.database.end_subscription(self.context, session, uri).await
    }

    pub async fn subscriptions(&self, session: SessionId) -> Result<Vec<SubscriptionRow>> {
        self.database.subscriptions(self.context, session).await
    }
}

/// Reaches everything; never handed to request-facing code.
#[derive(Clone)]
pub struct SystemStore {
    database: Arc<dyn Database>,
}

impl std::ops::Deref for SystemStore {
    type Target = dyn Database;

    fn deref(&self) -> &Self::Target {
        &*self.database
    }
}
