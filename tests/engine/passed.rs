//! Rounds that an upstream keeps itself, and their time.

use std::time::Duration;

use taskhold::domain::ids::TaskId;
use taskhold::domain::round::RequestDigest;
use taskhold::engine::{Asked, Called, Caller, Directed, Item, Passed, Refusal, ToolCall};
use taskhold::executor::Attempt;

use super::directed::{caller, end, form};
use super::harness::{Node, World, call, call_with};
use super::rounds::{first, plain};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::script::result;

contract! {
    the_state_of_an_upstream_is_taken_once_and_in_time,
    a_request_for_a_task_that_is_refused_spends_nothing,
    a_call_that_its_key_refuses_spends_nothing,
    a_retry_that_is_sent_again_under_its_key_needs_no_state,
}

async fn the_state_of_an_upstream_is_taken_once_and_in_time(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let call = call("once");
    let digest = RequestDigest::new("tools/call", &call.name, call.arguments.as_str());
    let round = async || {
        let mut stream = first(&node, &caller, call.clone()).await;
        let work = node.script.next().await;
        assert!(work.host.takes_round("script", &[("k".to_owned(), form())], None).await);
        work.end(Attempt::Asked);
        match end(&mut stream).await {
            Called::Asks(round) => *round,
            other => panic!("it asks: {other:?}"),
        }
    };
    let take = async |state: &str| {
        let Some(passed) = node.engine.open_passed(&caller, &digest, state)? else { return Ok(None) };
        node.engine.spend_passed(&caller, &passed).await.map(|()| Some(passed))
    };
    let (early, late) = (round().await, round().await);
    assert_ne!(early.state, late.state);
    assert_eq!(early.questions, [("k".to_owned(), form())]);
    let timeout = world.rules.rounds.timeout;
    world.clock.advance(timeout - Duration::from_micros(1));
    assert_eq!(take(&early.state).await.unwrap().unwrap().state(), None);
    world.clock.advance(Duration::from_micros(1));
    for state in [&early.state, &late.state] {
        assert!(matches!(take(state).await, Err(Refusal::BadState)));
    }
    assert_eq!(take("none of these").await.unwrap(), None);
    // What was spent is forgotten when its state would not be taken any more.
    node.engine.reap_once().await.unwrap();
    assert_eq!(world.database.store.system().firsts().await.unwrap().round, None);
}

/// What an upstream has asked a caller, and goes on with.
async fn passed(world: &World, node: &Node, name: &str) -> Passed {
    let (caller, call) = (plain(world, name).await, call("once"));
    let digest = RequestDigest::new("tools/call", &call.name, call.arguments.as_str());
    let mut stream = first(node, &caller, call).await;
    let work = node.script.next().await;
    assert!(work.host.takes_round("script", &[("k".to_owned(), form())], None).await);
    work.end(Attempt::Asked);
    match end(&mut stream).await {
        Called::Asks(round) => node.engine.open_passed(&caller, &digest, &round.state).unwrap().unwrap(),
        other => panic!("it asks: {other:?}"),
    }
}

/// How a call comes back.
async fn goes_on(node: &Node, caller: &Caller, call: ToolCall, passed: &Passed) -> Result<Directed, Refusal> {
    let by_rounds = Some(RequestDigest::new("tools/call", &call.name, call.arguments.as_str()));
    let asked = Asked { by_rounds, passed: Some(passed.clone()), ..Asked::in_session("1".to_owned(), true, true) };
    node.engine.call_directed(caller, call, asked).await
}

fn keyed(tool: &str, key: &str) -> ToolCall {
    ToolCall { key: Some(key.to_owned()), ..call(tool) }
}

fn task(made: Result<Directed, Refusal>) -> TaskId {
    match made.unwrap() {
        Directed::Task(created) => created.task.id,
        Directed::Stream(_) => panic!("a task at once"),
    }
}

async fn last(made: Result<Directed, Refusal>) -> Result<Called, Refusal> {
    let Directed::Stream(mut stream) = made.unwrap() else { panic!("no task") };
    loop {
        match stream.next().await {
            Item::Message { .. } => {}
            Item::Called { answer, .. } => return answer,
            other => panic!("no end of a call: {other:?}"),
        }
    }
}

// Bug: the state was spent before the arguments were checked and before the key was looked for.
async fn a_request_for_a_task_that_is_refused_spends_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    node.engine.create_task(&caller, keyed("once", "taken"), None).await.unwrap();
    node.script.next().await.answer("another one");
    for tool in ["at once", "eager"] {
        let passed = passed(&world, &node, "a").await;
        let large = call_with(tool, &format!(r#"{{"x":"{}"}}"#, "y".repeat(world.rules.arguments_limit)));
        let refused = goes_on(&node, &caller, large, &passed).await;
        assert!(matches!(refused, Err(Refusal::ArgumentsTooLarge { .. })), "{refused:?}");
        let refused = goes_on(&node, &caller, keyed(tool, "taken"), &passed).await;
        assert!(matches!(refused, Err(Refusal::KeyTaken)), "{refused:?}");
        task(goes_on(&node, &caller, call(tool), &passed).await);
        node.script.next().await.answer("it goes on");
        let refused = goes_on(&node, &caller, call(tool), &passed).await;
        assert!(matches!(refused, Err(Refusal::BadState)), "{refused:?}");
    }
    assert!(node.script.is_idle().await);
}

async fn a_call_that_its_key_refuses_spends_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    node.engine.create_task(&caller, keyed("again", "taken"), None).await.unwrap();
    node.script.next().await.answer("another one");
    // One that stays a call, one that has its grace, and one that asks first.
    for tool in ["never", "once", "asks first"] {
        let passed = passed(&world, &node, "a").await;
        let refused = last(goes_on(&node, &caller, keyed(tool, "taken"), &passed).await).await;
        assert!(matches!(refused, Err(Refusal::KeyTaken)), "{tool}: {refused:?}");
        node.engine.spend_passed(&caller, &passed).await.unwrap();
        let refused = last(goes_on(&node, &caller, keyed(tool, "free"), &passed).await).await;
        assert!(matches!(refused, Err(Refusal::BadState)), "{tool}: {refused:?}");
    }
    assert!(node.script.is_idle().await);
}

// req: KEEP-12
async fn a_retry_that_is_sent_again_under_its_key_needs_no_state(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let passed_once = passed(&world, &node, "a").await;
    let made = task(goes_on(&node, &caller, keyed("eager", "t"), &passed_once).await);
    node.script.next().await.answer("a task");
    assert_eq!(task(goes_on(&node, &caller, keyed("eager", "t"), &passed_once).await), made);
    let passed_once = passed(&world, &node, "a").await;
    let going = goes_on(&node, &caller, keyed("never", "c"), &passed_once).await;
    node.script.next().await.answer("a call");
    assert_eq!(last(going).await.unwrap(), Called::Outcome(result("a call")));
    let again = goes_on(&node, &caller, keyed("never", "c"), &passed_once).await;
    assert_eq!(last(again).await.unwrap(), Called::Outcome(result("a call")));
    assert!(node.script.is_idle().await);
}
