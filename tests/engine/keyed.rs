//! Calls under a key of their caller's.

use std::time::Duration;

use taskhold::domain::input::Answer;
use taskhold::domain::outcome::{Ending, Outcome};
use taskhold::domain::task::Status;
use taskhold::engine::{Asked, Called, Caller, Directed, Item, Refusal, Stream, ToolCall};
use tokio::task::JoinHandle;

use super::directed::{ask, caller, end, form, until_waiting};
use super::harness::{Node, World, call, call_with};
use crate::http::harness::until;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::script::result;
use crate::support::waiting::Waiting;

contract! {
    a_key_is_one_execution_in_every_form,
    a_plain_call_under_a_key_outlives_its_client_and_its_node,
    a_call_under_a_key_becomes_a_task_past_its_grace,
    a_key_is_its_contexts_and_its_calls_alone,
    of_many_at_once_one_runs,
    a_key_lives_as_long_as_its_row,
    a_cancelled_call_stays_cancelled_under_its_key,
    a_call_that_is_no_task_is_asked_for_nothing,
}

fn keyed(tool: &str, key: &str) -> ToolCall {
    ToolCall { key: Some(key.to_owned()), ..call(tool) }
}

async fn plain(node: &Node, caller: &Caller, call: ToolCall) -> Stream {
    node.engine.call(caller, call, Asked::in_session("1".to_owned(), true, true)).await.unwrap()
}

fn ended(mut stream: Stream) -> JoinHandle<Called> {
    tokio::spawn(async move { end(&mut stream).await })
}

async fn tasks(node: &Node, caller: &Caller) -> usize {
    node.engine.list(caller, None).await.unwrap().tasks.len()
}

// req: KEEP-12
async fn a_key_is_one_execution_in_every_form(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, there, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let first = ended(plain(&node, &caller, keyed("once", "k")).await);
    let work = node.script.next().await;
    let second = ended(plain(&there, &caller, keyed("once", "k")).await);
    assert_eq!(tasks(&node, &caller).await, 0, "it is no task");
    // Whoever wants a task gets that execution as one.
    let made = there.engine.create_task(&caller, keyed("once", "k"), None).await.unwrap().task;
    let again = node.engine.create_task(&caller, keyed("once", "k"), Some(60_000)).await.unwrap().task;
    assert_eq!((made.id, made.created), (again.id, again.created));
    assert_eq!(tasks(&node, &caller).await, 1);
    work.answer("once and for all");
    assert_eq!(first.await.unwrap(), Called::Outcome(result("once and for all")));
    there.engine.watch_once().await.unwrap();
    assert_eq!(second.await.unwrap(), Called::Outcome(result("once and for all")));
    assert_eq!(there.engine.result(&caller, made.id).await.unwrap().1, result("once and for all"));
    // And after its end.
    assert_eq!(
        ended(plain(&there, &caller, keyed("once", "k")).await).await.unwrap(),
        Called::Outcome(result("once and for all"))
    );
    let late = node.engine.create_task(&caller, keyed("once", "k"), None).await.unwrap().task;
    assert_eq!((late.id, late.status), (made.id, Status::Ended(Ending::Completed)));
    assert!(node.script.is_idle().await && there.script.is_idle().await, "it ran once");
}

// req: KEEP-12, MOD-10
async fn a_plain_call_under_a_key_outlives_its_client_and_its_node(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let asked = Asked { ends_with_client: true, ..Asked::in_session("1".to_owned(), true, true) };
    let stream = node.engine.call(&caller, keyed("again", "k"), asked).await.unwrap();
    let work = node.script.next().await;
    drop(stream);
    let there = world.node().await;
    let waits = ended(plain(&there, &caller, keyed("again", "k")).await);
    assert!(!work.stop.is_cancelled());
    node.engine.drain(Duration::from_secs(5)).await;
    there.engine.claim_once().await.unwrap();
    there.script.next().await.answer("elsewhere");
    assert_eq!(waits.await.unwrap(), Called::Outcome(result("elsewhere")));
    assert_eq!(tasks(&there, &caller).await, 0);
}

// req: KEEP-12, EXT-04
async fn a_call_under_a_key_becomes_a_task_past_its_grace(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.grace = Duration::from_millis(20);
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let directed = async |tool: &str, key: &str| {
        let asked = Asked { ends_with_client: true, ..Asked::in_session("1".to_owned(), true, true) };
        node.engine.call_directed(&caller, keyed(tool, key), asked).await.unwrap()
    };
    let Directed::Stream(mut stream) = directed("once", "k").await else { panic!("not at once") };
    let work = node.script.next().await;
    let Called::Promoted(created) = end(&mut stream).await else { panic!("its grace is over") };
    let Directed::Stream(mut again) = directed("once", "k").await else { panic!("not at once") };
    let Called::Promoted(same) = end(&mut again).await else { panic!("it is a task already") };
    assert_eq!(same.task.id, created.task.id);
    // Nobody has to be told: it is found by its key.
    drop((stream, again));
    // It may ask, as a task.
    let asked = ask(&work, form());
    until_waiting(&node, &caller, created.task.id, 1).await;
    assert!(!asked.is_finished());
    node.engine.cancel(&caller, created.task.id).await.unwrap();
    for _ in 0..2 {
        let Directed::Task(made) = directed("eager", "e").await else { panic!("a task at once") };
        assert_eq!(made.task.status, Status::Working);
    }
    node.script.next().await.answer("once");
    assert!(node.script.is_idle().await);
}

// req: KEEP-12, AUTH-02
async fn a_key_is_its_contexts_and_its_calls_alone(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, a, b) = (world.node().await, world.caller("a").await, world.caller("b").await);
    let mine = node.engine.create_task(&a, keyed("once", "k"), None).await.unwrap().task;
    let other = node.engine.create_task(&b, keyed("once", "k"), None).await.unwrap().task;
    assert_ne!(mine.id, other.id);
    let with = |tool: &str, arguments: &str| ToolCall { key: Some("k".to_owned()), ..call_with(tool, arguments) };
    for changed in [with("again", "{}"), with("once", r#"{"x":1}"#)] {
        let refused = node.engine.create_task(&a, changed.clone(), None).await;
        assert!(matches!(refused, Err(Refusal::KeyTaken)), "{refused:?}");
        let mut stream = plain(&node, &a, changed).await;
        let Item::Called { answer, .. } = stream.next().await else { panic!("an answer") };
        assert!(matches!(answer, Err(Refusal::KeyTaken)), "{answer:?}");
    }
    assert_eq!((tasks(&node, &a).await, tasks(&node, &b).await), (1, 1));
}

// req: KEEP-12
async fn of_many_at_once_one_runs(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let make = |n: usize| {
        let (engine, caller) =
            (if n.is_multiple_of(2) { here.engine.clone() } else { there.engine.clone() }, caller.clone());
        async move { engine.create_task(&caller, keyed("once", "k"), None).await.unwrap().task.id }
    };
    let made = futures_util::future::join_all((0..8).map(make)).await;
    assert!(made.windows(2).all(|pair| pair[0] == pair[1]), "{made:?}");
    assert_eq!(tasks(&here, &caller).await, 1);
    let (work, idle) = tokio::select! {
        work = here.script.next() => (work, &there),
        work = there.script.next() => (work, &here),
    };
    work.answer("once");
    assert!(idle.script.is_idle().await);
}

// req: KEEP-12
async fn a_key_lives_as_long_as_its_row(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let first = node.engine.create_task(&caller, keyed("once", "k"), Some(10_000)).await.unwrap().task;
    node.script.next().await.answer("first");
    node.engine.result(&caller, first.id).await.unwrap();
    // Not deleted yet, and gone for everybody.
    world.clock.advance(Duration::from_secs(3600));
    node.engine.beat_once().await.unwrap();
    let second = node.engine.create_task(&caller, keyed("once", "k"), None).await.unwrap().task;
    assert_ne!(first.id, second.id);
    node.script.next().await.answer("second");
    assert_eq!(node.engine.result(&caller, second.id).await.unwrap().1, result("second"));
}

// req: KEEP-12
async fn a_cancelled_call_stays_cancelled_under_its_key(database: TestDatabase) {
    let world = World::new(database).await;
    let session = taskhold::domain::ids::SessionId::new();
    let (node, caller) = (world.node().await, Caller { session: Some(session), ..world.caller("a").await });
    let mut stream = plain(&node, &caller, keyed("once", "k")).await;
    let work = node.script.next().await;
    node.engine.cancel_request(caller.auth.id(), session, "1");
    assert_eq!(end(&mut stream).await, Called::Stopped);
    work.stop.cancelled().await;
    let again = ended(plain(&node, &caller, keyed("once", "k")).await).await.unwrap();
    assert_eq!(again, Called::Outcome(Outcome::Cancelled));
}

// req: KEEP-12, INPUT-07
async fn a_call_that_is_no_task_is_asked_for_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let waits = ended(plain(&node, &caller, keyed("once", "k")).await);
    let work = node.script.next().await;
    let Answer::Error(_) = ask(&work, form()).await.unwrap() else { panic!("nobody could answer") };
    work.answer("went on");
    assert_eq!(waits.await.unwrap(), Called::Outcome(result("went on")));
    until("its slot is back", async || node.engine.free_slots() == 8).await;
}
