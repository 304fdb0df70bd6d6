//! What comes before an answer, on its own stream alone, and what becomes of a call whose client leaves.

use std::time::Duration;

use serde_json::{Value, json};
use taskhold::domain::input::{InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::executor::Event;
use taskhold::lifecycle::spawn;

use crate::http::harness::{Gateway, Service, engine_rules};
use crate::relay::{heard, recording};
use crate::support::client::Answer as HttpAnswer;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::support::host::Answers;
use crate::support::modern::Modern;
use crate::support::schema::Schema;
use crate::support::script::ScriptedCall;
use crate::upstream::harness::{settings, until, within};

fn progress(value: f64) -> Event {
    let params = json!({ "progressToken": 99, "progress": value, "message": "on it" });
    Event::Progress { progress: value, total: None, message: None, params: RawJson::from_value(&params) }
}

fn log(level: &str) -> Event {
    Event::Log { params: RawJson::from_value(&json!({ "level": level, "data": "d" })) }
}

/// A call whose work has begun, and the reader of its answer.
async fn begun(service: &Service, meta: Value) -> (ScriptedCall, tokio::task::JoinHandle<Events>) {
    let client = Modern::new(&service.url, "owner");
    let params = json!({ "name": "optional", "_meta": meta });
    let reader = spawn("client", async move { client.stream("tools/call", params).await });
    (service.script.next().await, reader)
}

fn methods(messages: &[Value]) -> Vec<String> {
    messages.iter().map(|message| message["method"].as_str().unwrap_or("(answer)").to_owned()).collect()
}

// req: NOTE-03 (modern, plain calls), MOD-14
#[tokio::test]
async fn progress_and_wanted_logs_come_before_the_answer() {
    let service = Service::on_sqlite().await;
    let meta = json!({ "progressToken": "mine", "io.modelcontextprotocol/logLevel": "warning" });
    let (work, reader) = begun(&service, meta).await;
    work.host.tell(progress(0.0));
    let mut stream = reader.await.unwrap();
    let first = stream.until("notifications/progress").await;
    assert_eq!((&first["params"]["progressToken"], first["params"].get("_meta")), (&json!("mine"), None));
    assert_eq!(stream.last_id, None, "a stream of this era cannot be resumed");
    for level in ["debug", "warning", "notice", "emergency", "odd"] {
        work.host.tell(log(level));
    }
    work.host.tell(Event::ElicitationComplete { params: RawJson::trusted(r#"{"elicitationId":"e"}"#) });
    work.host.tell(progress(50.0));
    work.answer("done");
    let rest = stream.rest().await;
    let levels: Vec<_> = rest.iter().filter_map(|message| message["params"]["level"].as_str()).collect();
    assert_eq!(levels, ["warning", "emergency"]);
    let (answer, notes) = rest.split_last().unwrap();
    assert_eq!(answer["result"]["resultType"], "complete");
    assert!(
        methods(notes).iter().all(|method| method == "notifications/progress" || method == "notifications/message")
    );
    assert_eq!(notes.iter().filter(|note| note["params"]["progress"] == 50.0).count(), 1);
    if let Some(schema) = Schema::of_2026_07_28() {
        schema.check("ProgressNotification", &first);
        for note in notes {
            schema.check("ServerNotification", note);
        }
    }
    // Who did not ask for it hears nothing.
    let client = Modern::new(&service.url, "owner");
    let answered = spawn("client", async move { client.call("optional", json!({})).await });
    let work = service.script.next().await;
    work.host.tell(log("emergency"));
    work.host.tell(progress(1.0));
    work.answer("done");
    let answer = answered.await.unwrap();
    assert_eq!(answer.count(), 1, "nothing came before it: {answer:?}");
}

// Of MOD-12 this: no JSON-RPC request is ever sent to a modern client.
#[tokio::test]
async fn a_client_of_this_era_is_sent_no_request() {
    let service = Service::on_sqlite().await;
    let client =
        Modern::new(&service.url, "owner").declaring(json!({ "elicitation": {}, "sampling": {}, "roots": {} }));
    let params = json!({ "name": "optional", "arguments": {} });
    let answered = spawn("client", {
        let (client, params) = (client.clone(), params.clone());
        async move { client.request("tools/call", params).await }
    });
    let work = service.script.next().await;
    let asked: Vec<_> = InputKind::ALL
        .into_iter()
        .map(|kind| {
            let params = match kind {
                InputKind::Elicitation => r#"{"message":"m","requestedSchema":{"type":"object","properties":{}}}"#,
                _ => r#"{"messages":[],"maxTokens":1}"#,
            };
            let (host, question) = (work.host.clone(), Question { kind, params: Some(RawJson::trusted(params)) });
            spawn("work", async move { host.answer_to(question).await })
        })
        .collect();
    let all = async {
        let mut answer = answered.await.unwrap();
        loop {
            assert_eq!(answer.count(), 1, "what is asked is the answer itself: {answer:?}");
            let round = answer.result();
            if round["inputRequests"].as_object().unwrap().len() == 3 {
                return;
            }
            // On a busy machine the last of them miss the first round.
            let mut again = params.clone();
            again["inputResponses"] = json!({});
            again["requestState"] = round["requestState"].clone();
            answer = client.request("tools/call", again).await;
        }
    };
    within("everything that is asked", all).await;
    assert!(asked.iter().all(|answer| !answer.is_finished()));
}

// req: MOD-10
#[tokio::test]
async fn a_client_that_leaves_cancels_its_call_in_either_form() {
    let service = Service::on_sqlite().await;
    // While nothing was said yet, and on a stream.
    let (work, reader) = begun(&service, json!({ "progressToken": 1 })).await;
    reader.abort();
    within("the work to be stopped", work.stop.cancelled()).await;
    let (work, reader) = begun(&service, json!({ "progressToken": 1 })).await;
    work.host.tell(progress(1.0));
    let mut stream = reader.await.unwrap();
    stream.until("notifications/progress").await;
    assert!(!work.stop.is_cancelled());
    drop(stream);
    within("the work to be stopped", work.stop.cancelled()).await;
    // As JSON there is no stream that could break: the connection does.
    let client = Modern { accept: "application/json", ..Modern::new(&service.url, "owner") };
    let caller = spawn("client", async move { client.call("optional", json!({})).await });
    let work = service.script.next().await;
    caller.abort();
    within("the work to be stopped", work.stop.cancelled()).await;
    // A notification is no way to cancel here, and a call of the handshake era goes on.
    let client = Modern::new(&service.url, "owner");
    let call = client.draft("tools/call", json!({ "name": "optional" }));
    let mut cancel = client.draft("notifications/cancelled", json!({ "requestId": call.body["id"] }));
    cancel.body.as_object_mut().unwrap().remove("id");
    let caller = {
        let client = client.clone();
        spawn("client", async move { client.send(call).await })
    };
    let work = service.script.next().await;
    assert_eq!(client.send(cancel).await.status, 202);
    assert!(!work.stop.is_cancelled());
    work.answer("done");
    assert_eq!(caller.await.unwrap().result()["content"][0]["text"], "done");
    let old = service.client("owner").await;
    let called = spawn("client", async move { old.call("optional", json!({})).await });
    let work = service.script.next().await;
    called.abort();
    let left = tokio::time::timeout(Duration::from_millis(300), work.stop.cancelled()).await;
    assert!(left.is_err(), "it is not stopped");
}

// req: MOD-10
#[tokio::test]
async fn a_call_whose_client_left_is_cancelled_at_its_upstream() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let answers = [
        ("tools/list", r#""result":{"tools":[{"name":"slow","inputSchema":{"type":"object"}}]}"#),
        ("tools/call", "never"),
    ];
    let upstream = recording("u", log.path(), r#"{"tools":{}}"#, &answers);
    let database = TestDatabase::new(Backend::Sqlite).await;
    let gateway = Gateway::with(database, settings(), vec![upstream], engine_rules()).await;
    let client = Modern::new(&gateway.front.url, "owner");
    let caller = spawn("client", async move { client.call("slow", json!({})).await });
    until("the call to arrive", || heard(log.path(), "tools/call").len() == 1).await;
    caller.abort();
    until("the cancellation to arrive", || heard(log.path(), "notifications/cancelled").len() == 1).await;
    gateway.upstreams.stop().await;
}

// req: NOTE-08, AUTH-07
#[tokio::test]
async fn a_quiet_stream_is_kept_alive_and_ends_with_its_token() {
    let service = Service::on_sqlite().await;
    let (work, reader) = begun(&service, json!({})).await;
    let mut stream = within("the stream to begin", reader).await.unwrap();
    for _ in 0..2 {
        let block = stream.block().await.unwrap();
        assert_eq!((block.comment.is_some(), block.id, block.data, block.retry), (true, None, None, None));
    }
    service.names.revoke("owner");
    within("the end of the stream", async { while stream.block().await.is_some() {} }).await;
    within("the work to be stopped", work.stop.cancelled()).await;
    let answer: HttpAnswer = Modern::new(&service.url, "owner").request("tools/list", json!({})).await;
    assert_eq!(answer.status, 401);
}
