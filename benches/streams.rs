//! What thousands of open streams cost one node: memory, questions to the database while nothing happens, and how soon a
//! waiter has its answer once its task has ended.
//!
//! Run by `scripts/bench-streams`. Starts the release binary on databases of its own; prints one table.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]
#![expect(clippy::print_stdout, reason = "its result is the table that it prints")]

#[path = "../tests/support/client.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
mod client;
#[path = "../tests/support/database.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
mod database;
#[path = "../tests/support/server.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
#[expect(clippy::disallowed_methods, reason = "tests allow them")]
mod server;

use std::time::Duration;

use client::Client;
use database::{Backend, TestDatabase};
use futures_util::future::join_all;
use serde_json::{Value, json};
use server::Server;
use taskhold::domain::clock::Timestamp;
use taskhold::lifecycle::spawn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Streams of each kind.
const STREAMS: usize = 5_000;
/// How many are opened at once.
const OPENED_AT_ONCE: usize = 100;
/// Callers that share them.
const CALLERS: usize = 10;
/// Room for the streams, and for the waiters whose answers are timed.
const LIMITS: &str = "[limits]\nconnections = 12000\nstreams = 1100\n";
/// Running tasks of each caller that are waited for.
const WAITED_FOR: usize = 20;
/// Short tasks that are timed, and how many run at once.
const TIMED: usize = 2_000;
const AT_ONCE: usize = 8;
/// How long nothing happens while the database's work is counted.
const IDLE: Duration = Duration::from_secs(30);
/// After streams were opened or closed, before memory is read.
const SETTLING: Duration = Duration::from_secs(3);
/// PostgreSQL counts the last transactions of a connection that fell idle up to 10 s later.
const COUNTED: Duration = Duration::from_secs(12);
/// How long the tasks that are waited for run.
const LONG_MS: u64 = 3_600_000;

#[tokio::main]
async fn main() {
    println!(
        "| database | RSS before | per waiting tasks/result | per GET stream | transactions/s idle | end to answer p50 / p99 |"
    );
    println!("|---|---|---|---|---|---|");
    for backend in [Backend::Sqlite, Backend::Postgres] {
        println!("{}", row(backend).await);
    }
}

async fn row(backend: Backend) -> String {
    let database = TestDatabase::new(backend).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("taskhold.toml"), LIMITS).unwrap();
    let upstream = format!("test={} demo-server --test-tools", server::binary());
    let arguments = ["--upstream", &upstream];
    let server = Server::start_in(Some(folder.path()), &database.url, &arguments).await;

    let mut callers = Vec::new();
    for number in 0..CALLERS {
        let token = server::new_token(&database.url, &format!("caller {number}")).await;
        let client = Client::connected(&server.url, &token).await;
        let mut tasks = Vec::new();
        for _ in 0..WAITED_FOR {
            tasks.push(client.task("sleep", json!({ "ms": LONG_MS })).await["taskId"].clone());
        }
        callers.push((client, tasks));
    }
    let mut sessions = Vec::new();
    while sessions.len() < STREAMS {
        // Side by side, so that their rows share commits.
        let opened = join_all((0..OPENED_AT_ONCE).map(|number| session_of(&callers[number % CALLERS].0))).await;
        sessions.extend(opened);
    }
    timed(&callers, 100).await;
    tokio::time::sleep(SETTLING).await;
    let before = resident(&server);

    let mut waiting = Vec::new();
    while waiting.len() < STREAMS {
        // Side by side: each begins only after the time in which a plain answer might still come.
        let opened = join_all((waiting.len()..waiting.len() + OPENED_AT_ONCE).map(|number| {
            let (client, tasks) = &callers[number % CALLERS];
            let body = client.message("tasks/result", &json!({ "taskId": tasks[number % WAITED_FOR] }));
            async move { open(client, "POST", &body).await }
        }));
        waiting.extend(opened.await);
    }
    tokio::time::sleep(SETTLING).await;
    let with_waiting = resident(&server);
    let mut listening = Vec::new();
    for client in &sessions {
        listening.push(open(client, "GET", "").await);
    }
    tokio::time::sleep(SETTLING).await;
    let with_all = resident(&server);

    let questions = match backend {
        // Watches the file's version, which is no question.
        Backend::Sqlite => "-".to_owned(),
        Backend::Postgres => {
            let asked = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
            tokio::time::sleep(COUNTED).await;
            let first = database.number(asked).await;
            tokio::time::sleep(IDLE).await;
            let later = database.number(asked).await;
            // One of them is the first look itself.
            format!("{:.1}", (later - first - 1) as f64 / IDLE.as_secs_f64())
        }
    };
    let mut times = timed(&callers, TIMED).await;
    let (p50, p99) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    for stream in waiting.iter().chain(&listening) {
        let mut probe = [0];
        let gone = matches!(stream.try_read(&mut probe), Ok(0));
        assert!(!gone, "a stream was closed");
    }
    drop((waiting, listening));
    server.kill().await;
    let each = |more: u64, less: u64| format!("{:.1} KiB", more.saturating_sub(less) as f64 / 1024.0 / STREAMS as f64);
    format!(
        "| {backend:?} | {:.0} MiB | {} | {} | {questions} | {p50:.1?} / {p99:.1?} |",
        before as f64 / 1_048_576.0,
        each(with_waiting, before),
        each(with_all, with_waiting),
    )
}

/// Another session of the same caller.
async fn session_of(caller: &Client) -> Client {
    let mut client = Client { session: None, ..caller.clone() };
    client.initialize("2025-11-25").await;
    client
}

/// Sends a request over a connection of its own and reads until its stream has begun.
async fn open(client: &Client, method: &str, body: &str) -> TcpStream {
    let address = client.url.strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} /mcp HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\nmcp-session-id: {}\r\n\
         mcp-protocol-version: 2025-11-25\r\naccept: application/json, text/event-stream\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        client.token.as_deref().unwrap(),
        client.session.as_deref().unwrap(),
        body.len(),
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    let begun = async {
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            let mut chunk = [0; 2048];
            let read = stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&head));
            head.extend_from_slice(&chunk[..read]);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), begun).await.unwrap();
    let head = String::from_utf8_lossy(&head).into_owned();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    stream
}

/// Runs so many short tasks, each with a waiter, and answers how long after its end each waiter had the result: from the
/// moment that the service took as the task's end, before it was committed.
async fn timed(callers: &[(Client, Vec<Value>)], count: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    while times.len() < count {
        let round = (0..AT_ONCE).map(|number| {
            let client = callers[(times.len() + number) % callers.len()].0.clone();
            spawn("timed task", async move {
                let id = client.task("sleep", json!({ "ms": 30 })).await["taskId"].clone();
                let answer = client.result(&id).await;
                let arrived = clock();
                assert!(answer.text().contains("slept"), "{answer:?}");
                let task = client.get(&id).await.result();
                arrived.since(Timestamp::parse_rfc3339(task["lastUpdatedAt"].as_str().unwrap()).unwrap())
            })
        });
        for one in round.collect::<Vec<_>>() {
            times.push(one.await.unwrap());
        }
    }
    times
}

/// The time of this machine, which is also that of its databases.
#[expect(clippy::disallowed_methods, reason = "stands for the client's clock")]
fn clock() -> Timestamp {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_micros(since_epoch.as_micros().try_into().unwrap())
}

/// Bytes of memory that the service has in use.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn quantile(times: &mut [Duration], at: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * at) as usize]
}
