//! Wake-ups between nodes: hints that go out after the commits, and the connection on which others' are heard.
//!
//! The database is the truth: hints only shorten waiting. They are sent apart from what they tell of, many at once, and
//! whether one arrives is nobody's care. Whoever hears them looks for itself; after each gap in its hearing it has to look
//! for everything.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::StoreError;
use super::dialect::Dialect;
use super::hints::{self, Hint, Origin};
use super::link::Own;
use super::sql::{Fault, args};
use crate::domain::task::Task;
use crate::lifecycle;

/// The time from one notification to the next while there are many: each takes a lock of the whole server for a moment.
const GAP: Duration = Duration::from_millis(25);
/// So much of that time may be taken in advance, so that a few go out at once.
const BURST: Duration = Duration::from_millis(100);
/// More hints than this that wait are as good as one that anything may have happened.
const MOST: usize = 1_000;
/// How long nothing is sent after a notification failed.
const RESPITE: Duration = Duration::from_secs(1);
/// After so much silence a node says that it is there, and hears itself. What it says goes the way of all hints: so its
/// silence shows that either way is broken, and that the two do not lead to the same server.
const SILENCE: Duration = Duration::from_secs(3);
/// How long that may take before the connection counts as lost. With the silence before it this is what KEEP-17 allows, and
/// the time to open another.
pub const PROOF: Duration = Duration::from_secs(4);
/// Nodes that were not heard for longer than this need no hints.
const HEARD: Duration = Duration::from_secs(10);
pub const OPENING: Duration = Duration::from_secs(5);
/// After so many notifications others have their turn.
const TURNS: usize = 64;
/// The shortest and the longest pause between two tries to listen.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long the last hints of a store that closes may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Opens connections that hear notifications.
#[async_trait]
pub trait Ears: Send + Sync + 'static {
    async fn open(&self) -> Result<Box<dyn Ear>, Fault>;
    /// The last one was of no use: another server may be, where there are several.
    fn turn(&self);
    /// Waits until the database is used on another server than that of the last one.
    async fn moved(&self) {
        std::future::pending::<()>().await;
    }
}

/// Such a connection. Dropping a call of it loses nothing.
#[async_trait]
pub trait Ear: Send {
    /// What is said next; an error if it is of no more use.
    async fn next(&mut self) -> Result<String, Fault>;
}

/// What a store says to others and hears of them.
pub struct Wakeups {
    origin: Origin,
    outbox: Mutex<Outbox>,
    /// Told of what is to be sent.
    posted: Notify,
    inbox: Mutex<HashSet<Hint>>,
    /// Told of what was heard.
    arrived: Notify,
    /// Where notifications are heard, until that begins.
    ears: Mutex<Option<Box<dyn Ears>>>,
    /// Whether they are heard now.
    stands: AtomicBool,
    /// Whether the log says that they are not.
    is_missed: AtomicBool,
    /// When another node was last heard.
    heard: Mutex<Option<Instant>>,
    /// Moves when what is known of tokens may be old.
    tokens: watch::Sender<()>,
    sender: Mutex<Option<JoinHandle<()>>>,
    closed: CancellationToken,
}

#[derive(Default)]
struct Outbox {
    hints: HashSet<Hint>,
    /// Whether to say that this node is there.
    presence: bool,
}

/// What other nodes say, for the one who reads it.
pub struct Hints(Arc<Wakeups>);

impl Hints {
    /// Waits for what is heard next. After a gap that is [`Hint::Anything`]. Dropping the future loses nothing.
    pub async fn next(&mut self) -> HashSet<Hint> {
        loop {
            let arrived = self.0.arrived.notified();
            let heard = std::mem::take(&mut *lock(&self.0.inbox));
            if !heard.is_empty() {
                return heard;
            }
            arrived.await;
        }
    }
}

impl Wakeups {
    /// Sends by `own`, where the database has notifications.
    pub fn start<D: Dialect>(own: &Arc<Own<D>>, ears: Option<Box<dyn Ears>>) -> Arc<Self> {
        let wakeups = Arc::new(Self {
            origin: Origin::new(),
            outbox: Mutex::default(),
            posted: Notify::new(),
            inbox: Mutex::default(),
            arrived: Notify::new(),
            ears: Mutex::new(ears),
            stands: AtomicBool::new(false),
            is_missed: AtomicBool::new(false),
            heard: Mutex::new(None),
            tokens: watch::Sender::default(),
            sender: Mutex::new(None),
            closed: CancellationToken::new(),
        });
        if let Some(notify) = D::NOTIFY {
            let sending = Arc::clone(&wakeups).send(notify, Arc::clone(own));
            *lock(&wakeups.sender) = Some(lifecycle::spawn("store.notify", sending));
        }
        wakeups
    }

    /// Begins to listen; `None` if that was begun before, or cannot be.
    pub fn listen(self: &Arc<Self>) -> Option<Hints> {
        let ears = lock(&self.ears).take()?;
        lifecycle::spawn("store.listen", Arc::clone(self).keep_listening(ears));
        Some(Hints(Arc::clone(self)))
    }

    /// Whether other nodes' hints are heard now.
    pub fn stands(&self) -> bool {
        self.stands.load(Ordering::SeqCst)
    }

    /// Moves when tokens may have changed, as far as that is heard.
    pub fn tokens(&self) -> watch::Receiver<()> {
        self.tokens.subscribe()
    }

    pub fn task(&self, task: &Task) {
        self.post([Hint::Task(task.id, task.session)]);
    }

    /// To be said to the other nodes, after what it is about was committed.
    pub fn post(&self, hints: impl IntoIterator<Item = Hint>) {
        if self.is_alone() || lock(&self.sender).is_none() {
            return;
        }
        add(&mut lock(&self.outbox).hints, hints);
        self.posted.notify_one();
    }

    /// Whether nobody would hear: who listens says so now and then, and who does not asks often.
    fn is_alone(&self) -> bool {
        self.stands() && lock(&self.heard).is_some_and(|heard| heard.elapsed() > HEARD)
    }

    async fn send<D: Dialect>(self: Arc<Self>, notify: &'static str, own: Arc<Own<D>>) {
        let mut earned = Instant::now();
        loop {
            let Outbox { hints, presence } = std::mem::take(&mut *lock(&self.outbox));
            if hints.is_empty() && !presence {
                tokio::select! {
                    biased;
                    () = self.posted.notified() => continue,
                    () = self.closed.cancelled() => return,
                }
            }
            let texts = hints::write(self.origin, hints);
            let price = GAP.saturating_mul(u32::try_from(texts.len()).unwrap_or(u32::MAX));
            earned = earned.max(Instant::now()) + price;
            let mut next = earned - BURST;
            if let Err(fault) = notify_all(&own, notify, texts).await {
                tracing::debug!(?fault, "other nodes were not notified; they find it by themselves");
                next = Instant::now() + RESPITE;
            }
            // What is posted meanwhile goes out together; at the end nothing waits.
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.closed.cancelled() => {}
            }
        }
    }

    async fn keep_listening(self: Arc<Self>, ears: Box<dyn Ears>) {
        let mut failures = 0;
        loop {
            let lost = tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                fault = self.listen_until_lost(&*ears) => Some(fault),
                // The store's other connections have left that server, too, and the log says so.
                () = ears.moved() => None,
            };
            let stood = self.stands.swap(false, Ordering::SeqCst);
            if stood {
                self.hear([Hint::Anything]);
            }
            let Some(fault) = lost else {
                failures = 0;
                continue;
            };
            if stood || failures == 0 {
                tracing::warn!(
                    why = %StoreError::from(fault),
                    "other nodes are not heard, so that the database is asked more often; to be heard they and this node need \
                     the same server, without a pooler between: database.listen_url names it"
                );
                self.is_missed.store(true, Ordering::SeqCst);
            }
            failures = if stood { 1 } else { failures + 1 };
            if !stood {
                ears.turn();
            }
            let pause = BACKOFF.0.saturating_mul(1 << (failures - 1).min(6)).min(BACKOFF.1);
            tokio::select! {
                () = sleep(pause) => {}
                () = ears.moved() => {}
                () = self.closed.cancelled() => return,
            }
        }
    }

    /// Listens on one connection, and says why that is over.
    async fn listen_until_lost(&self, ears: &dyn Ears) -> Fault {
        let mut ear = match timeout(OPENING, ears.open()).await {
            Ok(Ok(ear)) => ear,
            Ok(Err(fault)) => return fault,
            Err(_) => return Fault::link("no connection in time"),
        };
        self.show_presence();
        let mut proven = false;
        let mut until = Instant::now() + PROOF;
        let mut turns = 0_usize;
        loop {
            // What a flood leaves to read is read at once, one after the other: others get their turns all the same.
            turns += 1;
            if turns.is_multiple_of(TURNS) {
                yield_now().await;
            }
            let heard = tokio::select! {
                heard = ear.next() => heard,
                () = sleep_until(until) => {
                    if !proven {
                        return Fault::link("what this node said was not heard");
                    }
                    (proven, until) = (false, Instant::now() + PROOF);
                    self.show_presence();
                    continue;
                }
            };
            match heard.map(|text| hints::read(&text)) {
                Ok(Some((origin, _))) if origin == self.origin => {
                    (proven, until) = (true, Instant::now() + SILENCE);
                    self.is_heard();
                }
                Ok(Some((_, hints))) => {
                    *lock(&self.heard) = Some(Instant::now());
                    self.hear(hints);
                }
                Ok(None) => {}
                Err(fault) => return fault,
            }
        }
    }

    /// What this node says comes back to it.
    fn is_heard(&self) {
        if !self.stands() {
            // Others may be there, and have not said so yet.
            *lock(&self.heard) = Some(Instant::now());
            self.stands.store(true, Ordering::SeqCst);
            self.hear([Hint::Anything]);
            if self.is_missed.swap(false, Ordering::SeqCst) {
                tracing::info!("other nodes are heard again");
            }
        }
    }

    fn show_presence(&self) {
        lock(&self.outbox).presence = true;
        self.posted.notify_one();
    }

    fn hear(&self, hints: impl IntoIterator<Item = Hint>) {
        let mut is_about_tokens = false;
        let hints = hints.into_iter().inspect(|hint| {
            is_about_tokens |= matches!(hint, Hint::Token(_) | Hint::Anything);
        });
        add(&mut lock(&self.inbox), hints);
        self.arrived.notify_one();
        if is_about_tokens {
            self.tokens.send_replace(());
        }
    }

    /// Nothing is heard any more, and nothing sent but what there is.
    pub fn end(&self) {
        self.closed.cancel();
    }

    /// The same, and waits for what is sent.
    pub async fn close(&self) {
        self.end();
        let sender = lock(&self.sender).take();
        if let Some(mut sender) = sender
            && timeout(FAREWELL, &mut sender).await.is_err()
        {
            sender.abort();
        }
    }
}

async fn notify_all<D: Dialect>(own: &Own<D>, notify: &'static str, texts: Vec<String>) -> Result<(), Fault> {
    for text in texts {
        own.session().await?.fetch(notify, args![text]).await?;
    }
    Ok(())
}

fn add(to: &mut HashSet<Hint>, hints: impl IntoIterator<Item = Hint>) {
    to.extend(hints);
    if to.len() > MOST {
        // Those that are acted upon without a look stay.
        to.retain(|hint| matches!(hint, Hint::Token(_) | Hint::SessionEnded(_) | Hint::Waiting));
        if to.len() > MOST {
            to.clear();
        }
        to.insert(Hint::Anything);
    }
}

/// A poisoned lock is taken all the same: nothing under it is left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;

    use super::super::link::Shared;
    use super::super::options::Pooler;
    use super::super::sqlite::SqliteDialect;
    use super::super::targets::Targets;
    use super::*;

    /// Another client of the database that never stops to talk.
    struct Flood;

    #[async_trait]
    impl Ears for Flood {
        async fn open(&self) -> Result<Box<dyn Ear>, Fault> {
            Ok(Box::new(Self))
        }

        fn turn(&self) {}
    }

    #[async_trait]
    impl Ear for Flood {
        async fn next(&mut self) -> Result<String, Fault> {
            Ok("nonsense".repeat(900))
        }
    }

    /// Servers at which nothing is heard, and of which another one may come into use.
    struct Servers {
        in_use: watch::Sender<usize>,
        tried: Mutex<Vec<usize>>,
    }

    struct Silence;

    #[async_trait]
    impl Ears for Arc<Servers> {
        async fn open(&self) -> Result<Box<dyn Ear>, Fault> {
            lock(&self.tried).push(*self.in_use.borrow());
            Ok(Box::new(Silence))
        }

        fn turn(&self) {}

        async fn moved(&self) {
            let tried = lock(&self.tried).last().copied();
            let _ = self.in_use.subscribe().wait_for(|at| Some(*at) != tried).await;
        }
    }

    #[async_trait]
    impl Ear for Silence {
        async fn next(&mut self) -> Result<String, Fault> {
            std::future::pending().await
        }
    }

    fn own() -> Arc<Own<SqliteDialect>> {
        let targets = Arc::new(Targets::one("x.db", SqliteConnectOptions::new()));
        Own::new(&Shared { targets, doubt: Arc::default(), pooler: Pooler::None })
    }

    // req: KEEP-17
    #[tokio::test]
    async fn a_listener_follows_the_others_to_their_server_at_once() {
        let servers = Arc::new(Servers { in_use: watch::Sender::new(0), tried: Mutex::default() });
        let wakeups = Wakeups::start(&own(), Some(Box::new(Arc::clone(&servers))));
        let _hints = wakeups.listen().unwrap();
        for at in [1, 2] {
            while lock(&servers.tried).len() < at {
                yield_now().await;
            }
            let moved = Instant::now();
            servers.in_use.send_replace(at);
            while lock(&servers.tried).len() == at && moved.elapsed() < PROOF / 2 {
                yield_now().await;
            }
            assert_eq!(
                lock(&servers.tried).last(),
                Some(&at),
                "nothing was heard there yet, and it is left all the same"
            );
        }
        wakeups.close().await;
    }

    // req: KEEP-17
    #[tokio::test]
    async fn a_flood_of_others_words_leaves_the_node_its_turns() {
        let wakeups = Wakeups::start(&own(), Some(Box::new(Flood)));
        let _hints = wakeups.listen().unwrap();
        // On one thread: whoever keeps it would let nothing of this happen.
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(200) {
            yield_now().await;
        }
        assert!(!wakeups.stands(), "what this node said was not heard");
        wakeups.close().await;
    }
}
