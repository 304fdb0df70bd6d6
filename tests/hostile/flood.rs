//! Bytes and broken messages without end, straight into the router: never a panic, a 5xx or a row that nobody asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use serde_json::json;
use tower::ServiceExt;

use super::check;
use crate::http::harness::{Front, Names, Parts, engine_rules, tools, until};
use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase};
use crate::support::script::{Prompt, Tools};

/// On each database: 100,000 in all.
const CASES: u32 = 50_000;

#[derive(Debug, Clone)]
struct Case {
    /// One of [`HEADERS`], most often the good ones.
    headers: usize,
    body: Bytes,
}

#[derive(Debug, Clone)]
enum Bytes {
    Random(Vec<u8>),
    Mutated { template: Index, mutations: Vec<(Index, Mutation)> },
}

#[derive(Debug, Clone, Copy)]
enum Mutation {
    Flip(u8),
    Insert(u8),
    Delete(u8),
    Repeat(u8),
    /// The value behind the next colon becomes a token.
    Replace(u8),
    Truncate,
}

/// What is put where it does not belong.
const TOKENS: [&[u8]; 24] = [
    b"null",
    b"-1",
    b"1e400",
    b"99999999999999999999",
    b"0.5",
    b"true",
    b"[]",
    b"{}",
    b"\"\"",
    b"\"\\ud800\\u0000\"",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":",
    b"\"",
    b"\\",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\n",
    b",\"id\":2",
    b",\"method\":\"tasks/cancel\"",
    b",\"params\":{}",
    b",\"task\":{}",
    b",\"arguments\":{\"bad\":1}",
];

type Head = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Method, path and headers of a request; `{session}` and `{other}` stand for sessions, of the caller and of a stranger.
const HEADERS: [Head; 22] = [
    ("POST", "/mcp", GOOD),
    ("POST", "/mcp", &[("authorization", "Bearer owner"), ("mcp-session-id", "{session}")]),
    ("POST", "/mcp", &[]),
    ("POST", "/mcp", &[("authorization", "Bearer wrong"), ("mcp-session-id", "{session}")]),
    ("POST", "/mcp", &[("authorization", "Basic b3duZXI="), ("mcp-session-id", "{session}")]),
    ("POST", "/mcp", &[("authorization", "Bearer owner")]),
    ("POST", "/mcp", &[("authorization", "Bearer owner"), ("mcp-session-id", "{other}")]),
    ("POST", "/mcp", &[("authorization", "Bearer owner"), ("mcp-session-id", "x")]),
    ("POST", "/mcp", &[("authorization", "Bearer stranger"), ("mcp-session-id", "{other}")]),
    (
        "POST",
        "/mcp",
        &[("authorization", "Bearer owner"), ("mcp-session-id", "{session}"), ("mcp-protocol-version", "x")],
    ),
    ("POST", "/mcp", &[("authorization", "Bearer owner"), ("mcp-session-id", "{session}"), ("accept", "text/html")]),
    (
        "POST",
        "/mcp",
        &[("authorization", "Bearer owner"), ("mcp-session-id", "{session}"), ("accept", "text/event-stream")],
    ),
    (
        "POST",
        "/mcp",
        &[("authorization", "Bearer owner"), ("mcp-session-id", "{session}"), ("content-length", "999999999")],
    ),
    (
        "POST",
        "/mcp",
        &[("authorization", "Bearer owner"), ("mcp-session-id", "{session}"), ("origin", "https://evil.example")],
    ),
    ("GET", "/mcp", GOOD),
    ("DELETE", "/mcp", &[("authorization", "Bearer owner"), ("mcp-session-id", "{other}")]),
    ("DELETE", "/mcp", &[("authorization", "Bearer owner")]),
    ("PUT", "/mcp", GOOD),
    ("OPTIONS", "/mcp", GOOD),
    ("POST", "/mcp/", GOOD),
    ("GET", "/readyz", &[]),
    ("POST", "/healthz", GOOD),
];
const GOOD: &[(&str, &str)] = &[
    ("authorization", "Bearer owner"),
    ("mcp-session-id", "{session}"),
    ("mcp-protocol-version", "2025-11-25"),
    ("accept", "application/json, text/event-stream"),
];

// req: HTTP-04, HTTP-11
#[test]
fn a_flood_of_bad_input_changes_nothing_on_sqlite() {
    flood(Backend::Sqlite);
}

// req: HTTP-04, HTTP-11
#[test]
fn a_flood_of_bad_input_changes_nothing_on_postgres() {
    flood(Backend::Postgres);
}

fn flood(backend: Backend) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let target = runtime.block_on(Target::new(backend));
    let cases = cases(target.templates.len());
    check(CASES, &cases, |case| runtime.block_on(target.survives(&case)));
    runtime.block_on(target.holds_only_what_was_acknowledged());
    target.met_every_refusal();
    drop(runtime.enter());
    drop(target);
}

fn cases(templates: usize) -> impl Strategy<Value = Case> {
    let mutation = prop_oneof![
        1 => any::<u8>().prop_map(Mutation::Flip),
        1 => any::<u8>().prop_map(Mutation::Insert),
        1 => any::<u8>().prop_map(Mutation::Delete),
        1 => any::<u8>().prop_map(Mutation::Repeat),
        3 => any::<u8>().prop_map(Mutation::Replace),
        1 => Just(Mutation::Truncate),
    ];
    assert!(templates > 0);
    let mutations = prop::collection::vec((any::<Index>(), mutation), 1..4);
    let body = prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::Random),
        5 => (any::<Index>(), mutations).prop_map(|(template, mutations)| Bytes::Mutated { template, mutations }),
    ];
    (prop_oneof![3 => Just(0_usize), 1 => 0..HEADERS.len()], body).prop_map(|(headers, body)| Case { headers, body })
}

struct Target {
    front: Front,
    database: TestDatabase,
    templates: Vec<Vec<u8>>,
    sessions: [String; 2],
    /// Tasks and sessions that a client was told of.
    created: AtomicI64,
    opened: AtomicI64,
    statuses: std::sync::Mutex<BTreeMap<u16, AtomicU64>>,
    contexts: i64,
}

impl Target {
    async fn new(backend: Backend) -> Self {
        let database = TestDatabase::new(backend).await;
        let front = Front::start(Parts {
            store: database.store.clone(),
            executor: Arc::new(Prompt),
            catalogue: Tools::new(tools()),
            auth: Arc::new(Names::new(database.store.clone())),
            rules: engine_rules(),
        })
        .await;
        let owner = Client::connected(&front.url, "owner").await;
        let stranger = Client::connected(&front.url, "stranger").await;
        let mut tasks = Vec::new();
        for _ in 0..4 {
            tasks.push(owner.task("optional", json!({})).await["taskId"].clone());
        }
        let page = owner.request("tasks/list", json!({})).await.result();
        let client = json!({ "name": "c", "version": "1" });
        let requests = [
            ("initialize", json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client })),
            ("ping", json!({})),
            ("tools/list", json!({})),
            ("tools/call", json!({ "name": "optional", "arguments": { "x": [1, { "y": "z" }] }, "_meta": { "k": 1 } })),
            ("tools/call", json!({ "name": "optional", "arguments": {}, "task": { "ttl": 60_000 } })),
            ("tools/call", json!({ "name": "always", "task": { "ttl": null } })),
            ("tasks/get", json!({ "taskId": tasks[0] })),
            ("tasks/result", json!({ "taskId": tasks[1] })),
            ("tasks/cancel", json!({ "taskId": tasks[2] })),
            ("tasks/list", json!({ "cursor": page["nextCursor"] })),
        ];
        let mut templates: Vec<_> = requests
            .iter()
            .map(|(method, params)| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }))
            .collect();
        templates.push(
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1, "reason": "r" } }),
        );
        templates.push(json!({ "jsonrpc": "2.0", "id": "x", "error": { "code": -1, "message": "m" } }));
        Self {
            templates: templates.iter().map(|template| template.to_string().into_bytes()).collect(),
            sessions: [owner.session.clone().unwrap(), stranger.session.clone().unwrap()],
            created: AtomicI64::new(4),
            opened: AtomicI64::new(2),
            statuses: std::sync::Mutex::default(),
            contexts: database.number("SELECT COUNT(*) FROM auth_contexts").await,
            front,
            database,
        }
    }

    fn bytes(&self, body: &Bytes) -> Vec<u8> {
        match body {
            Bytes::Random(bytes) => bytes.clone(),
            Bytes::Mutated { template, mutations } => {
                let mut bytes = template.get(&self.templates).clone();
                for (at, mutation) in mutations {
                    mutate(&mut bytes, *at, *mutation);
                }
                bytes
            }
        }
    }

    async fn survives(&self, case: &Case) -> Result<(), TestCaseError> {
        let (method, path, headers) = HEADERS[case.headers];
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        request = request.header("content-type", "application/json");
        for (name, value) in headers {
            let value = value.replace("{session}", &self.sessions[0]).replace("{other}", &self.sessions[1]);
            request = request.header(*name, value);
        }
        let body = self.bytes(&case.body);
        let request = request.body(Body::from(body.clone())).unwrap();
        let response = self.front.router.clone().oneshot(request).await.unwrap();
        let (head, answer) = response.into_parts();
        // A session's own stream has no end.
        let is_endless = method == "GET" && path == "/mcp" && head.status == StatusCode::OK;
        let answer = if is_endless { Vec::new() } else { answer.collect().await.unwrap().to_bytes().to_vec() };
        let answer = String::from_utf8(answer).unwrap();
        let shown = String::from_utf8_lossy(&body);
        prop_assert!(!head.status.is_server_error(), "{} {answer} for {shown}", head.status);
        self.statuses.lock().unwrap().entry(head.status.as_u16()).or_default().fetch_add(1, Ordering::Relaxed);
        if head.headers.contains_key("mcp-session-id") {
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
        let is_stream = head.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let message = if is_stream {
            answer.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or("{}")
        } else {
            answer.as_str()
        };
        if message.is_empty() || path != "/mcp" {
            return Ok(());
        }
        prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(message).is_ok(), "{message} for {shown}");
        prop_assert!(!message.contains(r#""error":{"code":-32603"#), "{message} for {shown}");
        if message.contains(r#""result":{"task":{"#) {
            prop_assert_eq!(head.status, StatusCode::OK);
            self.created.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A flood that one refusal stops at the door would prove little.
    fn met_every_refusal(&self) {
        let statuses = self.statuses.lock().unwrap();
        let seen: Vec<_> = statuses.keys().copied().collect();
        assert_eq!(seen, [200, 202, 400, 401, 403, 404, 405, 406, 413]);
        let served = statuses[&200].load(Ordering::Relaxed);
        assert!(served > 1000 && self.created.load(Ordering::Relaxed) > 10, "{served} were served");
    }

    async fn holds_only_what_was_acknowledged(&self) {
        let database = &self.database;
        until("every task to end", async || database.number("SELECT COUNT(*) FROM task_live").await == 0).await;
        let (tasks, sessions) = (self.created.load(Ordering::Relaxed), self.opened.load(Ordering::Relaxed));
        assert_eq!(database.rows().await, [tasks, 0, tasks, tasks, sessions, self.contexts, 0]);
    }
}

fn mutate(bytes: &mut Vec<u8>, at: Index, mutation: Mutation) {
    if bytes.is_empty() {
        return;
    }
    let at = at.index(bytes.len());
    let token = |number: u8| TOKENS[usize::from(number) % TOKENS.len()];
    let end = |length: u8| (at + 1 + usize::from(length) % 12).min(bytes.len());
    match mutation {
        Mutation::Flip(bits) => bytes[at] ^= bits,
        Mutation::Insert(number) => drop(bytes.splice(at..at, token(number).iter().copied())),
        Mutation::Delete(length) => drop(bytes.drain(at..end(length))),
        Mutation::Repeat(length) => {
            let piece = bytes[at..end(length)].to_vec();
            drop(bytes.splice(at..at, piece));
        }
        Mutation::Replace(number) => {
            let start = bytes[at..].iter().position(|&byte| byte == b':').map_or(at, |colon| at + colon + 1);
            let length = bytes[start..].iter().position(|byte| b",}".contains(byte)).unwrap_or(0);
            drop(bytes.splice(start..start + length, token(number).iter().copied()));
        }
        Mutation::Truncate => bytes.truncate(at),
    }
}
