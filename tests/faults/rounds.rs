//! Calls that ask by rounds over links to PostgreSQL that break.

use std::time::Duration;

use taskhold::domain::input::Answer;
use taskhold::domain::task::Status;
use taskhold::engine::{Called, Caller};
use taskhold::store;

use crate::engine::directed::{caller, end};
use crate::engine::harness::{World, call};
use crate::engine::rounds::{first, fitting, parked, retry};
use crate::support::database::{Backend, TestDatabase, options};
use crate::support::pgproxy::{Moment, PgProxy};
use crate::support::script::result;

/// More often than the store tries by itself before it says that the database is away.
const CUTS: usize = 40;

/// A world whose way to the database leads through a proxy.
async fn world() -> (PgProxy, World) {
    let mut database = TestDatabase::new(Backend::Postgres).await;
    let (proxy, url) = PgProxy::before_url(&database.url).await;
    database.store = store::open(&options(&url)).await.unwrap();
    (proxy, World::new(database).await)
}

// Of KEEP-11 that no call is lost that asks while the database is away.
#[tokio::test]
async fn a_call_that_asks_while_the_database_is_away_asks_later() {
    let (proxy, world) = world().await;
    let caller = Caller { tasks_enabled: false, ..caller(&world, "a").await };
    let node = world.node().await;
    let cuts: Vec<_> = (0..CUTS).map(|_| proxy.cut("INSERT INTO parked_calls", Moment::Before)).collect();
    let (asks, work, answer) = parked(&node, &caller, call("once")).await;
    for cut in cuts {
        cut.await.unwrap();
    }
    let mut again = retry(&node.engine, &caller, &call("once"), fitting(&asks)).await.unwrap();
    assert!(matches!(answer.await.unwrap(), Answer::Result(_)));
    work.answer("done");
    assert_eq!(end(&mut again).await, Called::Outcome(result("done")));
}

// The same of one that is to become a task.
#[tokio::test]
async fn a_call_that_becomes_a_task_while_the_database_is_away_does_so_later() {
    let (proxy, mut world) = world().await;
    world.rules.grace = Duration::from_millis(20);
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let cuts: Vec<_> = (0..CUTS).map(|_| proxy.cut("UPDATE tasks SET parked = 0", Moment::Before)).collect();
    let mut stream = first(&node, &caller, call("asks first")).await;
    let work = node.script.next().await;
    let Called::Promoted(created) = end(&mut stream).await else { panic!("a task") };
    for cut in cuts {
        cut.await.unwrap();
    }
    assert!(!work.stop.is_cancelled());
    assert_eq!(node.engine.get(&caller, created.task.id).await.unwrap().status, Status::Working);
}
