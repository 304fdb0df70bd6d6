//! A proxy before PostgreSQL that breaks links on command.
//!
//! It knows as much of the protocol as it takes to cut a link at a chosen moment: which statement a `ReadyForQuery`
//! answers, and whether the transaction is over by then. TLS is declined.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskhold::lifecycle::spawn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Result};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Passes everything until told otherwise. Ends with its owner.
pub struct PgProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// When a link is cut, seen from the statement that was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The server never hears of the statement.
    Before,
    /// The server has committed what the statement did; the client never hears of it.
    AfterCommit,
    /// The client hears of it, and of nothing after it on this link, which is not closed.
    SilentAfter,
    /// The link stays, and the server refuses a statement that is put behind this one into the same message.
    Refused,
}

struct Shared {
    server: SocketAddr,
    arms: Mutex<Vec<Arm>>,
    refusing: AtomicBool,
    full: AtomicBool,
    deaf: AtomicBool,
    accepted: AtomicUsize,
    listening: AtomicUsize,
    /// Milliseconds that each request is held.
    delay: AtomicU64,
    /// Cancelled, and replaced, to reset or to blackhole all links there are.
    links: Mutex<Links>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Links {
    reset: CancellationToken,
    blackhole: CancellationToken,
    /// Of those alone that have listened.
    deaf: CancellationToken,
}

/// What takes the ground from under one link without closing it.
struct Silence {
    all: CancellationToken,
    listening: CancellationToken,
    has_listened: AtomicBool,
    /// This link alone.
    alone: AtomicBool,
}

impl Silence {
    fn has_come(&self) -> bool {
        self.all.is_cancelled()
            || self.alone.load(Ordering::SeqCst)
            || (self.has_listened.load(Ordering::SeqCst) && self.listening.is_cancelled())
    }
}

struct Arm {
    marker: &'static str,
    moment: Moment,
    fired: oneshot::Sender<()>,
}

impl PgProxy {
    /// Listens on a free port of this machine.
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server,
            arms: Mutex::default(),
            refusing: AtomicBool::new(false),
            full: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            listening: AtomicUsize::new(0),
            delay: AtomicU64::new(0),
            links: Mutex::default(),
            stop: CancellationToken::new(),
        });
        spawn("proxy", Arc::clone(&shared).accept(listener));
        Self { address, shared }
    }

    /// The same database by way of this proxy.
    pub async fn before_url(url: &str) -> (Self, String) {
        let mut url = reqwest::Url::parse(url).unwrap();
        let server = (url.host_str().unwrap().to_owned(), url.port().unwrap_or(5432));
        let server = tokio::net::lookup_host(server).await.unwrap().next().unwrap();
        let proxy = Self::before(server).await;
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(proxy.address.port())).unwrap();
        (proxy, url.into())
    }

    /// Cuts the next link on which a statement that contains `marker` is run, once. The receiver hears of it.
    pub fn cut(&self, marker: &'static str, moment: Moment) -> oneshot::Receiver<()> {
        let (fired, heard) = oneshot::channel();
        lock(&self.shared.arms).push(Arm { marker, moment, fired });
        heard
    }

    /// Closes all links that there are.
    pub fn reset_links(&self) {
        std::mem::take(&mut lock(&self.shared.links).reset).cancel();
    }

    /// From now on nothing passes on the links that there are, and none of them is closed. New ones work.
    pub fn blackhole_links(&self) {
        std::mem::take(&mut lock(&self.shared.links).blackhole).cancel();
    }

    /// The same for those links alone on which `LISTEN` was run.
    pub fn blackhole_listeners(&self) {
        std::mem::take(&mut lock(&self.shared.links).deaf).cancel();
    }

    /// From now on each request is held for so long.
    pub fn delay(&self, delay: Duration) {
        self.shared.delay.store(u64::try_from(delay.as_millis()).expect("a short time"), Ordering::SeqCst);
    }

    /// How many links have run `LISTEN` so far.
    pub fn listening(&self) -> usize {
        self.shared.listening.load(Ordering::SeqCst)
    }

    /// Whether new links are closed at once.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refusing.store(refuse, Ordering::SeqCst);
    }

    /// Whether new links are told that the server has no place for them.
    pub fn fill(&self, full: bool) {
        self.shared.full.store(full, Ordering::SeqCst);
    }

    /// Whether notifications are lost on all links, and nothing else.
    pub fn deafen(&self, deaf: bool) {
        self.shared.deaf.store(deaf, Ordering::SeqCst);
    }

    /// How many links were opened so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for PgProxy {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            let Ok((client, _)) = accepted else { continue };
            self.accepted.fetch_add(1, Ordering::SeqCst);
            if self.refusing.load(Ordering::SeqCst) {
                continue;
            }
            spawn("proxy link", Arc::clone(&self).link(client));
        }
    }

    /// Serves one link; its end closes both sockets.
    async fn link(self: Arc<Self>, client: TcpStream) {
        let (reset, silence) = {
            let links = lock(&self.links);
            let (all, listening) = (links.blackhole.clone(), links.deaf.clone());
            (
                links.reset.clone(),
                Silence { all, listening, has_listened: AtomicBool::default(), alone: AtomicBool::default() },
            )
        };
        tokio::select! {
            _ended = self.pass(client, &silence) => {}
            () = reset.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn pass(&self, mut client: TcpStream, silence: &Silence) -> Result<()> {
        client.set_nodelay(true)?;
        if self.full.load(Ordering::SeqCst) {
            startup(&mut client).await?;
            client.write_all(&no_place()).await?;
            return client.shutdown().await;
        }
        let mut server = TcpStream::connect(self.server).await?;
        server.set_nodelay(true)?;
        server.write_all(&startup(&mut client).await?).await?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        // The answer to the startup message ends with a `ReadyForQuery` as well.
        let seen = Mutex::new(Seen { rounds: VecDeque::from([Round::default()]), ..Seen::default() });
        tokio::select! {
            ended = self.requests(from_client, to_server, &seen, silence) => ended,
            ended = self.answers(from_server, to_client, &seen, silence) => ended,
        }
    }

    async fn requests(
        &self,
        mut client: OwnedReadHalf,
        mut server: OwnedWriteHalf,
        seen: &Mutex<Seen>,
        silence: &Silence,
    ) -> Result<()> {
        loop {
            let mut message = Message::read(&mut client).await?;
            if silence.has_come() {
                continue;
            }
            let run = lock(seen).request(&message);
            if let Some(statement) = run {
                if statement.starts_with("LISTEN ") && !silence.has_listened.swap(true, Ordering::SeqCst) {
                    self.listening.fetch_add(1, Ordering::SeqCst);
                }
                if let Some(arm) = self.take_arm(&statement, Moment::Before) {
                    let _nobody_waits = arm.fired.send(());
                    return Ok(());
                }
                if message.kind == b'Q'
                    && let Some(arm) = self.take_arm(&statement, Moment::Refused)
                {
                    message = Message::query(&format!("{statement}; SELECT 1 / 0"));
                    let _nobody_waits = arm.fired.send(());
                }
                for moment in [Moment::AfterCommit, Moment::SilentAfter] {
                    if let Some(arm) = self.take_arm(&statement, moment) {
                        lock(seen).pending.arm = Some(arm);
                    }
                }
            }
            if message.ends_a_round() {
                lock(seen).end_round();
            }
            match self.delay.load(Ordering::SeqCst) {
                0 => {}
                delay => tokio::time::sleep(Duration::from_millis(delay)).await,
            }
            server.write_all(&message.bytes).await?;
        }
    }

    async fn answers(
        &self,
        mut server: OwnedReadHalf,
        mut client: OwnedWriteHalf,
        seen: &Mutex<Seen>,
        silence: &Silence,
    ) -> Result<()> {
        let mut held = Vec::new();
        let mut armed: Option<Arm> = None;
        loop {
            let message = Message::read(&mut server).await?;
            let is_notification = message.kind == b'A';
            if silence.has_come() || is_notification && self.deaf.load(Ordering::SeqCst) {
                continue;
            }
            if is_notification && armed.is_none() {
                // Comes between the rounds, or before the next answer: nothing is held for it.
                held.extend(&message.bytes);
                client.write_all(&held).await?;
                held.clear();
                continue;
            }
            if armed.is_none() {
                armed = lock(seen).rounds.front_mut().and_then(|round| round.arm.take());
            }
            held.extend(&message.bytes);
            if message.kind == b'Z' {
                lock(seen).rounds.pop_front();
                match message.body() {
                    b"I" => {
                        if let Some(arm) = armed.take() {
                            let falls_silent = arm.moment == Moment::SilentAfter;
                            if falls_silent {
                                client.write_all(&held).await?;
                                silence.alone.store(true, Ordering::SeqCst);
                            }
                            let _nobody_waits = arm.fired.send(());
                            if falls_silent {
                                continue;
                            }
                            return Ok(());
                        }
                    }
                    b"T" => {} // the commit is still to come
                    _ => {
                        // Failed: wait for the next run of the statement.
                        if let Some(arm) = armed.take() {
                            lock(&self.arms).push(arm);
                        }
                    }
                }
            } else if armed.is_some() {
                continue;
            }
            client.write_all(&held).await?;
            held.clear();
        }
    }

    fn take_arm(&self, statement: &str, moment: Moment) -> Option<Arm> {
        let mut arms = lock(&self.arms);
        let at = arms.iter().position(|arm| arm.moment == moment && statement.contains(arm.marker))?;
        Some(arms.remove(at))
    }
}

/// What a link's client has asked so far.
#[derive(Default)]
struct Seen {
    /// Text by the name of the prepared statement.
    statements: HashMap<Vec<u8>, String>,
    /// Text by the name of the portal.
    portals: HashMap<Vec<u8>, String>,
    /// The requests since the last `Sync`.
    pending: Round,
    /// Each is answered by one `ReadyForQuery`.
    rounds: VecDeque<Round>,
}

#[derive(Default)]
struct Round {
    arm: Option<Arm>,
}

impl Seen {
    /// Notes a request; answers the text of the statement that it runs.
    fn request(&mut self, message: &Message) -> Option<String> {
        let mut body = message.body();
        match message.kind {
            b'P' => {
                let (name, text) = (text(&mut body), text(&mut body));
                self.statements.insert(name, String::from_utf8_lossy(&text).into_owned());
                None
            }
            b'B' => {
                let (portal, statement) = (text(&mut body), text(&mut body));
                let sql = self.statements.get(&statement).cloned().unwrap_or_default();
                self.portals.insert(portal, sql);
                None
            }
            b'E' => self.portals.get(&text(&mut body)).cloned(),
            b'Q' => Some(String::from_utf8_lossy(&text(&mut body)).into_owned()),
            _ => None,
        }
    }

    fn end_round(&mut self) {
        let round = std::mem::take(&mut self.pending);
        self.rounds.push_back(round);
    }
}

/// One message with its type and length.
struct Message {
    kind: u8,
    bytes: Vec<u8>,
}

impl Message {
    async fn read(from: &mut OwnedReadHalf) -> Result<Self> {
        let kind = from.read_u8().await?;
        let length = from.read_u32().await?;
        let mut bytes = Vec::with_capacity(length as usize + 1);
        bytes.push(kind);
        bytes.extend(length.to_be_bytes());
        bytes.resize(length as usize + 1, 0);
        from.read_exact(&mut bytes[5..]).await?;
        Ok(Self { kind, bytes })
    }

    fn query(sql: &str) -> Self {
        let length = u32::try_from(sql.len() + 5).expect("a short statement").to_be_bytes();
        Self { kind: b'Q', bytes: [b"Q", &length[..], sql.as_bytes(), b"\0"].concat() }
    }

    fn body(&self) -> &[u8] {
        &self.bytes[5..]
    }

    const fn ends_a_round(&self) -> bool {
        matches!(self.kind, b'S' | b'Q')
    }
}

/// Reads the message that opens a link, declining encryption on the way.
async fn startup(client: &mut TcpStream) -> Result<Vec<u8>> {
    const ENCRYPTION_REQUESTS: [u32; 2] = [80_877_103, 80_877_104];
    loop {
        let length = client.read_u32().await?;
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.resize(length as usize, 0);
        client.read_exact(&mut bytes[4..]).await?;
        let code = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if !ENCRYPTION_REQUESTS.contains(&code) {
            return Ok(bytes);
        }
        client.write_all(b"N").await?;
    }
}

/// What a server says whose `max_connections` are all taken.
fn no_place() -> Vec<u8> {
    let fields = b"SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0";
    let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
    [&b"E"[..], &length, fields].concat()
}

/// Takes a text that ends with a zero byte.
fn text(body: &mut &[u8]) -> Vec<u8> {
    let end = body.iter().position(|&byte| byte == 0).unwrap_or(body.len());
    let text = body[..end].to_vec();
    *body = body.get(end + 1..).unwrap_or_default();
    text
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
