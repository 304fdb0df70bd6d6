//! Where the GET stream of a session is, when hints are lost, nodes die and clients come back.

use futures_util::FutureExt as _;
use taskhold::domain::ids::{DeliveryId, SessionId, StreamId};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::session::{Session, SessionStream};
use taskhold::engine::{Asked, BeatOutcome, Called, Caller, Delivery, Item, Refusal, Resume, Stream};
use taskhold::store::{Hold, NewSubscription, Purpose};

use std::time::Duration;

use super::harness::{Node, World, call};
use crate::http::harness::until;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::host::Answers as _;
use crate::support::script::ScriptedCall;

contract! {
    the_sessions_row_says_whose_turn_it_is,
    a_stream_uses_its_session_and_ends_with_it,
    an_ended_session_opens_no_stream,
    a_node_gives_back_what_it_has_no_stream_for,
    a_node_that_goes_on_as_another_takes_its_streams_along,
    a_node_that_goes_on_as_another_lets_go_what_others_have,
    a_stream_that_is_resumed_elsewhere_ends_here,
    a_result_is_resumed_at_two_nodes_in_turn,
    a_call_may_be_asked_once_its_client_is_initialized,
    the_end_of_a_session_needs_no_client,
    a_call_is_answered_at_another_node_while_this_one_drains,
    a_call_is_cancelled_at_another_node_while_this_one_drains,
    no_answer_at_another_node_is_one_too_many,
    a_cancellation_under_a_long_id_stays_at_its_node,
}

/// A caller with a stored session that serves everything.
pub async fn session(world: &World) -> Caller {
    let id = SessionId::new();
    let capabilities = RawJson::trusted(r#"{"elicitation":{}}"#);
    let caller = Caller { session: Some(id), capabilities: capabilities.clone(), ..world.caller("a").await };
    let now = taskhold::domain::clock::Clock::now(&*world.clock);
    let session = Session {
        id,
        context: caller.auth.id(),
        revision: "2025-11-25".to_owned(),
        capabilities,
        created: now,
        last_used: now,
        initialized: true,
        stream: None,
        log_level: None,
    };
    world.database.store.scoped(&caller.auth).add_session(session, 10).await.unwrap();
    caller
}

async fn stored(world: &World, caller: &Caller) -> Option<Session> {
    world.database.store.scoped(&caller.auth).session(caller.session.unwrap()).await.unwrap()
}

pub async fn stream_of(world: &World, caller: &Caller) -> Option<SessionStream> {
    stored(world, caller).await.unwrap().stream
}

pub async fn open(node: &Node, caller: &Caller) -> Stream {
    node.engine.open_session_stream(caller, caller.session.unwrap(), None).await.unwrap()
}

/// Whether the stream is told of a new task of its session.
async fn speaks(node: &Node, caller: &Caller, stream: &mut Stream) -> bool {
    while let Some(Item::Message { .. }) = stream.next().now_or_never() {}
    let made = node.create(caller, "once").await;
    let mut told = false;
    while let Some(Item::Message { delivery, .. }) = stream.next().now_or_never() {
        told |= matches!(delivery, Delivery::Status(task) if task.id == made.id);
    }
    told
}

fn form() -> Question {
    let params = r#"{"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}}}}"#;
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(params)) }
}

pub fn ask(work: &ScriptedCall) -> tokio::task::JoinHandle<Answer> {
    let host = work.host.clone();
    tokio::spawn(async move { host.answer_to(form()).await })
}

/// The JSON-RPC id of the next question on a stream.
pub async fn question_on(stream: &mut Stream) -> String {
    let asked = async {
        loop {
            match stream.next().await {
                Item::Message { delivery: Delivery::Ask { id, .. }, .. } => return id,
                Item::Message { .. } => {}
                other => panic!("the stream ended: {other:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asked).await.expect("a question comes")
}

pub async fn ends(stream: &mut Stream) {
    let end = async { while let Item::Message { .. } = stream.next().await {} };
    tokio::time::timeout(Duration::from_secs(10), end).await.expect("the stream ends");
}

// req: INPUT-04, NOTE-02
async fn the_sessions_row_says_whose_turn_it_is(database: TestDatabase) {
    let world = World::new(database).await;
    let (one, two, caller) = (world.node().await, world.node().await, session(&world).await);
    let mut first = open(&one, &caller).await;
    assert!(speaks(&one, &caller, &mut first).await);
    let mut second = open(&two, &caller).await;
    // No hint reaches a node: none of them looks for any.
    for node in [&one, &two] {
        node.engine.recover_once().await.unwrap();
    }
    assert!(!speaks(&one, &caller, &mut first).await, "another node's has the turn");
    assert!(speaks(&two, &caller, &mut second).await);
    drop(second);
    until("no node has the turn", async || stream_of(&world, &caller).await.is_none()).await;
    one.engine.recover_once().await.unwrap();
    assert!(speaks(&one, &caller, &mut first).await, "it has its turn again");
    assert_eq!(stream_of(&world, &caller).await.unwrap().node, one.engine.node());
}

// req: HTTP-07
async fn a_stream_uses_its_session_and_ends_with_it(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, session(&world).await);
    let mut stream = open(&node, &caller).await;
    world.clock.advance(Duration::from_secs(3600));
    node.engine.recover_once().await.unwrap();
    assert_eq!(stored(&world, &caller).await.unwrap().last_used, node.engine.now());
    world.database.store.scoped(&caller.auth).end_session(caller.session.unwrap()).await.unwrap();
    node.engine.recover_once().await.unwrap();
    ends(&mut stream).await;
}

// req: HTTP-07
async fn an_ended_session_opens_no_stream(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, session(&world).await);
    world.database.store.scoped(&caller.auth).end_session(caller.session.unwrap()).await.unwrap();
    let opened = node.engine.open_session_stream(&caller, caller.session.unwrap(), None).await;
    assert!(matches!(opened, Err(Refusal::UnknownSession)), "{opened:?}");
}

// req: INPUT-14
async fn a_node_gives_back_what_it_has_no_stream_for(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, session(&world).await);
    let scoped = world.database.store.scoped(&caller.auth);
    let task = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let _asked = ask(&work);
    until("the question is open", async || !scoped.open_inputs(task.id).await.unwrap().is_empty()).await;
    let lost = Hold {
        input: scoped.open_inputs(task.id).await.unwrap()[0].id,
        task: task.id,
        delivery: DeliveryId::new(),
        session: caller.session.unwrap(),
        stream: StreamId::new(),
        sequence: 1,
        node: node.engine.node(),
        purpose: Purpose::Question,
        now: node.engine.now(),
    };
    assert!(world.database.store.system().hold_input(lost).await.unwrap());
    let stale = SessionStream { id: StreamId::new(), node: node.engine.node() };
    assert!(scoped.open_session_stream(caller.session.unwrap(), stale).await.unwrap());
    for look in 0..2 {
        assert!(scoped.open_inputs(task.id).await.unwrap()[0].held.is_some(), "{look}");
        node.beat_until_it_may_judge().await;
        node.engine.recover_once().await.unwrap();
    }
    until("it is free", async || scoped.open_inputs(task.id).await.unwrap()[0].held.is_none()).await;
    until("no node has the turn", async || stream_of(&world, &caller).await.is_none()).await;
}

// req: INPUT-14, KEEP-06
async fn a_node_that_goes_on_as_another_takes_its_streams_along(database: TestDatabase) {
    let world = World::new(database).await;
    let (doomed, judge, caller) = (world.node().await, world.node().await, session(&world).await);
    let mut stream = open(&doomed, &caller).await;
    let task = judge.create(&caller, "once").await;
    let work = judge.script.next().await;
    let asked = ask(&work);
    let scoped = world.database.store.scoped(&caller.auth);
    until("the question is open", async || !scoped.open_inputs(task.id).await.unwrap().is_empty()).await;
    doomed.engine.watch_once().await.unwrap();
    let before = question_on(&mut stream).await;
    let old = doomed.engine.node();
    let (session, now) = (caller.session.unwrap(), doomed.engine.now());
    let wish = NewSubscription { session, uri: "x:y".to_owned(), upstream: "u".to_owned(), node: old, now };
    assert!(scoped.add_subscription(wish, 10).await.unwrap());
    judge.beat_until_it_may_judge().await;
    world.database.silence_nodes(Duration::from_secs(30)).await;
    judge.engine.beat_once().await.unwrap();
    judge.engine.recover_once().await.unwrap();
    assert_eq!(stream_of(&world, &caller).await, None, "the dead have no streams");

    assert_eq!(doomed.engine.beat_once().await.unwrap(), BeatOutcome::Reborn);
    let new = doomed.engine.node();
    assert_ne!(old, new);
    assert_eq!(stream_of(&world, &caller).await.unwrap().node, new);
    let system = world.database.store.system();
    let (here, there) = (system.subscriptions_at(new).await.unwrap(), judge.engine.node());
    let taken = system.subscriptions_at(there).await.unwrap();
    assert_eq!(here.len() + taken.len(), 1, "whoever was first follows it");
    doomed.engine.watch_once().await.unwrap();
    let held = scoped.open_inputs(task.id).await.unwrap()[0].held.unwrap();
    assert_eq!((held.delivery.to_string(), held.node), (before.clone(), new), "it goes on where it is");
    while let Some(Item::Message { delivery, .. }) = stream.next().now_or_never() {
        assert!(!matches!(delivery, Delivery::Ask { .. } | Delivery::Withdrawn { .. }), "its client has it");
    }
    let answer = Answer::Result(RawJson::trusted(r#"{"action":"accept","content":{"n":1}}"#));
    judge.engine.answer(&caller, &before, answer.clone()).await.unwrap();
    assert_eq!(asked.await.unwrap(), answer);
}

// req: INPUT-12, INPUT-14
async fn a_node_that_goes_on_as_another_lets_go_what_others_have(database: TestDatabase) {
    let world = World::new(database).await;
    let (doomed, judge, caller) = (world.node().await, world.node().await, session(&world).await);
    let task = judge.create(&caller, "once").await;
    let work = judge.script.next().await;
    let mut stream = open(&doomed, &caller).await;
    let _asked = ask(&work);
    let scoped = world.database.store.scoped(&caller.auth);
    until("the question is open", async || !scoped.open_inputs(task.id).await.unwrap().is_empty()).await;
    doomed.engine.watch_once().await.unwrap();
    let before = question_on(&mut stream).await;
    judge.beat_until_it_may_judge().await;
    world.database.silence_nodes(Duration::from_secs(30)).await;
    judge.engine.beat_once().await.unwrap();
    judge.engine.recover_once().await.unwrap();
    let asked = Asked::in_session("1".to_owned(), true, false);
    let mut other = judge.engine.open_result_stream(&caller, task.id, asked, None).await.unwrap();
    let after = question_on(&mut other).await;
    assert_ne!(before, after, "on another stream it has another id");
    assert_eq!(doomed.engine.beat_once().await.unwrap(), BeatOutcome::Reborn);
    let mut withdrawn = Vec::new();
    while let Some(Item::Message { delivery, .. }) = stream.next().now_or_never() {
        if let Delivery::Withdrawn { id, .. } = delivery {
            withdrawn.push(id);
        }
    }
    assert_eq!(withdrawn, [before]);
    let held = scoped.open_inputs(task.id).await.unwrap()[0].held.unwrap();
    assert_eq!((held.delivery.to_string(), held.node), (after, judge.engine.node()));
}

// req: HTTP-09, INPUT-14
async fn a_stream_that_is_resumed_elsewhere_ends_here(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, session(&world).await);
    let mut broken = open(&here, &caller).await;
    here.create(&caller, "once").await;
    let work = here.script.next().await;
    let _asked = ask(&work);
    let before = question_on(&mut broken).await;
    // Its client is gone, and this node does not know.
    let resume = Resume { stream: broken.id(), after: 0 };
    let session = caller.session.unwrap();
    let mut resumed = there.engine.open_session_stream(&caller, session, Some(resume)).await.unwrap();
    until("the hint is there", async || {
        world.database.number("SELECT COUNT(*) FROM signals WHERE payload IS NOT NULL").await > 0
    })
    .await;
    here.engine.watch_once().await.unwrap();
    ends(&mut broken).await;
    let again = question_on(&mut resumed).await;
    assert_eq!(again, before, "it is this stream's");
    drop(broken);
    assert_eq!(stream_of(&world, &caller).await.unwrap().node, there.engine.node(), "its end is not the other's");
}

// req: HTTP-09
// field case: F-HTTP-07, F-LB-01
async fn a_result_is_resumed_at_two_nodes_in_turn(database: TestDatabase) {
    let world = World::new(database).await;
    let (one, two, caller) = (world.node().await, world.node().await, session(&world).await);
    let task = one.create(&caller, "once").await;
    let work = one.script.next().await;
    let asked = || Asked::in_session("1".to_owned(), true, false);
    let first = one.engine.open_result_stream(&caller, task.id, asked(), None).await.unwrap();
    let (stream, mut opened) = (first.id(), vec![first]);
    for (turn, node) in [&two, &one, &two].into_iter().enumerate() {
        world.clock.advance(Duration::from_millis(300));
        let resume = Resume { stream, after: 0 };
        opened.push(node.engine.open_result_stream(&caller, task.id, asked(), Some(resume)).await.unwrap());
        until("the hint is there", async || {
            world.database.number("SELECT COUNT(*) FROM signals WHERE kind = 4").await == turn as i64 + 1
        })
        .await;
    }
    // What the one said is heard late, after the other had the stream again.
    one.engine.watch_once().await.unwrap();
    let mut last = opened.pop().unwrap();
    ends(&mut opened.pop().unwrap()).await;
    one.create(&caller, "once").await;
    two.engine.watch_once().await.unwrap();
    work.answer("done");
    let answer = async {
        loop {
            two.engine.watch_once().await.unwrap();
            match last.next().now_or_never() {
                Some(Item::Result { .. }) => return,
                Some(Item::Message { .. }) => {}
                Some(other) => panic!("the stream ended: {other:?}"),
                None => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), answer).await.expect("it goes on where it was resumed last");
}

// req: HTTP-16
async fn a_call_may_be_asked_once_its_client_is_initialized(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, known) = (world.node().await, session(&world).await);
    let caller = Caller { initialized: false, ..known };
    let asked = Asked::in_session("1".to_owned(), true, true);
    let mut stream = node.engine.call(&caller, call("never"), asked).await.unwrap();
    // Its client said so at another node, after the call had begun.
    let work = node.script.next().await;
    let _answered = ask(&work);
    question_on(&mut stream).await;
}

// req: HTTP-16
async fn the_end_of_a_session_needs_no_client(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, session(&world).await);
    let mut stream = open(&node, &caller).await;
    let asked = Asked::in_session("1".to_owned(), true, true);
    let mut plain = node.engine.call(&caller, call("never"), asked).await.unwrap();
    let work = node.script.next().await;
    let answered = ask(&work);
    question_on(&mut plain).await;
    // Its client leaves at once.
    drop(node.engine.end_session(&caller.auth, caller.session.unwrap()).now_or_never());
    ends(&mut stream).await;
    let answered = tokio::time::timeout(Duration::from_secs(10), answered).await.expect("nobody waits for ever");
    assert!(matches!(answered.unwrap(), Answer::Error(_)));
    until("others are told", async || world.database.number("SELECT COUNT(*) FROM signals WHERE kind = 3").await == 1)
        .await;
    assert!(matches!(ask(&work).await.unwrap(), Answer::Error(_)), "it is asked no more");
    work.answer("done");
    let answer = async {
        loop {
            match plain.next().await {
                Item::Called { answer: Ok(Called::Outcome(_)), .. } => return,
                Item::Message { .. } => {}
                other => panic!("no answer: {other:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), answer).await.expect("the call's answer comes");
}

/// A call that is no task, its work's question, and the JSON-RPC id of that.
pub async fn asking(node: &Node, caller: &Caller) -> (Stream, ScriptedCall, tokio::task::JoinHandle<Answer>, String) {
    let asked = Asked::in_session("1".to_owned(), true, true);
    let mut plain = node.engine.call(caller, call("never"), asked).await.unwrap();
    let work = node.script.next().await;
    let answered = ask(&work);
    let id = question_on(&mut plain).await;
    (plain, work, answered, id)
}

pub fn one() -> Answer {
    Answer::Result(RawJson::trusted(r#"{"action":"accept","content":{"n":1}}"#))
}

// req: INPUT-05, KEEP-10
async fn a_call_is_answered_at_another_node_while_this_one_drains(database: TestDatabase) {
    let world = World::new(database).await;
    let (leaving, other, caller) = (world.node().await, world.node().await, session(&world).await);
    leaving.engine.start();
    let (_plain, _work, answered, id) = asking(&leaving, &caller).await;
    leaving.engine.drain(Duration::ZERO).await;
    other.engine.answer(&caller, &id, one()).await.unwrap();
    let answered = tokio::time::timeout(Duration::from_secs(10), answered).await.expect("the answer is heard");
    assert_eq!(answered.unwrap(), one());
    leaving.engine.close();
}

async fn a_call_is_cancelled_at_another_node_while_this_one_drains(database: TestDatabase) {
    let world = World::new(database).await;
    let (leaving, other, caller) = (world.node().await, world.node().await, session(&world).await);
    leaving.engine.start();
    let (_plain, work, _answered, _) = asking(&leaving, &caller).await;
    leaving.engine.drain(Duration::ZERO).await;
    assert!(!work.stop.is_cancelled(), "a drain alone stops no work");
    other.engine.cancel_request(caller.auth.id(), caller.session.unwrap(), "1");
    tokio::time::timeout(Duration::from_secs(10), work.stop.cancelled()).await.expect("the cancellation is heard");
    leaving.engine.close();
}

async fn a_cancellation_under_a_long_id_stays_at_its_node(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, session(&world).await);
    let (context, session) = (caller.auth.id(), caller.session.unwrap());
    let [most, more] = [512, 513].map(|bytes| format!("\"{}\"", "x".repeat(bytes - 2)));
    let asked = Asked::in_session(more.clone(), true, true);
    let _plain = here.engine.call(&caller, call("never"), asked).await.unwrap();
    let work = here.script.next().await;
    there.engine.cancel_request(context, session, &more);
    there.engine.cancel_request(context, session, &most);
    let written = async |what: &str| world.database.number(&format!("SELECT {what} FROM signals WHERE kind = 0")).await;
    until("one of them is written", async || written("COUNT(*)").await > 0).await;
    assert_eq!(written("COUNT(*)").await, 1);
    assert_eq!(written("CAST(MAX(LENGTH(subject)) AS BIGINT)").await, 512);
    here.engine.watch_once().await.unwrap();
    assert!(!work.stop.is_cancelled());
    here.engine.cancel_request(context, session, &more);
    work.stop.cancelled().await;
}

// req: INPUT-05
async fn no_answer_at_another_node_is_one_too_many(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, session(&world).await);
    let (_plain, _work, _answered, id) = asking(&here, &caller).await;
    let written = async || world.database.number("SELECT COUNT(*) FROM signals WHERE kind = 1").await;
    for _ in 0..200 {
        there.engine.answer(&caller, &id, one()).await.unwrap();
    }
    assert_eq!(written().await, 200, "as many as may be in a second");
    let (engine, known, late) = (std::sync::Arc::clone(&there.engine), caller.clone(), id.clone());
    let last = tokio::spawn(async move { engine.answer(&known, &late, one()).await });
    tokio::task::yield_now().await;
    world.clock.advance(Duration::from_secs(1));
    last.await.unwrap().unwrap();
    assert_eq!(written().await, 201, "the last one was written when its time had come");
}
