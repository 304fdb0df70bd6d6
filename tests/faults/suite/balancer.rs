//! A load balancer: each request goes to the next node that is ready.
//!
//! It does what such proxies do: it asks `/readyz` again and again, tries another node when a connection was refused, and
//! when a node breaks off it breaks off as well (502 before the answer's head, an aborted body after it).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use taskhold::lifecycle::spawn;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_millis(200);
/// A node that takes longer to say that it is ready is not.
const READY: Duration = Duration::from_secs(1);

/// Ends with its owner.
pub struct Balancer {
    pub url: String,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

struct Shared {
    nodes: Vec<Behind>,
    next: AtomicUsize,
    retried: AtomicUsize,
    client: reqwest::Client,
}

/// One node.
struct Behind {
    address: String,
    ready: AtomicBool,
}

impl Balancer {
    pub async fn before(addresses: &[String]) -> Self {
        // Each request on a connection of its own: one that was kept could be closed by its node at the same moment.
        let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
        let nodes = addresses.iter().map(|address| Behind { address: address.clone(), ready: AtomicBool::new(true) });
        let shared = Arc::new(Shared {
            nodes: nodes.collect(),
            next: AtomicUsize::new(0),
            retried: AtomicUsize::new(0),
            client,
        });
        let stop = CancellationToken::new();
        for number in 0..addresses.len() {
            spawn("readiness", stop.clone().run_until_cancelled_owned(Arc::clone(&shared).watch(number)));
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let passing = Arc::clone(&shared);
        let router = axum::Router::new().fallback(async move |request: Request| passing.pass(request).await);
        let stopped = stop.clone();
        spawn("balancer", async move {
            tokio::select! {
                ended = axum::serve(listener, router) => ended.unwrap(),
                () = stopped.cancelled() => {}
            }
        });
        Self { url, shared, stop }
    }

    /// How many connections were refused, so that another node was tried.
    pub fn retried(&self) -> usize {
        self.shared.retried.load(Ordering::SeqCst)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shared {
    async fn watch(self: Arc<Self>, number: usize) {
        let node = &self.nodes[number];
        let url = format!("http://{}/readyz", node.address);
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            let ready =
                self.client.get(&url).timeout(READY).send().await.is_ok_and(|answer| answer.status().is_success());
            node.ready.store(ready, Ordering::SeqCst);
        }
    }

    async fn pass(&self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        let turn = self.next.fetch_add(1, Ordering::SeqCst);
        let in_turn = || (0..self.nodes.len()).map(|step| &self.nodes[(turn + step) % self.nodes.len()]);
        let (ready, others): (Vec<_>, Vec<_>) = in_turn().partition(|node| node.ready.load(Ordering::SeqCst));
        for node in ready.into_iter().chain(others) {
            let path = head.uri.path_and_query().map_or("/", axum::http::uri::PathAndQuery::as_str);
            let url = format!("http://{}{path}", node.address);
            let mut request = self.client.request(head.method.clone(), url).body(body.clone());
            for (name, value) in &head.headers {
                if !["host", "content-length", "connection"].contains(&name.as_str()) {
                    request = request.header(name, value);
                }
            }
            match request.send().await {
                Ok(answer) => return passed(answer),
                Err(error) if error.is_connect() => {
                    self.retried.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) => {
                    let why = format!("{} broke off: {}", node.address, super::person::chain(&error));
                    return (StatusCode::BAD_GATEWAY, why).into_response();
                }
            }
        }
        (StatusCode::BAD_GATEWAY, "no node takes a connection").into_response()
    }
}

fn passed(answer: reqwest::Response) -> Response {
    let mut response = Response::builder().status(answer.status());
    for (name, value) in answer.headers() {
        if !["transfer-encoding", "connection"].contains(&name.as_str()) {
            response = response.header(name, value);
        }
    }
    response.body(Body::from_stream(answer.bytes_stream())).unwrap()
}
