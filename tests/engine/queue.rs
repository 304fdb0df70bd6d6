//! Waiting for a slot.

use std::time::Duration;

use taskhold::domain::task::Status;

use super::harness::World;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::waiting::Waiting;

contract! {
    tasks_beyond_the_slots_wait_their_turn,
    another_node_takes_what_one_has_no_slot_for,
    a_queued_task_is_cancelled_without_ever_running,
    nobody_overtakes_what_waits_at_another_node,
    a_busy_node_still_looks_for_what_waits,
}

// req: LIFE-10
async fn tasks_beyond_the_slots_wait_their_turn(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(node.create(&caller, "once").await.id);
        world.clock.advance(Duration::from_millis(1));
    }
    let first = node.script.next().await;
    assert!(node.script.is_idle().await, "one slot, one call");
    assert_eq!(node.message(&caller, tasks[0]).await, "running");
    assert_eq!(node.status(&caller, tasks[1]).await, Status::Working);
    assert_eq!(node.message(&caller, tasks[3]).await, "queued");
    node.engine.announce_queue().await.unwrap();
    for (ahead, id) in tasks[1..].iter().enumerate() {
        assert_eq!(node.message(&caller, *id).await, format!("queued, {ahead} ahead"));
    }
    let told = node.engine.get(&caller, tasks[3]).await.unwrap().updated;
    node.engine.announce_queue().await.unwrap();
    assert_eq!(node.engine.get(&caller, tasks[3]).await.unwrap().updated, told, "the same words move nothing");

    first.answer("first");
    node.engine.result(&caller, tasks[0]).await.unwrap();
    let second = claim_next(&node).await;
    assert_eq!(node.message(&caller, tasks[1]).await, "running");
    let late = node.create(&caller, "once").await;
    assert_eq!(late.message.as_deref(), Some("queued"), "it does not overtake those who wait");
    node.engine.announce_queue().await.unwrap();
    assert_eq!(node.message(&caller, tasks[2]).await, "queued, 0 ahead");
    second.answer("second");
}

async fn nobody_overtakes_what_waits_at_another_node(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (here, there, caller) = (world.node().await, world.node().await, world.caller("a").await);
    here.create(&caller, "once").await;
    let first = here.create(&caller, "once").await;
    // Of two that were made in one moment either may be first.
    world.clock.advance(Duration::from_millis(1));
    // The one look for everything that the node waits for shows it.
    there.engine.watch_once().await.unwrap();
    let second = there.create(&caller, "once").await;
    assert_eq!(second.message.as_deref(), Some("queued"), "although there is a slot");
    assert_eq!(there.engine.claim_once().await.unwrap(), 1);
    assert_eq!(there.message(&caller, first.id).await, "running");
}

async fn another_node_takes_what_one_has_no_slot_for(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (here, there, caller) = (world.node().await, world.node().await, world.caller("a").await);
    here.create(&caller, "once").await;
    let waiting = here.create(&caller, "once").await;
    assert_eq!(there.engine.claim_once().await.unwrap(), 1);
    there.script.next().await.answer("from there");
    there.engine.result(&caller, waiting.id).await.unwrap();
}

// req: TASK-12
async fn a_queued_task_is_cancelled_without_ever_running(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let running = node.create(&caller, "once").await;
    let queued = node.create(&caller, "once").await;
    node.engine.cancel(&caller, queued.id).await.unwrap();
    node.script.next().await.answer("ran");
    node.engine.result(&caller, running.id).await.unwrap();
    node.engine.claim_once().await.unwrap();
    assert!(node.script.is_idle().await);
}

async fn a_busy_node_still_looks_for_what_waits(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (full, caller) = (world.node().await, world.caller("a").await);
    full.create(&caller, "once").await;
    let waiting = full.create(&caller, "once").await;
    world.rules.slots = 8;
    let busy = world.node().await;
    // Taken by that node's first look; this one is waiting again, with nobody told.
    busy.script.next().await.answer("first look");
    busy.engine.result(&caller, waiting.id).await.unwrap();
    let waiting = full.create(&caller, "once").await;
    busy.engine.start();
    let served = async {
        while busy.status(&caller, waiting.id).await == Status::Working {
            busy.create(&caller, "once").await;
            busy.script.next().await.answer("done");
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), served).await.is_ok(), "it waits while slots are free");
}

/// Claims until the freed slot has its next call: the slot is given back just after the outcome is there.
pub async fn claim_next(node: &super::harness::Node) -> crate::support::script::ScriptedCall {
    while node.script.is_idle().await {
        node.engine.claim_once().await.unwrap();
        tokio::task::yield_now().await;
    }
    node.script.next().await
}
