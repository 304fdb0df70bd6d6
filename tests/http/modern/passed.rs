//! Rounds that an upstream keeps itself: the retry is a new call of it.

use serde_json::{Value, json};
use taskhold::domain::input::{InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::executor::Attempt;
use taskhold::lifecycle::spawn;

use super::rounds::{accepted, again, client, form, refused};
use crate::http::harness::Service;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::modern::Modern;
use crate::upstream::harness::within;

contract! {
    a_round_of_an_upstream_goes_on_as_a_new_call_at_any_node,
}

const STATE: &str = r#""th\u0065ir \"state\" é""#;

/// The answer to a call whose work ends with a question, and with this state.
async fn asked(service: &Service, client: &Modern, params: &Value, state: Option<&str>) -> Value {
    let state = state.map(RawJson::trusted);
    let (answer, ()) = tokio::join!(client.request("tools/call", params.clone()), async {
        let work = service.script.next().await;
        assert!(work.host.takes_round(&[("q \"1\"".to_owned(), form())], state.as_ref()).await);
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
    assert!(work.host.takes_round(&[("q 2".to_owned(), form())], None).await);
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

#[tokio::test]
async fn what_cannot_be_passed_on_is_asked_while_the_work_waits() {
    let service = Service::on_sqlite().await;
    let owner = Modern::new(&service.url, "owner").declaring(json!({ "elicitation": {} }));
    let call = |client: Modern| spawn("client", async move { client.call("optional", json!({})).await });
    let named = |question: Question| [("q".to_owned(), question)];
    let answer = call(owner.clone());
    let work = service.script.next().await;
    let roots = named(Question { kind: InputKind::Roots, params: None });
    assert!(!work.host.takes_round(&roots, None).await, "its caller did not declare that");
    let large = RawJson::trusted(format!("\"{}\"", "x".repeat(100_000)));
    assert!(!work.host.takes_round(&named(form()), Some(&large)).await, "the state is too large to be carried");
    work.answer("done");
    assert_eq!(answer.await.unwrap().result()["content"][0]["text"], "done");
    // A call that is to become a task when it asks does that.
    let answer = call(owner.with_tasks());
    let work = service.script.next().await;
    assert!(!work.host.takes_round(&named(form()), None).await);
    work.answer("done");
    assert_eq!(answer.await.unwrap().result()["content"][0]["text"], "done");
}
