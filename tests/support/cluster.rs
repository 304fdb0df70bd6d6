//! PostgreSQL servers of a test's own, to be killed, promoted and set aside.
//!
//! They listen on 127.0.0.1 alone, know no passwords, and end with their owners. Their programs are those of
//! `TASKHOLD_TEST_POSTGRES_BIN`, or of the newest server that is installed.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection as _, PgConnection, Row as _};
use tempfile::TempDir;

use super::database::{run, texts};
use super::processes::Process;

/// One server.
pub struct Cluster {
    folder: TempDir,
    port: u16,
    account: Arc<Account>,
}

/// How a server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Ends its sessions and writes everything out.
    Fast,
    /// Ends at once, as by a crash.
    Immediate,
    /// SIGKILL.
    Kill,
    /// Hangs with all its sessions, until it is dropped: nothing is closed, and nothing answered.
    Freeze,
}

impl Cluster {
    /// A new server, with these settings besides small defaults. It runs.
    pub async fn new(settings: &[(&str, &str)]) -> Self {
        let cluster = Self::empty();
        cluster.run("initdb", &["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]);
        let defaults = [("fsync", "off"), ("shared_buffers", "'32MB'"), ("wal_retrieve_retry_interval", "'200ms'")];
        cluster.configure(&defaults);
        cluster.configure(settings);
        cluster.start().await;
        cluster
    }

    /// A new server that follows this one. It runs, and what this one commits from now on is on both.
    pub async fn standby(&self) -> Self {
        let standby = Self::empty();
        // As pg_basebackup does, which not every folder of programs has.
        let mut session = PgConnection::connect(&self.url("postgres")).await.expect("connects");
        sqlx::raw_sql("SELECT pg_backup_start('standby', true)").execute(&mut session).await.expect("begins");
        let mut copy = self.account.command(Path::new("cp"));
        copy.arg("-a").arg(self.data()).arg(standby.data());
        // What goes while it is copied is not needed.
        copy.stderr(Stdio::null()).status().expect("copies");
        let stop = "SELECT labelfile FROM pg_backup_stop(false)";
        let label: String = sqlx::raw_sql(stop).fetch_one(&mut session).await.expect("ends").get(0);
        session.close().await.expect("closes");
        for left in ["postmaster.pid", "postmaster.opts"] {
            std::fs::remove_file(standby.data().join(left)).expect("was copied");
        }
        let source = format!("primary_conninfo = 'host=127.0.0.1 port={} user=postgres'\n", self.port);
        for (name, text) in [("backup_label", &label), ("standby.signal", &String::new())] {
            let path = standby.data().join(name);
            std::fs::write(&path, text).expect("writes");
            self.account.own(&path);
        }
        standby.append("postgresql.auto.conf", &source);
        standby.start().await;
        let streaming = "SELECT state FROM pg_stat_replication WHERE state = 'streaming'";
        until(async || !texts(&self.url("postgres"), streaming, "state").await.is_empty()).await;
        self.set("synchronous_standby_names", "'*'").await;
        standby
    }

    /// The URL of one of its databases, for its superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    pub async fn create_database(&self, name: &str) -> String {
        run(&self.url("postgres"), &format!("CREATE DATABASE {name}")).await;
        self.url(name)
    }

    /// Changes a setting, which holds for sessions that there are as well, and after a restart.
    pub async fn set(&self, name: &str, value: &str) {
        // Each on its own: a change of the system is no part of a transaction.
        run(&self.url("postgres"), &format!("ALTER SYSTEM SET {name} = {value}")).await;
        run(&self.url("postgres"), "SELECT pg_reload_conf()").await;
    }

    /// Starts it on the port that it had, and waits until it answers.
    pub async fn start(&self) {
        let options = format!("-h 127.0.0.1 -p {} -k {}", self.port, self.folder.path().display());
        let log = self.folder.path().join("log").display().to_string();
        self.run("pg_ctl", &["-w", "-t", "60", "-s", "-l", &log, "-o", &options, "start"]);
    }

    pub async fn stop(&self, stop: Stop) {
        match stop {
            Stop::Fast => self.run("pg_ctl", &["-w", "-s", "-m", "fast", "stop"]),
            Stop::Immediate => self.run("pg_ctl", &["-w", "-s", "-m", "immediate", "stop"]),
            Stop::Kill => self.signal(Signal::KILL),
            Stop::Freeze => {
                self.signal(Signal::STOP);
                Process::family_of(self.pid().expect("it runs")).iter().for_each(|child| {
                    child.signal(Signal::STOP);
                });
            }
        }
    }

    pub async fn restart(&self, stop: Stop) {
        self.stop(stop).await;
        self.start().await;
    }

    /// Makes a standby the primary; waits until it is.
    pub async fn promote(&self) {
        self.run("pg_ctl", &["-w", "-t", "60", "-s", "promote"]);
    }

    fn pid(&self) -> Option<i32> {
        std::fs::read_to_string(self.data().join("postmaster.pid")).ok()?.lines().next()?.parse().ok()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(Pid::from_raw).expect("it runs");
        kill_process(pid, signal).expect("it runs");
    }

    fn empty() -> Self {
        let account = Arc::new(Account::of_servers());
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("permissions");
        account.own(folder.path());
        Self { folder, port: free_port(), account }
    }

    /// Its folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn configure(&self, settings: &[(&str, &str)]) {
        let lines: String = settings.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        self.append("postgresql.conf", &lines);
    }

    fn append(&self, file: &str, text: &str) {
        let path = self.data().join(file);
        let before = std::fs::read_to_string(&path).expect("the settings");
        std::fs::write(&path, before + text).expect("the settings");
    }

    /// Runs one of the server's programs on its data.
    fn run(&self, program: &str, arguments: &[&str]) {
        let log = self.folder.path().join(format!("{program}.log"));
        let output = std::fs::File::create(&log).expect("a log");
        let data = self.data();
        let mut command = self.account.command(&programs().join(program));
        command.arg("-D").arg(&data).args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        let errors = output.try_clone().expect("a log");
        // Not by a pipe, which a server that goes on would keep open.
        let status = command.stdout(output).stderr(errors).status().expect("runs");
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        assert!(status.success(), "{program}: {} {}", read(&log), read(&self.folder.path().join("log")));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            // What hangs would not hear of it.
            for process in Process::family_of(pid) {
                process.signal(Signal::CONT);
            }
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::CONT));
            let mut command = self.account.command(&programs().join("pg_ctl"));
            command.arg("-D").arg(self.data()).args(["-m", "immediate", "-w", "-s", "stop"]);
            // One that was killed has ended already.
            let _ = command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// Under which account servers run that refuse to be root.
pub struct Account {
    /// The user and the group; `None` for our own.
    ids: Option<(u32, u32)>,
}

impl Account {
    pub fn of_servers() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self { ids: None };
        }
        let accounts = std::fs::read_to_string("/etc/passwd").expect("the accounts");
        let ids = |name: &str| {
            let line = accounts.lines().find(|line| line.starts_with(&format!("{name}:")))?;
            let mut fields = line.split(':').skip(2).map(str::parse);
            Some((fields.next()?.ok()?, fields.next()?.ok()?))
        };
        Self { ids: Some(ids("postgres").or_else(|| ids("nobody")).expect("an account for servers")) }
    }

    /// Gives it a file or a folder.
    pub fn own(&self, path: &Path) {
        if let Some((user, group)) = self.ids {
            chown(path, Some(user), Some(group)).expect("changes the owner");
        }
    }

    /// A command that it runs.
    pub fn command(&self, program: &Path) -> Command {
        let Some((user, group)) = self.ids else { return Command::new(program) };
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]).arg(program);
        command
    }
}

/// A port that nobody had a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// The folder of the server's programs.
pub fn programs() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "which server is tested is a setting of the tests")]
    if let Ok(folder) = std::env::var("TASKHOLD_TEST_POSTGRES_BIN") {
        return folder.into();
    }
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for folder in std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        let version = folder.file_name().to_string_lossy().parse().unwrap_or_default();
        found.push((version, folder.path().join("bin")));
    }
    found.retain(|(_, folder)| folder.join("initdb").exists());
    if let Some((_, newest)) = found.into_iter().max() {
        return newest;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).find(|folder| folder.join("initdb").exists());
    on_path.expect("PostgreSQL's programs are installed, or TASKHOLD_TEST_POSTGRES_BIN says where they are")
}

async fn until(condition: impl AsyncFn() -> bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "this takes too long");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
