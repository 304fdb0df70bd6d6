//! Requests that are answered by what they ask, and come again with it.

use std::time::Duration;

use serde_json::{Value, json};
use taskhold::domain::input::{Answer as WorkAnswer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::mode::TaskMode;
use taskhold::executor::Tool;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::lifecycle::spawn;

use crate::http::harness::{Gateway, Service, engine_rules, tools, until};
use crate::relay::heard;
use crate::support::client::Answer;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::host::Answers;
use crate::support::modern::Modern;
use crate::support::script::{ScriptedCall, tool};
use crate::upstream::harness::{script, settings, within};

contract! {
    a_call_asks_by_its_answer_and_goes_on_at_another_node,
    what_a_tool_asks_first_comes_before_its_task,
}

const FORM: &str = r#"{"mode":"form","message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]},"x":1.0}"#;

pub fn client(url: &str, name: &str) -> Modern {
    Modern::new(url, name).declaring(json!({ "elicitation": {}, "roots": {} }))
}

pub fn form() -> Question {
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(FORM)) }
}

pub fn accepted(n: u32) -> Value {
    json!({ "action": "accept", "content": { "n": n } })
}

fn ask(work: &ScriptedCall, question: Question) -> tokio::task::JoinHandle<WorkAnswer> {
    let host = work.host.clone();
    spawn("work", async move { host.answer_to(question).await })
}

/// The params of a call that comes again with these answers.
pub fn again(params: &Value, asked: &Value, answer: &Value) -> Value {
    let mut params = params.clone();
    let keys = asked["inputRequests"].as_object().unwrap().keys();
    params["inputResponses"] = keys.map(|key| (key.clone(), answer.clone())).collect::<serde_json::Map<_, _>>().into();
    params["requestState"] = asked["requestState"].clone();
    params
}

/// The first answer to a call whose work asks, and the work.
async fn parked(
    service: &Service,
    client: &Modern,
    params: &Value,
) -> (Value, ScriptedCall, tokio::task::JoinHandle<WorkAnswer>) {
    let (answer, (work, asked)) = tokio::join!(client.request("tools/call", params.clone()), async {
        let work = service.script.next().await;
        let asked = ask(&work, form());
        (work, asked)
    });
    assert_eq!(answer.status, 200);
    let result = answer.result();
    assert_eq!(result["resultType"], "input_required", "{result}");
    (result, work, asked)
}

pub fn refused(answer: &Answer) -> String {
    let (code, message) = answer.error();
    assert_eq!((answer.status, code), (200, -32602), "{answer:?}");
    assert!(message.contains("requestState"), "{message}");
    message
}

async fn a_call_asks_by_its_answer_and_goes_on_at_another_node(database: TestDatabase) {
    let service = Service::start(database).await;
    let other = service.another_node().await;
    let (here, there) = (client(&service.url, "owner"), client(&other.url, "owner"));
    let params = json!({ "name": "optional", "arguments": { "a": 1 } });
    let (asked, work, answer) = parked(&service, &here, &params).await;
    let members: Vec<_> = asked.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, ["_meta", "inputRequests", "requestState", "resultType"]);
    let questions = asked["inputRequests"].as_object().unwrap();
    let question = questions.values().next().unwrap();
    assert_eq!((questions.len(), &question["method"]), (1, &json!("elicitation/create")));
    assert_eq!(question["params"], serde_json::from_str::<Value>(FORM).unwrap());
    // The same request at another node: the work has the answer, asks more, and that comes out there.
    let second = {
        let (there, params) = (there.clone(), again(&params, &asked, &accepted(3)));
        spawn("client", async move { there.request("tools/call", params).await.result() })
    };
    let given = within("the answer", answer).await.unwrap();
    assert_eq!(given, WorkAnswer::Result(RawJson::trusted(r#"{"action":"accept","content":{"n":3}}"#)));
    let more = ask(&work, Question { kind: InputKind::Roots, params: None });
    let next = within("the next round", second).await.unwrap();
    assert_eq!(next["resultType"], "input_required");
    assert_ne!(next["requestState"], asked["requestState"]);
    let question = next["inputRequests"].as_object().unwrap().values().next().unwrap();
    assert_eq!(question, &json!({ "method": "roots/list" }));
    let last = {
        let (there, params) = (there.clone(), again(&params, &next, &json!({ "roots": [] })));
        spawn("client", async move { there.request("tools/call", params).await })
    };
    assert_eq!(within("the roots", more).await.unwrap(), WorkAnswer::Result(RawJson::trusted(r#"{"roots":[]}"#)));
    work.answer("done");
    let done = within("the end", last).await.unwrap().result();
    assert_eq!((&done["resultType"], &done["content"][0]["text"]), (&json!("complete"), &json!("done")));
    assert!(done.get("requestState").is_none() && done.get("inputRequests").is_none());
    assert!(service.client("owner").await.list().await.is_empty(), "it was never a task");
}

// req: EXT-11
// field case: F-P26-13
async fn what_a_tool_asks_first_comes_before_its_task(database: TestDatabase) {
    let mut rules = engine_rules();
    // What comes within them has to be stored before they are over.
    rules.grace = Duration::from_secs(1);
    rules.rounds.timeout = Duration::from_secs(5);
    let asks_first = Tool { ask_first: true, ..tool("asks_first", TaskMode::Always, RestartPolicy::Fail) };
    let service = Service::offering(database, rules, tools().into_iter().chain([asks_first]).collect()).await;
    let (owner, stranger) = (client(&service.url, "owner").with_tasks(), client(&service.url, "other").with_tasks());
    let params = json!({ "name": "asks_first", "arguments": { "a": 1 } });
    let answer = client(&service.url, "owner").request("tools/call", params.clone()).await;
    assert_eq!((answer.status, answer.error().0), (400, -32021), "whoever takes no tasks does not get that far");
    let (asked, work, given) = parked(&service, &owner, &params).await;
    assert!(asked.get("taskId").is_none());
    let tasks = async || service.client("owner").await.list().await.len();
    assert_eq!(tasks().await, 0);
    let retry = again(&params, &asked, &accepted(3));
    refused(&stranger.request("tools/call", retry.clone()).await);
    let mut changed = retry.clone();
    changed["arguments"]["a"] = json!(2);
    refused(&owner.request("tools/call", changed).await);
    let created = owner.request("tools/call", retry.clone()).await.result();
    given.await.unwrap();
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
    assert!(created.get("requestState").is_none() && created.get("inputRequests").is_none(), "{created}");
    refused(&owner.request("tools/call", retry).await);
    // What it asks as a task has a key of its own.
    let later = ask(&work, form());
    let get = async || owner.request("tasks/get", json!({ "taskId": created["taskId"] })).await.result();
    until("the task asks", async || get().await["status"] == "input_required").await;
    let open = get().await;
    let key = open["inputRequests"].as_object().unwrap().keys().next().unwrap();
    assert!(asked["inputRequests"].get(key).is_none() && open.get("requestState").is_none(), "{open}");
    let update = json!({ "taskId": created["taskId"], "inputResponses": { key: accepted(4) } });
    owner.request("tasks/update", update).await.result();
    later.await.unwrap();
    work.answer("done");
    until("the task is done", async || get().await["status"] == "completed").await;
    // After its time a state is worth nothing, and its call is gone.
    let (late, work, _given) = parked(&service, &owner, &params).await;
    within("the end of a call that nobody came back to", work.stop.cancelled()).await;
    refused(&owner.request("tools/call", again(&params, &late, &accepted(3))).await);
    assert_eq!(tasks().await, 1, "one task in all");
}

#[tokio::test]
async fn a_state_counts_for_its_own_request_and_once() {
    let service = Service::on_sqlite().await;
    let (owner, stranger) = (client(&service.url, "owner"), client(&service.url, "other"));
    let params = json!({ "name": "optional", "arguments": { "a": 1 } });
    let (asked, work, given) = parked(&service, &owner, &params).await;
    let retry = again(&params, &asked, &accepted(3));
    let spoilt = |change: &dyn Fn(&mut Value)| {
        let mut retry = retry.clone();
        change(&mut retry);
        retry
    };
    let state = asked["requestState"].as_str().unwrap().to_owned();
    let mut messages = Vec::new();
    for bad in [
        spoilt(&|retry| retry["requestState"] = json!("")),
        spoilt(&|retry| retry["requestState"] = json!(format!("{state}-TAMPERED"))),
        spoilt(&|retry| retry["requestState"] = json!(state.replacen(|c: char| c.is_ascii_alphabetic(), "0", 1))),
        spoilt(&|retry| retry["arguments"]["a"] = json!(2)),
        spoilt(&|retry| retry["arguments"] = json!({ "a": 1, "b": null })),
        spoilt(&|retry| retry["name"] = json!("never")),
    ] {
        messages.push(refused(&owner.request("tools/call", bad).await));
    }
    messages.push(refused(&stranger.request("tools/call", retry.clone()).await));
    // What cannot be read is named.
    for (bad, named) in [
        (spoilt(&|retry| retry["requestState"] = json!(7)), "requestState must be a string"),
        (spoilt(&|retry| retry["inputResponses"] = json!([])), "inputResponses must be an object"),
        (json!({ "name": "optional", "inputResponses": null }), "inputResponses must be an object"),
    ] {
        let answer = owner.request("tools/call", bad).await;
        let (code, message) = answer.error();
        assert!((answer.status, code) == (200, -32602) && message.contains(named), "{answer:?}");
    }
    // What is asked for may be left out, or not fit: it is asked again, and an older state is worth nothing.
    let empty = spoilt(&|retry| retry["inputResponses"] = json!({ "unknown": {} }));
    let asked_again = owner.request("tools/call", empty).await.result();
    assert_eq!(asked_again["inputRequests"], asked["inputRequests"]);
    messages.push(refused(&owner.request("tools/call", retry.clone()).await));
    let bad = again(&params, &asked_again, &json!(12345));
    let asked_once_more = owner.request("tools/call", bad).await.result();
    assert_eq!(asked_once_more["inputRequests"], asked["inputRequests"]);
    assert!(!given.is_finished(), "nothing of all that came to the work");
    // Other members of the request may differ.
    let mut last = again(&params, &asked_once_more, &accepted(3));
    last["inputResponses"]["unknown"] = json!({ "action": "accept" });
    last["_meta"] = json!({ "progressToken": "another" });
    let end = {
        let (owner, last) = (owner.clone(), last.clone());
        spawn("client", async move { owner.request("tools/call", last).await })
    };
    within("the answer", given).await.unwrap();
    work.answer("done");
    assert_eq!(end.await.unwrap().result()["content"][0]["text"], "done");
    messages.push(refused(&owner.request("tools/call", last).await));
    messages.dedup();
    assert_eq!(messages.len(), 1, "nothing tells them apart: {messages:?}");
}

// req: KEEP-12 (of a retry)
#[tokio::test]
async fn a_retry_under_a_key_may_be_sent_again() {
    let service = Service::on_sqlite().await;
    let owner = client(&service.url, "owner");
    let send = async |params: &Value, key: &str| {
        owner.send(owner.draft("tools/call", params.clone()).also("idempotency-key", key)).await
    };
    let params = json!({ "name": "never", "arguments": { "a": 1 } });
    let (asked, (work, given)) = tokio::join!(send(&params, "k"), async {
        let work = service.script.next().await;
        let given = ask(&work, form());
        (work, given)
    });
    let retry = again(&params, &asked.result(), &accepted(3));
    let (done, ()) = tokio::join!(send(&retry, "k"), async {
        within("the answer", given).await.unwrap();
        work.answer("done");
    });
    assert_eq!(done.result()["content"][0]["text"], "done");
    assert_eq!(send(&retry, "k").await.outcome(), done.outcome(), "what came of it");
    refused(&owner.request("tools/call", retry.clone()).await);
    refused(&send(&retry, "another").await);
    assert!(service.script.is_idle().await, "it ran once");
}

// req: MOD-10 (of rounds)
#[tokio::test]
async fn a_client_may_leave_with_a_question_and_not_before() {
    let service = Service::on_sqlite().await;
    let events = Modern { accept: "text/event-stream", ..client(&service.url, "owner") };
    let params = json!({ "name": "never" });
    let (asked, work, given) = {
        let (mut stream, (work, given)) = tokio::join!(events.stream("tools/call", params.clone()), async {
            let work = service.script.next().await;
            let given = ask(&work, form());
            (work, given)
        });
        (stream.rest().await.pop().expect("an answer")["result"].clone(), work, given)
    };
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    // The retry is left while it waits.
    let draft = events.draft("tools/call", again(&params, &asked, &accepted(3)));
    let waiting = {
        let events = events.clone();
        spawn("client", async move { events.begin(&draft).await })
    };
    within("the answer", given).await.unwrap();
    assert!(!work.stop.is_cancelled());
    let response = within("the head of its stream", waiting).await.unwrap();
    drop(response);
    within("the work is stopped", work.stop.cancelled()).await;
}

/// A server of the handshake era that asks for roots before it gives a prompt, contents or completions.
fn asking(log: &std::path::Path) -> UpstreamConfig {
    let program = format!(
        r#"say() {{ printf '{{"jsonrpc":"2.0","id":%s,%s}}\n' "$1" "$2"; }}
pending=
while IFS= read -r line; do
  printf '%s\n' "$line" >> '{log}'
  id=$(printf '%s\n' "$line" | sed -n 's/^{{"jsonrpc":"2.0","id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"id":"asked"'*) say "$pending" "$answer" ;;
    *'"method":"initialize"'*) say "$id" '"result":{{"protocolVersion":"2025-11-25","capabilities":{{"prompts":{{}},"resources":{{}},"completions":{{}}}},"serverInfo":{{"name":"s","version":"1"}}}}' ;;
    *'"method":"prompts/list"'*) say "$id" '"result":{{"prompts":[{{"name":"p"}}]}}' ;;
    *'"method":"resources/list"'*) say "$id" '"result":{{"resources":[{{"uri":"x://1","name":"r"}}]}}' ;;
    *'"method":"resources/templates/list"'*) say "$id" '"result":{{"resourceTemplates":[]}}' ;;
    *'"method":"prompts/get"'*) pending=$id; answer='"result":{{"messages":[]}}'; say '"asked"' '"method":"roots/list"' ;;
    *'"method":"resources/read"'*) pending=$id; answer='"result":{{"contents":[],"ttlMs":9000}}'; say '"asked"' '"method":"roots/list"' ;;
    *'"method":"completion/complete"'*) pending=$id; answer='"result":{{"completion":{{"values":[]}}}}'; say '"asked"' '"method":"roots/list"' ;;
    *) [ -z "$id" ] || say "$id" '"error":{{"code":-32601,"message":"no"}}' ;;
  esac
done"#,
        log = log.display(),
    );
    script("asking", &program)
}

// Of MOD-12 what else than calls may ask; of MOD-07 what of a retried read may be kept.
#[tokio::test]
async fn prompts_and_resources_ask_too_and_completions_do_not() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let database = TestDatabase::new(Backend::Sqlite).await;
    let gateway = Gateway::with(database, settings(), vec![asking(log.path())], engine_rules()).await;
    let other = gateway.another_node().await;
    let (here, there) = (client(&gateway.front.url, "owner"), client(&other.url, "owner"));
    for (method, params) in [
        ("prompts/get", json!({ "name": "p", "arguments": { "a": "1" } })),
        ("resources/read", json!({ "uri": "x://1" })),
    ] {
        let asked = here.request(method, params.clone()).await.result();
        assert_eq!(asked["resultType"], "input_required", "{method}: {asked}");
        assert!(asked.get("ttlMs").is_none() && asked.get("cacheScope").is_none(), "{asked}");
        let retry = again(&params, &asked, &json!({ "roots": [] }));
        // On another method the state is nothing.
        let mut elsewhere = retry.clone();
        let (other_method, name) =
            if method == "prompts/get" { ("resources/read", "uri") } else { ("prompts/get", "name") };
        elsewhere[name] = json!(if name == "uri" { "x://1" } else { "p" });
        refused(&here.request(other_method, elsewhere).await);
        refused(&client(&there.url, "stranger").request(method, retry.clone()).await);
        let done = there.request(method, retry.clone()).await.result();
        assert_eq!(done["resultType"], "complete", "{done}");
        if method == "resources/read" {
            assert_eq!((&done["ttlMs"], &done["cacheScope"]), (&json!(0), &json!("private")));
        }
        refused(&here.request(method, retry).await);
        assert_eq!(heard(log.path(), method).len(), 1, "the upstream was asked once");
    }
    let completion = json!({ "ref": { "type": "ref/prompt", "name": "p" }, "argument": { "name": "a", "value": "" } });
    let done = here.request("completion/complete", completion).await.result();
    assert_eq!(done["resultType"], "complete");
    let text = std::fs::read_to_string(log.path()).unwrap();
    let answers: Vec<_> = text.lines().filter(|line| line.contains(r#""id":"asked""#)).collect();
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert!(answers[2].contains("-32601"), "what nobody can be asked: {}", answers[2]);
    gateway.upstreams.stop().await;
}

// Of MOD-16 the URLs that an upstream wants to be visited first.
#[tokio::test]
async fn urls_that_are_to_be_visited_first_are_asked_for_and_the_call_is_made_anew() {
    let service = Service::on_sqlite().await;
    let url = |id: &str| json!({ "mode": "url", "elicitationId": id, "url": format!("https://{id}.example/"), "message": "visit" });
    let error = json!({ "code": -32042, "message": "visit these", "data": { "elicitations": [url("a"), url("b")] } });
    let params = json!({ "name": "optional" });
    let visits = Modern::new(&service.url, "owner").declaring(json!({ "elicitation": { "url": {} } }));
    let fail = |client: Modern, params: Value| {
        let error = error.to_string();
        let service = &service;
        async move { tokio::join!(client.request("tools/call", params), service.fail_next(&error)).0 }
    };
    let asked = fail(visits.clone(), params.clone()).await.result();
    assert_eq!((&asked["resultType"], asked.get("requestState")), (&json!("input_required"), None), "{asked}");
    let wanted = json!({ "mode": "url", "url": "https://a.example/", "message": "visit" });
    assert_eq!(asked["inputRequests"]["a"], json!({ "method": "elicitation/create", "params": wanted }));
    assert_eq!(asked["inputRequests"].as_object().unwrap().len(), 2);
    let mut retry = params.clone();
    retry["inputResponses"] = json!({ "a": { "action": "accept" }, "b": { "action": "accept" } });
    let (done, ()) = tokio::join!(visits.request("tools/call", retry), service.answer_next(r#"{"content":[]}"#));
    assert_eq!(done.result()["resultType"], "complete");
    // Who cannot visit them is told so.
    for lacking in [json!({}), json!({ "elicitation": {} })] {
        let answer = fail(visits.declaring(lacking), params.clone()).await;
        assert_eq!((answer.status, answer.error().0), (400, -32021), "{answer:?}");
        let required = &answer.json()["error"]["data"]["requiredCapabilities"];
        assert_eq!(required, &json!({ "elicitation": { "url": {} } }));
    }
    // In a task it is an error like others.
    let tasks = visits.with_tasks();
    let created = tasks.call("eager", json!({})).await.result();
    service.fail_next(&error.to_string()).await;
    let get = async || tasks.request("tasks/get", json!({ "taskId": created["taskId"] })).await.result();
    until("the task failed", async || get().await["status"] == "failed").await;
    assert_eq!(get().await["error"]["code"], -32603);
}
