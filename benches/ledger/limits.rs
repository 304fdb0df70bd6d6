//! What PostgreSQL itself can do, by pgbench.

use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;

use crate::cluster::programs;
use crate::database::run;
use crate::site::Site;

/// Rows among which one is selected by its key.
const ROWS: u32 = 100_000;
/// Rows of one batched insert.
const BATCH: u32 = 64;

/// Tables with rows as large as those of a task, and scripts that use them.
pub struct Limits {
    url: String,
    scripts: TempDir,
}

#[derive(Debug, Clone, Copy)]
pub enum Raw {
    Insert,
    BatchedInsert,
    SelectByKey,
}

impl Limits {
    /// `bytes` are those of all rows that a new task has.
    pub async fn new(site: &Site, name: &str, bytes: i64) -> Self {
        let url = site.cluster.create_database(name).await;
        // A row's own head, its key and the length of its text.
        let text = (bytes - 24 - 16 - 4).max(1);
        run(
            &url,
            &format!(
                "CREATE TABLE inserted (id uuid PRIMARY KEY, data text NOT NULL);
                 CREATE TABLE selected (number bigint PRIMARY KEY, data text NOT NULL);
                 INSERT INTO selected SELECT n, repeat('x', {text}) FROM generate_series(1, {ROWS}) n"
            ),
        )
        .await;
        run(&url, "VACUUM ANALYZE").await;
        let scripts = tempfile::tempdir().unwrap();
        let row = format!("gen_random_uuid(), '{}'", "x".repeat(usize::try_from(text).unwrap()));
        let write = |raw: Raw, sql: String| std::fs::write(scripts.path().join(file(raw)), sql).unwrap();
        write(Raw::Insert, format!("INSERT INTO inserted VALUES ({row});\n"));
        write(Raw::BatchedInsert, format!("INSERT INTO inserted SELECT {row} FROM generate_series(1, {BATCH});\n"));
        write(Raw::SelectByKey, format!("\\set n random(1, {ROWS})\nSELECT data FROM selected WHERE number = :n;\n"));
        Self { url, scripts }
    }

    /// Rows a second.
    pub async fn measure(&self, raw: Raw, clients: usize, time: Duration) -> f64 {
        run(&self.url, "TRUNCATE inserted").await;
        let output = Command::new(programs().join("pgbench"))
            .args(["-n", "-M", "prepared", "-j", "2", "-c", &clients.to_string(), "-T", &time.as_secs().to_string()])
            .arg("-f")
            .arg(self.scripts.path().join(file(raw)))
            .arg(&self.url)
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
        let tps = said.lines().find_map(|line| line.strip_prefix("tps = ")).unwrap();
        let tps: f64 = tps.split_whitespace().next().unwrap().parse().unwrap();
        match raw {
            Raw::BatchedInsert => tps * f64::from(BATCH),
            Raw::Insert | Raw::SelectByKey => tps,
        }
    }
}

const fn file(raw: Raw) -> &'static str {
    match raw {
        Raw::Insert => "insert.sql",
        Raw::BatchedInsert => "batched.sql",
        Raw::SelectByKey => "select.sql",
    }
}
