//! Calls that are no tasks and ask callers that take no requests: by rounds.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use taskhold::domain::clock::Clock;
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::{Ending, Outcome};
use taskhold::domain::round::RequestDigest;
use taskhold::domain::task::Status;
use taskhold::engine::{
    Asked, Called, Caller, Delivery, Directed, Engine, Item, Refusal, Retry, Round, Stream, ToolCall,
};
use taskhold::executor::Event;
use tokio::task::JoinHandle;

use super::directed::{accepted, ask, caller, end, form};
use super::harness::{Node, World, call, call_with};
use crate::http::harness::until;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::script::{ScriptedCall, result};
use crate::support::waiting::Waiting;

contract! {
    what_a_call_asks_is_its_answer_and_the_same_request_goes_on,
    what_is_missing_or_does_not_fit_is_asked_again,
    a_state_that_fails_a_check_is_refused_and_spends_nothing,
    of_many_that_give_a_state_back_one_counts,
    a_retry_is_served_by_any_node,
    a_call_whose_node_died_ends_its_retry,
    a_call_that_nobody_comes_back_to_is_cancelled,
    a_call_is_not_given_up_while_somebody_waits_for_it,
    a_caller_that_leaves_stops_the_call,
    a_callers_parked_calls_are_bounded,
    only_what_a_request_declares_is_asked_by_its_answer,
    questions_have_the_names_that_their_server_gave,
    what_the_work_says_goes_to_whoever_waits,
    a_call_without_tasks_ends_with_its_retry,
    a_tool_asks_first_and_is_a_task_then,
    a_key_finds_what_its_call_asks,
    a_call_that_ends_between_the_rounds_ends_the_retry,
    a_retry_that_is_sent_again_under_its_key_is_answered_as_the_first,
    a_call_under_a_key_outlives_the_client_of_its_retry,
    a_call_that_became_a_task_is_asked_and_answered_as_one,
    an_answer_goes_to_the_question_that_it_was_asked_by,
}

const OTHER: &str = r#"{"roots":[]}"#;

/// A caller that takes neither requests nor tasks.
pub async fn plain(world: &World, name: &str) -> Caller {
    Caller { tasks_enabled: false, ..caller(world, name).await }
}

fn asked_for(method: &str, call: &ToolCall) -> Asked {
    let by_rounds = Some(RequestDigest::new(method, &call.name, call.arguments.as_str()));
    Asked { ends_with_client: true, by_rounds, ..Asked::in_session("1".to_owned(), true, true) }
}

fn asked(call: &ToolCall) -> Asked {
    asked_for("tools/call", call)
}

pub async fn first(node: &Node, caller: &Caller, call: ToolCall) -> Stream {
    let asked = asked(&call);
    match node.engine.call_directed(caller, call, asked).await.unwrap() {
        Directed::Stream(stream) => stream,
        Directed::Task(created) => panic!("a task at once: {created:?}"),
    }
}

pub async fn round(stream: &mut Stream) -> Round {
    match end(stream).await {
        Called::Asks(round) => *round,
        other => panic!("it asks: {other:?}"),
    }
}

/// The round that has all of so many questions of `once`: on a busy machine the last of them miss the first one.
async fn whole(node: &Node, caller: &Caller, mut round: Round, questions: usize) -> Round {
    for _ in 0..100 {
        if round.questions.len() == questions {
            return round;
        }
        round = match ended(&node.engine, caller, &call("once"), with(&round.state, &[])).await.unwrap() {
            Called::Asks(next) => *next,
            other => panic!("asked again: {other:?}"),
        };
    }
    panic!("{questions} questions: {round:?}")
}

/// A call that has asked once, and its work.
pub async fn parked(node: &Node, caller: &Caller, call: ToolCall) -> (Round, ScriptedCall, JoinHandle<Answer>) {
    let mut stream = first(node, caller, call).await;
    let work = node.script.next().await;
    let answer = ask(&work, form());
    (round(&mut stream).await, work, answer)
}

fn roots() -> Question {
    Question { kind: InputKind::Roots, params: None }
}

fn with(state: &str, responses: &[(&str, RawJson)]) -> Retry {
    let responses = responses.iter().map(|(key, json)| ((*key).to_owned(), json.clone())).collect();
    Retry { tool: None, key: None, state: state.to_owned(), responses }
}

pub fn fitting(round: &Round) -> Retry {
    with(&round.state, &[(&round.questions[0].0, accepted(3))])
}

pub async fn retry(engine: &Arc<Engine>, caller: &Caller, call: &ToolCall, retry: Retry) -> Result<Stream, Refusal> {
    let retry = Retry { tool: Some(call.name.clone()), key: call.key.clone(), ..retry };
    engine.retry(caller, retry, asked(call), None).await
}

/// How a retry ends.
async fn ended(engine: &Arc<Engine>, caller: &Caller, call: &ToolCall, with: Retry) -> Result<Called, Refusal> {
    let mut stream = retry(engine, caller, call, with).await?;
    loop {
        match stream.next().await {
            Item::Message { .. } => {}
            Item::Called { answer, .. } => return answer,
            other => panic!("no end: {other:?}"),
        }
    }
}

async fn tasks(node: &Node, caller: &Caller) -> usize {
    node.engine.list(caller, None).await.unwrap().tasks.len()
}

fn reason(called: &Called) -> String {
    let Called::Outcome(Outcome::Error { json }) = called else { panic!("an error: {called:?}") };
    let json: serde_json::Value = serde_json::from_str(json.as_str()).unwrap();
    assert_eq!(json["code"], -32603);
    json["data"]["reason"].as_str().unwrap().to_owned()
}

async fn what_a_call_asks_is_its_answer_and_the_same_request_goes_on(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let mut stream = first(&node, &caller, call("once")).await;
    let work = node.script.next().await;
    let answers = [ask(&work, form()), ask(&work, roots())];
    let asks = whole(&node, &caller, round(&mut stream).await, 2).await;
    drop(stream);
    let mut asked: Vec<_> = asks.questions.iter().map(|(_, question)| question.clone()).collect();
    asked.sort_by_key(|question| question.kind.code());
    assert_eq!(asked, [form(), roots()], "everything that is open at once goes out together");
    assert_ne!(asks.questions[0].0, asks.questions[1].0);
    assert!(!work.stop.is_cancelled(), "its caller may leave with the question");
    assert_eq!(tasks(&node, &caller).await, 0, "it is no task");
    let responses = asks.questions.iter().map(|(key, question)| {
        let json = if question.kind == InputKind::Roots { RawJson::trusted(OTHER) } else { accepted(3) };
        (key.clone(), json)
    });
    let given = Retry { tool: None, key: None, state: asks.state.clone(), responses: responses.collect() };
    let mut again = retry(&node.engine, &caller, &call("once"), given).await.unwrap();
    let [one, two] = answers;
    assert_eq!(one.await.unwrap(), Answer::Result(accepted(3)), "as it was written");
    assert_eq!(two.await.unwrap(), Answer::Result(RawJson::trusted(OTHER)));
    assert!(node.script.is_idle().await, "the call is not made again");
    // It asks once more: a round with another state.
    let third = ask(&work, form());
    let next = round(&mut again).await;
    assert_ne!(next.state, asks.state);
    assert!(asks.questions.iter().all(|(key, _)| *key != next.questions[0].0), "keys are not used again");
    let end = tokio::spawn({
        let (engine, caller, with) = (node.engine.clone(), caller.clone(), fitting(&next));
        async move { ended(&engine, &caller, &call("once"), with).await }
    });
    assert_eq!(third.await.unwrap(), Answer::Result(accepted(3)));
    work.answer("done");
    assert_eq!(end.await.unwrap().unwrap(), Called::Outcome(result("done")));
    assert_eq!(tasks(&node, &caller).await, 0);
    until("its slot is given back", async || node.engine.free_slots() == 8).await;
}

// req: INPUT-13 (of the stateless era's plain calls)
async fn what_is_missing_or_does_not_fit_is_asked_again(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let mut stream = first(&node, &caller, call("once")).await;
    let work = node.script.next().await;
    let answers = [ask(&work, form()), ask(&work, roots())];
    let mut asks = whole(&node, &caller, round(&mut stream).await, 2).await;
    let key_of = |round: &Round, kind| {
        let found = round.questions.iter().find(|(_, question)| question.kind == kind);
        found.unwrap_or_else(|| panic!("{kind:?} is asked: {round:?}")).0.clone()
    };
    let form_key = key_of(&asks, InputKind::Elicitation);
    let too_large =
        RawJson::trusted(format!(r#"{{"action":"accept","content":{{"n":1}},"x":"{}"}}"#, "y".repeat(10_000)));
    for useless in [
        Vec::new(),
        vec![("unknown", accepted(1))],
        vec![(form_key.as_str(), RawJson::trusted("12345"))],
        vec![(form_key.as_str(), RawJson::trusted(r#"{"action":"accept","content":{"n":"x"}}"#))],
        vec![(form_key.as_str(), too_large)],
    ] {
        let called = ended(&node.engine, &caller, &call("once"), with(&asks.state, &useless)).await.unwrap();
        let Called::Asks(again) = called else { panic!("asked again: {called:?}") };
        assert_eq!(again.questions, asks.questions, "{useless:?}");
        assert_ne!(again.state, asks.state);
        asks = *again;
    }
    // One of two: the work has that, and the other is asked again.
    let given = with(&asks.state, &[(&form_key, accepted(3)), ("unknown", accepted(4))]);
    let called = ended(&node.engine, &caller, &call("once"), given).await.unwrap();
    let Called::Asks(rest) = called else { panic!("asked again: {called:?}") };
    let [one, two] = answers;
    assert_eq!(one.await.unwrap(), Answer::Result(accepted(3)));
    assert_eq!(rest.questions, [(key_of(&asks, InputKind::Roots), roots())]);
    let given = with(&rest.state, &[(&rest.questions[0].0, RawJson::trusted(OTHER)), (&form_key, accepted(5))]);
    let last = retry(&node.engine, &caller, &call("once"), given).await.unwrap();
    assert_eq!(two.await.unwrap(), Answer::Result(RawJson::trusted(OTHER)));
    work.answer("done");
    let mut last = last;
    assert_eq!(end(&mut last).await, Called::Outcome(result("done")));
}

async fn a_state_that_fails_a_check_is_refused_and_spends_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, here, stranger) = (world.node().await, plain(&world, "a").await, plain(&world, "b").await);
    let of = || call_with("once", r#"{"n":1}"#);
    let (asks, work, answer) = parked(&node, &here, of()).await;
    let spent = asks.clone();
    // Asked again, so that there is one that was given back.
    let called = ended(&node.engine, &here, &of(), with(&asks.state, &[])).await.unwrap();
    let Called::Asks(asks) = called else { panic!("asked again: {called:?}") };
    let (other, _work, _answer) = parked(&node, &stranger, of()).await;
    let changed = |state: &str| {
        let mut bytes = state.to_owned().into_bytes();
        bytes[3] = if bytes[3] == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).unwrap()
    };
    let answers = |state: String| Retry { state, ..fitting(&asks) };
    let mut messages = Vec::new();
    for (what, refused) in [
        ("no state", ended(&node.engine, &here, &of(), answers(String::new())).await),
        ("not ours", ended(&node.engine, &here, &of(), answers("AAAA".to_owned())).await),
        ("changed", ended(&node.engine, &here, &of(), answers(changed(&asks.state))).await),
        ("longer", ended(&node.engine, &here, &of(), answers(format!("{}-TAMPERED", asks.state))).await),
        ("given back before", ended(&node.engine, &here, &of(), answers(spent.state.clone())).await),
        ("another's", ended(&node.engine, &here, &of(), answers(other.state)).await),
        ("by another", ended(&node.engine, &stranger, &of(), answers(asks.state.clone())).await),
        ("other arguments", ended(&node.engine, &here, &call("once"), answers(asks.state.clone())).await),
        (
            "another tool",
            ended(&node.engine, &here, &call_with("again", r#"{"n":1}"#), answers(asks.state.clone())).await,
        ),
        (
            "another method",
            node.engine
                .retry(&here, answers(asks.state.clone()), asked_for("prompts/get", &of()), None)
                .await
                .map(|_| Called::Stopped),
        ),
    ] {
        let Err(refusal @ Refusal::BadState) = refused else { panic!("{what}: {refused:?}") };
        messages.push(refusal.to_string());
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "nothing tells them apart: {messages:?}");
    assert!(messages[0].contains("requestState"));
    assert!(!answer.is_finished(), "nothing of that reached the work");
    let good = retry(&node.engine, &here, &of(), fitting(&asks)).await.unwrap();
    assert_eq!(answer.await.unwrap(), Answer::Result(accepted(3)));
    work.answer("done");
    let mut good = good;
    assert_eq!(end(&mut good).await, Called::Outcome(result("done")));
    // And when it has ended.
    for state in [&spent.state, &asks.state] {
        let late = ended(&node.engine, &here, &of(), answers(state.clone())).await;
        assert!(matches!(late, Err(Refusal::BadState)), "{late:?}");
    }
}

async fn of_many_that_give_a_state_back_one_counts(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, there, caller) = (world.node().await, world.node().await, plain(&world, "a").await);
    let (asks, work, answer) = parked(&node, &caller, call("once")).await;
    let all = (0..8).map(|n| {
        let engine = if n % 2 == 0 { node.engine.clone() } else { there.engine.clone() };
        let (caller, with) = (caller.clone(), fitting(&asks));
        tokio::spawn(async move { ended(&engine, &caller, &call("once"), with).await })
    });
    let all: Vec<_> = all.collect();
    until("the work has its answer", async || {
        node.engine.watch_once().await.unwrap();
        answer.is_finished()
    })
    .await;
    work.answer("done");
    until("who waits is answered", async || {
        there.engine.watch_once().await.unwrap();
        all.iter().all(JoinHandle::is_finished)
    })
    .await;
    let (good, bad): (Vec<_>, Vec<_>) = join_all(all).await.into_iter().map(Result::unwrap).partition(Result::is_ok);
    assert_eq!(good.len(), 1, "{good:?}");
    assert_eq!(good[0].as_ref().unwrap(), &Called::Outcome(result("done")));
    assert!(bad.iter().all(|refused| matches!(refused, Err(Refusal::BadState))), "{bad:?}");
}

async fn a_retry_is_served_by_any_node(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, there, caller) = (world.node().await, world.node().await, plain(&world, "a").await);
    let (asks, work, answer) = parked(&node, &caller, call("once")).await;
    let mut again = retry(&there.engine, &caller, &call("once"), fitting(&asks)).await.unwrap();
    until("the answer has come to the node that runs the call", async || {
        node.engine.watch_once().await.unwrap();
        answer.is_finished()
    })
    .await;
    assert_eq!(answer.await.unwrap(), Answer::Result(accepted(3)));
    // The next round comes out where the request waits.
    let second = ask(&work, form());
    let waiting = tokio::spawn(async move { round(&mut again).await });
    until("it is asked there", async || {
        there.engine.watch_once().await.unwrap();
        waiting.is_finished()
    })
    .await;
    let next = waiting.await.unwrap();
    // And the end, at the first one again.
    let engine = node.engine.clone();
    let last = {
        let (caller, with) = (caller.clone(), fitting(&next));
        tokio::spawn(async move { ended(&engine, &caller, &call("once"), with).await })
    };
    assert_eq!(second.await.unwrap(), Answer::Result(accepted(3)));
    work.answer("done");
    assert_eq!(last.await.unwrap().unwrap(), Called::Outcome(result("done")));
    assert!(there.script.is_idle().await);
}

async fn a_call_whose_node_died_ends_its_retry(database: TestDatabase) {
    let world = World::new(database).await;
    let (doomed, heir, caller) = (world.node().await, world.node().await, plain(&world, "a").await);
    // Tools whose tasks would be tried again as well: the caller's answers were for this execution.
    let mut all = Vec::new();
    for tool in ["once", "again"] {
        let (asks, work, answer) = parked(&doomed, &caller, call(tool)).await;
        all.push((tool, asks, work, answer));
    }
    // One comes back before the node is known to be dead, and one after.
    let (tool, asks, ..) = &all[0];
    let mut waits = retry(&heir.engine, &caller, &call(tool), fitting(asks)).await.unwrap();
    let waits = tokio::spawn(async move { end(&mut waits).await });
    heir.beat_until_it_may_judge().await;
    world.database.silence_nodes(Duration::from_secs(30)).await;
    heir.engine.beat_once().await.unwrap();
    until("its calls are recovered", async || {
        heir.engine.recover_once().await.unwrap();
        heir.engine.watch_once().await.unwrap();
        waits.is_finished()
    })
    .await;
    assert_eq!(reason(&waits.await.unwrap()), "outcome_unknown");
    let (tool, asks, ..) = &all[1];
    let late = ended(&heir.engine, &caller, &call(tool), fitting(asks)).await.unwrap();
    assert_eq!(reason(&late), "outcome_unknown");
    assert_eq!(heir.engine.claim_once().await.unwrap(), 0);
    assert!(heir.script.is_idle().await, "nothing is made again");
}

async fn a_call_that_nobody_comes_back_to_is_cancelled(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let (asks, work, _answer) = parked(&node, &caller, call("once")).await;
    world.clock.advance(Duration::from_secs(599));
    node.engine.beat_once().await.unwrap();
    assert_eq!(node.engine.reap_once().await.unwrap().rounds, 0);
    assert!(!work.stop.is_cancelled());
    world.clock.advance(Duration::from_secs(1));
    // Too late, whether or not somebody has seen to it.
    let late = ended(&node.engine, &caller, &call("once"), fitting(&asks)).await;
    assert!(matches!(late, Err(Refusal::BadState)), "{late:?}");
    assert_eq!(node.engine.reap_once().await.unwrap().rounds, 1);
    tokio::time::timeout(Duration::from_secs(10), work.stop.cancelled()).await.unwrap();
    let late = ended(&node.engine, &caller, &call("once"), fitting(&asks)).await;
    assert!(matches!(late, Err(Refusal::BadState)), "{late:?}");
    // At last nothing of it is left.
    world.clock.advance(Duration::from_secs(3600));
    node.engine.beat_once().await.unwrap();
    until("its row may go", async || node.engine.reap_once().await.unwrap().tasks == 1).await;
    assert_eq!(world.database.rows_of_tasks().await, 0);
}

async fn a_call_is_not_given_up_while_somebody_waits_for_it(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.rounds.timeout = Duration::from_millis(600);
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let (asks, work, answer) = parked(&node, &caller, call("once")).await;
    let mut again = retry(&node.engine, &caller, &call("once"), fitting(&asks)).await.unwrap();
    answer.await.unwrap();
    for _ in 0..4 {
        world.clock.advance(Duration::from_millis(500));
        // It says so in a third of that time.
        let prolonged = (world.clock.now() + world.rules.rounds.timeout).micros();
        let until_when = async || world.database.number("SELECT MIN(expires) FROM parked_calls").await;
        until("its round is prolonged", async || until_when().await == prolonged).await;
        node.engine.beat_once().await.unwrap();
        assert_eq!(node.engine.reap_once().await.unwrap().rounds, 0);
    }
    work.answer("done");
    assert_eq!(end(&mut again).await, Called::Outcome(result("done")));
}

// req: MOD-10 (of a call between rounds)
async fn a_caller_that_leaves_stops_the_call(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, there, caller) = (world.node().await, world.node().await, plain(&world, "a").await);
    // Before it was told what is asked.
    let stream = first(&node, &caller, call("once")).await;
    let work = node.script.next().await;
    let _answer = ask(&work, form());
    drop(stream);
    tokio::time::timeout(Duration::from_secs(10), work.stop.cancelled()).await.unwrap();
    // While its retry waits, at another node.
    let (asks, work, answer) = parked(&node, &caller, call("once")).await;
    let again = retry(&there.engine, &caller, &call("once"), fitting(&asks)).await.unwrap();
    until("it has been answered", async || {
        node.engine.watch_once().await.unwrap();
        answer.is_finished()
    })
    .await;
    drop(again);
    until("its work is stopped", async || {
        node.engine.watch_once().await.unwrap();
        work.stop.is_cancelled()
    })
    .await;
    until("their slots are given back", async || node.engine.free_slots() == 8).await;
}

async fn a_callers_parked_calls_are_bounded(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.rounds.calls = 2;
    let (node, here, other) = (world.node().await, plain(&world, "a").await, plain(&world, "b").await);
    let (one, work, answer) = parked(&node, &here, call("once")).await;
    let _second = parked(&node, &here, call("once")).await;
    let mut stream = first(&node, &here, call("once")).await;
    let third = node.script.next().await;
    let _unanswered = ask(&third, form());
    let refused = loop {
        match stream.next().await {
            Item::Message { .. } => {}
            Item::Called { answer, .. } => break answer.unwrap_err(),
            other => panic!("no end: {other:?}"),
        }
    };
    assert!(matches!(refused, Refusal::LimitReached { limit: "limits.parked_calls", most: 2, .. }), "{refused:?}");
    tokio::time::timeout(Duration::from_secs(10), third.stop.cancelled()).await.unwrap();
    // Another's are not counted, and one that has ended makes room.
    parked(&node, &other, call("once")).await;
    let mut again = retry(&node.engine, &here, &call("once"), fitting(&one)).await.unwrap();
    answer.await.unwrap();
    work.answer("done");
    assert_eq!(end(&mut again).await, Called::Outcome(result("done")));
    parked(&node, &here, call("once")).await;
}

// req: INPUT-07 (of requests that stand alone)
async fn only_what_a_request_declares_is_asked_by_its_answer(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let mut stream = first(&node, &caller, call("once")).await;
    let work = node.script.next().await;
    let sampling = Question { kind: InputKind::Sampling, params: Some(RawJson::trusted("{}")) };
    let Answer::Error(error) = ask(&work, sampling).await.unwrap() else { panic!("it was not declared") };
    assert!(error.as_str().contains("-32601"), "{}", error.as_str());
    let (form_answer, roots_answer) = (ask(&work, form()), ask(&work, roots()));
    let asks = whole(&node, &caller, round(&mut stream).await, 2).await;
    // The retry serves less than the first request did.
    let less = Caller { capabilities: RawJson::trusted(r#"{"elicitation":{}}"#), ..caller.clone() };
    let called = ended(&node.engine, &less, &call("once"), with(&asks.state, &[])).await.unwrap();
    let Called::Asks(again) = called else { panic!("asked again: {called:?}") };
    assert_eq!(again.questions.iter().map(|(_, question)| question.clone()).collect::<Vec<_>>(), [form()]);
    let Answer::Error(error) = roots_answer.await.unwrap() else { panic!("it is not served any more") };
    assert!(error.as_str().contains("-32601"), "{}", error.as_str());
    assert!(!form_answer.is_finished());
}

async fn questions_have_the_names_that_their_server_gave(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let mut stream = first(&node, &caller, call("once")).await;
    let work = node.script.next().await;
    let named = |name: &'static str| {
        let host = work.host.clone();
        tokio::spawn(async move { host.ask_named(name, form()).await.unwrap() })
    };
    let answers = [named("user \"name\"\0"), named("twice"), named("twice")];
    let asks = whole(&node, &caller, round(&mut stream).await, 3).await;
    let mut keys: Vec<_> = asks.questions.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable_by_key(|key| std::cmp::Reverse(key.len()));
    let [id, user, twice] = keys[..] else { panic!("{keys:?}") };
    assert_eq!((id.len(), user, twice), (36, "user \"name\"\u{FFFD}", "twice"), "of two with one name one has its id");
    let all = asks.questions.iter().map(|(key, _)| (key.clone(), accepted(7))).collect();
    let _again =
        retry(&node.engine, &caller, &call("once"), Retry { tool: None, key: None, state: asks.state, responses: all })
            .await
            .unwrap();
    for answer in answers {
        assert_eq!(answer.await.unwrap(), Answer::Result(accepted(7)));
    }
}

// req: NOTE-03 (of retries)
async fn what_the_work_says_goes_to_whoever_waits(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let with_token = |token: &str| ToolCall { progress_token: Some(RawJson::trusted(token)), ..call("once") };
    let (asks, work, answer) = parked(&node, &caller, with_token("1")).await;
    let progress = |value: f64| Event::Progress {
        progress: value,
        total: None,
        message: None,
        params: RawJson::trusted(format!(r#"{{"progress":{value}}}"#)),
    };
    // Nobody is there to hear it.
    work.host.tell(progress(1.0));
    let token = Some(RawJson::trusted("2"));
    let again = node.engine.retry(&caller, fitting(&asks), asked(&with_token("2")), token).await;
    let mut again = again.unwrap();
    answer.await.unwrap();
    let heard = async {
        loop {
            work.host.tell(progress(2.0));
            tokio::task::yield_now().await;
            if let Ok(item) = tokio::time::timeout(Duration::from_millis(5), again.next()).await {
                break item;
            }
        }
    };
    let Item::Message { delivery: Delivery::Progress { token, params, task }, .. } = heard.await else {
        panic!("it says so")
    };
    assert_eq!((token.as_str(), params.as_str(), task), ("2", r#"{"progress":2}"#, None));
    work.answer("done");
    assert_eq!(end(&mut again).await, Called::Outcome(result("done")));
}

async fn a_call_without_tasks_ends_with_its_retry(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, declares) = (world.node().await, caller(&world, "a").await);
    // A tool that is never a task asks by rounds whatever its caller takes.
    let (asks, work, answer) = parked(&node, &declares, call("never")).await;
    let mut again = retry(&node.engine, &declares, &call("never"), fitting(&asks)).await.unwrap();
    answer.await.unwrap();
    work.answer("plain");
    assert_eq!(end(&mut again).await, Called::Outcome(result("plain")));
    // Where no tasks are offered at all, all do.
    let mut stream = node.engine.call(&plain(&world, "b").await, call("always"), asked(&call("always"))).await.unwrap();
    let work = node.script.next().await;
    let _answer = ask(&work, form());
    round(&mut stream).await;
    assert_eq!(tasks(&node, &declares).await, 0);
}

// req: EXT-11
async fn a_tool_asks_first_and_is_a_task_then(database: TestDatabase) {
    let mut world = World::new(database).await;
    // What comes within it has to be stored before it is over.
    world.rules.grace = Duration::from_secs(1);
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let (asks, work, answer) = parked(&node, &caller, call("asks first")).await;
    assert_eq!(tasks(&node, &caller).await, 0, "there is no task before it was answered");
    let mut again = retry(&node.engine, &caller, &call("asks first"), fitting(&asks)).await.unwrap();
    assert_eq!(answer.await.unwrap(), Answer::Result(accepted(3)));
    let Called::Promoted(created) = end(&mut again).await else { panic!("a task") };
    drop(again);
    assert_eq!((created.task.status, tasks(&node, &caller).await), (Status::Working, 1));
    // The time of its round means nothing to it.
    world.clock.advance(Duration::from_secs(601));
    node.engine.beat_once().await.unwrap();
    node.engine.reap_once().await.unwrap();
    assert_eq!(node.engine.get(&caller, created.task.id).await.unwrap().status, Status::Working);
    // What it asks later is the task's, under a key of its own.
    let later = ask(&work, form());
    let open = super::directed::until_waiting(&node, &caller, created.task.id, 1).await;
    assert_ne!(open.waiting[0].id.to_string(), asks.questions[0].0);
    let by_key = vec![(open.waiting[0].id.to_string(), accepted(4))];
    node.engine.update(&caller, created.task.id, by_key).await.unwrap();
    assert_eq!(later.await.unwrap(), Answer::Result(accepted(4)));
    work.answer("done");
    assert_eq!(node.engine.result(&caller, created.task.id).await.unwrap().1, result("done"));
    // The state is spent.
    let replayed = ended(&node.engine, &caller, &call("asks first"), fitting(&asks)).await;
    assert!(matches!(replayed, Err(Refusal::BadState)), "{replayed:?}");
    assert_eq!(tasks(&node, &caller).await, 1);
    // One that asks nothing is a task past its grace, and one that ends before is one that has ended.
    let mut quiet = first(&node, &caller, call("asks first")).await;
    let _work = node.script.next().await;
    let Called::Promoted(created) = end(&mut quiet).await else { panic!("a task") };
    assert_eq!(created.task.status, Status::Working);
    let mut quick = first(&node, &caller, call("asks first")).await;
    node.script.next().await.answer("quick");
    let Called::Promoted(created) = end(&mut quick).await else { panic!("a task") };
    assert_eq!(created.task.status, Status::Ended(Ending::Completed));
    assert_eq!(node.engine.result(&caller, created.task.id).await.unwrap().1, result("quick"));
}

// req: KEEP-12 (of a call that asks by rounds)
async fn a_key_finds_what_its_call_asks(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, there, caller) = (world.node().await, world.node().await, plain(&world, "a").await);
    let keyed = || ToolCall { key: Some("k".to_owned()), ..call("once") };
    let (asks, work, answer) = parked(&node, &caller, keyed()).await;
    // Its client lost that answer, and asks anew: the same execution, the same question, the same round.
    let mut lost = first(&there, &caller, keyed()).await;
    assert_eq!(round(&mut lost).await, asks);
    let mut again = retry(&node.engine, &caller, &keyed(), fitting(&asks)).await.unwrap();
    assert_eq!(answer.await.unwrap(), Answer::Result(accepted(3)));
    work.answer("done");
    assert_eq!(end(&mut again).await, Called::Outcome(result("done")));
    let mut late = first(&there, &caller, keyed()).await;
    assert_eq!(end(&mut late).await, Called::Outcome(result("done")));
    assert!(node.script.is_idle().await && there.script.is_idle().await, "it ran once");
}

// req: KEEP-12 (of a retry)
async fn a_retry_that_is_sent_again_under_its_key_is_answered_as_the_first(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, there, caller) = (world.node().await, world.node().await, plain(&world, "a").await);
    let keyed = |key: &str| ToolCall { key: Some(key.to_owned()), ..call("once") };
    let (asks, work, answer) = parked(&node, &caller, keyed("k")).await;
    let mut again = retry(&node.engine, &caller, &keyed("k"), fitting(&asks)).await.unwrap();
    assert_eq!(answer.await.unwrap(), Answer::Result(accepted(3)));
    // Its client does not know that it arrived. Sent again it answers nothing, and is asked what the first one is asked.
    let mut resent = retry(&there.engine, &caller, &keyed("k"), fitting(&asks)).await.unwrap();
    let second = ask(&work, form());
    let next = round(&mut again).await;
    let waiting = tokio::spawn(async move { round(&mut resent).await });
    until("it is asked there", async || {
        there.engine.watch_once().await.unwrap();
        waiting.is_finished()
    })
    .await;
    assert_eq!(waiting.await.unwrap(), next);
    assert!(!second.is_finished());
    let mut last = retry(&node.engine, &caller, &keyed("k"), fitting(&next)).await.unwrap();
    assert_eq!(second.await.unwrap(), Answer::Result(accepted(3)));
    work.answer("done");
    assert_eq!(end(&mut last).await, Called::Outcome(result("done")));
    for spent in [&asks, &next] {
        let outcome = ended(&there.engine, &caller, &keyed("k"), fitting(spent)).await;
        assert_eq!(outcome.unwrap(), Called::Outcome(result("done")));
        for other in [call("once"), keyed("another")] {
            let refused = ended(&node.engine, &caller, &other, fitting(spent)).await;
            assert!(matches!(refused, Err(Refusal::BadState)), "without its key it is spent: {refused:?}");
        }
    }
    assert!(node.script.is_idle().await && there.script.is_idle().await, "it ran once");
}

async fn a_call_that_ends_between_the_rounds_ends_the_retry(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let (asks, work, answer) = parked(&node, &caller, call("once")).await;
    work.answer("it did without");
    answer.abort();
    until("its slot is given back", async || node.engine.free_slots() == 8).await;
    let called = ended(&node.engine, &caller, &call("once"), fitting(&asks)).await.unwrap();
    assert_eq!(called, Called::Outcome(result("it did without")));
}

// req: KEEP-12 (of a retry)
async fn a_call_under_a_key_outlives_the_client_of_its_retry(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let keyed = || ToolCall { key: Some("k".to_owned()), ..call("once") };
    let (asks, work, answer) = parked(&node, &caller, keyed()).await;
    let again = retry(&node.engine, &caller, &keyed(), fitting(&asks)).await.unwrap();
    answer.await.unwrap();
    drop(again);
    // It asks on, and whoever comes by the key is asked.
    let next = ask(&work, form());
    let asks = round(&mut first(&node, &caller, keyed()).await).await;
    assert!(!work.stop.is_cancelled());
    let mut again = retry(&node.engine, &caller, &keyed(), fitting(&asks)).await.unwrap();
    next.await.unwrap();
    work.answer("done");
    assert_eq!(end(&mut again).await, Called::Outcome(result("done")));
}

async fn a_call_that_became_a_task_is_asked_and_answered_as_one(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, takes_tasks, caller) = (world.node().await, caller(&world, "a").await, plain(&world, "a").await);
    let keyed = || ToolCall { key: Some("k".to_owned()), ..call("once") };
    let (asks, work, answer) = parked(&node, &caller, keyed()).await;
    let mut waits = retry(&node.engine, &caller, &keyed(), fitting(&asks)).await.unwrap();
    answer.await.unwrap();
    // Its next question is asked by a round, which is open when somebody takes the call as a task.
    let second = ask(&work, form());
    let asks = round(&mut waits).await;
    let mut other = first(&node, &caller, keyed()).await;
    assert_eq!(round(&mut other).await, asks);
    let task = node.engine.create_task(&takes_tasks, keyed(), None).await.unwrap().task.id;
    let refused = ended(&node.engine, &caller, &call("once"), fitting(&asks)).await;
    assert!(matches!(refused, Err(Refusal::BadState)), "{refused:?}");
    // Who takes no tasks waits for its end, and is not told of a limit.
    let mut waits = first(&node, &caller, keyed()).await;
    let open = super::directed::until_waiting(&node, &takes_tasks, task, 1).await;
    node.engine.update(&takes_tasks, task, vec![(open.waiting[0].id.to_string(), accepted(4))]).await.unwrap();
    assert_eq!(second.await.unwrap(), Answer::Result(accepted(4)));
    work.answer("done");
    assert_eq!(end(&mut waits).await, Called::Outcome(result("done")));
    assert_eq!(node.engine.result(&takes_tasks, task).await.unwrap().1, result("done"));
}

async fn an_answer_goes_to_the_question_that_it_was_asked_by(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let mut stream = first(&node, &caller, call("once")).await;
    let work = node.script.next().await;
    let named = || {
        let host = work.host.clone();
        tokio::spawn(async move { host.ask_named("n", form()).await.unwrap() })
    };
    let withdrawn = named();
    let asks = round(&mut stream).await;
    assert_eq!(asks.questions[0].0, "n");
    let open = || {
        let query = "SELECT COUNT(*) FROM task_inputs WHERE state = 0";
        world.database.number(query)
    };
    withdrawn.abort();
    until("the question is withdrawn", async || open().await == 0).await;
    let other = named();
    until("another one has its name", async || open().await == 1).await;
    let called = ended(&node.engine, &caller, &call("once"), fitting(&asks)).await.unwrap();
    let Called::Asks(next) = called else { panic!("asked by itself: {called:?}") };
    assert!(!other.is_finished() && next.questions[0].0 != "n", "{next:?}");
    let _again = retry(&node.engine, &caller, &call("once"), fitting(&next)).await.unwrap();
    assert_eq!(other.await.unwrap(), Answer::Result(accepted(3)));
}
