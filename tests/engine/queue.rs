//! Waiting for a slot.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use taskhold::domain::task::Status;
use taskhold::engine::{Caller, Created, Refusal, TenantRules};

use super::harness::{World, call};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::waiting::Waiting;

contract! {
    tasks_beyond_the_slots_wait_their_turn,
    another_node_takes_what_one_has_no_slot_for,
    a_queued_task_is_cancelled_without_ever_running,
    nobody_overtakes_what_waits_at_another_node,
    a_busy_node_still_looks_for_what_waits,
    a_burst_of_one_caller_does_not_starve_another,
    what_is_limited_waits_and_holds_nobody_up,
    the_end_of_a_limited_task_lets_the_next_one_run_at_once,
    what_is_held_back_is_not_looked_for_without_end,
    what_is_not_due_is_not_looked_for_without_end,
    beyond_the_queue_a_creation_is_refused,
}

// req: AUTH-15
async fn a_burst_of_one_caller_does_not_starve_another(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 2;
    let (here, there) = (world.node().await, world.node().await);
    let (greedy, modest) = (world.caller("greedy").await, world.caller("modest").await);
    // The burst takes every slot, since nobody waits.
    let mut burst = Vec::new();
    for _ in 0..20 {
        burst.push(here.create(&greedy, "once").await.id);
        world.clock.advance(Duration::from_millis(1));
    }
    let mut running = vec![here.script.next().await, here.script.next().await];
    assert_eq!(there.engine.claim_once().await.unwrap(), 2);
    let theirs = [there.script.next().await, there.script.next().await];
    let mut last = vec![here.create(&modest, "once").await];
    world.clock.advance(Duration::from_millis(1));
    last.push(here.create(&modest, "once").await);
    assert!(last.iter().all(|task| task.message.as_deref() == Some("queued")));
    here.engine.announce_queue().await.unwrap();
    // It holds nothing: both of its tasks come before those that have waited for longer.
    for (ahead, task) in last.iter().enumerate() {
        assert_eq!(here.message(&modest, task.id).await, format!("queued, {ahead} ahead"));
    }
    assert_eq!(here.message(&greedy, burst[4]).await, "queued, 2 ahead");
    running.remove(0).answer("done");
    running.push(claim_next(&here).await);
    assert_eq!(here.message(&modest, last[0].id).await, "running");
    running.remove(0).answer("done");
    running.push(claim_next(&here).await);
    assert_eq!(here.message(&modest, last[1].id).await, "running");
    running.remove(0).answer("done");
    here.engine.result(&modest, last[0].id).await.unwrap();
    let _next = claim_next(&here).await;
    assert_eq!(here.message(&greedy, burst[4]).await, "running");
    drop(theirs);
}

// req: AUTH-15, LIFE-10
async fn what_is_limited_waits_and_holds_nobody_up(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.queue.slots = Some(3);
    world.rules.queue.tenants = BTreeMap::from([("acme".to_owned(), TenantRules { slots: Some(2), queued: None })]);
    let node = world.node().await;
    let (a, b) = (world.caller_of(Some("acme"), "a").await, world.caller_of(Some("acme"), "b").await);
    let free = world.caller("free").await;
    let (mut ids, mut told) = (Vec::new(), Vec::new());
    for (caller, tool) in
        [(&a, "once"), (&b, "once"), (&a, "once"), (&free, "one at a time"), (&free, "one at a time"), (&free, "once")]
    {
        let task = node.create(caller, tool).await;
        assert_eq!(task.message.as_deref(), Some("queued"), "who claims it sees whether it may run");
        ids.push((caller, task.id));
        world.clock.advance(Duration::from_millis(1));
    }
    for _ in 0..2 {
        ids.push((&free, node.create(&free, "once").await.id));
        world.clock.advance(Duration::from_millis(1));
    }
    assert_eq!(node.engine.claim_once().await.unwrap(), 5);
    assert_eq!(node.engine.free_slots(), 3);
    node.engine.announce_queue().await.unwrap();
    for (caller, id) in &ids {
        told.push(node.message(caller, *id).await);
    }
    let held_back = |limit: &str| format!("queued: the limit {limit} is reached");
    let tool = held_back("upstreams.tools.slots of 1");
    let expected = [
        "running",
        "running",
        &held_back("tenants.slots of 2"),
        "running",
        &tool,
        "running",
        "running",
        &held_back("limits.slots of 3"),
    ];
    assert_eq!(told, expected);
}

async fn the_end_of_a_limited_task_lets_the_next_one_run_at_once(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    node.engine.start();
    let mut tasks = Vec::new();
    for _ in 0..12 {
        tasks.push(node.create(&caller, "one at a time").await.id);
        world.clock.advance(Duration::from_millis(1));
    }
    let began = Instant::now();
    for id in &tasks {
        let work = tokio::time::timeout(Duration::from_secs(10), node.script.next()).await.expect("its turn comes");
        assert!(node.script.is_idle().await, "one at a time");
        work.answer("done");
        node.engine.result(&caller, *id).await.unwrap();
    }
    // Without a look for each second.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

async fn what_is_held_back_is_not_looked_for_without_end(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    node.engine.start();
    for _ in 0..2 {
        node.create(&caller, "one at a time").await;
    }
    let _running = node.script.next().await;
    looks_seldom(&node, &caller).await;
    let free = node.create(&caller, "once").await;
    node.until_message(&caller, free.id, "running").await;
}

/// As after failed attempts of many callers.
async fn what_is_not_due_is_not_looked_for_without_end(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let node = world.node().await;
    let mut caller = world.caller("first").await;
    node.create(&caller, "once").await;
    let running = node.script.next().await;
    for n in 0..220 {
        caller = world.caller(&format!("caller {n}")).await;
        node.create(&caller, "once").await;
    }
    node.engine.announce_queue().await.unwrap();
    let told = world.database.number("SELECT COUNT(*) FROM tasks WHERE message LIKE '%ahead%'").await;
    assert_eq!(told, 0, "of more than are looked at nobody knows its place");
    let late = "UPDATE task_live SET not_before = not_before + 60000000 WHERE node IS NULL";
    world.database.sql(late).await;
    node.engine.start();
    running.answer("done");
    looks_seldom(&node, &caller).await;
    let due = node.create(&world.caller("other").await, "once").await;
    tokio::time::timeout(Duration::from_secs(10), node.script.next()).await.expect("it is seen behind them");
    drop(due);
}

/// While nothing happens here, a node claims once for each of its looks.
async fn looks_seldom(node: &super::harness::Node, caller: &Caller) {
    let (before, began) = (node.engine.claims(), Instant::now());
    while began.elapsed() < Duration::from_millis(600) {
        assert!(node.engine.list(caller, None).await.is_ok());
    }
    let (claims, seconds) = (node.engine.claims() - before, began.elapsed().as_secs());
    assert!(claims <= seconds + 4, "{claims} claims in {seconds} s");
}

// req: AUTH-15
async fn beyond_the_queue_a_creation_is_refused(database: TestDatabase) {
    let mut world = World::new(database).await;
    (world.rules.slots, world.rules.queue.queued) = (1, 3);
    let acme = TenantRules { slots: None, queued: Some(4) };
    world.rules.queue.tenants = BTreeMap::from([("acme".to_owned(), acme)]);
    let (node, other) = (world.node().await, world.node().await);
    let (a, b) = (world.caller_of(Some("acme"), "a").await, world.caller_of(Some("acme"), "b").await);
    let full = |refused: Result<Created, Refusal>| match refused {
        Err(Refusal::LimitReached { limit, most, .. }) => format!("{limit} {most}"),
        other => panic!("not refused: {other:?}"),
    };
    for _ in 0..4 {
        node.create(&a, "once").await;
    }
    let running = node.script.next().await;
    assert_eq!(full(node.engine.create_task(&a, call("once"), None).await), "limits.queued 3");
    other.engine.watch_once().await.unwrap();
    assert_eq!(full(other.engine.create_task(&a, call("once"), None).await), "limits.queued 3", "at every node");
    node.create(&b, "once").await;
    assert_eq!(full(node.engine.create_task(&b, call("once"), None).await), "tenants.queued 4");
    assert_eq!(node.engine.list(&b, None).await.unwrap().tasks.len(), 1, "nothing was made");
    // One place is free again as soon as one runs.
    running.answer("done");
    let _next = claim_next(&node).await;
    let made = async {
        while node.engine.create_task(&b, call("once"), None).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), made).await.expect("there is a place");
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
