//! Group commit: while one batch commits, the next gathers. An idle service adds no delay; each caller is answered
//! after its own commit with its own result.

use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::dialect::Dialect;
use super::link::{Own, Session};
use super::sql::Fault;
use crate::lifecycle;

/// The largest batch; a larger payload commits alone.
pub const MOST_BYTES: usize = 1 << 20;
/// Callers beyond this many waiting ones are refused at once.
const QUEUE: usize = 16_384;
/// How long a batch that met a broken link tries again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Something that waits to be done together with others of its kind.
pub trait Gathered: Send + 'static {
    /// Bytes of payload.
    fn weight(&self) -> usize;
}

/// Collects items into batches and runs each batch on the first free lane.
pub struct Gatherer<I> {
    sender: std::sync::RwLock<Option<mpsc::Sender<I>>>,
    lanes: Mutex<Vec<JoinHandle<()>>>,
}

/// Runs a batch to its end, answering every item.
pub type Lane<I> = Box<dyn Fn(Vec<I>) -> BoxFuture<'static, ()> + Send + Sync>;

impl<I: Gathered> Gatherer<I> {
    pub fn start(name: &'static str, most_rows: usize, lanes: Vec<Lane<I>>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let intake = Arc::new(Mutex::new(Intake { receiver, held: None, most_rows }));
        let lanes = lanes
            .into_iter()
            .map(|lane| {
                let intake = Arc::clone(&intake);
                lifecycle::spawn(name, async move {
                    loop {
                        // The lock is let go before the batch runs, so that another lane gathers meanwhile.
                        let batch = intake.lock().await.batch().await;
                        let Some(batch) = batch else { return };
                        // A panic ends this batch, whose callers then see their channel closed, and not the lane.
                        let _ = lifecycle::spawn(name, lane(batch)).await;
                    }
                })
            })
            .collect();
        Self { sender: std::sync::RwLock::new(Some(sender)), lanes: Mutex::new(lanes) }
    }

    /// Adds an item, whose answer comes through a channel of its own.
    pub fn send(&self, item: I) -> Result<(), Fault> {
        let sender = self.sender.read().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = sender.as_ref() else { return Err(Fault::link("the store is closed")) };
        sender.try_send(item).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Fault::link("too many operations wait for the database"),
            mpsc::error::TrySendError::Closed(_) => Fault::link("the store is closed"),
        })
    }

    /// Runs what was gathered, then ends the lanes.
    pub async fn close(&self) {
        self.sender.write().unwrap_or_else(PoisonError::into_inner).take();
        for lane in self.lanes.lock().await.drain(..) {
            let _ = lane.await;
        }
    }
}

struct Intake<I> {
    receiver: mpsc::Receiver<I>,
    /// Was received, but did not fit into the batch before.
    held: Option<I>,
    most_rows: usize,
}

impl<I: Gathered> Intake<I> {
    /// Waits for one item and takes what else is there; `None` when nothing will come any more.
    async fn batch(&mut self) -> Option<Vec<I>> {
        let first = match self.held.take() {
            Some(item) => item,
            None => self.receiver.recv().await?,
        };
        let mut bytes = first.weight();
        let mut batch = vec![first];
        while batch.len() < self.most_rows {
            let Ok(item) = self.receiver.try_recv() else { break };
            bytes += item.weight();
            if bytes > MOST_BYTES {
                self.held = Some(item);
                break;
            }
            batch.push(item);
        }
        Some(batch)
    }
}

/// One kind of write.
pub trait Kind: Send + Sync + Sized + 'static {
    type Answer: Send + 'static;

    /// The task. A batch has each task once.
    fn key(&self) -> Uuid;

    /// Writes all or none, and answers each in turn. Items are in the order of their keys.
    fn commit<D: Dialect>(
        session: &mut Session<D>,
        items: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Fault>> + Send;

    /// The same after a try whose end is unknown: what has landed counts as written.
    fn commit_again<D: Dialect>(
        session: &mut Session<D>,
        items: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Fault>> + Send {
        Self::commit(session, items)
    }
}

/// A write and who waits for it.
pub struct Job<K: Kind> {
    pub item: K,
    pub reply: oneshot::Sender<Result<K::Answer, Fault>>,
}

/// Commits jobs of one kind together and answers each.
pub async fn settle<D: Dialect, K: Kind>(own: &Own<D>, mut jobs: Vec<Job<K>>) {
    // Stable: of two writes to one task the earlier stays first.
    jobs.sort_by_key(|job| job.item.key());
    while !jobs.is_empty() {
        let mut later = Vec::new();
        let mut round: Vec<Job<K>> = Vec::with_capacity(jobs.len());
        for job in jobs {
            match round.last() {
                Some(last) if last.item.key() == job.item.key() => later.push(job),
                _ => round.push(job),
            }
        }
        settle_round(own, round).await;
        jobs = later;
    }
}

/// A statement that the database refuses is split until the bad row fails alone.
async fn settle_round<D: Dialect, K: Kind>(own: &Own<D>, round: Vec<Job<K>>) {
    let (items, replies): (Vec<K>, Vec<_>) = round.into_iter().map(|job| (job.item, job.reply)).unzip();
    let mut replies: Vec<_> = replies.into_iter().map(Some).collect();
    let mut answer = |at: usize, result: Result<K::Answer, Fault>| {
        if let Some(reply) = replies[at].take() {
            // A caller that went away needs no answer.
            let _ = reply.send(result);
        }
    };
    let whole = 0..items.len();
    let mut parts = vec![(whole, false)];
    while let Some((part, is_doubtful)) = parts.pop() {
        let (result, is_doubtful) = attempt(own, &items[part.clone()], is_doubtful).await;
        match result {
            Ok(answers) if answers.len() == part.len() => {
                for (at, result) in part.zip(answers) {
                    answer(at, Ok(result));
                }
            }
            Ok(_) => part.for_each(|at| answer(at, Err(Fault::broken("a batch was answered in part")))),
            Err(Fault::Statement(_) | Fault::Broken(_)) if part.len() > 1 => {
                let middle = part.start + part.len() / 2;
                parts.push((middle..part.end, is_doubtful));
                parts.push((part.start..middle, is_doubtful));
            }
            Err(fault) => part.for_each(|at| answer(at, Err(fault.clone()))),
        }
    }
}

/// Tries until the database has decided. A broken link is made again and the same write repeated, unless the database
/// was away already: then callers are refused at once. Takes and answers whether a try's end is unknown.
async fn attempt<D: Dialect, K: Kind>(
    own: &Own<D>,
    items: &[K],
    mut doubtful: bool,
) -> (Result<Vec<K::Answer>, Fault>, bool) {
    let patient = !own.is_down().await;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(10);
    let mut looked_again = false;
    loop {
        let result = once(own, items, doubtful).await;
        match &result {
            Err(Fault::Link(_)) if patient && Instant::now() < deadline => doubtful = true,
            Err(Fault::Conflict(_)) if Instant::now() < deadline => {}
            // What was in doubt may have landed after the look for it, and stands in its own way: the next look finds it.
            Err(Fault::Statement(_)) if doubtful && !looked_again => looked_again = true,
            _ => return (result, doubtful),
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

async fn once<D: Dialect, K: Kind>(own: &Own<D>, items: &[K], doubtful: bool) -> Result<Vec<K::Answer>, Fault> {
    let mut session = own.session().await?;
    if doubtful { K::commit_again(&mut session, items).await } else { K::commit(&mut session, items).await }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Parcel(usize);

    impl Gathered for Parcel {
        fn weight(&self) -> usize {
            self.0
        }
    }

    async fn batches(most_rows: usize, weights: &[usize]) -> Vec<Vec<usize>> {
        let (sender, receiver) = mpsc::channel(100);
        for weight in weights {
            sender.send(Parcel(*weight)).await.unwrap();
        }
        drop(sender);
        let mut intake = Intake { receiver, held: None, most_rows };
        let mut batches = Vec::new();
        while let Some(batch) = intake.batch().await {
            batches.push(batch.into_iter().map(|parcel| parcel.0).collect());
        }
        batches
    }

    #[tokio::test]
    async fn batches_are_bounded_by_rows_and_bytes() {
        assert_eq!(batches(2, &[1, 2, 3]).await, [vec![1, 2], vec![3]]);
        let large = MOST_BYTES + 1;
        assert_eq!(batches(256, &[1, large, 2, 3]).await, [vec![1], vec![large], vec![2, 3]]);
        assert_eq!(batches(256, &[MOST_BYTES, 1]).await, [vec![MOST_BYTES], vec![1]]);
    }
}
