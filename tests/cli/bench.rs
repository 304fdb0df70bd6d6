//! `taskhold bench` against the service, against other servers, and against none.

use std::process::ExitStatus;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::remote::{Remote, Seen, event, events, scenario, status, whole};
use crate::support::server::{Server, run};
use crate::upstream::http_demo::Demo;

const ERAS: [&str; 2] = ["legacy", "modern"];

contract! {
    every_mode_is_measured_in_both_eras,
    what_the_service_refuses_is_counted,
}

/// The service with the demo's tools, and a token.
async fn service(database: &TestDatabase) -> (Server, String) {
    let server = Server::start_with(&database.url, &["--demo"]).await;
    let token = server.log.iter().find_map(|line| line.strip_prefix("TOKEN=")).expect("it prints a token").to_owned();
    (server, token)
}

async fn bench(url: &str, arguments: &[&str]) -> (ExitStatus, String, String) {
    run(&[&["bench", "--url", url], arguments].concat()).await
}

/// The report of a run that was as it should be.
async fn measured(url: &str, arguments: &[&str]) -> Value {
    let (status, stdout, stderr) = bench(url, &[arguments, &["--json"]].concat()).await;
    assert!(status.success(), "{arguments:?}: {stderr}{stdout}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

fn assert_whole(report: &Value, operations: u64) {
    let counts = ["errors", "limited", "reconnects", "behind"].map(|name| report[name].as_u64().unwrap());
    assert_eq!((&report["operations"], counts), (&json!(operations), [0; 4]), "{report}");
    assert_eq!(report["errors_by_kind"], json!({}), "{report}");
    let number = |name: &str| report[name].as_f64().unwrap();
    let rate = operations as f64 / number("seconds");
    assert!((number("operations_per_second") - rate).abs() < rate / 100.0, "{report}");
    let rising = ["p50_ms", "p95_ms", "p99_ms", "max_ms"].map(number);
    assert!(rising[0] > 0.0 && rising.is_sorted(), "{report}");
}

async fn every_mode_is_measured_in_both_eras(database: TestDatabase) {
    let (server, token) = service(&database).await;
    for era in ERAS {
        for mode in ["create", "get", "lifecycle", "list", "call"] {
            let arguments = ["--token", &token, "--era", era, "--mode", mode, "--connections", "4", "--requests", "50"];
            if (era, mode) == ("modern", "list") {
                let (status, stdout, stderr) = bench(&server.url, &arguments).await;
                assert_eq!((status.code(), stdout.as_str()), (Some(2), ""), "{stderr}");
                assert!(stderr.contains("use --era legacy"), "{stderr}");
                continue;
            }
            let report = measured(&server.url, &arguments).await;
            assert_whole(&report, 50);
            assert_eq!(
                (&report["era"], &report["mode"], &report["connections"]),
                (&json!(era), &json!(mode), &json!(4))
            );
        }
    }
    let tasks = database.number("SELECT COUNT(*) FROM tasks").await;
    // In each era 50 by create, 50 by lifecycle, 4 times 100 for get; 4 times 100 for the list. None by plain calls.
    assert_eq!(tasks, 2 * (50 + 50 + 400) + 400);
    assert_eq!(database.number("SELECT COUNT(*) FROM sessions").await, 0, "each ends its session");
}

async fn what_the_service_refuses_is_counted(database: TestDatabase) {
    let (server, token) = service(&database).await;
    for era in ERAS {
        let common = ["--era", era, "--connections", "3", "--requests", "50", "--json"];
        for mode in ["create", "lifecycle", "call"] {
            let arguments = [&common[..], &["--token", &token, "--mode", mode, "--tool", "no_such_tool"]].concat();
            let (status, stdout, stderr) = bench(&server.url, &arguments).await;
            assert_eq!(status.code(), Some(1), "{stderr}");
            assert!(stderr.contains("no operation was done"), "{stderr}");
            let report: Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!((&report["operations"], &report["errors"]), (&json!(0), &json!(50)), "{report}");
            let kinds = report["errors_by_kind"].as_object().unwrap();
            assert!(kinds.len() == 1 && kinds.keys().all(|kind| kind.ends_with("rpc -32602")), "{report}");
        }
        let wrong = [&common[..], &["--token", "th_wrong"]].concat();
        let (status, stdout, stderr) = bench(&server.url, &wrong).await;
        assert_eq!((status.code(), stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(
            stderr.contains("http 401") && stderr.contains("--token-file") && !stderr.contains("th_wrong"),
            "{stderr}"
        );
    }
    let failing = ["--token", &token, "--tool", "fail", "--requests", "5", "--mode", "lifecycle"];
    let (status, stdout, _) = bench(&server.url, &failing).await;
    assert_eq!(status.code(), Some(1));
    assert!(stdout.contains("errors      5\n") && stdout.contains("5 tool error"), "{stdout}");
}

/// Every request that waits for the slow one before it is late from the moment on for which it was planned.
#[tokio::test]
async fn an_open_loop_counts_from_the_planned_start() {
    let demo = Demo::offering(&[]).await;
    let slow = ["--mode", "call", "--arguments", r#"{"seconds":0.1}"#, "--connections", "1", "--requests", "20"];
    let open = measured(&demo.url, &[&slow[..], &["--rate", "100"]].concat()).await;
    assert_whole(&open, 20);
    assert_eq!(open["rate"], 100);
    let max = open["max_ms"].as_f64().unwrap();
    // The last one is planned after 0.19 s and answered after 2 s.
    assert!((1800.0..60_000.0).contains(&max), "{open}");
    assert!(open["p50_ms"].as_f64().unwrap() >= 850.0, "{open}");
    let closed = measured(&demo.url, &slow).await;
    assert!(closed["p50_ms"].as_f64().unwrap() < open["p50_ms"].as_f64().unwrap(), "{closed}");
}

#[tokio::test]
async fn a_run_ends_when_its_time_is_over() {
    let demo = Demo::offering(&[]).await;
    let arguments = ["--mode", "call", "--connections", "2", "--duration", "200ms"];
    let closed = measured(&demo.url, &arguments).await;
    let operations = closed["operations"].as_u64().unwrap();
    assert!(operations > 0 && closed["seconds"].as_f64().unwrap() > 0.1, "{closed}");
    let slow = ["--arguments", r#"{"seconds":0.15}"#, "--rate", "100"];
    let open = measured(&demo.url, &[&arguments[..], &slow].concat()).await;
    let begun = open["operations"].as_u64().unwrap();
    assert_eq!(begun + open["behind"].as_u64().unwrap(), 20, "every planned one is accounted for: {open}");
    assert!(begun >= 2 && open["behind"].as_u64().unwrap() >= 10, "{open}");
}

#[tokio::test]
async fn another_server_with_tasks_is_measured_as_well() {
    let demo = Demo::offering(&["--tasks"]).await;
    for (era, modes) in [
        ("legacy", &["create", "get", "lifecycle", "list", "call"][..]),
        ("modern", &["create", "get", "lifecycle", "call"]),
    ] {
        for mode in modes {
            let arguments = ["--era", era, "--mode", mode, "--connections", "3", "--requests", "30"];
            let mut report = measured(&demo.url, &arguments).await;
            if (era, *mode) == ("legacy", "lifecycle") {
                // It leaves the stream open on which it has sent a task's result, so that each needs a new connection.
                assert!(report["reconnects"].as_u64().unwrap() > 0, "{report}");
                report["reconnects"] = 0.into();
            }
            assert_whole(&report, 30);
        }
    }
    let without = Demo::offering(&[]).await;
    for era in ERAS {
        let (status, _, stderr) = bench(&without.url, &["--era", era, "--requests", "3"]).await;
        assert!(status.code() == Some(1) && stderr.contains("--mode call needs no"), "{stderr}");
    }
}

/// A server of the legacy era with tasks, whose `tasks/result` is answered by `result` and whose calls by `call`.
async fn scripted(
    call: fn(&Seen) -> Option<axum::response::Response>,
    result: fn(&Seen) -> axum::response::Response,
) -> Remote {
    Remote::start(scenario(move |seen: Seen| async move {
        match seen.rpc() {
            "initialize" => {
                let result = json!({
                    "protocolVersion": "2025-11-25", "serverInfo": { "name": "remote", "version": "1" },
                    "capabilities": { "tasks": { "requests": { "tools": { "call": {} } } } },
                });
                let mut response = whole(&seen.response(&result));
                response.headers_mut().insert("mcp-session-id", format!("session-{}", seen.number).parse().unwrap());
                Some(response)
            }
            "tools/call" => call(&seen).or_else(|| {
                let task = json!({ "taskId": format!("task-{}", seen.number), "status": "working", "ttl": null });
                Some(whole(&seen.response(&json!({ "task": task }))))
            }),
            "tasks/result" => Some(result(&seen)),
            _ => None,
        }
    }))
    .await
}

#[tokio::test]
async fn a_stream_that_ends_before_the_result_is_asked_for_again() {
    let remote = scripted(
        |_| None,
        |seen| {
            if seen.number % 4 == 3 {
                return events("id: 1\nretry: 5\ndata:\n\n");
            }
            let others =
                [json!({ "jsonrpc": "2.0", "id": seen.body["id"], "method": "ping" }), json!({ "method": "n" })];
            let others: String = others.iter().map(|other| event(&other.to_string())).collect();
            events(format!(": hello\n\n{others}{}", event(&seen.text("done"))))
        },
    )
    .await;
    let report = measured(&remote.url, &["--connections", "1", "--requests", "6"]).await;
    assert_eq!((&report["operations"], &report["errors"]), (&json!(6), &json!(0)), "{report}");
    let asked = remote.messages("tasks/result");
    assert!(asked.len() > 6, "some were asked for again");
    let session = asked[0].session().unwrap().to_owned();
    assert!(
        remote.requests(&Method::DELETE).iter().any(|seen| seen.session() == Some(&session)),
        "its session is ended"
    );
    let task = asked[0].body["params"]["taskId"].as_str().unwrap();
    assert!(task.starts_with("task-") && asked[0].header("mcp-protocol-version") == Some("2025-11-25"), "{task}");
    assert_eq!(remote.messages("tools/call")[0].body["params"]["task"], json!({ "ttl": 600_000 }));
}

#[tokio::test]
async fn refusals_by_a_limit_and_other_failures_are_told_apart() {
    let remote = scripted(
        |seen| match seen.number % 3 {
            0 => {
                let mut response = status(429, "slow down");
                response.headers_mut().insert("retry-after", "0".parse().unwrap());
                Some(response)
            }
            1 => Some(status(500, "")),
            _ => None,
        },
        |seen| whole(&seen.text("done")),
    )
    .await;
    let report = measured(&remote.url, &["--mode", "create", "--connections", "1", "--requests", "30"]).await;
    assert_eq!(
        (&report["operations"], &report["errors"], &report["limited"]),
        (&json!(10), &json!(20), &json!(10)),
        "{report}"
    );
    assert_eq!(report["errors_by_kind"], json!({ "http 429": 10, "http 500": 10 }));
    let (_, text, _) = bench(&remote.url, &["--mode", "create", "--connections", "1", "--requests", "30"]).await;
    assert!(
        text.contains("10 http 429, the first one: slow down\n") && text.contains("10 of the errors were refusals"),
        "{text}"
    );
}

#[tokio::test]
async fn what_takes_too_long_is_given_up() {
    let remote = scripted(|_| None, |_| events("")).await;
    let arguments = ["--connections", "2", "--requests", "2", "--timeout", "300ms", "--json"];
    let (status, stdout, _) = bench(&remote.url, &arguments).await;
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((status.code(), &report["errors_by_kind"]), (Some(1), &json!({ "timeout": 2 })), "{report}");
}

#[tokio::test]
async fn what_cannot_be_measured_is_said() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for url in [format!("http://{free}/mcp"), format!("https://{free}/mcp")] {
        for era in ERAS {
            let (status, stdout, stderr) = bench(&url, &["--era", era]).await;
            assert_eq!((status.code(), stdout.as_str()), (Some(1), ""), "{stderr}");
            assert!(stderr.contains(&url) && stderr.contains("it cannot be reached: "), "{stderr}");
        }
    }
    let remote = Remote::start(scenario(async |_| None)).await;
    let (status, _, stderr) = bench(&remote.url.replace("http:", "https:"), &[]).await;
    assert!(status.code() == Some(1) && stderr.contains("it cannot be reached: "), "{stderr}");
    let (status, _, stderr) = bench(&remote.url, &[]).await;
    assert!(status.code() == Some(1) && stderr.contains("it offers no tasks to this caller"), "{stderr}");
    let (status, _, stderr) = bench(&remote.url, &["--era", "modern"]).await;
    assert!(status.code() == Some(1) && stderr.contains("server/discover"), "{stderr}");
}

#[tokio::test]
async fn options_that_cannot_be_used_are_named() {
    for (arguments, said) in [
        (&["--url", "ftp://h/"][..], "such as http://127.0.0.1:8080/mcp"),
        (&["--token", "a b"], "the token cannot be used"),
        (&["--token-file", "no-such-file"], "cannot read the token of no-such-file"),
        (&["--token", "a", "--token-file", "b"], "cannot be used with"),
        (&["--arguments", "[1]"], "expected a JSON object"),
        (&["--arguments", "{"], "expected a JSON object: not valid JSON at byte 1"),
        (&["--connections", "0"], "1..=10000"),
        (&["--rate", "0"], "1..=1000000"),
        (&["--requests", "0"], "1.."),
        (&["--duration", "0s"], "expected a duration above zero"),
        (&["--ttl", "soon"], "expected 1ms to "),
        (&["--mode", "fast"], "create, get, lifecycle, list, call"),
        (&["--era", "new"], "legacy, modern"),
    ] {
        let (status, stdout, stderr) = run(&[&["bench"], arguments].concat()).await;
        assert!(!status.success() && stdout.is_empty() && stderr.contains(said), "{arguments:?}: {stderr}");
    }
}
