//! What an upstream answers to requests about a task of its own, when that is not what they asked for.

use std::time::Duration;

use serde_json::Value;
use taskhold::domain::ids::ContextId;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::Attempt;
use taskhold::executor::upstream::Settings;

use super::harness::{World, error, script, settings, text, until};
use super::tasks::task_server;

/// Begins a task named `secret-7`, and counts in `$n` what comes for it.
const CALL: &str = r#"
    *'"tools/call"'*) n=0; asked=0
      echo '{"jsonrpc":"2.0","id":'$id',"result":{"task":{"taskId":"secret-7","status":"'working'","ttl":null,"pollInterval":1}}}' ;;"#;

fn server(rest: &str) -> String {
    task_server(&format!("{CALL}{rest}")).replace(r#""tasks":{"#, r#""tasks":{"cancel":{},"#)
}

#[tokio::test]
async fn an_error_of_tasks_result_before_the_end_ends_nothing() {
    // The second one is answered at the end, though it was asked before.
    let answers = r#"
    *'"tasks/get"'*) n=$((n+1)); status=input_required; [ $asked -ge 2 ] && status=completed
      echo '{"jsonrpc":"2.0","id":'$id',"result":{"taskId":"secret-7","status":"'$status'","ttl":null,"pollInterval":1}}'
      if [ -n "$late" ] && [ $status = completed ]; then
        echo '{"jsonrpc":"2.0","id":'$late',"error":{"code":-32603,"message":"waited for too long"}}'; late=
      fi ;;
    *'"tasks/result"'*) asked=$((asked+1))
      case $asked in
        1) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32603,"message":"try again"}}' ;;
        2) late=$id ;;
        *) echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"asked '$asked' times"}]}}' ;;
      esac ;;
    *'"tasks/cancel"'*) exit 1 ;;"#;
    let world = World::new(vec![script("odd", &server(answers))]).await;
    let attempt = world.call_stored(ContextId::new(), "t", "{}").end().await;
    assert_eq!(text(&attempt), "asked 3 times");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_task_that_cannot_be_asked_for_is_cancelled_when_it_is_given_up() {
    let read = tempfile::NamedTempFile::new().unwrap();
    let answers = format!(
        r#"
    *'"tasks/get"'*) echo '{{"jsonrpc":"2.0","id":'$id',"error":{{"code":-32603,"message":"secret-7 is busy"}}}}' ;;
    *'"tasks/cancel"'*) echo "$line" >> {} ;;"#,
        read.path().display()
    );
    let settings = Settings { reach: Duration::ZERO, ..settings() };
    let world = World::with(settings, vec![script("odd", &server(&answers))]).await;
    let attempt = world.call_stored(ContextId::new(), "t", "{}").end().await;
    let Attempt::Lost { detail } = attempt else { panic!("it is lost") };
    assert!(detail.contains("cannot be asked") && !detail.contains("secret-7"), "{detail}");
    let cancelled = || std::fs::read_to_string(read.path()).unwrap_or_default();
    until("the cancellation", || cancelled().ends_with('\n')).await;
    let cancelled: Value = serde_json::from_str(&cancelled()).unwrap();
    assert_eq!(cancelled["params"]["taskId"], "secret-7");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn what_is_said_of_another_task_is_not_believed_and_the_id_is_never_shown() {
    let answers = r#"
    *'"tasks/get"'*) n=$((n+1)); task=secret-7 status=working
      case $n in 1) task=other status=failed ;; 2) status=done ;; 3) status=completed ;; esac
      echo '{"jsonrpc":"2.0","id":'$id',"result":{"taskId":"'$task'","status":"'$status'","pollInterval":-1e400}}' ;;
    *'"tasks/result"'*)
      echo '{"jsonrpc":"2.0","id":'$id',"result":{"task":{"taskId":"secret-7","status":"completed"},"content":[{"type":"text","text":"after '$n' looks"}],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"secret-7"}}}}' ;;"#;
    let world = World::new(vec![script("odd", &server(answers))]).await;
    let context = ContextId::new();
    let attempt = world.call_stored(context, "t", "{}").end().await;
    assert_eq!(text(&attempt), "after 3 looks");
    let Attempt::Answered(Outcome::Result { json, .. }) = attempt else { panic!("a result") };
    assert_eq!(json.as_str(), r#"{"content":[{"type":"text","text":"after 3 looks"}]}"#);
    world.upstreams.stop().await;

    let answers = r#"
    *'"tasks/get"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"taskId":"secret-7","status":"cancelled","statusMessage":"secret-7: out of paper","ttl":null}}' ;;"#;
    let world = World::new(vec![script("odd", &server(answers))]).await;
    let failed = error(&world.call_stored(context, "t", "{}").end().await);
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("out of paper") && !message.contains("secret-7"), "{message}");
    world.upstreams.stop().await;
}
