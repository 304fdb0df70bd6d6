//! Big results, in the memory of a real process.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;

use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase};
use crate::support::raw::Unread;
use crate::support::server::{Server, new_token};

/// A fifth of the reported size: the product is built for tests here.
const BYTES: usize = 1_000_000;
const WAITERS: usize = 20;
/// A few copies of each of the two results while they are made and stored, and nothing for each waiter.
const MOST_GROWTH: u64 = (BYTES * WAITERS / 2) as u64 + (12 << 20);

/// The most memory that a process ever had, in bytes.
fn peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

// field case: F-GW-17
#[tokio::test]
async fn many_waiters_for_a_big_result_cost_no_more_than_one() {
    let database = TestDatabase::new(Backend::Sqlite).await;
    let token = new_token(&database.url, "big").await;
    let server = Server::start(&database.url).await;
    let client = Client::connected(&server.url, &token).await;
    let before = peak(server.pid());
    for round in 0..2 {
        let id = client.task("big", json!({ "bytes": BYTES })).await["taskId"].clone();
        let sizes = join_all((0..WAITERS).map(|_| async {
            let answer = client.result(&id).await;
            let text = answer.result()["content"][0]["text"].as_str().unwrap().to_owned();
            text.len() * usize::from(text.bytes().all(|byte| byte == b'x'))
        }));
        assert_eq!(sizes.await, [BYTES; WAITERS], "round {round}");
    }
    let grown = peak(server.pid()) - before;
    assert!(grown < MOST_GROWTH, "{grown} bytes");
    assert!(server.terminate().await.success());
}

/// More than all buffers on the way hold.
const LARGE: usize = 12_000_000;

/// A server, a client of it, and the unread answer to its `tasks/result` of a large result.
async fn unread() -> (Server, Unread, TestDatabase) {
    let database = TestDatabase::new(Backend::Sqlite).await;
    let token = new_token(&database.url, "slow").await;
    let server = Server::start(&database.url).await;
    let client = Client { accept: "application/json", ..Client::connected(&server.url, &token).await };
    let id = client.task("big", json!({ "bytes": LARGE })).await["taskId"].clone();
    client.until_status(&id, "completed").await;
    let answer = Unread::post(&client, &client.message("tasks/result", &json!({ "taskId": id }))).await;
    assert!(answer.head.starts_with("HTTP/1.1 200") && answer.length() > LARGE, "{}", answer.head);
    (server, answer, database)
}

// req: KEEP-10, NOTE-10
#[tokio::test]
async fn an_answer_that_nobody_reads_does_not_hold_a_stop_up() {
    let (server, silent, _database) = unread().await;
    let began = Instant::now();
    assert!(server.terminate().await.success());
    // The default of `server.drain` is 25 s, and the system gives such a peer up after 20 s.
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    drop(silent);
}

// req: KEEP-10
#[tokio::test]
async fn a_stop_waits_for_an_answer_that_is_read_slowly() {
    let (server, mut slow, _database) = unread().await;
    let began = Instant::now();
    let length = slow.length();
    let (ended, read) = tokio::join!(server.terminate(), slow.take(length, 128 * 1024, Duration::from_millis(60)));
    assert_eq!(read, length, "all of it, after {:?}", began.elapsed());
    assert!(ended.success());
    assert!(began.elapsed() > Duration::from_secs(4), "longer than a silent client is waited for");
}
