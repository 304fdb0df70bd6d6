//! Requests that are passed on, and what comes back.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use taskhold::domain::log_level::LogLevel;
use taskhold::engine::EngineRules;

use super::{heard, library, recording};
use crate::http::harness::{Gateway, engine_rules};
use crate::support::database::{Backend, TestDatabase};
use crate::upstream::harness::{settings, until};

async fn gateway(configs: Vec<taskhold::executor::upstream::UpstreamConfig>) -> Gateway {
    Gateway::with(TestDatabase::new(Backend::Sqlite).await, settings(), configs, engine_rules()).await
}

const EVERYTHING: &str = r#"{"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{},"tools":{}}"#;

// req: EXEC-06
#[tokio::test]
async fn every_request_reaches_its_upstream_and_its_answer_comes_back_as_it_was() {
    // Unknown members, number tokens and escapes, in both directions.
    const RESULT: &str = r#"{"z":1e400,"messages":[{"role":"user","content":{"type":"text","text":"\u0000\ud800","k":1.0}}],"_meta":{"b":18446744073709551616}}"#;
    let log = tempfile::NamedTempFile::new().unwrap();
    let answer = format!(r#""result":{RESULT}"#);
    let refused = r#""error":{"code":-32011,"message":"no","data":{"n":1e400}}"#;
    let answers = [
        ("prompts/list", r#""result":{"prompts":[{"name":"a.b"}]}"#),
        ("resources/list", r#""result":{"resources":[{"uri":"x://1","name":"1"}]}"#),
        ("resources/templates/list", r#""result":{"resourceTemplates":[{"uriTemplate":"t://{id}","name":"t"}]}"#),
        ("tools/list", r#""result":{"tools":[]}"#),
        ("prompts/get", answer.as_str()),
        ("resources/read", answer.as_str()),
        ("completion/complete", refused),
    ];
    let gateway = gateway(vec![recording("u", log.path(), EVERYTHING, &answers)]).await;
    let client = gateway.client("owner").await;
    let exposed = client.request("prompts/list", json!({})).await.result()["prompts"][0]["name"].clone();
    assert!(exposed.as_str().unwrap().starts_with("a_b_"), "{exposed}");
    let send = async |method: &str, params: &str| {
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#)).await
    };
    let expected = format!(r#"{{"result":{}}}"#, RESULT);
    let prompt = format!(
        r#"{{"name":{exposed},"arguments":{{"x":"\ud800"}},"y":1e400,"_meta":{{"progressToken":"p","v":1.0}}}}"#
    );
    assert_eq!(send("prompts/get", &prompt).await.outcome(), expected);
    for uri in ["x://1", "t://7", "other://"] {
        let read = format!(r#"{{"uri":"{uri}","y":1e400}}"#);
        assert_eq!(send("resources/read", &read).await.outcome(), expected, "{uri}");
    }
    let complete = format!(
        r#"{{"ref":{{"type":"ref/prompt","name":{exposed},"title":"T"}},"argument":{{"name":"x","value":"\u0000"}},"context":{{"arguments":{{}}}}}}"#
    );
    assert_eq!(send("completion/complete", &complete).await.outcome(), format!("{{{refused}}}"));
    let text = std::fs::read_to_string(log.path()).unwrap();
    let line = |method: &str| text.lines().rfind(|line| line.contains(&format!(r#""method":"{method}""#))).unwrap();
    let got = line("prompts/get");
    assert!(
        got.contains(
            r#""params":{"name":"a.b","arguments":{"x":"\ud800"},"y":1e400,"_meta":{"v":1.0,"progressToken":"#
        ),
        "{got}"
    );
    assert!(
        line("resources/read").ends_with(r#""params":{"uri":"other://","y":1e400}}"#),
        "{}",
        line("resources/read")
    );
    let complete = line("completion/complete");
    assert!(complete.contains(r#"{"ref":{"type":"ref/prompt","name":"a.b","title":"T"},"argument":{"name":"x","value":"\u0000"},"context":{"arguments":{}}}"#), "{complete}");
    gateway.upstreams.stop().await;
}

// req: EXEC-06
#[tokio::test]
async fn what_nobody_has_is_not_found_with_its_uri() {
    let gateway = gateway(vec![library("one"), library("two")]).await;
    let client = gateway.client("owner").await;
    for method in ["resources/read", "resources/subscribe"] {
        let answer = client.request(method, json!({ "uri": "nowhere://x" })).await.json();
        assert_eq!(answer["error"]["code"], -32002, "{answer}");
        assert_eq!(answer["error"]["data"]["uri"], "nowhere://x");
    }
    let by_template = client.request("resources/read", json!({ "uri": "test://template/7/data" })).await.result();
    assert!(by_template["contents"][0]["text"].as_str().unwrap().contains("Data for ID: 7"), "{by_template}");
    for (method, params, named) in [
        ("resources/read", json!({ "uri": 7 }), "uri"),
        ("prompts/get", json!({}), "name"),
        ("completion/complete", json!({ "ref": { "type": "ref/prompt", "name": "none" }, "argument": {} }), "none"),
        ("prompts/list", json!({ "cursor": "x" }), "cursor"),
    ] {
        let (code, message) = client.request(method, params).await.error();
        assert!(code == -32602 && message.contains(named), "{method}: {message}");
    }
    gateway.upstreams.stop().await;
}

#[tokio::test]
async fn a_resource_of_an_upstream_that_is_down_is_not_said_to_be_missing() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let answers = [
        ("resources/list", r#""result":{"resources":[]}"#),
        ("resources/templates/list", r#""result":{"resourceTemplates":[]}"#),
        ("resources/read", r#""error":{"code":-32002,"message":"no"}"#),
    ];
    let up = recording("up", log.path(), r#"{"resources":{}}"#, &answers);
    // The first process of the second is its catalogue's; others end at once.
    let starts = tempfile::NamedTempFile::new().unwrap();
    let mut down = recording("down", log.path(), r#"{"resources":{}}"#, &answers);
    let once = format!("echo x >> {0}; [ $(wc -l < {0}) = 1 ] || exit 7; ", starts.path().display());
    down.command[2] = once + &down.command[2];
    let gateway = gateway(vec![up, down]).await;
    let client = gateway.client("owner").await;
    let error = client.request("resources/read", json!({ "uri": "x://1" })).await.json()["error"].clone();
    assert_eq!(
        (error["code"].as_i64(), &error["data"]["reason"]),
        (Some(-32603), &json!("upstream_unavailable")),
        "{error}"
    );
    gateway.upstreams.stop().await;
}

// The half of CAP-10 that happens on one node.
#[tokio::test]
async fn a_cancelled_request_is_cancelled_at_its_upstream() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let answers = [("prompts/list", r#""result":{"prompts":[{"name":"slow"}]}"#), ("prompts/get", "never")];
    let gateway = gateway(vec![recording("u", log.path(), r#"{"prompts":{}}"#, &answers)]).await;
    let client = gateway.client("owner").await;
    let waiting = {
        let client = client.clone();
        let body = r#"{"jsonrpc":"2.0","id":"mine","method":"prompts/get","params":{"name":"slow"}}"#;
        tokio::spawn(async move { client.send(body).await })
    };
    until("the request to arrive", || heard(log.path(), "prompts/get").len() == 1).await;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"mine"}}"#;
    assert_eq!(client.send(cancel).await.status, 202);
    assert_eq!(waiting.await.unwrap().text(), "", "a cancelled request gets no response");
    until("the cancellation to arrive", || heard(log.path(), "notifications/cancelled").len() == 1).await;
    gateway.upstreams.stop().await;
}

#[tokio::test]
async fn requests_of_one_context_are_bounded_and_end_at_the_run_limit() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let answers = [("prompts/list", r#""result":{"prompts":[{"name":"slow"}]}"#), ("prompts/get", "never")];
    let rules = EngineRules { waiters_per_context: 2, run_limit: Duration::from_secs(5), ..engine_rules() };
    let database = TestDatabase::new(Backend::Sqlite).await;
    let slow = recording("u", log.path(), r#"{"prompts":{}}"#, &answers);
    let gateway = Gateway::with(database, settings(), vec![slow], rules).await;
    let client = gateway.client("owner").await;
    let wait = || {
        let client = client.clone();
        tokio::spawn(async move { client.request("prompts/get", json!({ "name": "slow" })).await })
    };
    let waiting = [wait(), wait()];
    until("both to arrive", || heard(log.path(), "prompts/get").len() == 2).await;
    let refused = client.request("prompts/get", json!({ "name": "slow" })).await.json();
    assert_eq!(refused["error"]["data"]["limit"], "limits.streams", "{refused}");
    for one in waiting {
        assert_eq!(one.await.unwrap().json()["error"]["data"]["reason"], "run_time_exceeded");
    }
    gateway.upstreams.stop().await;
}

fn levels(log: &Path) -> Vec<String> {
    heard(log, "logging/setLevel").iter().map(|params| params["level"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_most_verbose_level_of_a_context_reaches_its_link_before_its_next_call() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let answers = [
        ("prompts/list", r#""result":{"prompts":[{"name":"p"}]}"#),
        ("tools/list", r#""result":{"tools":[]}"#),
        ("resources/list", r#""result":{"resources":[]}"#),
        ("resources/templates/list", r#""result":{"resourceTemplates":[]}"#),
    ];
    let gateway = gateway(vec![recording("u", log.path(), EVERYTHING, &answers)]).await;
    let (first, second) = (gateway.client("owner").await, gateway.client("owner").await);
    let level = async |client: &crate::support::client::Client, level: &str| {
        assert_eq!(client.request("logging/setLevel", json!({ "level": level })).await.outcome(), r#"{"result":{}}"#);
    };
    level(&first, "warning").await;
    assert!(levels(log.path()).is_empty(), "no link was there, and none is started for it");
    first.request("prompts/get", json!({ "name": "p" })).await.result();
    assert_eq!(levels(log.path()), ["warning"]);
    let text = std::fs::read_to_string(log.path()).unwrap();
    assert!(text.find("logging/setLevel").unwrap() < text.find("prompts/get").unwrap());
    level(&second, "debug").await;
    until("the other level", || levels(log.path()) == ["warning", "debug"]).await;
    level(&first, "error").await;
    first.request("prompts/get", json!({ "name": "p" })).await.result();
    assert_eq!(levels(log.path()), ["warning", "debug"], "the second session still wants the rest");
    let (code, message) = first.request("logging/setLevel", json!({ "level": "loud" })).await.error();
    assert!(code == -32602 && LogLevel::ALL.iter().all(|level| message.contains(level.as_str())), "{message}");
    gateway.upstreams.stop().await;
}
