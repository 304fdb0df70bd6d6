//! One node on SQLite.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::faults::suite::checker::Allowed;
use crate::faults::suite::fleet::FleetPlan;
use crate::faults::suite::stage::{lasting, play};
use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase, number};
use crate::support::server::new_token;

fn one_node(database: &str) -> FleetPlan {
    FleetPlan { urls: vec![database.to_owned()], ..FleetPlan::of_three(database) }
}

// req: KEEP-06, KEEP-07, LIFE-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_kills() {
    let database = TestDatabase::new(Backend::Sqlite).await;
    let allowed = Allowed { hiccups: true, lost_runs: true };
    play("SQLite kill -9 loop", one_node(&database.url), allowed, async |stage| {
        let mut kills = 0;
        lasting(stage, async |stage| {
            stage.fleet.kill(0).await;
            if stage.plan.is_short {
                stage.fleet.silence(0).await;
            }
            stage.fleet.launch(0).await;
            kills += 1;
            let pause = stage.moment(100, 900);
            stage.pass(pause).await;
        })
        .await;
        stage.note(format!("{kills} kills"));
    })
    .await;
}

/// A small file system in memory, until it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `Err` says why there is none.
    fn mount(at: &Path) -> Result<Self, String> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(at).output();
        match mount {
            Ok(output) if output.status.success() => Ok(Self(at.to_owned())),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes what is left of it.
    fn fill(&self) {
        let block = vec![0; 4096];
        let mut file = std::fs::File::create(self.0.join("ballast")).unwrap();
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

/// Tasks without their call, and open ones that nobody will run.
const HALF: &str = "SELECT COUNT(*) FROM tasks WHERE id NOT IN (SELECT task FROM task_requests)
    OR (ended IS NULL AND id NOT IN (SELECT task FROM task_live))";

// req: KEEP-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = match SmallDisk::mount(folder.path()) {
        Ok(disk) => disk,
        Err(why) => return eprintln!("SQLite full disk: SKIPPED, a small tmpfs cannot be mounted: {why}"),
    };
    let url = format!("sqlite://{}", folder.path().join("taskhold.db").display());
    let allowed = Allowed { hiccups: true, lost_runs: false };
    play("SQLite full disk", one_node(&url), allowed, async |stage| {
        // A context of its own: these tasks are in nobody's history.
        let client = Client::connected(&stage.fleet.balancer.url, &new_token(&url, "beside").await).await;
        let params = json!({ "name": "echo", "arguments": { "mark": "x".repeat(8_000) }, "task": {} });
        disk.fill();
        // What the file has free is used up first.
        let mut refused: Option<Value> = None;
        stage
            .until("a creation to be refused", async || {
                let answer = client.request("tools/call", params.clone()).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                refused = Some(answer.json()).filter(|answer| answer.get("error").is_some());
                refused.is_some()
            })
            .await;
        let error = refused.unwrap()["error"].take();
        assert_eq!(error["code"], -32603, "{error}");
        let said = error["message"].as_str().unwrap();
        assert!(said.contains("could not store") || said.contains("temporarily unavailable"), "{error}");
        // Reads go on.
        assert!(!client.list().await.is_empty());
        stage.pass(stage.plan.third().min(Duration::from_secs(8))).await;
        disk.free();
        stage
            .until("a creation to be served", async || {
                client.request("tools/call", params.clone()).await.json().get("result").is_some()
            })
            .await;
        assert_eq!(number(&url, HALF).await, 0, "a part of a task is there");
    })
    .await;
}
