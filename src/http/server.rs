//! The accept loop: connections with their bounds, and their end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lifecycle;

/// A connection's bounds.
#[derive(Debug, Clone)]
pub struct ServerRules {
    /// Open at once; more wait in the listener's backlog.
    pub connections: usize,
    /// How long a request's head may take to come, which is also how long a connection may be idle.
    pub header_timeout: Duration,
}

impl Default for ServerRules {
    fn default() -> Self {
        // Longer than common clients keep an idle connection, so that it is they who close it.
        Self { connections: 10_000, header_timeout: Duration::from_secs(100) }
    }
}

/// Data that a peer does not acknowledge for so long ends its connection: a dead client ends its stream.
#[cfg(target_os = "linux")]
const USER_TIMEOUT_MS: u32 = 20_000;
/// After a failed accept (no file descriptors left, as a rule).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is cancelled; then accepts nothing more, lets running requests end for at most `grace`, and
/// closes what is left.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    rules: ServerRules,
    shutdown: CancellationToken,
    grace: Duration,
) {
    let places = Arc::new(Semaphore::new(rules.connections));
    let connections = TaskTracker::new();
    let close = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, shutdown, close) = (router.clone(), shutdown.clone(), close.clone());
        let header_timeout = rules.header_timeout;
        lifecycle::spawn(
            "connection",
            connections.track_future(async move {
                connection(stream, router, header_timeout, &shutdown, &close).await;
                drop(place);
            }),
        );
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(grace, connections.wait()).await.is_err() {
        close.cancel();
        connections.wait().await;
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, Option<tokio::sync::OwnedSemaphorePermit>)> {
    // The semaphore is never closed.
    let place = Arc::clone(places).acquire_owned().await.ok();
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection(
    stream: TcpStream,
    router: Router,
    header_timeout: Duration,
    shutdown: &CancellationToken,
    close: &CancellationToken,
) {
    prepare(&stream);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = close.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "connection ended early");
    }
}

/// Answers that leave in two writes must not wait for an acknowledgement; dead peers must be noticed. A socket that
/// refuses an option is served without it.
fn prepare(stream: &TcpStream) {
    let prepared = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let prepared = prepared.and_then(|()| Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?));
    if let Err(error) = prepared {
        tracing::debug!(%error, "cannot set a socket option");
    }
}
