//! Headers that repeat the body.

use serde_json::{Value, json};

use crate::http::harness::{Gateway, Service, engine_rules};
use crate::relay::{heard, recording};
use crate::support::client::Answer;
use crate::support::database::{Backend, TestDatabase};
use crate::support::modern::Modern;
use crate::upstream::harness::settings;

fn is_mismatch(answer: &Answer, header: &str) -> bool {
    let (code, message) = answer.error();
    (answer.status, code) == (400, -32020) && message.to_ascii_lowercase().contains(header)
}

// req: MOD-03
#[tokio::test]
async fn every_request_repeats_its_version_and_method() {
    let service = Service::on_sqlite().await;
    let client = Modern::new(&service.url, "owner");
    for (header, wrong) in [("mcp-protocol-version", "2025-11-25"), ("mcp-method", "TOOLS/LIST")] {
        let draft = client.draft("tools/list", json!({}));
        let right = draft.headers.iter().find(|(name, _)| name == header).unwrap().1.clone();
        for spoilt in [
            draft.clone().without(header),
            draft.clone().with(header, wrong),
            draft.clone().with(header, ""),
            draft.clone().also(header, &right),
        ] {
            assert!(is_mismatch(&client.send(spoilt.clone()).await, header), "{spoilt:?}");
        }
        let spaced = draft.clone().without(header).also(&header.to_uppercase(), &format!("  {right} \t"));
        assert_eq!(
            client.send(spaced).await.status,
            200,
            "{header}: the name has no case, the space around is none of it"
        );
    }
}

// req: MOD-03
// field case: F-HTTP-09
#[tokio::test]
async fn a_name_is_repeated_plainly_or_in_base64() {
    let service = Service::on_sqlite().await;
    let client = Modern::new(&service.url, "owner");
    for (method, params) in [
        ("tools/call", json!({ "name": "naïve" })),
        ("prompts/get", json!({ "name": "naïve" })),
        ("resources/read", json!({ "uri": "naïve" })),
    ] {
        let draft = client.draft(method, params);
        for spoilt in [
            draft.clone().without("mcp-name"),
            draft.clone().with("mcp-name", "naive"),
            draft.clone().with("mcp-name", "=?base64?bmFpdmU=?="),
            draft.clone().with("mcp-name", "=?base64?bmHDr3Zl"),
            draft.clone().with("mcp-name", "=?base64?bmHDr3Z?="),
            draft.clone().with("mcp-name", "=?base64?bmHDr3Zl?=").also("mcp-name", "=?base64?bmHDr3Zl?="),
        ] {
            assert!(is_mismatch(&client.send(spoilt.clone()).await, "mcp-name"), "{spoilt:?}");
        }
        // What it names is not there, which is found out after its headers were taken.
        let (code, _) = client.send(draft.with("mcp-name", "=?base64?bmHDr3Zl?=")).await.error();
        assert_eq!(code, if method == "tools/call" { -32602 } else { -32601 }, "{method}");
    }
    assert!(service.script.is_idle().await);
}

const TOOLS: &str = r#""result":{"tools":[{"name":"query","inputSchema":{"type":"object","properties":{
    "region":{"type":"string","x-mcp-header":"Region"},"limit":{"type":"integer","x-mcp-header":"Limit"},
    "deep":{"type":"object","properties":{"dry":{"type":"boolean","x-mcp-header":"Dry"}}},"text":{"type":"string"}}}}]}"#;

// req: MOD-11
#[tokio::test]
async fn annotated_arguments_are_repeated() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let tools = TOOLS.replace('\n', " ");
    let answers = [("tools/list", tools.as_str()), ("tools/call", r#""result":{"content":[]}"#)];
    let upstream = recording("u", log.path(), r#"{"tools":{}}"#, &answers);
    let database = TestDatabase::new(Backend::Sqlite).await;
    let gateway = Gateway::with(database, settings(), vec![upstream], engine_rules()).await;
    let client = Modern::new(&gateway.front.url, "owner");
    let call = |arguments: Value| client.draft("tools/call", json!({ "name": "query", "arguments": arguments }));
    let full = || {
        call(json!({ "region": "us-west1", "limit": 42, "deep": { "dry": true }, "text": "t" }))
            .also("mcp-param-region", "us-west1")
            .also("Mcp-Param-Limit", "42.0")
            .also("mcp-param-dry", "true")
            .also("mcp-param-text", "anything: nobody has asked for it")
    };
    let shown = client.request("tools/list", json!({})).await.result();
    assert_eq!(shown["tools"][0]["inputSchema"]["properties"]["region"]["x-mcp-header"], "Region");
    assert_eq!(client.send(full()).await.status, 200);
    let none = call(json!({ "region": null, "deep": {} }));
    // Null is refused by the tool's schema, after its headers were taken.
    assert_eq!(client.send(none).await.result()["isError"], true);
    assert_eq!(client.send(call(json!({}))).await.result()["resultType"], "complete");
    let accented = call(json!({ "region": "é" }));
    assert_eq!(client.send(accented.also("mcp-param-region", "=?base64?w6k=?=")).await.status, 200);
    let count = heard(log.path(), "tools/call").len();
    for spoilt in [
        full().without("mcp-param-region"),
        full().with("mcp-param-region", "US-WEST1"),
        full().also("mcp-param-region", "us-west1"),
        full().with("mcp-param-region", "=?base64?dXMtd2VzdDE?="),
        full().with("Mcp-Param-Limit", "41"),
        full().with("mcp-param-dry", "True"),
        call(json!({})).also("mcp-param-region", "us-west1"),
        call(json!({ "region": null })).also("mcp-param-region", "null"),
    ] {
        assert!(is_mismatch(&client.send(spoilt.clone()).await, "mcp-param"), "{spoilt:?}");
    }
    assert_eq!(heard(log.path(), "tools/call").len(), count, "nothing of it ran");
    gateway.upstreams.stop().await;
}
