//! Calls that are no tasks, on a stream of their own: progress, questions, cancellation, and callers that come back.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::executor::Event;
use taskhold::lifecycle::spawn;
use tokio::task::JoinHandle;

use super::harness::{Gateway, Service, engine_rules, until};
use crate::support::client::{Answer as HttpAnswer, Client};
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::support::host::Answers as _;
use crate::support::script::ScriptedCall;
use crate::upstream::harness::{script, settings, test_tools, within};

contract! {
    a_plain_calls_question_goes_on_its_own_stream_and_is_answered_at_any_node,
    a_plain_call_is_cancelled_at_any_node,
}

const QUIET: Duration = Duration::from_millis(500);

fn form() -> Question {
    let params = r#"{"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"}}}"#;
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(params)) }
}

fn progress(value: f64) -> Event {
    let params = json!({ "progressToken": 99, "progress": value });
    Event::Progress { progress: value, total: None, message: None, params: RawJson::from_value(&params) }
}

fn ask(work: &ScriptedCall) -> JoinHandle<Answer> {
    let host = work.host.clone();
    spawn("question", async move { host.answer_to(form()).await })
}

fn body(id: &str, token: Option<&str>) -> String {
    let mut params = json!({ "name": "optional", "arguments": {} });
    if let Some(token) = token {
        params["_meta"] = json!({ "progressToken": token });
    }
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
}

/// Begins a call; its stream comes with its first event.
fn begin(client: &Client, body: String) -> JoinHandle<Events> {
    let client = client.clone();
    spawn("client", async move { Events::of_request(&client, body).await })
}

/// A call whose client has seen its first progress: its work, its stream, and the id of that event.
async fn begun(service: &Service, client: &Client) -> (ScriptedCall, Events, String) {
    let call = begin(client, body("call", Some("t")));
    let work = service.script.next().await;
    work.host.tell(progress(1.0));
    let mut stream = call.await.unwrap();
    stream.until("notifications/progress").await;
    let seen = stream.last_id.clone().unwrap();
    (work, stream, seen)
}

async fn respond(client: &Client, id: &Value, result: Value) {
    assert_eq!(client.respond(id, &result).await.status, 202);
}

fn is_error(answer: &Answer, reason: &str) -> bool {
    matches!(answer, Answer::Error(error) if error.as_str().contains(reason))
}

// req: INPUT-15, INPUT-14, HTTP-06, INPUT-13 (of INPUT-13 the legacy half)
async fn a_plain_calls_question_goes_on_its_own_stream_and_is_answered_at_any_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = service.another_node().await;
    let client = Client::capable(&service.url, "owner").await;
    let stranger = Client::capable(&service.url, "stranger").await;
    let mut session = Events::of_session(&client).await;
    let call = begin(&client, body("call", None));
    let work = service.script.next().await;
    let asked = ask(&work);
    let mut stream = call.await.unwrap();
    let question = stream.until("elicitation/create").await;
    assert_eq!(question["params"]["_meta"], json!({}), "no related task");
    // Neither somebody else's answer nor one that does not fit is taken; the latter is asked for again.
    respond(&stranger, &question["id"], json!({ "action": "accept", "content": { "n": 1 } })).await;
    respond(&client, &json!("c-forged"), json!({ "action": "accept", "content": { "n": 1 } })).await;
    respond(&client.at(&there.url), &question["id"], json!({ "action": "accept", "content": { "n": "many" } })).await;
    let again = stream.until("elicitation/create").await;
    assert_ne!(again["id"], question["id"]);
    assert_eq!(again["params"], question["params"]);
    respond(&client, &question["id"], json!({ "action": "decline" })).await;
    respond(&client.at(&there.url), &again["id"], json!({ "action": "accept", "content": { "n": 4 } })).await;
    let answer = asked.await.unwrap();
    assert_eq!(answer, Answer::Result(RawJson::trusted(r#"{"action":"accept","content":{"n":4}}"#)));
    // A question that the work takes back is withdrawn.
    let withdrawn = ask(&work);
    let question = stream.until("elicitation/create").await;
    withdrawn.abort();
    assert_eq!(stream.until("notifications/cancelled").await["params"]["requestId"], question["id"]);
    work.answer("done");
    let rest = stream.rest().await;
    assert_eq!((rest.len(), &rest[0]["id"]), (1, &json!("call")));
    assert_eq!(session.within(QUIET).await, Vec::<Value>::new(), "nothing of it goes elsewhere");
}

// req: INPUT-15
#[tokio::test]
async fn who_takes_only_json_or_is_gone_is_asked_nothing() {
    let mut rules = engine_rules();
    rules.caller_grace = Duration::from_millis(50);
    let service = Service::with(TestDatabase::new(Backend::Sqlite).await, rules).await;
    let client = Client::capable(&service.url, "owner").await;
    let json_only = Client { accept: "application/json", ..client.clone() };
    let call = spawn("client", async move { json_only.call("optional", json!({})).await });
    let work = service.script.next().await;
    assert!(is_error(&ask(&work).await.unwrap(), "caller_takes_no_requests"));
    work.answer("plain");
    assert_eq!(call.await.unwrap().result()["content"][0]["text"], "plain");
    // One that declared nothing gives what such a client does.
    let bare = service.client("owner").await;
    let call = spawn("client", async move { bare.call("optional", json!({})).await });
    let work = service.script.next().await;
    assert!(is_error(&ask(&work).await.unwrap(), "-32601"));
    work.answer("plain");
    call.await.unwrap();
    // One that leaves with a question open, and does not come back in time.
    let call = begin(&client, body("call", None));
    let work = service.script.next().await;
    let asked = ask(&work);
    let mut stream = call.await.unwrap();
    stream.until("elicitation/create").await;
    drop(stream);
    assert!(is_error(&asked.await.unwrap(), "caller_gone"));
    assert!(is_error(&ask(&work).await.unwrap(), "caller_takes_no_requests"));
    assert!(!work.stop.is_cancelled(), "the work goes on");
    work.answer("unheard");
}

// req: HTTP-09, NOTE-04
// field case: F-HTTP-07
#[tokio::test]
async fn a_caller_that_comes_back_gets_what_it_has_not_seen_at_this_node_alone() {
    let service = Service::on_sqlite().await;
    let there = service.another_node().await;
    let client = Client::capable(&service.url, "owner").await;
    let (work, mut stream, seen) = begun(&service, &client).await;
    work.host.tell(progress(2.0));
    let missed = stream.until("notifications/progress").await;
    let asked = ask(&work);
    let question = stream.until("elicitation/create").await;
    drop(stream);
    let elsewhere = client.at(&there.url);
    let refused = elsewhere.build(Method::GET).header("last-event-id", &seen).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 400, "a status that ends retrying");
    let mut resumed = Events::resumed(&client, &seen).await;
    assert_eq!(resumed.message().await.unwrap(), missed);
    assert_eq!(resumed.message().await.unwrap(), question, "under its id");
    respond(&client, &question["id"], json!({ "action": "cancel" })).await;
    asked.await.unwrap();
    // The end, too, waits for a caller that is away.
    let at = resumed.last_id.clone().unwrap();
    drop(resumed);
    work.answer("done");
    let rest = Events::resumed(&client, &at).await.rest().await;
    assert_eq!((rest.len(), &rest[0]["result"]["content"][0]["text"]), (1, &json!("done")));
}

#[tokio::test]
async fn a_large_answer_that_its_caller_comes_back_for_counts_again() {
    let mut rules = engine_rules();
    rules.waiters_per_context = 1;
    let service = Service::with(TestDatabase::new(Backend::Sqlite).await, rules).await;
    let client = Client::capable(&service.url, "owner").await;
    let (work, stream, seen) = begun(&service, &client).await;
    drop(stream);
    let large = "x".repeat(1 << 20);
    work.answer(&large);
    // What is kept for one who is away takes no place: another stream has it.
    let mut other = None;
    until("the place", async || {
        let response = client.build(Method::GET).send().await.unwrap();
        let opened = response.status().as_u16() == 200;
        other = opened.then_some(response);
        opened
    })
    .await;
    let resume = async || client.build(Method::GET).header("last-event-id", &seen).send().await.unwrap();
    for _ in 0..2 {
        let refused = resume().await;
        assert_eq!(refused.status().as_u16(), 429);
        assert!(refused.headers().contains_key("retry-after"));
        assert!(HttpAnswer::read(refused).await.body.contains("limits.streams"));
    }
    drop(other);
    let mut resumed = None;
    until("the place again", async || {
        resumed = Some(resume().await).filter(|response| response.status().as_u16() == 200);
        resumed.is_some()
    })
    .await;
    let rest = Events::new(resumed.unwrap()).await.rest().await;
    assert_eq!((rest.len(), &rest[0]["result"]["content"][0]["text"]), (1, &json!(large)));
}

#[tokio::test]
async fn a_client_of_an_older_revision_is_asked_only_what_that_has() {
    let service = Service::on_sqlite().await;
    // Whatever it says of modes and uses.
    let capabilities = json!({ "elicitation": { "url": {} }, "sampling": { "tools": {}, "context": {} } });
    let mut older = Client { capabilities, ..Client::new(&service.url, Some("owner")) };
    older.initialize("2025-06-18").await;
    let call = begin(&older, body("call", None));
    let work = service.script.next().await;
    let url = r#"{"mode":"url","message":"m","elicitationId":"e","url":"https://example.com"}"#;
    for (kind, params) in
        [(InputKind::Elicitation, url), (InputKind::Sampling, r#"{"messages":[],"maxTokens":1,"tools":[]}"#)]
    {
        let question = Question { kind, params: Some(RawJson::trusted(params)) };
        assert!(is_error(&work.host.answer_to(question).await, "-32602"), "{params}");
    }
    let form = form().params.unwrap().as_str().replacen('{', r#"{"mode":"form","#, 1);
    let question = Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(form)) };
    let host = work.host.clone();
    let asked = spawn("question", async move { host.answer_to(question).await });
    let asks = call.await.unwrap().until("elicitation/create").await;
    assert_eq!((asks["params"].get("mode"), &asks["params"]["message"]), (None, &json!("How many?")));
    respond(&older, &asks["id"], json!({ "action": "decline" })).await;
    assert_eq!(asked.await.unwrap(), Answer::Result(RawJson::trusted(r#"{"action":"decline"}"#)));
    work.answer("done");
}

// req: HTTP-09, INPUT-12
#[tokio::test]
async fn a_question_of_a_call_that_is_over_is_shown_with_its_end() {
    let service = Service::on_sqlite().await;
    let client = Client::capable(&service.url, "owner").await;
    let (work, mut stream, seen) = begun(&service, &client).await;
    let _asked = ask(&work);
    let question = stream.until("elicitation/create").await;
    drop(stream);
    work.answer("done");
    let mut resumed = Events::resumed(&client, &seen).await;
    assert_eq!(resumed.message().await.unwrap(), question);
    let withdrawn = resumed.message().await.unwrap();
    assert_eq!(
        (&withdrawn["method"], &withdrawn["params"]["requestId"]),
        (&json!("notifications/cancelled"), &question["id"])
    );
    assert_eq!(resumed.message().await.unwrap()["result"]["content"][0]["text"], "done");
    let end = resumed.last_id.clone().unwrap();
    assert!(resumed.rest().await.is_empty());
    let over = client.build(Method::GET).header("last-event-id", &end).send().await.unwrap();
    assert_eq!(over.status().as_u16(), 400, "it is over and was read");
}

// req: NOTE-04
#[tokio::test]
async fn progress_of_a_plain_call_grows_and_is_thinned_and_ends_with_it() {
    let mut rules = engine_rules();
    rules.progress_interval = Duration::from_millis(300);
    let service = Service::with(TestDatabase::new(Backend::Sqlite).await, rules).await;
    let client = service.client("owner").await;
    let call = begin(&client, body("call", Some("t")));
    let work = service.script.next().await;
    for value in 0..100 {
        work.host.tell(progress(f64::from(value)));
        work.host.tell(progress(f64::from(value) - 0.5));
    }
    let mut stream = call.await.unwrap();
    // A few that come at once are no flood: all of them are told.
    for value in 0..16 {
        let note = stream.until("notifications/progress").await;
        assert_eq!((&note["params"]["progressToken"], note["params"].get("_meta")), (&json!("t"), None));
        assert_eq!(note["params"]["progress"], f64::from(value));
    }
    let next = stream.until("notifications/progress").await;
    assert_eq!(next["params"]["progress"], 99.0, "the newest, when its time has come");
    work.host.tell(progress(100.0));
    let host = work.host.clone();
    work.answer("done");
    let rest = stream.rest().await;
    let (answer, notes) = rest.split_last().unwrap();
    assert_eq!(notes.len(), 1, "the last value comes before the answer: {rest:?}");
    assert_eq!((&notes[0]["params"]["progress"], &answer["id"]), (&json!(100.0), &json!("call")));
    // Nobody hears what is said after the end, and nobody is told who gave no token.
    host.tell(progress(2000.0));
    let silent = spawn("client", {
        let client = client.clone();
        async move { client.call("optional", json!({})).await }
    });
    let work = service.script.next().await;
    work.host.tell(progress(1.0));
    work.answer("done");
    let answer = silent.await.unwrap();
    assert_eq!(answer.count(), 1, "nothing came before it: {answer:?}");
}

// req: CAP-10
async fn a_plain_call_is_cancelled_at_any_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = service.another_node().await;
    let client = service.client("owner").await;
    let (other, stranger) = (service.client("owner").await, service.client("stranger").await);
    let cancel = async |client: &Client, id: Value| {
        let params = json!({ "requestId": id });
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        assert_eq!(client.send(&message.to_string()).await.status, 202);
    };
    let call = spawn("client", {
        let client = client.clone();
        async move { client.send(&body("plain", None)).await }
    });
    let work = service.script.next().await;
    let created = r#"{"jsonrpc":"2.0","id":"create","method":"tools/call","params":{"name":"optional","task":{}}}"#;
    let task = client.send(created).await.result()["task"]["taskId"].clone();
    let its_work = service.script.next().await;
    let wait = json!({ "jsonrpc": "2.0", "id": "wait", "method": "tasks/result", "params": { "taskId": task } });
    let mut waiting = Events::of_request(&client, wait.to_string()).await;
    // Nothing of another's session, and no request that made a task, or is not there.
    for (who, id) in
        [(&other, "plain"), (&stranger, "plain"), (&client, "create"), (&client, "unknown"), (&client, "initialize")]
    {
        cancel(&who.at(&there.url), json!(id)).await;
        cancel(who, json!(id)).await;
    }
    assert!(tokio::time::timeout(QUIET, work.stop.cancelled()).await.is_err());
    cancel(&client.at(&there.url), json!("plain")).await;
    tokio::time::timeout(Duration::from_secs(5), work.stop.cancelled()).await.expect("the other node hears of it");
    assert_eq!(call.await.unwrap().text(), "", "no response");
    cancel(&client.at(&there.url), json!("wait")).await;
    let rest = waiting.rest().await;
    assert!(rest.iter().all(|message| message.get("id").is_none()), "{rest:?}");
    assert!(!its_work.stop.is_cancelled(), "only the waiter ends");
    its_work.answer("done");
    client.until_status(&task, "completed").await;
    cancel(&client.at(&there.url), json!("wait")).await;
}

/// The upstream takes its time to start, once for the list of its tools and again for each caller.
// field case: F-OPS-02
#[tokio::test]
async fn a_host_hears_of_a_call_whose_server_is_starting() {
    let mut settings = settings();
    // A tenth of a second instead of 5 s.
    settings.still_waiting = Duration::from_millis(100);
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let server = test_tools("test").command.join(" ");
    let slow = script("slow", &format!("until [ -e {} ]; do sleep 0.05; done; exec {server}", gate.display()));
    std::fs::write(&gate, "").unwrap();
    let database = TestDatabase::new(Backend::Sqlite).await;
    let gateway = Gateway::with(database, settings, vec![slow], engine_rules()).await;
    let client = gateway.client("owner").await;
    std::fs::remove_file(&gate).unwrap();
    let params = json!({ "name": "echo", "arguments": {}, "_meta": { "progressToken": "t" } });
    let message = client.message("tools/call", &params);
    let mut stream = Events::of_request(&client, message).await;
    let mut messages = Vec::new();
    for _ in 0..3 {
        messages.push(stream.until("notifications/progress").await);
    }
    std::fs::write(&gate, "").unwrap();
    messages.extend(stream.rest().await);
    let (answer, notes) = messages.split_last().unwrap();
    assert!(answer.get("result").is_some(), "{answer}");
    let values: Vec<_> = notes.iter().map(|note| note["params"]["progress"].as_f64().unwrap()).collect();
    assert!(values.is_sorted_by(|a, b| a < b) && values.iter().all(|value| *value < 1.0), "{values:?}");
    assert!(notes.iter().all(|note| note["params"]["progressToken"] == "t"));
    assert_eq!(notes[0]["params"]["message"], "waiting for the tool's server");
    // A task's handle waits for nothing.
    let other = gateway.client("another").await;
    std::fs::remove_file(&gate).unwrap();
    let task = within("a handle", other.task("echo", json!({}))).await;
    assert_eq!(task["status"], "working", "its server is not there yet");
}

#[tokio::test]
async fn sessions_hear_of_changed_lists() {
    let service = Service::on_sqlite().await;
    let clients = [service.client("owner").await, service.client("stranger").await];
    let mut streams = join_all(clients.iter().map(Events::of_session)).await;
    for stream in &mut streams {
        stream.block().await.unwrap();
    }
    service.tools.say_changed(|changes| changes.tools += 1);
    for stream in &mut streams {
        let message = stream.message().await.unwrap();
        assert_eq!(message, json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
    }
    service.tools.say_changed(|changes| {
        changes.prompts += 1;
        changes.resources += 1;
    });
    for stream in &mut streams {
        let methods =
            [stream.message().await.unwrap(), stream.message().await.unwrap()].map(|one| one["method"].clone());
        assert_eq!(methods, ["notifications/prompts/list_changed", "notifications/resources/list_changed"]);
    }
}

// req: NOTE-10
#[tokio::test]
async fn a_reader_that_does_not_read_delays_nobody() {
    let service = Service::on_sqlite().await;
    let (slow, quick) = (service.client("owner").await, service.client("another").await);
    let call = begin(&slow, body("slow", None));
    let work = service.script.next().await;
    let line = |n: u64| {
        let line = json!({ "level": "info", "data": "x".repeat(10_000), "logger": n.to_string() });
        Event::Log { params: RawJson::from_value(&line) }
    };
    work.host.tell(line(0));
    let stream = call.await.unwrap();
    // Far more than any buffer on the way holds.
    for n in 1..=5_000 {
        work.host.tell(line(n));
    }
    let other = begin(&quick, body("quick", Some("t")));
    let its_work = service.script.next().await;
    its_work.host.tell(progress(1.0));
    let mut other = other.await.unwrap();
    other.until("notifications/progress").await;
    its_work.answer("quick");
    assert_eq!(other.rest().await.len(), 1);
    work.answer("slow");
    let mut stream = stream;
    let rest = stream.rest().await;
    let (answer, lines) = rest.split_last().unwrap();
    assert_eq!(answer["id"], "slow", "what matters is there");
    let numbers = lines.iter().map(|line| line["params"]["logger"].as_str().unwrap().parse().unwrap());
    let numbers: Vec<u64> = numbers.collect();
    // What the links on the way took comes first, then a gap, and last what was kept: 256 KiB of the newest at most.
    let kept = numbers.iter().rev().zip((0..=5_000).rev()).take_while(|(number, wanted)| *number == wanted).count();
    assert!((1..=26).contains(&kept), "{kept} lines were kept for who did not read");
}

#[tokio::test]
async fn streams_are_bounded_and_end_with_a_drain() {
    let mut rules = engine_rules();
    rules.waiters_per_context = 2;
    let service = Service::with(TestDatabase::new(Backend::Sqlite).await, rules).await;
    let client = service.client("owner").await;
    let mut streams = vec![Events::of_session(&client).await, Events::of_session(&client).await];
    let refused = client.build(Method::GET).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    assert!(HttpAnswer::read(refused).await.body.contains("limits.streams"));
    drop(streams.pop());
    until("a place among the streams", async || {
        let response = client.build(Method::GET).send().await.unwrap();
        response.status().as_u16() == 200
    })
    .await;
    service.drain.cancel();
    let stream = &mut streams[0];
    let mut last = None;
    while let Some(block) = stream.block().await {
        last = Some(block);
    }
    assert!(last.unwrap().retry.is_some(), "it says when to come back");
}
