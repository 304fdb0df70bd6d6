//! Upstreams by URL, and upstreams that are slow, gone or forgetful.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taskhold::domain::clock::SystemClock;
use taskhold::executor::Catalogue as _;
use taskhold::executor::upstream::{Endpoint, ToolConfig, UpstreamConfig, Upstreams};
use tokio::sync::Notify;

use crate::http::harness::{Gateway, engine_rules, until};
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::remote::{Remote, Sessions, broken, event, scenario, stream, whole};
use crate::support::server::lasting_address;
use crate::upstream::harness::{BINARY, script, settings, test_tools, within};

contract! {
    a_task_that_is_cancelled_is_cancelled_where_it_runs,
    an_upstream_that_forgets_its_session_ends_its_task_honestly,
}

/// Far less than a call takes that nobody cancels, however busy the machine is.
const SOON: Duration = Duration::from_secs(5);

async fn gateway(database: TestDatabase, configs: Vec<UpstreamConfig>) -> Gateway {
    Gateway::with(database, settings(), configs, engine_rules()).await
}

async fn sqlite() -> TestDatabase {
    TestDatabase::new(Backend::Sqlite).await
}

// field case: F-GW-03
async fn a_task_that_is_cancelled_is_cancelled_where_it_runs(database: TestDatabase) {
    let release = Arc::new(Notify::new());
    let remote = Remote::start(scenario({
        let release = Arc::clone(&release);
        move |seen| {
            let release = Arc::clone(&release);
            async move {
                if !seen.is_call() {
                    return None;
                }
                // Deaf: it answers late, whatever it is told.
                release.notified().await;
                Some(whole(&seen.text("late")))
            }
        }
    }))
    .await;
    let log = tempfile::NamedTempFile::new().unwrap();
    let local = script("local", &format!("tee -a {} | {BINARY} demo-server --test-tools", log.path().display()));
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let gateway = gateway(database, vec![local, UpstreamConfig::at("remote", &remote.url)]).await;
    let client = gateway.client("owner").await;
    let (other, cancelled) = (client.task("t", json!({ "n": 1 })).await, client.task("t", json!({ "n": 2 })).await);
    let deaf = client.task("deaf", json!({ "ms": 60_000 })).await;
    let local_other = client.task("sleep", json!({ "ms": 1500 })).await;
    let calls = || lines().into_iter().filter(|line| line["method"] == "tools/call").collect::<Vec<_>>();
    until("the calls to arrive", async || remote.messages("tools/call").len() == 2 && calls().len() == 2).await;

    let began = Instant::now();
    for task in [&cancelled, &deaf] {
        assert_eq!(client.cancel(&task["taskId"]).await.result()["status"], "cancelled");
    }
    let told = || lines().into_iter().find(|line| line["method"] == "notifications/cancelled");
    until("both to be told", async || remote.messages("notifications/cancelled").len() == 1 && told().is_some()).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let at_remote = remote.messages("tools/call").into_iter().find(|seen| seen.arguments()["n"] == 2).unwrap();
    let told_remote = remote.messages("notifications/cancelled").remove(0);
    assert_eq!(told_remote.body["params"]["requestId"], at_remote.body["id"]);
    assert_eq!(told_remote.session(), at_remote.session());
    let at_local = calls().into_iter().find(|call| call["params"]["name"] == "deaf").unwrap();
    assert_eq!(told().unwrap()["params"]["requestId"], at_local["id"]);

    release.notify_waiters();
    let answer = client.result(&other["taskId"]).await.result();
    assert_eq!(answer["content"][0]["text"], "late", "the other call is unharmed");
    let answer = client.result(&local_other["taskId"]).await.result();
    assert_eq!(answer["content"][0]["text"], "slept 1500 ms");
    for task in [&cancelled, &deaf] {
        assert_eq!(client.get(&task["taskId"]).await.result()["status"], "cancelled", "a late result is ignored");
    }
    gateway.upstreams.stop().await;
}

// req: EXEC-15
// field case: F-GW-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_upstream_hides_no_tools_of_others() {
    let hangs = Arc::new(AtomicBool::new(true));
    let slow = Remote::hanging(&hangs).await;
    // Nobody is there yet, and nobody else is given the port meanwhile.
    let address: SocketAddr = lasting_address().parse().unwrap();
    let url = format!("http://{address}/mcp");
    let mut hasty = settings();
    hasty.start_timeout = Duration::from_secs(10);
    let prefixed = |name: &str, url: &str| UpstreamConfig { prefix: true, ..UpstreamConfig::at(name, url) };
    let configs = vec![prefixed("gone", &url), prefixed("slow", &slow.url), test_tools("test")];
    let database = sqlite().await;
    let began = Instant::now();
    let gateway = Gateway::unsettled(database, hasty, configs, engine_rules()).await;
    let client = gateway.client("owner").await;
    let names = async || -> Vec<String> {
        let list = client.request("tools/list", json!({})).await.result();
        list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    until("the good one's tools", async || names().await.contains(&"echo".to_owned())).await;
    assert!(slow.messages("initialize").len() <= 1 && began.elapsed() < Duration::from_secs(10), "while it hangs");
    let asked = Instant::now();
    assert!(names().await.iter().all(|name| !name.contains("__")));
    assert!(asked.elapsed() < Duration::from_secs(2));
    assert_eq!(client.call("echo", json!({ "n": 1 })).await.result()["structuredContent"], json!({ "n": 1 }));

    let mut changes = gateway.upstreams.changes();
    changes.mark_unchanged();
    hangs.store(false, Ordering::SeqCst);
    let _back = Remote::start_at(address, scenario(async |_| None)).await;
    let both = async || {
        let names = names().await;
        ["gone__t", "slow__t"].iter().all(|name| names.contains(&(*name).to_owned()))
    };
    let recovery = async {
        while !both().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), recovery).await.expect("both come back, for the same session");
    assert!(changes.has_changed().unwrap(), "whoever relays changes of the list is told");
    assert_eq!(client.call("slow__t", json!({})).await.result()["content"][0]["text"], "fine");
    gateway.upstreams.stop().await;
}

// field case: F-GW-09
async fn an_upstream_that_forgets_its_session_ends_its_task_honestly(database: TestDatabase) {
    let sessions = Sessions::default();
    let (say, held) = stream();
    let held = Arc::new(Mutex::new(Some(held)));
    let remote = Remote::start(scenario({
        let sessions = sessions.clone();
        move |seen| {
            let (sessions, held) = (sessions.clone(), Arc::clone(&held));
            async move {
                let is_long = seen.is_call() && seen.arguments()["long"] == true;
                sessions.answer(&seen, 404).or_else(|| held.lock().unwrap().take_if(|_| is_long))
            }
        }
    }))
    .await;
    let gateway = gateway(database, vec![UpstreamConfig::at("remote", &remote.url)]).await;
    let client = gateway.client("owner").await;
    let calls = async |n: u32| client.call("t", json!({ "n": n })).await.result()["content"][0]["text"].clone();
    assert_eq!(calls(1).await, "fine");
    // While idle: the next call works, though it was refused once.
    sessions.forget();
    assert_eq!(calls(2).await, "fine");
    assert_eq!(remote.messages("tools/call").iter().filter(|seen| seen.arguments()["n"] == 2).count(), 2);
    // While a task runs: it ends with what is known of it, and the next call works.
    let task = client.task("t", json!({ "long": true })).await;
    until("the call to arrive", async || remote.messages("tools/call").len() == 4).await;
    say.send(Ok("id: 1\nretry: 20\ndata:\n\n".to_owned())).unwrap();
    sessions.forget();
    say.send(broken()).unwrap();
    let failed = client.until_status(&task["taskId"], "failed").await;
    let message = failed["statusMessage"].as_str().unwrap();
    assert!(message.contains("outcome unknown"), "{message}");
    let error = client.result(&task["taskId"]).await.json()["error"].clone();
    assert_eq!(error["data"]["reason"], "outcome_unknown");
    assert_eq!(remote.messages("tools/call").iter().filter(|seen| seen.arguments()["long"] == true).count(), 1);
    assert_eq!(calls(3).await, "fine");
    gateway.upstreams.stop().await;
}

/// Counts the calls of each session.
async fn counter() -> Remote {
    let counts: Arc<Mutex<std::collections::HashMap<String, u32>>> = Arc::default();
    Remote::start(scenario(move |seen| {
        let counts = Arc::clone(&counts);
        async move {
            if !seen.is_call() {
                return None;
            }
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(seen.session().unwrap().to_owned()).or_default();
            *count += 1;
            Some(whole(&seen.text(&count.to_string())))
        }
    }))
    .await
}

// req: EXEC-12, AUTH-12
// field case: F-GW-14
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_no_session_of_an_upstream_unless_it_is_declared_shared() {
    for shared in [false, true] {
        let remote = counter().await;
        let headers = vec![("AUTHORIZATION".to_owned(), "Bearer of-the-gateway".into())];
        let endpoint = Endpoint { headers, ..Endpoint::new(&remote.url) };
        let config = UpstreamConfig { endpoint: Some(endpoint), shared, ..UpstreamConfig::new("remote", Vec::new()) };
        let gateway = gateway(sqlite().await, vec![config]).await;
        let (a, b) = (gateway.client("caller-a").await, gateway.client("caller-b").await);
        let mut counts = Vec::new();
        for client in [&a, &b, &a, &a, &b] {
            let answer = client.call("t", json!({})).await.result();
            counts.push(answer["content"][0]["text"].as_str().unwrap().to_owned());
        }
        let expected = if shared { ["1", "2", "3", "4", "5"] } else { ["1", "1", "2", "3", "2"] };
        assert_eq!(counts, expected, "shared: {shared}");
        let task = a.task("t", json!({})).await;
        assert_eq!(
            a.result(&task["taskId"]).await.result()["content"][0]["text"],
            if shared { "6" } else { "4" },
            "a task runs in its maker's session"
        );
        gateway.upstreams.stop().await;
        for seen in remote.seen() {
            assert_eq!(seen.header("authorization"), Some("Bearer of-the-gateway"));
            let text = format!("{:?} {}", seen.headers, seen.body);
            assert!(!text.contains("caller-"), "no caller's token goes upstream: {text}");
        }
    }
}

// field case: F-GW-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_of_several_replicas_keeps_its_sessions_by_cookie() {
    let turn = Arc::new(AtomicUsize::new(0));
    let replicas: [Sessions; 2] = Default::default();
    let remote = Remote::start(scenario(move |seen| {
        let (turn, replicas) = (Arc::clone(&turn), replicas.clone());
        async move {
            let cookie = seen.header("cookie").and_then(|cookie| cookie.strip_prefix("replica=")?.parse().ok());
            // Round robin, but for who comes back with a cookie.
            let at: usize = cookie.unwrap_or_else(|| turn.fetch_add(1, Ordering::SeqCst) % 2);
            let mut response = replicas[at].answer(&seen, 404)?;
            if seen.rpc() == "initialize" {
                response.headers_mut().insert("set-cookie", format!("replica={at}; Path=/").parse().unwrap());
            }
            Some(response)
        }
    }))
    .await;
    let gateway = gateway(sqlite().await, vec![UpstreamConfig::at("remote", &remote.url)]).await;
    let clients = [gateway.client("a").await, gateway.client("b").await, gateway.client("c").await];
    for n in 0..100 {
        let answer = clients[n % 3].call("t", json!({ "n": n })).await;
        assert_eq!(answer.result()["content"][0]["text"], "fine", "call {n}");
    }
    assert_eq!(remote.messages("tools/call").len(), 100, "each went to the replica that has its session");
    assert_eq!(remote.messages("initialize").len(), 4);
    gateway.upstreams.stop().await;
}

// field case: F-OPS-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_handed_out_before_its_cold_upstream_is_up() {
    let database = sqlite().await;
    let remote = Remote::start(scenario(async |_| None)).await;
    let warm = vec![test_tools("local"), UpstreamConfig::at("remote", &remote.url)];
    let before = Upstreams::start(warm, settings(), database.store.system(), SystemClock::new()).await;
    within("the first lists", before.settled()).await;
    before.stop().await;
    // After a restart both take their time; what they offer is known from before.
    let start = Arc::new(AtomicBool::new(false));
    let cold = Remote::start(scenario({
        let start = Arc::clone(&start);
        move |seen| {
            let start = Arc::clone(&start);
            async move {
                while seen.rpc() == "initialize" && !start.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                None
            }
        }
    }))
    .await;
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let waits = format!("until [ -e {} ]; do sleep 0.05; done; exec {BINARY} demo-server --test-tools", go.display());
    let configs = vec![script("local", &waits), UpstreamConfig::at("remote", &cold.url)];
    let gateway = Gateway::unsettled(database, settings(), configs, engine_rules()).await;
    let client = gateway.client("owner").await;
    let mut tasks = Vec::new();
    for (tool, arguments) in [("echo", json!({ "n": 1 })), ("t", json!({}))] {
        let task = within("a handle", client.task(tool, arguments)).await;
        assert_eq!(task["status"], "working", "its upstream is not there yet");
        tasks.push(task["taskId"].clone());
    }
    std::fs::write(&go, "").unwrap();
    start.store(true, Ordering::SeqCst);
    assert_eq!(client.result(&tasks[0]).await.result()["structuredContent"], json!({ "n": 1 }));
    assert_eq!(client.result(&tasks[1]).await.result()["content"][0]["text"], "fine");
    gateway.upstreams.stop().await;
}

// req: EXEC-04
// field case: F-Q-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_past_its_time_is_cancelled_at_its_upstream_whatever_progress_it_makes() {
    let remote = Remote::start(scenario(async |seen| {
        if !seen.is_call() || seen.arguments()["quick"] == true {
            return None;
        }
        let token = seen.body["params"]["_meta"]["progressToken"].clone();
        let (say, response) = stream();
        taskhold::lifecycle::spawn("progress", async move {
            for step in 1.. {
                let params = json!({ "progressToken": token, "progress": step });
                let note = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
                if say.send(Ok(event(&note.to_string()))).is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Some(response)
    }))
    .await;
    let limited = |limit| ToolConfig { run_limit: Some(Duration::from_secs(limit)), ..ToolConfig::default() };
    let mut rules = engine_rules();
    rules.hard_run_limit = Duration::from_secs(2);
    let url = remote.url.clone();
    let upstream = |name: &str, limit| UpstreamConfig {
        prefix: true,
        tools: vec![("t".to_owned(), limited(limit))],
        ..UpstreamConfig::at(name, &url)
    };
    let gateway =
        Gateway::with(sqlite().await, settings(), vec![upstream("own", 1), upstream("hard", 3600)], rules).await;
    let client = gateway.client("owner").await;
    for (tool, seconds) in [("own__t", 1), ("hard__t", 2)] {
        // The limit is the call's: the way to its upstream is there.
        client.call(tool, json!({ "quick": true })).await.result();
        let told = remote.messages("notifications/cancelled").len();
        let task = client.task(tool, json!({})).await;
        let error = client.result(&task["taskId"]).await.json()["error"].clone();
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("run_time_exceeded")));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("{seconds} s")), "{message}");
        until("the upstream to be told", async || remote.messages("notifications/cancelled").len() > told).await;
        let call = remote.messages("tools/call").pop().unwrap();
        let note = remote.messages("notifications/cancelled").pop().unwrap();
        assert_eq!(note.body["params"]["requestId"], call.body["id"]);
    }
    gateway.upstreams.stop().await;
}
