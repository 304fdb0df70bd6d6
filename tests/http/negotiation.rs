//! What is declared to whom, and what follows from it.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::harness::Service;
use crate::support::client::Client;

const RESULT: &str = r#"{"content":[{"type":"text","text":"done"}]}"#;

/// Sends a `tools/call` and ends the work that it starts.
async fn served(service: &Service, client: &Client, params: Value) -> Value {
    let (answer, ()) = tokio::join!(client.request("tools/call", params), service.answer_next(RESULT));
    answer.result()
}

// req: CAP-01, CAP-02, CAP-11 (of CAP-11 the legacy half)
#[tokio::test]
async fn initialize_declares_what_is_served() {
    let service = Service::on_sqlite().await;
    let mut client = Client::new(&service.url, Some("owner"));
    let all = json!({ "tools": { "listChanged": true }, "tasks": { "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } } });
    for (asked, answered, capabilities) in [
        ("2025-11-25", "2025-11-25", &all),
        ("2025-06-18", "2025-06-18", &json!({ "tools": { "listChanged": true } })),
        ("2025-03-26", "2025-11-25", &all),
        ("2027-01-01", "2025-11-25", &all),
    ] {
        client.session = None;
        let result = client.initialize(answered).await;
        assert_eq!(result["protocolVersion"], answered);
        let params =
            json!({ "protocolVersion": asked, "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } });
        let result = client.request("initialize", params).await.result();
        assert_eq!((result["protocolVersion"].as_str(), &result["capabilities"]), (Some(answered), capabilities));
    }
}

// req: AUTH-09, CAP-02
#[tokio::test]
async fn callers_that_cannot_be_told_apart_have_no_list() {
    let service = Service::on_sqlite().await;
    service.names.open_to_anyone.store(true, Ordering::SeqCst);
    let mut client = Client::new(&service.url, None);
    let result = client.initialize("2025-11-25").await;
    assert_eq!(result["capabilities"]["tasks"], json!({ "cancel": {}, "requests": { "tools": { "call": {} } } }));
    assert_eq!(client.request("tasks/list", json!({})).await.error().0, -32601);
    let task = client.task("optional", json!({})).await;
    assert_eq!(client.get(&task["taskId"]).await.result()["status"], "working");
}

// req: CAP-03
// field case: F-P25-07
#[tokio::test]
async fn tools_carry_their_task_support() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let answer = client.request("tools/list", json!({})).await;
    let tools = answer.text();
    for (name, support) in
        [("optional", "optional"), ("never", "forbidden"), ("always", "required"), ("eager", "optional")]
    {
        assert!(
            tools.contains(&format!(
                r#"{{"inputSchema":{{"type":"object"}},"name":"{name}","execution":{{"taskSupport":"{support}"}}}}"#
            )),
            "{name} in {tools}"
        );
    }
    assert!(
        tools.contains(
            r#"{"name":"our_name","title":"T","inputSchema":{"type":"object","x":1e400},"execution":{"taskSupport":"optional"},"_meta":{"n":1.0}}"#
        ),
        "{tools}"
    );
    for client in [service.client_of("owner", "2025-06-18").await, service.client("someone@plain").await] {
        let answer = client.request("tools/list", json!({})).await;
        assert!(!answer.text().contains("execution"), "{answer:?}");
        assert!(answer.text().contains(r#""name":"our_name""#), "{answer:?}");
    }
    assert_eq!(client.request("tools/list", json!({ "cursor": "x" })).await.error().0, -32602);
}

// req: CAP-04, CAP-05, CAP-06
// field case: F-P25-06
#[tokio::test]
async fn the_tools_mode_and_the_task_field_decide() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let plain = |name: &str| json!({ "name": name });
    let task = |name: &str| json!({ "name": name, "task": {} });
    for params in [task("never"), json!({ "name": "never", "task": null }), plain("always")] {
        assert_eq!(client.request("tools/call", params).await.error().0, -32601);
    }
    assert!(service.script.is_idle().await);
    assert_eq!(client.list().await, Vec::<Value>::new());
    for name in ["never", "optional", "eager"] {
        assert_eq!(served(&service, &client, plain(name)).await, serde_json::from_str::<Value>(RESULT).unwrap());
    }
    assert_eq!(client.list().await, Vec::<Value>::new());
    for name in ["optional", "eager", "always"] {
        let created = served(&service, &client, task(name)).await;
        assert!(created["task"]["taskId"].is_string(), "{created}");
    }
    assert_eq!(client.list().await.len(), 3);
}

// req: CAP-07
// field case: F-P25-06, F-P25-07
#[tokio::test]
async fn where_tasks_are_not_offered_the_task_field_means_nothing() {
    let service = Service::on_sqlite().await;
    for client in [service.client_of("owner", "2025-06-18").await, service.client("someone@plain").await] {
        for name in ["never", "optional", "always"] {
            for params in [json!({ "name": name, "task": { "ttl": -1 } }), json!({ "name": name })] {
                let result = served(&service, &client, params).await;
                assert_eq!(result, serde_json::from_str::<Value>(RESULT).unwrap(), "{name}");
            }
        }
        for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
            assert_eq!(client.request(method, json!({ "taskId": "x" })).await.error().0, -32601, "{method}");
        }
    }
    let mut plain = Client::new(&service.url, Some("someone@plain"));
    assert_eq!(plain.initialize("2025-11-25").await["capabilities"], json!({ "tools": { "listChanged": true } }));
}

// req: CAP-12
#[tokio::test]
async fn an_unknown_tool_is_an_invalid_parameter() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    for params in [
        json!({ "name": "nobody" }),
        json!({ "name": "nobody", "task": {} }),
        json!({ "name": "their name" }),
        json!({ "name": "" }),
        json!({ "name": 7 }),
        json!({}),
    ] {
        assert_eq!(client.request("tools/call", params.clone()).await.error().0, -32602, "{params}");
    }
    assert!(service.script.is_idle().await);
    assert_eq!(client.list().await, Vec::<Value>::new());
}
