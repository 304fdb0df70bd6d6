//! What a million tasks in one context cost: paging at any depth, and reaping while tasks are read.
//!
//! Run by `scripts/bench-list`. Prints one table; changes nothing outside databases of its own.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]
#![expect(clippy::print_stdout, reason = "its result is the table that it prints")]

#[path = "../tests/support/database.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
mod database;

use std::time::Duration;

use database::{Backend, TestDatabase};
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::cursor::Position;
use taskhold::domain::ids::{ContextId, TaskId};
use taskhold::lifecycle::spawn;
use taskhold::store::SystemStore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const ROWS: i64 = 1_000_000;
const DEPTH: i64 = 900_000;
const PAGE: u32 = 50;
/// Pages timed at each depth.
const PAGES: usize = 2_000;
/// As the engine reaps.
const BATCH: u32 = 500;
/// Readers that poll, and how often each does.
const READERS: i64 = 8;
const POLL: Duration = Duration::from_millis(5);
/// How long they poll undisturbed.
const QUIET: Duration = Duration::from_secs(10);
/// Reaping is given up after this.
const MOST_REAPING: Duration = Duration::from_secs(300);
/// The start of the list, in microseconds; task number n is n microseconds younger.
const START: i64 = 1_800_000_000_000_000;
const EXPIRED: Timestamp = Timestamp::from_micros(START + 2 * ROWS);

#[tokio::main]
async fn main() {
    println!(
        "| database | page 1 | page at {DEPTH} | ratio | reaped | rows/s | get p50 / p99 quiet | get p50 / p99 reaping |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for backend in [Backend::Sqlite, Backend::Postgres] {
        println!("{}", row(backend).await);
    }
}

async fn row(backend: Backend) -> String {
    let database = TestDatabase::new(backend).await;
    let store = database.store.system();
    let context = store.ensure_context(ContextKey::default(), Timestamp::from_micros(0)).await.unwrap();
    fill(&database, context).await;

    let first = None;
    let deep = Some(Position { created: Timestamp::from_micros(START + ROWS - DEPTH), id: TaskId::new() });
    let (mut shallow, mut at_depth) = (Vec::new(), Vec::new());
    // In turn, so that whatever else the machine does meets both alike; the first few warm up.
    for number in 0..PAGES + 20 {
        for (after, times) in [(first, &mut shallow), (deep, &mut at_depth)] {
            let began = Instant::now();
            let page = store.list(context, after, PAGE, Timestamp::from_micros(START)).await.unwrap();
            assert_eq!(page.len(), PAGE as usize);
            if number >= 20 {
                times.push(began.elapsed());
            }
        }
    }
    let (shallow, at_depth) = (quantile(&mut shallow, 0.5), quantile(&mut at_depth, 0.5));
    let ratio = at_depth.as_secs_f64() / shallow.as_secs_f64();

    let (mut quiet, _) = polled(&database, context, async { tokio::time::sleep(QUIET).await }).await;
    let began = Instant::now();
    let (mut busy, reaped) = polled(&database, context, reap(&store)).await;
    let rate = reaped as f64 / began.elapsed().as_secs_f64();
    format!(
        "| {backend:?} | {shallow:.2?} | {at_depth:.2?} | {ratio:.2} | {reaped} | {rate:.0} | {:.1?} / {:.1?} | {:.1?} / {:.1?} |",
        quantile(&mut quiet, 0.5),
        quantile(&mut quiet, 0.99),
        quantile(&mut busy, 0.5),
        quantile(&mut busy, 0.99),
    )
}

/// Deletes what has expired as the engine does: in batches, resting as long as it worked. Answers how many.
async fn reap(store: &SystemStore) -> u64 {
    let (mut total, started) = (0, Instant::now());
    while started.elapsed() < MOST_REAPING {
        let began = Instant::now();
        let reaped = store.reap(EXPIRED, BATCH).await.unwrap();
        total += reaped;
        if reaped < u64::from(BATCH) {
            break;
        }
        tokio::time::sleep(began.elapsed()).await;
    }
    total
}

/// Polls live tasks while `work` runs; answers how long each look took, and the work's answer.
async fn polled<T>(database: &TestDatabase, context: ContextId, work: impl Future<Output = T>) -> (Vec<Duration>, T) {
    let stop = CancellationToken::new();
    let readers: Vec<_> = (0..READERS)
        .map(|number| {
            let (store, stop) = (database.store.system(), stop.clone());
            spawn("reader", async move {
                let mut times = Vec::new();
                let mut ticks = tokio::time::interval(POLL);
                while !stop.is_cancelled() {
                    ticks.tick().await;
                    let began = Instant::now();
                    assert!(store.get(context, live(number)).await.unwrap().is_some());
                    times.push(began.elapsed());
                }
                times
            })
        })
        .collect();
    let answer = work.await;
    stop.cancel();
    let mut times = Vec::new();
    for reader in readers {
        times.extend(reader.await.unwrap());
    }
    (times, answer)
}

/// The id of a task that stays.
fn live(number: i64) -> TaskId {
    TaskId::from_uuid(uuid::Uuid::from_u128(number.unsigned_abs().into()))
}

/// A million ended tasks that expire, and a few live ones.
async fn fill(database: &TestDatabase, context: ContextId) {
    let context = database.id(context.as_uuid());
    let (numbers, new_id) = match database.backend {
        Backend::Sqlite => {
            let numbers = format!(
                "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS}) SELECT n FROM s) s"
            );
            (numbers, "randomblob(16)")
        }
        Backend::Postgres => (format!("generate_series(1, {ROWS}) s(n)"), "gen_random_uuid()"),
    };
    let columns = "id, context, created, updated, ended, status, granted_ttl, poll_interval, restart,
        attempts_allowed, run_limit, tool, upstream, upstream_tool, message, capabilities";
    database
        .sql(&format!(
            "INSERT INTO tasks ({columns})
             SELECT {new_id}, {context}, {START} + n, {START} + n, {START} + n, 2, 60000, 1000, 0, 3, 60000000,
                'tool', 'upstream', 'tool', NULL, '{{}}' FROM {numbers}"
        ))
        .await;
    database
        .sql(&format!(
            "INSERT INTO task_outcomes (task, token, attempt, expires, outcome)
             SELECT id, id, 1, {START} + {ROWS}, '{{\"content\":[{{\"type\":\"text\",\"text\":\"done\"}}]}}' FROM tasks"
        ))
        .await;
    database
        .sql("INSERT INTO task_requests (task, params) SELECT id, '{\"name\":\"tool\",\"arguments\":{}}' FROM tasks")
        .await;
    for number in 0..READERS {
        let id = database.id(live(number).as_uuid());
        database
            .sql(&format!(
                "INSERT INTO tasks ({columns})
                 VALUES ({id}, {context}, 0, 0, NULL, 0, NULL, 1000, 0, 3, 60000000, 'tool', 'upstream', 'tool', NULL, '{{}}')"
            ))
            .await;
        database
            .sql(&format!(
                "INSERT INTO task_live (task, attempt, not_before, hard_end) VALUES ({id}, 0, 0, {})",
                i64::MAX
            ))
            .await;
    }
    let tidy = match database.backend {
        Backend::Sqlite => "ANALYZE; PRAGMA wal_checkpoint(TRUNCATE)",
        Backend::Postgres => "VACUUM ANALYZE tasks",
    };
    database.sql(tidy).await;
}

fn quantile(times: &mut [Duration], at: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * at) as usize]
}
