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

use super::socket::Socket;
use crate::lifecycle;

/// A connection's bounds.
#[derive(Debug, Clone)]
pub struct ServerRules {
    /// Open at once; more wait in the listener's backlog.
    pub connections: usize,
    /// How long a request's head may take to come, which is also how long a connection may be idle.
    pub header_timeout: Duration,
    /// A stopping server does not wait for a peer that takes nothing of its answer for so long.
    pub stall: Duration,
}

impl Default for ServerRules {
    fn default() -> Self {
        // Longer than common clients keep an idle connection, so that it is they who close it.
        Self { connections: 10_000, header_timeout: Duration::from_secs(100), stall: Duration::from_secs(3) }
    }
}

/// Data that a peer does not acknowledge for so long ends its connection: a dead client ends its stream.
#[cfg(target_os = "linux")]
const USER_TIMEOUT_MS: u32 = 20_000;
/// What the system keeps of an answer beside what is under way: a slow peer is seen to take it, and what it has not taken is
/// known here.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 128 * 1024;
/// A peer that is silent so long is asked whether it is there: one that waits for JSON gets no keep-alive comments.
#[cfg(target_os = "linux")]
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
/// After a failed accept (no file descriptors left, as a rule).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is cancelled; then accepts nothing more, lets running requests end for at most `grace`, and
/// closes what is left. A client that takes nothing of its answer is not waited for (see [`ServerRules::stall`]).
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
        let rules = rules.clone();
        lifecycle::spawn(
            "connection",
            connections.track_future(async move {
                connection(stream, router, &rules, &shutdown, &close).await;
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
    rules: &ServerRules,
    shutdown: &CancellationToken,
    close: &CancellationToken,
) {
    prepare(&stream);
    let (socket, mut taking) = Socket::new(stream);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(rules.header_timeout)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = taking.stalls(rules.stall) => return,
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
    let prepared = prepared.and_then(|()| {
        use rustix::net::sockopt;
        sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
        socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
        sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_IDLE)?;
        Ok(sockopt::set_socket_keepalive(stream, true)?)
    });
    if let Err(error) = prepared {
        tracing::debug!(%error, "cannot set a socket option");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;
    use tokio::task::JoinHandle;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);
    const REQUEST: &[u8] = b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n";

    /// A server whose requests are answered when `release` says so.
    struct Running {
        address: std::net::SocketAddr,
        entered: Arc<Notify>,
        release: Arc<Notify>,
        shutdown: CancellationToken,
        ended: JoinHandle<()>,
    }

    async fn start(rules: ServerRules, grace: Duration) -> Running {
        let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let router = Router::new().route(
            "/wait",
            get({
                let (entered, release) = (Arc::clone(&entered), Arc::clone(&release));
                async move || {
                    entered.notify_one();
                    release.notified().await;
                    "done"
                }
            }),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let ended = lifecycle::spawn("server", serve(listener, router, rules, shutdown.clone(), grace));
        Running { address, entered, release, shutdown, ended }
    }

    async fn connect(running: &Running) -> TcpStream {
        TcpStream::connect(running.address).await.unwrap()
    }

    /// Reads up to the end of the answer's body, or to the end of the connection.
    async fn read_answer(stream: &mut TcpStream) -> String {
        let mut read = Vec::new();
        while !read.ends_with(b"done") {
            let mut chunk = [0; 512];
            match tokio::time::timeout(PATIENCE, stream.read(&mut chunk)).await.unwrap() {
                Ok(0) | Err(_) => break,
                Ok(count) => read.extend_from_slice(&chunk[..count]),
            }
        }
        String::from_utf8(read).unwrap()
    }

    // req: HTTP-12
    #[tokio::test]
    async fn a_head_that_does_not_come_ends_the_connection() {
        let rules = ServerRules { header_timeout: Duration::from_millis(50), ..ServerRules::default() };
        let running = start(rules, PATIENCE).await;
        for sent in [&b""[..], b"GET /wait HT"] {
            let mut stream = connect(&running).await;
            stream.write_all(sent).await.unwrap();
            let answer = read_answer(&mut stream).await;
            assert!(!answer.contains("200"), "{answer}");
        }
    }

    // req: HTTP-12
    #[tokio::test]
    async fn a_head_that_comes_in_drops_ends_the_connection() {
        let rules = ServerRules { header_timeout: Duration::from_millis(100), ..ServerRules::default() };
        let running = start(rules, PATIENCE).await;
        let mut stream = connect(&running).await;
        let (mut reader, mut writer) = stream.split();
        let drops = async {
            writer.write_all(b"GET /wait HTTP/1.1\r\nx: ").await.unwrap();
            // Each in time, but never a whole head.
            while writer.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let closed = async {
            let mut answer = Vec::new();
            // A reset is an end as well.
            let _ = reader.read_to_end(&mut answer).await;
            answer
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout(PATIENCE, closed) => answer.expect("it is closed"),
            () = drops => Vec::new(),
        };
        assert!(!String::from_utf8_lossy(&answer).contains("200"));
    }

    // req: HTTP-12
    #[tokio::test]
    async fn a_connection_that_is_idle_after_an_answer_is_closed() {
        let rules = ServerRules { header_timeout: Duration::from_secs(1), ..ServerRules::default() };
        let running = start(rules, PATIENCE).await;
        let mut stream = connect(&running).await;
        running.release.notify_one();
        stream.write_all(REQUEST).await.unwrap();
        assert!(read_answer(&mut stream).await.ends_with("done"));
        assert_eq!(read_answer(&mut stream).await, "", "closed without a further answer");
    }

    // req: HTTP-12
    #[tokio::test]
    async fn connections_over_the_bound_wait_for_a_place() {
        let running = start(ServerRules { connections: 1, ..ServerRules::default() }, PATIENCE).await;
        let mut first = connect(&running).await;
        first.write_all(REQUEST).await.unwrap();
        running.entered.notified().await;
        let mut second = connect(&running).await;
        second.write_all(REQUEST).await.unwrap();
        running.release.notify_one();
        assert!(read_answer(&mut first).await.ends_with("done"));
        // The first is idle but open: the second is not served yet, so that nothing else can take this release.
        running.release.notify_one();
        first.write_all(REQUEST).await.unwrap();
        assert!(read_answer(&mut first).await.ends_with("done"));
        drop(first);
        running.release.notify_one();
        assert!(read_answer(&mut second).await.ends_with("done"));
    }

    // req: KEEP-10
    #[tokio::test]
    async fn running_requests_end_before_the_server_does() {
        let running = start(ServerRules::default(), PATIENCE).await;
        let mut busy = connect(&running).await;
        busy.write_all(REQUEST).await.unwrap();
        running.entered.notified().await;
        let mut idle = connect(&running).await;
        running.shutdown.cancel();
        assert_eq!(read_answer(&mut idle).await, "", "an idle connection is closed at once");
        assert!(!running.ended.is_finished());
        running.release.notify_one();
        assert!(read_answer(&mut busy).await.ends_with("done"));
        tokio::time::timeout(PATIENCE, running.ended).await.unwrap().unwrap();
        assert!(TcpStream::connect(running.address).await.is_err(), "nothing more is accepted");
    }

    // req: KEEP-10
    #[tokio::test]
    async fn what_does_not_end_in_time_is_closed() {
        let running = start(ServerRules::default(), Duration::from_millis(20)).await;
        let mut busy = connect(&running).await;
        busy.write_all(REQUEST).await.unwrap();
        running.entered.notified().await;
        running.shutdown.cancel();
        tokio::time::timeout(PATIENCE, running.ended).await.unwrap().unwrap();
        assert_eq!(read_answer(&mut busy).await, "");
    }

    // req: KEEP-10, NOTE-10
    #[tokio::test]
    async fn an_answer_that_nobody_reads_does_not_hold_the_end_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, rules) = (CancellationToken::new(), ServerRules::default());
        let rules = ServerRules { stall: Duration::from_millis(50), ..rules };
        // More than the system keeps for a connection.
        let router = Router::new().route("/wait", get(async || vec![b'x'; 64 << 20]));
        let ended = lifecycle::spawn("server", serve(listener, router, rules, shutdown.clone(), PATIENCE * 10));
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(REQUEST).await.unwrap();
        silent.read_exact(&mut [0; 8]).await.unwrap();
        assert!(!ended.is_finished());
        shutdown.cancel();
        tokio::time::timeout(PATIENCE, ended).await.expect("long before the grace is over").unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn sockets_do_not_delay_and_notice_dead_peers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&peer);
        assert!(peer.nodelay().unwrap());
        assert_eq!(rustix::net::sockopt::tcp_user_timeout(&peer).unwrap(), USER_TIMEOUT_MS);
        assert!(rustix::net::sockopt::socket_keepalive(&peer).unwrap());
        assert_eq!(rustix::net::sockopt::tcp_keepidle(&peer).unwrap(), KEEP_ALIVE_IDLE);
    }
}
