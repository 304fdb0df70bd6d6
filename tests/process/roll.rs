//! Deploys: nodes that are replaced one after the other while clients go on, and two releases on one database meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{PATIENCE, Server, binary, new_token};

contract! {
    a_rolling_restart_under_load_loses_nothing_and_repeats_nothing,
    a_node_that_leaves_is_not_ready_and_serves_on_for_the_delay,
    a_node_answers_until_its_last_call_is_over,
    a_second_signal_ends_the_delay_as_well,
    tasks_pass_between_the_release_before_and_this_one,
}

/// How often the balancer asks who is ready.
const PROBE: Duration = Duration::from_millis(100);
const NEW_TASK: Duration = Duration::from_millis(50);

/// What a load balancer knows: nodes, and which of them said last that they are ready.
#[derive(Default)]
struct Balancer {
    nodes: Mutex<Vec<(String, bool)>>,
    turn: AtomicU64,
    /// Requests that were sent again, since their connection broke.
    retried: AtomicU64,
    /// Calls that were answered by anything but what they asked for.
    refused: Mutex<Vec<String>>,
}

impl Balancer {
    fn add(&self, server: &Server) {
        self.nodes.lock().unwrap().push((server.url.clone(), true));
    }

    fn remove(&self, url: &str) {
        self.nodes.lock().unwrap().retain(|(node, _)| node != url);
    }

    fn next(&self) -> String {
        let nodes = self.nodes.lock().unwrap();
        let ready: Vec<_> = nodes.iter().filter(|(_, ready)| *ready).collect();
        let turn = usize::try_from(self.turn.fetch_add(1, Ordering::Relaxed)).unwrap();
        ready[turn % ready.len()].0.clone()
    }

    async fn probe(self: Arc<Self>) {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        loop {
            let urls: Vec<String> = self.nodes.lock().unwrap().iter().map(|(url, _)| url.clone()).collect();
            join_all(urls.into_iter().map(async |url| {
                let answer = http.get(url.replace("/mcp", "/readyz")).timeout(Duration::from_secs(1)).send().await;
                let is_ready = answer.is_ok_and(|answer| answer.status() == 200);
                let mut nodes = self.nodes.lock().unwrap();
                nodes.iter_mut().filter(|(node, _)| *node == url).for_each(|(_, ready)| *ready = is_ready);
            }))
            .await;
            tokio::time::sleep(PROBE).await;
        }
    }

    /// Sends a request until a whole answer comes, as a balancer does whose connection breaks. `None` for a stream that ended
    /// without its answer, to go on elsewhere.
    async fn send(&self, client: &Client, method: &str, params: &Value, key: Option<&str>) -> Option<Value> {
        let body = client.message(method, params);
        loop {
            let mut request = client.at(&self.next()).build(Method::POST).header("content-type", "application/json");
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            let sent = async { Answer::try_read(request.body(body.clone()).send().await?).await };
            let Ok(answer) = sent.await else {
                self.retried.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PROBE).await;
                continue;
            };
            // Notifications may have come before it, and nothing at all.
            let message = serde_json::from_str::<Value>(answer.text()).unwrap_or_default();
            if message.get("result").is_some() {
                return Some(message["result"].clone());
            }
            if answer.is_stream() && message.get("error").is_none() {
                assert!(answer.body.contains("retry: "), "a stream that goes on elsewhere says so: {answer:?}");
                return None;
            }
            // The database of a machine that has too much to do; it is not the deploy that says so.
            if message["error"]["data"]["reason"] == "temporarily_unavailable" {
                self.retried.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PROBE).await;
                continue;
            }
            self.refused.lock().unwrap().push(format!("{method}: {answer:?}"));
            return None;
        }
    }

    /// A task from its making to its result.
    async fn task(&self, client: &Client, tool: &str, arguments: Value, key: &str) -> Option<String> {
        let params = json!({ "name": tool, "arguments": arguments, "task": { "ttl": 600_000 } });
        let made = self.send(client, "tools/call", &params, Some(key)).await?;
        let id = made["task"]["taskId"].clone();
        loop {
            match self.send(client, "tasks/result", &json!({ "taskId": id }), None).await {
                Some(result) => return result["content"][0]["text"].as_str().map(str::to_owned),
                None if self.refused.lock().unwrap().is_empty() => tokio::time::sleep(PROBE).await,
                None => return None,
            }
        }
    }
}

fn delayed(delay: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("taskhold.toml"), format!("[server]\ndrain_delay = \"{delay}\"\n")).unwrap();
    folder
}

async fn node(folder: &Path, database: &TestDatabase) -> Server {
    let upstream = format!("test={} demo-server --test-tools", binary());
    Server::start_in(Some(folder), &database.url, &["--upstream", &upstream]).await
}

// req: KEEP-10
// field case: F-DUR-06
async fn a_rolling_restart_under_load_loses_nothing_and_repeats_nothing(database: TestDatabase) {
    let folder = delayed("2s");
    let token = new_token(&database.url, "owner").await;
    let balancer = Arc::new(Balancer::default());
    let (one, two) = tokio::join!(node(folder.path(), &database), node(folder.path(), &database));
    balancer.add(&one);
    balancer.add(&two);
    let probing = tokio::spawn(Arc::clone(&balancer).probe());
    let client = Client::connected(&one.url, &token).await;

    let rolled = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (balancer, client, rolled) = (Arc::clone(&balancer), client.clone(), Arc::clone(&rolled));
        let file = folder.path().join("charged");
        async move {
            let mut calls = JoinSet::new();
            let mut ticks = tokio::time::interval(NEW_TASK);
            for n in 0_u32.. {
                if rolled.load(Ordering::SeqCst) {
                    break;
                }
                ticks.tick().await;
                let (balancer, client) = (Arc::clone(&balancer), client.clone());
                // Every fifth may not be repeated, and leaves a trace of each time that it runs.
                let (tool, arguments) = if n % 5 == 0 {
                    ("charge", json!({ "file": format!("{}-{n}", file.display()), "ms": 500 }))
                } else {
                    ("sleep", json!({ "ms": 2_000 }))
                };
                calls.spawn(async move { balancer.task(&client, tool, arguments, &format!("call-{n}")).await });
            }
            calls.join_all().await
        }
    });
    let mut nodes = vec![one, two];
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let fresh = node(folder.path(), &database).await;
        balancer.add(&fresh);
        nodes.push(fresh);
        let old = nodes.remove(0);
        let url = old.url.clone();
        assert!(old.terminate().await.success());
        balancer.remove(&url);
    }
    rolled.store(true, Ordering::SeqCst);
    let answers = tokio::time::timeout(PATIENCE, load).await.expect("all of them end").unwrap();
    probing.abort();

    let retried = balancer.retried.load(Ordering::Relaxed);
    eprintln!("{} tasks, {retried} requests were sent again", answers.len());
    assert_eq!(*balancer.refused.lock().unwrap(), Vec::<String>::new(), "no call fails");
    for answer in &answers {
        assert!(matches!(answer.as_deref(), Some("charged" | "slept 2000 ms")), "{answer:?}");
    }
    let made = i64::try_from(answers.len()).unwrap();
    assert!(made > 60, "there was a load: {made}");
    assert_eq!(
        database.number("SELECT COUNT(*) FROM tasks WHERE status = 2").await,
        made,
        "none is lost, none made twice"
    );
    assert_eq!(
        database.number("SELECT COUNT(*) FROM task_outcomes WHERE attempt <> 1").await,
        0,
        "no attempt is counted"
    );
    let traces = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    for trace in traces.filter(|path| path.to_string_lossy().contains("charged-")) {
        assert_eq!(std::fs::read_to_string(&trace).unwrap(), "charged\n", "{} ran once", trace.display());
    }
}

async fn readiness(server: &Server) -> (u16, Value) {
    let answer = Client::new(&server.url.replace("/mcp", "/readyz"), None).build(Method::GET).send().await.unwrap();
    let status = answer.status().as_u16();
    (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
}

// req: KEEP-10
async fn a_node_that_leaves_is_not_ready_and_serves_on_for_the_delay(database: TestDatabase) {
    let folder = delayed("3s");
    let token = new_token(&database.url, "owner").await;
    let mut leaving = node(folder.path(), &database).await;
    let client = Client::connected(&leaving.url, &token).await;
    let running = client.task("sleep", json!({ "ms": 600_000 })).await;
    assert_eq!(readiness(&leaving).await.0, 200);
    leaving.signal(rustix::process::Signal::TERM);
    leaving.wait_for_line("stopping").await;
    let (status, said) = readiness(&leaving).await;
    assert_eq!((status, &said["ready"], &said["draining"]), (503, &json!(false), &json!(true)));
    // Who has not heard of it yet is served as before, and what runs goes on.
    let late = client.task("echo", json!({ "n": 1 })).await;
    client.until_status(&late["taskId"], "completed").await;
    assert_eq!(client.get(&running["taskId"]).await.result()["statusMessage"], "running");
    assert!(leaving.exited().await.success());
    let attempts = "SELECT attempt FROM task_live WHERE node IS NULL";
    assert_eq!(database.number(attempts).await, 0, "then it was handed back, and no attempt counted");
}

/// While a call that is no task runs to its end, whoever comes is told to come later, and not that nobody is there.
// req: KEEP-10, OPS-06
async fn a_node_answers_until_its_last_call_is_over(database: TestDatabase) {
    let folder = delayed("0s");
    let token = new_token(&database.url, "owner").await;
    let mut leaving = node(folder.path(), &database).await;
    let client = Client::connected(&leaving.url, &token).await;
    let held = folder.path().join("held");
    let call = json!({ "name": "charge", "arguments": { "file": held, "ms": 5_000 } });
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.request("tools/call", call).await }
    });
    while !held.exists() {
        assert!(!call.is_finished(), "it runs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    leaving.signal(rustix::process::Signal::TERM);
    leaving.wait_for_line("stopping").await;
    for _ in 0..5 {
        let (status, said) = readiness(&leaving).await;
        assert_eq!((status, &said["draining"]), (503, &json!(true)));
        let refused = client.request("tools/call", json!({ "name": "echo", "arguments": {} })).await;
        assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(!call.is_finished(), "it ran all the time");
    assert_eq!(call.await.unwrap().result()["content"][0]["text"], "charged");
    assert!(leaving.exited().await.success());
}

// req: KEEP-10
async fn a_second_signal_ends_the_delay_as_well(database: TestDatabase) {
    let folder = delayed("1h");
    let mut leaving = node(folder.path(), &database).await;
    leaving.signal(rustix::process::Signal::TERM);
    leaving.wait_for_line("stopping: ").await;
    leaving.signal(rustix::process::Signal::TERM);
    leaving.wait_for_line("stopping at once").await;
    assert!(leaving.exited().await.success());
}

/// With `TASKHOLD_TEST_PREVIOUS_BINARY`, which `scripts/previous-binary` builds; without it there is nothing to compare with, and
/// what stands for it is `store::migrations` and `process::upgrade`.
async fn tasks_pass_between_the_release_before_and_this_one(database: TestDatabase) {
    let Ok(previous) = std::env::var("TASKHOLD_TEST_PREVIOUS_BINARY") else {
        eprintln!("not run: TASKHOLD_TEST_PREVIOUS_BINARY is not set; scripts/previous-binary builds what it names");
        return;
    };
    let token = new_token(&database.url, "owner").await;
    let releases = [previous, binary()];
    let starts = releases.each_ref().map(|release| Server::start_of(release, &database.url));
    let [before, this] = starts;
    let (mut leaving, mut staying) = tokio::join!(before, this);
    for round in 0..4 {
        let client = Client::connected(&leaving.url, &token).await;
        let mut made = Vec::new();
        for n in 0..8 {
            made.push(client.task("sleep", json!({ "ms": 2_000 + n })).await["taskId"].clone());
        }
        let ended = client.task("echo", json!({ "round": round })).await["taskId"].clone();
        let text = client.result(&ended).await.outcome();
        assert!(leaving.terminate().await.success());
        // With the session that the other release opened.
        let client = client.at(&staying.url);
        assert_eq!(client.result(&ended).await.outcome(), text);
        for (n, id) in made.iter().enumerate() {
            let slept = client.result(id).await.result();
            assert_eq!(slept["content"][0]["text"], format!("slept {} ms", 2_000 + n));
        }
        // Then the other way round.
        leaving = staying;
        staying = Server::start_of(&releases[round % 2], &database.url).await;
    }
    assert_eq!(database.number("SELECT COUNT(*) FROM task_outcomes WHERE attempt <> 1").await, 0);
}
