//! Upstreams that run calls as tasks of their own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use taskhold::domain::ids::ContextId;
use taskhold::domain::input::{Answer, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::work::UpstreamTask;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::executor::{Attempt, Call, Event, Executor, Host, Unasked};
use tokio_util::sync::CancellationToken;

use super::harness::{BINARY, Running, World, error, script, text, until, within};
use super::http_demo::Demo;

/// The demo server as one that runs tasks; what it reads is kept in a file.
fn runs_tasks(name: &str, read: &Path, options: &str) -> UpstreamConfig {
    let command = format!("tee -a {} | {BINARY} demo-server --test-tools --tasks {options}", read.display());
    script(name, &command)
}

/// The messages that a server has read, of all its processes.
fn messages(read: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(read).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn of_method(read: &Path, method: &str) -> Vec<Value> {
    messages(read).into_iter().filter(|message| message["method"] == method).collect()
}

const RELATED: &str = "io.modelcontextprotocol/related-task";

fn handed_over(call: &Running) -> Option<UpstreamTask> {
    call.heard.handed_over.lock().unwrap().clone()
}

// req: EXEC-16, EXEC-11 (of EXEC-11 the legacy half)
// field case: F-GW-01
#[tokio::test]
async fn a_stored_call_runs_as_a_task_of_its_upstream_and_ends_as_the_plain_one_does() {
    let read = tempfile::NamedTempFile::new().unwrap();
    let world = World::new(vec![runs_tasks("demo", read.path(), "")]).await;
    let context = ContextId::new();
    let hostile = r#"{"z":1e400,"a":1.0,"big":18446744073709551615,"nul":"\u0000","half":"\ud800","":[[]]}"#;
    let plain = world.answer(context, "echo", hostile).await;
    assert_eq!(world.call_stored(context, "echo", hostile).end().await, plain);
    let result = r#"{"result":{"content":[],"_meta":{"k":1.0},"isError":true}}"#;
    let plain = world.answer(context, "reply", result).await;
    assert!(matches!(&plain, Attempt::Answered(Outcome::Result { is_error: true, .. })));
    assert_eq!(world.call_stored(context, "reply", result).end().await, plain);
    let failed = error(&world.call_stored(context, "fail_rpc", r#"{"code":-32011}"#).end().await);
    assert_eq!((&failed["code"], &failed["data"]["tool"]), (&json!(-32011), &json!("fail_rpc")));

    let running = world.call_stored(context, "sleep", r#"{"ms":500}"#);
    let slept = running.heard.handed_over.clone();
    assert_eq!(text(&running.end().await), "slept 500 ms");
    let task = slept.lock().unwrap().clone().unwrap();
    assert_eq!((task.id.as_str(), task.revision.as_str()), ("\"task-4\"", "2025-11-25"));
    assert!(!task.outlives_us(), "it is in the memory of a process of ours");
    let calls = of_method(read.path(), "tools/call");
    let as_task: Vec<_> = calls.iter().filter(|call| call["params"].get("task").is_some()).collect();
    // Those that a plain parser takes.
    assert_eq!((calls.len(), as_task.len()), (4, 3));
    assert!(as_task.iter().all(|call| call["params"]["task"] == json!({})));
    assert!(of_method(read.path(), "tasks/get").len() >= 4, "it was polled");
    let results = of_method(read.path(), "tasks/result");
    assert_eq!(results.len(), 4, "the result is fetched once, at the end");
    assert!(of_method(read.path(), "tasks/cancel").is_empty() && of_method(read.path(), "tasks/list").is_empty());
    world.upstreams.stop().await;
}

// req: EXEC-16
#[tokio::test]
async fn a_task_is_asked_for_only_where_the_server_offers_one_and_always_where_the_tool_demands_it() {
    let (tasks, none) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let plain = format!("tee -a {} | {BINARY} demo-server --test-tools", none.path().display());
    let plain = UpstreamConfig { prefix: true, ..script("plain", &plain) };
    let world = World::new(vec![runs_tasks("demo", tasks.path(), ""), plain]).await;
    let context = ContextId::new();
    let was_task = |read: &Path| of_method(read, "tools/call").last().unwrap()["params"].get("task").is_some();
    // A plain caller cannot be given a task, and does not need one.
    assert_eq!(text(&world.answer(context, "sleep", r#"{"ms":1}"#).await), "slept 1 ms");
    assert!(!was_task(tasks.path()));
    assert_eq!(text(&world.answer(context, "task_only", r#"{"ms":2}"#).await), "slept 2 ms");
    assert!(was_task(tasks.path()));
    assert_eq!(text(&world.call_stored(context, "task_only", r#"{"ms":3}"#).end().await), "slept 3 ms");
    for tool in ["plain__sleep", "plain__task_only"] {
        let call = world.call_stored(context, tool, r#"{"ms":4}"#);
        let over = call.heard.handed_over.clone();
        assert_eq!(text(&call.end().await), "slept 4 ms");
        assert!(!was_task(none.path()) && over.lock().unwrap().is_none());
    }
    world.upstreams.stop().await;
}

// req: EXEC-16, EXEC-11 (of EXEC-11 the legacy half)
#[tokio::test]
async fn the_questions_of_a_task_come_while_its_result_is_waited_for_and_answers_name_it() {
    let read = tempfile::NamedTempFile::new().unwrap();
    let world = World::new(vec![runs_tasks("demo", read.path(), "")]).await;
    let (ours, theirs) = (ContextId::new(), ContextId::new());
    let mut calls = Vec::new();
    for context in [ours, theirs] {
        calls.push(world.call_stored(context, "ask", r#"{"n":2,"at_once":true}"#));
    }
    for (mut call, name) in calls.into_iter().zip(["ours", "theirs"]) {
        for _ in 0..2 {
            let (question, answer) = within("a question", call.heard.questions.recv()).await.unwrap();
            let params = question.params.unwrap();
            assert!(!params.as_str().contains("_meta"), "{}", params.as_str());
            let result = json!({ "action": "accept", "content": { "answer": name } });
            answer.send(Answer::Result(RawJson::from_value(&result))).unwrap();
        }
        let answers: Vec<Value> = serde_json::from_str(&text(&call.end().await)).unwrap();
        assert!(answers.iter().all(|answer| answer["content"]["answer"] == name), "{answers:?}");
    }
    let answers: Vec<_> =
        messages(read.path()).into_iter().filter(|message| message["result"]["action"] == "accept").collect();
    assert_eq!(answers.len(), 4);
    assert!(answers.iter().all(|answer| answer["result"]["_meta"][RELATED] == json!({ "taskId": "task-1" })));
    assert_eq!(of_method(read.path(), "tasks/result").len(), 2, "opened once for each");
    world.upstreams.stop().await;
}

// req: EXEC-16
// field case: F-GW-03
#[tokio::test]
async fn a_stop_cancels_what_runs_in_the_way_that_it_was_started() {
    let read = tempfile::NamedTempFile::new().unwrap();
    let world = World::new(vec![runs_tasks("demo", read.path(), "")]).await;
    let context = ContextId::new();
    let neighbour = world.call(context, "sleep", r#"{"ms":1500}"#);
    let task = world.call_stored(context, "sleep", r#"{"ms":60000}"#);
    let plain = world.call(context, "sleep", r#"{"ms":61000}"#);
    until("both to run", || handed_over(&task).is_some() && of_method(read.path(), "tools/call").len() == 3).await;
    let began = Instant::now();
    for call in [&task, &plain] {
        call.stop.cancel();
    }
    let id = handed_over(&task).unwrap().id;
    assert_eq!(task.end().await, Attempt::Stopped);
    assert_eq!(plain.end().await, Attempt::Stopped);
    until("the cancellations", || {
        !of_method(read.path(), "tasks/cancel").is_empty()
            && !of_method(read.path(), "notifications/cancelled").is_empty()
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let cancelled = &of_method(read.path(), "tasks/cancel")[0]["params"];
    assert_eq!(cancelled["taskId"].to_string(), id);
    let notes = of_method(read.path(), "notifications/cancelled");
    let calls = of_method(read.path(), "tools/call");
    let its = calls.iter().find(|call| call["params"]["arguments"]["ms"] == 61_000).unwrap();
    assert_eq!((notes.len(), &notes[0]["params"]["requestId"]), (1, &its["id"]), "never for a task");
    assert_eq!(text(&neighbour.end().await), "slept 1500 ms", "others on the link go on");
    world.upstreams.stop().await;
}

/// A host that lets a call be handed over when the test says so.
struct Gate(tokio::sync::watch::Receiver<Option<bool>>);

#[async_trait]
impl Host for Gate {
    fn tell(&self, _event: Event) {}

    async fn ask(&self, _question: Question) -> Result<Answer, Unasked> {
        Err(Unasked(Answer::Error(RawJson::trusted(r#"{"code":-32601,"message":"nobody answers"}"#))))
    }

    async fn handed_over(&self, _to: UpstreamTask) -> bool {
        let mut opened = self.0.clone();
        opened.wait_for(Option::is_some).await.is_ok_and(|opened| *opened == Some(true))
    }
}

// req: KEEP-07
#[tokio::test]
async fn a_task_is_not_asked_for_before_it_is_stored_and_ends_if_it_cannot_be() {
    for may in [true, false] {
        let read = tempfile::NamedTempFile::new().unwrap();
        let world = World::new(vec![runs_tasks("demo", read.path(), "")]).await;
        let (open, opened) = tokio::sync::watch::channel(None);
        let call = Call { is_task: true, ..world.prepare(ContextId::new(), "sleep", r#"{"ms":1}"#) };
        let (upstreams, stop) = (Arc::clone(&world.upstreams), CancellationToken::new());
        let work =
            taskhold::lifecycle::spawn(
                "test call",
                async move { upstreams.run(call, Arc::new(Gate(opened)), stop).await },
            );
        until("the call", || of_method(read.path(), "tools/call").len() == 1).await;
        // It ended long ago, and its status was told.
        let neighbour = world.answer(ContextId::new(), "sleep", r#"{"ms":300}"#).await;
        assert_eq!(text(&neighbour), "slept 300 ms");
        assert!(of_method(read.path(), "tasks/get").is_empty() && of_method(read.path(), "tasks/result").is_empty());
        open.send_replace(Some(may));
        let attempt = within("its end", work).await.unwrap();
        if may {
            assert_eq!(text(&attempt), "slept 1 ms");
        } else {
            assert_eq!(attempt, Attempt::Stopped);
            until("the cancellation", || of_method(read.path(), "tasks/cancel").len() == 1).await;
            assert!(of_method(read.path(), "tasks/get").is_empty());
        }
        world.upstreams.stop().await;
    }
}

// field case: F-GW-02
#[tokio::test]
async fn ids_of_different_upstreams_may_be_equal_long_and_odd() {
    let (first, second) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let odd = "\u{1F980}ü-".repeat(100);
    let world = World::new(vec![
        runs_tasks("one", first.path(), ""),
        UpstreamConfig { prefix: true, ..runs_tasks("two", second.path(), "") },
        UpstreamConfig { prefix: true, ..runs_tasks("odd", second.path(), &format!("--task-ids '{odd}'")) },
    ])
    .await;
    let context = ContextId::new();
    let tools = ["sleep", "two__sleep", "odd__sleep"];
    let calls: Vec<_> = (1..=3)
        .zip(tools)
        .map(|(n, tool)| world.call_stored(context, tool, &format!(r#"{{"ms":{}}}"#, 200 * n)))
        .collect();
    let mut ids = Vec::new();
    for (call, n) in calls.into_iter().zip(1..) {
        let over = call.heard.handed_over.clone();
        assert_eq!(text(&call.end().await), format!("slept {} ms", 200 * n));
        ids.push(over.lock().unwrap().clone().unwrap().id);
    }
    assert_eq!((ids[0].as_str(), ids[1].as_str()), ("\"task-1\"", "\"task-1\""));
    assert_eq!(serde_json::from_str::<String>(&ids[2]).unwrap(), format!("{odd}1"));
    world.upstreams.stop().await;
}

#[tokio::test]
async fn progress_of_a_task_comes_by_our_token_for_its_whole_life() {
    let read = tempfile::NamedTempFile::new().unwrap();
    let world = World::new(vec![runs_tasks("demo", read.path(), "")]).await;
    let mut call = world.call_stored(ContextId::new(), "prog", r#"{"n":3}"#);
    for n in 1..=3 {
        let event = within("progress", call.heard.events.recv()).await;
        let Some(Event::Progress { progress, params, .. }) = event else { panic!("progress, not {event:?}") };
        assert!((progress - f64::from(n)).abs() < f64::EPSILON);
        assert!(!params.as_str().contains(RELATED), "{}", params.as_str());
    }
    assert_eq!(text(&call.end().await), "3 steps done");
    world.upstreams.stop().await;
}

/// Offers the tool `t` as one that may be a task, and runs `rest` for each other request, whose id is in `$id`.
pub fn task_server(rest: &str) -> String {
    format!(
        r#"
while IFS= read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}},"tasks":{{"requests":{{"tools":{{"call":{{}}}}}}}}}},"serverInfo":{{"name":"s","version":"1"}}}}}}' ;;
    *'"tools/list"'*) echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"tools":[{{"name":"t","inputSchema":{{"type":"object"}},"execution":{{"taskSupport":"optional"}}}}]}}}}' ;;
    {rest}
  esac
done
"#
    )
}

// field case: F-GW-07
#[tokio::test]
async fn what_an_answer_is_comes_from_the_request_and_never_looks_like_an_empty_success() {
    let answers = r#"
    *'"tools/call"'*)
      case "$line" in
        *'"empty"'*) result='{}' ;;
        *'"meta"'*) result='{"_meta":{"x":1}}' ;;
        *'"handle"'*) result='{"task":{"taskId":"t","status":"working","ttl":null,"pollInterval":10},"content":[],"_meta":{"x":1}}' ;;
        *'"bare"'*) result='{"task":{"taskId":"t","status":"working"}}' ;;
        *'"nameless"'*) result='{"task":{"status":"working"}}' ;;
        *'"result"'*) result='{"content":[]}' ;;
      esac
      echo '{"jsonrpc":"2.0","id":'$id',"result":'$result'}' ;;
    *'"tasks/get"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"taskId":"t","status":"completed","ttl":null}}' ;;
    *'"tasks/result"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"from the task"}],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}' ;;"#;
    let world = World::new(vec![script("odd", &task_server(answers))]).await;
    let context = ContextId::new();
    let kind = |kind: &str| format!(r#"{{"kind":"{kind}"}}"#);
    let broken = |attempt: &Attempt| assert_eq!(error(attempt)["data"]["reason"], "upstream_protocol", "{attempt:?}");
    // Asked for as a task.
    for odd in ["empty", "meta", "nameless"] {
        broken(&world.call_stored(context, "t", &kind(odd)).end().await);
    }
    let Attempt::Answered(Outcome::Result { json, .. }) = world.call_stored(context, "t", &kind("handle")).end().await
    else {
        panic!("a result")
    };
    assert_eq!(json.as_str(), r#"{"content":[{"type":"text","text":"from the task"}]}"#);
    let result = world.call_stored(context, "t", &kind("result")).end().await;
    assert!(matches!(&result, Attempt::Answered(Outcome::Result { json, .. }) if json.as_str() == r#"{"content":[]}"#));
    // Not asked for as a task.
    let handle = world.answer(context, "t", &kind("handle")).await;
    assert!(matches!(&handle, Attempt::Answered(Outcome::Result { json, .. }) if json.as_str().contains("taskId")));
    broken(&world.answer(context, "t", &kind("bare")).await);
    world.upstreams.stop().await;
}

#[tokio::test]
async fn an_upstream_that_cancels_or_forgets_its_task_ends_the_call_clearly() {
    let answers = r#"
    *'"tools/call"'*)
      status=working; case "$line" in *'"cancels"'*) status=cancelled ;; esac
      echo '{"jsonrpc":"2.0","id":'$id',"result":{"task":{"taskId":"t","status":"'$status'","statusMessage":"out of paper","ttl":null,"pollInterval":10}}}' ;;
    *'"tasks/get"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32602,"message":"what task?"}}' ;;"#;
    let world = World::new(vec![script("odd", &task_server(answers))]).await;
    let context = ContextId::new();
    let failed = error(&world.call_stored(context, "t", r#"{"kind":"cancels"}"#).end().await);
    assert_eq!(failed["data"]["reason"], "upstream_cancelled");
    assert!(failed["message"].as_str().unwrap().contains("out of paper"), "{failed}");
    let Attempt::Lost { detail } = world.call_stored(context, "t", "{}").end().await else { panic!("it is lost") };
    assert!(detail.contains("what task?"), "{detail}");
    world.upstreams.stop().await;
}

// req: KEEP-07
#[tokio::test]
async fn a_task_in_a_process_of_ours_is_followed_as_long_as_that_lives() {
    let read = tempfile::NamedTempFile::new().unwrap();
    let world = World::new(vec![runs_tasks("demo", read.path(), "")]).await;
    let context = ContextId::new();
    let call = world.call_stored(context, "sleep", r#"{"ms":1500}"#);
    until("the hand-over", || handed_over(&call).is_some()).await;
    let task = handed_over(&call).unwrap();
    call.work.abort();
    let resumed = Call {
        resume: Some(task.clone()),
        attempt: 2,
        is_task: true,
        ..world.prepare(context, "sleep", r#"{"ms":1500}"#)
    };
    assert_eq!(text(&world.run(resumed.clone()).end().await), "slept 1500 ms");
    assert_eq!(of_method(read.path(), "tools/call").len(), 1, "nothing was called anew");
    assert!(of_method(read.path(), "tasks/cancel").is_empty(), "an attempt that is dropped leaves its task alone");
    let another = world.run(Call { context: ContextId::new(), ..resumed.clone() }).end().await;
    assert!(matches!(another, Attempt::Lost { .. }), "another context has another process");

    let dying = world.call_stored(context, "sleep", r#"{"ms":60000}"#);
    until("the hand-over", || handed_over(&dying).is_some()).await;
    let task = handed_over(&dying).unwrap();
    assert!(matches!(world.answer(context, "crash", "{}").await, Attempt::Lost { .. }));
    assert!(matches!(dying.end().await, Attempt::Lost { .. }));
    let Attempt::Lost { detail } = world.run(Call { resume: Some(task), ..resumed }).end().await else {
        panic!("it is lost")
    };
    assert!(detail.contains("process"), "{detail}");
    world.upstreams.stop().await;
}

// req: KEEP-07, EXEC-11 (of EXEC-11 the legacy half)
#[tokio::test]
async fn a_task_of_a_server_by_url_is_followed_by_another_process_of_ours() {
    let demo = Demo::with(&["--tasks"]).await;
    let context = ContextId::new();
    let first = World::new(vec![demo.config("web")]).await;
    let mut call = first.call_stored(context, "ask", "{}");
    let (_, answer) = within("a question", call.heard.questions.recv()).await.unwrap();
    let task = handed_over(&call).unwrap();
    assert!(task.outlives_us() && task.session.is_some());
    let resumed = Call { resume: Some(task), attempt: 2, is_task: true, ..first.prepare(context, "ask", "{}") };
    call.work.abort();
    within("the question to be dropped", async {
        let mut answer = answer;
        answer.closed().await;
    })
    .await;
    first.upstreams.stop().await;

    let second = World::new(vec![demo.config("web")]).await;
    let mut call = second.run(resumed);
    let (_, answer) = within("the question again", call.heard.questions.recv()).await.unwrap();
    let sent = answer.send(Answer::Result(RawJson::trusted(r#"{"action":"decline"}"#)));
    let attempt = call.end().await;
    assert!(sent.is_ok() && text(&attempt).contains("decline"), "{attempt:?}");

    let slow = second.call_stored(context, "sleep", r#"{"ms":2500}"#);
    until("the hand-over", || handed_over(&slow).is_some()).await;
    let task = handed_over(&slow).unwrap();
    slow.work.abort();
    second.upstreams.stop().await;
    let third = World::new(vec![demo.config("web")]).await;
    let resume = Call {
        resume: Some(task.clone()),
        attempt: 2,
        is_task: true,
        ..third.prepare(context, "sleep", r#"{"ms":2500}"#)
    };
    assert_eq!(text(&third.run(resume.clone()).end().await), "slept 2500 ms");
    let unknown = UpstreamTask { id: "\"task-99\"".to_owned(), ..task.clone() };
    let lost = third.run(Call { resume: Some(unknown), ..resume.clone() }).end().await;
    assert!(matches!(&lost, Attempt::Lost { detail } if detail.contains("does not know")), "{lost:?}");
    let gone = UpstreamTask { session: Some("never-was".to_owned()), ..task };
    let lost = third.run(Call { resume: Some(gone), ..resume }).end().await;
    assert!(matches!(lost, Attempt::Lost { .. }), "{lost:?}");
    third.upstreams.stop().await;
}

// req: KEEP-07, EXEC-17
#[tokio::test]
async fn a_session_stays_as_long_as_a_task_in_it_is_followed_however_often_that_is_resumed() {
    let demo = Demo::with(&["--tasks"]).await;
    let context = ContextId::new();
    let first = World::new(vec![demo.config("web")]).await;
    let mut call = first.call_stored(context, "ask", "{}");
    let _question = within("a question", call.heard.questions.recv()).await.unwrap();
    let task = handed_over(&call).unwrap();
    let resume = Call { resume: Some(task), attempt: 2, is_task: true, ..first.prepare(context, "ask", r#"{"n":1}"#) };
    call.work.abort();
    assert!(call.work.await.unwrap_err().is_cancelled());
    first.upstreams.stop().await;
    for round in 2..=3 {
        let world = World::new(vec![demo.config("web")]).await;
        let mut call = world.run(resume.clone());
        let (_, answer) = within("the question again", call.heard.questions.recv()).await.unwrap();
        if round == 2 {
            call.work.abort();
            assert!(call.work.await.unwrap_err().is_cancelled());
        } else {
            let _is_open = answer.send(Answer::Result(RawJson::trusted(r#"{"action":"decline"}"#)));
            assert!(text(&call.end().await).contains("decline"));
        }
        world.upstreams.stop().await;
    }

    // The session of one that has ended is ended.
    let world = World::new(vec![demo.config("web")]).await;
    let call = world.call_stored(context, "sleep", r#"{"ms":1}"#);
    let over = call.heard.handed_over.clone();
    assert_eq!(text(&call.end().await), "slept 1 ms");
    let task = over.lock().unwrap().clone();
    let resume = Call { resume: task, attempt: 2, is_task: true, ..world.prepare(context, "sleep", r#"{"ms":1}"#) };
    world.upstreams.stop().await;
    let world = World::new(vec![demo.config("web")]).await;
    let lost = world.run(resume).end().await;
    assert!(matches!(lost, Attempt::Lost { .. }), "{lost:?}");
    world.upstreams.stop().await;
}
