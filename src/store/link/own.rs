//! Connections that are no pool's: each with one owner, or few, who take turns.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::super::connect::{Backoff, CONNECT_DEADLINE, connect};
use super::super::dialect::{Connection, Dialect};
use super::super::sql::Fault;
use super::Shared;
use super::session::{Held, Session};

/// How long a connection keeps the plans of its statements: those that were made while tables were empty do not suit full ones.
const PLANS_KEPT: Duration = Duration::from_secs(10);

/// A connection with one owner or few, opened when first used and again when it broke.
pub struct Own<D: Dialect> {
    /// Held by the next in line, so that whoever is urgent waits for one ordinary session at most besides the current one.
    turn: Mutex<()>,
    state: Arc<Mutex<State<D>>>,
    shared: Shared<D>,
}

pub(super) struct State<D: Dialect> {
    pub(super) connection: Option<Connection<D>>,
    /// The place of its server in the list.
    at: usize,
    /// When the connection was last known to be alive.
    pub(super) answered: Instant,
    /// When its statements were last planned anew.
    pub(super) planned: Instant,
    /// Of failed tries to connect since the last good one, and when the next may be.
    backoff: Backoff,
    retry_at: Option<Instant>,
    closed: bool,
}

impl<D: Dialect> Own<D> {
    pub fn new(shared: &Shared<D>) -> Arc<Self> {
        let state = State {
            connection: None,
            at: 0,
            answered: Instant::now(),
            planned: Instant::now(),
            backoff: Backoff::default(),
            retry_at: None,
            closed: false,
        };
        Arc::new(Self { turn: Mutex::new(()), state: Arc::new(Mutex::new(state)), shared: shared.clone() })
    }

    /// Waits for its turn, then for a connection. While the database is away this answers a link fault at once, and
    /// tries to connect at most every second.
    pub async fn session(&self) -> Result<Session<D>, Fault> {
        let turn = self.turn.lock().await;
        let state = Arc::clone(&self.state).lock_owned().await;
        drop(turn);
        let is_due = self.shared.keeps() && state.planned.elapsed() > PLANS_KEPT;
        let mut session = self.open(state).await?;
        if let Some(sql) = D::FORGET_PLANS.filter(|_| is_due) {
            session.forget_plans(sql).await?;
        }
        Ok(session)
    }

    /// The same, before all but one of those who wait for an ordinary one: a heartbeat that waits its turn behind a crowd of
    /// writers makes a busy node look dead. It keeps its plans: by its time a clock is set.
    pub async fn urgent_session(&self) -> Result<Session<D>, Fault> {
        let state = Arc::clone(&self.state).lock_owned().await;
        self.open(state).await
    }

    async fn open(&self, mut state: OwnedMutexGuard<State<D>>) -> Result<Session<D>, Fault> {
        if state.closed {
            return Err(Fault::link("the store is closed"));
        }
        if self.shared.doubt.covers(state.answered) || state.at != self.shared.targets.held() {
            state.connection = None;
        }
        if state.connection.is_none() {
            if state.retry_at.is_some_and(|at| Instant::now() < at) {
                return Err(Fault::link("the connection is lost and not yet made again"));
            }
            match connect::<D>(&self.shared.targets).await {
                Ok((at, connection)) => {
                    state.connection = Some(connection);
                    state.at = at;
                    state.answered = Instant::now();
                    state.planned = state.answered;
                    state.backoff = Backoff::default();
                    state.retry_at = None;
                }
                Err(fault) => {
                    state.retry_at = Some(Instant::now() + state.backoff.pause());
                    return Err(fault);
                }
            }
        }
        Ok(Session::new(Held::Own(state), &self.shared))
    }

    /// Closes the connection if it leads to a server that was left.
    pub async fn leave(&self) {
        let mut state = self.state.lock().await;
        if state.at != self.shared.targets.held()
            && let Some(connection) = state.connection.take()
        {
            // Nothing is left to be done on it; a failed goodbye changes nothing.
            let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
        }
    }

    /// Whether the last try to connect failed: then a caller need not wait for the next.
    pub async fn is_down(&self) -> bool {
        self.state.lock().await.backoff.has_failed()
    }

    pub async fn close(&self) {
        let mut state = self.state.lock().await;
        state.closed = true;
        if let Some(connection) = state.connection.take() {
            // Nothing is left to be done on it; a failed goodbye changes nothing.
            let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;

    use super::super::super::options::Pooler;
    use super::super::super::sqlite::SqliteDialect;
    use super::super::super::targets::Targets;
    use super::*;

    #[tokio::test]
    async fn who_is_urgent_waits_for_no_crowd() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("x.db")).create_if_missing(true);
        let shared =
            Shared { targets: Arc::new(Targets::one("x.db", options)), doubt: Arc::default(), pooler: Pooler::None };
        let own = Own::<SqliteDialect>::new(&shared);
        let held = own.session().await.unwrap();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let wait = |name: &'static str| {
            let (own, order) = (Arc::clone(&own), Arc::clone(&order));
            async move {
                let session = if name == "urgent" { own.urgent_session().await } else { own.session().await };
                order.lock().unwrap().push(name);
                drop(session);
            }
        };
        let release = async {
            tokio::task::yield_now().await; // all the others are polled, in their order, before this goes on
            drop(held);
        };
        tokio::join!(wait("first"), wait("second"), wait("third"), wait("urgent"), release);
        assert_eq!(*order.lock().unwrap(), ["first", "urgent", "second", "third"]);
    }
}
