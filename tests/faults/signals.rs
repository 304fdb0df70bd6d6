//! What nodes tell each other over a way to the database that is away for a while.

use std::sync::Arc;
use std::time::Duration;

use taskhold::domain::log_level::LogLevel;
use taskhold::engine::Caller;
use taskhold::store;

use crate::engine::harness::{Node, World, call};
use crate::engine::places::{asking, one, session};
use crate::http::harness::until;
use crate::support::database::{Backend, TestDatabase, options};
use crate::support::pgproxy::PgProxy;

/// Two nodes; the way of the second one to the database leads through a proxy.
async fn two_nodes() -> (PgProxy, World, [Node; 2]) {
    let database = TestDatabase::new(Backend::Postgres).await;
    let (proxy, url) = PgProxy::before_url(&database.url).await;
    let mut world = World::new(database).await;
    let here = world.node().await;
    let direct = std::mem::replace(&mut world.database.store, store::open(&options(&url)).await.unwrap());
    let there = world.node().await;
    world.database.store = direct;
    (proxy, world, [here, there])
}

/// What was written before has failed when this ends.
async fn past_the_patience_of_the_store(node: &Node, caller: &Caller) {
    for _ in 0..2 {
        assert!(node.engine.create_task(caller, call("once"), None).await.is_err());
    }
}

#[tokio::test]
async fn an_answer_to_a_plain_call_is_kept_while_the_database_is_away() {
    let (proxy, world, [here, there]) = two_nodes().await;
    let caller = session(&world).await;
    let (_plain, _work, answered, id) = asking(&here, &caller).await;
    proxy.refuse(true);
    proxy.reset_links();
    let (engine, known) = (Arc::clone(&there.engine), caller.clone());
    let given = tokio::spawn(async move { engine.answer(&known, &id, one()).await });
    past_the_patience_of_the_store(&there, &caller).await;
    assert!(!given.is_finished(), "its client would not say it again");
    proxy.refuse(false);
    given.await.unwrap().unwrap();
    here.engine.watch_once().await.unwrap();
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), answered).await.unwrap().unwrap(), one());
}

#[tokio::test]
async fn a_log_level_is_told_when_the_database_is_back_unless_it_is_another_by_then() {
    let (proxy, world, [_here, there]) = two_nodes().await;
    let caller = session(&world).await;
    proxy.refuse(true);
    proxy.reset_links();
    for level in [LogLevel::Debug, LogLevel::Error] {
        there.engine.log_level_set(&caller, level);
    }
    past_the_patience_of_the_store(&there, &caller).await;
    proxy.refuse(false);
    let told = async |level: &str| {
        let count = format!("SELECT COUNT(*) FROM signals WHERE kind = 6 AND subject = '{level}'");
        world.database.number(&count).await
    };
    until("the level is told", async || told("error").await == 1).await;
    assert_eq!(told("debug").await, 0, "it is not so any more");
}
