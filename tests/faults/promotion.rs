//! Calls that become tasks over links to PostgreSQL that break.

use taskhold::domain::input::Answer;
use taskhold::engine::Called;
use taskhold::store;

use crate::engine::directed::{accepted, ask, caller, end, form, promoted, stream, until_waiting};
use crate::engine::harness::World;
use crate::http::harness::until;
use crate::support::database::{Backend, TestDatabase, options};
use crate::support::pgproxy::{Moment, PgProxy};
use crate::support::script::result;
use crate::support::waiting::Waiting;

/// A world whose way to the database leads through a proxy.
async fn world() -> (PgProxy, World) {
    let mut database = TestDatabase::new(Backend::Postgres).await;
    let (proxy, url) = PgProxy::before_url(&database.url).await;
    database.store = store::open(&options(&url)).await.unwrap();
    (proxy, World::new(database).await)
}

// req: EXT-04, KEEP-11
#[tokio::test]
async fn a_promotion_whose_answer_is_lost_happened_once() {
    for moment in [Moment::Before, Moment::AfterCommit] {
        let (proxy, world) = world().await;
        let (node, caller) = (world.node().await, caller(&world, "a").await);
        let mut stream = stream(&node, &caller, "once").await;
        let work = node.script.next().await;
        let cut = proxy.cut("INSERT INTO tasks", moment);
        let asked = ask(&work, form());
        let task = promoted(&mut stream).await;
        cut.await.unwrap();
        let key = until_waiting(&node, &caller, task.id, 1).await.waiting[0].id;
        node.engine.update(&caller, task.id, vec![(key.to_string(), accepted(1))]).await.unwrap();
        assert_eq!(asked.await.unwrap(), Answer::Result(accepted(1)), "{moment:?}");
        work.answer("done");
        assert_eq!(node.engine.result(&caller, task.id).await.unwrap().1, result("done"));
        assert_eq!(node.engine.list(&caller, None).await.unwrap().tasks.len(), 1);
        assert!(node.script.is_idle().await, "the work was begun once");
    }
}

// req: EXT-04, KEEP-11
#[tokio::test]
async fn a_call_that_cannot_become_a_task_is_answered_plainly() {
    let (proxy, world) = world().await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "once").await;
    let work = node.script.next().await;
    proxy.refuse(true);
    proxy.reset_links();
    let Answer::Error(_) = ask(&work, form()).await.unwrap() else { panic!("nobody answers a call") };
    work.answer("plain");
    assert_eq!(end(&mut stream).await, Called::Outcome(result("plain")));
    proxy.refuse(false);
    until("the database is back", async || node.engine.list(&caller, None).await.is_ok()).await;
    assert!(node.engine.list(&caller, None).await.unwrap().tasks.is_empty());
    assert!(node.script.is_idle().await, "the work was begun once");
}
