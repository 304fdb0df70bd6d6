//! The real binary as a process, on a free port of 127.0.0.1.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// The binary under test: the one that was built with the tests, unless `TASKHOLD_TEST_BINARY` names another.
pub fn binary() -> String {
    std::env::var("TASKHOLD_TEST_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_taskhold").to_owned())
}

/// How long a process may take for anything before a test gives up on it. A node that died is judged after four heartbeats in
/// time, which are 20 s; on a busy machine one may be late, and the count begins anew.
pub const PATIENCE: Duration = Duration::from_secs(90);

const ANY_PORT: &str = "127.0.0.1:0";

/// A running `taskhold serve`; killed when dropped.
pub struct Server {
    child: Child,
    /// The endpoint, `http://127.0.0.1:PORT/mcp`.
    pub url: String,
    lines: mpsc::UnboundedReceiver<String>,
    /// What it wrote to standard error so far.
    pub log: Vec<String>,
}

impl Server {
    /// Starts `serve` on `database_url` with the demo server's test tools as the upstream `test`, and waits until it listens.
    pub async fn start(database_url: &str) -> Self {
        let upstream = test_tools();
        Self::start_with(database_url, &["--upstream", &upstream]).await
    }

    /// The same at an address, which stays the same over restarts.
    pub async fn start_at(address: &str, database_url: &str) -> Self {
        let upstream = test_tools();
        Self::launch(address, None, database_url, &["--upstream", &upstream]).await
    }

    /// The same by another release's binary.
    pub async fn start_of(binary: &str, database_url: &str) -> Self {
        let upstream = format!("test={binary} demo-server --test-tools");
        Self::launch_of(binary, ANY_PORT, None, database_url, &["--upstream", &upstream]).await
    }

    /// Starts `serve` with these further arguments, and waits until it listens.
    pub async fn start_with(database_url: &str, arguments: &[&str]) -> Self {
        Self::start_in(None, database_url, arguments).await
    }

    /// The same in a folder of its own, where `taskhold.toml` and `.env` may lie.
    pub async fn start_in(folder: Option<&Path>, database_url: &str, arguments: &[&str]) -> Self {
        Self::launch(ANY_PORT, folder, database_url, arguments).await
    }

    async fn launch(address: &str, folder: Option<&Path>, database_url: &str, arguments: &[&str]) -> Self {
        Self::launch_of(&binary(), address, folder, database_url, arguments).await
    }

    async fn launch_of(
        binary: &str,
        address: &str,
        folder: Option<&Path>,
        database_url: &str,
        arguments: &[&str],
    ) -> Self {
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", address, "--database-url", database_url]).args(arguments);
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        Self::run(command).await
    }

    /// Starts a command that is `serve`, whatever else it is given, and waits until it listens.
    pub async fn run(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let stderr = child.stderr.take().expect("standard error is piped");
        let (sender, lines) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut reader = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = reader.next_line().await {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut server = Self { child, url: String::new(), lines, log: Vec::new() };
        let ready = server.wait_for_line("is listening on ").await;
        let at = ready.find("http://").unwrap_or_else(|| panic!("no URL in {ready:?}"));
        server.url = ready[at..].trim_end_matches(['"', '}']).to_owned();
        server
    }

    /// Reads standard error up to a line that contains `part`.
    pub async fn wait_for_line(&mut self, part: &str) -> String {
        let wait = async {
            while let Some(line) = self.lines.recv().await {
                self.log.push(line.clone());
                if line.contains(part) {
                    return Some(line);
                }
            }
            None
        };
        let found = tokio::time::timeout(PATIENCE, wait).await.ok().flatten();
        found.unwrap_or_else(|| panic!("no line with {part:?} in:\n{}", self.log.join("\n")))
    }

    /// Takes what it has written to standard error until the time is over.
    pub async fn listen_for(&mut self, time: Duration) -> Vec<String> {
        let deadline = tokio::time::Instant::now() + time;
        let before = self.log.len();
        while let Ok(Some(line)) = tokio::time::timeout_at(deadline, self.lines.recv()).await {
            self.log.push(line);
        }
        self.log[before..].to_vec()
    }

    pub fn pid(&self) -> i32 {
        self.child.id().and_then(|id| id.try_into().ok()).expect("it runs")
    }

    /// SIGKILL, and wait until it is gone; answers what it wrote to standard error.
    pub async fn kill(mut self) -> Vec<String> {
        self.child.kill().await.expect("it can be killed");
        let rest = async {
            while let Some(line) = self.lines.recv().await {
                self.log.push(line);
            }
        };
        tokio::time::timeout(PATIENCE, rest).await.expect("nobody else holds its standard error");
        self.log
    }

    /// SIGTERM, and wait for its end.
    pub async fn terminate(self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.exited().await
    }

    /// Waits for its end.
    pub async fn exited(mut self) -> ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends in time").expect("it has a status")
    }

    /// Waits for its end; answers what it wrote to standard error as well.
    pub async fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends in time");
        while let Ok(line) = self.lines.try_recv() {
            self.log.push(line);
        }
        (status.expect("it has a status"), self.log)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("a process id is positive");
        rustix::process::kill_process(pid, signal).expect("it can be signalled");
    }
}

fn test_tools() -> String {
    format!("test={} demo-server --test-tools", binary())
}

/// Runs a command of the binary to its end: exit status, standard output, standard error.
pub async fn run(arguments: &[&str]) -> (ExitStatus, String, String) {
    let output = Command::new(binary()).args(arguments).stdin(Stdio::null()).output().await.expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it writes UTF-8");
    (output.status, text(&output.stdout), text(&output.stderr))
}

/// A fresh token for a context of its own.
pub async fn new_token(database_url: &str, name: &str) -> String {
    let (status, stdout, stderr) = run(&["token", "create", "--name", name, "--database-url", database_url]).await;
    assert!(status.success(), "{stderr}");
    let token = stdout.trim().to_owned();
    assert!(token.starts_with("th_") && !token.contains('\n'), "{stdout:?}");
    token
}

/// An address of 127.0.0.1 that is free, and that nobody is given who asks the system for any port: it lies below those.
/// No two calls of one process answer the same.
pub fn lasting_address() -> String {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Tests that run at the same time are processes with ids close to each other.
    let first = 10_000 + u16::try_from(std::process::id() * 16 % 10_000).expect("it is small");
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    loop {
        let port = 10_000 + (first - 10_000 + GIVEN.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if is_free(&port) {
            return format!("127.0.0.1:{port}");
        }
    }
}
