//! Opening connections: to the first of a database's servers that takes writes.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use tokio::time::{Instant, sleep, timeout};

use super::dialect::{ConnectOptions, Connection, Dialect};
use super::sql::Fault;
use super::targets::Targets;
use crate::lifecycle;

/// How long opening a connection, or closing one, may take.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// How long a search for another server goes on unless it is asked for again.
const SEARCH: Duration = Duration::from_secs(30);

/// Pauses between tries to connect.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The shortest and the longest.
    const RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

    /// The pause after one more failure.
    pub fn pause(&mut self) -> Duration {
        let pause = Self::RANGE.0.saturating_mul(1 << self.failures.min(8)).min(Self::RANGE.1);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    pub const fn has_failed(&self) -> bool {
        self.failures > 0
    }
}

/// Connects to one of the servers, each of which is tried once at most; answers its place in the list too.
pub async fn connect<D: Dialect>(targets: &Targets<ConnectOptions<D>>) -> Result<(usize, Connection<D>), Fault> {
    let mut reasons = Vec::new();
    for _ in 0..targets.len() {
        let aim = targets.aim();
        match connect_to::<D>(aim.options, targets.several()).await {
            Ok(connection) => {
                targets.reached(aim.at);
                return Ok((aim.at, connection));
            }
            Err(fault) if !targets.several() => return Err(fault),
            Err(fault) => {
                targets.turn(aim.seen);
                reasons.push(format!("{}: {}", targets.name(aim.at), fault.detail()));
            }
        }
    }
    Err(Fault::link(reasons.join("; ")))
}

/// Of several servers only one that takes writes will do: the others may be standbys, or have been set aside.
pub async fn connect_to<D: Dialect>(options: &ConnectOptions<D>, several: bool) -> Result<Connection<D>, Fault> {
    let opening = async {
        let mut connection = Connection::<D>::connect_with(options).await.map_err(Fault::no_connection)?;
        if several && !D::takes_writes(&mut connection).await? {
            // Nothing was done on it; a failed goodbye changes nothing.
            let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
            return Err(Fault::link("the server is a standby or read-only"));
        }
        Ok(connection)
    };
    let deadline = if several { CONNECT_DEADLINE } else { CONNECT_DEADLINE.max(D::DEADLINE) };
    match timeout(deadline, opening).await {
        Ok(connected) => connected,
        Err(_) => Err(Fault::link("no connection in time")),
    }
}

/// The server in use may be gone: looks in the background whether it answers, and for another one if not. Of several calls at
/// once one does so.
pub fn search<D: Dialect>(targets: &Arc<Targets<ConnectOptions<D>>>) {
    if !targets.several() {
        return;
    }
    let weak = Arc::downgrade(targets);
    lifecycle::spawn("store.search", async move {
        let deadline = Instant::now() + SEARCH;
        let mut backoff = Backoff::default();
        while Instant::now() < deadline {
            // A store that is gone needs no server.
            let Some(targets) = weak.upgrade() else { return };
            let Some(searching) = targets.search() else { return };
            if let Ok((_, connection)) = connect::<D>(&targets).await {
                let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
                return;
            }
            drop(targets);
            sleep(backoff.pause()).await;
            drop(searching);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second() {
        let mut backoff = Backoff::default();
        assert!(!backoff.has_failed());
        let pauses: Vec<u128> = (0..40).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses[..6], [50, 100, 200, 400, 800, 1000]);
        assert_eq!(pauses[39], 1000);
    }
}
