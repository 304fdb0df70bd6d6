//! Many who are sent one outcome.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use taskhold::domain::ids::TaskId;
use taskhold::engine::{Answered, Asked, Caller, Item, Refusal};

use super::harness::{Node, World};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::waiting::Waiting;

contract! {
    an_outcome_is_read_once_for_all_who_are_sent_it,
    large_outcomes_that_are_not_taken_are_bounded,
    a_reader_that_does_not_go_on_holds_no_other_up,
}

/// More than leaves at once.
const LARGE: usize = 100_000;

fn asked(id: usize) -> Asked {
    Asked::in_session(id.to_string(), id.is_multiple_of(2), false)
}

/// What the `tasks/result` of this id is answered.
async fn answered(node: &Node, caller: &Caller, task: TaskId, id: usize) -> Result<Answered, Refusal> {
    let mut stream = node.engine.open_result_stream(caller, task, asked(id), None).await?;
    loop {
        match stream.next().await {
            Item::Result { answer, .. } => return answer,
            Item::Message { .. } => {}
            other => panic!("no answer: {other:?}"),
        }
    }
}

/// Ends are written in the background.
async fn until_ended(node: &Node, caller: &Caller, tasks: &[TaskId]) {
    for task in tasks {
        node.engine.result(caller, *task).await.unwrap();
    }
}

// req: NOTE-10
// field case: F-GW-17
async fn an_outcome_is_read_once_for_all_who_are_sent_it(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "once").await.id;
    let work = node.script.next().await;
    // All wait before it ends; each has its answer before the first is let go of.
    let waiting = join_all((0..8).map(|id| answered(&node, &caller, task, id)));
    let (waited, ()) = tokio::join!(waiting, async { work.answer("done") });
    let waited: Vec<Answered> = waited.into_iter().map(Result::unwrap).collect();
    let late: Vec<_> = join_all((8..20).map(|id| answered(&node, &caller, task, id))).await;
    for other in waited[1..].iter().chain(late.iter().map(|late| late.as_ref().unwrap())) {
        // Another read would have made another one.
        assert!(Arc::ptr_eq(&waited[0].outcome, &other.outcome));
        assert_eq!(other.task, waited[0].task);
    }
    let stranger = world.caller("b").await;
    assert!(matches!(answered(&node, &stranger, task, 0).await, Err(Refusal::UnknownTask)), "it is still the caller's");
    world.clock.advance(Duration::from_secs(3600 + 1));
    assert!(matches!(answered(&node, &caller, task, 0).await, Err(Refusal::UnknownTask)), "and it still expires");
}

// req: NOTE-10
async fn large_outcomes_that_are_not_taken_are_bounded(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.waiters_per_context = 2;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let mut tasks = Vec::new();
    for text in ["x".repeat(LARGE), "small".to_owned()] {
        tasks.push(node.create(&caller, "once").await.id);
        node.script.next().await.answer(&text);
    }
    until_ended(&node, &caller, &tasks).await;
    let first = answered(&node, &caller, tasks[0], 1).await.unwrap();
    let second = answered(&node, &caller, tasks[0], 2).await.unwrap();
    let refused = answered(&node, &caller, tasks[0], 3).await;
    assert!(matches!(refused, Err(Refusal::LimitReached { limit: "limits.streams", most: 2, .. })), "{refused:?}");
    node.engine.result(&caller, tasks[1]).await.expect("what leaves at once needs no place");
    drop(first);
    let third = answered(&node, &caller, tasks[0], 3).await.expect("a place is free");
    drop((second, third));
}

// req: NOTE-10
// field case: F-GW-17
async fn a_reader_that_does_not_go_on_holds_no_other_up(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "once").await.id;
    node.script.next().await.answer("done");
    until_ended(&node, &caller, &[task]).await;
    // It begins to read, and then its client takes nothing: nobody polls it. One that has it all at once is not stuck.
    let stuck = loop {
        let mut reader = Box::pin(answered(&node, &caller, task, 1));
        if (&mut reader).now_or_never().is_none() {
            break reader;
        }
    };
    let others = join_all((2..5).map(|id| answered(&node, &caller, task, id)));
    let others = tokio::time::timeout(Duration::from_secs(10), others).await.expect("they have it");
    let others: Vec<Answered> = others.into_iter().map(Result::unwrap).collect();
    let stuck = stuck.await.unwrap();
    assert!(Arc::ptr_eq(&stuck.outcome, &others[0].outcome), "and it has the same");
}
