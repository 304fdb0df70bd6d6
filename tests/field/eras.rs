//! Clients of each era before upstreams of each era: by command and by URL, with tasks of their own and without.

use std::time::Duration;

use serde_json::{Value, json};
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

    async fn status(&self, id: &Value) -> Value {
        match self {
            Self::Legacy(client) => client.get(id).await.result()["status"].clone(),
            Self::Modern(client) => {
                client.request("tasks/get", json!({ "taskId": id })).await.result()["status"].clone()
            }
        }
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

// req: EXEC-11, EXEC-20 (each era before each)
async fn every_client_is_served_by_every_upstream(database: TestDatabase) {
    let (plain, tasks) = tokio::join!(Demo::with(&[]), Demo::with(&["--tasks"]));
    let configs = upstreams(&[("", &plain, &[]), ("-tasks", &tasks, &["--tasks"])]);
    let names: Vec<_> = configs.iter().map(|config| config.name.clone()).collect();
    let mut rules = engine_rules();
    rules.grace = PATIENCE;
    let gateway = Gateway::with(database, settings(), configs, rules).await;
    let legacy = Persona::Legacy(Client::capable(&gateway.front.url, "owner").await);
    let modern = Modern::new(&gateway.front.url, "owner").declaring(json!({ "elicitation": {} })).with_tasks();
    let modern = Persona::Modern(modern);
    for (client, persona) in [("legacy", &legacy), ("modern", &modern)] {
        for upstream in &names {
            let pair = format!("a {client} client before {upstream}");
            let tool = |name: &str| format!("{upstream}__{name}");
            // A server that lists its tools with tasks of its own has them run as tasks wherever the service decides.
            let is_task = client == "modern" && upstream.starts_with("legacy") && upstream.ends_with("-tasks");
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
