//! Clients of each era before upstreams of each era: by command and by URL, with tasks of their own and without.

use std::time::Duration;

use serde_json::{Value, json};
use taskhold::engine::EngineRules;
use taskhold::executor::upstream::{Protocol, ToolConfig, UpstreamConfig};

use crate::http::harness::{Gateway, engine_rules, until};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::events::Events;
use crate::support::modern::Modern;
use crate::upstream::harness::{BINARY, PATIENCE, settings};
use crate::upstream::http_demo::Demo;

contract! {
    every_client_is_served_by_every_upstream,
    an_upstreams_task_is_ours_to_every_client,
    a_task_whose_upstream_is_gone_ends_honestly_for_every_client,
    equal_and_odd_ids_of_upstreams_are_never_mixed_up,
}

const ERAS: [(&str, Protocol); 2] = [("legacy", Protocol::Legacy), ("modern", Protocol::Modern)];

/// Upstreams of all kinds, named so.
fn upstreams(demos: &[(&'static str, &Demo, &[&'static str])]) -> Vec<UpstreamConfig> {
    let mut all = Vec::new();
    for (era, protocol) in ERAS {
        for (tasks, demo, options) in demos {
            let command = [&[BINARY, "demo-server", "--test-tools"], *options].concat();
            let command = command.into_iter().map(str::to_owned).collect();
            let local = UpstreamConfig::new(format!("{era}-local{tasks}"), command);
            let remote = UpstreamConfig::at(format!("{era}-remote{tasks}"), &demo.url);
            // What is to become a task by itself does so soon, and nothing else, however busy the machine is.
            let soon = ToolConfig { grace: Some(Duration::from_millis(100)), ..ToolConfig::default() };
            let tools = vec![("sleep".to_owned(), soon)];
            all.extend([local, remote].map(|config| {
                let tools = tools.clone();
                UpstreamConfig { protocol, prefix: true, tools, ..config }
            }));
        }
    }
    all
}

/// A client of an era, as far as this test needs one.
enum Persona {
    Legacy(Client),
    Modern(Modern),
}

impl Persona {
    /// The messages of a plain call up to its answer.
    async fn call(&self, tool: &str, arguments: Value) -> Vec<Value> {
        let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "mine" } });
        let mut stream = match self {
            Self::Legacy(client) => Events::of_request(client, client.message("tools/call", &params)).await,
            Self::Modern(client) => client.stream("tools/call", params).await,
        };
        stream.rest().await
    }

    /// The result of a task that asks nothing.
    async fn result(&self, id: &Value) -> Value {
        match self {
            Self::Legacy(client) => client.result(id).await.result(),
            Self::Modern(client) => {
                let get = async || client.request("tasks/get", json!({ "taskId": id })).await.result();
                until("the end", async || get().await["status"] == "completed").await;
                get().await["result"].clone()
            }
        }
    }

    /// A task's id.
    async fn task(&self, tool: &str, arguments: Value) -> Value {
        match self {
            Self::Legacy(client) => client.task(tool, arguments).await["taskId"].clone(),
            // It becomes one when it asks, or has run for its grace.
            Self::Modern(client) => {
                let created = client.call(tool, arguments).await.result();
                assert_eq!(created["resultType"], "task", "{created}");
                created["taskId"].clone()
            }
        }
    }

    /// What is shown of a task.
    async fn look(&self, id: &Value) -> Value {
        match self {
            Self::Legacy(client) => client.get(id).await.result(),
            Self::Modern(client) => client.request("tasks/get", json!({ "taskId": id })).await.result(),
        }
    }

    async fn status(&self, id: &Value) -> Value {
        self.look(id).await["status"].clone()
    }

    /// How a task ended: what is shown of it, and its result or error.
    async fn ended(&self, id: &Value) -> (Value, Value) {
        let is_over = async || !["working", "input_required"].contains(&self.status(id).await.as_str().unwrap());
        until("the end", is_over).await;
        let shown = self.look(id).await;
        let outcome = match self {
            Self::Legacy(client) => client.result(id).await.json(),
            Self::Modern(_) => shown.clone(),
        };
        let outcome = outcome.get("result").or_else(|| outcome.get("error")).unwrap_or_else(|| panic!("{outcome}"));
        (shown, outcome.clone())
    }

    /// Answers what a task asks, and waits for its result.
    async fn answer(&self, id: &Value, content: &Value) -> Value {
        match self {
            Self::Legacy(client) => {
                let body = client.message("tasks/result", &json!({ "taskId": id }));
                let mut stream = Events::of_request(client, body).await;
                let question = stream.until("elicitation/create").await;
                client.respond(&question["id"], content).await;
                stream.rest().await.last().unwrap()["result"].clone()
            }
            Self::Modern(client) => {
                let get = async || client.request("tasks/get", json!({ "taskId": id })).await.result();
                until("a question", async || get().await["status"] == "input_required").await;
                let key = get().await["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
                let responses = json!({ "taskId": id, "inputResponses": { key: content } });
                client.request("tasks/update", responses).await.result();
                until("the end", async || get().await["status"] == "completed").await;
                get().await["result"].clone()
            }
        }
    }

    async fn cancel(&self, id: &Value) {
        match self {
            Self::Legacy(client) => drop(client.cancel(id).await.result()),
            Self::Modern(client) => drop(client.request("tasks/cancel", json!({ "taskId": id })).await.result()),
        }
    }
}

/// The same caller in each era.
async fn personas(gateway: &Gateway) -> [(&'static str, Persona); 2] {
    let legacy = Persona::Legacy(Client::capable(&gateway.front.url, "owner").await);
    let modern = Modern::new(&gateway.front.url, "owner").declaring(json!({ "elicitation": {} })).with_tasks();
    [("legacy", legacy), ("modern", Persona::Modern(modern))]
}

/// Every call of a client that takes tasks is one at once.
async fn of_tasks(database: TestDatabase, configs: Vec<UpstreamConfig>) -> Gateway {
    let rules = EngineRules { grace: Duration::ZERO, ..engine_rules() };
    Gateway::with(database, settings(), configs, rules).await
}

// req: EXEC-11, EXEC-20 (each era before each)
// field case: F-GW-01
async fn every_client_is_served_by_every_upstream(database: TestDatabase) {
    let (plain, tasks) = tokio::join!(Demo::with(&[]), Demo::with(&["--tasks"]));
    let configs = upstreams(&[("", &plain, &[]), ("-tasks", &tasks, &["--tasks"])]);
    let names: Vec<_> = configs.iter().map(|config| config.name.clone()).collect();
    let mut rules = engine_rules();
    rules.grace = PATIENCE;
    let gateway = Gateway::with(database, settings(), configs, rules).await;
    for (client, persona) in &personas(&gateway).await {
        for upstream in &names {
            let pair = format!("a {client} client before {upstream}");
            let tool = |name: &str| format!("{upstream}__{name}");
            // A server that lists its tools with tasks of its own has them run as tasks wherever the service decides.
            let is_task = *client == "modern" && upstream.starts_with("legacy") && upstream.ends_with("-tasks");
            if is_task {
                let id = persona.task(&tool("prog"), json!({ "n": 3 })).await;
                assert_eq!(persona.result(&id).await["content"][0]["text"], "3 steps done", "{pair}");
            } else {
                is_told_of_progress(persona, &tool("prog"), &pair).await;
            }

            let asking = persona.task(&tool("ask"), json!({ "n": 1, "as_task": true })).await;
            let content = json!({ "action": "accept", "content": { "answer": pair } });
            let result = persona.answer(&asking, &content).await;
            let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{pair}: {result}"));
            assert!(text.contains(&pair), "{pair}: {text}");
            assert_eq!(persona.status(&asking).await, "completed", "{pair}");

            let sleeping = persona.task(&tool("sleep"), json!({ "ms": 60_000, "as_task": true })).await;
            assert_eq!(persona.status(&sleeping).await, "working", "{pair}");
            persona.cancel(&sleeping).await;
            until("its end", async || persona.status(&sleeping).await == "cancelled").await;
        }
    }
    gateway.upstreams.stop().await;
}

async fn is_told_of_progress(persona: &Persona, tool: &str, pair: &str) {
    let said = persona.call(tool, json!({ "n": 3 })).await;
    let progress: Vec<_> = said.iter().filter(|message| message["method"] == "notifications/progress").collect();
    assert_eq!(progress.len(), 3, "{pair}: {said:?}");
    assert!(progress.iter().all(|message| message["params"]["progressToken"] == "mine"), "{pair}");
    let result = &said.last().unwrap()["result"];
    assert_eq!(result["content"][0]["text"], "3 steps done", "{pair}: {said:?}");
}

/// An id of ours: random, in characters that any header can carry, and without a word of whose task it is.
fn is_ours(id: &Value, pair: &str) {
    let id = id.as_str().unwrap_or_else(|| panic!("{pair}: {id}"));
    assert!(id.len() == 36 && id.as_bytes()[14] == b'4', "{pair}: {id}");
    assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'), "{pair}: {id}");
}

// req: EXEC-11, LIFE-12
// field case: F-GW-01
async fn an_upstreams_task_is_ours_to_every_client(database: TestDatabase) {
    const TASKS: [&str; 3] = ["--tasks", "--task-ids", "theirs-"];
    let (plain, tasks) = tokio::join!(Demo::with(&[]), Demo::with(&TASKS));
    let configs = upstreams(&[("", &plain, &[]), ("-tasks", &tasks, &TASKS)]);
    let names: Vec<_> = configs.iter().map(|config| config.name.clone()).collect();
    let gateway = of_tasks(database, configs).await;
    for (client, persona) in &personas(&gateway).await {
        for upstream in &names {
            let pair = format!("a {client} client before {upstream}");
            let ends = async |tool: &str, arguments: Value| {
                let id = persona.task(&format!("{upstream}__{tool}"), arguments).await;
                is_ours(&id, &pair);
                let (shown, outcome) = persona.ended(&id).await;
                assert_eq!(shown["taskId"], id, "{pair}");
                assert!(!format!("{shown} {outcome}").contains("theirs-"), "{pair}: {shown} {outcome}");
                (shown, outcome)
            };
            let (shown, result) = ends("task_only", json!({ "ms": 5 })).await;
            assert_eq!((&shown["status"], &result["content"][0]["text"]), (&json!("completed"), &json!("slept 5 ms")));
            let (shown, result) = ends("fail_tool", json!({ "message": "no paper", "as_task": true })).await;
            let status = if *client == "legacy" { "failed" } else { "completed" };
            assert_eq!((&shown["status"], &shown["statusMessage"]), (&json!(status), &json!("no paper")), "{pair}");
            assert_eq!(result["isError"], true, "{pair}");
            let (shown, error) = ends("fail_rpc", json!({ "code": -32011, "as_task": true })).await;
            assert_eq!((&shown["status"], &error["code"]), (&json!("failed"), &json!(-32011)), "{pair}");
            assert_eq!(
                (&shown["statusMessage"], &error["data"]["tool"]),
                (&json!("failed as asked"), &json!("fail_rpc"))
            );
        }
    }
    let handed_over = gateway.database.number("SELECT COUNT(*) FROM upstream_tasks").await;
    assert!(handed_over >= 8, "{handed_over} ran as tasks of their upstreams: at least one of each pair with such");
    gateway.upstreams.stop().await;
}

// field case: F-GW-01
async fn a_task_whose_upstream_is_gone_ends_honestly_for_every_client(database: TestDatabase) {
    let command: Vec<_> = [BINARY, "demo-server", "--test-tools", "--tasks"].map(str::to_owned).into();
    let config = |(era, protocol): (&str, Protocol)| UpstreamConfig {
        protocol,
        prefix: true,
        ..UpstreamConfig::new(era, command.clone())
    };
    let gateway = of_tasks(database, ERAS.map(config).into()).await;
    let handed_over = async || gateway.database.number("SELECT COUNT(*) FROM upstream_tasks").await;
    for (client, persona) in &personas(&gateway).await {
        for (era, _) in ERAS {
            let pair = format!("a {client} client before a {era} upstream");
            let tool = |name: &str| format!("{era}__{name}");
            let before = handed_over().await;
            let id = persona.task(&tool("task_only"), json!({ "ms": 60_000 })).await;
            until("it runs at its upstream", async || handed_over().await > before).await;
            assert_eq!(persona.status(&id).await, "working", "{pair}");
            persona.task(&tool("crash"), json!({})).await;
            let (shown, error) = persona.ended(&id).await;
            let reason = (&shown["status"], &error["code"], &error["data"]["reason"]);
            assert_eq!(reason, (&json!("failed"), &json!(-32603), &json!("outcome_unknown")), "{pair}: {error}");
            let message = shown["statusMessage"].as_str().unwrap_or_default();
            assert!(message.contains("outcome unknown"), "{pair}: {shown}");
            // It is started again for the next one.
            let next = persona.task(&tool("task_only"), json!({ "ms": 1 })).await;
            assert_eq!(persona.ended(&next).await.1["content"][0]["text"], "slept 1 ms", "{pair}");
        }
    }
    gateway.upstreams.stop().await;
}

// req: EXEC-11
// field case: F-GW-02
async fn equal_and_odd_ids_of_upstreams_are_never_mixed_up(database: TestDatabase) {
    let odd = "\u{1F980}ü-".repeat(100);
    let named = ["--tasks", "--task-ids", odd.as_str()];
    let (one, two, other) = tokio::join!(Demo::with(&["--tasks"]), Demo::with(&["--tasks"]), Demo::with(&named));
    let mut configs = Vec::new();
    for (era, protocol) in ERAS {
        for (name, demo) in [("one", &one), ("two", &two), ("odd", &other)] {
            let config = UpstreamConfig::at(format!("{era}-{name}"), &demo.url);
            configs.push(UpstreamConfig { protocol, prefix: true, ..config });
        }
    }
    let gateway = of_tasks(database, configs).await;
    let count = async |what: &str| gateway.database.number(&format!("SELECT COUNT({what}) FROM upstream_tasks")).await;
    let mut ids = Vec::new();
    for (client, persona) in &personas(&gateway).await {
        for (era, _) in ERAS {
            let pair = format!("a {client} client before {era} upstreams");
            let before = count("*").await;
            let mut running = Vec::new();
            for (ms, name) in [(60_000, "one"), (61_000, "two"), (400, "one"), (500, "two"), (600, "odd")] {
                let id = persona.task(&format!("{era}-{name}__task_only"), json!({ "ms": ms })).await;
                is_ours(&id, &pair);
                running.push((ms, id));
            }
            until("all run at their upstreams", async || count("*").await == before + 5).await;
            // One of two whose upstreams' ids are equal is cancelled, and the other goes on.
            let (_, cancelled) = &running[0];
            persona.cancel(cancelled).await;
            for (ms, id) in &running[2..] {
                let (shown, result) = persona.ended(id).await;
                assert_eq!(result["content"][0]["text"], format!("slept {ms} ms"), "{pair}");
                let said = format!("{shown} {result}");
                assert!(!said.contains("task-1") && !said.contains('\u{1F980}'), "{pair}: {said}");
            }
            until("its end", async || persona.status(cancelled).await == "cancelled").await;
            let (_, other) = &running[1];
            assert_eq!(persona.status(other).await, "working", "{pair}");
            persona.cancel(other).await;
            ids.extend(running.into_iter().map(|(_, id)| id));
        }
    }
    assert!(count("DISTINCT upstream_id").await < count("*").await, "equal ids were there");
    let odd_ones = "SELECT COUNT(*) FROM upstream_tasks WHERE LENGTH(upstream_id) > 300";
    assert_eq!(gateway.database.number(odd_ones).await, 4);
    let all = ids.len();
    ids.sort_by_key(Value::to_string);
    ids.dedup();
    assert_eq!((ids.len(), all), (20, 20));
    gateway.upstreams.stop().await;
}
