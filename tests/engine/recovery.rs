//! Lost runners, zombies, retries, clean stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use taskhold::domain::clock::{Clock, ManualClock, Timestamp};
use taskhold::domain::outcome::Ending;
use taskhold::domain::task::Status;
use taskhold::engine::{BeatOutcome, Engine, EngineParts};
use taskhold::executor::Attempt;

use super::harness::{Node, World, rules};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::script::{Script, Tools, result};

contract! {
    a_dead_nodes_tasks_go_on_by_their_policy,
    a_node_must_have_reported_in_time_to_judge_others,
    attempts_are_bounded,
    a_call_that_was_never_sent_is_tried_again_whatever_the_policy,
    a_clean_stop_hands_back_what_may_be_repeated,
    a_stop_does_not_wait_for_ever,
    a_claim_that_no_runner_knows_is_recovered,
    a_node_that_lost_its_database_dispatches_nothing,
    a_slow_heartbeat_does_not_move_the_clock,
}

// req: KEEP-06, KEEP-07, KEEP-09
async fn a_dead_nodes_tasks_go_on_by_their_policy(database: TestDatabase) {
    let world = World::new(database).await;
    let (doomed, heir, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let once = doomed.create(&caller, "once").await;
    let again = doomed.create(&caller, "again").await;
    let zombies = [doomed.script.next().await, doomed.script.next().await];
    heir.beat_until_it_may_judge().await;
    assert_eq!(heir.engine.recover_once().await.unwrap(), 0, "nobody is dead yet");
    world.database.silence_nodes(Duration::from_secs(30)).await;
    heir.engine.beat_once().await.unwrap();
    assert_eq!(heir.engine.recover_once().await.unwrap(), 2);

    let (ended, outcome) = heir.engine.result(&caller, once.id).await.unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    assert!(outcome.json().unwrap().as_str().contains(r#""reason":"outcome_unknown""#));
    assert_eq!(heir.status(&caller, again.id).await, Status::Working);
    assert_eq!(heir.engine.claim_once().await.unwrap(), 0, "a retry backs off first");
    world.clock.advance(Duration::from_secs(2));
    assert_eq!(heir.engine.claim_once().await.unwrap(), 1);
    let second = heir.script.next().await;
    assert_eq!(second.call.attempt, 2);

    for zombie in zombies {
        zombie.answer("from the grave");
    }
    assert_eq!(doomed.engine.beat_once().await.unwrap(), BeatOutcome::Reborn);
    second.answer("the heir's");
    assert_eq!(heir.engine.result(&caller, again.id).await.unwrap().1, result("the heir's"));
    assert_eq!(heir.engine.get(&caller, once.id).await.unwrap(), ended);
}

async fn a_node_must_have_reported_in_time_to_judge_others(database: TestDatabase) {
    let world = World::new(database).await;
    let (doomed, judge, caller) = (world.node().await, world.node().await, world.caller("a").await);
    doomed.create(&caller, "once").await;
    world.database.silence_nodes(Duration::from_secs(30)).await;
    for _ in 0..3 {
        judge.engine.beat_once().await.unwrap();
        assert_eq!(judge.engine.recover_once().await.unwrap(), 0);
    }
    world.clock.advance(Duration::from_secs(60)); // a database outage, say
    judge.engine.beat_once().await.unwrap();
    assert_eq!(judge.engine.recover_once().await.unwrap(), 0, "a late beat starts the count anew");
    judge.beat_until_it_may_judge().await;
    assert_eq!(judge.engine.recover_once().await.unwrap(), 1);
}

// req: KEEP-08
async fn attempts_are_bounded(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "again").await;
    for attempt in 1..=3 {
        let work = node.script.next().await;
        assert_eq!(work.call.attempt, attempt);
        work.end(Attempt::Lost { detail: "its process ended".to_owned() });
        if attempt < 3 {
            let message = format!("attempt {attempt} of 3 did not end: its process ended; trying again");
            node.until_message(&caller, task.id, &message).await;
            world.clock.advance(Duration::from_secs(5));
            node.engine.beat_once().await.unwrap(); // work is dispatched only by a node that reported lately
            claim(&node).await;
        }
    }
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    assert!(outcome.json().unwrap().as_str().contains("outcome_unknown"));
}

// req: KEEP-07
async fn a_call_that_was_never_sent_is_tried_again_whatever_the_policy(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let lost = node.create(&caller, "once").await;
    node.script.next().await.end(Attempt::Lost { detail: "its process ended".to_owned() });
    let (ended, _) = node.engine.result(&caller, lost.id).await.unwrap();
    assert!(ended.message.unwrap().starts_with("outcome unknown"));

    let task = node.create(&caller, "once").await;
    node.script.next().await.end(Attempt::NotDispatched { detail: "it did not start".to_owned() });
    node.until_message(&caller, task.id, "attempt 1 of 3 did not end: it did not start; trying again").await;
    world.clock.advance(Duration::from_secs(2));
    claim(&node).await;
    node.script.next().await.answer("second try");
    assert_eq!(node.engine.result(&caller, task.id).await.unwrap().1, result("second try"));
}

// req: KEEP-10
async fn a_clean_stop_hands_back_what_may_be_repeated(database: TestDatabase) {
    let world = World::new(database).await;
    let (leaving, staying, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let again = leaving.create(&caller, "again").await;
    let (repeatable, ending) = (leaving.script.next().await, leaving.create(&caller, "once").await);
    let finishing = leaving.script.next().await;
    let drain = tokio::spawn({
        let engine = leaving.engine.clone();
        async move { engine.drain(Duration::from_secs(30)).await }
    });
    repeatable.stop.cancelled().await;
    assert!(!finishing.stop.is_cancelled(), "what may not be repeated gets its time");
    let refused = loop {
        match leaving.engine.create_task(&caller, super::harness::call("once"), None).await {
            Err(refused) => break refused,
            Ok(_) => tokio::task::yield_now().await,
        }
    };
    assert!(matches!(refused, taskhold::engine::Refusal::ShuttingDown));
    finishing.answer("in time");
    drain.await.unwrap();
    assert_eq!(staying.engine.result(&caller, ending.id).await.unwrap().1, result("in time"));
    claim(&staying).await;
    let taken = staying.script.next().await;
    assert_eq!(taken.call.attempt, 1, "a hand-back is no attempt");
    taken.answer("elsewhere");
    assert_eq!(staying.engine.result(&caller, again.id).await.unwrap().1, result("elsewhere"));
}

// req: KEEP-10
async fn a_stop_does_not_wait_for_ever(database: TestDatabase) {
    let world = World::new(database).await;
    let (leaving, staying, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let task = leaving.create(&caller, "once").await;
    let work = leaving.script.next().await;
    leaving.engine.drain(Duration::from_millis(50)).await;
    assert!(work.stop.is_cancelled());
    let (ended, outcome) = staying.engine.result(&caller, task.id).await.unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    assert!(outcome.json().unwrap().as_str().contains("outcome_unknown"));
}

// req: KEEP-07
async fn a_claim_that_no_runner_knows_is_recovered(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (node, caller) = (world.node().await, world.caller("a").await);
    node.create(&caller, "once").await;
    let forgotten = node.create(&caller, "once").await;
    world.database.claim_for_the_only_node(forgotten.id, node.engine.now()).await;
    for _ in 0..4 {
        node.engine.beat_once().await.unwrap();
    }
    assert_eq!(node.status(&caller, forgotten.id).await, Status::Working, "it may still be on its way");
    world.clock.advance(Duration::from_secs(11));
    for _ in 0..4 {
        node.engine.beat_once().await.unwrap();
    }
    assert_eq!(node.status(&caller, forgotten.id).await, Status::Ended(Ending::Failed));
}

// req: KEEP-09
async fn a_node_that_lost_its_database_dispatches_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    world.clock.advance(Duration::from_secs(11)); // no heartbeat since the start
    let task = node.create(&caller, "once").await;
    node.until_message(&caller, task.id, "queued: the node that claimed it lost its database").await;
    assert!(node.script.is_idle().await);
    node.engine.beat_once().await.unwrap();
    claim(&node).await;
    let work = node.script.next().await;
    assert_eq!(work.call.attempt, 1);
    work.answer("later");
    node.engine.result(&caller, task.id).await.unwrap();
}

/// Claims one task; the slot of the attempt before may be given back a moment after its end was written.
async fn claim(node: &Node) {
    let claimed = async {
        while node.engine.claim_once().await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), claimed).await.expect("there is a task to claim");
}

/// Counts how often it is set; time passes while it is asked if `slow` says so.
struct CountedClock {
    hands: Arc<ManualClock>,
    slow: AtomicBool,
    set: AtomicU32,
}

impl Clock for CountedClock {
    fn now(&self) -> Timestamp {
        self.hands.now()
    }

    fn boot(&self) -> Duration {
        if self.slow.load(Ordering::SeqCst) {
            self.hands.advance(Duration::from_secs(3));
        }
        self.hands.boot()
    }

    fn adjust(&self, _database: Timestamp, _at: Duration) -> Duration {
        self.set.fetch_add(1, Ordering::SeqCst);
        Duration::from_secs(60)
    }
}

/// A heartbeat that waited for a lock told a time of its end as that of its middle, and set the clock ahead by it.
async fn a_slow_heartbeat_does_not_move_the_clock(database: TestDatabase) {
    let hands = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let clock = Arc::new(CountedClock { hands, slow: AtomicBool::new(false), set: AtomicU32::new(0) });
    let parts = EngineParts {
        store: database.store.clone(),
        clock: clock.clone(),
        executor: Script::new(),
        catalogue: Tools::new(Vec::new()),
        rules: rules(),
    };
    let engine = Engine::join(parts).await.unwrap();
    engine.beat_once().await.unwrap();
    assert_eq!(clock.set.load(Ordering::SeqCst), 2, "set by joining and by a heartbeat");
    clock.slow.store(true, Ordering::SeqCst);
    assert_eq!(engine.beat_once().await.unwrap(), BeatOutcome::Alive);
    assert_eq!(clock.set.load(Ordering::SeqCst), 2);
    clock.slow.store(false, Ordering::SeqCst);
    engine.beat_once().await.unwrap();
    assert_eq!(clock.set.load(Ordering::SeqCst), 3);
}
