//! TTL, hard lifetime, the reaper.

use std::time::Duration;

use taskhold::domain::outcome::Ending;
use taskhold::domain::retention::Ttl;
use taskhold::domain::task::Status;
use taskhold::engine::Refusal;

use super::harness::{World, call};
use crate::support::contract;
use crate::support::database::TestDatabase;

contract! {
    an_expired_task_is_gone_before_it_is_deleted,
    live_tasks_never_vanish,
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

// req: KEEP-05, EXEC-23
async fn the_hard_lifetime_ends_what_does_not_end_itself(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let running = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let queued = node.create(&caller, "once").await;
    let waiter = tokio::spawn({
        let (engine, caller) = (node.engine.clone(), caller.clone());
        async move { engine.result(&caller, running.id).await }
    });
    world.clock.advance(world.rules.ttl.hard_lifetime - Duration::from_micros(1));
    assert_eq!(node.engine.reap_once().await.unwrap().ended, 0);
    world.clock.advance(Duration::from_micros(1));
    assert_eq!(node.engine.reap_once().await.unwrap().ended, 2);
    work.stop.cancelled().await;
    let (ended, outcome) = waiter.await.unwrap().unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    let error: serde_json::Value = serde_json::from_str(outcome.json().unwrap().as_str()).unwrap();
    assert_eq!(error["data"]["reason"], "expired");
    work.answer("no later write lands");
    node.engine.claim_once().await.unwrap();
    assert!(node.script.is_idle().await);
    assert_eq!(node.engine.get(&caller, running.id).await.unwrap(), ended);
    assert_eq!(node.status(&caller, queued.id).await, Status::Ended(Ending::Failed));
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
