//! A database that knows the catalogue alone, kept in memory; everything else is refused.
//!
//! It can be out of order for a while, which the real ones cannot be on demand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::cursor::Position;
use taskhold::domain::ids::{ContextId, LeaseToken, NodeId, SessionId, TaskId, TokenId};
use taskhold::domain::lease::Lease;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::session::Session;
use taskhold::domain::task::Task;
use taskhold::domain::work::{Claim, NewTask};
use taskhold::store::{
    Beat, CatalogItem, Database, End, Ended, Finish, Note, Overdue, Release, Result, Store, StoreError, TaskDetails,
    TokenRecord,
};

#[derive(Default)]
pub struct CatalogStore {
    items: Mutex<Vec<CatalogItem>>,
    pub is_down: AtomicBool,
}

impl CatalogStore {
    pub fn new() -> (Arc<Self>, Store) {
        let database = Arc::new(Self::default());
        (Arc::clone(&database), Store::new(database))
    }

    pub fn items(&self) -> Vec<CatalogItem> {
        self.items.lock().unwrap().clone()
    }

    fn check(&self) -> Result<()> {
        if self.is_down.load(Ordering::SeqCst) { Err(StoreError::Unavailable("switched off".into())) } else { Ok(()) }
    }
}

fn refused() -> StoreError {
    StoreError::Refused("this store keeps the catalogue only".into())
}

#[async_trait]
impl Database for CatalogStore {
    async fn catalog(&self) -> Result<Vec<CatalogItem>> {
        self.check()?;
        Ok(self.items())
    }

    async fn put_catalog(&self, items: Vec<CatalogItem>) -> Result<Vec<CatalogItem>> {
        self.check()?;
        let mut stored = self.items.lock().unwrap();
        for item in items {
            let same =
                |old: &CatalogItem| (&old.upstream, &old.kind, &old.name) == (&item.upstream, &item.kind, &item.name);
            if let Some(old) = stored.iter_mut().find(|old| same(old)) {
                *old = CatalogItem { exposed: old.exposed.clone(), ..item };
            } else if !stored.iter().any(|old| old.exposed == item.exposed) {
                stored.push(item);
            }
        }
        Ok(stored.clone())
    }

    async fn prune_catalog(&self, keep: &[String]) -> Result<u64> {
        self.check()?;
        let mut stored = self.items.lock().unwrap();
        let before = stored.len();
        stored.retain(|item| keep.contains(&item.upstream));
        Ok((before - stored.len()) as u64)
    }

    async fn create(&self, _context: ContextId, _new: NewTask) -> Result<()> {
        Err(refused())
    }

    async fn get(&self, _context: ContextId, _id: TaskId) -> Result<Option<Task>> {
        Err(refused())
    }

    async fn outcome(&self, _context: ContextId, _id: TaskId) -> Result<Option<(Task, Option<Outcome>)>> {
        Err(refused())
    }

    async fn list(
        &self,
        _context: ContextId,
        _after: Option<Position>,
        _limit: u32,
        _now: Timestamp,
    ) -> Result<Vec<Task>> {
        Err(refused())
    }

    async fn cancel(&self, _context: ContextId, _id: TaskId, _end: End) -> Result<Ended> {
        Err(refused())
    }

    async fn claim(
        &self,
        _node: NodeId,
        _tokens: Vec<LeaseToken>,
        _message: &str,
        _now: Timestamp,
    ) -> Result<Vec<Claim>> {
        Err(refused())
    }

    async fn finish(&self, _finish: Finish) -> Result<Ended> {
        Err(refused())
    }

    async fn note(&self, _note: Note) -> Result<bool> {
        Err(refused())
    }

    async fn release(&self, _release: Release) -> Result<bool> {
        Err(refused())
    }

    async fn queue(&self, _limit: u32, _now: Timestamp) -> Result<Vec<TaskId>> {
        Err(refused())
    }

    async fn note_waiting(&self, _messages: Vec<(TaskId, String)>, _now: Timestamp) -> Result<()> {
        Err(refused())
    }

    async fn ended(&self, _ids: &[TaskId]) -> Result<Vec<TaskId>> {
        Err(refused())
    }

    async fn may_have_changed(&self) -> Result<bool> {
        Err(refused())
    }

    fn watch_interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn register_node(&self, _node: NodeId) -> Result<Timestamp> {
        Err(refused())
    }

    async fn heartbeat(&self, _node: NodeId) -> Result<Beat> {
        Err(refused())
    }

    async fn declare_dead(&self, _judge: NodeId, _age: Duration) -> Result<Vec<NodeId>> {
        Err(refused())
    }

    async fn retire_node(&self, _node: NodeId) -> Result<()> {
        Err(refused())
    }

    async fn orphans(&self, _after: Option<TaskId>, _limit: u32) -> Result<Vec<Claim>> {
        Err(refused())
    }

    async fn held(&self, _node: NodeId) -> Result<Vec<Lease>> {
        Err(refused())
    }

    async fn claim_of(&self, _task: TaskId, _token: LeaseToken) -> Result<Option<Claim>> {
        Err(refused())
    }

    async fn forget_nodes(&self, _before: Timestamp) -> Result<u64> {
        Err(refused())
    }

    async fn overdue(&self, _now: Timestamp, _limit: u32) -> Result<Vec<Overdue>> {
        Err(refused())
    }

    async fn end(&self, _id: TaskId, _end: End) -> Result<Ended> {
        Err(refused())
    }

    async fn reap(&self, _now: Timestamp, _limit: u32) -> Result<u64> {
        Err(refused())
    }

    async fn add_session(&self, _session: Session) -> Result<()> {
        Err(refused())
    }

    async fn session(&self, _context: ContextId, _id: SessionId) -> Result<Option<Session>> {
        Err(refused())
    }

    async fn touch_session(&self, _context: ContextId, _id: SessionId, _now: Timestamp) -> Result<()> {
        Err(refused())
    }

    async fn end_session(&self, _context: ContextId, _id: SessionId) -> Result<bool> {
        Err(refused())
    }

    async fn reap_sessions(&self, _before: Timestamp, _limit: u32) -> Result<u64> {
        Err(refused())
    }

    async fn ensure_context(&self, _key: ContextKey, _now: Timestamp) -> Result<ContextId> {
        Err(refused())
    }

    async fn context(&self, _id: ContextId) -> Result<Option<ContextKey>> {
        Err(refused())
    }

    async fn add_token(&self, _token: TokenRecord) -> Result<()> {
        Err(refused())
    }

    async fn tokens(&self, _ids: &[TokenId]) -> Result<Vec<TokenRecord>> {
        Err(refused())
    }

    async fn all_tokens(&self) -> Result<Vec<TokenRecord>> {
        Err(refused())
    }

    async fn revoke_token(&self, _id: TokenId, _now: Timestamp) -> Result<bool> {
        Err(refused())
    }

    async fn expire_token(&self, _id: TokenId, _at: Timestamp) -> Result<bool> {
        Err(refused())
    }

    async fn server_key(&self, _kind: &str) -> Result<[u8; 32]> {
        Err(refused())
    }

    async fn all_tasks(&self, _after: Option<Position>, _limit: u32) -> Result<Vec<TaskDetails>> {
        Err(refused())
    }

    async fn details(&self, _id: TaskId) -> Result<Option<TaskDetails>> {
        Err(refused())
    }

    async fn ping(&self) -> Result<()> {
        Err(refused())
    }

    async fn close(&self) {}
}
