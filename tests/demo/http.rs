//! Requests, refusals and streams.

use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::client::{Modern, SUBSCRIPTION, TASKS, headers, message};
use super::schema;
use crate::support::events::Events;

#[tokio::test]
async fn what_there_is_says_how_long_it_may_be_kept() {
    let client = Modern::new(&["--conformance", "--tasks"]).await;
    let found = client.request("server/discover", json!({})).await;
    assert_eq!(found.result()["supportedVersions"], json!(["2026-07-28", "2025-11-25", "2025-06-18"]));
    assert_eq!(found.result()["capabilities"]["extensions"], json!({ TASKS: {} }));
    assert_eq!(found.result()["capabilities"].get("tasks"), None);
    for (method, params) in [
        ("tools/list", json!({})),
        ("prompts/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({ "uri": "test://static-text" })),
    ] {
        let answer = client.request(method, params).await;
        let result = answer.result();
        assert_eq!(
            (
                &result["resultType"],
                &result["cacheScope"],
                &result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"]
            ),
            (&json!("complete"), &json!("public"), &json!("taskhold-demo")),
            "{method}"
        );
        assert!(result["ttlMs"].is_u64() && !answer.is_stream, "{method}: {result}");
    }
    let listed = client.request("tools/list", json!({})).await;
    let tools = listed.result()["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool.get("execution").is_none()));
    let hint = |name: &str| &tools.iter().find(|tool| tool["name"] == name).unwrap()["_meta"]["io.taskhold/task"];
    assert_eq!(*hint("greet"), "never");
    assert_eq!(*hint("slow_compute"), "eager");
    assert_eq!(*hint("failing_job"), "always");
    assert_eq!(*hint("test_tool_with_task"), json!({ "mode": "always", "askFirst": true }));
    let plain = Modern::new(&["--test-tools"]).await;
    assert_eq!(plain.request("server/discover", json!({})).await.result()["capabilities"], json!({ "tools": {} }));
    assert_eq!(plain.request("prompts/list", json!({})).await.code(), (404, -32601));
}

/// A request, and its headers, with some of it changed.
fn changed(change: impl Fn(&mut Value, &mut HeaderMap)) -> (HeaderMap, Value) {
    let params = json!({ "name": "test_custom_header", "arguments": { "value": "v" } });
    let mut message = message("tools/call", params, &json!({}));
    let mut headers = headers(&message);
    headers.insert("mcp-param-value", "v".parse().unwrap());
    change(&mut message, &mut headers);
    (headers, message)
}

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

#[tokio::test]
async fn the_first_reason_to_refuse_counts() {
    let client = Modern::new(&["--conformance", "--tasks"]).await;
    let (sent, message) = changed(|_, _| {});
    assert_eq!(client.post(sent, &message).await.status, 200);
    // Each fault keeps those before it: what answers is the last that was added, in this order from the end.
    type Fault = fn(&mut Value, &mut HeaderMap);
    let faults: [(Fault, (u16, i64)); 6] = [
        (|message, _| message["params"]["name"] = json!("failing_job"), (400, -32021)),
        (
            |message, sent| {
                message["method"] = json!("ping");
                sent.insert("mcp-method", "ping".parse().unwrap());
            },
            (404, -32601),
        ),
        (|_, sent| drop(sent.insert("mcp-method", "PING".parse().unwrap())), (400, -32020)),
        (
            |message, sent| {
                message["params"]["_meta"][META_VERSION] = json!("v999.0.0");
                sent.insert("mcp-protocol-version", "v999.0.0".parse().unwrap());
            },
            (400, -32022),
        ),
        (|_, sent| drop(sent.insert("mcp-protocol-version", "2026-07-28".parse().unwrap())), (400, -32020)),
        (
            |message, _| {
                message["params"]["_meta"].as_object_mut().unwrap().remove(META_CAPABILITIES);
            },
            (400, -32602),
        ),
    ];
    let (mut sent, mut message) = changed(|message, sent| {
        message["params"]["arguments"] = json!({});
        sent.remove("mcp-param-value");
        sent.insert("mcp-name", "failing_job".parse().unwrap());
    });
    for (number, (fault, expected)) in faults.into_iter().enumerate() {
        fault(&mut message, &mut sent);
        assert_eq!(client.post(sent.clone(), &message).await.code(), expected, "fault {number}");
    }
    let faults: [(Fault, (u16, i64)); 6] = [
        (|_, sent| drop(sent.remove("mcp-name")), (400, -32020)),
        (
            |_, sent| {
                sent.append("mcp-name", "test_custom_header".parse().unwrap());
            },
            (400, -32020),
        ),
        (|_, sent| drop(sent.remove("mcp-param-value")), (400, -32020)),
        (|_, sent| drop(sent.insert("mcp-param-value", "=?base64?dg?=".parse().unwrap())), (400, -32020)),
        (|message, _| message["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = json!("loud"), (200, -32602)),
        (|message, _| message["params"]["inputResponses"] = json!(null), (200, -32602)),
    ];
    for (number, (fault, expected)) in faults.into_iter().enumerate() {
        let (sent, message) = changed(fault);
        if number == 5 {
            // Null is as good as nothing.
            assert_eq!(client.post(sent, &message).await.status, 200);
        } else {
            assert_eq!(client.post(sent, &message).await.code(), expected, "fault {number}");
        }
    }
    let (sent, message) = changed(|message, sent| {
        message["params"]["_meta"][META_VERSION] = json!("2025-11-25");
        sent.insert("mcp-protocol-version", "2025-11-25".parse().unwrap());
    });
    let data = client.post(sent, &message).await.last()["error"]["data"].clone();
    assert_eq!(data, json!({ "requested": "2025-11-25", "supported": ["2026-07-28"] }));
    let lacking = client.request_with("tools/call", json!({ "name": "test_missing_capability" }), json!({})).await;
    assert_eq!(lacking.code(), (400, -32021));
    assert_eq!(lacking.last()["error"]["data"]["requiredCapabilities"], json!({ "sampling": {} }));
}

#[tokio::test]
async fn a_call_speaks_on_its_own_stream() {
    let client = Modern::new(&["--test-tools"]).await;
    let quick = client.call("echo", json!({ "a": 1 })).await;
    assert_eq!(quick.result()["structuredContent"], json!({ "a": 1 }));
    let silent = client.call("prog", json!({ "n": 2 })).await;
    assert_eq!(silent.messages.len(), 1, "nobody asked for progress");
    let asked = json!({ "name": "prog", "arguments": { "n": 2 }, "_meta": { "progressToken": "p" } });
    let told = client.request("tools/call", asked).await;
    let progress: Vec<_> = told.messages.iter().filter_map(|said| said["params"]["progress"].as_f64()).collect();
    assert!(told.is_stream && progress == [1.0, 2.0], "{:?}", told.messages);
    assert_eq!(told.messages[0]["params"]["progressToken"], "p");
    let logged = async |level: Option<&str>| {
        let mut params = json!({ "name": "log", "arguments": { "n": 2 } });
        if let Some(level) = level {
            params["_meta"] = json!({ "io.modelcontextprotocol/logLevel": level });
        }
        client.request("tools/call", params).await.messages.len() - 1
    };
    assert_eq!((logged(None).await, logged(Some("info")).await, logged(Some("error")).await), (0, 2, 0));
    let slow = client.call("sleep", json!({ "ms": 1200 })).await;
    assert!(slow.is_stream && slow.text() == "slept 1200 ms", "who waits sees that it was heard");
}

#[tokio::test]
async fn both_eras_are_served_at_one_url() {
    let client = Modern::new(&["--test-tools"]).await;
    let mut legacy = crate::support::client::Client::new(&client.demo.url, None);
    assert_eq!(legacy.initialize("2025-11-25").await["protocolVersion"], "2025-11-25");
    let echo = legacy.request("tools/call", json!({ "name": "echo", "arguments": {} })).await.result();
    assert_eq!(echo.get("resultType"), None);
    assert_eq!(client.call("echo", json!({})).await.result()["resultType"], "complete");
    for method in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/list", "tasks/result"] {
        assert_eq!(client.request(method, json!({})).await.code(), (404, -32601), "{method}");
    }
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    let mut sent = headers(&message("tools/list", json!({}), &json!({})));
    assert_eq!(client.post(sent.clone(), &note).await.status, 202);
    assert_eq!(client.post(sent.clone(), &json!({ "jsonrpc": "2.0", "id": 1, "result": {} })).await.status, 400);
    sent.insert("origin", "http://evil.example".parse().unwrap());
    assert_eq!(client.post(sent, &message("tools/list", json!({}), &json!({}))).await.status, 403);
}

#[tokio::test]
async fn who_listens_hears_what_was_asked_for_and_nothing_else() {
    let client = Modern::new(&["--conformance"]).await;
    let wanted = json!({
        "toolsListChanged": true, "resourcesListChanged": true, "resourceSubscriptions": ["test://watched-resource"],
    });
    let asked = message("subscriptions/listen", json!({ "notifications": wanted }), &json!({}));
    let mut events = Events::new(client.open(headers(&asked), &asked).await).await;
    let mut next = async || {
        let said = events.message().await.expect("the stream is open");
        schema::check("subscriptions/listen", &said);
        assert_eq!(said["params"]["_meta"][SUBSCRIPTION], 7, "{said}");
        said
    };
    let acknowledged = next().await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(
        acknowledged["params"]["notifications"],
        json!({ "toolsListChanged": true, "resourceSubscriptions": ["test://watched-resource"] }),
        "there are no changes of the list of resources"
    );
    let count = async || client.request("tools/list", json!({})).await.result()["tools"].as_array().unwrap().len();
    let before = count().await;
    client.call("test_trigger_prompt_change", json!({})).await;
    client.call("touch_resource", json!({ "uri": "test://static-text" })).await;
    client.call("touch_resource", json!({ "uri": "test://watched-resource" })).await;
    assert_eq!(next().await["params"]["uri"], "test://watched-resource");
    client.call("test_trigger_tool_change", json!({})).await;
    assert_eq!(next().await["method"], "notifications/tools/list_changed");
    assert_eq!(count().await, before + 1);
}

#[tokio::test]
async fn who_goes_away_cancels_the_call() {
    let tools = json!([
        {
            "name": "later",
            "description": "Changes the list of tools after some seconds.",
            "inputSchema": { "type": "object" },
            "steps": [{ "progress": [1, 2] }, { "sleepSeconds": "s" }, { "change": "tools" }, { "result": { "content": [] } }],
        },
        {
            "name": "fleeting", "description": "Comes and goes.", "inputSchema": { "type": "object" },
            "isFleeting": true, "steps": [],
        },
    ]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), json!({ "tools": tools }).to_string()).unwrap();
    let client = Modern::new(&["--fixtures", file.path().to_str().unwrap()]).await;
    let meta = json!({ "progressToken": 1 });
    let left = message("tools/call", json!({ "name": "later", "arguments": { "s": 1 }, "_meta": meta }), &json!({}));
    let mut events = Events::new(client.open(headers(&left), &left).await).await;
    assert_eq!(events.message().await.expect("it has begun")["params"]["progress"], 1.0);
    drop(events);
    client.call("later", json!({ "s": 1.2 })).await;
    let listed = client.request("tools/list", json!({})).await;
    assert_eq!(listed.result()["tools"].as_array().unwrap().len(), 2, "one change alone: twice would be none");
}
