//! Streams to legacy clients: which message goes on which, on which node, and how one goes on that broke.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::executor::Event;
use taskhold::lifecycle::spawn;

use super::harness::{Front, Service, until};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::events::Events;
use crate::support::host::Answers as _;
use crate::support::script::ScriptedCall;

contract! {
    a_session_hears_of_its_tasks_on_any_node,
    without_a_stream_of_the_session_who_waits_hears_of_the_task,
    progress_goes_under_the_token_and_only_grows,
    a_question_is_on_one_stream_at_a_time,
    a_stream_that_broke_goes_on_at_another_node,
    a_stream_that_is_resumed_while_its_connection_lives_moves,
    a_result_whose_request_was_cancelled_is_not_resumed,
    a_result_that_broke_is_answered_at_another_node,
    a_question_that_was_not_seen_is_shown_again_under_its_id,
    nothing_is_asked_before_the_client_is_initialized,
    the_stream_that_was_opened_last_gets_the_messages,
    a_session_that_ends_takes_its_streams_along,
    a_session_that_ended_at_another_node_is_served_no_more,
}

const RELATED: &str = "io.modelcontextprotocol/related-task";
/// Long enough for what must not come.
const QUIET: Duration = Duration::from_millis(700);

fn form(message: &str) -> Question {
    let params = json!({
        "message": message,
        "requestedSchema": { "type": "object", "properties": { "n": { "type": "integer" } } },
        "_meta": { RELATED: { "taskId": "theirs" }, "k": 1.5 },
    });
    Question { kind: InputKind::Elicitation, params: Some(RawJson::from_value(&params)) }
}

fn progress(value: f64, message: &str) -> Event {
    let params = json!({ "progressToken": 99, "progress": value, "message": message, "x": 1.0 });
    Event::Progress {
        progress: value,
        total: None,
        message: Some(message.to_owned()),
        params: RawJson::from_value(&params),
    }
}

fn log(text: &str) -> Event {
    Event::Log { params: RawJson::from_value(&json!({ "level": "info", "data": text })) }
}

/// Asks in the background.
fn ask(work: &ScriptedCall, question: Question) -> tokio::task::JoinHandle<Answer> {
    let host = work.host.clone();
    spawn("question", async move { host.answer_to(question).await })
}

async fn answer(client: &Client, id: &Value, n: u64) {
    let accepted = client.respond(id, &json!({ "action": "accept", "content": { "n": n } })).await;
    assert_eq!((accepted.status, accepted.body.as_str()), (202, ""));
}

fn answered(n: u64) -> Answer {
    Answer::Result(RawJson::trusted(format!(r#"{{"action":"accept","content":{{"n":{n}}}}}"#)))
}

fn call_with_token(client: &Client, tool: &str, token: &Value, is_task: bool) -> String {
    let mut params = json!({ "name": tool, "arguments": {}, "_meta": { "progressToken": token } });
    if is_task {
        params["task"] = json!({});
    }
    client.message("tools/call", &params)
}

async fn task_with_token(client: &Client, token: &Value) -> Value {
    client.send(&call_with_token(client, "optional", token, true)).await.result()["task"]["taskId"].clone()
}

fn wait_for(client: &Client, task: &Value) -> String {
    client.message("tasks/result", &json!({ "taskId": task }))
}

/// A second node on the service's database, with the same callers and work.
async fn another(service: &Service) -> Front {
    service.another_node().await
}

fn statuses(messages: &[Value]) -> Vec<&str> {
    let of_status = messages.iter().filter(|message| message["method"] == "notifications/tasks/status");
    of_status.map(|message| message["params"]["status"].as_str().unwrap()).collect()
}

// req: HTTP-06, HTTP-09, NOTE-08
// field case: F-HTTP-07
#[tokio::test]
async fn a_get_opens_the_sessions_stream() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let response = client.build(Method::GET).send().await.unwrap();
    for (name, value) in
        [("content-type", "text/event-stream"), ("x-accel-buffering", "no"), ("cache-control", "no-cache")]
    {
        assert_eq!(response.headers()[name].to_str().unwrap(), value);
    }
    let first = Events::new(response).await.block().await.unwrap();
    assert!(first.id.is_some() && first.retry.is_some_and(|ms| ms >= 1000), "{first:?}");
    assert_eq!((first.data.as_deref(), first.name), (Some(""), None));
    let older = service.client_of("owner", "2025-06-18").await;
    let first = Events::of_session(&older).await.block().await.unwrap();
    assert_eq!((first.id, first.data), (None, None), "older revisions know no primer");
    assert!(first.comment.is_some());
    for (accept, status) in [("application/json", 406), ("text/event-stream", 200), ("*/*", 200)] {
        let client = Client { accept, ..client.clone() };
        let response = client.build(Method::GET).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{accept}");
        if status == 406 {
            let text = response.text().await.unwrap();
            assert!(text.contains("answers of GET are text/event-stream"), "{text}");
        }
    }
    let nobody = Client { session: None, ..client.clone() };
    assert_eq!(nobody.build(Method::GET).send().await.unwrap().status().as_u16(), 400);
    let foreign = Client { token: Some("stranger".to_owned()), ..client.clone() };
    assert_eq!(foreign.build(Method::GET).send().await.unwrap().status().as_u16(), 404);
    let version = client.build(Method::GET).header("mcp-protocol-version", "2020-01-01");
    assert_eq!(version.send().await.unwrap().status().as_u16(), 400);
}

// req: HTTP-09
// field case: F-HTTP-07
#[tokio::test]
async fn only_ones_own_events_can_be_resumed() {
    let service = Service::on_sqlite().await;
    let (mine, stranger) = (service.client("owner").await, service.client("stranger").await);
    let other = service.client("owner").await;
    let mut stream = Events::of_session(&mine).await;
    let id = stream.block().await.unwrap().id.unwrap();
    let resume = async |client: &Client, id: &str| {
        client.build(Method::GET).header("last-event-id", id).send().await.unwrap().status().as_u16()
    };
    let changed = format!("{}{}", &id[..id.len() - 1], if id.ends_with('A') { 'B' } else { 'A' });
    for (client, id) in [
        (&stranger, id.as_str()),
        (&other, &id),
        (&mine, &changed),
        (&mine, "garbage"),
        (&mine, "0"),
        (&mine, &"A".repeat(5000)),
    ] {
        assert_eq!(resume(client, id).await, 400, "{id}");
    }
    assert_eq!(resume(&mine, &id).await, 200);
    // A call that has ended, or never was here.
    let call = spawn("client", {
        let mine = mine.clone();
        async move { Events::of_request(&mine, call_with_token(&mine, "optional", &json!("t"), false)).await }
    });
    let work = service.script.next().await;
    work.host.tell(progress(1.0, "one"));
    let mut call = call.await.unwrap();
    call.until("notifications/progress").await;
    work.answer("done");
    assert_eq!(call.rest().await.len(), 1);
    assert_eq!(resume(&mine, &call.last_id.unwrap()).await, 400);
}

// req: NOTE-01, NOTE-02, INPUT-04
// field case: F-P25-15, F-P25-16
async fn a_session_hears_of_its_tasks_on_any_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = service.client("owner").await;
    let (mut here, bystander) = (Events::of_session(&client.at(&there.url)).await, service.client("owner").await);
    let mut others = Events::of_session(&bystander).await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let working = here.until("notifications/tasks/status").await;
    assert_eq!(working["params"], client.get(&id).await.result(), "the whole task");
    assert!(working["params"].get("_meta").is_none());
    let mut result = Events::of_request(&client, wait_for(&client, &id)).await;
    let mut updated = working["params"]["lastUpdatedAt"].clone();
    for text in ["one", "two", "three"] {
        work.host.tell(progress(text.len() as f64, text));
        let status = loop {
            let status = here.until("notifications/tasks/status").await["params"].clone();
            if status["statusMessage"] == text {
                break status;
            }
        };
        assert_eq!(client.at(&there.url).get(&id).await.result()["statusMessage"], text);
        assert!(
            status["lastUpdatedAt"].as_str() > updated.as_str()
                && status["createdAt"] == working["params"]["createdAt"]
        );
        updated = status["lastUpdatedAt"].clone();
    }
    work.answer("done");
    let ended = loop {
        let status = here.until("notifications/tasks/status").await["params"].clone();
        if status["status"] != "working" {
            break status;
        }
    };
    assert_eq!(ended, client.get(&id).await.result());
    assert_eq!(ended["status"], "completed");
    let answers = result.rest().await;
    assert_eq!(answers.len(), 1, "one stream alone gets each message: {answers:?}");
    assert_eq!(statuses(&others.within(QUIET).await), Vec::<&str>::new(), "another session hears nothing");
    assert_eq!(statuses(&here.within(Duration::from_millis(1)).await), Vec::<&str>::new(), "nothing is said twice");
}

// req: NOTE-01, NOTE-13, NOTE-03 (of NOTE-03 the legacy half)
async fn without_a_stream_of_the_session_who_waits_hears_of_the_task(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let id = task_with_token(&client, &json!("mine")).await;
    let work = service.script.next().await;
    let mut result = Events::of_request(&client, wait_for(&client, &id)).await;
    assert_eq!(result.block().await.unwrap().data.as_deref(), Some(""), "primed");
    // Whether the session has a stream elsewhere is looked up after the stream began.
    let mut value = 0.0;
    let first = loop {
        value += 1.0;
        work.host.tell(progress(value, "step"));
        if let Some(message) = result.within(Duration::from_millis(600)).await.into_iter().next() {
            break message;
        }
    };
    assert_eq!(
        (&first["method"], &first["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("mine"))
    );
    assert_eq!(first["params"]["_meta"][RELATED], json!({ "taskId": id }));
    assert_eq!(first["params"]["x"], 1.0);
    work.host.tell(log("a line"));
    let line = result.until("notifications/message").await;
    assert_eq!(line["params"], json!({ "level": "info", "data": "a line", "_meta": { RELATED: { "taskId": id } } }));
    work.answer("done");
    let rest = result.rest().await;
    let (answer, before) = rest.split_last().unwrap();
    assert_eq!(statuses(before), ["completed"]);
    assert_eq!(answer["result"]["content"][0]["text"], "done");
    // With no stream at all nothing is kept for later.
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    work.host.tell(progress(1.0, "unheard"));
    work.answer("unheard");
    client.until_status(&id, "completed").await;
    let mut late = Events::of_session(&client).await;
    assert_eq!(late.within(QUIET).await, Vec::<Value>::new());
}

// req: NOTE-04, NOTE-03 (of NOTE-03 the legacy half)
async fn progress_goes_under_the_token_and_only_grows(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = service.client("owner").await;
    let other = service.client("owner").await;
    let (mut mine, mut others) = (Events::of_session(&client).await, Events::of_session(&other).await);
    let id = task_with_token(&client, &json!(7)).await;
    let silent = client.task("optional", json!({})).await["taskId"].clone();
    let (first, second) = (service.script.next().await, service.script.next().await);
    let (work, tokenless) =
        if first.call.params.as_str().contains("progressToken") { (first, second) } else { (second, first) };
    let mut waiting = Events::of_request(&other, wait_for(&other, &id)).await;
    tokenless.host.tell(progress(1.0, "nobody asked"));
    for value in [1.0, 2.0, 2.0, 1.5, 3.0] {
        work.host.tell(progress(value, "step"));
        until("it is stored", async || client.get(&id).await.result()["statusMessage"] == "step").await;
    }
    let mut seen = Vec::new();
    while seen.last() != Some(&3.0) {
        let note = mine.until("notifications/progress").await["params"].clone();
        assert_eq!((&note["progressToken"], &note["_meta"][RELATED]["taskId"]), (&json!(7), &id));
        seen.push(note["progress"].as_f64().unwrap());
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    // A flood is thinned: what comes within one pause is one note.
    for value in 0..1000 {
        work.host.tell(progress(10.0 + f64::from(value), "flood"));
    }
    let flood = mine.within(Duration::from_millis(1200)).await;
    let flood = flood.iter().filter(|message| message["method"] == "notifications/progress").count();
    assert!((1..=4).contains(&flood), "{flood}");
    work.host.tell(progress(5000.0, "last"));
    work.answer("done");
    let mut last = 0.0;
    loop {
        let message = mine.message().await.unwrap();
        match message["method"].as_str().unwrap() {
            "notifications/progress" => last = message["params"]["progress"].as_f64().unwrap(),
            _ if message["params"]["taskId"] == id && message["params"]["status"] == "completed" => break,
            _ => {}
        }
    }
    assert_eq!(last, 5000.0, "the last value comes before the outcome");
    tokenless.answer("done");
    client.until_status(&silent, "completed").await;
    let after = mine.within(QUIET).await;
    assert!(after.iter().all(|message| message["method"] != "notifications/progress"), "{after:?}");
    for others in [others.within(Duration::from_millis(1)).await, waiting.rest().await] {
        assert!(
            others.iter().all(|message| message["method"] != "notifications/progress"),
            "another session: {others:?}"
        );
    }
}

// req: INPUT-02, INPUT-04, INPUT-12, INPUT-14
// field case: F-P25-12, F-P25-13
async fn a_question_is_on_one_stream_at_a_time(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = Client::capable(&service.url, "owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let mut session = Events::of_session(&client.at(&there.url)).await;
    let mut results = vec![
        Events::of_request(&client, wait_for(&client, &id)).await,
        Events::of_request(&client, wait_for(&client, &id)).await,
    ];
    let asked = ask(&work, form("How many?"));
    // A waiting `tasks/result` has it, whichever of the two.
    let (question, holder) = tokio::select! {
        question = async { let (one, two) = results.split_at_mut(1); tokio::select! {
            question = one[0].until("elicitation/create") => (question, 0),
            question = two[0].until("elicitation/create") => (question, 1),
        } } => question,
    };
    assert_eq!(question["params"]["_meta"], json!({ "k": 1.5, RELATED: { "taskId": id } }));
    assert_eq!(question["params"]["message"], "How many?");
    assert!(results[1 - holder].within(QUIET).await.iter().all(|message| message.get("id").is_none()));
    drop(results.remove(holder));
    // The other one takes it, or the session's stream at the other node.
    let again = tokio::select! {
        again = results[0].until("elicitation/create") => again,
        again = session.until("elicitation/create") => again,
    };
    assert_ne!(again["id"], question["id"], "a new request has a new id");
    assert_eq!(again["params"], question["params"]);
    // The first answer counts, by whichever id; the other is withdrawn where it is held.
    answer(&client.at(&there.url), &question["id"], 3).await;
    assert_eq!(asked.await.unwrap(), answered(3));
    answer(&client, &again["id"], 4).await;
    let withdrawn = tokio::select! {
        withdrawn = results[0].until("notifications/cancelled") => withdrawn,
        withdrawn = session.until("notifications/cancelled") => withdrawn,
    };
    assert_eq!(withdrawn["params"]["requestId"], again["id"]);
    assert_eq!(withdrawn["params"]["_meta"][RELATED], json!({ "taskId": id }));
    client.until_status(&id, "working").await;

    // Without who waits, the session's stream gets it; what it answers is not withdrawn.
    drop(results);
    let asked = ask(&work, form("And now?"));
    let question = session.until("elicitation/create").await;
    answer(&client, &question["id"], 5).await;
    assert_eq!(asked.await.unwrap(), answered(5));
    work.answer("done");
    let rest = session.within(QUIET).await;
    assert!(rest.iter().all(|message| message["method"] != "notifications/cancelled"), "{rest:?}");
    assert!(statuses(&rest).contains(&"completed"), "{rest:?}");
}

// req: HTTP-09, INPUT-14
// field case: F-HTTP-07
async fn a_stream_that_broke_goes_on_at_another_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = Client::capable(&service.url, "owner").await;
    let mut stream = Events::of_session(&client).await;
    let seen = stream.block().await.unwrap().id.unwrap();
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let asked = ask(&work, form("Seen?"));
    let question = stream.until("elicitation/create").await;
    let at_question = stream.last_id.clone().unwrap();
    drop(stream);
    let mut ids = vec![seen.clone(), at_question.clone()];
    // What the client has seen it keeps; how its live tasks stand it is shown.
    let mut resumed = Events::resumed(&client.at(&there.url), &at_question).await;
    let status = resumed.until("notifications/tasks/status").await;
    assert_eq!((&status["params"]["taskId"], &status["params"]["status"]), (&id, &json!("input_required")));
    ids.extend(resumed.last_id.clone());
    let more = resumed.within(QUIET).await;
    let known = |message: &Value| message["method"] != "elicitation/create" || message["id"] != question["id"];
    assert!(more.iter().all(known), "{more:?}");
    answer(&client, &question["id"], 1).await;
    assert_eq!(asked.await.unwrap(), answered(1));
    work.answer("done");
    loop {
        let status = resumed.until("notifications/tasks/status").await;
        if status["params"]["status"] == "completed" {
            break;
        }
    }
    ids.extend(resumed.last_id.clone());
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "no id is used twice");
}

// req: HTTP-09, INPUT-04, INPUT-14
// field case: F-HTTP-07
async fn a_stream_that_is_resumed_while_its_connection_lives_moves(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = Client::capable(&service.url, "owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    for body in [None, Some(wait_for(&client, &id))] {
        let mut stream = match body {
            None => Events::of_session(&client).await,
            Some(body) => Events::of_request(&client, body).await,
        };
        let asked = ask(&work, form("Seen?"));
        let question = stream.until("elicitation/create").await;
        // The node that has the stream does not know that its connection is broken.
        let mut resumed = Events::resumed(&client.at(&there.url), &stream.last_id.clone().unwrap()).await;
        let rest = stream.rest().await;
        let more = resumed.within(QUIET).await;
        let asks = |message: &&Value| {
            message["method"] == "elicitation/create" || message["method"] == "notifications/cancelled"
        };
        assert_eq!(rest.iter().chain(&more).find(asks), None, "its client has the question");
        answer(&client, &question["id"], 1).await;
        assert_eq!(asked.await.unwrap(), answered(1));
        // Another session's stream gets none of this.
        drop(resumed);
    }
    work.answer("done");
}

// req: CAP-10, HTTP-09
async fn a_result_whose_request_was_cancelled_is_not_resumed(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = service.client("owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let request = |name: &str| {
        json!({ "jsonrpc": "2.0", "id": name, "method": "tasks/result", "params": { "taskId": id } }).to_string()
    };
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "given up" } });
    let mut given_up = Events::of_request(&client, request("given up")).await;
    let mut waiting = Events::of_request(&client, request("waiting")).await;
    let seen = given_up.block().await.unwrap().id.unwrap();
    // By way of the other node.
    assert_eq!(client.at(&there.url).send(&cancel.to_string()).await.status, 202);
    assert_eq!(given_up.rest().await, Vec::<Value>::new(), "it ends without an answer");
    let resume = async |seen: &str| {
        client.build(Method::GET).header("last-event-id", seen).send().await.unwrap().status().as_u16()
    };
    assert_eq!(resume(&seen).await, 400);
    work.answer("done");
    assert_eq!(waiting.rest().await.last().unwrap()["id"], "waiting");
    assert_eq!(resume(&seen).await, 400, "nor later");
    assert_eq!(resume(&waiting.last_id.unwrap()).await, 200);
}

// req: HTTP-09, HTTP-06
async fn a_result_that_broke_is_answered_at_another_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = service.client("owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let body = json!({ "jsonrpc": "2.0", "id": "wäit", "method": "tasks/result", "params": { "taskId": id } });
    let mut stream = Events::of_request(&client, body.to_string()).await;
    let seen = stream.block().await.unwrap().id.unwrap();
    drop(stream);
    let mut resumed = Events::resumed(&client.at(&there.url), &seen).await;
    work.answer("done");
    let rest = resumed.rest().await;
    let answer = rest.last().unwrap();
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!("wäit"), &json!("done")));
    // It had ended meanwhile: the answer comes at once, on either node.
    for node in [&service.url, &there.url] {
        let answers = Events::resumed(&client.at(node), &seen).await.rest().await;
        assert_eq!((answers.len(), &answers[0]["id"]), (1, &json!("wäit")));
    }
}

// req: HTTP-09, INPUT-14
async fn a_question_that_was_not_seen_is_shown_again_under_its_id(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = Client::capable(&service.url, "owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    for node in [&service.url, &there.url] {
        let mut stream = Events::of_request(&client, wait_for(&client, &id)).await;
        let seen = stream.block().await.unwrap().id.unwrap();
        let asked = ask(&work, form("Again?"));
        let question = stream.until("elicitation/create").await;
        drop(stream);
        let mut resumed = Events::resumed(&client.at(node), &seen).await;
        let again = resumed.until("elicitation/create").await;
        assert_eq!(again, question, "the same request on the same stream");
        answer(&client, &question["id"], 2).await;
        assert_eq!(asked.await.unwrap(), answered(2));
    }
}

// req: HTTP-16
async fn nothing_is_asked_before_the_client_is_initialized(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let mut client = Client::new(&service.url, Some("owner"));
    client.capabilities = json!({ "elicitation": {} });
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": client.capabilities, "clientInfo": { "name": "c", "version": "1" },
    });
    let opened = client.request("initialize", params).await;
    client.session = Some(opened.header("mcp-session-id").unwrap().to_owned());
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let mut session = Events::of_session(&client).await;
    let mut result = Events::of_request(&client, wait_for(&client, &id)).await;
    let asked = ask(&work, form("Ready?"));
    client.until_status(&id, "input_required").await;
    for stream in [&mut session, &mut result] {
        assert!(stream.within(QUIET).await.iter().all(|message| message.get("id").is_none()));
    }
    // A plain call's work is answered for it.
    let plain = spawn("client", {
        let client = client.clone();
        async move { client.call("optional", json!({})).await }
    });
    let plainly = service.script.next().await;
    assert!(matches!(plainly.host.answer_to(form("Plainly?")).await, Answer::Error(_)));
    plainly.answer("plain");
    plain.await.unwrap().result();
    let initialized = client.at(&there.url).send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    assert_eq!(initialized.status, 202);
    let question = result.until("elicitation/create").await;
    answer(&client, &question["id"], 1).await;
    assert_eq!(asked.await.unwrap(), answered(1));
}

async fn the_stream_that_was_opened_last_gets_the_messages(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = service.client("owner").await;
    let mut first = Events::of_session(&client).await;
    first.block().await.unwrap();
    let mut second = Events::of_session(&client.at(&there.url)).await;
    second.block().await.unwrap();
    until("the first node knows", async || {
        let id = client.task("optional", json!({})).await["taskId"].clone();
        service.script.next().await.answer("done");
        client.until_status(&id, "completed").await;
        let heard = second.within(Duration::from_millis(500)).await;
        first.within(Duration::from_millis(1)).await.is_empty() && !heard.is_empty()
    })
    .await;
    drop(second);
    until("the first has its turn again", async || {
        let id = client.task("optional", json!({})).await["taskId"].clone();
        service.script.next().await.answer("done");
        client.until_status(&id, "completed").await;
        !first.within(Duration::from_millis(500)).await.is_empty()
    })
    .await;
}

// req: HTTP-16
async fn a_session_that_ends_takes_its_streams_along(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = Client::capable(&service.url, "owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let mut streams = [Events::of_session(&client).await, Events::of_session(&client.at(&there.url)).await];
    let mut result = Events::of_request(&client, wait_for(&client, &id)).await;
    let asked = ask(&work, form("Still there?"));
    client.until_status(&id, "input_required").await;
    assert_eq!(client.build(Method::DELETE).send().await.unwrap().status().as_u16(), 204);
    for stream in &mut streams {
        stream.rest().await;
    }
    result.rest().await;
    // No node opens another one, as well as it may remember the session.
    for node in [&service.url, &there.url] {
        assert_eq!(client.at(node).build(Method::GET).send().await.unwrap().status().as_u16(), 404);
    }
    // Its task and the question live on, for another session of the caller.
    let later = Client::capable(&there.url, "owner").await;
    let mut result = Events::of_request(&later, wait_for(&later, &id)).await;
    let question = result.until("elicitation/create").await;
    answer(&later, &question["id"], 8).await;
    assert_eq!(asked.await.unwrap(), answered(8));
}

// req: HTTP-07, HTTP-16
async fn a_session_that_ended_at_another_node_is_served_no_more(database: TestDatabase) {
    let service = Service::start(database).await;
    let there = another(&service).await;
    let client = service.client("owner").await;
    // A node that has a stream of the session hears of its end, one that has none looks after a moment.
    let idle = another(&service).await;
    let mut stream = Events::of_session(&client.at(&there.url)).await;
    stream.block().await.unwrap();
    let list = async |url: &str| client.at(url).request("tools/list", json!({})).await.status;
    for node in [&there.url, &idle.url] {
        assert_eq!(list(node).await, 200);
    }
    assert_eq!(client.build(Method::DELETE).send().await.unwrap().status().as_u16(), 204);
    stream.rest().await;
    assert_eq!(list(&there.url).await, 404, "its stream was ended there");
    until("the idle node has looked", async || list(&idle.url).await == 404).await;
}
