//! Upstreams of the modern era: the demo server by both transports, and peers that a test scripts.

mod followed;
mod passed;
mod peers;
mod probe;
mod tasks;

use std::path::Path;

use serde_json::{Value, json};
use taskhold::domain::ids::ContextId;
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::log_level::LogLevel;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::upstream::{Protocol, UpstreamConfig};
use taskhold::executor::{Attempt, Call, Event, Executor as _};
use tokio::sync::oneshot;

use super::harness::{BINARY, Running, World, error, text, until, within};
use super::http_demo::Demo;
use crate::support::schema::Schema;

/// An upstream that is found to speak the modern era, or is of no use.
fn modern(config: UpstreamConfig) -> UpstreamConfig {
    UpstreamConfig { protocol: Protocol::Modern, ..config }
}

/// The demo server by command; every line that it reads and writes is kept.
fn recorded(name: &str, dir: &Path, options: &str) -> UpstreamConfig {
    let (read, written) = (dir.join("read"), dir.join("written"));
    let script = format!(
        "tee -a {} | {BINARY} demo-server --test-tools {options} | tee -a {}",
        read.display(),
        written.display()
    );
    UpstreamConfig::new(name, vec!["sh".to_owned(), "-c".to_owned(), script])
}

/// The messages in a file.
fn messages(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What the recorded server has read of one method.
fn heard(dir: &Path, method: &str) -> Vec<Value> {
    messages(&dir.join("read")).into_iter().filter(|message| message["method"] == method).collect()
}

/// The demo server by URL and by command, in the modern era.
async fn both(options: &[&str]) -> (Demo, World) {
    let demo = Demo::with(options).await;
    let command = [&[BINARY, "demo-server", "--test-tools"], options].concat();
    let command = command.into_iter().map(str::to_owned).collect();
    let local = UpstreamConfig { prefix: true, ..UpstreamConfig::new("local", command) };
    let world = World::new(vec![modern(UpstreamConfig::at("web", &demo.url)), modern(local)]).await;
    (demo, world)
}

const BOTH: [&str; 2] = ["", "local__"];

/// The next question, and the way for its answer.
async fn asked(call: &mut Running) -> (Question, oneshot::Sender<Answer>) {
    within("a question", call.heard.questions.recv()).await.unwrap()
}

fn params(question: &Question) -> Value {
    question.params.as_ref().map_or(Value::Null, |params| serde_json::from_str(params.as_str()).unwrap())
}

fn accept(text: &str) -> Answer {
    Answer::Result(RawJson::from_value(&json!({ "action": "accept", "content": { "answer": text } })))
}

const PREFIX: &str = "io.modelcontextprotocol";

// req: EXEC-18 (what each request says)
#[tokio::test]
async fn each_request_says_for_itself_what_others_agree_on() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(vec![recorded("demo", dir.path(), "")]).await;
    let call = world.prepare(ContextId::new(), "echo", r#"{"a":1.0}"#);
    let declared = r#"{"elicitation":{},"roots":{"listChanged":true},"tasks":{"list":{}},"extensions":{"x/y":{}}}"#;
    let meta = r#"{"trace":"kept","io.modelcontextprotocol/clientInfo":{"name":"theirs","version":"1"},"io.modelcontextprotocol/logLevel":"debug"}"#;
    let params = format!(r#"{{"name":"echo","arguments":{{"a":1.0}},"_meta":{meta}}}"#);
    let call = Call { params: RawJson::trusted(params), capabilities: RawJson::trusted(declared), ..call };
    assert_eq!(text(&world.run(call).end().await), r#"{"a":1.0}"#);
    world.upstreams.stop().await;
    let read = messages(&dir.path().join("read"));
    assert_eq!(read[0]["method"], "server/discover");
    for message in &read {
        assert_ne!(message["method"], "initialize");
        assert!(message["method"].is_string(), "no response is ever sent: {message}");
        let meta = &message["params"]["_meta"];
        assert_eq!(meta[format!("{PREFIX}/protocolVersion")], "2026-07-28", "{message}");
        assert_eq!(meta[format!("{PREFIX}/clientInfo")]["name"], "taskhold");
        let tasks = &meta[format!("{PREFIX}/clientCapabilities")]["extensions"][format!("{PREFIX}/tasks")];
        assert_eq!(tasks, &json!({}));
        if let Some(schema) = Schema::of_2026_07_28() {
            schema.check("JSONRPCRequest", message);
            schema.check("RequestMetaObject", meta);
        }
    }
    let calls = heard(dir.path(), "tools/call");
    let meta = &calls[0]["params"]["_meta"];
    assert_eq!(
        meta[format!("{PREFIX}/clientCapabilities")],
        json!({ "extensions": { "io.modelcontextprotocol/tasks": {} }, "elicitation": { "form": {} }, "roots": {} }),
        "what its caller declared and can be carried, and nothing else"
    );
    assert_eq!((&meta["trace"], &meta[format!("{PREFIX}/logLevel")]), (&json!("kept"), &json!("info")));
}

// req: EXEC-01 (the modern half). Of EXEC-12 that progress and log messages come to their calls.
#[tokio::test]
async fn calls_of_both_transports_are_carried_whole() {
    let (_demo, world) = both(&[]).await;
    let context = ContextId::new();
    // By URL the demo server reads arguments to compare them with headers, and takes what its reader takes.
    let tame = r#"{"a":1.0,"big":18446744073709551615,"nul":"\u0000","":[[]]}"#;
    let hostile = r#"{"z":1e400,"a":1.0,"big":18446744073709551615,"nul":"\u0000","half":"\ud800","":[[]]}"#;
    world.upstreams.listen_from(context, LogLevel::Info);
    for (at, hostile) in BOTH.into_iter().zip([tame, hostile]) {
        let attempt = world.answer(context, &format!("{at}echo"), hostile).await;
        let Attempt::Answered(Outcome::Result { json, is_error: false }) = &attempt else { panic!("{attempt:?}") };
        assert!(json.as_str().contains(&format!(r#""structuredContent":{hostile},"#)), "{}", json.as_str());
        let failed = world.answer(context, &format!("{at}fail_rpc"), r#"{"code":-32011}"#).await;
        assert_eq!(error(&failed)["code"], -32011);
        let mut calls: Vec<_> =
            (1..=3).map(|n| world.call(context, &format!("{at}prog"), &format!(r#"{{"n":{n}}}"#))).collect();
        for (call, n) in calls.iter_mut().zip(1_u32..) {
            for step in 1..=n {
                let event = within("progress", call.heard.events.recv()).await;
                assert!(matches!(event, Some(Event::Progress { progress, .. }) if progress == f64::from(step)));
            }
        }
        for call in calls {
            text(&call.end().await);
        }
        let mut call = world.call(context, &format!("{at}log"), r#"{"n":2}"#);
        for n in 1..=2 {
            let event = within("a log message", call.heard.events.recv()).await;
            assert!(
                matches!(event, Some(Event::Log { params }) if params.as_str().contains(&format!("line {n} of 2")))
            );
        }
        text(&call.end().await);
    }
    world.upstreams.stop().await;
}

// req: EXEC-18 (cancelling, by standard streams)
#[tokio::test]
async fn a_call_that_is_stopped_is_cancelled_by_its_request_id() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(vec![recorded("demo", dir.path(), "")]).await;
    let call = world.call(ContextId::new(), "sleep", r#"{"ms":60000}"#);
    until("the call to be sent", || heard(dir.path(), "tools/call").len() == 1).await;
    call.stop.cancel();
    assert_eq!(call.end().await, Attempt::Stopped);
    until("its cancellation", || heard(dir.path(), "notifications/cancelled").len() == 1).await;
    let cancelled = heard(dir.path(), "notifications/cancelled").remove(0);
    assert_eq!(cancelled["params"]["requestId"], heard(dir.path(), "tools/call")[0]["id"]);
    world.upstreams.stop().await;
}

// req: EXEC-11, EXEC-18 (rounds), EXEC-20 (the id of a URL)
#[tokio::test]
async fn what_is_asked_in_rounds_is_asked_of_the_caller() {
    let (_demo, world) = both(&[]).await;
    let context = ContextId::new();
    for at in BOTH {
        let mut call = world.call(context, &format!("{at}ask"), r#"{"n":2}"#);
        for n in 1..=2 {
            let (question, answer) = asked(&mut call).await;
            assert_eq!(params(&question)["message"], format!("question {n} of 2"));
            answer.send(accept(&format!("a{n}"))).unwrap();
        }
        let expected =
            r#"[{"action":"accept","content":{"answer":"a1"}},{"action":"accept","content":{"answer":"a2"}}]"#;
        assert_eq!(text(&call.end().await), expected);

        let mut call = world.call(context, &format!("{at}ask"), r#"{"n":3,"at_once":true}"#);
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(asked(&mut call).await);
        }
        for (question, answer) in waiting.into_iter().rev() {
            answer.send(accept(params(&question)["message"].as_str().unwrap())).unwrap();
        }
        let answers: Vec<Value> = serde_json::from_str(&text(&call.end().await)).unwrap();
        for (n, answer) in (1..).zip(&answers) {
            assert_eq!(answer["content"]["answer"], format!("question {n} of 3"));
        }

        for (tool, kind) in [("sample", InputKind::Sampling), ("roots", InputKind::Roots)] {
            let mut call = world.call(context, &format!("{at}{tool}"), "{}");
            let (question, answer) = asked(&mut call).await;
            assert_eq!(question.kind, kind);
            answer.send(Answer::Result(RawJson::trusted(r#"{"n":1.0,"x":1e400}"#))).unwrap();
            assert_eq!(text(&call.end().await), r#"{"n":1.0,"x":1e400}"#);
        }

        let mut call = world.call(context, &format!("{at}url_elicit"), "{}");
        let (question, answer) = asked(&mut call).await;
        assert!(params(&question)["elicitationId"].as_str().is_some_and(|id| id.len() == 32), "{question:?}");
        answer.send(Answer::Result(RawJson::trusted(r#"{"action":"decline"}"#))).unwrap();
        assert_eq!(text(&call.end().await), r#"{"action":"decline"}"#);
    }
    world.upstreams.stop().await;
}

// Of INPUT-06 and INPUT-07 what this era has in the place of errors.
#[tokio::test]
async fn an_error_for_an_answer_cancels_a_form_and_ends_what_cannot_be_cancelled() {
    let (_demo, world) = both(&[]).await;
    let context = ContextId::new();
    let refuse = || Answer::Error(RawJson::trusted(r#"{"code":-1,"message":"no"}"#));
    for at in BOTH {
        let mut call = world.call(context, &format!("{at}ask"), r#"{"n":1}"#);
        asked(&mut call).await.1.send(refuse()).unwrap();
        assert_eq!(text(&call.end().await), r#"[{"action":"cancel"}]"#);
        let mut call = world.call(context, &format!("{at}roots"), "{}");
        asked(&mut call).await.1.send(refuse()).unwrap();
        assert_eq!(error(&call.end().await), json!({ "code": -1, "message": "no" }));
        // Of what its caller does not serve the upstream is not told that it does.
        let call = world.prepare(context, &format!("{at}ask"), r#"{"n":1}"#);
        let call = Call { capabilities: RawJson::trusted(r#"{"sampling":{}}"#), ..call };
        assert!(text(&world.run(call).end().await).contains("declares no elicitation"));
    }
    world.upstreams.stop().await;
}
