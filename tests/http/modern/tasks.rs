//! The extension for tasks: what is declared, which calls become tasks, and what is done with those.

use std::time::Duration;

use serde_json::{Value, json};
use taskhold::domain::input::{Answer as WorkAnswer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::executor::Event;
use taskhold::lifecycle::spawn;

use crate::http::harness::{Service, engine_rules, until};
use crate::support::client::Answer;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::support::host::Answers;
use crate::support::modern::Modern;
use crate::support::script::ScriptedCall;
use crate::upstream::harness::within;

const TASKS: &str = "io.modelcontextprotocol/tasks";
/// A grace that is long enough for what has to come before its end, on a machine that is busy.
const LATER: Duration = Duration::from_secs(1);
const FORM: &str = r#"{"mode":"form","message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}"#;

async fn service(grace: Duration) -> Service {
    let mut rules = engine_rules();
    rules.grace = grace;
    Service::with(TestDatabase::new(Backend::Sqlite).await, rules).await
}

/// A client that takes tasks, and serves what it may be asked.
fn client(service: &Service, name: &str) -> Modern {
    Modern::new(&service.url, name).declaring(json!({ "elicitation": {}, "roots": {} })).with_tasks()
}

async fn get(client: &Modern, id: &Value) -> Value {
    client.request("tasks/get", json!({ "taskId": id })).await.result()
}

async fn update(client: &Modern, id: &Value, responses: &Value) -> Answer {
    client.request("tasks/update", json!({ "taskId": id, "inputResponses": responses })).await
}

async fn cancel(client: &Modern, id: &Value) -> Answer {
    client.request("tasks/cancel", json!({ "taskId": id })).await
}

/// A task at once, and its work.
async fn made(service: &Service, client: &Modern) -> (Value, ScriptedCall) {
    let created = client.call("eager", json!({})).await.result();
    assert_eq!(created["resultType"], "task", "{created}");
    (created["taskId"].clone(), service.script.next().await)
}

async fn until_status(client: &Modern, id: &Value, status: &str) -> Value {
    until(&format!("the task is {status}"), async || get(client, id).await["status"] == status).await;
    get(client, id).await
}

fn form() -> Question {
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(FORM)) }
}

fn ask(work: &ScriptedCall, question: Question) -> tokio::task::JoinHandle<WorkAnswer> {
    let host = work.host.clone();
    spawn("work", async move { host.answer_to(question).await })
}

fn progress(value: f64) -> Event {
    let params = json!({ "progressToken": 99, "progress": value, "message": format!("at {value}") });
    let message = Some(format!("at {value}"));
    Event::Progress { progress: value, total: None, message, params: RawJson::from_value(&params) }
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

// req: MOD-01
#[tokio::test]
async fn the_extension_is_declared_where_it_is_served() {
    let service = Service::on_sqlite().await;
    let declared = async |name: &str| {
        Modern::new(&service.url, name).request("server/discover", json!({})).await.result()["capabilities"].clone()
    };
    let capabilities = declared("owner").await;
    assert_eq!((&capabilities["extensions"], capabilities.get("tasks")), (&json!({ TASKS: {} }), None));
    // A tenant without tasks: nothing of them exists, and every tool runs plainly.
    assert_eq!(declared("a@plain").await.get("extensions"), None);
    let client = client(&service, "a@plain");
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let answer = client.request(method, json!({ "taskId": "x", "inputResponses": {} })).await;
        assert_eq!((answer.status, answer.error().0), (404, -32601), "{method}");
    }
    for tool in ["eager", "always"] {
        let (answer, ()) = tokio::join!(client.call(tool, json!({})), async {
            service.script.next().await.answer("plain");
        });
        assert_eq!(answer.result()["content"][0]["text"], "plain", "{tool}");
    }
}

// req: EXT-01, EXT-02, EXT-03, HTTP-13 (capabilities before parameters). Of MOD-15 what is about tasks.
#[tokio::test]
async fn a_task_is_made_for_those_alone_who_take_one() {
    let service = Service::on_sqlite().await;
    let (takes, silent) = (client(&service, "owner"), Modern::new(&service.url, "owner"));
    for tool in ["eager", "always"] {
        let answer = takes.call(tool, json!({})).await;
        let created = answer.result();
        assert_eq!(
            keys(&created),
            [
                "_meta",
                "createdAt",
                "lastUpdatedAt",
                "pollIntervalMs",
                "resultType",
                "status",
                "statusMessage",
                "taskId",
                "ttlMs"
            ]
        );
        assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
        assert_eq!((&created["ttlMs"], &created["pollIntervalMs"]), (&json!(3_600_000), &json!(1000)));
        assert!(!answer.is_stream(), "it is there at once");
        // It is there before it was told of.
        assert_eq!(get(&takes, &created["taskId"]).await["status"], "working");
        service.script.next().await.answer("done");
    }
    for params in [json!({ "name": "always" }), json!({ "name": "always", "arguments": [] })] {
        let refused = silent.request("tools/call", params).await;
        assert_eq!((refused.status, refused.error().0), (400, -32021));
        let required = &refused.json()["error"]["data"]["requiredCapabilities"];
        assert_eq!(required, &json!({ "extensions": { TASKS: {} } }));
    }
    for (client, tool) in [(&silent, "eager"), (&silent, "optional"), (&takes, "never"), (&takes, "optional")] {
        let (answer, ()) = tokio::join!(client.call(tool, json!({})), async {
            service.script.next().await.answer("plain");
        });
        let result = answer.result();
        assert_eq!((&result["resultType"], &result["content"][0]["text"]), (&json!("complete"), &json!("plain")));
    }
    let bad = takes.call("eager", json!({ "bad": 1 })).await.result();
    assert_eq!((&bad["isError"], &bad["resultType"]), (&json!(true), &json!("complete")));
    assert!(service.script.is_idle().await, "nothing that was refused has run");
    assert_eq!(service.client("owner").await.list().await.len(), 2);
}

// req: EXT-05, EXT-06, LIFE-11, LIFE-12
#[tokio::test]
async fn a_task_shows_what_its_call_would_have_answered() {
    const RESULT: &str = r#"{"content":[{"type":"text","text":"\u0000\ud800"}],"z":1e400,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"b":1.0}}"#;
    let service = Service::on_sqlite().await;
    let client = client(&service, "owner");
    let ours = taskhold::protocol::modern::results::OURS;
    let end = async |end: &dyn Fn(ScriptedCall)| {
        let (id, work) = made(&service, &client).await;
        end(work);
        let ended = async || client.request("tasks/get", json!({ "taskId": id })).await;
        until("the task ends", async || !ended().await.text().contains(r#""status":"working""#)).await;
        (id.clone(), ended().await)
    };
    let answered = |json: &'static str| {
        move |work: ScriptedCall| {
            work.end(taskhold::executor::Attempt::Answered(taskhold::domain::outcome::Outcome::Result {
                json: RawJson::trusted(json),
                is_error: json.contains("isError\":true"),
            }));
        }
    };
    let failed = |json: &'static str| {
        move |work: ScriptedCall| {
            let json = RawJson::trusted(json);
            work.end(taskhold::executor::Attempt::Answered(taskhold::domain::outcome::Outcome::Error { json }));
        }
    };
    let (_, shown) = end(&answered(RESULT)).await;
    let inlined = format!(
        r#""result":{{"content":[{{"type":"text","text":"\u0000\ud800"}}],"z":1e400,"_meta":{{"b":1.0,"io.modelcontextprotocol/serverInfo":{ours}}},"resultType":"complete"}},"resultType":"complete""#
    );
    assert!(shown.text().contains(&inlined) && shown.text().contains(r#""status":"completed""#), "{}", shown.text());
    let (id, shown) = end(&answered(r#"{"content":[{"type":"text","text":"disk full"}],"isError":true}"#)).await;
    let shown = shown.result();
    assert_eq!((&shown["status"], &shown["result"]["isError"]), (&json!("completed"), &json!(true)));
    assert_eq!(shown["statusMessage"], "disk full");
    let legacy = service.client("owner").await;
    assert_eq!(legacy.get(&id).await.result()["status"], "failed", "the same task in the handshake era");
    let (_, shown) = end(&failed(r#"{"code":-32011,"message":"no such city","data":{"x":1}}"#)).await;
    let shown = shown.result();
    assert_eq!((&shown["status"], &shown["statusMessage"]), (&json!("failed"), &json!("no such city")));
    assert_eq!(shown["error"], json!({ "code": -32011, "message": "no such city", "data": { "x": 1 } }));
    assert_eq!(shown.get("result"), None);
    let (id, shown) = end(&failed(r#"{"code":-32042,"message":"go there","data":{}}"#)).await;
    assert_eq!(shown.result()["error"]["code"], -32603);
    assert!(legacy.result(&id).await.text().contains("-32042"), "an upstream's error stays what it was there");
}

// req: EXT-07, LIFE-07
#[tokio::test]
async fn a_cancel_is_acknowledged_whenever_it_comes() {
    let service = Service::on_sqlite().await;
    let client = client(&service, "owner");
    let (id, work) = made(&service, &client).await;
    let ack = cancel(&client, &id).await;
    assert_eq!(
        (ack.status, keys(&ack.result()), &ack.result()["resultType"]),
        (200, vec!["_meta", "resultType"], &json!("complete"))
    );
    within("the work to be stopped", work.stop.cancelled()).await;
    work.answer("too late");
    let shown = get(&client, &id).await;
    assert_eq!((&shown["status"], shown.get("result"), shown.get("error")), (&json!("cancelled"), None, None));
    assert_eq!(cancel(&client, &id).await.outcome(), ack.outcome());
    assert_eq!(get(&client, &id).await, shown, "it stays as it is");
    let (id, work) = made(&service, &client).await;
    work.answer("done");
    until_status(&client, &id, "completed").await;
    assert_eq!(cancel(&client, &id).await.outcome(), ack.outcome());
    assert_eq!(get(&client, &id).await["status"], "completed");
}

// req: INPUT-08, INPUT-09, INPUT-13 (modern half)
#[tokio::test]
async fn questions_are_answered_by_their_keys() {
    let service = Service::on_sqlite().await;
    let client = client(&service, "owner");
    let (id, work) = made(&service, &client).await;
    let asked = ask(&work, form());
    let roots = ask(&work, Question { kind: InputKind::Roots, params: None });
    until("both are asked", async || {
        get(&client, &id).await["inputRequests"].as_object().is_some_and(|open| open.len() == 2)
    })
    .await;
    let shown = get(&client, &id).await;
    assert_eq!((&shown["status"], shown.get("result")), (&json!("input_required"), None));
    let key_of = |method: &str| {
        let requests = shown["inputRequests"].as_object().unwrap();
        requests.iter().find(|(_, request)| request["method"] == method).unwrap().0.clone()
    };
    let (form_key, roots_key) = (key_of("elicitation/create"), key_of("roots/list"));
    assert_eq!(shown["inputRequests"][&form_key]["params"], serde_json::from_str::<Value>(FORM).unwrap());
    assert_eq!(get(&client, &id).await, shown, "keys stay");
    // Wrong in form or by the schema: nothing of it is used.
    for bad in [json!(7), json!({}), json!({ "action": "accept", "content": { "n": "x" } })] {
        let refused = update(&client, &id, &json!({ &roots_key: { "roots": [] }, &form_key: bad })).await;
        let (code, message) = refused.error();
        assert!((refused.status, code) == (200, -32602) && message.contains(&form_key), "{message}");
    }
    for bad in [json!(null), json!([]), json!("x")] {
        assert_eq!(update(&client, &id, &bad).await.error().0, -32602, "{bad}");
    }
    assert_eq!(client.request("tasks/update", json!({ "taskId": id })).await.error().0, -32602);
    assert_eq!(get(&client, &id).await, shown);
    // A part, with what nobody knows.
    let accepted = json!({ "action": "accept", "content": { "n": 3 } });
    let ack = update(&client, &id, &json!({ &form_key: accepted, "unknown": { "ignored": true } })).await;
    assert_eq!((keys(&ack.result()), &ack.result()["resultType"]), (vec!["_meta", "resultType"], &json!("complete")));
    let partial = get(&client, &id).await;
    assert_eq!(
        (&partial["status"], keys(&partial["inputRequests"])),
        (&json!("input_required"), vec![roots_key.as_str()])
    );
    let WorkAnswer::Result(given) = asked.await.unwrap() else { panic!("an answer") };
    assert_eq!(serde_json::from_str::<Value>(given.as_str()).unwrap(), accepted);
    update(&client, &id, &json!({ &roots_key: { "roots": [{ "uri": "file:///a" }] } })).await.result();
    roots.await.unwrap();
    let working = get(&client, &id).await;
    assert_eq!((&working["status"], working.get("inputRequests")), (&json!("working"), None));
    update(&client, &id, &json!({ &form_key: accepted })).await.result();
    assert_eq!(get(&client, &id).await, working, "a repeated one changes nothing");
    // Keys are never given again.
    let again = ask(&work, Question { kind: InputKind::Roots, params: None });
    let shown = until_status(&client, &id, "input_required").await;
    assert!(![form_key.as_str(), roots_key.as_str()].contains(&keys(&shown["inputRequests"])[0]));
    work.answer("done without it");
    until_status(&client, &id, "completed").await;
    update(&client, &id, &json!({ keys(&shown["inputRequests"])[0]: { "roots": [] } })).await.result();
    drop(again);
}

// req: EXT-08, EXT-09, AUTH-02, LIFE-05, HTTP-13
#[tokio::test]
async fn a_task_is_its_owners_alone() {
    let service = Service::on_sqlite().await;
    let (owner, stranger) = (client(&service, "owner"), client(&service, "stranger"));
    let (id, work) = made(&service, &owner).await;
    let text = id.as_str().unwrap();
    assert!(text.len() == 36 && text.as_bytes()[14] == b'4', "122 random bits: {text}");
    let params = |id: &Value| json!({ "taskId": id, "inputResponses": {} });
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let mut refusals = Vec::new();
        for unknown in
            [id.clone(), json!("00000000-0000-4000-8000-000000000000"), json!("tasks-nonexistent-1"), json!("")]
        {
            let refused = stranger.request(method, params(&unknown)).await;
            assert_eq!((refused.status, refused.error().0), (200, -32602), "{method} {unknown}");
            refusals.push(refused.outcome());
        }
        refusals.dedup();
        assert_eq!(refusals.len(), 1, "a foreign task is a missing one");
        // Without the declaration nothing is said of the id.
        let silent = Modern::new(&service.url, "stranger");
        for id in [&id, &json!("x"), &json!(7)] {
            let refused = silent.request(method, params(id)).await;
            assert_eq!((refused.status, refused.error().0), (400, -32021), "{method} {id}");
            let required = refused.json()["error"]["data"]["requiredCapabilities"].clone();
            assert_eq!(required, json!({ "extensions": { TASKS: {} } }));
        }
        for bad in [json!(7), json!(null)] {
            assert_eq!(owner.request(method, params(&bad)).await.error().0, -32602, "{method} {bad}");
        }
    }
    assert!(!work.stop.is_cancelled());
    assert_eq!(get(&owner, &id).await["status"], "working");
}

// req: EXT-10
// field case: F-HTTP-09
#[tokio::test]
async fn a_name_header_says_which_task() {
    let service = Service::on_sqlite().await;
    let client = client(&service, "owner");
    let (id, _work) = made(&service, &client).await;
    let text = id.as_str().unwrap().to_owned();
    for (served, method) in [(0, "tasks/get"), (1, "tasks/update"), (2, "tasks/cancel")] {
        let draft = || client.draft(method, json!({ "taskId": id, "inputResponses": {} }));
        let base64 = format!("=?base64?{}?=", data_encoding::BASE64.encode(text.as_bytes()));
        for wrong in ["x", &text.to_uppercase(), "=?base64?eA==?=", "=?base64?!?="] {
            let refused = client.send(draft().with("mcp-name", wrong)).await;
            assert_eq!((refused.status, refused.error().0), (400, -32020), "{method} {wrong}");
        }
        assert_eq!(client.send(draft().also("mcp-name", &text)).await.status, 400, "{method}: twice");
        for fine in [draft(), draft().without("mcp-name"), draft().with("mcp-name", &base64)] {
            assert_eq!(client.send(fine).await.result()["resultType"], "complete", "{method}");
        }
        assert_eq!(service.front.counts.unnamed_task_requests(), served + 1, "{method}: the one without is counted");
    }
}

// req: EXT-04, NOTE-03 (modern half)
#[tokio::test]
async fn a_call_that_outlasts_its_grace_is_answered_by_its_task() {
    let service = service(LATER).await;
    let client = client(&service, "owner");
    // As JSON.
    let (answer, work) = tokio::join!(client.call("optional", json!({})), service.script.next());
    let created = answer.result();
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
    work.answer("done");
    let shown = until_status(&client, &created["taskId"], "completed").await;
    assert_eq!(shown["result"]["content"][0]["text"], "done");
    // On a stream: progress before the task is returned, and none after.
    let params = json!({ "name": "optional", "_meta": { "progressToken": 5 } });
    let reader = {
        let client = client.clone();
        spawn("client", async move { client.stream("tools/call", params).await })
    };
    let work = service.script.next().await;
    work.host.tell(progress(1.0));
    let mut stream: Events = reader.await.unwrap();
    stream.until("notifications/progress").await;
    let rest = stream.rest().await;
    let created = &rest.last().unwrap()["result"];
    assert_eq!(created["resultType"], "task");
    work.host.tell(progress(2.0));
    until("it is the task's message", async || get(&client, &created["taskId"]).await["statusMessage"] == "at 2").await;
    assert!(service.script.is_idle().await, "nothing is run twice");
    work.answer("done");
    until_status(&client, &created["taskId"], "completed").await;
    // Who takes none waits for the end, however long others have waited since.
    let silent = Modern::new(&service.url, "owner");
    let waiting = spawn("client", async move { silent.call("optional", json!({})).await });
    let work = service.script.next().await;
    let (later, other) = tokio::join!(client.call("optional", json!({})), service.script.next());
    assert_eq!(later.result()["resultType"], "task");
    other.answer("done");
    work.answer("plain");
    assert_eq!(waiting.await.unwrap().result()["content"][0]["text"], "plain");
}

// req: MOD-10
#[tokio::test]
async fn leaving_cancels_what_was_not_answered_and_nothing_else() {
    let service = service(LATER).await;
    let client = client(&service, "owner");
    let call = |client: &Modern| {
        let client = client.clone();
        spawn("client", async move { client.call("optional", json!({})).await })
    };
    let leaving = call(&client);
    let work = service.script.next().await;
    leaving.abort();
    within("the work to be stopped", work.stop.cancelled()).await;
    let legacy = service.client("owner").await;
    let live = async || {
        let tasks = legacy.request("tasks/list", json!({})).await.result();
        tasks["tasks"].as_array().unwrap().iter().filter(|task| task["status"] == "working").count()
    };
    assert_eq!(live().await, 0);
    // With the handle in hand nothing of the connection counts any more.
    let (answer, work) = tokio::join!(client.call("optional", json!({})), service.script.next());
    let id = answer.result()["taskId"].clone();
    drop(answer);
    let cancelled = client.draft("notifications/cancelled", json!({ "requestId": 1 }));
    let mut notification = cancelled.clone();
    notification.body.as_object_mut().unwrap().remove("id");
    assert_eq!(client.begin(&notification).await.status().as_u16(), 202);
    let elsewhere = Modern::new(&service.url, "owner").with_tasks();
    assert_eq!(get(&elsewhere, &id).await["status"], "working");
    assert!(!work.stop.is_cancelled());
    work.answer("done");
    until_status(&elsewhere, &id, "completed").await;
}

// req: LIFE-13, INPUT-10
#[tokio::test]
async fn a_task_is_the_same_in_both_eras() {
    let service = Service::on_sqlite().await;
    let (modern, legacy) = (client(&service, "owner"), service.client("owner").await);
    // Made here, seen there.
    let (id, work) = made(&service, &modern).await;
    assert_eq!(legacy.get(&id).await.result()["status"], "working");
    assert_eq!(legacy.list().await, std::slice::from_ref(&id));
    work.answer("for both");
    assert_eq!(legacy.result(&id).await.result()["content"][0]["text"], "for both");
    // Made there, answered and cancelled here.
    let id = legacy.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let asked = ask(&work, Question { kind: InputKind::Roots, params: None });
    // Its maker declared nothing of it, and the work is told so.
    assert!(matches!(asked.await.unwrap(), WorkAnswer::Error(_)));
    assert_eq!(get(&modern, &id).await["status"], "working");
    cancel(&modern, &id).await.result();
    within("the work to be stopped", work.stop.cancelled()).await;
    assert_eq!(legacy.get(&id).await.result()["status"], "cancelled");
    let (id, work) = made(&service, &modern).await;
    legacy.cancel(&id).await.result();
    within("the work to be stopped", work.stop.cancelled()).await;
    assert_eq!(get(&modern, &id).await["status"], "cancelled");
}

// req: MOD-08
#[tokio::test]
async fn the_methods_of_the_other_era_do_not_exist() {
    let service = Service::on_sqlite().await;
    let client = client(&service, "owner");
    let (id, _work) = made(&service, &client).await;
    for method in ["tasks/list", "tasks/result"] {
        let refused = client.request(method, json!({ "taskId": id })).await;
        assert_eq!((refused.status, refused.error().0), (404, -32601), "{method}");
    }
    let session = service.client("owner").await;
    let refused = session.request("tasks/update", json!({ "taskId": id, "inputResponses": {} })).await;
    assert_eq!((refused.status, refused.error().0), (200, -32601));
}
