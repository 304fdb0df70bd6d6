//! A real PgBouncer in transaction mode before a database.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use taskhold::store::{DatabaseOptions, Pooler};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::cluster::{Account, free_port};
use super::database::{TestDatabase, options};

/// Runs until it is dropped.
pub struct PgBouncer {
    port: u16,
    process: Child,
    account: Account,
    folder: TempDir,
}

impl PgBouncer {
    /// Before the server of this URL, with at most so many connections to each of its databases, and these further settings.
    pub async fn before(url: &str, connections: u32, settings: &[(&str, &str)]) -> Self {
        let server = PgConnectOptions::from_str(url).expect("a PostgreSQL URL");
        let (account, port) = (Account::of_servers(), free_port());
        let folder = tempfile::tempdir().expect("a temporary folder");
        account.own(folder.path());
        let mut text = format!(
            "[databases]\n* = host={} port={} user={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\nserver_reset_query =\nmax_client_conn = 500\n\
             default_pool_size = {connections}\n",
            server.get_host(),
            server.get_port(),
            server.get_username()
        );
        for (name, value) in settings {
            writeln!(text, "{name} = {value}").expect("writes to memory");
        }
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, text).expect("the settings");
        account.own(&file);
        let process = launch(&account, folder.path());
        let mut started = Self { port, process, account, folder };
        started.listens().await;
        started
    }

    /// SIGKILL, and a new one at the same port.
    pub async fn restart(&mut self) {
        self.process.kill().await.expect("it can be killed");
        self.process = launch(&self.account, self.folder.path());
        self.listens().await;
    }

    async fn listens(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            let ended = self.process.try_wait().expect("it is a child");
            assert!(ended.is_none() && Instant::now() < deadline, "pgbouncer does not start: {ended:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The same database by way of this pooler.
    pub fn url_of(&self, url: &str) -> String {
        let (_, database) = url.rsplit_once('/').expect("a URL with a database");
        format!("postgres://anybody@127.0.0.1:{}/{database}", self.port)
    }
}

fn launch(account: &Account, folder: &Path) -> Child {
    let log = std::fs::File::create(folder.join("log")).expect("a log");
    let mut command = Command::from(account.command(&program()));
    command.arg(folder.join("pgbouncer.ini")).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.kill_on_drop(true).spawn().expect("pgbouncer is installed")
}

/// A migrated database whose store is behind a pooler.
pub async fn database_behind_a_pooler() -> TestDatabase {
    TestDatabase::by_way_of(async |url: &str| {
        // Fewer connections than the store has: one that is not given back is missed.
        let pooler = PgBouncer::before(url, 4, &[]).await;
        let options = DatabaseOptions { pooler: Pooler::Transaction, ..options(&pooler.url_of(url)) };
        (pooler, options)
    })
    .await
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = folders.map(|folder| folder.join("pgbouncer")).find(|program| program.exists());
    found.expect("pgbouncer is not installed: scripts/test installs it")
}
