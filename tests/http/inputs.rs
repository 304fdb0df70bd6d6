//! Questions of running tasks as a client sees them, and its answers by POST.

use serde_json::{Value, json};
use taskhold::domain::ids::{DeliveryId, SessionId, StreamId};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::store::{Hold, Purpose};

use super::harness::{Service, until};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::host::Answers as _;
use crate::support::script::result;

contract! {
    an_answer_is_a_post_that_is_accepted,
}

fn form() -> Question {
    let params = r#"{"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}}}}"#;
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(params)) }
}

/// Sends the task's open question as a stream of the node does; answers its JSON-RPC id.
async fn deliver(service: &Service, client: &Client, task: &Value) -> String {
    let task = task.as_str().unwrap().parse().unwrap();
    let caller = service.names.caller(client.token.as_deref().unwrap()).await;
    let scoped = service.database.store.scoped(&caller);
    until("the question is open", async || !scoped.open_inputs(task).await.unwrap().is_empty()).await;
    let delivery = DeliveryId::new();
    let hold = Hold {
        input: scoped.open_inputs(task).await.unwrap()[0].id,
        task,
        delivery,
        session: client.session.as_deref().unwrap().parse::<SessionId>().unwrap(),
        stream: StreamId::new(),
        sequence: 1,
        node: service.front.engine.node(),
        purpose: Purpose::Question,
        now: service.front.engine.now(),
    };
    assert!(service.database.store.system().hold_input(hold).await.unwrap(), "nobody else holds it");
    delivery.to_string()
}

// req: INPUT-05, LIFE-10
async fn an_answer_is_a_post_that_is_accepted(database: TestDatabase) {
    let service = Service::start(database).await;
    let (client, stranger) = (Client::capable(&service.url, "a").await, Client::capable(&service.url, "b").await);
    let task = client.task("optional", json!({})).await;
    let id = &task["taskId"];
    let work = service.script.next().await;
    let host = work.host.clone();
    let asked = tokio::spawn(async move { host.answer_to(form()).await });
    let waiting = client.until_status(id, "input_required").await;
    assert_eq!(waiting["statusMessage"], "waiting for input: How many?");
    let question = deliver(&service, &client, id).await;

    let content = json!({ "action": "accept", "content": { "n": 3 } });
    let ignored = [
        (&stranger, json!(question)),
        (&client, json!("unknown")),
        (&client, json!(DeliveryId::new().to_string())),
        (&client, json!(7)),
    ];
    for (who, id) in ignored {
        let answer = who.respond(&id, &content).await;
        assert_eq!((answer.status, answer.body.as_str()), (202, ""), "{id}");
    }
    let nameless = client.send(r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"?"}}"#).await;
    assert_eq!(nameless.status, 202);
    assert_eq!(client.get(id).await.result()["status"], "input_required");

    let raw = r#"{"action":"accept","content":{"n":3},"x":1.0e0,"y":"\ud800"}"#;
    let message = format!(r#"{{"jsonrpc":"2.0","id":"{question}","result":{raw}}}"#);
    for _ in 0..2 {
        let answer = client.send(&message).await;
        assert_eq!((answer.status, answer.body.as_str()), (202, ""));
    }
    assert_eq!(asked.await.unwrap(), Answer::Result(RawJson::trusted(raw)));
    let working = client.get(id).await.result();
    assert_eq!((&working["status"], &working["statusMessage"]), (&json!("working"), &json!("running")));

    // An error is an answer, too.
    let host = work.host.clone();
    let asked = tokio::spawn(async move { host.answer_to(form()).await });
    client.until_status(id, "input_required").await;
    let question = deliver(&service, &client, id).await;
    let error = r#"{"code":-1,"message":"No, thank you","data":{"why":1.50}}"#;
    let answer = client.send(&format!(r#"{{"jsonrpc":"2.0","id":"{question}","error":{error}}}"#)).await;
    assert_eq!(answer.status, 202);
    assert_eq!(asked.await.unwrap(), Answer::Error(RawJson::trusted(error)));
    work.end(taskhold::executor::Attempt::Answered(result("done")));
    assert_eq!(client.result(id).await.result()["content"][0]["text"], "done");
}
