//! Lost runners, zombies, retries, clean stops.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use taskhold::domain::clock::{Clock, ManualClock, Timestamp};
use taskhold::domain::ids::TaskId;
use taskhold::domain::outcome::Ending;
use taskhold::domain::task::Status;
use taskhold::domain::work::UpstreamTask;
use taskhold::engine::{Asked, BeatOutcome, Called, Caller};
use taskhold::executor::Attempt;
use tokio::sync::Notify;

use super::directed;
use super::harness::{Node, World, call};
use super::places::session;
use super::queue::claim_next;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::script::{how_many, result};
use crate::support::waiting::Waiting;

contract! {
    a_dead_nodes_tasks_go_on_by_their_policy,
    a_node_must_have_reported_in_time_to_judge_others,
    attempts_are_bounded,
    a_call_that_was_never_sent_is_tried_again_whatever_the_policy,
    a_call_whose_server_a_node_has_not_is_left_to_the_others,
    a_clean_stop_hands_back_what_may_be_repeated,
    a_stop_does_not_wait_for_ever,
    a_stop_hands_back_at_once_what_asks_and_may_be_repeated,
    a_stop_gives_its_time_to_what_asks_and_may_not_be_repeated,
    what_goes_on_at_an_upstream_is_left_to_go_on,
    what_an_upstream_forgot_is_made_anew_only_where_that_is_harmless,
    an_upstream_out_of_reach_is_looked_for_so_often,
    a_claim_that_no_runner_knows_is_recovered,
    a_node_that_lost_its_database_dispatches_nothing,
    a_heartbeat_that_took_long_measures_nothing,
    a_node_that_stood_still_judges_nobody_and_sends_nothing,
    a_claim_of_an_earlier_id_is_not_sent,
    a_call_that_was_not_sent_when_the_stop_began_is_handed_back,
    a_call_that_is_no_task_and_outlasts_the_stop_ends_with_an_unknown_outcome,
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
// field case: F-OPS-07
async fn a_call_whose_server_a_node_has_not_is_left_to_the_others(database: TestDatabase) {
    let world = World::new(database).await;
    let (old, new, caller) = (world.node().await, world.node().await, world.caller("a").await);
    old.script.lacks_servers();
    // More often than a call is attempted.
    let task = old.create(&caller, "once").await;
    let said = "queued: the node that claimed it has no server script";
    for _ in 0..5 {
        old.until_message(&caller, task.id, said).await;
        world.clock.advance(Duration::from_secs(2));
        old.engine.beat_once().await.unwrap();
        claim(&old).await;
    }
    old.until_message(&caller, task.id, said).await;
    world.clock.advance(Duration::from_secs(2));
    new.engine.beat_once().await.unwrap();
    claim(&new).await;
    let work = new.script.next().await;
    assert_eq!(work.call.attempt, 1, "none of those was one");
    work.answer("here");
    assert_eq!(new.engine.result(&caller, task.id).await.unwrap().1, result("here"));
    assert!(old.script.is_idle().await);
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

fn theirs(session: Option<&str>) -> UpstreamTask {
    UpstreamTask {
        id: "\"their-id\"".to_owned(),
        session: session.map(str::to_owned),
        revision: "2025-11-25".to_owned(),
    }
}

// req: KEEP-07, KEEP-10
async fn what_goes_on_at_an_upstream_is_left_to_go_on(database: TestDatabase) {
    let world = World::new(database).await;
    let (leaving, staying, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let task = leaving.create(&caller, "once").await;
    let work = leaving.script.next().await;
    assert_eq!(work.call.resume, None);
    assert!(work.host.handed_over(theirs(Some("s"))).await);
    let drained = tokio::time::timeout(Duration::from_secs(10), leaving.engine.drain(Duration::from_secs(30))).await;
    assert!(drained.is_ok(), "who keeps the host of a call that is over keeps no slot");
    assert!(!work.stop.is_cancelled(), "its upstream is told nothing");
    claim(&staying).await;
    let resumed = staying.script.next().await;
    assert_eq!((resumed.call.attempt, &resumed.call.resume), (1, &Some(theirs(Some("s")))));
    let judge = world.node().await;
    judge.beat_until_it_may_judge().await;
    world.database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    judge.engine.beat_once().await.unwrap();
    assert_eq!(judge.engine.recover_once().await.unwrap(), 1);
    // Nothing is made again.
    judge.until_message(&caller, task.id, "its node was lost; following the server's own task").await;
    assert_eq!(staying.engine.beat_once().await.unwrap(), BeatOutcome::Reborn);
    world.clock.advance(Duration::from_secs(2));
    claim(&judge).await;
    let again = judge.script.next().await;
    assert!(!resumed.stop.is_cancelled(), "nor by a node that was taken for dead");
    assert_eq!((again.call.attempt, &again.call.resume), (1, &Some(theirs(Some("s")))));
    again.answer("from afar");
    assert_eq!(judge.engine.result(&caller, task.id).await.unwrap().1, result("from afar"));
}

// req: KEEP-07
async fn what_an_upstream_forgot_is_made_anew_only_where_that_is_harmless(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let lost = || Attempt::Lost { detail: "it knows nothing".to_owned() };
    for session in [Some("s"), Some("process:1")] {
        let once = node.create(&caller, "once").await;
        let work = claim_next(&node).await;
        assert!(work.host.handed_over(theirs(session)).await);
        work.end(lost());
        let (ended, outcome) = node.engine.result(&caller, once.id).await.unwrap();
        assert_eq!(ended.status, Status::Ended(Ending::Failed));
        assert!(outcome.json().unwrap().as_str().contains("outcome_unknown"));

        let again = node.create(&caller, "again").await;
        let work = claim_next(&node).await;
        assert!(work.host.handed_over(theirs(session)).await);
        work.end(lost());
        node.until_message(&caller, again.id, "attempt 1 of 3 did not end: it knows nothing; trying again").await;
        world.clock.advance(Duration::from_secs(2));
        claim(&node).await;
        let resumed = node.script.next().await;
        assert_eq!((resumed.call.attempt, &resumed.call.resume), (2, &Some(theirs(session))));
        resumed.end(lost());
        let anew = node.script.next().await;
        assert_eq!((anew.call.attempt, &anew.call.resume), (2, &None));
        let kept =
            format!("SELECT COUNT(*) FROM upstream_tasks WHERE task = {}", world.database.id(again.id.as_uuid()));
        assert_eq!(world.database.number(&kept).await, 0, "nobody follows what is lost");
        anew.answer("anew");
        assert_eq!(node.engine.result(&caller, again.id).await.unwrap().1, result("anew"));
    }
}

// req: KEEP-07
async fn an_upstream_out_of_reach_is_looked_for_so_often(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "once").await;
    let mut work = node.script.next().await;
    assert!(work.host.handed_over(theirs(Some("s"))).await);
    // Within the time that a call may take, as often as it needs.
    for (round, attempt) in [1, 1, 1, 1, 1, 2, 3].into_iter().enumerate() {
        assert_eq!(work.call.attempt, attempt, "round {round}");
        if round == 4 {
            world.clock.advance(world.rules.run_limit);
        }
        if attempt == 3 {
            break;
        }
        work.end(Attempt::NotDispatched { detail: "it is away".to_owned() });
        let message = format!("attempt {attempt} of 3 did not end: it is away; trying again");
        node.until_message(&caller, task.id, &message).await;
        world.clock.advance(Duration::from_secs(61));
        node.engine.beat_once().await.unwrap();
        claim(&node).await;
        work = node.script.next().await;
        assert_eq!(work.call.resume, Some(theirs(Some("s"))));
    }
    work.end(Attempt::NotDispatched { detail: "it is away".to_owned() });
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    assert!(outcome.json().unwrap().as_str().contains("outcome_unknown"));
}

// req: KEEP-10
async fn a_call_that_is_no_task_and_outlasts_the_stop_ends_with_an_unknown_outcome(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, in_session, alone) = (world.node().await, world.caller("a").await, directed::caller(&world, "a").await);
    let asked = || Asked::in_session("1".to_owned(), true, true);
    let plain = node.engine.call(&in_session, call("once"), asked()).await.unwrap();
    // One that would become a task.
    let with_grace = directed::stream(&node, &alone, "once").await;
    let works = [node.script.next().await, node.script.next().await];
    node.engine.drain(Duration::ZERO).await;
    assert!(works.iter().all(|work| !work.stop.is_cancelled()), "they have what is left of the period");
    node.engine.cut_calls();
    for work in works {
        work.stop.cancelled().await;
    }
    for mut stream in [plain, with_grace] {
        let Called::Outcome(outcome) = directed::end(&mut stream).await else { panic!("no outcome") };
        assert!(outcome.json().unwrap().as_str().contains(r#""reason":"outcome_unknown""#));
    }
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

// req: KEEP-10, INPUT-05
async fn a_stop_hands_back_at_once_what_asks_and_may_be_repeated(database: TestDatabase) {
    let world = World::new(database).await;
    let (leaving, staying, caller) = (world.node().await, world.node().await, session(&world).await);
    let task = leaving.create(&caller, "again").await;
    let work = leaving.script.next().await;
    let _asked = work.ask(how_many());
    until_status(&leaving, &caller, task.id, Status::InputRequired).await;
    // Nobody waits for a person while another node could ask again.
    let drained = leaving.engine.drain(Duration::from_secs(3600));
    tokio::time::timeout(Duration::from_secs(10), drained).await.expect("it does not wait for the answer");
    assert_eq!(staying.status(&caller, task.id).await, Status::Working, "its question is withdrawn");
    claim(&staying).await;
    let second = staying.script.next().await;
    assert_eq!(second.call.attempt, 1, "a hand-back is no attempt");
    second.answer("elsewhere");
    assert_eq!(staying.engine.result(&caller, task.id).await.unwrap().1, result("elsewhere"));
}

// req: KEEP-10, INPUT-05
async fn a_stop_gives_its_time_to_what_asks_and_may_not_be_repeated(database: TestDatabase) {
    let world = World::new(database).await;
    let (leaving, staying, caller) = (world.node().await, world.node().await, session(&world).await);
    let tasks = [leaving.create(&caller, "once").await, leaving.create(&caller, "once").await];
    let works = [leaving.script.next().await, leaving.script.next().await];
    for (task, work) in tasks.iter().zip(&works) {
        let _asked = work.ask(how_many());
        until_status(&leaving, &caller, task.id, Status::InputRequired).await;
    }
    let [answered, unanswered] = works;
    let engine = Arc::clone(&leaving.engine);
    let drain = tokio::spawn(async move { engine.drain(Duration::from_secs(2)).await });
    answered.answer("in time");
    until_status(&staying, &caller, tasks[0].id, Status::Ended(Ending::Completed)).await;
    assert!(!unanswered.stop.is_cancelled(), "it waits on");
    drain.await.unwrap();
    // The server that asked ends with this node: no answer could reach it any more.
    let (ended, outcome) = staying.engine.result(&caller, tasks[1].id).await.unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    assert!(outcome.json().unwrap().as_str().contains("outcome_unknown"));
}

async fn until_status(node: &Node, caller: &Caller, task: TaskId, wanted: Status) {
    let seen = async {
        while node.status(caller, task).await != wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), seen).await.expect("it comes to stand so");
}

// req: KEEP-07
async fn a_claim_that_no_runner_knows_is_recovered(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (node, caller) = (world.node().await, world.caller("a").await);
    node.create(&caller, "once").await;
    let forgotten = node.create(&caller, "once").await;
    world.database.claim_for_the_only_node(forgotten.id, node.engine.now()).await;
    node.beat_until_it_may_judge().await;
    node.engine.recover_once().await.unwrap();
    assert_eq!(node.status(&caller, forgotten.id).await, Status::Working, "it may still be on its way");
    world.clock.advance(Duration::from_secs(11));
    node.beat_until_it_may_judge().await;
    node.engine.recover_once().await.unwrap();
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

/// A boot-time clock that moves by a step whenever it is read, and counts measurements.
#[derive(Default)]
struct Stepping {
    boot: AtomicU64,
    step_s: AtomicU64,
    measured: AtomicU64,
}

impl Clock for Stepping {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(0) + self.boot()
    }

    fn boot(&self) -> Duration {
        Duration::from_secs(self.boot.fetch_add(self.step_s.load(SeqCst), SeqCst))
    }

    fn adjust(&self, _database: Timestamp, _at: Duration) -> Duration {
        self.measured.fetch_add(1, SeqCst);
        Duration::ZERO
    }
}

// req: KEEP-04
async fn a_heartbeat_that_took_long_measures_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let clock = Arc::new(Stepping::default());
    let node = world.node_with(clock.clone()).await;
    let measured = async || {
        node.engine.beat_once().await.unwrap();
        clock.measured.load(SeqCst)
    };
    assert_eq!(measured().await, 2, "at the start and by this heartbeat");
    clock.step_s.store(8, SeqCst); // as when another process holds SQLite's lock
    assert_eq!(measured().await, 2);
    clock.step_s.store(0, SeqCst);
    assert_eq!(measured().await, 3);
}

// req: KEEP-09
async fn a_node_that_stood_still_judges_nobody_and_sends_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (doomed, node, caller) = (world.node().await, world.node().await, world.caller("a").await);
    doomed.create(&caller, "once").await;
    node.beat_until_it_may_judge().await;
    world.database.silence_nodes(Duration::from_secs(30)).await;
    // Both stood still, as on a machine that slept: this one wakes up first.
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(node.engine.recover_once().await.unwrap(), 0);
    let task = node.create(&caller, "once").await;
    node.until_message(&caller, task.id, "queued: the node that claimed it lost its database").await;
    assert!(node.script.is_idle().await);
}

/// The world's clock; the first attempt to read the boot-time clock once it is armed stands still there until it may go on.
struct Standing {
    clock: Arc<ManualClock>,
    armed: AtomicBool,
    reached: Notify,
    may_go_on: Mutex<mpsc::Receiver<()>>,
}

impl Clock for Standing {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn boot(&self) -> Duration {
        if self.armed.swap(false, SeqCst) {
            self.reached.notify_one();
            let _freed = self.may_go_on.lock().unwrap().recv();
        }
        self.clock.boot()
    }

    fn adjust(&self, _database: Timestamp, _at: Duration) -> Duration {
        Duration::ZERO
    }
}

/// It stood still between its claim and the check, was declared dead, and joined again: its heartbeat is young, and the claim
/// somebody else's.
// req: KEEP-09
async fn a_claim_of_an_earlier_id_is_not_sent(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (go_on, may_go_on) = mpsc::channel();
    let clock = Arc::new(Standing {
        clock: world.clock.clone(),
        armed: AtomicBool::new(false),
        reached: Notify::new(),
        may_go_on: Mutex::new(may_go_on),
    });
    let (doomed, heir, caller) = (world.node_with(clock.clone()).await, world.node().await, world.caller("a").await);
    heir.create(&caller, "again").await;
    let (first, task) = (heir.script.next().await, heir.create(&caller, "again").await);
    clock.armed.store(true, SeqCst);
    assert_eq!(doomed.engine.claim_once().await.unwrap(), 1);
    clock.reached.notified().await;
    heir.beat_until_it_may_judge().await;
    world.database.silence_nodes(Duration::from_secs(30)).await;
    heir.engine.beat_once().await.unwrap();
    assert_eq!(heir.engine.recover_once().await.unwrap(), 1);
    assert_eq!(doomed.engine.beat_once().await.unwrap(), BeatOutcome::Reborn);
    go_on.send(()).unwrap();
    // It is the only slot: free again once the attempt is over.
    let over = async {
        while doomed.engine.free_slots() < 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), over).await.expect("the attempt ends without being sent");
    assert!(doomed.script.is_idle().await, "nothing is sent under a lease that was taken away");
    first.answer("done");
    world.clock.advance(Duration::from_secs(2));
    heir.engine.beat_once().await.unwrap();
    claim(&heir).await;
    heir.script.next().await.answer("the heir's");
    assert_eq!(heir.engine.result(&caller, task.id).await.unwrap().1, result("the heir's"));
}

// req: KEEP-10
async fn a_call_that_was_not_sent_when_the_stop_began_is_handed_back(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (leaving, staying, caller) = (world.node().await, world.node().await, world.caller("a").await);
    staying.create(&caller, "once").await;
    let (first, waiting) = (staying.script.next().await, staying.create(&caller, "once").await);
    // The claim is on its way when the stop begins.
    let (claimed, ()) = tokio::join!(leaving.engine.claim_once(), leaving.engine.drain(Duration::from_secs(30)));
    assert_eq!(claimed.unwrap(), 1);
    assert!(leaving.script.is_idle().await);
    assert_eq!(staying.message(&caller, waiting.id).await, "queued: the service is being restarted");
    first.answer("done");
    claim(&staying).await;
    let second = staying.script.next().await;
    assert_eq!(second.call.attempt, 1, "a hand-back is no attempt");
    second.answer("elsewhere");
    assert_eq!(staying.engine.result(&caller, waiting.id).await.unwrap().1, result("elsewhere"));
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
