//! Links to PostgreSQL that break at the worst moment: after the commit, before its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::ids::{ContextId, LeaseToken, NodeId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::Lease;
use taskhold::domain::outcome::{Ending, Outcome};
use taskhold::domain::task::Status;
use taskhold::engine::{Caller, Refusal};
use taskhold::lifecycle::spawn;
use taskhold::store::{
    self, DatabaseOptions, End, Ended, Finish, Note, Pooler, Release, Store, StoreError, SystemStore,
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::engine::harness::{Node, World, call};
use crate::support::database::{Backend, TestDatabase, hold, number, options};
use crate::support::pgproxy::{Moment, PgProxy};
use crate::support::script::result;
use crate::support::tasks::new_task;
use crate::support::waiting::Waiting;

const CREATION: &str = "INSERT INTO tasks";
const CLAIM: &str = "FOR UPDATE SKIP LOCKED";
const COMMIT: &str = "COMMIT";
const COMPLETION: &str = "INSERT INTO task_outcomes";
const NOTE: &str = "COALESCE(k.progress, t.progress)";
const RELEASE: &str = "SET node = NULL";
/// A broken link is noticed within this (KEEP-17).
const NOTICED: Duration = Duration::from_secs(10);

/// A store that reaches its database by way of a proxy, and a way to the truth that does not.
struct Broken {
    proxy: PgProxy,
    store: SystemStore,
    truth: SystemStore,
    context: ContextId,
    node: NodeId,
    database: TestDatabase,
}

impl Broken {
    async fn new() -> Self {
        let database = TestDatabase::new(Backend::Postgres).await;
        let (proxy, url) = PgProxy::before_url(&database.url).await;
        let (store, truth) = (open(&url).await.system(), database.store.system());
        let context = truth.ensure_context(ContextKey::default(), at(0)).await.unwrap();
        let node = NodeId::new();
        truth.register_node(node).await.unwrap();
        Self { proxy, store, truth, context, node, database }
    }

    /// A task that this node runs.
    async fn running(&self) -> (TaskId, LeaseToken) {
        let (id, token) = (TaskId::new(), LeaseToken::new());
        self.truth.create(self.context, new_task(id, at(0), Some((self.node, token)))).await.unwrap();
        (id, token)
    }

    async fn listed(&self) -> Vec<TaskId> {
        let mut ids: Vec<_> =
            self.truth.list(self.context, None, 1000, at(0)).await.unwrap().iter().map(|task| task.id).collect();
        ids.sort_unstable();
        ids
    }
}

// req: LIFE-06
#[tokio::test]
async fn a_creation_whose_answer_is_lost_happened_once() {
    for moment in [Moment::Before, Moment::AfterCommit] {
        let broken = Broken::new().await;
        let cut = broken.proxy.cut(CREATION, moment);
        let claims: Vec<_> = (0..64).map(|_| (TaskId::new(), LeaseToken::new())).collect();
        let creations = claims
            .iter()
            .map(|&(id, token)| broken.store.create(broken.context, new_task(id, at(0), Some((broken.node, token)))));
        for created in join_all(creations).await {
            created.unwrap();
        }
        cut.await.unwrap();
        let mut ids: Vec<_> = claims.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        assert_eq!(broken.listed().await, ids, "{moment:?}");
        let held: Vec<Lease> = broken.truth.held(broken.node).await.unwrap();
        assert_eq!(held.len(), claims.len());
        assert!(held.iter().all(|lease| claims.contains(&(lease.task, lease.token)) && lease.attempt == 1));
    }
}

/// A server that was lost sight of may commit after it was asked what it has.
// req: LIFE-06, KEEP-11
#[tokio::test]
async fn a_creation_that_lands_late_is_not_refused() {
    let broken = Broken::new().await;
    for count in [1, 8] {
        let ids: Vec<TaskId> = (0..count).map(|_| TaskId::new()).collect();
        let mut late = hold(
            &broken.database.url,
            &format!(
                "INSERT INTO tasks (id, context, created, updated, status, granted_ttl, poll_interval, restart,
                    attempts_allowed, run_limit, tool, upstream, upstream_tool, capabilities)
                VALUES ('{}', '{}', 1, 1, 0, 1, 1, 0, 1, 1, 't', 'u', 'v', '{{}}')",
                ids[0], broken.context
            ),
        )
        .await;
        let cut = broken.proxy.cut(CREATION, Moment::Before);
        let creations = ids.iter().map(|&id| broken.store.create(broken.context, new_task(id, at(0), None)));
        let landing = async {
            let waiting = "SELECT COUNT(*) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND datname = current_database()";
            timeout(NOTICED, async { while number(&broken.database.url, waiting).await == 0 {} }).await.unwrap();
            sqlx::raw_sql("COMMIT").execute(&mut late).await.unwrap();
        };
        let (created, ()) = tokio::join!(join_all(creations), landing);
        cut.await.unwrap();
        for made in created {
            assert!(made.unwrap(), "{count}");
        }
    }
}

// req: KEEP-09, LIFE-04
#[tokio::test]
async fn a_completion_whose_answer_is_lost_finds_itself() {
    for moment in [Moment::Before, Moment::AfterCommit] {
        let broken = Broken::new().await;
        let running = join_all((0..32).map(|_| broken.running())).await;
        let cut = broken.proxy.cut(COMPLETION, moment);
        let finishes = running.iter().map(|&(task, token)| {
            let outcome = Outcome::Result { json: RawJson::trusted(format!(r#"{{"of":"{task}"}}"#)), is_error: false };
            broken.store.finish(Finish { task, token, end: end(outcome) })
        });
        let answers = join_all(finishes).await;
        cut.await.unwrap();
        for (&(task, token), answer) in running.iter().zip(answers) {
            let (stored, outcome) = broken.truth.outcome(broken.context, task).await.unwrap().unwrap();
            assert_eq!(answer.unwrap(), Ended::Done(stored.clone()), "{moment:?}");
            assert!(outcome.unwrap().json().unwrap().as_str().contains(&task.to_string()));
            // A stranger who repeats it is fenced; the writer finds itself once more.
            let again = |token| {
                let other = Outcome::Result { json: RawJson::trusted("{}"), is_error: true };
                broken.store.finish(Finish { task, token, end: end(other) })
            };
            assert_eq!(again(LeaseToken::new()).await.unwrap(), Ended::Refused);
            assert_eq!(again(token).await.unwrap(), Ended::Done(stored));
        }
        assert!(broken.truth.held(broken.node).await.unwrap().is_empty());
    }
}

// req: TASK-12
#[tokio::test]
async fn a_cancel_whose_answer_is_lost_finds_itself() {
    for moment in [Moment::Before, Moment::AfterCommit] {
        let broken = Broken::new().await;
        let (task, _) = broken.running().await;
        let cut = broken.proxy.cut(COMPLETION, moment);
        let answer = broken.store.cancel(broken.context, task, end(Outcome::Cancelled)).await.unwrap();
        cut.await.unwrap();
        assert_eq!(answer, Ended::Done(broken.truth.get(broken.context, task).await.unwrap().unwrap()), "{moment:?}");
        let again = broken.store.cancel(broken.context, task, end(Outcome::Cancelled)).await.unwrap();
        assert_eq!(again, Ended::Refused, "only one cancel ends a task");
    }
}

#[tokio::test]
async fn a_message_whose_answer_is_lost_is_written_once() {
    for moment in [Moment::Before, Moment::AfterCommit] {
        let broken = Broken::new().await;
        let (task, token) = broken.running().await;
        let cut = broken.proxy.cut(NOTE, moment);
        let note = Note { task, token, message: Some("half way".to_owned()), progress: None, now: at(1) };
        assert!(broken.store.note(note).await.unwrap().is_some(), "the lease holds");
        cut.await.unwrap();
        let stored = broken.truth.get(broken.context, task).await.unwrap().unwrap();
        assert_eq!((stored.message.as_deref(), stored.updated), (Some("half way"), at(1)), "{moment:?}");
    }
}

#[tokio::test]
async fn a_hand_back_whose_answer_is_lost_happened_once() {
    for moment in [Moment::Before, Moment::AfterCommit] {
        let broken = Broken::new().await;
        let (task, token) = broken.running().await;
        let cut = broken.proxy.cut(RELEASE, moment);
        let release = Release {
            task,
            token,
            not_before: at(2),
            counted: false,
            keep_inputs: false,
            message: "again".to_owned(),
            now: at(1),
        };
        broken.store.release(release).await.unwrap();
        cut.await.unwrap();
        assert_eq!(broken.truth.queue(10, at(2)).await.unwrap(), [task], "{moment:?}");
        let claims = broken.truth.claim(broken.node, vec![LeaseToken::new()], at(3)).await.unwrap();
        assert_eq!(claims[0].lease.attempt, 1, "an attempt is uncounted once");
    }
}

// req: KEEP-07
#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_run_all_the_same() {
    for moment in [Moment::Before, Moment::AfterCommit] {
        let Claiming { proxy, claimer, caller, waiting, world: _world } = Claiming::of("once").await;
        let cut = proxy.cut(CLAIM, moment);
        assert_eq!(claimer.engine.claim_once().await.unwrap(), 1, "{moment:?}");
        cut.await.unwrap();
        let call = claimer.script.next().await;
        assert_eq!(call.call.attempt, 1);
        call.answer("done");
        assert_eq!(claimer.engine.result(&caller, waiting).await.unwrap().1, result("done"));
    }
}

/// The commit may still land: what it took is the tokens', and nothing else may be.
// req: KEEP-07
#[tokio::test]
async fn a_claim_whose_commit_is_in_doubt_takes_nothing_else() {
    let broken = Broken::new().await;
    for _ in 0..2 {
        broken.store.create(broken.context, new_task(TaskId::new(), at(0), None)).await.unwrap();
    }
    let tokens = vec![LeaseToken::new()];
    let cut = broken.proxy.cut(COMMIT, Moment::Before);
    let claimed = broken.store.claim(broken.node, tokens, at(1)).await;
    cut.await.unwrap();
    assert!(matches!(claimed, Err(StoreError::Unavailable(_))), "{claimed:?}");
    assert!(broken.truth.held(broken.node).await.unwrap().is_empty(), "nothing is taken under these tokens again");
    let others = (0..2).map(|_| LeaseToken::new()).collect();
    assert_eq!(broken.store.claim(broken.node, others, at(1)).await.unwrap().len(), 2);
}

// req: KEEP-07
#[tokio::test]
async fn a_claim_whose_commit_is_in_doubt_is_made_anew() {
    let Claiming { proxy, claimer, caller, waiting, world: _world } = Claiming::of("once").await;
    let cut = proxy.cut(COMMIT, Moment::Before);
    let claimed = claimer.engine.claim_once().await;
    cut.await.unwrap();
    assert!(matches!(claimed, Err(StoreError::Unavailable(_))), "{claimed:?}");
    assert_eq!(claimer.engine.claim_once().await.unwrap(), 1);
    let work = claimer.script.next().await;
    assert_eq!(work.call.attempt, 1);
    work.answer("done");
    assert_eq!(claimer.engine.result(&caller, waiting).await.unwrap().1, result("done"));
    assert!(claimer.script.is_idle().await);
}

// req: KEEP-06, KEEP-07
#[tokio::test]
async fn a_claim_of_which_its_node_never_hears_is_recovered() {
    for tool in ["again", "once"] {
        let Claiming { proxy, claimer, caller, waiting, world } = Claiming::of(tool).await;
        let cut = proxy.cut(CLAIM, Moment::AfterCommit);
        let going = async {
            cut.await.unwrap();
            proxy.refuse(true);
            proxy.reset_links();
        };
        let (claimed, ()) = tokio::join!(claimer.engine.claim_once(), going);
        assert!(matches!(claimed, Err(StoreError::Unavailable(_))), "{claimed:?}");
        proxy.refuse(false);
        world.clock.advance(Duration::from_secs(11));
        let mut beats = 0;
        while beats < 4 {
            beats += u32::from(claimer.engine.beat_once().await.is_ok());
            tokio::task::yield_now().await;
        }
        until_ok(|| claimer.engine.recover_once()).await;
        world.clock.advance(Duration::from_secs(2));
        // It was never sent, so that it runs whatever the policy: once, and this is its first attempt.
        assert_eq!(until_ok(|| claimer.engine.claim_once()).await, 1, "{tool}");
        let work = claimer.script.next().await;
        assert_eq!(work.call.attempt, 1);
        work.answer("done");
        assert_eq!(claimer.engine.result(&caller, waiting).await.unwrap().1, result("done"));
        assert!(claimer.script.is_idle().await);
    }
}

/// A task that waits, and a node behind a proxy that is about to claim it.
struct Claiming {
    world: World,
    proxy: PgProxy,
    claimer: Node,
    caller: Caller,
    waiting: TaskId,
}

impl Claiming {
    async fn of(tool: &str) -> Self {
        let mut world = World::new(TestDatabase::new(Backend::Postgres).await).await;
        world.rules.slots = 1;
        let (maker, caller) = (world.node().await, world.caller("a").await);
        maker.create(&caller, "once").await;
        let (proxy, url) = PgProxy::before_url(&world.database.url).await;
        world.database.store = open(&url).await;
        let claimer = world.node().await;
        // The maker's only slot is taken.
        let waiting = maker.create(&caller, tool).await.id;
        Self { world, proxy, claimer, caller, waiting }
    }
}

// req: LIFE-06, KEEP-11
#[tokio::test]
async fn a_task_outlives_every_link_that_served_it() {
    let mut world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    let (proxy, url) = PgProxy::before_url(&world.database.url).await;
    world.database.store = open(&url).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let lost_creation = proxy.cut(CREATION, Moment::AfterCommit);
    let task = node.engine.create_task(&caller, call("once"), None).await.unwrap().task;
    lost_creation.await.unwrap();
    assert_eq!(node.engine.list(&caller, None).await.unwrap().tasks, std::slice::from_ref(&task));
    proxy.reset_links();
    let lost_completion = proxy.cut(COMPLETION, Moment::AfterCommit);
    node.script.next().await.answer("once");
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    lost_completion.await.unwrap();
    assert_eq!((ended.status, outcome), (Status::Ended(Ending::Completed), result("once")));
    proxy.reset_links();
    assert_eq!(node.engine.get(&caller, task.id).await.unwrap(), ended);
}

// req: KEEP-17
#[tokio::test]
async fn a_blackholed_link_is_noticed_and_new_work_goes_on() {
    let broken = Broken::new().await;
    let running = broken.running().await;
    warm_up(&broken).await;
    broken.proxy.blackhole_links();
    let began = Instant::now();
    let (id, token) = (TaskId::new(), LeaseToken::new());
    let outcome = Outcome::Result { json: RawJson::trusted("{}"), is_error: false };
    let work = async {
        tokio::join!(
            until_ok(|| broken.store.heartbeat(broken.node)),
            until_ok(|| broken.store.create(broken.context, new_task(id, at(0), Some((broken.node, token))))),
            until_ok(|| broken.store.finish(Finish { task: running.0, token: running.1, end: end(outcome.clone()) })),
            until_ok(|| broken.store.get(broken.context, running.0)),
            until_ok(|| broken.store.list(broken.context, None, 10, at(0))),
            until_ok(|| broken.store.claim(broken.node, vec![LeaseToken::new()], at(1))),
            until_ok(|| broken.store.reap(at(0), 10)),
            until_ok(|| broken.store.ping()),
        )
    };
    let (beat, _made, ended, ..) = timeout(NOTICED, work).await.expect("a blackholed link is noticed within 10 s");
    assert!(beat.alive);
    assert!(matches!(ended, Ended::Done(_)));
    let took = began.elapsed();
    // And from then on nothing of it is left.
    let began = Instant::now();
    warm_up(&broken).await;
    assert!(began.elapsed() < Duration::from_secs(3), "noticed in {took:?}, but then again {:?}", began.elapsed());
    assert_eq!(broken.listed().await.len(), 2);
}

// req: KEEP-11, KEEP-17
#[tokio::test]
async fn a_database_that_is_away_is_not_hammered_and_comes_back() {
    let broken = Broken::new().await;
    let (task, _) = broken.running().await;
    warm_up(&broken).await;
    broken.proxy.refuse(true);
    broken.proxy.reset_links();
    let before = broken.proxy.accepted();
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        let began = Instant::now();
        let answer = broken.store.get(broken.context, task).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        assert!(began.elapsed() < NOTICED, "a caller is told within {:?}", began.elapsed());
        let answer = broken.store.create(broken.context, new_task(TaskId::new(), at(0), None)).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        assert!(began.elapsed() < 2 * NOTICED, "a caller is told within {:?}", began.elapsed());
        tokio::task::yield_now().await;
    }
    let tries = broken.proxy.accepted() - before;
    assert!(
        tries < 300,
        "{tries} tries to connect in {:?} are a busy loop",
        deadline.elapsed() + Duration::from_secs(3)
    );
    broken.proxy.refuse(false);
    let back = async {
        until_ok(|| broken.store.get(broken.context, task)).await;
        until_ok(|| broken.store.heartbeat(broken.node)).await;
        until_ok(|| broken.store.create(broken.context, new_task(TaskId::new(), at(0), None))).await;
    };
    timeout(NOTICED, back).await.expect("no restart is needed");
    assert_eq!(broken.listed().await.len(), 2, "a creation that was refused did not happen");
}

/// What is refused after its `BEGIN` leaves a failed transaction open, on a connection that is kept for long.
// req: KEEP-15
#[tokio::test]
async fn a_begin_that_is_refused_halfway_costs_its_connection_alone() {
    let broken = Broken::new().await;
    let (proxy, url) = PgProxy::before_url(&broken.database.url).await;
    let pooled = DatabaseOptions { pooler: Pooler::Transaction, ..options(&url) };
    let store = store::open(&pooled).await.unwrap().system();
    store.heartbeat(broken.node).await.unwrap();
    let refused = proxy.cut("SET LOCAL", Moment::Refused);
    let _is_refused = store.heartbeat(broken.node).await;
    refused.await.unwrap();
    assert!(store.heartbeat(broken.node).await.unwrap().alive);
}

/// Each would wait in vain for a count of what waits, one after the other.
// req: KEEP-11, KEEP-18
#[tokio::test]
async fn creations_while_the_database_is_away_are_refused_together() {
    let mut world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    world.rules.slots = 1;
    let (proxy, url) = PgProxy::before_url(&world.database.url).await;
    world.database.store = open(&url).await;
    let (node, first) = (world.node().await, world.caller("first").await);
    node.create(&first, "once").await;
    for silent in [false, true] {
        // Of these it is not known here how many wait.
        let (one, other) =
            (world.caller(&format!("one {silent}")).await, world.caller(&format!("other {silent}")).await);
        proxy.refuse(true);
        if silent {
            proxy.blackhole_links();
        } else {
            proxy.reset_links();
        }
        let began = Instant::now();
        let creations = [&one, &other].into_iter().cycle().take(40).map(|caller| {
            let creation = node.engine.create_task(caller, call("once"), None);
            async move { (creation.await, began.elapsed()) }
        });
        for (answer, after) in timeout(4 * NOTICED, join_all(creations)).await.unwrap() {
            assert!(matches!(answer, Err(Refusal::Store(StoreError::Unavailable(_)))), "{answer:?}");
            assert!(after < NOTICED, "refused after {after:?}, silent: {silent}");
        }
        proxy.refuse(false);
        timeout(NOTICED, async {
            while node.engine.create_task(&one, call("once"), None).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("no restart is needed");
    }
}

// req: LIFE-04, LIFE-06, KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_backends_lose_nothing_that_was_told() {
    let broken = Arc::new(Broken::new().await);
    let stop = CancellationToken::new();
    let counts = Arc::new(Counts::default());
    let clients: Vec<_> =
        (0..16).map(|_| spawn("client", client(Arc::clone(&broken), stop.clone(), Arc::clone(&counts)))).collect();
    let (mut rounds, mut terminated) = (0, 0);
    // As many rounds as it takes on this machine until much has broken and much was made.
    while rounds < 25 || terminated <= 50 || counts.told.load(Ordering::SeqCst) <= 100 {
        assert!(rounds < 600, "{terminated} backends ended, {counts:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        terminated += terminate_backends(&broken.database.url).await;
        rounds += 1;
    }
    stop.cancel();
    let mut told = Vec::new();
    for client in clients {
        told.extend(client.await.unwrap());
    }
    let store = open(&broken.database.url).await.system();
    for (id, outcome) in &told {
        let (task, stored) = store.outcome(broken.context, *id).await.unwrap().expect("a task that was told is there");
        if let Some(outcome) = outcome {
            assert_eq!(stored.as_ref(), Some(outcome), "an outcome that was told is unchanged");
            assert_eq!(task.status, Status::Ended(outcome.ending()));
        }
    }
    let failures = counts.failures.load(Ordering::SeqCst);
    assert!(failures < 16 * rounds, "{failures} of {} calls failed", told.len());
}

#[derive(Debug, Default)]
struct Counts {
    told: AtomicU32,
    failures: AtomicU32,
}

/// Makes and finishes tasks; answers what it was told: the ids, and the outcomes of those that were finished.
async fn client(broken: Arc<Broken>, stop: CancellationToken, counts: Arc<Counts>) -> Vec<(TaskId, Option<Outcome>)> {
    let mut told = Vec::new();
    while !stop.is_cancelled() {
        let (id, token) = (TaskId::new(), LeaseToken::new());
        let created = broken.store.create(broken.context, new_task(id, at(0), Some((broken.node, token)))).await;
        if created.is_err() {
            counts.failures.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        counts.told.fetch_add(1, Ordering::SeqCst);
        let outcome = Outcome::Result { json: RawJson::trusted(format!(r#"{{"of":"{id}"}}"#)), is_error: false };
        let finish = Finish { task: id, token, end: end(outcome.clone()) };
        match broken.store.finish(finish).await {
            Ok(Ended::Done(_)) => told.push((id, Some(outcome))),
            Ok(Ended::Refused) => panic!("nobody else ends {id}"),
            Err(_) => {
                counts.failures.fetch_add(1, Ordering::SeqCst);
                told.push((id, None));
            }
        }
    }
    told
}

/// Uses every kind of connection once.
async fn warm_up(broken: &Broken) {
    let (store, context) = (&broken.store, broken.context);
    let reads = join_all((0..8).map(|_| store.list(context, None, 10, at(0))));
    let looks = join_all((0..8).map(|_| store.get(context, TaskId::new())));
    let writes = join_all((0..8).map(|_| store.cancel(context, TaskId::new(), end(Outcome::Cancelled))));
    let (reads, looks, writes, beat) = tokio::join!(reads, looks, writes, store.heartbeat(broken.node));
    beat.unwrap();
    reads.into_iter().for_each(|read| drop(read.unwrap()));
    looks.into_iter().for_each(|look| drop(look.unwrap()));
    writes.into_iter().for_each(|write| drop(write.unwrap()));
}

async fn open(url: &str) -> Store {
    store::open(&options(url)).await.unwrap()
}

/// Ends every other connection to the database; answers how many there were.
async fn terminate_backends(url: &str) -> i64 {
    let others = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    number(url, others).await
}

async fn until_ok<T, F>(try_it: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        if let Ok(answer) = try_it().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn end(outcome: Outcome) -> End {
    End { outcome, message: None, now: at(10), expires: None }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + seconds * 1_000_000)
}
