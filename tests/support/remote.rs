//! An MCP server by HTTP that behaves, request by request, as a test wants. It shares no code with the product.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A running server; it stops when this is dropped.
pub struct Remote {
    pub url: String,
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: CancellationToken,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    /// The JSON-RPC message of a POST.
    pub body: Value,
    /// How many came before it.
    pub number: usize,
}

/// What a test has to say to a request; `None` leaves it to a polite server with the one tool `t`.
pub type Scenario = Arc<dyn Fn(Seen) -> BoxFuture<'static, Option<Response>> + Send + Sync>;

/// A scenario of a closure.
pub fn scenario<F>(answer: impl Fn(Seen) -> F + Send + Sync + 'static) -> Scenario
where
    F: Future<Output = Option<Response>> + Send + 'static,
{
    Arc::new(move |seen| Box::pin(answer(seen)))
}

impl Remote {
    pub async fn start(scenario: Scenario) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), scenario).await
    }

    pub async fn start_at(address: SocketAddr, scenario: Scenario) -> Self {
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (sessions, came, all) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicUsize::new(0)), Arc::clone(&seen));
        let router = axum::Router::new().fallback(async move |request: Request| {
            let (head, body) = request.into_parts();
            let text = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
            let seen = Seen {
                method: head.method,
                path: head.uri.path().to_owned(),
                headers: head.headers,
                body: serde_json::from_slice(&text).unwrap_or_default(),
                number: came.fetch_add(1, Ordering::SeqCst),
            };
            // A test that sees the request may change what the scenario looks at: what it says at once is decided before.
            let mut answer = scenario(seen.clone());
            let at_once = answer.as_mut().now_or_never();
            all.lock().unwrap().push(seen.clone());
            let answer = match at_once {
                Some(answer) => answer,
                None => answer.await,
            };
            answer.unwrap_or_else(|| polite(&seen, &sessions))
        });
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        taskhold::lifecycle::spawn("remote", async move {
            tokio::select! {
                ended = axum::serve(listener, router) => ended.unwrap(),
                () = stopped.cancelled() => {}
            }
        });
        Self { url: format!("http://{address}/mcp"), address, seen, stop }
    }

    /// A polite server that does not answer `initialize` while `hangs`.
    pub async fn hanging(hangs: &Arc<AtomicBool>) -> Self {
        let hangs = Arc::clone(hangs);
        let scenario = scenario(move |seen| {
            let hangs = Arc::clone(&hangs);
            async move {
                if seen.rpc() == "initialize" && hangs.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                None
            }
        });
        Self::start(scenario).await
    }

    /// What came so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// What came so far with this JSON-RPC method.
    pub fn messages(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.rpc() == method).collect()
    }

    /// What came so far with this HTTP method.
    pub fn requests(&self, method: &Method) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.method == *method).collect()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Seen {
    /// The message's method; empty for a response and where there is no message.
    pub fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn session(&self) -> Option<&str> {
        self.header("mcp-session-id")
    }

    /// The arguments of a call.
    pub fn arguments(&self) -> &Value {
        &self.body["params"]["arguments"]
    }

    pub fn is_call(&self) -> bool {
        self.rpc() == "tools/call"
    }

    /// The text of a JSON-RPC response to this request.
    pub fn response(&self, result: &Value) -> String {
        json!({ "jsonrpc": "2.0", "id": self.body["id"], "result": result }).to_string()
    }

    /// The text of a result with one text block.
    pub fn text(&self, text: &str) -> String {
        self.response(&json!({ "content": [{ "type": "text", "text": text }] }))
    }

    /// Answers `initialize`, with a session of this id.
    pub fn initialized(&self, session: &str) -> Response {
        let version = self.body["params"]["protocolVersion"].clone();
        self.initialized_as(&version, Some(session))
    }

    pub fn initialized_as(&self, version: &Value, session: Option<&str>) -> Response {
        let result = json!({
            "protocolVersion": version,
            "capabilities": { "tools": { "listChanged": true } },
            "serverInfo": { "name": "remote", "version": "1" },
        });
        let mut response = whole(&self.response(&result));
        if let Some(session) = session {
            response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
        }
        response
    }

    /// Answers `tools/list` with tools of these names.
    pub fn tools(&self, names: &[&str]) -> Response {
        let tool = |name: &&str| json!({ "name": name, "inputSchema": { "type": "object" } });
        whole(&self.response(&json!({ "tools": names.iter().map(tool).collect::<Vec<_>>() })))
    }
}

/// The sessions that a server knows, until it forgets them.
#[derive(Clone, Default)]
pub struct Sessions {
    known: Arc<Mutex<HashSet<String>>>,
}

impl Sessions {
    /// Opens a session for `initialize`, and answers what names none that is known with this status; nothing to the rest.
    pub fn answer(&self, seen: &Seen, refusal: u16) -> Option<Response> {
        let mut known = self.known.lock().unwrap();
        if seen.rpc() == "initialize" {
            let id = format!("session-{}", seen.number);
            known.insert(id.clone());
            return Some(seen.initialized(&id));
        }
        let is_known = seen.session().is_some_and(|id| known.contains(id));
        (!is_known).then(|| status(refusal, "Bad Request: no valid session ID provided"))
    }

    pub fn forget(&self) {
        self.known.lock().unwrap().clear();
    }
}

/// A JSON answer.
pub fn whole(text: &str) -> Response {
    ([("content-type", "application/json")], text.to_owned()).into_response()
}

pub fn status(code: u16, text: &str) -> Response {
    (StatusCode::from_u16(code).unwrap(), text.to_owned()).into_response()
}

/// A stream of events that is whole.
pub fn events(text: impl Into<String>) -> Response {
    ([("content-type", "text/event-stream")], text.into()).into_response()
}

/// One event.
pub fn event(data: &str) -> String {
    format!("event: message\ndata: {data}\n\n")
}

/// A stream that says what is sent, until the sender is dropped; an error breaks its connection off.
pub fn stream() -> (mpsc::UnboundedSender<io::Result<String>>, Response) {
    let (say, said) = mpsc::unbounded_channel();
    let pieces = futures_util::stream::unfold(said, async |mut said| {
        let piece: io::Result<String> = mpsc::UnboundedReceiver::recv(&mut said).await?;
        if piece.is_err() {
            // The server throws away what it has not written yet, the head of the answer too.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some((piece.map(Bytes::from), said))
    });
    (say, ([("content-type", "text/event-stream")], Body::from_stream(pieces)).into_response())
}

/// The error that breaks a stream off.
pub fn broken() -> io::Result<String> {
    Err(io::Error::other("broken off"))
}

fn polite(seen: &Seen, sessions: &AtomicU64) -> Response {
    match (&seen.method, seen.rpc()) {
        (&Method::POST, "initialize") => {
            seen.initialized(&format!("session-{}", sessions.fetch_add(1, Ordering::SeqCst)))
        }
        (&Method::POST, "tools/list") => seen.tools(&["t"]),
        (&Method::POST, "tools/call") => whole(&seen.text("fine")),
        (&Method::POST, _) => status(202, ""),
        (&Method::DELETE, _) => status(204, ""),
        _ => status(405, ""),
    }
}
