//! Every method of the stateless era, asked without a good token and by those whom it is none of their business.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use taskhold::protocol::modern::Method;

use crate::http::harness::{Service, until};
use crate::support::client::Answer;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::modern::Modern;
use crate::support::script::how_many;

contract! {
    nobody_learns_anything_without_a_good_token_in_either_era,
    others_see_what_is_not_there_in_either_era,
}

const MISSING: &str = "786512e2-9e0d-44bd-8f29-789f320fe840";

type Params = fn(&str) -> Value;

/// Each method that is served, aimed at a task.
const METHODS: [(Method, Params); 13] = [
    (Method::Discover, |_| json!({})),
    (Method::ToolsList, |task| json!({ "cursor": task })),
    (
        Method::ToolsCall,
        |task| json!({ "name": "optional", "arguments": { "bad": task.len() }, "task": { "taskId": task } }),
    ),
    (Method::PromptsList, |task| json!({ "cursor": task })),
    (Method::PromptsGet, |task| json!({ "name": task })),
    (Method::ResourcesList, |task| json!({ "cursor": task })),
    (Method::ResourceTemplatesList, |task| json!({ "cursor": task })),
    (Method::ResourcesRead, |task| json!({ "uri": task })),
    (Method::Complete, |task| json!({ "ref": { "type": "ref/prompt", "name": task }, "argument": {} })),
    // A filter that is refused: what is honoured has no end.
    (Method::Listen, |task| json!({ "notifications": { "toolsListChanged": task.len() } })),
    (Method::TasksGet, |task| json!({ "taskId": task })),
    (Method::TasksUpdate, |task| json!({ "taskId": task, "inputResponses": {} })),
    (Method::TasksCancel, |task| json!({ "taskId": task })),
];

#[test]
fn the_table_of_the_stateless_era_is_complete() {
    let methods: BTreeSet<_> = METHODS.iter().map(|(method, _)| *method).collect();
    assert_eq!((methods, METHODS.len()), (BTreeSet::from(Method::ALL), Method::ALL.len()));
}

/// All that tells answers apart, but the date and what was asked.
fn told(answer: &Answer, asked: &str) -> String {
    let mut headers = answer.headers.clone();
    for name in ["date", "content-length"] {
        headers.remove(name);
    }
    format!("{} {headers:?} {}", answer.status, answer.body.replace(asked, "(asked)"))
}

async fn ask(client: &Modern, method: Method, params: Value) -> Answer {
    let mut draft = client.draft(method.as_str(), params);
    draft.body["id"] = json!(1);
    client.send(draft).await
}

// req: AUTH-01
async fn nobody_learns_anything_without_a_good_token_in_either_era(database: TestDatabase) {
    let service = Service::start(database).await;
    let task = service.client("owner").await.task("optional", json!({})).await;
    let work = service.script.next().await;
    let before = service.database.rows().await;
    let client = Modern::new(&service.url, "owner").with_tasks();
    for token in [None, Some("wrong".to_owned())] {
        let client = Modern { token, ..client.clone() };
        let mut answers = BTreeSet::new();
        for (method, params) in METHODS {
            let answer = ask(&client, method, params(task["taskId"].as_str().unwrap())).await;
            assert_eq!((answer.status, answer.body.as_str()), (401, ""), "{method:?}");
            answers.insert(told(&answer, "-"));
        }
        assert_eq!(answers.len(), 1, "the message makes no difference: {answers:?}");
    }
    assert_eq!(service.database.rows().await, before);
    assert!(!work.stop.is_cancelled() && service.script.is_idle().await);
}

// req: AUTH-03, AUTH-04
async fn others_see_what_is_not_there_in_either_era(database: TestDatabase) {
    let service = Service::start(database).await;
    let owner = service.client("owner").await;
    let task = owner.task("optional", json!({})).await;
    let work = service.script.next().await;
    let task = owner.get(&task["taskId"]).await.result();
    let id = task["taskId"].as_str().unwrap();
    let stranger = Modern::new(&service.url, "stranger").with_tasks();
    for (method, params) in METHODS {
        let (theirs, missing) =
            (ask(&stranger, method, params(id)).await, ask(&stranger, method, params(MISSING)).await);
        assert_eq!(told(&theirs, id), told(&missing, MISSING), "{method:?}");
    }
    assert!(!work.stop.is_cancelled() && service.script.is_idle().await);
    assert_eq!(owner.get(&json!(id)).await.result(), task);
    // Neither is what it asks: the right key opens nothing to others.
    let asks = Modern::new(&service.url, "owner").declaring(json!({ "elicitation": {} })).with_tasks();
    let asking = asks.call("eager", json!({})).await.result()["taskId"].clone();
    let its_work = service.script.next().await;
    let asked = its_work.ask(how_many());
    let look = async || asks.request("tasks/get", json!({ "taskId": asking })).await.result();
    until("it asks", async || look().await["status"] == "input_required").await;
    let shown = look().await;
    let key = shown["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let mut told_of = Vec::new();
    for id in [asking.as_str().unwrap(), MISSING] {
        for answer in [json!({ "action": "decline" }), json!({ "action": "accept", "content": { "n": "no number" } })] {
            let params = json!({ "taskId": id, "inputResponses": { key: answer } });
            told_of.push(told(&ask(&stranger, Method::TasksUpdate, params).await, id));
        }
    }
    told_of.dedup();
    assert_eq!(told_of.len(), 1, "{told_of:?}");
    assert!(!asked.is_finished());
    assert_eq!(look().await, shown);
    work.answer("done");
    owner.until_status(&json!(id), "completed").await;
}
