//! Streams of news about tasks.

use std::time::Duration;

use serde_json::{Value, json};
use taskhold::domain::input::{InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::executor::Event;
use taskhold::lifecycle::spawn;

use super::listen::{listen, subscription};
use crate::http::harness::{Front, Service, until};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::events::Events;
use crate::support::host::Answers as _;
use crate::support::modern::Modern;
use crate::support::schema::Schema;
use crate::support::script::ScriptedCall;

contract! {
    who_listens_to_a_task_is_told_what_a_look_would_show,
    who_listens_at_another_node_is_told_the_same,
}

const TASKS: &str = "notifications/tasks";
const FORM: &str = r#"{"mode":"form","message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}"#;

fn client(url: &str, name: &str) -> Modern {
    Modern::new(url, name).declaring(json!({ "elicitation": {}, "roots": {} })).with_tasks()
}

async fn get(client: &Modern, id: &Value) -> Value {
    client.request("tasks/get", json!({ "taskId": id })).await.result()
}

/// A task at once, and its work.
async fn made(service: &Service, client: &Modern) -> (Value, ScriptedCall) {
    let created = client.call("eager", json!({})).await.result();
    assert_eq!(created["resultType"], "task", "{created}");
    (created["taskId"].clone(), service.script.next().await)
}

fn ask(work: &ScriptedCall, question: Question) {
    let host = work.host.clone();
    spawn("work", async move { host.answer_to(question).await });
}

fn form() -> Question {
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(FORM)) }
}

fn progress(value: f64) -> Event {
    let params = json!({ "progressToken": 99, "progress": value, "message": format!("at {value}") });
    let message = Some(format!("at {value}"));
    Event::Progress { progress: value, total: None, message, params: RawJson::from_value(&params) }
}

fn log(text: &str) -> Event {
    Event::Log { params: RawJson::from_value(&json!({ "level": "emergency", "data": text })) }
}

/// The task that is told of next, as it stands.
async fn told(events: &mut Events, id: &Value) -> Value {
    let message = events.message().await.expect("the stream goes on");
    assert_eq!((&message["method"], subscription(&message)), (&json!(TASKS), id), "{message}");
    if let Some(schema) = Schema::of_tasks() {
        schema.check("TaskStatusNotification", &message);
    }
    message["params"].clone()
}

/// The same once it stands so.
async fn until_told(events: &mut Events, id: &Value, status: &str) -> Value {
    loop {
        let task = told(events, id).await;
        if task["status"] == status {
            return task;
        }
        assert_eq!(task["status"], "working", "{task}");
    }
}

/// Without what is about the message, not about the task.
fn task_of(value: &Value) -> Value {
    let mut task = value.clone();
    let members = task.as_object_mut().unwrap();
    members.remove("_meta");
    members.remove("resultType");
    task
}

// req: NOTE-05, NOTE-07, INPUT-08
async fn who_listens_to_a_task_is_told_what_a_look_would_show(database: TestDatabase) {
    let service = Service::start(database).await;
    let (client, stranger) = (client(&service.url, "owner"), client(&service.url, "stranger"));
    let (over, work) = made(&service, &client).await;
    work.answer("before");
    until("it has ended", async || get(&client, &over).await["status"] == "completed").await;
    let (foreign, _theirs) = made(&service, &stranger).await;
    let (id, work) = made(&service, &client).await;
    let unknown = "00000000-0000-4000-8000-000000000000";
    let filter = json!({ "taskIds": [id, foreign, unknown, "x", over, id], "promptsListChanged": true });
    let (mut events, first) = listen(&client, json!("a"), filter).await;
    assert_eq!(first["params"]["notifications"], json!({ "taskIds": [id, over] }), "the caller's own, each once");
    assert_eq!((first["params"].as_object().unwrap().len(), subscription(&first)), (2, &json!("a")));
    if let (Some(core), Some(tasks)) = (Schema::of_2026_07_28(), Schema::of_tasks()) {
        core.check("SubscriptionsAcknowledgedNotification", &first);
        tasks.check("TaskSubscriptionAcknowledgedNotifications", &first["params"]["notifications"]);
    }
    let stands = told(&mut events, &json!("a")).await;
    assert_eq!(task_of(&stands), task_of(&get(&client, &id).await));
    assert_eq!(stands.get("resultType"), None, "a notification is no result");
    let ended = told(&mut events, &json!("a")).await;
    assert_eq!((&ended["taskId"], &ended["status"]), (&over, &json!("completed")));
    assert_eq!(task_of(&ended), task_of(&get(&client, &over).await));
    assert_eq!(ended["result"]["content"][0]["text"], "before");
    // Of progress and log messages the status message alone.
    work.host.tell(log("not told"));
    work.host.tell(progress(0.5));
    assert_eq!(told(&mut events, &json!("a")).await["statusMessage"], "at 0.5");
    ask(&work, form());
    let asking = told(&mut events, &json!("a")).await;
    assert_eq!((&asking["status"], task_of(&asking)), (&json!("input_required"), task_of(&get(&client, &id).await)));
    ask(&work, Question { kind: InputKind::Roots, params: None });
    let both = told(&mut events, &json!("a")).await;
    let requests = both["inputRequests"].as_object().unwrap();
    assert_eq!((requests.len(), task_of(&both)), (2, task_of(&get(&client, &id).await)), "every one that is open");
    let key = |method: &str| requests.iter().find(|(_, request)| request["method"] == method).unwrap().0.clone();
    assert_eq!(requests[&key("elicitation/create")]["params"], serde_json::from_str::<Value>(FORM).unwrap());
    for (method, answer, left) in [
        ("roots/list", json!({ "roots": [] }), 1),
        ("elicitation/create", json!({ "action": "accept", "content": { "n": 3 } }), 0),
    ] {
        let answers = json!({ "taskId": id, "inputResponses": { key(method): answer } });
        client.request("tasks/update", answers).await.result();
        let told = told(&mut events, &json!("a")).await;
        assert_eq!(told["inputRequests"].as_object().map_or(0, serde_json::Map::len), left, "{told}");
    }
    work.answer("done");
    let done = until_told(&mut events, &json!("a"), "completed").await;
    assert_eq!(task_of(&done), task_of(&get(&client, &id).await));
    assert_eq!((&done["taskId"], &done["result"]["content"][0]["text"]), (&id, &json!("done")));
    // Nothing is said after the end, nor of what is another's; the stream ends with its result.
    stranger.request("tasks/cancel", json!({ "taskId": foreign })).await.result();
    service.drain.cancel();
    let rest = events.rest().await;
    assert_eq!((rest.len(), &rest[0]["id"], subscription(&rest[0])), (1, &json!("a"), &json!("a")), "{rest:?}");
}

// Of NOTE-09 that it comes by itself.
async fn who_listens_at_another_node_is_told_the_same(database: TestDatabase) {
    let service = Service::start(database).await;
    let other: Front = service.another_node().await;
    let (here, there) = (client(&service.url, "owner"), client(&other.url, "owner"));
    let (id, work) = made(&service, &here).await;
    let (mut events, first) = listen(&there, json!(7), json!({ "taskIds": [id] })).await;
    assert_eq!(first["params"]["notifications"], json!({ "taskIds": [id] }));
    assert_eq!(told(&mut events, &json!(7)).await["status"], "working");
    ask(&work, form());
    let asking = until_told(&mut events, &json!(7), "input_required").await;
    assert_eq!(task_of(&asking), task_of(&get(&here, &id).await));
    let key = asking["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let answers = json!({ key: { "action": "accept", "content": { "n": 3 } } });
    here.request("tasks/update", json!({ "taskId": id, "inputResponses": answers })).await.result();
    assert_eq!(told(&mut events, &json!(7)).await["status"], "working");
    work.answer("done");
    let done = until_told(&mut events, &json!(7), "completed").await;
    assert_eq!(task_of(&done), task_of(&get(&there, &id).await));
}

// Of F-P26-11 what is listened to, of F-P26-04 how it is told.
#[tokio::test]
async fn a_task_of_a_session_can_be_listened_to() {
    let service = Service::on_sqlite().await;
    let (session, listener) = (service.client("owner").await, client(&service.url, "owner"));
    let mut get_stream = Events::of_session(&session).await;
    let id = session.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let (mut events, _) = listen(&listener, json!(0), json!({ "taskIds": [id] })).await;
    assert_eq!(told(&mut events, &json!(0)).await["status"], "working");
    work.host.tell(progress(0.5));
    assert_eq!(told(&mut events, &json!(0)).await["statusMessage"], "at 0.5");
    let json = RawJson::trusted(r#"{"content":[{"type":"text","text":"disk full"}],"isError":true}"#);
    let outcome = taskhold::domain::outcome::Outcome::Result { json, is_error: true };
    work.end(taskhold::executor::Attempt::Answered(outcome));
    let done = until_told(&mut events, &json!(0), "completed").await;
    assert_eq!((&done["result"]["isError"], &done["statusMessage"]), (&json!(true), &json!("disk full")));
    loop {
        let status = get_stream.until("notifications/tasks/status").await["params"]["status"].clone();
        if status != "working" {
            assert_eq!(status, "failed", "and its session is told as ever");
            break;
        }
    }
}

// Of AUTH-03 what is listened to.
#[tokio::test]
async fn whose_tasks_are_not_theirs_hear_nothing_of_them() {
    let service = Service::on_sqlite().await;
    let (owner, stranger) = (client(&service.url, "owner"), client(&service.url, "stranger"));
    let (id, work) = made(&service, &owner).await;
    let mut opened = Vec::new();
    for id in [
        id.clone(),
        json!("00000000-0000-4000-8000-000000000000"),
        json!("x"),
        json!(id.as_str().unwrap().to_uppercase()),
    ] {
        opened.push(listen(&stranger, json!("s"), json!({ "taskIds": [id], "toolsListChanged": true })).await);
    }
    work.answer("done");
    until("it has ended", async || get(&owner, &id).await["status"] == "completed").await;
    service.tools.say_changed(|changes| changes.tools += 1);
    for (events, first) in &mut opened {
        let expected = json!({ "taskIds": [], "toolsListChanged": true });
        assert_eq!(first["params"]["notifications"], expected, "as if there were none");
        assert_eq!(events.message().await.unwrap()["method"], "notifications/tools/list_changed");
    }
    // Where there are no tasks, the kind is left out.
    let without = client(&service.url, "a@plain");
    let (_, first) = listen(&without, json!(1), json!({ "taskIds": [id] })).await;
    assert_eq!(first["params"]["notifications"], json!({}));
}

// Of AUTH-07 what listens.
#[tokio::test]
async fn a_stream_that_listens_ends_with_its_token() {
    let service = Service::on_sqlite().await;
    let client = client(&service.url, "owner");
    let (id, work) = made(&service, &client).await;
    let (mut events, _) = listen(&client, json!(1), json!({ "taskIds": [id] })).await;
    assert_eq!(told(&mut events, &json!(1)).await["status"], "working");
    service.names.revoke("owner");
    let rest = tokio::time::timeout(Duration::from_secs(5), events.rest()).await.expect("it ends in time");
    assert_eq!(rest, [] as [Value; 0], "without a result, as for one who has gone");
    assert!(!work.stop.is_cancelled(), "the task goes on");
}
