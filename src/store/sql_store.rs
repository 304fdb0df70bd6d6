//! The one implementation of [`Database`], for every [`Dialect`].
//!
//! The trait's methods are one line each; each noun's statements are in the file of its name.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use super::batch::{Gathered, Gatherer, Job, Lane, settle};
use super::claims::{Note, Release};
use super::dialect::{Dialect, Many, Row};
use super::link::{Link, Own};
use super::sql::{Args, Cells, Fault};
use super::tasks::{Create, EndTask, Look, look_up};
use super::{
    Beat, CatalogItem, Claim, Database, End, Ended, Finish, Lease, Overdue, Result, StoreError, TaskDetails,
    TokenRecord,
};
use crate::domain::clock::Timestamp;
use crate::domain::context::ContextKey;
use crate::domain::cursor::Position;
use crate::domain::ids::{ContextId, LeaseToken, NodeId, SessionId, TaskId, TokenId};
use crate::domain::outcome::Outcome;
use crate::domain::session;
use crate::domain::task::Task;
use crate::domain::work::NewTask;
use crate::lifecycle;

/// The largest batch, in rows.
const MOST_ROWS: usize = 256;
/// How long and how often an operation outside the batches is tried. After a restart of the database each pooled
/// connection turns out to be dead once.
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_TRIES: u32 = 32;

/// A database of tasks.
pub struct SqlStore<D: Dialect> {
    pub(super) link: Arc<Link<D>>,
    heart: Arc<Own<D>>,
    readers: Vec<Arc<Own<D>>>,
    writers: Vec<Arc<Own<D>>>,
    watch: Option<Arc<Watch<D>>>,
    pub(super) writes: Gatherer<Write>,
    pub(super) looks: Gatherer<Look>,
}

/// The connections of a store.
pub struct Connections<D: Dialect> {
    pub link: Link<D>,
    /// One lane of gathered writes each.
    pub writers: Vec<Arc<Own<D>>>,
    /// One lane of gathered look-ups each.
    pub readers: Vec<Arc<Own<D>>>,
    /// The heartbeat's; it may share the writers', where it goes first.
    pub heart: Arc<Own<D>>,
    /// That which learns of other connections' commits, where there is such a thing.
    pub watch: Option<Arc<Own<D>>>,
}

struct Watch<D: Dialect> {
    own: Arc<Own<D>>,
    last: Mutex<Option<i64>>,
}

/// What is gathered into batches.
pub enum Write {
    Create(Box<Job<Create>>),
    End(Box<Job<EndTask>>),
    Note(Job<Note>),
    Release(Job<Release>),
}

impl Gathered for Write {
    fn weight(&self) -> usize {
        match self {
            Self::Create(job) => job.item.weight(),
            Self::End(job) => job.item.weight(),
            Self::Note(_) | Self::Release(_) => 0,
        }
    }
}

impl<D: Dialect> SqlStore<D> {
    pub fn new(connections: Connections<D>) -> Self {
        let Connections { link, writers, readers, heart, watch } = connections;
        let write_lanes = writers.iter().map(|own| write_lane(Arc::clone(own))).collect();
        let look_lanes = readers.iter().map(|own| look_lane(Arc::clone(own))).collect();
        Self {
            link: Arc::new(link),
            heart,
            readers,
            writers,
            watch: watch.map(|own| Arc::new(Watch { own, last: Mutex::new(None) })),
            writes: Gatherer::start("store.writes", MOST_ROWS, write_lanes),
            looks: Gatherer::start("store.looks", MOST_ROWS, look_lanes),
        }
    }

    /// Gathers a write and waits for its answer.
    pub(super) async fn gather<A>(
        &self,
        write: impl FnOnce(oneshot::Sender<std::result::Result<A, Fault>>) -> Write,
    ) -> Result<A> {
        let (reply, answer) = oneshot::channel();
        self.writes.send(write(reply))?;
        Ok(answer.await.map_err(|_| interrupted())??)
    }

    /// Runs statements apart from the caller, whose end must not cancel them.
    pub(super) async fn apart<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = std::result::Result<T, Fault>> + Send + 'static,
    ) -> Result<T> {
        Ok(lifecycle::spawn(name, work).await.map_err(|_| interrupted())??)
    }

    /// The same for work that may be done twice without harm: after a broken link or a lost conflict it is tried again.
    pub(super) async fn again<T, F>(
        &self,
        name: &'static str,
        work: impl Fn(Arc<Link<D>>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, Fault>> + Send,
    {
        let link = Arc::clone(&self.link);
        self.apart(name, async move {
            let deadline = Instant::now() + PATIENCE;
            let mut tries = 1;
            loop {
                match work(Arc::clone(&link)).await {
                    Err(Fault::Link(_) | Fault::Conflict(_)) if tries < MOST_TRIES && Instant::now() < deadline => {
                        tries += 1;
                    }
                    other => return other,
                }
            }
        })
        .await
    }

    /// One reading statement.
    pub(super) async fn read(&self, name: &'static str, sql: &'static str, args: Args) -> Result<Vec<Row<D>>> {
        self.again(name, move |link| {
            let args = args.clone();
            async move { link.reader().await?.fetch(sql, args).await }
        })
        .await
    }

    /// Reads for many rows.
    pub(super) async fn read_many(&self, name: &'static str, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>> {
        self.again(name, move |link| {
            let rows = rows.clone();
            async move { link.reader().await?.read_many(statement, rows).await }
        })
        .await
    }

    /// Writes many rows, all or none; answers the rows that the statement returns.
    pub(super) async fn write_many(&self, name: &'static str, statement: Many, rows: Vec<Args>) -> Result<Vec<Row<D>>> {
        self.again(name, move |link| {
            let rows = rows.clone();
            async move { link.writer().await?.write_many(statement, rows).await }
        })
        .await
    }

    /// One writing statement; answers the rows that it returns.
    pub(super) async fn write_returning(
        &self,
        name: &'static str,
        sql: &'static str,
        args: Args,
    ) -> Result<Vec<Row<D>>> {
        self.again(name, move |link| {
            let args = args.clone();
            async move { link.writer().await?.fetch(sql, args).await }
        })
        .await
    }

    /// One writing statement; answers how many rows it wrote.
    pub(super) async fn write(&self, name: &'static str, sql: &'static str, args: Args) -> Result<u64> {
        self.again(name, move |link| {
            let args = args.clone();
            async move { link.writer().await?.execute(sql, args).await }
        })
        .await
    }

    /// The heartbeat's own connection.
    pub(super) fn heart(&self) -> Arc<Own<D>> {
        Arc::clone(&self.heart)
    }

    async fn changed(&self) -> Result<bool> {
        let Some((watch, sql)) = self.watch.as_ref().zip(D::WATCH) else { return Ok(true) };
        let watch = Arc::clone(watch);
        self.apart("store.watch", async move {
            let mut last = watch.last.lock().await;
            // Forgotten until the answer is there: a new connection's number says nothing about the old one's.
            let before = last.take();
            let rows = watch.own.session().await?.fetch(sql, Vec::new()).await?;
            *last = rows.first().map(|row| row.int("data_version")).transpose()?;
            Ok(before.is_none() || *last != before)
        })
        .await
    }
}

fn interrupted() -> StoreError {
    StoreError::Unavailable("the operation was interrupted".into())
}

fn write_lane<D: Dialect>(own: Arc<Own<D>>) -> Lane<Write> {
    Box::new(move |batch| {
        let own = Arc::clone(&own);
        Box::pin(async move {
            let (mut creates, mut ends, mut notes, mut releases) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for write in batch {
                match write {
                    Write::Create(job) => creates.push(*job),
                    Write::End(job) => ends.push(*job),
                    Write::Note(job) => notes.push(job),
                    Write::Release(job) => releases.push(job),
                }
            }
            // Each kind commits on its own: a transaction over several could wait for another lane's in a circle.
            settle(&own, creates).await;
            settle(&own, notes).await;
            settle(&own, releases).await;
            settle(&own, ends).await;
        })
    })
}

fn look_lane<D: Dialect>(own: Arc<Own<D>>) -> Lane<Look> {
    Box::new(move |batch| {
        let own = Arc::clone(&own);
        Box::pin(async move { look_up(&own, batch).await })
    })
}

#[async_trait]
impl<D: Dialect> Database for SqlStore<D> {
    async fn create(&self, context: ContextId, new: NewTask) -> Result<()> {
        self.create_task(context, new).await
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
        self.end_task(EndTask::by_owner(context, id, end)).await
    }

    async fn claim(&self, node: NodeId, tokens: Vec<LeaseToken>, message: &str, now: Timestamp) -> Result<Vec<Claim>> {
        self.claim_tasks(node, tokens, message, now).await
    }

    async fn finish(&self, finish: Finish) -> Result<Ended> {
        self.end_task(EndTask::by_lease(finish)).await
    }

    async fn note(&self, note: super::Note) -> Result<bool> {
        self.gather(|reply| Write::Note(Job { item: Note(note), reply })).await
    }

    async fn release(&self, release: super::Release) -> Result<bool> {
        self.gather(|reply| Write::Release(Job { item: Release(release), reply })).await
    }

    async fn queue(&self, limit: u32, now: Timestamp) -> Result<Vec<TaskId>> {
        self.waiting_tasks(limit, now).await
    }

    async fn note_waiting(&self, messages: Vec<(TaskId, String)>, now: Timestamp) -> Result<()> {
        self.note_waiting_tasks(messages, now).await
    }

    async fn ended(&self, ids: &[TaskId]) -> Result<Vec<TaskId>> {
        self.ended_of(ids).await
    }

    async fn may_have_changed(&self) -> Result<bool> {
        self.changed().await
    }

    fn watch_interval(&self) -> Duration {
        D::WATCH_INTERVAL
    }

    async fn register_node(&self, node: NodeId) -> Result<Timestamp> {
        self.add_node(node).await
    }

    async fn heartbeat(&self, node: NodeId) -> Result<Beat> {
        self.beat(node).await
    }

    async fn declare_dead(&self, judge: NodeId, age: Duration) -> Result<Vec<NodeId>> {
        self.bury(judge, age).await
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

    async fn overdue(&self, now: Timestamp, limit: u32) -> Result<Vec<Overdue>> {
        self.overdue_tasks(now, limit).await
    }

    async fn end(&self, id: TaskId, end: End) -> Result<Ended> {
        self.end_task(EndTask::by_system(id, end)).await
    }

    async fn reap(&self, now: Timestamp, limit: u32) -> Result<u64> {
        self.reap_many("store.reap", D::REAP, now, limit).await
    }

    async fn add_session(&self, session: session::Session, most: u32) -> Result<()> {
        self.insert_session(session, most).await
    }

    async fn session(&self, context: ContextId, id: SessionId) -> Result<Option<session::Session>> {
        self.find_session(context, id).await
    }

    async fn touch_session(&self, context: ContextId, id: SessionId, now: Timestamp) -> Result<()> {
        self.use_session(context, id, now).await
    }

    async fn end_session(&self, context: ContextId, id: SessionId) -> Result<bool> {
        self.delete_session(context, id).await
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
        self.revoke(id, now).await
    }

    async fn expire_token(&self, id: TokenId, at: Timestamp) -> Result<bool> {
        self.expire(id, at).await
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
        self.writes.close().await;
        self.looks.close().await;
        let owned = self.writers.iter().chain(&self.readers).chain([&self.heart]);
        for own in owned.chain(self.watch.as_ref().map(|watch| &watch.own)) {
            own.close().await;
        }
        self.link.close().await;
    }
}
