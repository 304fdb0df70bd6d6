//! [`Database`] for [`SqlStore`]: one line a method, in the order of the contract.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::dialect::Dialect;
use super::sql_store::SqlStore;
use super::tasks::EndTask;
use super::{
    Afterwards, Asked, Beat, CatalogItem, Claim, Claimed, Database, Delivered, End, Ended, Finish, Firsts, Given,
    Hints, Hold, Keyed, Lease, NewInput, NewSubscription, News, Note, OpenInput, Overdue, Parked, Queue, Release,
    Renamed, Result, Signal, Spend, StreamPlace, SubscriptionRow, Taken, TaskDetails, TokenRecord, Waiting, Watch,
    Wish,
};
use crate::domain::clock::Timestamp;
use crate::domain::context::ContextKey;
use crate::domain::cursor::Position;
use crate::domain::ids::{ContextId, DeliveryId, InputId, LeaseToken, NodeId, SessionId, StreamId, TaskId, TokenId};
use crate::domain::input::Answer;
use crate::domain::json::RawJson;
use crate::domain::outcome::Outcome;
use crate::domain::queue::SlotLimits;
use crate::domain::round::RoundState;
use crate::domain::session::{Session, SessionStream};
use crate::domain::task::Task;
use crate::domain::work::{NewTask, UpstreamTask};

/// How often a node looks for everything while it hears other nodes' hints: often enough for what NOTE-09 allows where one is lost.
const LISTENING: Duration = Duration::from_millis(900);

#[async_trait]
impl<D: Dialect> Database for SqlStore<D> {
    async fn create(&self, context: ContextId, new: NewTask) -> Result<bool> {
        self.create_told(context, new).await
    }

    async fn keyed(&self, context: ContextId, key: &str) -> Result<Option<Keyed>> {
        self.find_keyed(context, key).await
    }

    async fn unpark(&self, context: ContextId, id: TaskId) -> Result<bool> {
        self.unpark_told(context, id).await
    }

    async fn free_key(&self, context: ContextId, key: &str, now: Timestamp) -> Result<()> {
        self.drop_key(context, key, now).await
    }

    async fn get(&self, context: ContextId, id: TaskId) -> Result<Option<Task>> {
        Ok(self.look(context, id, false).await?.map(|(task, _)| task))
    }

    async fn outcome(&self, context: ContextId, id: TaskId) -> Result<Option<(Task, Option<Outcome>)>> {
        self.look(context, id, true).await
    }

    async fn list(&self, context: ContextId, after: Option<Position>, limit: u32, now: Timestamp) -> Result<Vec<Task>> {
        self.list_tasks(context, after, limit, now).await
    }

    async fn cancel(&self, context: ContextId, id: TaskId, end: End) -> Result<Ended> {
        self.end_told(EndTask::by_owner(context, id, end)).await
    }

    async fn claim_within(&self, limits: &SlotLimits, wish: Wish) -> Result<Claimed> {
        self.claim_told(wish, limits).await
    }

    async fn finish(&self, finish: Finish) -> Result<Ended> {
        self.end_told(EndTask::by_lease(finish)).await
    }

    async fn note(&self, note: Note) -> Result<Option<Task>> {
        self.note_told(note).await
    }

    async fn release(&self, release: Release) -> Result<bool> {
        self.release_told(release).await
    }

    async fn anybody_waits(&self, now: Timestamp) -> Result<bool> {
        self.is_anybody_waiting(now).await
    }

    async fn queue_within(&self, limits: &SlotLimits, limit: u32, now: Timestamp) -> Result<Queue> {
        self.look_at_queue(limit, limits, now).await
    }

    async fn waiting(&self, context: ContextId, most: u64) -> Result<u64> {
        self.count_waiting(context, most).await
    }

    async fn waiting_of_tenant(&self, tenant: &str, most: u64) -> Result<u64> {
        self.count_waiting_of_tenant(tenant, most).await
    }

    async fn note_waiting(&self, messages: Vec<(TaskId, String)>, now: Timestamp) -> Result<()> {
        self.note_waiting_tasks(messages, now).await
    }

    async fn may_have_changed(&self) -> Result<bool> {
        self.changed().await
    }

    fn watch_interval(&self) -> Duration {
        if self.wakeups.stands() { LISTENING } else { D::WATCH_INTERVAL }
    }

    fn hints(&self) -> Option<Hints> {
        self.wakeups.listen()
    }

    fn token_changes(&self) -> watch::Receiver<()> {
        self.wakeups.tokens()
    }

    async fn watch(&self, watch: Watch) -> Result<News> {
        self.news(watch).await
    }

    async fn ask(&self, new: NewInput) -> Result<Asked> {
        self.ask_told(new).await
    }

    async fn take_answer(&self, input: InputId, token: LeaseToken) -> Result<Taken> {
        self.take(input, token).await
    }

    async fn withdraw_input(
        &self,
        input: InputId,
        token: LeaseToken,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        self.withdraw_told(input, token, then, now).await
    }

    async fn hand_over(&self, task: TaskId, token: LeaseToken, to: UpstreamTask, now: Timestamp) -> Result<bool> {
        self.keep_upstream_task(task, token, to, now).await
    }

    async fn take_back(&self, task: TaskId, token: LeaseToken) -> Result<bool> {
        self.drop_upstream_task(task, token).await
    }

    async fn open_inputs(&self, context: ContextId, task: TaskId) -> Result<Vec<OpenInput>> {
        self.open_of(context, task).await
    }

    async fn delivered(&self, context: ContextId, id: DeliveryId) -> Result<Option<Delivered>> {
        self.find_delivered(context, id).await
    }

    async fn answer_input(
        &self,
        context: ContextId,
        id: DeliveryId,
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        self.answer_told(context, id, answer, then, now).await
    }

    async fn answer_waiting(
        &self,
        context: ContextId,
        input: (TaskId, InputId),
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        self.answer_by_id_told(context, input, answer, then, now).await
    }

    async fn asking(&self, context: ContextId, task: TaskId) -> Result<Option<(Task, Vec<Waiting>)>> {
        self.find_asking(context, task).await
    }

    async fn refuse_answer(&self, context: ContextId, id: DeliveryId) -> Result<()> {
        self.refuse(context, id).await
    }

    async fn set_client_task(&self, context: ContextId, id: DeliveryId, task: RawJson) -> Result<bool> {
        self.keep_client_task(context, id, task).await
    }

    async fn forget_client_task(&self, input: InputId, last: DeliveryId) -> Result<bool> {
        self.drop_client_task(input, last).await
    }

    async fn parked(&self, context: ContextId, id: TaskId) -> Result<Option<Parked>> {
        self.find_parked(context, id).await
    }

    async fn give_round(&self, context: ContextId, id: TaskId, expires: Timestamp, most: usize) -> Result<Given> {
        self.open_round(context, id, expires, most).await
    }

    async fn spend_passed(
        &self,
        context: ContextId,
        id: TaskId,
        spender: LeaseToken,
        expires: Timestamp,
    ) -> Result<bool> {
        self.note_spent(context, id, spender, expires).await
    }

    async fn spend_round(&self, context: ContextId, spend: Spend) -> Result<bool> {
        self.take_round(context, spend).await
    }

    async fn keep_round(&self, context: ContextId, state: RoundState, until: Timestamp) -> Result<bool> {
        self.prolong_round(context, state, until).await
    }

    async fn close_rounds(&self, context: ContextId, id: TaskId) -> Result<()> {
        self.drop_round(context, id).await
    }

    async fn give_up_rounds(&self, now: Timestamp, limit: u32) -> Result<Vec<TaskId>> {
        self.drop_late_rounds(now, limit).await
    }

    async fn hold_input(&self, hold: Hold) -> Result<bool> {
        self.hold(hold).await
    }

    async fn rehold_stream(&self, context: ContextId, stream: StreamId, node: NodeId) -> Result<Vec<Delivered>> {
        self.take_back(context, stream, node, None).await
    }

    async fn keep_stream(&self, context: ContextId, stream: StreamId, node: Renamed) -> Result<Vec<Delivered>> {
        self.take_back(context, stream, node.new, Some(node.old)).await
    }

    async fn holds_at(&self, node: NodeId) -> Result<Vec<(ContextId, TaskId, DeliveryId)>> {
        self.find_holds(node).await
    }

    async fn let_go(&self, node: NodeId, deliveries: &[DeliveryId]) -> Result<()> {
        self.let_go_told(node, deliveries).await
    }

    async fn let_go_dead_nodes(&self) -> Result<u64> {
        self.let_go_dead_told().await
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        self.signal_told(signal).await
    }

    async fn reap_signals(&self, before: Timestamp, limit: u32) -> Result<u64> {
        self.reap_many("store.reap_signals", D::REAP_SIGNALS, before, limit).await
    }

    async fn register_node(&self, node: NodeId) -> Result<Timestamp> {
        self.add_node(node).await
    }

    async fn heartbeat(&self, node: NodeId) -> Result<Beat> {
        self.beat(node).await
    }

    async fn anything_lost(&self, judge: NodeId, age: Duration) -> Result<bool> {
        self.has_lost(judge, age).await
    }

    async fn declare_dead(&self, judge: NodeId, age: Duration) -> Result<Vec<NodeId>> {
        self.bury(judge, age).await
    }

    async fn has_other_nodes(&self, node: NodeId) -> Result<bool> {
        self.has_others(node).await
    }

    async fn retire_node(&self, node: NodeId) -> Result<()> {
        self.retire(node).await
    }

    async fn orphans(&self, after: Option<TaskId>, limit: u32) -> Result<Vec<Claim>> {
        self.orphaned(after, limit).await
    }

    async fn held(&self, node: NodeId) -> Result<Vec<Lease>> {
        self.held_by(node).await
    }

    async fn claim_of(&self, task: TaskId, token: LeaseToken) -> Result<Option<Claim>> {
        self.one_claim(task, token).await
    }

    async fn forget_nodes(&self, before: Timestamp) -> Result<u64> {
        self.forget(before).await
    }

    async fn firsts(&self) -> Result<Firsts> {
        self.first_to_go().await
    }

    async fn overdue(&self, now: Timestamp, limit: u32) -> Result<Vec<Overdue>> {
        self.overdue_tasks(now, limit).await
    }

    async fn end(&self, id: TaskId, end: End) -> Result<Ended> {
        self.end_told(EndTask::by_system(id, end)).await
    }

    async fn reap(&self, now: Timestamp, limit: u32) -> Result<u64> {
        self.reap_many("store.reap", D::REAP, now, limit).await
    }

    async fn add_session(&self, session: Session, most: u32) -> Result<()> {
        self.insert_session(session, most).await
    }

    async fn session(&self, context: ContextId, id: SessionId) -> Result<Option<Session>> {
        self.find_session(context, id).await
    }

    async fn touch_session(&self, context: ContextId, id: SessionId, now: Timestamp) -> Result<()> {
        self.use_session(context, id, now).await
    }

    async fn end_session(&self, context: ContextId, id: SessionId) -> Result<bool> {
        self.end_session_told(context, id).await
    }

    async fn session_initialized(&self, context: ContextId, id: SessionId) -> Result<()> {
        self.keep_initialized(context, id).await
    }

    async fn open_session_stream(&self, context: ContextId, session: SessionId, stream: SessionStream) -> Result<bool> {
        self.place_stream(context, session, stream).await
    }

    async fn close_session_stream(&self, context: ContextId, session: SessionId, stream: StreamId) -> Result<()> {
        self.displace_stream(context, session, stream).await
    }

    async fn session_streams(&self, sessions: &[SessionId]) -> Result<Vec<StreamPlace>> {
        self.find_streams(sessions).await
    }

    async fn streams_at(&self, node: NodeId) -> Result<Vec<StreamPlace>> {
        self.find_streams_at(node).await
    }

    async fn set_log_level(&self, context: ContextId, session: SessionId, level: &str) -> Result<()> {
        self.keep_log_level(context, session, level).await
    }

    async fn reap_sessions(&self, before: Timestamp, limit: u32) -> Result<u64> {
        self.reap_many("store.reap_sessions", D::REAP_SESSIONS, before, limit).await
    }

    async fn ensure_context(&self, key: ContextKey, now: Timestamp) -> Result<ContextId> {
        self.find_or_add_context(key, now).await
    }

    async fn context(&self, id: ContextId) -> Result<Option<ContextKey>> {
        self.find_context(id).await
    }

    async fn add_token(&self, token: TokenRecord) -> Result<()> {
        self.insert_token(token).await
    }

    async fn tokens(&self, ids: &[TokenId]) -> Result<Vec<TokenRecord>> {
        self.find_tokens(ids).await
    }

    async fn all_tokens(&self) -> Result<Vec<TokenRecord>> {
        self.every_token().await
    }

    async fn revoke_token(&self, id: TokenId, now: Timestamp) -> Result<bool> {
        self.revoke_told(id, now).await
    }

    async fn expire_token(&self, id: TokenId, at: Timestamp) -> Result<bool> {
        self.expire_told(id, at).await
    }

    async fn server_key(&self, kind: &str) -> Result<[u8; 32]> {
        self.find_or_add_key(kind).await
    }

    async fn catalog(&self) -> Result<Vec<CatalogItem>> {
        self.whole_catalog().await
    }

    async fn put_catalog(&self, items: Vec<CatalogItem>) -> Result<Vec<CatalogItem>> {
        self.merge_catalog(items).await
    }

    async fn prune_catalog(&self, keep: &[String]) -> Result<u64> {
        self.drop_from_catalog(keep).await
    }

    async fn all_tasks(&self, after: Option<Position>, limit: u32) -> Result<Vec<TaskDetails>> {
        self.every_task(after, limit).await
    }

    async fn details(&self, id: TaskId) -> Result<Option<TaskDetails>> {
        self.one_task(id).await
    }

    async fn ping(&self) -> Result<()> {
        self.read("store.ping", D::CLOCK, Vec::new()).await.map(|_| ())
    }

    async fn close(&self) {
        self.close_all().await;
    }

    async fn drop_catalog(&self, items: Vec<CatalogItem>) -> Result<Vec<CatalogItem>> {
        self.delete_from_catalog(items).await
    }

    async fn add_subscription(&self, context: ContextId, new: NewSubscription, most: u32) -> Result<bool> {
        self.insert_subscription(context, new, most).await
    }

    async fn end_subscription(
        &self,
        context: ContextId,
        session: SessionId,
        uri: &str,
    ) -> Result<Option<SubscriptionRow>> {
        self.delete_subscription(context, session, uri).await
    }

    async fn subscriptions(&self, context: ContextId, session: SessionId) -> Result<Vec<SubscriptionRow>> {
        self.subscriptions_of(context, session).await
    }

    async fn subscribers(
        &self,
        node: NodeId,
        context: Option<ContextId>,
        upstream: &str,
        uri: &str,
    ) -> Result<Vec<(ContextId, SessionId)>> {
        self.subscribers_of(node, context, upstream, uri).await
    }

    async fn subscriptions_at(&self, node: NodeId) -> Result<Vec<SubscriptionRow>> {
        self.subscriptions_of_node(node).await
    }

    async fn move_subscriptions(&self, from: NodeId, to: NodeId) -> Result<u64> {
        self.hand_on_subscriptions(from, to).await
    }

    async fn orphaned_subscriptions(&self, limit: u32) -> Result<Vec<SubscriptionRow>> {
        self.subscriptions_of_the_dead(limit).await
    }

    async fn take_subscription(&self, row: SubscriptionRow, node: NodeId) -> Result<bool> {
        self.move_subscription(row, node).await
    }

    async fn reap_subscriptions(&self, limit: u32) -> Result<u64> {
        self.delete_orphaned_subscriptions(limit).await
    }
}
