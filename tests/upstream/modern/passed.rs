//! Rounds of modern servers that a host takes as the end of a call.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};
use taskhold::domain::ids::ContextId;
use taskhold::domain::input::{Answer, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::question::problem;
use taskhold::domain::work::UpstreamTask;
use taskhold::executor::{Attempt, Event, Executor as _, Host, Relay, Unasked, Wanted};
use tokio_util::sync::CancellationToken;

use super::params;
use super::peers::peer;
use crate::support::remote::whole;
use crate::upstream::harness::{text, within};

type Taken = (Vec<(String, Question)>, Option<RawJson>);

/// Takes every round, and is asked nothing.
#[derive(Default)]
struct Takes(Mutex<Vec<Taken>>);

#[async_trait]
impl Host for Takes {
    fn tell(&self, _event: Event) {}

    async fn ask(&self, question: Question) -> Result<Answer, Unasked> {
        panic!("it is not asked while the work waits: {question:?}")
    }

    async fn takes_round(&self, upstream: &str, asked: &[(String, Question)], state: Option<&RawJson>) -> bool {
        assert_eq!(upstream, "remote");
        self.0.lock().unwrap().push((asked.to_vec(), state.cloned()));
        true
    }

    async fn handed_over(&self, _to: UpstreamTask) -> bool {
        true
    }
}

#[tokio::test]
async fn what_a_server_asks_ends_the_request_and_its_state_comes_back_in_a_new_one() {
    let (remote, world) = peer(async |seen| {
        let is_retry = seen.body["params"].get("inputResponses").is_some();
        let question = json!({ "method": "elicitation/create", "params": {
            "message": "which?", "requestedSchema": { "type": "object", "properties": {} } } });
        let asks = json!({ "resultType": "input_required", "inputRequests": { "k\u{e9}y": question },
            "requestState": "sealed\n" });
        match (seen.rpc(), is_retry) {
            ("tools/call" | "resources/read", false) => Some(whole(&seen.response(&asks))),
            ("tools/call", true) => Some(whole(&seen.text("done"))),
            ("resources/read", true) => Some(whole(&seen.response(&json!({ "contents": [] })))),
            _ => None,
        }
    })
    .await;
    let (context, host) = (ContextId::new(), Arc::new(Takes::default()));
    let read = |params: RawJson| Relay {
        context,
        upstreams: vec!["remote".to_owned()],
        wanted: Wanted::Contents("x://1".to_owned()),
        params,
        capabilities: RawJson::trusted(r#"{"elicitation":{}}"#),
    };
    let run = async |call| within("an end", world.upstreams.run(call, host.clone(), CancellationToken::new())).await;
    let relay =
        async |relay| within("an end", world.upstreams.relay(relay, host.clone(), CancellationToken::new())).await;
    assert_eq!(run(world.prepare(context, "t", "{}")).await, Attempt::Asked);
    assert_eq!(relay(read(RawJson::trusted(r#"{"uri":"x://1"}"#))).await, Attempt::Asked);
    for (asked, state) in host.0.lock().unwrap().iter() {
        assert_eq!((asked.len(), asked[0].0.as_str()), (1, "k\u{e9}y"));
        assert_eq!(params(&asked[0].1)["message"], "which?");
        assert_eq!(state.as_ref().unwrap().as_str(), r#""sealed\n""#);
    }
    // What comes again is passed on as it is.
    let answers = r#""inputResponses":{"k\u00e9y":{"action":"accept","content":{},"n":1.0}},"requestState":"sealed\n""#;
    let mut again = world.prepare(context, "t", "{}");
    again.params = RawJson::trusted(format!(r#"{{"name":"t","arguments":{{}},{answers}}}"#));
    assert_eq!(text(&run(again).await), "done");
    let again = RawJson::trusted(format!(r#"{{"uri":"x://1",{answers}}}"#));
    assert!(matches!(relay(read(again)).await, Attempt::Answered(_)));
    world.upstreams.stop().await;
    let sent: Vec<_> = ["tools/call", "resources/read"].into_iter().flat_map(|rpc| remote.messages(rpc)).collect();
    assert_eq!(sent.len(), 4);
    for retry in [&sent[1], &sent[3]] {
        let expected: Value = json!({ "k\u{e9}y": { "action": "accept", "content": {}, "n": 1.0 } });
        assert_eq!(retry.body["params"]["inputResponses"], expected);
        assert_eq!(retry.body["params"]["requestState"], "sealed\n");
    }
}

// Bug: this era has no ids of URLs, without which a question for one does not fit: its round was kept here, not passed on.
#[tokio::test]
async fn a_url_is_passed_on_as_a_question_that_can_be_asked() {
    let (_remote, world) = peer(async |seen| {
        let url = json!({ "mode": "url", "message": "go", "url": "https://example.com/" });
        let asks = json!({ "resultType": "input_required",
            "inputRequests": { "u": { "method": "elicitation/create", "params": url } } });
        (seen.rpc() == "tools/call").then(|| whole(&seen.response(&asks)))
    })
    .await;
    let host = Arc::new(Takes::default());
    let mut call = world.prepare(ContextId::new(), "t", "{}");
    call.capabilities = RawJson::trusted(r#"{"elicitation":{"url":{}}}"#);
    let end = within("an end", world.upstreams.run(call, host.clone(), CancellationToken::new())).await;
    assert_eq!(end, Attempt::Asked);
    let taken = host.0.lock().unwrap().remove(0);
    assert_eq!(problem(&taken.0[0].1), None);
    world.upstreams.stop().await;
}
