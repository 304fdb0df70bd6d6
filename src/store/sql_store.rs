//! The one implementation of [`Database`], for every [`Dialect`].
//!
//! Here is what all nouns need: connections, batches and repeated tries. The trait's methods are in `methods`, each noun's
//! statements in the file of its name.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use super::batch::{Gathered, Gatherer, Job, Lane, settle};
use super::claims::{Note, Release};
use super::deliveries::Take;
use super::dialect::{Dialect, Many, Row};
use super::inputs::{Ask, Give};
use super::link::{Link, Own};
use super::sql::{Args, Cells, Fault};
use super::tasks::{Create, EndTask, Look, look_up};
use super::wakeup::{Ears, Wakeups};
use super::{Result, StoreError};
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
    pub(super) wakeups: Arc<Wakeups>,
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
    /// Where other nodes' hints are heard, if they are.
    pub ears: Option<Box<dyn Ears>>,
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
    Ask(Box<Job<Ask>>),
    Answer(Box<Job<Give>>),
    Hold(Box<Job<Take>>),
}

impl Gathered for Write {
    fn weight(&self) -> usize {
        match self {
            Self::Create(job) => job.item.weight(),
            Self::End(job) => job.item.weight(),
            Self::Note(job) => job.item.weight(),
            Self::Ask(job) => job.item.weight(),
            Self::Answer(job) => job.item.weight(),
            Self::Release(_) | Self::Hold(_) => 0,
        }
    }
}

impl<D: Dialect> SqlStore<D> {
    pub fn new(connections: Connections<D>) -> Self {
        let Connections { link, writers, readers, heart, watch, ears } = connections;
        let link = Arc::new(link);
        link.leave_others(writers.iter().chain(&readers).chain([&heart]).cloned());
        let write_lanes = writers.iter().map(|own| write_lane(Arc::clone(own))).collect();
        let look_lanes = readers.iter().map(|own| look_lane(Arc::clone(own))).collect();
        // By the heartbeat's connection, which is idle as a rule and goes first where it is not.
        let wakeups = Wakeups::start(&heart, ears);
        Self {
            wakeups,
            link,
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

    pub(super) async fn close_all(&self) {
        self.writes.close().await;
        self.looks.close().await;
        self.wakeups.close().await;
        let owned = self.writers.iter().chain(&self.readers).chain([&self.heart]);
        for own in owned.chain(self.watch.as_ref().map(|watch| &watch.own)) {
            own.close().await;
        }
        self.link.close().await;
    }

    /// The heartbeat's own connection.
    pub(super) fn heart(&self) -> Arc<Own<D>> {
        Arc::clone(&self.heart)
    }

    pub(super) async fn changed(&self) -> Result<bool> {
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

impl<D: Dialect> Drop for SqlStore<D> {
    fn drop(&mut self) {
        self.wakeups.end();
    }
}

fn interrupted() -> StoreError {
    StoreError::Unavailable("the operation was interrupted".into())
}

fn write_lane<D: Dialect>(own: Arc<Own<D>>) -> Lane<Write> {
    Box::new(move |batch| {
        let own = Arc::clone(&own);
        Box::pin(async move {
            let (mut creates, mut keyed) = (Vec::new(), Vec::new());
            let (mut ends, mut notes, mut releases) = (Vec::new(), Vec::new(), Vec::new());
            let (mut questions, mut answers, mut holds) = (Vec::new(), Vec::new(), Vec::new());
            for write in batch {
                match write {
                    Write::Create(job) if job.item.is_keyed() => keyed.push(*job),
                    Write::Create(job) => creates.push(*job),
                    Write::End(job) => ends.push(*job),
                    Write::Note(job) => notes.push(job),
                    Write::Release(job) => releases.push(job),
                    Write::Ask(job) => questions.push(*job),
                    Write::Answer(job) => answers.push(*job),
                    Write::Hold(job) => holds.push(*job),
                }
            }
            // Each kind commits on its own: a transaction over several could wait for another lane's in a circle.
            settle(&own, creates).await;
            settle(&own, keyed).await;
            settle(&own, notes).await;
            settle(&own, questions).await;
            settle(&own, holds).await;
            settle(&own, answers).await;
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
