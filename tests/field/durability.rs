//! What a killed process and a refusing database leave behind.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::http::harness::Service;
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::server::{PATIENCE, Server, binary, new_token};

contract! {
    every_task_is_found_after_a_kill,
    a_side_effect_is_repeated_only_where_that_is_allowed,
    a_creation_that_fails_half_way_leaves_nothing,
}

// req: KEEP-06
// field case: F-DUR-01
async fn every_task_is_found_after_a_kill(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let server = Server::start(&database.url).await;
    let client = Client::connected(&server.url, &token).await;
    let mut tasks = Vec::new();
    for at in 0..20 {
        let (tool, arguments, status) = match at % 5 {
            0 => ("echo", json!({ "n": at }), "completed"),
            1 => ("fail_tool", json!({ "message": format!("failed {at}") }), "failed"),
            2 => ("fail_rpc", json!({ "code": -32_000 - at }), "failed"),
            3 => ("sleep", json!({ "ms": 600_000 }), "cancelled"),
            _ => ("sleep", json!({ "ms": 600_000 }), "working"),
        };
        let id = client.task(tool, arguments).await["taskId"].clone();
        if status == "cancelled" {
            client.cancel(&id).await.result();
        }
        tasks.push(client.until_status(&id, status).await);
    }
    let result = async |client: &Client, id: &Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/result", "params": { "taskId": id } });
        client.send(&body.to_string()).await.text().to_owned()
    };
    let mut results = Vec::new();
    for task in tasks.iter().filter(|task| task["status"] != "working") {
        results.push((task["taskId"].clone(), result(&client, &task["taskId"]).await));
    }
    let listed = client.list().await;
    assert_eq!((listed.len(), results.len()), (20, 16));
    server.kill().await;

    let server = Server::start(&database.url).await;
    let client = Client::connected(&server.url, &token).await;
    assert_eq!(client.list().await, listed);
    for task in &tasks {
        let now = client.get(&task["taskId"]).await.result();
        if task["status"] == "working" {
            // Its TTL grows, and its message follows what becomes of it.
            for field in ["taskId", "status", "createdAt", "pollInterval"] {
                assert_eq!(now[field], task[field], "{field}");
            }
        } else {
            assert_eq!(now, *task);
        }
    }
    for (id, before) in &results {
        assert_eq!(result(&client, id).await, *before);
    }
    assert!(server.terminate().await.success());
}

// req: KEEP-07
// field case: F-DUR-03
async fn a_side_effect_is_repeated_only_where_that_is_allowed(database: TestDatabase) {
    let folder = tempfile::tempdir().unwrap();
    let binary = binary();
    let upstream = |name: &str| {
        format!(
            "[[upstreams]]\nname = \"{name}\"\ncommand = [\"{binary}\", \"demo-server\", \"--test-tools\"]\nprefix = true\n"
        )
    };
    let repeated = "[upstreams.tools.charge]\nrestart = \"retry\"\n";
    let configuration = format!("{}{}{repeated}", upstream("once"), upstream("again"));
    std::fs::write(folder.path().join("taskhold.toml"), configuration).unwrap();
    let token = new_token(&database.url, "owner").await;
    let server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let client = Client::connected(&server.url, &token).await;
    let mut tasks = Vec::new();
    // What runs again has to end, and must not before the kill.
    for (name, ms) in [("once", 60_000), ("again", 5_000)] {
        let file = folder.path().join(name);
        let arguments = json!({ "file": file, "ms": ms });
        tasks.push((client.task(&format!("{name}__charge"), arguments).await["taskId"].clone(), file));
    }
    for (id, file) in &tasks {
        until_charged(file).await;
        assert_eq!(client.get(id).await.result()["status"], "working", "the counter moved, the result is not there");
    }
    server.kill().await;
    let server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let client = client.at(&server.url);
    database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    let [(once, once_file), (again, again_file)] = &tasks[..] else { unreachable!("two were made") };
    let failed = client.until_status(once, "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().starts_with("outcome unknown"), "{failed}");
    assert_eq!(client.result(once).await.json()["error"]["data"]["reason"], "outcome_unknown");
    client.until_status(again, "completed").await;
    assert_eq!((charges(once_file), charges(again_file)), (1, 2));
    assert!(server.terminate().await.success());
}

fn charges(file: &Path) -> usize {
    std::fs::read_to_string(file).unwrap_or_default().lines().count()
}

async fn until_charged(file: &Path) {
    let charged = async {
        while charges(file) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, charged).await.expect("the tool runs");
}

// req: KEEP-13
// field case: F-DUR-07
async fn a_creation_that_fails_half_way_leaves_nothing(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let database = &service.database;
    let call = json!({ "name": "optional", "arguments": {}, "task": {} });
    for table in ["tasks", "task_live", "task_requests"] {
        refuse_inserts(database, table).await;
        for _ in 0..2 {
            let answer = client.request("tools/call", call.clone()).await;
            assert_eq!((answer.status, answer.error().0), (200, -32603), "{table} {answer:?}");
            assert!(!answer.body.contains("disk full"), "what the database said is not told: {answer:?}");
        }
        assert_eq!(database.rows_of_tasks().await, 0, "{table}");
        accept_inserts(database, table).await;
    }
    let bad = json!({ "name": "optional", "arguments": { "bad": 1 }, "task": {} });
    for refused in [bad, json!({ "name": "gone__tool", "arguments": {}, "task": {} })] {
        assert_eq!(client.request("tools/call", refused).await.error().0, -32602);
    }
    assert_eq!(database.rows_of_tasks().await, 0);
    assert!(service.script.is_idle().await, "nothing ran");
    assert_eq!(client.list().await, Vec::<Value>::new());
    let id = client.request("tools/call", call).await.result()["task"]["taskId"].clone();
    service.script.next().await.answer("done");
    client.until_status(&id, "completed").await;
}

async fn refuse_inserts(database: &TestDatabase, table: &str) {
    let trigger = match database.backend {
        Backend::Sqlite => {
            format!("CREATE TRIGGER refuse BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        }
        Backend::Postgres => format!(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'disk full'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON {table} EXECUTE FUNCTION refuse()"
        ),
    };
    database.sql(&trigger).await;
}

async fn accept_inserts(database: &TestDatabase, table: &str) {
    let on = if database.backend == Backend::Postgres { format!(" ON {table}") } else { String::new() };
    database.sql(&format!("DROP TRIGGER refuse{on}")).await;
}
