//! What upstreams ask and say while a call of theirs runs.

use serde_json::{Value, json};
use taskhold::domain::ids::ContextId;
use taskhold::domain::input::{Answer, InputKind};
use taskhold::domain::json::RawJson;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::executor::{Attempt, Event, Executor as _, Said};
use tokio::sync::broadcast::error::TryRecvError;

use super::harness::{Running, World, test_tools, text, within};

fn accept(text: &str) -> Answer {
    Answer::Result(RawJson::from_value(&json!({ "action": "accept", "content": { "answer": text } })))
}

/// The next question's text, and the way for its answer.
async fn asked(call: &mut Running) -> (Value, tokio::sync::oneshot::Sender<Answer>) {
    let (question, answer) = within("a question", call.heard.questions.recv()).await.unwrap();
    let params = question.params.map_or(json!(null), |params| serde_json::from_str(params.as_str()).unwrap());
    (json!({ "kind": format!("{:?}", question.kind), "params": params }), answer)
}

#[tokio::test]
async fn questions_of_every_kind_are_asked_and_their_answers_come_back() {
    let world = World::new(vec![test_tools("demo")]).await;
    let context = ContextId::new();
    let mut call = world.call(context, "ask", r#"{"n":2}"#);
    for n in 1..=2 {
        let (question, answer) = asked(&mut call).await;
        assert_eq!(question["params"]["message"], format!("question {n} of 2"));
        answer.send(accept(&format!("a{n}"))).unwrap();
    }
    let expected = r#"[{"action":"accept","content":{"answer":"a1"}},{"action":"accept","content":{"answer":"a2"}}]"#;
    assert_eq!(text(&call.end().await), expected);

    let mut call = world.call(context, "ask", r#"{"n":3,"at_once":true}"#);
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(asked(&mut call).await);
    }
    // Answered in another order than they were asked in.
    for (question, answer) in waiting.into_iter().rev() {
        answer.send(accept(question["params"]["message"].as_str().unwrap())).unwrap();
    }
    let answers: Vec<Value> = serde_json::from_str(&text(&call.end().await)).unwrap();
    for (n, answer) in (1..).zip(&answers) {
        assert_eq!(answer["content"]["answer"], format!("question {n} of 3"));
    }

    for (tool, kind) in [("sample", InputKind::Sampling), ("roots", InputKind::Roots)] {
        let mut call = world.call(context, tool, "{}");
        let (question, answer) = asked(&mut call).await;
        assert_eq!(question["kind"], format!("{kind:?}"));
        answer.send(Answer::Result(RawJson::trusted(r#"{"n":1.0,"x":1e400}"#))).unwrap();
        assert_eq!(text(&call.end().await), r#"{"n":1.0,"x":1e400}"#);
        let mut refused = world.call(context, tool, "{}");
        let (_, answer) = asked(&mut refused).await;
        answer.send(Answer::Error(RawJson::trusted(r#"{"code":-1,"message":"no"}"#))).unwrap();
        assert_eq!(text(&refused.end().await), "the question got no answer");
    }
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_url_that_was_opened_is_told_to_the_call_that_asked() {
    let world = World::new(vec![test_tools("demo")]).await;
    let context = ContextId::new();
    let mut notices = world.upstreams.notices().remove(0);
    let mut call = world.call(context, "url_elicit", r#"{"id":"e-7"}"#);
    let (question, answer) = asked(&mut call).await;
    assert_eq!((&question["params"]["mode"], &question["params"]["elicitationId"]), (&json!("url"), &json!("e-7")));
    answer.send(Answer::Result(RawJson::trusted(r#"{"action":"accept"}"#))).unwrap();
    let event = within("the completion", call.heard.events.recv()).await;
    assert_eq!(event, Some(Event::ElicitationComplete { params: RawJson::trusted(r#"{"elicitationId":"e-7"}"#) }));
    assert_eq!(text(&call.end().await), r#"{"action":"accept"}"#);

    let mut call = world.call(context, "log", r#"{"n":2}"#);
    for n in 1..=2 {
        let Some(Event::Log { params }) = within("a log line", call.heard.events.recv()).await else { panic!("a log") };
        let line: Value = serde_json::from_str(params.as_str()).unwrap();
        assert_eq!((&line["level"], &line["data"]), (&json!("info"), &json!(format!("line {n} of 2"))));
    }
    assert_eq!(text(&call.end().await), "2 lines written");
    assert!(notices.try_recv().is_err(), "what belongs to a call is no notice");
    world.upstreams.stop().await;
}

// req: EXEC-12
#[tokio::test]
async fn on_a_shared_upstream_nothing_is_guessed_between_callers() {
    let world = World::new(vec![UpstreamConfig { shared: true, ..test_tools("demo") }]).await;
    let (ours, theirs) = (ContextId::new(), ContextId::new());
    let mut alone = world.call(ours, "ask", "{}");
    let (_, answer) = asked(&mut alone).await;
    answer.send(accept("mine")).unwrap();
    assert!(text(&alone.end().await).contains("mine"));

    // The first question tells that the call is under way; it stays open.
    let mut neighbour = world.call(theirs, "ask", r#"{"n":1}"#);
    let (_, neighbours_answer) = asked(&mut neighbour).await;
    let mut call = world.call(ours, "ask", "{}");
    let attempt = within("its end", &mut call.work).await.unwrap();
    assert_eq!(text(&attempt), "question 1 got no answer");
    assert!(call.heard.questions.try_recv().is_err() && neighbour.heard.questions.try_recv().is_err());
    neighbours_answer.send(accept("theirs")).unwrap();
    assert!(text(&neighbour.end().await).contains("theirs"));
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_call_that_ends_takes_its_question_back() {
    let world = World::new(vec![test_tools("demo")]).await;
    let context = ContextId::new();
    let mut call = world.call(context, "ask", "{}");
    let (_, mut answer) = asked(&mut call).await;
    call.stop.cancel();
    assert_eq!(within("its end", &mut call.work).await.unwrap(), Attempt::Stopped);
    within("the question to be withdrawn", answer.closed()).await;
    let mut next = world.call(context, "ask", "{}");
    let (_, answer) = asked(&mut next).await;
    answer.send(accept("again")).unwrap();
    assert!(text(&next.end().await).contains("again"), "the link goes on");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn what_is_said_outside_of_calls_goes_out_as_a_notice() {
    // Says something with its list, when no call is in progress.
    let chatty = r#"
while IFS= read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}' ;;
    *'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}}' ;;
    *'"tools/call"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"done"}]}}'
       sleep 0.2
       echo '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1.0}}'
       echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:y"}}' ;;
  esac
done
"#;
    let world = World::new(vec![super::harness::script("chatty", chatty)]).await;
    let mut notices = world.upstreams.notices().remove(0);
    let context = ContextId::new();
    assert_eq!(text(&world.answer(context, "t", "{}").await), "done");
    let log = within("a notice", notices.recv()).await.unwrap();
    assert_eq!((log.upstream.as_str(), log.context), ("chatty", Some(context)));
    assert_eq!(log.said, Said::Log(RawJson::trusted(r#"{"level":"info","data":1.0}"#)));
    let updated = within("a notice", notices.recv()).await.unwrap();
    assert_eq!(updated.said, Said::ResourceUpdated(RawJson::trusted(r#"{"uri":"x:y"}"#)));
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_noisy_upstream_loses_nothing_of_what_another_says() {
    let loud = |times: u32| {
        format!(
            r#"
while IFS= read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"s","version":"1"}}}}}}' ;;
    *'"tools/list"'*) echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"tools":[{{"name":"t","inputSchema":{{"type":"object"}}}}]}}}}' ;;
    *'"tools/call"'*) n=0
       while [ $n -lt {times} ]; do
         echo '{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"x:y"}}}}'
         n=$((n + 1))
       done
       echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[{{"type":"text","text":"done"}}]}}}}' ;;
  esac
done
"#
        )
    };
    let quiet = UpstreamConfig { prefix: true, ..super::harness::script("quiet", &loud(1)) };
    let world = World::new(vec![super::harness::script("noisy", &loud(2000)), quiet]).await;
    let [mut of_noisy, mut of_quiet] = <[_; 2]>::try_from(world.upstreams.notices()).unwrap();
    let context = ContextId::new();
    for tool in ["quiet__t", "t"] {
        assert_eq!(text(&world.answer(context, tool, "{}").await), "done");
    }
    assert!(matches!(of_noisy.try_recv(), Err(TryRecvError::Lagged(_))), "more than are kept");
    assert_eq!(of_quiet.try_recv().unwrap().upstream, "quiet");
    world.upstreams.stop().await;
}
