//! Calls that a modern upstream runs as tasks.

use taskhold::domain::ids::ContextId;
use taskhold::domain::work::UpstreamTask;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::executor::{Attempt, Call};

use super::{BOTH, accept, asked, both, heard, modern, params, recorded};
use crate::upstream::harness::{Running, World, error, text, until, within};
use crate::upstream::http_demo::Demo;

fn handed_over(call: &Running) -> Option<UpstreamTask> {
    call.heard.handed_over.lock().unwrap().clone()
}

// req: EXEC-11, EXEC-18 (tasks of modern upstreams: followed, their input, their results, whatever the call is to its caller)
#[tokio::test]
async fn a_task_of_the_upstream_is_followed_to_its_end() {
    let (_demo, world) = both(&["--tasks", "--task-ids", "theirs-"]).await;
    let context = ContextId::new();
    for at in BOTH {
        for stored in [true, false] {
            let call = |tool: &str, arguments: &str| {
                let call = world.prepare(context, &format!("{at}{tool}"), arguments);
                world.run(Call { is_task: stored, ..call })
            };
            let slept = call("task_only", r#"{"ms":20}"#);
            until("the handle", || handed_over(&slept).is_some()).await;
            let task = handed_over(&slept).unwrap();
            assert!(task.id.starts_with("\"theirs-") && task.revision == "2026-07-28", "{task:?}");
            assert_eq!(task.outlives_us(), at.is_empty(), "a process takes its tasks with it");
            let ended = slept.end().await;
            assert_eq!(text(&ended), "slept 20 ms");
            assert!(!format!("{ended:?}").contains("theirs-"), "{ended:?}");
            let mut asking = call("ask", r#"{"n":2,"as_task":true}"#);
            for n in 1..=2 {
                let (question, answer) = asked(&mut asking).await;
                assert_eq!(params(&question)["message"], format!("question {n} of 2"));
                answer.send(accept(&format!("a{n}"))).unwrap();
            }
            let expected =
                r#"[{"action":"accept","content":{"answer":"a1"}},{"action":"accept","content":{"answer":"a2"}}]"#;
            assert_eq!(text(&asking.end().await), expected);
            let failed = call("fail_rpc", r#"{"code":-32011,"as_task":true}"#).end().await;
            assert_eq!(error(&failed)["code"], -32011);
            let told = call("fail_tool", r#"{"message":"no","as_task":true}"#).end().await;
            assert_eq!(text(&told), "no");
        }
    }
    world.upstreams.stop().await;
}

// req: EXEC-11, EXEC-18 (the modern half)
#[tokio::test]
async fn the_handle_is_stored_before_the_task_is_asked_for_and_a_stop_cancels_the_task() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(vec![recorded("demo", dir.path(), "--tasks")]).await;
    let call = world.call_stored(ContextId::new(), "task_only", r#"{"ms":60000}"#);
    until("a look", || !heard(dir.path(), "tasks/get").is_empty()).await;
    let task = handed_over(&call).expect("stored before it is asked for");
    call.stop.cancel();
    assert_eq!(call.end().await, Attempt::Stopped);
    until("its cancellation", || !heard(dir.path(), "tasks/cancel").is_empty()).await;
    let cancelled = heard(dir.path(), "tasks/cancel").remove(0);
    assert_eq!(cancelled["params"]["taskId"].to_string(), task.id);
    assert!(heard(dir.path(), "notifications/cancelled").is_empty(), "a task is never cancelled so");
    world.upstreams.stop().await;
}

/// A server that answers a call only when it is cancelled, and then with a task.
const LATE: &str = r#"say() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while IFS= read -r line; do
  printf '%s\n' "$line" >> "$DIR/read"
  now=$(printf '%s\n' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"tools/call"'*) call=$now ;;
    *'"method":"notifications/cancelled"'*) id=$call; say '{"resultType":"task","taskId":"late","status":"working"}' ;;
    *'"method":"server/discover"'*) id=$now; say '{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}' ;;
    *'"method":"tools/list"'*) id=$now; say '{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}' ;;
  esac
done"#;

#[tokio::test]
async fn a_task_that_is_made_when_nobody_waits_any_more_is_cancelled_by_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let command = ["sh", "-c", LATE].map(str::to_owned).into();
    let env = vec![("DIR".to_owned(), dir.path().display().to_string())];
    let world = World::new(vec![modern(UpstreamConfig { env, ..UpstreamConfig::new("u", command) })]).await;
    let call = world.call_stored(ContextId::new(), "t", "{}");
    until("the call", || heard(dir.path(), "tools/call").len() == 1).await;
    call.stop.cancel();
    assert_eq!(call.end().await, Attempt::Stopped);
    until("its end", || heard(dir.path(), "tasks/cancel").len() == 1).await;
    assert_eq!(heard(dir.path(), "tasks/cancel")[0]["params"]["taskId"], "late");
    world.upstreams.stop().await;
}

// req: KEEP-07, EXEC-11 (the modern half)
#[tokio::test]
async fn a_task_by_url_is_followed_by_another_process() {
    let demo = Demo::with(&["--tasks"]).await;
    let config = || vec![modern(UpstreamConfig::at("web", &demo.url))];
    let first = World::new(config()).await;
    let context = ContextId::new();
    let mut call = first.call_stored(context, "ask", r#"{"n":1,"as_task":true}"#);
    let (question, _left) = asked(&mut call).await;
    let task = handed_over(&call).unwrap();
    assert_eq!(task.session, None);
    // As a process that is gone: nothing is told.
    call.work.abort();
    let second = World::new(config()).await;
    let resumed =
        Call { resume: Some(task.clone()), attempt: 2, is_task: true, ..second.prepare(context, "ask", "{}") };
    let mut going_on = second.run(resumed.clone());
    let (again, answer) = asked(&mut going_on).await;
    assert_eq!(again, question, "so that it is known to be the same");
    answer.send(accept("late")).unwrap();
    assert!(text(&going_on.end().await).contains("late"));
    let unknown = UpstreamTask { id: "\"nobody's\"".to_owned(), ..task.clone() };
    let lost = second.run(Call { resume: Some(unknown), ..resumed.clone() }).end().await;
    assert!(matches!(&lost, Attempt::Lost { detail } if detail.contains("does not know")), "{lost:?}");
    let of_old = UpstreamTask { revision: "2025-11-25".to_owned(), ..task };
    let lost = second.run(Call { resume: Some(of_old), ..resumed }).end().await;
    assert!(matches!(&lost, Attempt::Lost { detail } if detail.contains("2025-11-25")), "{lost:?}");
    within("the end", first.upstreams.stop()).await;
    second.upstreams.stop().await;
}
