//! What is offered, and for how long it may be kept.

use serde_json::{Value, json};

use crate::http::harness::{Gateway, Service, engine_rules};
use crate::relay::library;
use crate::support::database::{Backend, TestDatabase};
use crate::support::modern::Modern;
use crate::upstream::harness::settings;

fn may_be_kept(result: &Value) -> bool {
    result["resultType"] == "complete"
        && result["ttlMs"].is_u64()
        && result["cacheScope"] == "private"
        && result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "taskhold"
}

// req: MOD-07, MOD-06
#[tokio::test]
async fn tools_are_listed_as_they_are_without_what_this_era_does_not_know() {
    let service = Service::on_sqlite().await;
    let client = Modern::new(&service.url, "owner");
    let first = client.request("tools/list", json!({})).await;
    let text = first.text();
    assert!(!text.contains("execution") && !text.contains("nextCursor"), "{text}");
    assert!(
        text.contains(r#"{"name":"our_name","title":"T","inputSchema":{"type":"object","x":1e400},"_meta":{"n":1.0}}"#),
        "{text}"
    );
    assert!(text.contains(r#""ttlMs":"#) && text.contains(r#""cacheScope":"private""#), "{text}");
    // For a client that has tasks it is the same.
    let declaring = client.with_tasks();
    for _ in 0..2 {
        assert_eq!(declaring.request("tools/list", json!({})).await.outcome(), first.outcome());
    }
    for cursor in [json!("x"), json!("")] {
        let answer = client.request("tools/list", json!({ "cursor": cursor })).await;
        assert_eq!((answer.status, answer.error().0), (200, -32602), "{cursor}");
    }
    assert!(client.request("tools/list", json!({ "cursor": 7 })).await.error().1.contains("cursor"));
}

// req: MOD-01, MOD-07. Of MOD-16 the number of what is not found.
#[tokio::test]
async fn what_upstreams_have_besides_tools_is_served_and_declared() {
    let database = TestDatabase::new(Backend::Sqlite).await;
    let gateway = Gateway::with(database, settings(), vec![library("demo")], engine_rules()).await;
    let client = Modern::new(&gateway.front.url, "owner");
    let discovered = client.request("server/discover", json!({})).await.result();
    assert!(may_be_kept(&discovered), "{discovered}");
    let capabilities = &discovered["capabilities"];
    for (name, declared) in [
        ("tools", json!({ "listChanged": true })),
        ("prompts", json!({ "listChanged": true })),
        ("resources", json!({ "listChanged": true })),
        ("completions", json!({})),
        ("logging", json!({})),
    ] {
        assert_eq!(capabilities[name], declared, "{capabilities}");
    }
    for (method, list) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        let result = client.request(method, json!({})).await.result();
        assert!(may_be_kept(&result) && !result[list].as_array().unwrap().is_empty(), "{method}: {result}");
    }
    let read = client.request("resources/read", json!({ "uri": "test://static-text" })).await.result();
    assert!(may_be_kept(&read) && read["contents"][0]["text"].is_string(), "{read}");
    // What came of its reader's own input may not, also where the round is the upstream's.
    let answers = json!({ "uri": "test://static-text", "inputResponses": {} });
    let read = client.request("resources/read", answers).await.result();
    assert_eq!((&read["ttlMs"], &read["cacheScope"]), (&json!(0), &json!("private")));
    let got = client.request("prompts/get", json!({ "name": "test_simple_prompt" })).await.result();
    assert_eq!((&got["resultType"], got.get("ttlMs")), (&json!("complete"), None), "{got}");
    let reference = json!({ "type": "ref/prompt", "name": "test_prompt_with_arguments" });
    let completion = json!({ "ref": reference, "argument": { "name": "arg1", "value": "t" } });
    let completed = client.request("completion/complete", completion).await.result();
    assert!(completed["completion"]["values"].is_array(), "{completed}");
    let unknown = client.request("resources/read", json!({ "uri": "nowhere://x" })).await;
    let error = &unknown.json()["error"];
    assert_eq!((unknown.status, &error["code"], &error["data"]["uri"]), (200, &json!(-32602), &json!("nowhere://x")));
    let unknown = client.request("prompts/get", json!({ "name": "none" })).await;
    assert_eq!((unknown.status, unknown.error().0), (200, -32602));
    gateway.upstreams.stop().await;
}
