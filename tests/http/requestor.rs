//! Questions that go to a client as tasks of its own: the server as requestor.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::lifecycle::spawn;

use super::harness::{Service, until};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::events::Events;
use crate::support::host::Answers as _;
use crate::support::script::ScriptedCall;

contract! {
    a_question_is_a_task_of_the_client_that_declared_it,
    a_client_that_declared_none_is_asked_plainly,
    what_does_not_fit_is_asked_anew,
    a_failed_task_of_the_client_is_an_answer,
    the_clients_task_is_cancelled_with_ours,
    the_clients_task_outlives_its_stream_and_its_node,
    a_stream_that_is_resumed_goes_on_with_the_clients_task,
    a_client_that_stays_away_is_given_up,
}

const RELATED: &str = "io.modelcontextprotocol/related-task";
/// Long enough for what must not come.
const QUIET: Duration = Duration::from_millis(700);
/// What the client asks for.
const POLL: Duration = Duration::from_millis(300);

fn form() -> Question {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let params = json!({ "message": "How many?", "requestedSchema": schema, "_meta": { "k": 1.5 } });
    Question { kind: InputKind::Elicitation, params: Some(RawJson::from_value(&params)) }
}

fn sampling() -> Question {
    let params = json!({ "maxTokens": 1, "messages": [] });
    Question { kind: InputKind::Sampling, params: Some(RawJson::from_value(&params)) }
}

/// A client that declared this under `tasks`.
async fn receiver(url: &str, tasks: Value) -> Client {
    let capabilities = json!({ "elicitation": { "form": {} }, "sampling": {}, "tasks": tasks });
    let mut client = Client { capabilities, ..Client::new(url, Some("owner")) };
    client.initialize("2025-11-25").await;
    client
}

fn all() -> Value {
    json!({ "cancel": {}, "list": {}, "requests": { "elicitation": { "create": {} }, "sampling": { "createMessage": {} } } })
}

/// A task of ours whose work asks a question, and the client's own session stream.
struct Asking {
    service: Service,
    client: Client,
    stream: Events,
    id: Value,
    work: ScriptedCall,
}

impl Asking {
    async fn new(database: TestDatabase, tasks: Value) -> Self {
        let service = Service::start(database).await;
        let client = receiver(&service.url, tasks).await;
        let stream = Events::of_session(&client).await;
        let id = client.task("optional", json!({})).await["taskId"].clone();
        let work = service.script.next().await;
        Self { service, client, stream, id, work }
    }

    fn ask(&self, question: Question) -> tokio::task::JoinHandle<Answer> {
        let host = self.work.host.clone();
        spawn("question", async move { host.answer_to(question).await })
    }

    /// Waits for the question and answers it with a task.
    async fn take(&mut self) -> Value {
        let question = self.stream.until("elicitation/create").await;
        let created = json!({ "task": theirs("working"), "_meta": { "m": 1 } });
        respond(&self.client, &question["id"], &created).await;
        question
    }
}

/// The client's task as it says that it stands.
fn theirs(status: &str) -> Value {
    let at = "2026-11-30T00:00:00Z";
    json!({
        "taskId": "their \"own\"", "status": status, "createdAt": at, "lastUpdatedAt": at, "ttl": 9, "pollInterval": 300,
    })
}

async fn respond(client: &Client, id: &Value, result: &Value) {
    let accepted = client.respond(id, result).await;
    assert_eq!((accepted.status, accepted.body.as_str()), (202, ""));
}

async fn fail(client: &Client, id: &Value, code: i64) {
    let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": "no" } });
    assert_eq!(client.send(&error.to_string()).await.status, 202);
}

fn accepted(n: u64) -> Value {
    json!({ "action": "accept", "content": { "n": n } })
}

fn is_about_theirs(request: &Value) {
    assert_eq!(request["params"], json!({ "taskId": "their \"own\"" }), "the id as it came, and nothing else");
}

fn result_of(answer: &Answer) -> Value {
    let Answer::Result(json) = answer else { panic!("no result: {answer:?}") };
    serde_json::from_str(json.as_str()).unwrap()
}

fn code_of(answer: &Answer) -> Value {
    let Answer::Error(json) = answer else { panic!("no error: {answer:?}") };
    serde_json::from_str::<Value>(json.as_str()).unwrap()["code"].clone()
}

async fn nobody_holds_it(service: &Service) {
    let held = "SELECT COUNT(*) FROM task_inputs WHERE node IS NOT NULL";
    until("the stream is gone", async || service.database.number(held).await == 0).await;
}

fn requests(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message.get("id").and(message["method"].as_str())).collect()
}

// req: CAP-08, INPUT-05
async fn a_question_is_a_task_of_the_client_that_declared_it(database: TestDatabase) {
    let mut asking = Asking::new(database, all()).await;
    let there = asking.service.another_node().await;
    let elsewhere = asking.client.at(&there.url);
    for client in [asking.client.clone(), elsewhere] {
        let asked = asking.ask(form());
        let question = asking.stream.until("elicitation/create").await;
        let ttl = question["params"]["task"]["ttl"].as_u64().expect("it goes as a task");
        assert!((1_000..=60_000).contains(&ttl), "{ttl}");
        assert_eq!(question["params"]["_meta"], json!({ "k": 1.5, RELATED: { "taskId": asking.id } }));
        let mut ids = vec![question["id"].clone()];
        let mut answered = Instant::now();
        respond(&client, &question["id"], &json!({ "task": theirs("working") })).await;
        // At the pace that the client asks for, each under an id of its own.
        for _ in 0..2 {
            let poll = asking.stream.until("tasks/get").await;
            assert!(answered.elapsed() >= POLL, "{:?}", answered.elapsed());
            is_about_theirs(&poll);
            assert_eq!(client.get(&asking.id).await.result()["status"], "input_required");
            ids.push(poll["id"].clone());
            answered = Instant::now();
            respond(&client, &poll["id"], &theirs("working")).await;
        }
        let poll = asking.stream.until("tasks/get").await;
        respond(&client, &poll["id"], &theirs("completed")).await;
        let fetch = asking.stream.until("tasks/result").await;
        is_about_theirs(&fetch);
        ids.extend([poll["id"].clone(), fetch["id"].clone()]);
        respond(&client, &fetch["id"], &accepted(3)).await;
        assert_eq!(result_of(&asked.await.unwrap()), accepted(3));
        client.until_status(&asking.id, "working").await;
        let rest = asking.stream.within(QUIET).await;
        assert!(requests(&rest).is_empty(), "{rest:?}");
        assert!(rest.iter().all(|message| message["method"] != "notifications/cancelled"), "{rest:?}");
        let all = ids.len();
        ids.sort_by_key(Value::to_string);
        ids.dedup();
        assert_eq!(ids.len(), all, "no id is used twice");
    }
    // Where the client's task wants input, the request for its result is where it can ask.
    let asked = asking.ask(sampling());
    let question = asking.stream.until("sampling/createMessage").await;
    assert!(question["params"]["task"]["ttl"].is_u64());
    respond(&asking.client, &question["id"], &json!({ "task": theirs("input_required") })).await;
    let fetch = asking.stream.until("tasks/result").await;
    let message = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "t" } });
    respond(&asking.client, &fetch["id"], &message).await;
    assert_eq!(result_of(&asked.await.unwrap()), message);
}

// req: CAP-08
async fn a_client_that_declared_none_is_asked_plainly(database: TestDatabase) {
    let only_sampling = json!({ "cancel": {}, "requests": { "sampling": { "createMessage": {} } } });
    let mut asking = Asking::new(database, only_sampling).await;
    let asked = asking.ask(form());
    let plain = asking.stream.until("elicitation/create").await;
    assert_eq!(plain["params"].get("task"), None);
    // A task is no answer to what was not sent as one.
    respond(&asking.client, &plain["id"], &json!({ "task": theirs("working") })).await;
    let again = asking.stream.until("elicitation/create").await;
    assert_ne!(again["id"], plain["id"]);
    respond(&asking.client, &again["id"], &accepted(3)).await;
    assert_eq!(result_of(&asked.await.unwrap()), accepted(3));
    // A client that is offered a task may answer at once.
    let asked = asking.ask(sampling());
    let question = asking.stream.until("sampling/createMessage").await;
    assert!(question["params"]["task"]["ttl"].is_u64());
    let message = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "t" } });
    respond(&asking.client, &question["id"], &message).await;
    assert_eq!(result_of(&asked.await.unwrap()), message);

    // A revision without tasks declares none, whatever it says.
    let older = json!({ "elicitation": {}, "tasks": all() });
    let mut older = Client { capabilities: older, ..Client::new(&asking.service.url, Some("owner")) };
    older.initialize("2025-06-18").await;
    let mut waiting = Events::of_session(&older).await;
    let call = spawn("call", {
        let older = older.clone();
        async move { Events::of_request(&older, older.message("tools/call", &json!({ "name": "optional" }))).await }
    });
    let work = asking.service.script.next().await;
    let host = work.host.clone();
    let asked = spawn("question", async move { host.answer_to(form()).await });
    let mut call = call.await.unwrap();
    let question = call.until("elicitation/create").await;
    assert_eq!(question["params"].get("task"), None);
    respond(&older, &question["id"], &accepted(4)).await;
    assert_eq!(result_of(&asked.await.unwrap()), accepted(4));
    assert!(requests(&waiting.within(Duration::from_millis(50)).await).is_empty());
}

// req: CAP-08, INPUT-13 (of INPUT-13 the legacy half)
async fn what_does_not_fit_is_asked_anew(database: TestDatabase) {
    let mut asking = Asking::new(database, all()).await;
    let asked = asking.ask(form());
    // Its result does not fit.
    asking.take().await;
    let poll = asking.stream.until("tasks/get").await;
    respond(&asking.client, &poll["id"], &theirs("completed")).await;
    let fetch = asking.stream.until("tasks/result").await;
    let misfit = json!({ "action": "accept", "content": { "n": "three" } });
    respond(&asking.client, &fetch["id"], &misfit).await;
    // Then the client forgets its task.
    let again = asking.take().await;
    assert!(again["params"]["task"]["ttl"].is_u64(), "as a task once more");
    let poll = asking.stream.until("tasks/get").await;
    fail(&asking.client, &poll["id"], -32603).await;
    let poll = asking.stream.until("tasks/get").await;
    fail(&asking.client, &poll["id"], -32602).await;
    // Twice is as often as it is asked again.
    asking.take().await;
    let poll = asking.stream.until("tasks/get").await;
    respond(&asking.client, &poll["id"], &json!({ "taskId": "another", "status": "completed" })).await;
    let given = asked.await.unwrap();
    let Answer::Error(error) = &given else { panic!("{given:?}") };
    assert_eq!(code_of(&given), -32602);
    assert!(error.as_str().contains("bad_answer"), "{error:?}");
}

// req: CAP-08, INPUT-06
async fn a_failed_task_of_the_client_is_an_answer(database: TestDatabase) {
    let mut asking = Asking::new(database, all()).await;
    for (status, code) in [("failed", -32602), ("cancelled", -7), ("completed", -1)] {
        let asked = asking.ask(form());
        asking.take().await;
        let poll = asking.stream.until("tasks/get").await;
        respond(&asking.client, &poll["id"], &theirs(status)).await;
        let fetch = asking.stream.until("tasks/result").await;
        fail(&asking.client, &fetch["id"], code).await;
        assert_eq!(code_of(&asked.await.unwrap()), code, "{status}");
    }
}

// req: CAP-08, INPUT-12
async fn the_clients_task_is_cancelled_with_ours(database: TestDatabase) {
    let mut asking = Asking::new(database, all()).await;
    let client = asking.client.clone();
    let _asked = asking.ask(form());
    asking.take().await;
    client.cancel(&asking.id).await.result();
    let cancel = asking.stream.until("tasks/cancel").await;
    is_about_theirs(&cancel);
    respond(&client, &cancel["id"], &theirs("cancelled")).await;
    let rest = asking.stream.within(QUIET).await;
    assert!(requests(&rest).is_empty(), "{rest:?}");
    assert!(rest.iter().all(|message| message["method"] != "notifications/cancelled"), "{rest:?}");

    // Before the client has made its task, the request itself is cancelled.
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = asking.service.script.next().await;
    let host = work.host.clone();
    let _asked = spawn("question", async move { host.answer_to(form()).await });
    let question = asking.stream.until("elicitation/create").await;
    client.cancel(&id).await.result();
    let cancelled = asking.stream.until("notifications/cancelled").await;
    assert_eq!(cancelled["params"]["requestId"], question["id"]);
    // One that it makes all the same ends, too.
    respond(&client, &question["id"], &json!({ "task": theirs("working") })).await;
    is_about_theirs(&asking.stream.until("tasks/cancel").await);

    // A client that serves no tasks/cancel is told nothing of it.
    let plain = receiver(&asking.service.url, json!({ "requests": { "elicitation": { "create": {} } } })).await;
    let mut stream = Events::of_session(&plain).await;
    let id = plain.task("optional", json!({})).await["taskId"].clone();
    let work = asking.service.script.next().await;
    let host = work.host.clone();
    let _asked = spawn("question", async move { host.answer_to(form()).await });
    let question = stream.until("elicitation/create").await;
    respond(&plain, &question["id"], &json!({ "task": theirs("working") })).await;
    stream.until("tasks/get").await;
    plain.cancel(&id).await.result();
    let rest = stream.within(QUIET).await;
    assert!(requests(&rest).is_empty(), "{rest:?}");
    assert!(rest.iter().all(|message| message["method"] != "notifications/cancelled"), "{rest:?}");
}

// req: CAP-08
async fn the_clients_task_outlives_its_stream_and_its_node(database: TestDatabase) {
    let mut asking = Asking::new(database, all()).await;
    let there = asking.service.another_node().await;
    let asked = asking.ask(form());
    asking.take().await;
    let poll = asking.stream.until("tasks/get").await;
    let Asking { service, client, stream, id, work: _work } = asking;
    drop(stream);
    // Another session of the same caller that waits for the task is not asked about it, nor asked anew.
    let other = receiver(&service.url, all()).await;
    let mut waiting = Events::of_request(&other, other.message("tasks/result", &json!({ "taskId": id }))).await;
    let others = waiting.within(QUIET).await;
    assert!(requests(&others).is_empty(), "{others:?}");
    // What the client said meanwhile counts.
    respond(&client, &poll["id"], &theirs("working")).await;
    let mut stream = Events::of_session(&client.at(&there.url)).await;
    let poll = stream.until("tasks/get").await;
    is_about_theirs(&poll);
    // That node goes, too, with the request unanswered.
    there.drain.cancel();
    there.engine.drain(Duration::from_millis(1)).await;
    drop(stream);
    let restarted = service.another_node().await;
    let here = client.at(&restarted.url);
    let mut stream = Events::of_session(&here).await;
    let poll = stream.until("tasks/get").await;
    is_about_theirs(&poll);
    respond(&here, &poll["id"], &theirs("completed")).await;
    let fetch = stream.until("tasks/result").await;
    respond(&here, &fetch["id"], &accepted(5)).await;
    assert_eq!(result_of(&asked.await.unwrap()), accepted(5));
    let others = waiting.within(Duration::from_millis(50)).await;
    assert!(requests(&others).is_empty(), "{others:?}");
}

// req: CAP-08
async fn a_stream_that_is_resumed_goes_on_with_the_clients_task(database: TestDatabase) {
    let mut asking = Asking::new(database, all()).await;
    let there = asking.service.another_node().await;
    let asked = asking.ask(form());
    asking.take().await;
    let before = asking.stream.last_id.clone().unwrap();
    let poll = asking.stream.until("tasks/get").await;
    let Asking { service, client, stream, id: _, work: _work } = asking;
    drop(stream);
    nobody_holds_it(&service).await;
    // What it has not seen comes again, as it was.
    let mut stream = Events::resumed(&client.at(&there.url), &before).await;
    let again = stream.until("tasks/get").await;
    assert_eq!((&again["id"], &again["params"]), (&poll["id"], &poll["params"]));
    let seen = stream.last_id.clone().unwrap();
    respond(&client, &again["id"], &theirs("working")).await;
    drop(stream);
    nobody_holds_it(&service).await;
    let mut stream = Events::resumed(&client, &seen).await;
    let next = stream.until("tasks/get").await;
    assert_ne!(next["id"], poll["id"]);
    respond(&client, &next["id"], &theirs("completed")).await;
    let fetch = stream.until("tasks/result").await;
    respond(&client, &fetch["id"], &accepted(6)).await;
    assert_eq!(result_of(&asked.await.unwrap()), accepted(6));
}

// req: CAP-08
async fn a_client_that_stays_away_is_given_up(database: TestDatabase) {
    let mut asking = Asking::new(database, all()).await;
    let asked = asking.ask(form());
    asking.take().await;
    asking.stream.until("tasks/get").await;
    let Asking { service, client: _, stream, id, work: _work } = asking;
    drop(stream);
    nobody_holds_it(&service).await;
    service.database.sql("UPDATE input_deliveries SET created = created - 130000000").await;
    let other = Client::capable(&service.url, "owner").await;
    let mut waiting = Events::of_request(&other, other.message("tasks/result", &json!({ "taskId": id }))).await;
    let question = waiting.until("elicitation/create").await;
    assert_eq!(question["params"].get("task"), None, "by what the other session declared");
    respond(&other, &question["id"], &accepted(7)).await;
    assert_eq!(result_of(&asked.await.unwrap()), accepted(7));
}
