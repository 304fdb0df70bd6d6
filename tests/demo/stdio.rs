//! Both eras on the standard streams of one process.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::client::{SUBSCRIPTION, everything, message};
use super::schema;
use crate::upstream::harness::{BINARY, within};

struct Process {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(options: &[&str]) -> Self {
        let mut child = Command::new(BINARY)
            .arg("demo-server")
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { _child: child, input, output: BufReader::new(output).lines() }
    }

    async fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, id: u32, method: &str, params: Value) {
        let mut message = message(method, params, &everything());
        message["id"] = json!(id);
        self.send(&message).await;
    }

    async fn next(&mut self) -> Value {
        let line = within("a message", self.output.next_line()).await.unwrap().expect("the server is there");
        serde_json::from_str(&line).unwrap()
    }
}

#[tokio::test]
async fn each_message_is_served_by_its_own_era() {
    let mut server = Process::start(&["--test-tools"]);
    server.ask(1, "server/discover", json!({})).await;
    let found = server.next().await;
    schema::check("server/discover", &found);
    assert_eq!(found["result"]["supportedVersions"][0], "2026-07-28");
    server.send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "server/discover" })).await;
    assert_eq!(server.next().await["error"]["code"], -32602, "a probe without `_meta` is still of this era");
    server.ask(3, "tools/call", json!({ "name": "echo", "arguments": {} })).await;
    assert_eq!(server.next().await["result"]["resultType"], "complete");
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} }, "clientInfo": {} });
    server.send(&json!({ "jsonrpc": "2.0", "id": 4, "method": "initialize", "params": params })).await;
    assert_eq!(server.next().await["result"]["protocolVersion"], "2025-11-25");
    let call = json!({ "name": "ask", "arguments": {} });
    server.send(&json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": call })).await;
    assert_eq!(server.next().await["method"], "elicitation/create");
    server.ask(6, "tools/call", call).await;
    assert_eq!(server.next().await["result"]["resultType"], "input_required");
}

#[tokio::test]
async fn calls_and_subscriptions_end_when_they_are_cancelled() {
    let mut server = Process::start(&["--conformance"]);
    let cancel =
        |id: u32| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    server.ask(1, "subscriptions/listen", json!({ "notifications": { "promptsListChanged": true } })).await;
    assert_eq!(server.next().await["params"]["_meta"][SUBSCRIPTION], 1);
    let change = json!({ "name": "test_trigger_prompt_change" });
    server.ask(2, "tools/call", change.clone()).await;
    let mut said = [server.next().await, server.next().await];
    said.sort_by_key(|message| message.get("id").is_some());
    assert_eq!((&said[0]["method"], &said[1]["id"]), (&json!("notifications/prompts/list_changed"), &json!(2)));
    server.ask(3, "tools/call", json!({ "name": "slow_compute", "arguments": { "seconds": 0.2 } })).await;
    server.send(&cancel(3)).await;
    server.send(&cancel(1)).await;
    server.ask(4, "tools/call", change).await;
    server.ask(5, "tools/call", json!({ "name": "slow_compute", "arguments": { "seconds": 0.4 } })).await;
    let ids = [server.next().await["id"].clone(), server.next().await["id"].clone()];
    assert_eq!(ids, [4, 5], "what was cancelled says nothing any more");
}
