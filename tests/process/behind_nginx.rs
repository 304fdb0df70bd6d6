//! Nodes behind nginx, with the configuration that docs/deploys.md gives.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use taskhold::lifecycle::spawn;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, timeout};

use crate::http::harness::until;
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::modern::Modern;
use crate::support::nginx::Nginx;
use crate::support::server::{PATIENCE, Server, binary, lasting_address, new_token};

contract! {
    nodes_are_replaced_behind_nginx_and_no_client_sees_it,
    a_call_that_a_killed_node_had_is_not_sent_again,
    a_host_that_is_not_allowed_is_named_in_the_log,
}

/// The names in the document.
const NODES: [&str; 2] = ["10.0.0.11:8080", "10.0.0.12:8080"];
const HOST: &str = "mcp.example";
/// From one round of a client to the next.
const PAUSE: Duration = Duration::from_millis(50);

/// The only block of the page that is in this language and has this text.
fn documented(language: &str, part: &str) -> String {
    let page = std::fs::read_to_string("docs/deploys.md").unwrap();
    let opening = format!("```{language}\n");
    let mut blocks = page.split(opening.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap());
    let block = blocks.find(|block| block.contains(part)).expect("the document has it");
    assert!(!blocks.any(|block| block.contains(part)), "the document has it once");
    block.to_owned()
}

/// Two nodes, of which each may be there or not, behind one nginx.
struct Site {
    folder: TempDir,
    database: TestDatabase,
    nodes: [String; 2],
    nginx: Nginx,
    token: String,
}

impl Site {
    async fn new(database: TestDatabase) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = documented("toml", "public_url");
        std::fs::write(folder.path().join("taskhold.toml"), format!("{settings}\n[tasks]\ngrace = \"0s\"\n")).unwrap();
        let nodes = [lasting_address(), lasting_address()];
        let mut configuration = documented("nginx", "upstream");
        for (name, node) in NODES.iter().zip(&nodes) {
            configuration = configuration.replace(name, node);
        }
        let lines = configuration.lines().filter(|line| !line.trim_start().starts_with("ssl_"));
        let configuration = lines.collect::<Vec<_>>().join("\n");
        let nginx = Nginx::start(|address| configuration.replace("443 ssl", address)).await;
        let token = new_token(&database.url, "owner").await;
        Self { folder, database, nodes, nginx, token }
    }

    async fn start(&self, node: usize) -> Server {
        let mut command = Command::new(binary());
        command.args(["serve", "--listen", &self.nodes[node], "--database-url", &self.database.url]);
        command.args(["--upstream", &format!("test={} demo-server --test-tools", binary())]);
        command.current_dir(self.folder.path());
        Server::run(command).await
    }

    /// The address under which clients know it.
    fn url(&self) -> String {
        let port = self.nginx.address.rsplit(':').next().unwrap();
        format!("http://{HOST}:{port}/mcp")
    }

    /// Asks by the name that the document has, wherever that may lead elsewhere.
    fn http(&self) -> reqwest::Client {
        let address: SocketAddr = self.nginx.address.parse().unwrap();
        reqwest::Client::builder().no_proxy().resolve(HOST, address).build().unwrap()
    }

    async fn legacy(&self) -> Client {
        let mut client = Client { http: self.http(), ..Client::new(&self.url(), Some(&self.token)) };
        client.initialize("2025-11-25").await;
        client
    }

    fn modern(&self) -> Modern {
        Modern { http: self.http(), ..Modern::new(&self.url(), &self.token) }
    }
}

/// What clients do, and what they saw that they should not have seen.
struct Load {
    folder: String,
    is_over: AtomicBool,
    calls: AtomicU32,
    failures: Mutex<Vec<String>>,
}

impl Load {
    fn new(folder: &Path) -> Arc<Self> {
        Arc::new(Self {
            folder: folder.display().to_string(),
            is_over: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            failures: Mutex::default(),
        })
    }

    /// A call that must not run twice, with a file of its own for the lines that it leaves.
    fn charge(&self) -> Value {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        json!({ "file": format!("{}/charged-{n}", self.folder), "ms": 50 })
    }

    /// The result that was asked for: all else is a failure.
    fn result(&self, what: &str, answer: &reqwest::Result<Answer>) -> Option<Value> {
        let found = answer.as_ref().ok().filter(|answer| answer.status == 200).and_then(response);
        if found.is_none() {
            self.failures.lock().unwrap().push(format!("{what}: {answer:?}"));
        }
        found
    }

    fn expect(&self, what: &str, found: &Value, text: &str) {
        if found["content"][0]["text"] != text {
            self.failures.lock().unwrap().push(format!("{what}: {found}"));
        }
    }

    fn ticks() -> Interval {
        let mut ticks = tokio::time::interval(PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }

    async fn legacy(self: Arc<Self>, client: Client) {
        let mut ticks = Self::ticks();
        while !self.is_over.load(Ordering::SeqCst) {
            ticks.tick().await;
            let call = json!({ "name": "charge", "arguments": self.charge() });
            if let Some(charged) = self.result("a call", &client.try_request("tools/call", &call).await) {
                self.expect("a call", &charged, "charged");
            }
            let call = json!({ "name": "sleep", "arguments": { "ms": 300 }, "task": {} });
            let made = self.result("a task", &client.try_request("tools/call", &call).await);
            let Some(made) = made else { continue };
            let params = json!({ "taskId": made["task"]["taskId"] });
            self.result("a look", &client.try_request("tasks/get", &params).await);
            let mut answer = client.try_request("tasks/result", &params).await;
            // A stream that ends without its answer goes on after the last event that had an id, wherever that is.
            let mut last = None;
            while let Ok(stream) = &answer
                && is_unfinished(stream)
            {
                let ids = stream.body.lines().filter_map(|line| line.strip_prefix("id: "));
                last = ids.map(str::to_owned).next_back().or(last);
                let Some(last) = &last else { break };
                ticks.tick().await;
                let again = client.build(Method::GET).header("last-event-id", last);
                answer = async { Answer::try_read(again.send().await?).await }.await;
            }
            if let Some(slept) = self.result("a result", &answer) {
                self.expect("a result", &slept, "slept 300 ms");
            }
            self.result("a list", &client.try_request("tools/list", &json!({})).await);
        }
    }

    async fn modern(self: Arc<Self>, client: Modern) {
        let mut ticks = Self::ticks();
        let tasks = client.with_tasks();
        while !self.is_over.load(Ordering::SeqCst) {
            ticks.tick().await;
            let call = json!({ "name": "charge", "arguments": self.charge() });
            if let Some(charged) = self.result("a call", &client.try_request("tools/call", call).await) {
                self.expect("a call", &charged, "charged");
            }
            let call = json!({ "name": "sleep", "arguments": { "ms": 300 } });
            let Some(made) = self.result("a task", &tasks.try_request("tools/call", call).await) else { continue };
            loop {
                ticks.tick().await;
                let look = tasks.try_request("tasks/get", json!({ "taskId": made["taskId"] })).await;
                let Some(look) = self.result("a look", &look) else { break };
                if look["status"] == "completed" {
                    self.expect("a result", &look["result"], "slept 300 ms");
                    break;
                }
            }
        }
    }
}

/// The result of a response, whatever came before it.
fn response(answer: &Answer) -> Option<Value> {
    let mut message: Value = serde_json::from_str(answer.text()).ok()?;
    message.get("result")?;
    Some(message["result"].take())
}

/// A stream that ended without a response.
fn is_unfinished(answer: &Answer) -> bool {
    let message: Value = serde_json::from_str(answer.text()).unwrap_or_default();
    let is_whole = message.get("result").is_some() || message.get("error").is_some();
    answer.status == 200 && answer.is_stream() && !is_whole
}

fn lines_of(file: &str) -> usize {
    std::fs::read_to_string(file).unwrap_or_default().lines().count()
}

// req: KEEP-10
// field case: F-DUR-06
async fn nodes_are_replaced_behind_nginx_and_no_client_sees_it(database: TestDatabase) {
    let site = Site::new(database).await;
    let (one, two) = tokio::join!(site.start(0), site.start(1));
    let mut nodes = vec![one, two];
    let load = Load::new(site.folder.path());
    let mut clients = JoinSet::new();
    for _ in 0..2 {
        clients.spawn(Arc::clone(&load).legacy(site.legacy().await));
        clients.spawn(Arc::clone(&load).modern(site.modern()));
    }
    for at in 0..2 {
        for node in &mut nodes {
            node.wait_for_line("request answered").await;
        }
        // As long as this runs the node drains: it may not be repeated.
        let direct = Client::connected(&nodes[0].url, &site.token).await;
        let call = load.charge();
        let file = call["file"].as_str().unwrap().to_owned();
        let held = direct.task("charge", json!({ "file": file, "ms": 2_000 })).await["taskId"].clone();
        until("the node works", async || lines_of(&file) > 0).await;
        let leaving = nodes.remove(0);
        leaving.signal(Signal::TERM);
        let (status, log) = leaving.ended().await;
        assert!(status.success(), "{status}");
        let refused = log.iter().filter(|line| line.contains(r#""http.status":503"#)).count();
        assert!(refused > 0, "it was asked while it drained: {log:#?}");
        let held = direct.at(&nodes[0].url).result(&held).await.result();
        load.expect("a task that ran before", &held, "charged");
        nodes.push(site.start(at).await);
    }
    load.is_over.store(true, Ordering::SeqCst);
    timeout(PATIENCE, clients.join_all()).await.expect("all of them end");
    assert_eq!(*load.failures.lock().unwrap(), Vec::<String>::new(), "{}", site.nginx.errors());
    let calls = load.calls.load(Ordering::Relaxed);
    assert!(calls > 20, "there was a load: {calls}");
    for n in 0..calls {
        assert_eq!(lines_of(&format!("{}/charged-{n}", load.folder)), 1, "call {n} ran once");
    }
}

// req: KEEP-12
async fn a_call_that_a_killed_node_had_is_not_sent_again(database: TestDatabase) {
    let site = Site::new(database).await;
    let one = site.start(0).await;
    let legacy = Client { accept: "application/json", ..site.legacy().await };
    let modern = Modern { accept: "application/json", ..site.modern() };
    let load = Load::new(site.folder.path());
    let [first, second] = [(); 2].map(|()| {
        let call = load.charge();
        (call["file"].as_str().unwrap().to_owned(), json!({ "file": call["file"], "ms": 600_000 }))
    });
    let [by_legacy, by_modern] = [&first, &second].map(|(_, call)| json!({ "name": "charge", "arguments": call }));
    let calls = [
        spawn("client", {
            let client = legacy.clone();
            async move { client.try_request("tools/call", &by_legacy).await }
        }),
        spawn("client", {
            let client = modern.clone();
            async move { client.try_request("tools/call", by_modern).await }
        }),
    ];
    until("both run", async || lines_of(&first.0) + lines_of(&second.0) == 2).await;
    let _two = site.start(1).await;
    one.kill().await;
    for call in calls {
        let answer = timeout(PATIENCE, call).await.expect("nginx sees it").unwrap().unwrap();
        assert_eq!(answer.status, 502, "{answer:?}");
    }
    // New requests find the other node.
    let echo = json!({ "name": "echo", "arguments": {} });
    let is_served = |answer: reqwest::Result<Answer>| answer.is_ok_and(|answer| answer.status == 200);
    until("the other node serves", async || is_served(modern.try_request("tools/call", echo.clone()).await)).await;
    assert!(is_served(legacy.try_request("tools/call", &echo).await));
    assert_eq!([lines_of(&first.0), lines_of(&second.0)], [1, 1], "neither ran again");
}

// req: HTTP-01, OPS-08
async fn a_host_that_is_not_allowed_is_named_in_the_log(database: TestDatabase) {
    let mut server = Server::start(&database.url).await;
    let client = Client::new(&server.url, None);
    for (header, value, key) in [
        ("host", "mcp.example:8443", "server.allowed_hosts"),
        ("origin", "https://page.example", "server.allowed_origins"),
    ] {
        let answer = client.build(Method::POST).header(header, value).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 403);
        let line = server.wait_for_line(key).await;
        assert!(line.contains(value), "{line}");
        assert!(!answer.text().await.unwrap().contains(key), "what to set is not for strangers");
    }
}
