//! TTL, hard lifetime, the reaper.

use std::time::Duration;

use futures_util::future::join_all;
use taskhold::domain::outcome::Ending;
use taskhold::domain::retention::Ttl;
use taskhold::domain::task::Status;
use taskhold::engine::Refusal;
use taskhold::lifecycle::spawn;

use super::harness::{World, call};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::waiting::Waiting;

contract! {
    an_expired_task_is_gone_before_it_is_deleted,
    live_tasks_never_vanish,
    a_task_outlives_its_ttl_while_it_waits_and_runs,
    the_hard_lifetime_ends_what_does_not_end_itself,
    tasks_without_a_ttl_are_never_deleted,
}

// req: KEEP-02, KEEP-03, LIFE-09
async fn an_expired_task_is_gone_before_it_is_deleted(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let created = node.engine.create_task(&caller, call("once"), Some(60_000)).await.unwrap().task;
    assert_eq!(created.shown_ttl(node.engine.now(), &world.rules.ttl), Ttl::Milliseconds(60_000));
    world.clock.advance(Duration::from_secs(5));
    node.script.next().await.answer("done");
    let (ended, _) = node.engine.result(&caller, created.id).await.unwrap();
    let shown = ended.shown_ttl(node.engine.now(), &world.rules.ttl);
    assert_eq!(shown, Ttl::Milliseconds(605_000), "end plus minimum retention");
    world.clock.advance(Duration::from_secs(600) - Duration::from_micros(1));
    assert_eq!(node.engine.get(&caller, created.id).await.unwrap(), ended, "readable for its whole TTL");
    assert_eq!(node.engine.reap_once().await.unwrap().tasks, 0);
    world.clock.advance(Duration::from_micros(1));
    assert!(matches!(node.engine.get(&caller, created.id).await, Err(Refusal::UnknownTask)));
    assert!(matches!(node.engine.result(&caller, created.id).await, Err(Refusal::UnknownTask)));
    assert!(matches!(node.engine.cancel(&caller, created.id).await, Err(Refusal::UnknownTask)));
    assert!(node.engine.list(&caller, None).await.unwrap().tasks.is_empty());
    assert_eq!(node.engine.reap_once().await.unwrap().tasks, 1);
    assert_eq!(world.database.rows_of_tasks().await, 0, "nothing of it is left");
}

// req: KEEP-04, KEEP-05, TASK-19
async fn live_tasks_never_vanish(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.engine.create_task(&caller, call("once"), Some(10_000)).await.unwrap().task;
    let _work = node.script.next().await;
    let mut shown = 10_000;
    for _ in 0..20 {
        world.clock.advance(Duration::from_secs(60));
        node.engine.reap_once().await.unwrap();
        let task = node.engine.get(&caller, task.id).await.unwrap();
        let Ttl::Milliseconds(now_shown) = task.shown_ttl(node.engine.now(), &world.rules.ttl) else { panic!() };
        assert!(now_shown >= shown);
        shown = now_shown;
        assert_eq!(node.engine.list(&caller, None).await.unwrap().tasks, [task]);
    }
    assert!(shown >= 20 * 60_000);
}

// req: KEEP-04, KEEP-05
// field case: F-SQL-04
async fn a_task_outlives_its_ttl_while_it_waits_and_runs(database: TestDatabase) {
    let mut world = World::new(database).await;
    let day = Duration::from_secs(24 * 3600);
    (world.rules.slots, world.rules.run_limit, world.rules.hard_run_limit) = (1, day, day);
    let ttl = world.rules.ttl.default.unwrap();
    let (node, caller) = (world.node().await, world.caller("a").await);
    let first = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let waiting = node.create(&caller, "once").await;
    let mut shown = ttl.as_millis() as i64;
    // It waits for one and a half of its TTL, and then runs for as long.
    let mut pass = async |node: &super::harness::Node| {
        for _ in 0..6 {
            world.clock.advance(ttl / 4);
            node.engine.beat_once().await.unwrap();
            assert_eq!(node.engine.reap_once().await.unwrap().ended, 0);
            let task = node.engine.get(&caller, waiting.id).await.unwrap();
            let Ttl::Milliseconds(now_shown) = task.shown_ttl(node.engine.now(), &world.rules.ttl) else { panic!() };
            assert!(now_shown >= shown, "{now_shown} after {shown}");
            shown = now_shown;
            assert!(node.engine.list(&caller, None).await.unwrap().tasks.contains(&task));
        }
    };
    pass(&node).await;
    work.answer("first");
    node.engine.result(&caller, first.id).await.unwrap();
    let work = super::queue::claim_next(&node).await;
    pass(&node).await;
    assert!(shown as u128 >= 3 * ttl.as_millis());
    work.answer("late, and whole");
    let (ended, outcome) = node.engine.result(&caller, waiting.id).await.unwrap();
    assert!(outcome.json().unwrap().as_str().contains("late, and whole"));
    world.clock.advance(world.rules.ttl.min_retention - Duration::from_micros(1));
    node.engine.reap_once().await.unwrap();
    assert_eq!(node.engine.result(&caller, waiting.id).await.unwrap(), (ended, outcome));
    world.clock.advance(Duration::from_micros(1));
    assert!(matches!(node.engine.get(&caller, waiting.id).await, Err(Refusal::UnknownTask)));
}

// req: KEEP-05, EXEC-23
// field case: F-SQL-05
async fn the_hard_lifetime_ends_what_does_not_end_itself(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let running = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let queued = node.create(&caller, "once").await;
    // As many as there are places for.
    let wait_for = |task| {
        let places = world.rules.waiters_per_context;
        let (engine, caller) = (&node.engine, &caller);
        join_all((0..places).map(move |_| {
            let (engine, caller) = (engine.clone(), caller.clone());
            spawn("waiter", async move { engine.result(&caller, task).await })
        }))
    };
    let waiters = wait_for(running.id);
    world.clock.advance(world.rules.ttl.hard_lifetime - Duration::from_micros(1));
    assert_eq!(node.engine.reap_once().await.unwrap().ended, 0);
    world.clock.advance(Duration::from_micros(1));
    assert_eq!(node.engine.reap_once().await.unwrap().ended, 2);
    work.stop.cancelled().await;
    let mut told: Vec<_> = waiters.await.into_iter().map(|waiter| waiter.unwrap().unwrap()).collect();
    let (ended, outcome) = told.pop().unwrap();
    assert!(told.iter().all(|other| *other == (ended.clone(), outcome.clone())));
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    let error: serde_json::Value = serde_json::from_str(outcome.json().unwrap().as_str()).unwrap();
    assert_eq!(error["data"]["reason"], "expired");
    work.answer("no later write lands");
    node.engine.claim_once().await.unwrap();
    assert!(node.script.is_idle().await);
    assert_eq!(node.engine.get(&caller, running.id).await.unwrap(), ended);
    assert_eq!(node.status(&caller, queued.id).await, Status::Ended(Ending::Failed));
    // The places of those who waited are free again: nobody waits for ever.
    node.engine.beat_once().await.unwrap();
    let next = node.create(&caller, "once").await;
    let waiters = wait_for(next.id);
    super::queue::claim_next(&node).await.answer("next");
    for waiter in waiters.await {
        assert!(waiter.unwrap().is_ok());
    }
}

// req: KEEP-04
async fn tasks_without_a_ttl_are_never_deleted(database: TestDatabase) {
    let mut world = World::new(database).await;
    (world.rules.ttl.default, world.rules.ttl.max) = (None, None);
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "once").await;
    assert_eq!(task.granted, Ttl::Unlimited);
    node.script.next().await.answer("kept");
    let (ended, _) = node.engine.result(&caller, task.id).await.unwrap();
    world.clock.advance(Duration::from_secs(365 * 24 * 3600));
    assert_eq!(node.engine.reap_once().await.unwrap().tasks, 0);
    assert_eq!(node.engine.get(&caller, task.id).await.unwrap(), ended);
    assert_eq!(ended.shown_ttl(node.engine.now(), &world.rules.ttl), Ttl::Unlimited);
}
