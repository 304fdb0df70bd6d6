//! Rounds that an upstream keeps itself: the retry is a new call of it.

use std::sync::Arc;

use serde_json::{Value, json};
use taskhold::domain::input::{InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::engine::EngineRules;
use taskhold::executor::Attempt;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::lifecycle::spawn;

use super::rounds::{accepted, again, client, form, refused};
use crate::http::harness::{Gateway, Service, engine_rules};
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::modern::Modern;
use crate::support::remote::{Remote, Seen, scenario, whole};
use crate::upstream::harness::{settings, within};

contract! {
    a_round_of_an_upstream_goes_on_as_a_new_call_at_any_node,
    a_retry_that_is_refused_for_a_limit_spends_nothing,
}

/// Whose the tools of the script are.
const UPSTREAM: &str = "script";
const STATE: &str = r#""th\u0065ir \"state\" é""#;

/// The answer to a call whose work ends with a question, and with this state.
async fn asked(service: &Service, client: &Modern, params: &Value, state: Option<&str>) -> Value {
    let state = state.map(RawJson::trusted);
    let (answer, ()) = tokio::join!(client.request("tools/call", params.clone()), async {
        let work = service.script.next().await;
        assert!(work.host.takes_round(UPSTREAM, &[("q \"1\"".to_owned(), form())], state.as_ref()).await);
        work.end(Attempt::Asked);
    });
    assert_eq!(answer.status, 200);
    answer.result()
}

// req: MOD-12 (of modern upstreams; of legacy ones it is in `engine/rounds` and `http/modern/rounds`)
async fn a_round_of_an_upstream_goes_on_as_a_new_call_at_any_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let other = service.another_node().await;
    let (here, there) = (client(&service.url, "owner"), client(&other.url, "owner"));
    let params = json!({ "name": "optional", "arguments": { "a": 1 } });
    let round = asked(&service, &here, &params, Some(STATE)).await;
    assert_eq!((&round["resultType"], round.get("isError")), (&json!("input_required"), None));
    let keys: Vec<_> = round["inputRequests"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["q \"1\""], "the key is the upstream's");
    let retry = again(&params, &round, &accepted(3));
    // Whatever fails a check spends nothing.
    let mut changed = retry.clone();
    changed["arguments"]["a"] = json!(2);
    refused(&here.request("tools/call", changed).await);
    refused(&client(&service.url, "stranger").request("tools/call", retry.clone()).await);
    let mut tampered = retry.clone();
    tampered["requestState"] = json!(format!("{}A", retry["requestState"].as_str().unwrap()));
    refused(&there.request("tools/call", tampered).await);
    // Of two that come at once one is made: with the state that the upstream gave, and the answers as they are.
    let both = [&here, &there].map(|client| {
        let (client, retry) = (client.clone(), retry.clone());
        spawn("client", async move { client.request("tools/call", retry).await })
    });
    let work = service.script.next().await;
    let sent = work.call.params.as_str().to_owned();
    assert!(sent.contains(&format!(r#""requestState":{STATE}"#)), "{sent}");
    let sent: Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(sent["inputResponses"], json!({ "q \"1\"": accepted(3) }));
    // It asks again, without a state: another round.
    assert!(work.host.takes_round(UPSTREAM, &[("q 2".to_owned(), form())], None).await);
    work.end(Attempt::Asked);
    let [one, two] = both;
    let answers = [within("an answer", one).await.unwrap(), within("an answer", two).await.unwrap()];
    let (won, lost) = match answers.each_ref().map(|answer| answer.json().get("result").is_some()) {
        [true, false] => (&answers[0], &answers[1]),
        [false, true] => (&answers[1], &answers[0]),
        _ => panic!("one of them: {answers:?}"),
    };
    refused(lost);
    let second = won.result();
    assert_ne!(second["requestState"], round["requestState"]);
    refused(&there.request("tools/call", retry).await);
    let last = {
        let (there, retry) = (there.clone(), again(&params, &second, &accepted(4)));
        spawn("client", async move { there.request("tools/call", retry).await })
    };
    let work = service.script.next().await;
    let sent: Value = serde_json::from_str(work.call.params.as_str()).unwrap();
    assert_eq!(sent.get("requestState"), None, "it gave none");
    assert_eq!(sent["inputResponses"], json!({ "q 2": accepted(4) }));
    work.answer("done");
    assert_eq!(within("the end", last).await.unwrap().result()["content"][0]["text"], "done");
    assert!(service.script.is_idle().await);
}

// Bug: the state was spent before the request could be refused, and what its user had filled in was lost.
async fn a_retry_that_is_refused_for_a_limit_spends_nothing(database: TestDatabase) {
    let service = Service::with(database, EngineRules { waiters_per_context: 1, ..engine_rules() }).await;
    let owner = client(&service.url, "owner");
    let params = json!({ "name": "optional", "arguments": {} });
    let retry = again(&params, &asked(&service, &owner, &params, Some(STATE)).await, &accepted(3));
    let other = {
        let owner = owner.clone();
        spawn("client", async move { owner.call("never", json!({})).await })
    };
    let work = service.script.next().await;
    let full = owner.request("tools/call", retry.clone()).await;
    assert_eq!((full.status, &full.json()["error"]["data"]["limit"]), (429, &json!("limits.streams")));
    work.answer("free");
    other.await.unwrap().result();
    let (answer, ()) = tokio::join!(owner.request("tools/call", retry), async {
        service.script.next().await.answer("done");
    });
    assert_eq!(answer.result()["content"][0]["text"], "done");
}

/// A modern server that has resources and lists none; it is asked to read one and answers so.
async fn library(read: impl Fn(&Seen) -> Value + Send + Sync + 'static) -> Remote {
    let read = Arc::new(read);
    Remote::start(scenario(move |seen| {
        let read = Arc::clone(&read);
        async move {
            let result = match seen.rpc() {
                "server/discover" => json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"],
                    "capabilities": { "resources": {} }, "ttlMs": 0, "cacheScope": "private" }),
                "resources/list" => json!({ "resources": [] }),
                "resources/templates/list" => json!({ "resourceTemplates": [] }),
                _ => {
                    let mut answer = read(&seen);
                    answer["jsonrpc"] = json!("2.0");
                    answer["id"] = seen.body["id"].clone();
                    return Some(whole(&answer.to_string()));
                }
            };
            Some(whole(&seen.response(&result)))
        }
    }))
    .await
}

// Bug: where several servers might have a resource, the answers to what one of them had asked went to the others, too.
#[tokio::test]
async fn what_one_server_asked_is_answered_to_that_one_alone() {
    let first = library(|_| json!({ "error": { "code": -32602, "message": "not mine" } })).await;
    let second = library(|seen| {
        let question = json!({ "method": "elicitation/create", "params": {
            "message": "which?", "requestedSchema": { "type": "object", "properties": {} } } });
        match seen.body["params"].get("inputResponses") {
            None => json!({ "result": { "resultType": "input_required", "inputRequests": { "k": question }, "requestState": "its" } }),
            Some(_) => json!({ "result": { "resultType": "complete", "contents": [], "ttlMs": 9, "cacheScope": "public" } }),
        }
    })
    .await;
    let configs = [("first", &first), ("second", &second)].map(|(name, at)| UpstreamConfig::at(name, &at.url)).into();
    let gateway = Gateway::with(TestDatabase::new(Backend::Sqlite).await, settings(), configs, engine_rules()).await;
    let owner = client(&gateway.front.url, "owner");
    let params = json!({ "uri": "x://1" });
    let asked = owner.request("resources/read", params.clone()).await.result();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let read = owner.request("resources/read", again(&params, &asked, &json!({ "action": "accept" }))).await.result();
    assert_eq!((&read["resultType"], &read["ttlMs"]), (&json!("complete"), &json!(0)));
    assert_eq!(first.messages("resources/read").len(), 1, "of the retry it knows nothing");
    assert_eq!(second.messages("resources/read")[1].body["params"]["requestState"], "its");
    gateway.upstreams.stop().await;
}

#[tokio::test]
async fn what_cannot_be_passed_on_is_asked_while_the_work_waits() {
    let service = Service::on_sqlite().await;
    let owner = Modern::new(&service.url, "owner").declaring(json!({ "elicitation": {} }));
    let call = |client: Modern| spawn("client", async move { client.call("optional", json!({})).await });
    let named = |question: Question| [("q".to_owned(), question)];
    let answer = call(owner.clone());
    let work = service.script.next().await;
    let roots = named(Question { kind: InputKind::Roots, params: None });
    assert!(!work.host.takes_round(UPSTREAM, &roots, None).await, "its caller did not declare that");
    let large = RawJson::trusted(format!("\"{}\"", "x".repeat(100_000)));
    assert!(
        !work.host.takes_round(UPSTREAM, &named(form()), Some(&large)).await,
        "the state is too large to be carried"
    );
    work.answer("done");
    assert_eq!(answer.await.unwrap().result()["content"][0]["text"], "done");
    // A call that is to become a task when it asks does that.
    let answer = call(owner.with_tasks());
    let work = service.script.next().await;
    assert!(!work.host.takes_round(UPSTREAM, &named(form()), None).await);
    work.answer("done");
    assert_eq!(answer.await.unwrap().result()["content"][0]["text"], "done");
}
