//! What a task's life costs the database, and what it leaves.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::Effort;
use crate::cluster::programs;
use crate::database::{Backend, number, run, texts};
use crate::load::Load;
use crate::site::{Service, Site};

const CONNECTIONS: usize = 64;
/// Lives that are counted.
const LIVES: u64 = 20_000;
/// Arguments of 200 bytes, which come back as the result.
const ARGUMENTS: usize = 200;
const TABLES: [&str; 4] = ["tasks", "task_requests", "task_live", "task_outcomes"];
/// Ended tasks go as soon as their time is over.
const SHORT_LIVED: &str = "[tasks]\nmin_retention = \"0s\"\nmin_ttl = \"5s\"\n";
/// PostgreSQL counts the last transactions of a connection that fell idle up to 10 s later.
const COUNTED: Duration = Duration::from_secs(12);
/// Each task is deleted after so long at most.
const MOST_REAPING: Duration = Duration::from_secs(600);

pub async fn print(site: &Site, effort: Effort) {
    let service = site.service(Backend::Postgres, "costs", "").await;
    run(&service.url, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await;
    let arguments = arguments();
    let echo = ["--tool", "echo", "--arguments", arguments.as_str()];
    let load = Load { more: &echo, ..Load::legacy("lifecycle", CONNECTIONS) };
    load.run(&service, &["--requests", "2000"]).await;
    println!("\n## One task life, PostgreSQL, {CONNECTIONS} connections, arguments and result of {ARGUMENTS} bytes\n");
    counted(site, &service, load).await;
    service.stopped().await;

    let service = site.service(Backend::Postgres, "reaped", SHORT_LIVED).await;
    let short = Load { more: &[echo.as_slice(), &["--ttl", "10s"]].concat(), ..load };
    short.run(&service, &["--requests", &effort.lives.to_string()]).await;
    reaped(&service, effort.lives).await;
    service.stopped().await;

    let service = site.service(Backend::Postgres, "large", "").await;
    // None of them is reaped meanwhile.
    let load = Load { more: &[echo.as_slice(), &["--ttl", "24h"]].concat(), ..load };
    load.run(&service, &["--requests", &effort.lives.to_string()]).await;
    run(&service.url, "CHECKPOINT").await;
    let log = logged(site, &service, load).await;
    println!(
        "\nRight after a checkpoint, with {} tasks stored: {:.0} bytes of records and {:.0} bytes of page images per life.",
        effort.lives,
        log.bytes() / log.lives,
        log.images() / log.lives
    );
    service.stopped().await;
}

fn arguments() -> String {
    let frame = r#"{"text":""}"#.len();
    format!(r#"{{"text":"{}"}}"#, "x".repeat(ARGUMENTS - frame))
}

async fn counted(site: &Site, service: &Service, load: Load<'_>) {
    let url = &service.url;
    let of_database =
        |column: &str| format!("SELECT {column} FROM pg_stat_database WHERE datname = current_database()");
    let transactions = of_database("xact_commit + xact_rollback");
    // What an idle node asks is not the tasks'.
    tokio::time::sleep(COUNTED).await;
    let before = number(url, &transactions).await;
    tokio::time::sleep(COUNTED).await;
    let idle = (number(url, &transactions).await - before) as f64 / COUNTED.as_secs_f64();
    run(url, "SELECT pg_stat_reset()").await;
    run(url, "SELECT pg_stat_statements_reset()").await;
    let began = tokio::time::Instant::now();
    let log = logged(site, service, load).await;
    let lives = log.lives;
    tokio::time::sleep(COUNTED).await;
    let all = number(url, &transactions).await as f64 - idle * began.elapsed().as_secs_f64();
    let here = "dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let calls = number(url, &format!("SELECT SUM(calls)::bigint FROM pg_stat_statements WHERE {here}")).await;
    let row = row_bytes(service).await;
    println!("| what | per life | aim |\n|---|---|---|");
    println!("| commits that write | {:.3} | 0.2 |", log.commits() / lives);
    println!("| transactions, reading ones too (an idle node's {idle:.1}/s taken off) | {:.3} | |", all / lives);
    println!("| statements, with BEGIN and COMMIT | {:.3} | |", calls as f64 / lives);
    println!("| bytes of WAL without page images | {:.0} | |", log.bytes() / lives);
    println!("| the same / the bytes of its rows ({row}) | {:.2} | 3 |", log.bytes() / lives / row as f64);
    println!("| bytes of page images | {:.0} | |", log.images() / lives);
    println!("\n| log records | per life | bytes per life |\n|---|---|---|");
    for kind in log.kinds.iter().take(12) {
        println!("| {} | {:.2} | {:.0} |", kind.name, kind.count as f64 / lives, kind.bytes as f64 / lives);
    }
    println!("\n| table | inserted | updated | of them HOT | deleted |\n|---|---|---|---|---|");
    for table in TABLES {
        let mut cells = Vec::new();
        for column in ["n_tup_ins", "n_tup_upd", "n_tup_hot_upd", "n_tup_del"] {
            let sql = format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = '{table}'");
            cells.push(format!("{:.2}", number(url, &sql).await as f64 / lives));
        }
        println!("| {table} | {} |", cells.join(" | "));
    }
    let most = "SELECT calls || ' | ' || rows || ' | ' || ROUND(total_exec_time) || ' | ' || \
        regexp_replace(LEFT(TRIM(regexp_replace(query, '\\s+', ' ', 'g')), 70), '[|]', '/', 'g') AS line
        FROM pg_stat_statements";
    println!("\n| calls | rows | ms in all | statement |\n|---|---|---|---|");
    for line in texts(url, &format!("{most} WHERE {here} ORDER BY total_exec_time DESC LIMIT 8"), "line").await {
        println!("| {line} |");
    }
}

/// What the server logged while tasks lived.
struct Log {
    lives: f64,
    kinds: Vec<Kind>,
}

/// A kind of record in it.
struct Kind {
    name: String,
    count: u64,
    bytes: u64,
    /// Bytes of page images in these records.
    images: u64,
}

impl Log {
    fn commits(&self) -> f64 {
        self.kinds.iter().filter(|kind| kind.name == "Transaction/COMMIT").map(|kind| kind.count as f64).sum()
    }

    fn bytes(&self) -> f64 {
        self.kinds.iter().map(|kind| kind.bytes as f64).sum()
    }

    fn images(&self) -> f64 {
        self.kinds.iter().map(|kind| kind.images as f64).sum()
    }
}

/// Runs the load and reads the log that was written meanwhile.
async fn logged(site: &Site, service: &Service, load: Load<'_>) -> Log {
    let position = "SELECT pg_current_wal_flush_lsn()::text AS lsn";
    let first = texts(&service.url, position, "lsn").await.remove(0);
    let lives = load.run(service, &["--requests", &LIVES.to_string()]).await.operations as f64;
    let last = texts(&service.url, position, "lsn").await.remove(0);
    let output = Command::new(programs().join("pg_waldump"))
        .arg("--path")
        .arg(site.cluster.data().join("pg_wal"))
        .args(["--stats=record", "--start", &first, "--end", &last])
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let mut kinds = Vec::new();
    for line in said.lines() {
        // A kind, its count, its bytes, those of images, and both; a share in brackets after each.
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let Some(name) = line.split_whitespace().next().filter(|name| name.contains('/')) else { continue };
        let &[count, bytes, images, _] = numbers.as_slice() else { panic!("{line}") };
        kinds.push(Kind { name: name.to_owned(), count, bytes, images });
    }
    assert!(!kinds.is_empty(), "{said} {}", String::from_utf8_lossy(&output.stderr));
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.bytes));
    Log { lives, kinds }
}

/// The bytes of all rows that a task has in its life.
async fn row_bytes(service: &Service) -> i64 {
    let hold = ["--tool", "wait", "--arguments", r#"{"seconds":3600}"#];
    Load { more: &hold, ..Load::legacy("create", 1) }.run(service, &["--requests", "1"]).await;
    let of = |table: &str| format!("(SELECT AVG(pg_column_size(r.*)) FROM {table} r)");
    number(&service.url, &format!("SELECT ({})::bigint", TABLES.map(of).join(" + "))).await
}

async fn reaped(service: &Service, lives: u64) {
    let began = tokio::time::Instant::now();
    while number(&service.url, "SELECT COUNT(*) FROM task_outcomes").await > 0 {
        assert!(began.elapsed() < MOST_REAPING, "the reaper does not come to an end");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!("\n| after {lives} lived and were reaped | MiB | dead tuples | autovacuums |\n|---|---|---|---|");
    for table in TABLES {
        let sql = format!(
            "SELECT ROUND(pg_total_relation_size(relid) / 1048576.0, 1) || ' | ' || n_dead_tup || ' | ' || autovacuum_count
                AS line FROM pg_stat_user_tables WHERE relname = '{table}'"
        );
        println!("| {table} | {} |", texts(&service.url, &sql, "line").await.remove(0));
    }
}
