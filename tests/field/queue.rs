//! The queue, leases and limits, with work that is done by the test and a clock moved by hand. A process that stands still and
//! comes back is in `process/paused.rs`.

use std::time::Duration;

use taskhold::domain::ids::{LeaseToken, NodeId, TaskId};
use taskhold::domain::outcome::Ending;
use taskhold::domain::task::Status;
use taskhold::executor::Attempt;

use crate::engine::harness::{Node, World};
use crate::engine::queue::claim_next;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::script::result;
use crate::support::waiting::Waiting;

contract! {
    long_work_is_never_taken_from_a_node_that_reports,
    work_that_hangs_is_given_up_and_frees_its_slot,
    live_rows_and_bad_rows_hide_no_lost_ones,
    a_cancel_needs_nobody_who_runs,
    limits_count_from_the_attempt,
}

// field case: F-Q-02
async fn long_work_is_never_taken_from_a_node_that_reports(database: TestDatabase) {
    let mut world = World::new(database).await;
    let day = Duration::from_secs(24 * 3600);
    (world.rules.run_limit, world.rules.hard_run_limit) = (day, day);
    let (worker, judge, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let task = worker.create(&caller, "again").await;
    let work = worker.script.next().await;
    judge.beat_until_it_may_judge().await;
    // Many times the lease, and each report comes late, as from a machine with no time left, or before a database that stalls.
    for _ in 0..40 {
        world.clock.advance(Duration::from_secs(9));
        world.database.silence_nodes(Duration::from_secs(9)).await;
        judge.engine.beat_once().await.unwrap();
        assert_eq!(judge.engine.recover_once().await.unwrap(), 0);
        assert_eq!(judge.engine.claim_once().await.unwrap(), 0);
        worker.engine.beat_once().await.unwrap();
        worker.engine.recover_once().await.unwrap();
    }
    assert!(worker.script.is_idle().await && judge.script.is_idle().await, "it runs once");
    work.answer("after six minutes");
    worker.engine.result(&caller, task.id).await.unwrap();
    assert_eq!(judge.engine.result(&caller, task.id).await.unwrap().1, result("after six minutes"));
    let attempts = "SELECT attempt FROM task_outcomes";
    assert_eq!(world.database.number(attempts).await, 1);
}

// field case: F-Q-04
async fn work_that_hangs_is_given_up_and_frees_its_slot(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let hung = node.create(&caller, "brief").await;
    let next = node.create(&caller, "once").await;
    let work = node.script.next().await;
    node.engine.beat_once().await.unwrap();
    let (ended, outcome) = node.engine.result(&caller, hung.id).await.unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    assert!(ended.message.unwrap().starts_with("run time exceeded"));
    assert!(outcome.json().unwrap().as_str().contains(r#""reason":"run_time_exceeded""#));
    assert!(work.stop.is_cancelled(), "its upstream is told");
    claim_next(&node).await.answer("its turn");
    assert_eq!(node.engine.result(&caller, next.id).await.unwrap().1, result("its turn"));
}

// field case: F-Q-05
async fn live_rows_and_bad_rows_hide_no_lost_ones(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 20;
    let (doomed, caller) = (world.node().await, world.caller("a").await);
    let mut lost = Vec::new();
    for at in 0..10 {
        lost.push(doomed.create(&caller, if at % 2 == 0 { "once" } else { "again" }).await.id);
    }
    let mut zombies = Vec::new();
    for _ in 0..10 {
        zombies.push(doomed.script.next().await);
    }
    world.database.silence_nodes(Duration::from_secs(30)).await;
    let heir = world.node().await;
    // A node that lives holds many, whose ids are below and above those of the lost ones.
    let busy = NodeId::new();
    world.database.store.system().register_node(busy).await.unwrap();
    hold_many(&world, busy, 10_000).await;
    let id = |task: TaskId| world.database.id(task.as_uuid());
    world.database.sql(&format!("UPDATE task_requests SET params = '{{\"x' WHERE task = {}", id(lost[1]))).await;
    world.database.sql(&format!("UPDATE tasks SET tool = 'gone', upstream = 'gone' WHERE id = {}", id(lost[2]))).await;
    heir.beat_until_it_may_judge().await;
    // One sweep, and the row that cannot be read is ended by the reading.
    assert_eq!(heir.engine.recover_once().await.unwrap(), 9);
    for (at, &task) in lost.iter().enumerate() {
        let status = heir.status(&caller, task).await;
        let waits = at % 2 == 1 && at != 1;
        assert_eq!(status, if waits { Status::Working } else { Status::Ended(Ending::Failed) }, "{at}");
    }
    // The others flow.
    world.clock.advance(Duration::from_secs(2));
    heir.engine.beat_once().await.unwrap();
    assert_eq!(heir.engine.claim_once().await.unwrap(), 4);
    for _ in 0..4 {
        let work = heir.script.next().await;
        assert_eq!(work.call.attempt, 2);
        work.answer("again");
    }
    for at in [3, 5, 7, 9] {
        assert_eq!(heir.engine.result(&caller, lost[at]).await.unwrap().1, result("again"));
    }
}

/// Live rows of a node, written behind the store's back.
async fn hold_many(world: &World, node: NodeId, count: usize) {
    let (random, numbers) = match world.database.backend {
        Backend::Sqlite => (
            "randomblob(16)",
            format!(
                "(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) SELECT n FROM n)"
            ),
        ),
        Backend::Postgres => ("gen_random_uuid()", format!("generate_series(1, {count})")),
    };
    let (node, token) = (world.database.id(node.as_uuid()), world.database.id(LeaseToken::new().as_uuid()));
    world
        .database
        .sql(&format!(
            "INSERT INTO task_live (task, node, token, attempt, not_before, claimed, hard_end)
             SELECT {random}, {node}, {token}, 1, 1, 1, 9000000000000000000 FROM {numbers} AS numbers"
        ))
        .await;
}

// field case: F-Q-07
async fn a_cancel_needs_nobody_who_runs(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (stopped, caller) = (world.node().await, world.caller("a").await);
    let leased = stopped.create(&caller, "once").await;
    let queued = stopped.create(&caller, "once").await;
    let work = stopped.script.next().await;
    world.database.silence_nodes(Duration::from_secs(30)).await;
    world.rules.slots = 0;
    let here = world.node().await;
    for (task, message) in [
        (&leased, "cancelled by request; that its work has stopped is not confirmed"),
        (&queued, "cancelled by request"),
    ] {
        let cancelled = here.engine.cancel(&caller, task.id).await.unwrap();
        assert_eq!((cancelled.status, cancelled.message.as_deref()), (Status::Ended(Ending::Cancelled), Some(message)));
    }
    here.beat_until_it_may_judge().await;
    assert_eq!(here.engine.recover_once().await.unwrap(), 0, "nothing is left to settle");
    assert_eq!(world.database.number("SELECT COUNT(*) FROM task_live").await, 0);
    // Who comes back has nothing to say any more.
    work.answer("late");
    stopped.engine.beat_once().await.unwrap();
    let (ended, outcome) = here.engine.result(&caller, leased.id).await.unwrap();
    assert_eq!((ended.status, outcome.json()), (Status::Ended(Ending::Cancelled), None));
}

// field case: F-Q-09
async fn limits_count_from_the_attempt(database: TestDatabase) {
    let mut world = World::new(database).await;
    let hour = Duration::from_secs(3600);
    (world.rules.slots, world.rules.run_limit, world.rules.hard_run_limit) = (1, hour, hour);
    let (node, caller) = (world.node().await, world.caller("a").await);
    node.create(&caller, "once").await;
    let first = node.script.next().await;
    let old = node.create(&caller, "again").await;
    later(&world, &node, 2 * hour).await;
    first.answer("at last");
    let work = claim_next(&node).await;
    assert!(!work.stop.is_cancelled(), "it is two hours old, and has just begun");
    // Nor does what came before count for the next attempt.
    later(&world, &node, hour / 2).await;
    work.end(Attempt::Lost { detail: "its process ended".to_owned() });
    node.until_message(&caller, old.id, "attempt 1 of 3 did not end: its process ended; trying again").await;
    later(&world, &node, hour).await;
    let work = claim_next(&node).await;
    assert_eq!((work.call.attempt, work.stop.is_cancelled()), (2, false));
    work.answer("done");
    assert_eq!(node.engine.result(&caller, old.id).await.unwrap().1, result("done"));
}

async fn later(world: &World, node: &Node, time: Duration) {
    world.clock.advance(time);
    node.engine.beat_once().await.unwrap();
}
