//! TTL, hard lifetime, the reaper.

use std::time::Duration;

use taskhold::domain::outcome::Ending;
use taskhold::domain::retention::Ttl;
use taskhold::domain::task::Status;
use taskhold::engine::Refusal;

use super::harness::{World, call};
use crate::support::database::Backend;
use crate::support::on_both;

on_both!(an_expired_task_is_gone_before_it_is_deleted, expiry_is_immediate);
// req: KEEP-02, KEEP-03, LIFE-09
async fn expiry_is_immediate(backend: Backend) {
    let world = World::new(backend).await;
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

on_both!(live_tasks_never_vanish, live_tasks_are_kept);
// req: KEEP-04, KEEP-05, TASK-19
async fn live_tasks_are_kept(backend: Backend) {
    let world = World::new(backend).await;
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

on_both!(the_hard_lifetime_ends_what_does_not_end_itself, hard_lifetimes_end_tasks);
// req: KEEP-05, EXEC-23
async fn hard_lifetimes_end_tasks(backend: Backend) {
    let mut world = World::new(backend).await;
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

on_both!(tasks_without_a_ttl_are_never_deleted, unlimited_tasks_stay);
// req: KEEP-04
async fn unlimited_tasks_stay(backend: Backend) {
    let mut world = World::new(backend).await;
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
