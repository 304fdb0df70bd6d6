//! Lists of tools that change.

use std::time::{Duration, Instant};

use serde_json::json;
use taskhold::engine::EngineRules;
use taskhold::executor::upstream::UpstreamConfig;

use crate::http::harness::{Gateway, engine_rules, until};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::events::Events;
use crate::upstream::catalog::{listing, write};
use crate::upstream::harness::{settings, test_tools};

contract! {
    the_list_follows_its_upstream_and_clients_are_told,
    a_queued_task_for_a_tool_that_was_removed_fails_clearly,
}

/// What a change may take to be seen.
const SOON: Duration = Duration::from_secs(10);

async fn names(client: &Client) -> Vec<String> {
    let tools = client.request("tools/list", json!({})).await.result()["tools"].clone();
    tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the client is told of a change and sees it.
async fn told(client: &Client, events: &mut Events, expected: &[&str]) {
    let began = Instant::now();
    events.until("notifications/tools/list_changed").await;
    until("the new list", async || names(client).await == expected).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

// req: EXEC-03
// field case: F-GW-16
async fn the_list_follows_its_upstream_and_clients_are_told(database: TestDatabase) {
    let dir = tempfile::tempdir().unwrap();
    let (file, pid, gate) = (dir.path().join("tools"), dir.path().join("pid"), dir.path().join("gate"));
    write(&file, "one\n");
    let server = listing("u", &file);
    // It is not up before the gate opens, and can be ended by its id.
    let script = format!(
        "echo $$ > {}; until [ -e {} ]; do sleep 0.02; done\n{}",
        pid.display(),
        gate.display(),
        server.command[2]
    );
    let command = vec!["sh".to_owned(), "-c".to_owned(), script];
    let config = UpstreamConfig { command, ..server };
    let gateway = Gateway::unsettled(database, settings(), vec![config], engine_rules()).await;
    let client = gateway.client("owner").await;
    assert!(names(&client).await.is_empty());
    let mut events = Events::of_session(&client).await;
    std::fs::write(&gate, "").unwrap();
    told(&client, &mut events, &["one"]).await;
    write(&file, "one\ntwo\n");
    told(&client, &mut events, &["one", "two"]).await;
    write(&file, "two\n");
    told(&client, &mut events, &["two"]).await;

    // Ended, it comes back with another list; until then the old one stays.
    let process: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    std::fs::remove_file(&gate).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(process).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    until("the end to be seen", async || !gateway.upstreams.status()[0].1.connected).await;
    assert_eq!(names(&client).await, ["two"]);
    write(&file, "two\nthree\n");
    std::fs::write(&gate, "").unwrap();
    told(&client, &mut events, &["two", "three"]).await;
    gateway.upstreams.stop().await;
}

// field case: F-GW-16
async fn a_queued_task_for_a_tool_that_was_removed_fails_clearly(database: TestDatabase) {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), "one\ntwo\n");
    let rules = EngineRules { slots: 1, ..engine_rules() };
    let gateway = Gateway::with(database, settings(), vec![listing("u", file.path()), test_tools("test")], rules).await;
    let client = gateway.client("owner").await;
    let first = client.task("deaf", json!({ "ms": 60_000 })).await;
    let (gone, kept) = (client.task("one", json!({})).await, client.task("two", json!({})).await);
    write(file.path(), "two\n");
    until("the new list", async || !names(&client).await.contains(&"one".to_owned())).await;
    client.cancel(&first["taskId"]).await.result();
    let failed = client.until_status(&gone["taskId"], "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().contains("no tool one"), "{failed}");
    assert_eq!(client.result(&gone["taskId"]).await.error().0, -32602);
    client.until_status(&kept["taskId"], "completed").await;
    gateway.upstreams.stop().await;
}
