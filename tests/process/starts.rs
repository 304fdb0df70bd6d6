//! Many nodes that start at once, on empty databases and on full ones, and who may not start.

use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};
use taskhold::domain::ids::TaskId;
use taskhold::store::{check_migrations, migrate};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::store::migrations::{BEFORE_TALK, MIGRATIONS};
use crate::support::client::Client;
use crate::support::database::{Backend, EmptyDatabase, hold, number, options, run, texts};
use crate::support::server::{PATIENCE, Server, binary, new_token, run as run_command};

const NODES: usize = 6;

/// Rows of a full database: `TASKHOLD_TEST_START_ROWS`, 100,000 by default.
fn rows() -> u32 {
    let rows = std::env::var("TASKHOLD_TEST_START_ROWS");
    rows.map_or(100_000, |rows| rows.parse().expect("TASKHOLD_TEST_START_ROWS is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_nodes_start_at_once_on_an_empty_database_on_sqlite() {
    start_on_an_empty(Backend::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_nodes_start_at_once_on_an_empty_database_on_postgres() {
    start_on_an_empty(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_is_killed_while_it_migrates_a_full_database_on_sqlite() {
    let database = full(Backend::Sqlite).await;
    let mut doomed = launch(&database.url);
    // What it writes reaches the log of the file first.
    let log = format!("{}-wal", database.url.trim_start_matches("sqlite://"));
    until("it writes", async || std::fs::metadata(&log).is_ok_and(|log| log.len() > 0)).await;
    doomed.kill().await.unwrap();
    start_on(&database, i64::from(rows())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_is_killed_while_it_migrates_a_full_database_on_postgres() {
    let database = full(Backend::Postgres).await;
    // In the middle of a migration: some of its statements are done, one waits for this lock.
    let lock = hold(&database.url, "LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE").await;
    let mut doomed = launch(&database.url);
    until("it migrates", async || {
        number(&database.url, "SELECT COUNT(*) FROM pg_locks WHERE NOT granted").await > 0
            && number(&database.url, "SELECT COUNT(*) FROM schema_info WHERE holder IS NOT NULL").await == 1
    })
    .await;
    doomed.kill().await.unwrap();
    drop(lock);
    start_on(&database, i64::from(rows())).await;
}

async fn start_on_an_empty(backend: Backend) {
    start_on(&EmptyDatabase::new(backend).await, 0).await;
}

/// Nodes that start at once, and what they find and leave.
// req: KEEP-01
// field case: F-LB-07
async fn start_on(database: &EmptyDatabase, rows: i64) {
    let url = &database.url;
    let upstream = format!("test={} demo-server --test-tools", binary());
    let began = std::time::Instant::now();
    let arguments = ["--upstream", &upstream];
    let mut nodes = join_all((0..NODES).map(|_| Server::start_with(url, &arguments))).await;
    eprintln!("{NODES} nodes are up after {:?}", began.elapsed());
    assert!(check_migrations(&options(url)).await.unwrap().is_empty());
    assert_eq!(
        number(url, "SELECT COUNT(*) FROM _sqlx_migrations WHERE success").await,
        MIGRATIONS,
        "one set of changes"
    );
    assert_eq!(number(url, "SELECT COUNT(*) FROM schema_info WHERE holder IS NOT NULL").await, 0);
    assert_eq!(number(url, "SELECT COUNT(*) FROM tasks").await, rows, "nothing is lost");
    if url.starts_with("sqlite") {
        assert_eq!(texts(url, "PRAGMA integrity_check", "integrity_check").await, ["ok"]);
    } else {
        let invalid = "SELECT COUNT(*) FROM pg_index WHERE NOT (indisvalid AND indisready)";
        assert_eq!(number(url, invalid).await, 0, "no index is invalid");
    }
    let token = new_token(url, "owner").await;
    let client = Client::connected(&nodes[0].url, &token).await;
    let task = client.task("echo", json!({ "n": 1 })).await;
    for node in &nodes {
        client.at(&node.url).until_status(&task["taskId"], "completed").await;
    }
    let ends = join_all(nodes.drain(..).map(Server::terminate)).await;
    assert!(ends.iter().all(std::process::ExitStatus::success), "{ends:?}");
}

/// A database of the first schema, with ended tasks and some that wait.
async fn full(backend: Backend) -> EmptyDatabase {
    let database = EmptyDatabase::new(backend).await;
    migrate(&options(&database.url)).await.unwrap();
    run(&database.url, BEFORE_TALK).await;
    let rows = rows();
    let (number, id, one) = match backend {
        Backend::Sqlite => (
            format!("WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows})"),
            "randomblob(16)",
            "X'00000000000000000000000000000001'",
        ),
        Backend::Postgres => (
            format!("WITH n (n) AS (SELECT generate_series(1, {rows}))"),
            "gen_random_uuid()",
            "'00000000-0000-0000-0000-000000000001'::uuid",
        ),
    };
    // Every tenth of them waits, in a year's time.
    run(
        &database.url,
        &format!(
            "INSERT INTO tasks (id, context, created, updated, ended, status, granted_ttl, poll_interval, restart,
                attempts_allowed, run_limit, tool, upstream, upstream_tool, capabilities)
            {number} SELECT {id}, {one}, n, n, CASE WHEN n % 10 = 0 THEN NULL ELSE n END, CASE WHEN n % 10 = 0 THEN 0 ELSE 2 END,
                NULL, 1, 0, 3, 1, 'tool', 'upstream', 'tool', '{{}}' FROM n;
            INSERT INTO task_live (task, attempt, not_before, hard_end)
            SELECT id, 0, 9000000000000000, 9000000000000000 FROM tasks WHERE status = 0;
            INSERT INTO task_outcomes SELECT id, {one}, 1, NULL, '{{}}' FROM tasks WHERE status = 2"
        ),
    )
    .await;
    database
}

/// Starts a node whose start the test will not see the end of.
fn launch(url: &str) -> Child {
    serve(url).stderr(Stdio::null()).spawn().expect("the binary starts")
}

fn serve(url: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["serve", "--listen", "127.0.0.1:0", "--database-url", url]).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

// req: KEEP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_another_ones_migration_is_said() {
    let database = EmptyDatabase::new(Backend::Postgres).await;
    migrate(&options(&database.url)).await.unwrap();
    run(&database.url, BEFORE_TALK).await;
    let holder = TaskId::new().to_string();
    let until = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint + 3000000000";
    run(&database.url, &format!("UPDATE schema_info SET holder = '{holder}', lease_until = {until}")).await;
    let (mut waits, mut lines) = launch_and_listen(&database.url);
    let said = line_with(&mut lines, "another process migrates the database").await;
    assert!(said.contains(&holder) && said.contains("\"lease.left_s\":29"), "{said}");
    run(&database.url, "UPDATE schema_info SET holder = NULL, lease_until = NULL").await;
    let next = line_with(&mut lines, "\"migrating the database\"").await;
    assert!(next.contains("lease.holder") && next.contains("0002 talk, 0003 keys"), "{next}");
    line_with(&mut lines, "is listening on").await;
    waits.kill().await.unwrap();
}

// req: KEEP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_the_lock_of_a_file_is_said() {
    let database = EmptyDatabase::new(Backend::Sqlite).await;
    let url = format!("{}?mode=rwc", database.url);
    let mut other = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let (mut waits, mut lines) = launch_and_listen(&database.url);
    line_with(&mut lines, "another process has the lock of the database file").await;
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    line_with(&mut lines, "is listening on").await;
    waits.kill().await.unwrap();
}

/// Starts a node, and what it writes to standard error.
fn launch_and_listen(url: &str) -> (Child, Lines<BufReader<ChildStderr>>) {
    let mut command = serve(url);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
    let stderr = child.stderr.take().expect("standard error is piped");
    (child, BufReader::new(stderr).lines())
}

async fn line_with(lines: &mut Lines<BufReader<ChildStderr>>, part: &str) -> String {
    let reading = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("it goes on");
            if line.contains(part) {
                return line;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("it says so in time")
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, poll).await.is_ok(), "this did not come about: {what}");
}

// req: KEEP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_change_tables_only_checks() {
    let database = EmptyDatabase::new(Backend::Postgres).await;
    migrate(&options(&database.url)).await.unwrap();
    let role = format!("role_{}", TaskId::new().as_uuid().simple());
    let grants = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
    );
    run(&database.url, &grants).await;
    let (_, place) = database.url.split_once('@').unwrap();
    let url = format!("postgres://{role}@{place}");
    let server = Server::start_with(&url, &[]).await;
    assert!(server.terminate().await.success());

    run(&database.url, BEFORE_TALK).await;
    let (status, _, stderr) = run_command(&["serve", "--listen", "127.0.0.1:0", "--database-url", &url]).await;
    assert_eq!(status.code(), Some(1), "{stderr}");
    let said = stderr.lines().last().unwrap_or_default();
    assert!(said.contains("migrations are missing: 0002 talk, 0003 keys"), "{stderr}");
    assert!(said.contains("may not change tables: run `taskhold migrate` as one that may"), "{stderr}");
    assert_eq!(number(&database.url, "SELECT COUNT(*) FROM schema_info WHERE holder IS NOT NULL").await, 0);
    run(&database.url, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

// req: KEEP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_needs_a_newer_binary_is_refused_and_left_alone() {
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let database = EmptyDatabase::new(backend).await;
        migrate(&options(&database.url)).await.unwrap();
        run(&database.url, "UPDATE schema_info SET oldest_binary = 999").await;
        for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"]] {
            let arguments = [command, &["--database-url", &database.url]].concat();
            let (status, _, stderr) = run_command(&arguments).await;
            assert_eq!(status.code(), Some(1), "{stderr}");
            assert!(stderr.contains("needs a binary of schema 999 or newer, this one has"), "{stderr}");
            assert!(stderr.contains("update taskhold"), "{stderr}");
        }
        assert_eq!(number(&database.url, "SELECT COUNT(*) FROM _sqlx_migrations").await, MIGRATIONS);
    }
}
