//! Two processes behind a load balancer that sends each request to the next of them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::support::modern::Modern;
use crate::support::pgproxy::PgProxy;
use crate::support::rounds;
use crate::support::server::{PATIENCE, Server, binary, lasting_address, new_token};

contract! {
    a_session_is_served_by_each_node_in_turn,
    a_cancel_and_an_update_at_the_other_node_take_effect,
    a_prompt_of_one_node_is_answered_at_the_other,
    a_session_that_is_none_is_not_found_and_its_tasks_are,
}

/// What two nodes on one database have of each other's deeds within this, by hints or without.
const SOON: Duration = Duration::from_secs(1);

/// Sends each request to the next node.
struct Balancer<'a> {
    nodes: [&'a str; 2],
    next: AtomicUsize,
}

impl<'a> Balancer<'a> {
    fn before(nodes: [&'a str; 2]) -> Self {
        Self { nodes, next: AtomicUsize::new(0) }
    }

    /// The client, at the next node.
    fn pass(&self, client: &Client) -> Client {
        client.at(self.nodes[self.next.fetch_add(1, Ordering::Relaxed) % 2])
    }
}

async fn status_of(client: &Client, method: Method) -> u16 {
    let request = client.build(method.clone());
    let request = match method {
        Method::POST => request.header("content-type", "application/json").body(client.message("ping", &json!({}))),
        _ => request,
    };
    request.send().await.unwrap().status().as_u16()
}

/// A whole life of a session, each request at the other node than the one before. Every answer is there.
async fn live(balancer: &Balancer<'_>, token: &str) {
    let mut client = Client::new(balancer.nodes[0], Some(token));
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "persona", "version": "1" },
    });
    let begun = balancer.pass(&client).send(&client.message("initialize", &params)).await;
    client.session = Some(begun.header("mcp-session-id").unwrap_or_else(|| panic!("no session: {begun:?}")).to_owned());
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(balancer.pass(&client).send(initialized).await.status, 202);
    let mut stream = Events::of_session(&balancer.pass(&client)).await;
    stream.block().await.unwrap();
    assert!(balancer.pass(&client).request("tools/list", json!({})).await.result()["tools"].is_array());
    let task = balancer.pass(&client).task("sleep", json!({ "ms": 30 })).await;
    let id = &task["taskId"];
    assert_eq!(balancer.pass(&client).get(id).await.result()["taskId"], *id);
    assert_eq!(balancer.pass(&client).list().await.first(), Some(id));
    let result = balancer.pass(&client).result(id).await;
    assert!(result.text().contains("slept"), "{result:?}");
    loop {
        let status = stream.until("notifications/tasks/status").await;
        assert_eq!(status["params"]["taskId"], *id);
        if status["params"]["status"] == "completed" {
            break;
        }
    }
    let called = balancer.pass(&client).call("echo", json!({ "n": 1 })).await;
    assert!(called.result()["content"].is_array());
    assert_eq!(balancer.pass(&client).build(Method::DELETE).send().await.unwrap().status().as_u16(), 204);
    stream.rest().await;
    // A node may remember it for a second if nobody told it otherwise.
    for _ in 0..2 {
        until_gone(&balancer.pass(&client)).await;
    }
}

async fn until_gone(client: &Client) {
    let gone = async {
        while status_of(client, Method::POST).await != 404 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone).await.expect("no node serves it for long");
}

// req: HTTP-07
// field case: F-LB-01
async fn a_session_is_served_by_each_node_in_turn(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let address = lasting_address();
    let (here, there) = tokio::join!(Server::start(&database.url), Server::start_at(&address, &database.url));
    let (one, other) = (here.url.clone(), there.url.clone());
    let balancer = Balancer::before([&one, &other]);
    // Lives through it all.
    let lasting = Client::connected(&one, &token).await;
    let call = json!({ "name": "sleep", "arguments": { "ms": 10 }, "task": { "ttl": 86_400_000 } });
    let task = lasting.request("tools/call", call).await.result()["task"]["taskId"].clone();
    let count = rounds(12);
    for _ in 0..count / 2 {
        live(&balancer, &token).await;
    }
    assert!(there.terminate().await.success());
    assert_eq!(lasting.at(&one).get(&task).await.result()["status"], "completed");
    let there = Server::start_at(&address, &database.url).await;
    assert_eq!(there.url, other);
    for _ in 0..count.div_ceil(2) {
        live(&balancer, &token).await;
        for _ in 0..2 {
            assert_eq!(balancer.pass(&lasting).get(&task).await.result()["status"], "completed");
        }
    }
    assert!(here.terminate().await.success() && there.terminate().await.success());
}

/// A folder with the configuration of an upstream all of whose lines are written down, and where.
fn overheard() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    let command = format!("tee -a '{}' | '{}' demo-server --test-tools", lines.display(), binary());
    let config = format!(
        "[tasks]\ngrace = \"0s\"\n[[upstreams]]\nname = \"test\"\ncommand = [\"sh\", \"-c\", {}]\n",
        serde_json::to_string(&command).unwrap()
    );
    std::fs::write(folder.path().join("taskhold.toml"), config).unwrap();
    (folder, lines)
}

fn has_heard(lines: &Path, part: &str) -> bool {
    std::fs::read_to_string(lines).unwrap_or_default().contains(part)
}

/// How long it takes until this is so.
async fn time_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "this did not come about: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    began.elapsed()
}

// req: TASK-14, NOTE-09
// field case: F-LB-02
async fn a_cancel_and_an_update_at_the_other_node_take_effect(database: TestDatabase) {
    cancel_and_update(&database, &database.url).await;
}

// req: KEEP-15, NOTE-09
// field case: F-LB-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_and_an_update_at_the_other_node_take_effect_without_notifications() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let (proxy, url) = PgProxy::before_url(&database.url).await;
    proxy.deafen(true);
    cancel_and_update(&database, &url).await;
}

/// The work is at the first node, which reaches the database by this URL.
async fn cancel_and_update(database: &TestDatabase, url: &str) {
    let token = new_token(&database.url, "owner").await;
    let ((folder, lines), (other_folder, _)) = (overheard(), overheard());
    let (here, there) = tokio::join!(
        Server::start_in(Some(folder.path()), url, &[]),
        Server::start_in(Some(other_folder.path()), &database.url, &[])
    );
    let at_one = Modern::new(&here.url, &token).declaring(json!({ "elicitation": {} })).with_tasks();
    let at_other = Modern { url: there.url.clone(), ..at_one.clone() };
    let look = async |id: &Value| at_other.request("tasks/get", json!({ "taskId": id })).await.result();

    // Until its first look at the queue a node lets tasks wait for their turn, which may come at the other.
    let mark = |ms: usize| format!("\"ms\":{ms}}}");
    let mut ms = 0;
    time_until("tasks run where they are made", async || {
        ms += 1;
        let id = at_one.call("sleep", json!({ "ms": ms })).await.result()["taskId"].clone();
        time_until("it has run", async || look(&id).await["status"] == "completed").await;
        has_heard(&lines, &mark(ms))
    })
    .await;
    for n in 0..rounds(3) {
        let id = at_one.call("sleep", json!({ "ms": 60_000 + n })).await.result()["taskId"].clone();
        time_until("it runs", async || has_heard(&lines, &mark(60_000 + n))).await;
        let cancelled = || std::fs::read_to_string(&lines).unwrap().matches("notifications/cancelled").count();
        let before = cancelled();
        at_other.request("tasks/cancel", json!({ "taskId": id })).await.result();
        let took = time_until("its upstream is told", async || cancelled() > before).await;
        assert!(took < SOON, "{took:?}");

        let id = at_one.call("ask", json!({ "n": 1 })).await.result()["taskId"].clone();
        let mut key = None;
        time_until("it asks", async || {
            let open = look(&id).await["inputRequests"].as_object().cloned().unwrap_or_default();
            key = open.keys().next().cloned();
            key.is_some()
        })
        .await;
        let answer = json!({ "action": "accept", "content": { "answer": "from the other node" } });
        let update = json!({ "taskId": id, "inputResponses": { key.unwrap(): answer } });
        at_other.request("tasks/update", update).await.result();
        let took = time_until("the answer is used", async || look(&id).await["status"] == "completed").await;
        assert!(took < SOON, "{took:?}");
        assert!(look(&id).await["result"].to_string().contains("from the other node"));
    }
    assert!(here.terminate().await.success() && there.terminate().await.success());
}

// req: INPUT-05
// field case: F-LB-03
async fn a_prompt_of_one_node_is_answered_at_the_other(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let stranger = new_token(&database.url, "stranger").await;
    let (here, there) = tokio::join!(Server::start(&database.url), Server::start(&database.url));
    let client = Client::capable(&here.url, &token).await;
    let at_other = client.at(&there.url);
    let foreign = Client::capable(&there.url, &stranger).await;
    let answer = |text: &str| json!({ "action": "accept", "content": { "answer": text } });
    // Of a task, and of a call that is none.
    for is_task in [true, false] {
        let (mut stream, task) = if is_task {
            let id = client.task("ask", json!({ "n": 1 })).await["taskId"].clone();
            let wait = client.message("tasks/result", &json!({ "taskId": id }));
            (Events::of_request(&client, wait).await, Some(id))
        } else {
            let call = client.message("tools/call", &json!({ "name": "ask", "arguments": { "n": 1 } }));
            (Events::of_request(&client, call).await, None)
        };
        let question = stream.until("elicitation/create").await["id"].clone();
        for (who, id) in [(&at_other, json!("11111111-1111-4111-8111-111111111111")), (&foreign, question.clone())] {
            let ignored = who.respond(&id, &answer("wrong")).await;
            assert!(ignored.status == 202 || ignored.status / 100 == 4, "{ignored:?}");
        }
        let began = Instant::now();
        for text in ["first", "second"] {
            assert_eq!(at_other.respond(&question, &answer(text)).await.status, 202);
        }
        let rest = stream.rest().await;
        assert!(began.elapsed() < SOON * 2, "{:?}", began.elapsed());
        let text = rest.last().unwrap()["result"]["content"][0]["text"].to_string();
        assert!(text.contains("first") && !text.contains("second") && !text.contains("wrong"), "{text}");
        if let Some(id) = task {
            assert_eq!(at_other.get(&id).await.result()["status"], "completed");
        }
    }
    assert!(here.terminate().await.success() && there.terminate().await.success());
}

// req: HTTP-16
// field case: F-LB-04
async fn a_session_that_is_none_is_not_found_and_its_tasks_are(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let (here, there) = tokio::join!(Server::start(&database.url), Server::start(&database.url));
    let (expired, deleted) = (Client::connected(&here.url, &token).await, Client::connected(&here.url, &token).await);
    let task = deleted.task("sleep", json!({ "ms": 1 })).await["taskId"].clone();
    deleted.result(&task).await.result();
    let day = Duration::from_secs(25 * 3600).as_micros();
    let session: uuid::Uuid = expired.session.as_ref().unwrap().parse().unwrap();
    let id = database.id(session);
    database.sql(&format!("UPDATE sessions SET last_used = last_used - {day} WHERE id = {id}")).await;
    assert_eq!(deleted.at(&there.url).build(Method::DELETE).send().await.unwrap().status().as_u16(), 204);
    let made_up = Client { session: Some("11111111-1111-4111-8111-111111111111".to_owned()), ..deleted.clone() };
    let nonsense = Client { session: Some("not-a-session".to_owned()), ..deleted.clone() };
    let missing = Client { session: None, ..deleted.clone() };
    for url in [&here.url, &there.url] {
        // What a node has just served it may remember for a second.
        until_gone(&expired.at(url)).await;
        until_gone(&deleted.at(url)).await;
        for method in [Method::POST, Method::GET, Method::DELETE] {
            for client in [&expired, &deleted, &made_up, &nonsense] {
                assert_eq!(status_of(&client.at(url), method.clone()).await, 404, "{method} {:?}", client.session);
            }
            assert_eq!(status_of(&missing.at(url), method.clone()).await, 400, "{method} without a session");
        }
        let later = Client::connected(url, &token).await;
        assert_eq!(later.get(&task).await.result()["status"], "completed");
    }
    assert!(here.terminate().await.success() && there.terminate().await.success());
}
