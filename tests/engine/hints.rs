//! What one node does is found at once by another that waits for it: two nodes, each with a store of its own.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use sqlx::postgres::PgListener;
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::ids::{SessionId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::work::NewTask;
use taskhold::engine::{Answered, Asked, Caller, EngineRules, Item, Stream, Wants};
use taskhold::executor::Event;
use taskhold::store::{self, DatabaseOptions, Hint, Hints, Pooler, Release, Store};
use tokio::time::timeout;

use super::harness::{Node, World};
use super::places::{one, open, question_on, session};
use crate::http::harness::until;
use crate::store::at;
use crate::store::questions::Running;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase, number, options, run};
use crate::support::pgbouncer::PgBouncer;
use crate::support::pgproxy::{Moment, PgProxy};
use crate::support::rounds;
use crate::support::script::{how_many, result};
use crate::support::tasks::new_task;
use crate::support::waiting::Waiting as _;

contract! {
    an_end_reaches_who_waits_at_the_other_node,
    a_cancel_reaches_the_work_at_the_other_node,
    an_idle_node_takes_at_once_what_the_other_has_no_slot_for,
}

/// Between rounds there is no more than this while other nodes are heard; without hints half of it is usual.
const ROUND: Duration = Duration::from_millis(900);
/// What is found by a hint is found within this, also on a busy machine; as a rule a tenth of it.
const AT_ONCE: Duration = Duration::from_millis(250);
/// What a test waits for before it gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two started nodes, which hear each other where that is possible.
async fn two(world: &World) -> (Node, Node) {
    let stores = [world.database.another().await, world.database.another().await];
    let mut nodes = Vec::new();
    for store in stores {
        let node = world.node_on(store.clone()).await;
        node.engine.start();
        if world.database.backend == Backend::Postgres {
            until_it_hears(&store).await;
        }
        nodes.push(node);
    }
    let there = nodes.pop().unwrap();
    (nodes.pop().unwrap(), there)
}

fn hears(store: &Store) -> bool {
    store.system().watch_interval() == ROUND
}

async fn until_it_hears(store: &Store) {
    until("other nodes are heard", async || hears(store)).await;
}

/// A node on a store that reaches PostgreSQL by way of this proxy, and hears the others.
async fn behind(proxy: &str, world: &World) -> (Node, Store) {
    let store = store::open(&options(proxy)).await.unwrap();
    let node = world.node_on(store.clone()).await;
    node.engine.start();
    until_it_hears(&store).await;
    (node, store)
}

/// How long it takes from the end of a task at one node to the answer of who waits at the other.
async fn time_to_answer(here: &Node, there: &Node, caller: &Caller) -> Duration {
    let task = here.create(caller, "once").await.id;
    let work = here.script.next().await;
    let waiting = waiting_at(there, caller, task).await;
    let began = Instant::now();
    work.answer("done");
    answered(waiting).await;
    began.elapsed()
}

/// Waits for the task there: it has been looked at.
async fn waiting_at(there: &Node, caller: &Caller, task: TaskId) -> Stream {
    let asked = Asked::in_session("1".to_owned(), false, false);
    let mut stream = there.engine.open_result_stream(caller, task, asked, None).await.unwrap();
    assert!(stream.next().now_or_never().is_none(), "the look is under way");
    there.engine.get(caller, task).await.unwrap();
    stream
}

async fn answered(mut waiting: Stream) -> Answered {
    match timeout(PATIENCE, waiting.next()).await.expect("it is answered") {
        Item::Result { answer, .. } => answer.unwrap(),
        other => panic!("not a result: {other:?}"),
    }
}

/// From the end of a task to the answer at the other node.
fn show(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    eprintln!("{what}: {} ends, p50 {:?}, p99 {:?}, worst {:?}", times.len(), at(50), at(99), at(100));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

// req: NOTE-09
async fn an_end_reaches_who_waits_at_the_other_node(database: TestDatabase) {
    let world = World::new(database).await;
    let ((here, there), caller) = (two(&world).await, world.caller("a").await);
    let _first = time_to_answer(&here, &there, &caller).await;
    let mut times = Vec::new();
    for _ in 0..rounds(9) {
        times.push(time_to_answer(&here, &there, &caller).await);
    }
    show("by hints", &mut times);
    assert!(median(times.clone()) < AT_ONCE, "{times:?}");
}

// req: NOTE-09
async fn a_cancel_reaches_the_work_at_the_other_node(database: TestDatabase) {
    let world = World::new(database).await;
    let ((here, there), caller) = (two(&world).await, world.caller("a").await);
    let mut times = Vec::new();
    for _ in 0..5 {
        let task = here.create(&caller, "once").await.id;
        let work = here.script.next().await;
        let began = Instant::now();
        there.engine.cancel(&caller, task).await.unwrap();
        timeout(PATIENCE, work.stop.cancelled()).await.expect("it is stopped");
        times.push(began.elapsed());
    }
    assert!(median(times.clone()) < AT_ONCE, "{times:?}");
}

async fn an_idle_node_takes_at_once_what_the_other_has_no_slot_for(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 0;
    let full = world.node_apart().await;
    world.rules.slots = 8;
    let (idle, caller) = (world.node_apart().await, world.caller("a").await);
    full.engine.start();
    idle.engine.start();
    let is_postgres = world.database.backend == Backend::Postgres;
    let mut times = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        full.create(&caller, "once").await;
        let work = timeout(PATIENCE, idle.script.next()).await.expect("it is taken");
        times.push(began.elapsed());
        work.answer("done");
    }
    // On SQLite it is found by the look of each second.
    let most = if is_postgres { AT_ONCE } else { Duration::from_secs(3) };
    assert!(median(times.clone()) < most, "{times:?}");
}

// req: NOTE-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_and_its_answer_cross_at_once() {
    let world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    let ((here, there), caller) = (two(&world).await, session(&world).await);
    let mut stream = open(&there, &caller).await;
    let mut times = Vec::new();
    for _ in 0..3 {
        let task = here.create(&caller, "once").await.id;
        let work = here.script.next().await;
        let asked = work.ask(how_many());
        let id = timeout(PATIENCE, question_on(&mut stream)).await.expect("it is put to the client");
        let began = Instant::now();
        there.engine.answer(&caller, &id, one()).await.unwrap();
        assert_eq!(timeout(PATIENCE, asked).await.expect("it is answered").unwrap(), one());
        times.push(began.elapsed());
        work.answer("done");
        here.engine.result(&caller, task).await.unwrap();
    }
    assert!(median(times.clone()) < AT_ONCE, "{times:?}");
}

// req: NOTE-09, KEEP-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_notifications_everything_is_found_within_a_second() {
    let world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    let (proxy, url) = PgProxy::before_url(&world.database.url).await;
    proxy.deafen(true);
    let (here, store) = (world.node_apart().await, store::open(&options(&url)).await.unwrap());
    let (there, caller) = (world.node_on(store.clone()).await, world.caller("a").await);
    here.engine.start();
    there.engine.start();
    let mut times = Vec::new();
    for _ in 0..rounds(5) {
        times.push(time_to_answer(&here, &there, &caller).await);
        assert!(!hears(&store), "it hears nothing, and knows that");
    }
    show("without hints", &mut times);
    assert!(times.iter().all(|took| *took < Duration::from_secs(1)), "{times:?}");
}

// req: KEEP-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_the_server_itself_is_listened_to() {
    let world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    let pooler = PgBouncer::before(&world.database.url, 8, &[]).await;
    let options = DatabaseOptions {
        pooler: Pooler::Transaction,
        listen_urls: vec![world.database.url.as_str().into()],
        ..options(&pooler.url_of(&world.database.url))
    };
    let (stores, caller) =
        ([store::open(&options).await.unwrap(), store::open(&options).await.unwrap()], world.caller("a").await);
    let mut nodes = Vec::new();
    for store in &stores {
        let node = world.node_on(store.clone()).await;
        node.engine.start();
        until_it_hears(store).await;
        nodes.push(node);
    }
    let mut times = Vec::new();
    for _ in 0..5 {
        times.push(time_to_answer(&nodes[0], &nodes[1], &caller).await);
    }
    assert!(median(times.clone()) < AT_ONCE, "{times:?}");
    for store in stores {
        store.system().close().await;
    }
}

// req: KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_falls_silent_is_noticed_and_nobody_misses_anything() {
    let world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    let (proxy, url) = PgProxy::before_url(&world.database.url).await;
    let here = world.node_apart().await;
    here.engine.start();
    let ((there, store), caller) = (behind(&url, &world).await, world.caller("a").await);
    // Nothing is said and nothing closed: what its connections had is lost, new ones work.
    proxy.blackhole_links();
    let began = Instant::now();
    let took = time_to_answer(&here, &there, &caller).await;
    // All its other connections have to be noticed first.
    assert!(took < Duration::from_secs(10), "{took:?}");
    until("it is noticed", async || !hears(&store)).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    until_it_hears(&store).await;
    let took = time_to_answer(&here, &there, &caller).await;
    assert!(took < ROUND, "{took:?}");
    // What is said is lost, and nothing else.
    proxy.deafen(true);
    let began = Instant::now();
    while hears(&store) {
        let took = time_to_answer(&here, &there, &caller).await;
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let accepted = proxy.accepted();
    let took = time_to_answer(&here, &there, &caller).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(proxy.accepted() - accepted < 5, "it does not try all the time");
    proxy.deafen(false);
    until_it_hears(&store).await;
}

// req: KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_is_ended_by_the_server_listens_again_and_looks_for_what_it_missed() {
    let world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    let (proxy, url) = PgProxy::before_url(&world.database.url).await;
    let heard = world.database.another().await;
    let here = world.node_on(heard.clone()).await;
    here.engine.start();
    let ((there, store), caller) = (behind(&url, &world).await, world.caller("a").await);
    for _ in 0..3 {
        until_it_hears(&heard).await;
        let task = here.create(&caller, "once").await.id;
        let work = here.script.next().await;
        let waiting = waiting_at(&there, &caller, task).await;
        // It cannot listen again before the task has ended.
        proxy.refuse(true);
        let ended = world
            .database
            .number(
                "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE query LIKE 'LISTEN%' AND datname = current_database()",
            )
            .await;
        assert_eq!(ended, 2, "that of each node");
        until("it is noticed", async || !hears(&store)).await;
        work.answer("done");
        answered(waiting).await;
        proxy.refuse(false);
        until_it_hears(&store).await;
    }
}

/// The notifications on the channel of this database's tables.
async fn notifications(url: &str) -> PgListener {
    let mut listener = PgListener::connect(url).await.unwrap();
    let namespace = number(url, "SELECT relnamespace::bigint FROM pg_class WHERE oid = 'nodes'::regclass").await;
    listener.listen(&format!("taskhold_{namespace}")).await.unwrap();
    listener
}

// field case: F-SQL-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_ends_are_few_notifications() {
    let mut world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    world.rules = EngineRules { slots: 2_000, waiters_per_context: 2_000, ..world.rules };
    let (here, there) = two(&world).await;
    let caller = world.caller("a").await;
    // Both are heard, or this would count less than there is to say.
    time_to_answer(&here, &there, &caller).await;
    let tasks: Vec<_> = join_all((0..1_000).map(|_| here.create(&caller, "once"))).await;
    let mut works = Vec::new();
    while works.len() < tasks.len() {
        works.push(here.script.next().await);
    }
    let waiting = tasks.iter().map(|task| waiting_at(&there, &caller, task.id));
    let waiting = join_all(waiting).await;
    let mut heard = notifications(&world.database.url).await;
    for work in works {
        work.answer("done");
    }
    join_all(waiting.into_iter().map(answered)).await;
    let (mut count, mut bytes) = (0, 0);
    while let Ok(notification) = timeout(Duration::from_millis(300), heard.recv()).await {
        let payload = notification.unwrap().payload().len();
        assert!(payload < 8_000);
        (count, bytes) = (count + 1, bytes + payload);
    }
    eprintln!("1,000 ends: {count} notifications, {bytes} bytes");
    assert!(count < 100, "{count} notifications");
}

// field case: F-SQL-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_large_is_committed_and_wakes() {
    let mut world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    world.rules.message_limit = 60_000;
    let ((here, there), caller) = (two(&world).await, world.caller("a").await);
    let task = here.create(&caller, "once").await.id;
    let work = here.script.next().await;
    let mut listening =
        there.engine.listen(&caller, Wants { tasks: vec![task], ..Wants::default() }).await.unwrap().stream;
    let waiting = waiting_at(&there, &caller, task).await;
    let (message, text) = ("m".repeat(50_000), "r".repeat(10 << 20));
    let params = RawJson::trusted(format!(r#"{{"progressToken":1,"progress":1,"message":"{message}"}}"#));
    work.host.tell(Event::Progress { progress: 1.0, total: None, message: Some(message.clone()), params });
    let told = async {
        loop {
            match listening.next().await {
                Item::Task(looked) if looked.task.message.as_deref() == Some(&message) => return,
                Item::Task(_) => {}
                other => panic!("not a task: {other:?}"),
            }
        }
    };
    timeout(PATIENCE, told).await.expect("the message is told");
    work.answer(&text);
    assert_eq!(answered(waiting).await.outcome.outcome(), &result(&text));
}

// req: KEEP-17
// field case: F-SQL-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_that_fails_fails_nothing_else() {
    let world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    let (proxy, url) = PgProxy::before_url(&world.database.url).await;
    let (here, _) = behind(&url, &world).await;
    let ((there, _), caller) = (behind(&world.database.url, &world).await, world.caller("a").await);
    time_to_answer(&here, &there, &caller).await;
    for _ in 0..3 {
        let task = here.create(&caller, "once").await.id;
        let work = here.script.next().await;
        let waiting = waiting_at(&there, &caller, task).await;
        let cut = proxy.cut("pg_notify", Moment::Before);
        let began = Instant::now();
        work.answer("done");
        answered(waiting).await;
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        timeout(PATIENCE, cut).await.expect("it was sent").unwrap();
    }
}

// req: OPS-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_alone_says_only_that_it_is_there() {
    let world = World::new(TestDatabase::new(Backend::Postgres).await).await;
    let ((here, _), caller) = (behind(&world.database.url, &world).await, world.caller("a").await);
    let mut heard = notifications(&world.database.url).await;
    let presence = Duration::from_secs(3);
    let began = Instant::now();
    loop {
        // What it says of a task is longer than what it says of itself.
        let task = here.create(&caller, "once").await.id;
        here.script.next().await.answer("done");
        here.engine.result(&caller, task).await.unwrap();
        let of_task = async {
            while let Ok(Ok(notification)) = timeout(presence / 2, heard.recv()).await {
                if notification.payload().contains(',') {
                    return true;
                }
            }
            false
        };
        if !of_task.await {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "nobody else is there");
    }
    let said = timeout(presence * 3, heard.recv()).await.expect("it says that it is there").unwrap();
    assert!(!said.payload().contains(','), "{said:?}");
    // Whoever comes is told at once.
    let (there, _) = behind(&world.database.url, &world).await;
    let mut times = Vec::new();
    for _ in 0..5 {
        times.push(time_to_answer(&here, &there, &caller).await);
    }
    assert!(median(times.clone()) < AT_ONCE, "{times:?}");
}

/// Where the session's stream is, its next question is looked for.
// req: KEEP-16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_is_said_with_its_session() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let there = database.another().await;
    let (work, session) = (Running::new(&database).await, SessionId::new());
    run(&database.url, &format!("UPDATE tasks SET session = '{}'", session.as_uuid())).await;
    let mut hints = there.system().hints().unwrap();
    until_it_hears(&there).await;
    let changed = Hint::Task(work.task, Some(session));
    let hold = work.hold(work.ask("x", at(1)).await);
    heard_up_to(&mut hints, changed).await;
    assert!(work.system.hold_input(hold.clone()).await.unwrap());
    work.system.let_go(work.node, &[hold.delivery]).await.unwrap();
    heard_up_to(&mut hints, changed).await;
    let (task, token, message) = (work.task, work.token, "again".to_owned());
    let release = Release { task, token, not_before: at(2), counted: true, keep_inputs: true, message, now: at(2) };
    assert!(work.system.release(release).await.unwrap());
    heard_up_to(&mut hints, changed).await;
}

/// What is heard until this is among it.
async fn heard_up_to(hints: &mut Hints, last: Hint) -> HashSet<Hint> {
    let mut all = HashSet::new();
    while !all.contains(&last) {
        all.extend(timeout(PATIENCE, hints.next()).await.expect("something is heard"));
    }
    all
}

// req: KEEP-16
// field case: F-SQL-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installs_in_two_schemas_do_not_hear_each_other() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let mut stores = Vec::new();
    for schema in ["one", "two"] {
        run(&database.url, &format!("CREATE SCHEMA {schema}")).await;
        let options = DatabaseOptions { schema: Some(schema.to_owned()), ..options(&database.url) };
        store::migrate(&options).await.unwrap();
        stores.push([store::open(&options).await.unwrap(), store::open(&options).await.unwrap()]);
    }
    let mut hears = Vec::new();
    for [_, other] in &stores {
        hears.push(other.system().hints().unwrap());
        until_it_hears(other).await;
    }
    let mut said = HashSet::new();
    for ([store, _], hears) in stores.iter().zip(&mut hears) {
        let (store, at, id) = (store.system(), Timestamp::from_micros(0), TaskId::new());
        let context = store.ensure_context(ContextKey::default(), at).await.unwrap();
        let session = Some(SessionId::new());
        store.create(context, NewTask { session, ..new_task(id, at, None) }).await.unwrap();
        let hint = Hint::Task(id, session);
        // The other install said its own before, and the server passes on in that order.
        let heard = heard_up_to(hears, hint).await;
        assert!(heard.is_disjoint(&said), "{heard:?}");
        said.insert(hint);
    }
}
