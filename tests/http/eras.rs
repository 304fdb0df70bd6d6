//! One task, two eras: what one of them made is read, listed, answered and cancelled in the other.

use serde_json::{Value, json};
use taskhold::domain::input::Answer as WorkAnswer;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::Attempt;

use super::harness::{Service, until};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::events::Events;
use crate::support::modern::Modern;
use crate::support::script::{ScriptedCall, how_many};
use crate::upstream::harness::within;

contract! {
    each_era_sees_the_tasks_of_the_other,
    an_end_is_told_as_its_reader_knows_it,
    each_era_cancels_the_tasks_of_the_other,
    a_question_of_a_session_is_answered_without_one,
    a_question_of_a_request_is_answered_in_a_session,
}

const TASKS: &str = "io.modelcontextprotocol/tasks";

/// The same caller in each era, who can be asked for a form.
struct Both {
    modern: Modern,
    legacy: Client,
}

#[derive(Debug, Clone, Copy)]
enum Era {
    Modern,
    Legacy,
}

impl Both {
    async fn of(service: &Service, name: &str) -> Self {
        Self {
            modern: Modern::new(&service.url, name).declaring(json!({ "elicitation": {} })).with_tasks(),
            legacy: Client::capable(&service.url, name).await,
        }
    }

    /// A task that was made in this era, and its work.
    async fn made(&self, service: &Service, era: Era) -> (Value, ScriptedCall) {
        let task = match era {
            Era::Modern => self.modern.call("eager", json!({})).await.result(),
            Era::Legacy => self.legacy.task("eager", json!({})).await,
        };
        (task["taskId"].clone(), service.script.next().await)
    }

    async fn look(&self, id: &Value) -> Value {
        self.modern.request("tasks/get", json!({ "taskId": id })).await.result()
    }

    async fn until_status(&self, id: &Value, status: &str) -> Value {
        until(&format!("the task is {status}"), async || self.look(id).await["status"] == status).await;
        self.look(id).await
    }

    async fn update(&self, id: &Value, key: &str, answer: &Value) {
        let params = json!({ "taskId": id, "inputResponses": { key: answer } });
        assert_eq!(self.modern.request("tasks/update", params).await.result()["resultType"], "complete");
    }
}

fn answered(json: &str, is_error: bool) -> Attempt {
    Attempt::Answered(Outcome::Result { json: RawJson::trusted(json), is_error })
}

// req: LIFE-13, LIFE-08, LIFE-09, TASK-19
// field case: F-P26-11
async fn each_era_sees_the_tasks_of_the_other(database: TestDatabase) {
    let service = Service::start(database).await;
    let both = Both::of(&service, "owner").await;
    let (one, first) = both.made(&service, Era::Modern).await;
    let (two, second) = both.made(&service, Era::Legacy).await;
    assert_eq!(both.legacy.list().await, [two.clone(), one.clone()], "the list has them all");
    for id in [&one, &two] {
        let (new, old) = (both.look(id).await, both.legacy.get(id).await.result());
        for (ours, theirs) in [
            ("taskId", "taskId"),
            ("status", "status"),
            ("statusMessage", "statusMessage"),
            ("createdAt", "createdAt"),
            ("lastUpdatedAt", "lastUpdatedAt"),
            ("pollIntervalMs", "pollInterval"),
        ] {
            assert!(new.get(ours).is_some() && new[ours] == old[theirs], "{ours}: {new} {old}");
        }
        let (ttl_ms, ttl) = (new["ttlMs"].as_u64().unwrap(), old["ttl"].as_u64().unwrap());
        assert!(ttl_ms.abs_diff(ttl) <= 1000, "looked at one after the other: {new} {old}");
        let listed = both.legacy.request("tasks/list", json!({})).await.result();
        let listed = listed["tasks"].as_array().unwrap().iter().find(|task| task["taskId"] == *id).unwrap().clone();
        assert_eq!((&listed["status"], &listed["createdAt"]), (&old["status"], &old["createdAt"]));
    }
    // Another node tells the same.
    let there = service.another_node().await;
    let elsewhere = Modern { url: there.url.clone(), ..both.modern.clone() };
    let seen = elsewhere.request("tasks/get", json!({ "taskId": two })).await.result();
    assert_eq!((&seen["taskId"], &seen["status"]), (&two, &json!("working")));
    // Neither era tells of the other's way to tasks, and a word of one means nothing in the other.
    let discovered = both.modern.request("server/discover", json!({})).await.result()["capabilities"].clone();
    assert_eq!((&discovered["extensions"], discovered.get("tasks")), (&json!({ TASKS: {} }), None));
    let mut odd = Client { capabilities: both.modern.capabilities.clone(), ..both.legacy.clone() };
    odd.session = None;
    let declared = odd.initialize("2025-11-25").await["capabilities"].clone();
    assert!(declared["tasks"].is_object() && declared.get("extensions").is_none(), "{declared}");
    let (plain, ()) = tokio::join!(odd.call("eager", json!({})), async {
        service.script.next().await.answer("plain");
    });
    assert_eq!(plain.result()["content"][0]["text"], "plain", "the extension in a session makes no task");
    assert_eq!(odd.list().await.len(), 2);
    first.answer("done");
    second.answer("done");
    for id in [&one, &two] {
        assert_eq!(both.until_status(id, "completed").await["result"]["content"][0]["text"], "done");
        assert_eq!(both.legacy.result(id).await.result()["content"][0]["text"], "done");
    }
}

// req: LIFE-12, LIFE-11, TASK-26
// field case: F-P26-04
async fn an_end_is_told_as_its_reader_knows_it(database: TestDatabase) {
    const FAILED: &str =
        r#"{"content":[{"type":"text","text":"disk full"}],"isError":true,"structuredContent":{"free":0}}"#;
    const REFUSED: &str = r#"{"code":-32011,"message":"no such city","data":{"x":1}}"#;
    let service = Service::start(database).await;
    let both = Both::of(&service, "owner").await;
    for era in [Era::Modern, Era::Legacy] {
        let (id, work) = both.made(&service, era).await;
        work.end(answered(FAILED, true));
        let new = both.until_status(&id, "completed").await;
        let shown = (&new["result"]["isError"], &new["result"]["structuredContent"], &new["statusMessage"]);
        assert_eq!(shown, (&json!(true), &json!({ "free": 0 }), &json!("disk full")), "{era:?}");
        assert_eq!(new.get("error"), None, "a result and an error are never there together");
        let old = both.legacy.get(&id).await.result();
        assert_eq!((&old["status"], &old["statusMessage"]), (&json!("failed"), &json!("disk full")));
        let result = both.legacy.result(&id).await.result();
        assert_eq!((&result["isError"], &result["content"]), (&json!(true), &new["result"]["content"]), "{era:?}");

        let (id, work) = both.made(&service, era).await;
        work.end(Attempt::Answered(Outcome::Error { json: RawJson::trusted(REFUSED) }));
        let new = both.until_status(&id, "failed").await;
        let error: Value = serde_json::from_str(REFUSED).unwrap();
        assert_eq!((&new["error"], new.get("result")), (&error, None), "{era:?}");
        assert_eq!(new["statusMessage"], "no such city");
        assert_eq!(both.legacy.get(&id).await.result()["status"], "failed");
        assert_eq!(both.legacy.result(&id).await.outcome(), format!(r#"{{"error":{REFUSED}}}"#), "{era:?}");
    }
}

// req: LIFE-13, LIFE-07, TASK-13, TASK-15, EXT-07
// field case: F-P26-11
async fn each_era_cancels_the_tasks_of_the_other(database: TestDatabase) {
    let service = Service::start(database).await;
    let both = Both::of(&service, "owner").await;
    let cancel = async |id: &Value| both.modern.request("tasks/cancel", json!({ "taskId": id })).await;
    let (id, work) = both.made(&service, Era::Legacy).await;
    assert_eq!(cancel(&id).await.result()["resultType"], "complete");
    within("the work to be stopped", work.stop.cancelled()).await;
    work.answer("too late");
    assert_eq!(both.legacy.get(&id).await.result()["status"], "cancelled");
    assert_eq!(both.legacy.result(&id).await.error().0, -32800);
    assert_eq!(both.legacy.cancel(&id).await.error().0, -32602, "here it is an error");
    assert_eq!(cancel(&id).await.status, 200, "and there it is none");
    let (id, work) = both.made(&service, Era::Modern).await;
    assert_eq!(both.legacy.cancel(&id).await.result()["status"], "cancelled");
    within("the work to be stopped", work.stop.cancelled()).await;
    work.answer("too late");
    let shown = both.look(&id).await;
    assert_eq!((&shown["status"], shown.get("result"), shown.get("error")), (&json!("cancelled"), None, None));
    // What no caller of the other era may do it may not do in this one.
    let stranger = Both::of(&service, "stranger").await;
    let (id, work) = both.made(&service, Era::Legacy).await;
    let refused = stranger.modern.request("tasks/cancel", json!({ "taskId": id })).await;
    assert_eq!(refused.error().0, -32602);
    assert_eq!((stranger.legacy.cancel(&id).await.error().0, work.stop.is_cancelled()), (-32602, false));
    work.answer("done");
}

// req: INPUT-10, INPUT-12, LIFE-13
// field case: F-P26-11
async fn a_question_of_a_session_is_answered_without_one(database: TestDatabase) {
    let service = Service::start(database).await;
    let both = Both::of(&service, "owner").await;
    let mut stream = Events::of_session(&both.legacy).await;
    let (id, work) = both.made(&service, Era::Legacy).await;
    let asked = work.ask(how_many());
    let sent = stream.until("elicitation/create").await;
    let waiting = both.until_status(&id, "input_required").await;
    let requests = waiting["inputRequests"].as_object().unwrap();
    let (key, shown) = requests.iter().next().unwrap();
    assert_eq!((requests.len(), &shown["params"]["message"]), (1, &json!("How many?")));
    let answer = json!({ "action": "accept", "content": { "n": 3 } });
    both.update(&id, key, &answer).await;
    let WorkAnswer::Result(given) = within("the work to be answered", asked).await.unwrap() else {
        panic!("an answer")
    };
    assert_eq!(serde_json::from_str::<Value>(given.as_str()).unwrap(), answer);
    // Its session holds the question, and is told that nobody waits for the answer any more.
    let withdrawn = stream.until("notifications/cancelled").await;
    assert_eq!(withdrawn["params"]["requestId"], sent["id"]);
    assert_eq!(both.legacy.respond(&sent["id"], &json!({ "action": "decline" })).await.status, 202);
    assert_eq!(both.legacy.get(&id).await.result()["status"], "working");
    work.answer("done");
    assert_eq!(both.until_status(&id, "completed").await["result"]["content"][0]["text"], "done");
}

// req: INPUT-10, INPUT-02, LIFE-13
// field case: F-P26-11
async fn a_question_of_a_request_is_answered_in_a_session(database: TestDatabase) {
    let service = Service::start(database).await;
    let both = Both::of(&service, "owner").await;
    let (id, work) = both.made(&service, Era::Modern).await;
    let asked = work.ask(how_many());
    let key = both.until_status(&id, "input_required").await["inputRequests"].as_object().unwrap().clone();
    assert_eq!(both.legacy.get(&id).await.result()["status"], "input_required");
    // Whoever waits for its result is asked.
    let request = both.legacy.message("tasks/result", &json!({ "taskId": id }));
    let mut waits = Events::of_request(&both.legacy, request).await;
    let sent = waits.until("elicitation/create").await;
    assert_eq!(sent["params"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id);
    assert_eq!(both.legacy.respond(&sent["id"], &json!({ "action": "decline" })).await.status, 202);
    let WorkAnswer::Result(given) = within("the work to be answered", asked).await.unwrap() else {
        panic!("an answer")
    };
    assert_eq!(given.as_str(), r#"{"action":"decline"}"#);
    // What comes by its key afterwards is late.
    let working = both.look(&id).await;
    assert_eq!((&working["status"], working.get("inputRequests")), (&json!("working"), None));
    let (key, _) = key.iter().next().unwrap();
    both.update(&id, key, &json!({ "action": "accept", "content": { "n": 3 } })).await;
    assert_eq!(both.look(&id).await, working);
    work.answer("done");
    let last = waits.rest().await;
    assert_eq!(last.last().unwrap()["result"]["content"][0]["text"], "done");
}
