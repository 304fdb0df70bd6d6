//! Node processes on one database, each at an address that outlives it, behind one balancer.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;

use super::balancer::Balancer;
use crate::support::database::{run, texts};
use crate::support::server::{Server, binary, lasting_address};

/// What its nodes are started with.
pub struct FleetPlan {
    /// One for each node, by whatever way it reaches the database; several, separated by commas, of which one is the primary.
    pub urls: Vec<String>,
    /// The way to the database that is never broken.
    pub database: String,
    /// Further lines of each node's configuration, before its upstream's.
    pub config: String,
    /// Each node's own environment.
    pub environment: fn(usize, &Path) -> Vec<(String, String)>,
}

impl FleetPlan {
    /// Three nodes, straight on this database.
    pub fn of_three(database: &str) -> Self {
        Self {
            urls: vec![database.to_owned(); 3],
            database: database.to_owned(),
            config: String::new(),
            environment: |_, _| Vec::new(),
        }
    }
}

pub struct Fleet {
    pub balancer: Balancer,
    pub folder: TempDir,
    plan: FleetPlan,
    nodes: Vec<Node>,
    /// What the dead wrote.
    logs: Vec<String>,
}

struct Node {
    address: String,
    /// Its id in the database, since its last start.
    id: Option<String>,
    server: Option<Server>,
}

impl Fleet {
    pub async fn start(plan: FleetPlan) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let nodes: Vec<Node> =
            plan.urls.iter().map(|_| Node { address: lasting_address(), id: None, server: None }).collect();
        let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
        let mut fleet = Self { balancer: Balancer::before(&addresses).await, folder, plan, nodes, logs: Vec::new() };
        for number in 0..fleet.len() {
            let folder = fleet.folder_of(number);
            std::fs::create_dir(&folder).unwrap();
            let upstream = format!(
                "[[upstreams]]\nname = \"test\"\ntask = \"eager\"\ncommand = [{:?}, \"demo-server\", \"--test-tools\"]\n",
                binary()
            );
            std::fs::write(folder.join("taskhold.toml"), format!("{}\n{upstream}", fleet.plan.config)).unwrap();
            fleet.launch(number).await;
        }
        fleet
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn folder_of(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("node-{number}"))
    }

    /// The endpoints of the nodes themselves.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}/mcp", node.address)).collect()
    }

    pub fn pid(&self, number: usize) -> i32 {
        self.server(number).pid()
    }

    pub fn runs(&self, number: usize) -> bool {
        self.nodes[number].server.is_some()
    }

    /// Starts a node that does not run, and waits until it listens.
    pub async fn launch(&mut self, number: usize) {
        let mut command = Command::new(binary());
        let node = &self.nodes[number];
        let url = &self.plan.urls[number];
        let folder = self.folder_of(number);
        command.args(["serve", "--listen", &node.address]);
        if url.contains(',') {
            command.env("TASKHOLD_DATABASE_URLS", url);
        } else {
            command.args(["--database-url", url]);
        }
        command.envs((self.plan.environment)(number, &folder)).env("TASKHOLD_LOG", "warn");
        command.current_dir(folder).stdin(Stdio::null());
        // Before the first there is no table to read.
        let is_first = self.nodes.iter().all(|node| node.id.is_none());
        let before = if is_first { Vec::new() } else { self.ids().await };
        let server = Server::run(command).await;
        self.nodes[number].server = Some(server);
        self.nodes[number].id = self.ids().await.into_iter().find(|id| !before.contains(id));
    }

    /// Starts all that do not run.
    pub async fn launch_missing(&mut self) {
        for number in 0..self.len() {
            if !self.runs(number) {
                self.launch(number).await;
            }
        }
    }

    /// SIGKILL.
    pub async fn kill(&mut self, number: usize) {
        let server = self.nodes[number].server.take().expect("it runs");
        let log = server.kill().await;
        self.logs.extend(log.into_iter().map(|line| format!("node {number}: {line}")));
    }

    /// SIGTERM, and its end.
    pub async fn terminate(&mut self, number: usize) -> ExitStatus {
        let server = self.nodes[number].server.take().expect("it runs");
        server.signal(Signal::TERM);
        let (status, log) = server.ended().await;
        self.logs.extend(log.into_iter().map(|line| format!("node {number}: {line}")));
        status
    }

    pub fn signal(&self, number: usize, signal: Signal) {
        self.server(number).signal(signal);
    }

    /// As if this node, which is dead or stopped, had been silent for longer than any node may be.
    pub async fn silence(&self, number: usize) {
        let id = self.nodes[number].id.as_ref().expect("it has reported");
        let silence = Duration::from_secs(30).as_micros();
        run(&self.plan.database, &format!("UPDATE nodes SET heartbeat = heartbeat - {silence} WHERE id = '{id}'"))
            .await;
    }

    /// Stops every node as a deployment does; answers what all of them wrote, and whether each ended well.
    pub async fn end(&mut self) -> (Vec<String>, bool) {
        let mut well = true;
        for number in 0..self.len() {
            if self.runs(number) {
                well &= self.terminate(number).await.success();
            }
        }
        (std::mem::take(&mut self.logs), well)
    }

    fn server(&self, number: usize) -> &Server {
        self.nodes[number].server.as_ref().expect("it runs")
    }

    /// The nodes in the database.
    async fn ids(&self) -> Vec<String> {
        let query = format!("SELECT {} AS id FROM nodes", self.id_as_text());
        texts(&self.plan.database, &query, "id").await
    }

    fn id_as_text(&self) -> &'static str {
        if self.plan.database.starts_with("sqlite") { "HEX(id)" } else { "CAST(id AS TEXT)" }
    }
}
