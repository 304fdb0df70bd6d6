//! The demo server by Streamable HTTP, both eras at one URL; here the legacy one: sessions, streams of answers, a stream of its
//! own, their end.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming as Body};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::TaskOptions;
use super::legacy::Session;
use super::modern;
use super::toolbox::Toolbox;
use super::wire::Incoming;
use crate::domain::ids::random_bytes;
use crate::lifecycle::spawn;

mod modern_era;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const MOST_BODY: usize = 64 << 20;
const MOST_SESSIONS: usize = 1000;
const EVENTS: &str = "text/event-stream";

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

struct Server {
    modern: Arc<modern::Server>,
    toolbox: Arc<dyn Toolbox>,
    tasks: Option<TaskOptions>,
    sessions: Mutex<HashMap<String, Client>>,
}

/// One client's session, and the end of the stream that tells of its own.
struct Client {
    session: Arc<Session>,
    /// Holds the GET stream open.
    listening: Option<mpsc::Sender<String>>,
}

/// Serves until standard input is closed, if that is asked for, else for ever. Prints its URL first.
pub(super) async fn serve(
    toolbox: Arc<dyn Toolbox>,
    tasks: Option<TaskOptions>,
    address: SocketAddr,
    stop_with_input: bool,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    print(&json!({ "url": url }).to_string())?;
    let modern = modern::Server::new(Arc::clone(&toolbox), tasks.clone());
    let server = Arc::new(Server { modern, toolbox, tasks, sessions: Mutex::default() });
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await?;
            spawn("demo server connection", connection(stream, Arc::clone(&server)));
        }
    };
    tokio::select! {
        error = accept => error,
        () = input_closed(), if stop_with_input => Ok(()),
    }
}

fn print(line: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

async fn input_closed() {
    let mut bytes = [0; 256];
    let mut input = tokio::io::stdin();
    while input.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
}

async fn connection(stream: TcpStream, server: Arc<Server>) {
    // Answers leave in several writes.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    // A client that goes away is no concern of ours.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Server {
    async fn answer(&self, request: Request<Body>) -> Answer {
        // A page in somebody's browser must not reach a server on their machine.
        if request.headers().contains_key(ORIGIN) && !is_own_page(request.headers()) {
            return plain(StatusCode::FORBIDDEN, "requests of web pages are not served");
        }
        match *request.method() {
            Method::GET | Method::DELETE if modern_era::is_named(request.headers()) => {
                plain(StatusCode::METHOD_NOT_ALLOWED, "this revision knows POST alone")
            }
            Method::POST => self.post(request).await,
            Method::GET => self.listen(request.headers()),
            Method::DELETE => match self.take_out(request.headers()) {
                Some(client) => {
                    client.session.close();
                    plain(StatusCode::NO_CONTENT, "")
                }
                None => plain(StatusCode::NOT_FOUND, "no such session"),
            },
            _ => plain(StatusCode::METHOD_NOT_ALLOWED, "GET, POST and DELETE are served"),
        }
    }

    async fn post(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, MOST_BODY).collect().await else {
            return plain(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large or broke off");
        };
        // Line breaks can only stand between tokens; what is carried on goes out as one line.
        let body: Vec<u8> =
            body.to_bytes().iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect();
        let Some(incoming) = Incoming::read(&body) else {
            return plain(StatusCode::BAD_REQUEST, "the body is no JSON-RPC message");
        };
        if modern::speaks(&incoming, modern_era::version(&head.headers)) {
            return modern_era::post(&self.modern, &incoming, &head.headers).await;
        }
        let method = incoming.method.as_deref();
        let (session, new) = if method == Some("initialize") {
            let Some((id, session)) = self.open() else {
                return plain(StatusCode::SERVICE_UNAVAILABLE, "there are too many sessions");
            };
            (session, Some(id))
        } else {
            match self.session(&head.headers) {
                Ok(session) => (session, None),
                Err(refusal) => return *refusal,
            }
        };
        let (out, mut said) = mpsc::channel(256);
        session.take(&incoming, &out).await;
        drop(out);
        if incoming.id().is_none() || method.is_none() {
            return plain(StatusCode::ACCEPTED, "");
        }
        if matches!(method, Some("tools/call" | "tasks/result")) {
            return events(said);
        }
        let text = said.recv().await.unwrap_or_default();
        let mut answer = whole(StatusCode::OK, "application/json", text);
        if let Some(id) = new.and_then(|id| HeaderValue::from_str(&id).ok()) {
            answer.headers_mut().insert(SESSION_ID, id);
        }
        answer
    }

    fn listen(&self, headers: &HeaderMap) -> Answer {
        let id = session_id(headers).unwrap_or_default();
        let (listening, said) = mpsc::channel(256);
        match self.lock().get_mut(&id) {
            Some(client) => {
                client.session.set_own(listening.clone());
                client.listening = Some(listening);
            }
            None => return plain(StatusCode::NOT_FOUND, "no such session"),
        }
        events(said)
    }

    fn open(&self) -> Option<(String, Arc<Session>)> {
        let mut sessions = self.lock();
        if sessions.len() >= MOST_SESSIONS {
            return None;
        }
        let id = data_encoding::HEXLOWER.encode(&random_bytes::<16>());
        let session = Session::new(Arc::clone(&self.toolbox), self.tasks.clone());
        sessions.insert(id.clone(), Client { session: Arc::clone(&session), listening: None });
        Some((id, session))
    }

    fn session(&self, headers: &HeaderMap) -> Result<Arc<Session>, Box<Answer>> {
        let Some(id) = session_id(headers) else {
            return Err(Box::new(plain(StatusCode::BAD_REQUEST, "initialize first, and then send Mcp-Session-Id")));
        };
        let session = self.lock().get(&id).map(|client| Arc::clone(&client.session));
        session.ok_or_else(|| Box::new(plain(StatusCode::NOT_FOUND, "no such session")))
    }

    fn take_out(&self, headers: &HeaderMap) -> Option<Client> {
        self.lock().remove(&session_id(headers)?)
    }

    /// A poisoned lock is taken all the same: its data are single inserts and removals, never half done.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Client>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the page was served under this very address, and that is one of this machine only.
fn is_own_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let (Some(origin), Some(host)) = (text(ORIGIN), text(HOST)) else { return false };
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    origin.strip_prefix("http://") == Some(host) && matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    headers.get(SESSION_ID)?.to_str().ok().map(str::to_owned)
}

/// A stream of events that ends with its channel.
fn events(said: mpsc::Receiver<String>) -> Answer {
    events_after(None, said)
}

/// The same with one message before them.
fn events_after(first: Option<String>, said: mpsc::Receiver<String>) -> Answer {
    let first = first.map_or_else(|| ": here it comes\n\n".to_owned(), |line| event(&line));
    let head = futures_util::stream::once(async { first });
    let lines = futures_util::stream::unfold(said, async |mut said: mpsc::Receiver<String>| {
        let line = said.recv().await?;
        Some((event(&line), said))
    });
    let frames = head.chain(lines).map(|text| Ok(Frame::data(Bytes::from(text))));
    let mut answer = response(StatusCode::OK, EVENTS, StreamBody::new(frames).boxed_unsync());
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

fn event(line: &str) -> String {
    format!("event: message\ndata: {line}\n\n")
}

fn plain(status: StatusCode, text: &'static str) -> Answer {
    whole(status, "text/plain", text.to_owned())
}

fn whole(status: StatusCode, kind: &'static str, text: String) -> Answer {
    response(status, kind, Full::new(Bytes::from(text)).boxed_unsync())
}

fn response(status: StatusCode, kind: &'static str, body: UnsyncBoxBody<Bytes, Infallible>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
