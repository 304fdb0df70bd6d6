//! Where it is measured: a PostgreSQL server with its defaults for durability, and services on databases of their own.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::database::Backend;
use crate::server::{self, PATIENCE};

pub struct Site {
    pub cluster: Cluster,
}

impl Site {
    pub async fn new() -> Self {
        let settings = [
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("shared_buffers", "'512MB'"),
            // No checkpoint comes in between but where one is asked for.
            ("max_wal_size", "'16GB'"),
            ("checkpoint_timeout", "'1h'"),
            ("shared_preload_libraries", "'pg_stat_statements'"),
        ];
        Self { cluster: Cluster::new(&settings).await }
    }

    /// A service with the bundled demo and its test tools, on a new database. `settings` are lines of its `taskhold.toml`.
    pub async fn service(&self, backend: Backend, name: &str, settings: &str) -> Service {
        let folder = tempfile::tempdir().unwrap();
        let url = match backend {
            Backend::Sqlite => format!("sqlite://{}", folder.path().join("taskhold.db").display()),
            Backend::Postgres => self.cluster.create_database(name).await,
        };
        std::fs::write(folder.path().join("taskhold.toml"), settings).unwrap();
        let token = server::new_token(&url, "bench").await;
        Stopped { token, url, folder }.start().await
    }
}

/// A running service; killed when dropped.
pub struct Service {
    process: Child,
    /// The endpoint.
    pub endpoint: String,
    pub token: String,
    /// Of its database.
    pub url: String,
    folder: TempDir,
}

impl Service {
    pub fn pid(&self) -> i32 {
        self.process.id().and_then(|id| id.try_into().ok()).unwrap()
    }

    /// Stops it as an operator does.
    pub async fn stopped(mut self) -> Stopped {
        kill_process(Pid::from_raw(self.pid()).unwrap(), Signal::TERM).unwrap();
        assert!(self.process.wait().await.unwrap().success());
        Stopped { token: self.token, url: self.url, folder: self.folder }
    }
}

/// What is left of a service that was stopped.
pub struct Stopped {
    token: String,
    url: String,
    folder: TempDir,
}

impl Stopped {
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub async fn start(self) -> Service {
        let binary = server::binary();
        self.launch(Command::new(&binary)).await
    }

    /// The same under another program.
    pub async fn start_by(self, mut program: Command) -> Service {
        program.arg(server::binary());
        self.launch(program).await
    }

    /// Its log, a line for each request, goes to a file: a reader at a pipe would take its part of the processors.
    async fn launch(self, mut command: Command) -> Service {
        let upstream = format!("test={} demo-server --test-tools", server::binary());
        command.args(["serve", "--listen", "127.0.0.1:0", "--database-url", &self.url]);
        command.args(["--demo", "--upstream", &upstream]).current_dir(self.folder.path());
        let log = self.folder.path().join("log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        let process = command.kill_on_drop(true).spawn().unwrap();
        let began = Instant::now();
        let endpoint = loop {
            let said = std::fs::read_to_string(&log).unwrap();
            let ready = said.lines().find_map(|line| line.strip_prefix("taskhold is listening on "));
            if let Some(endpoint) = ready.filter(|_| said.ends_with('\n')) {
                break endpoint.to_owned();
            }
            assert!(began.elapsed() < PATIENCE, "{said}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        Service { process, endpoint, token: self.token, url: self.url, folder: self.folder }
    }
}
