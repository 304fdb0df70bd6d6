//! What running tasks ask, and what comes of the answers.

use std::time::Duration;

use taskhold::domain::ids::{DeliveryId, InputId, SessionId, StreamId, TaskId};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Ending;
use taskhold::domain::task::{Status, Task};
use taskhold::engine::{Asked, Caller, Delivery, Engine, Item};
use taskhold::executor::{Attempt, Unasked};
use taskhold::store::{Hold, OpenInput, Purpose};
use tokio::task::JoinHandle;

use super::harness::{Node, World};
use crate::http::harness::until;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::host::Answers as _;
use crate::support::script::{ScriptedCall, result};
use crate::support::waiting::Waiting;

contract! {
    a_task_that_asks_waits_and_goes_on,
    the_last_of_two_answers_brings_a_task_back_to_work,
    errors_and_refusals_reach_the_work_as_they_are,
    what_the_maker_did_not_declare_is_answered_for_it,
    an_answer_counts_at_every_node_and_once,
    of_two_answers_at_once_one_counts,
    a_cancel_and_an_answer_leave_nothing_open,
    past_its_deadline_a_question_is_an_error_to_the_work,
    a_deadline_and_an_answer_agree_on_who_was_first,
    a_resumed_call_has_what_is_left_of_its_time,
    an_answer_that_does_not_fit_leaves_the_question_open,
    questions_are_bounded,
    who_waits_for_input_leaves_its_slot_to_others,
    a_question_that_the_work_drops_is_withdrawn,
    an_end_closes_what_is_open,
    a_lost_attempts_questions_go_with_it,
    a_call_that_was_handed_over_keeps_its_questions,
    a_clean_stop_does_not_wait_for_answers,
    questions_go_with_their_task,
    a_full_stream_keeps_no_question_from_another,
}

const CAPABLE: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}"#;
const FORM: &str = r#"{"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]},"x":1.0e0}"#;

/// A caller that serves everything that it may be asked.
async fn capable(world: &World, name: &str) -> Caller {
    Caller { capabilities: RawJson::trusted(CAPABLE), session: Some(SessionId::new()), ..world.caller(name).await }
}

fn form() -> Question {
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(FORM)) }
}

/// The form with another message.
fn form_about(what: &str) -> Question {
    Question { params: Some(RawJson::trusted(FORM.replace("How many?", what))), ..form() }
}

fn accepted(n: u32) -> Answer {
    Answer::Result(RawJson::trusted(format!(
        r#"{{"action":"accept","content":{{"n":{n},"more":1.0e0}},"_meta":{{}}}}"#
    )))
}

/// The work asks; its answer comes from the task that is returned.
fn ask(work: &ScriptedCall, question: Question) -> JoinHandle<Answer> {
    let host = work.host.clone();
    tokio::spawn(async move { host.answer_to(question).await })
}

async fn answer_of(asked: JoinHandle<Answer>) -> Answer {
    tokio::time::timeout(Duration::from_secs(10), asked).await.expect("an answer comes").unwrap()
}

#[track_caller]
fn error_of(answer: &Answer) -> (i64, String) {
    let Answer::Error(json) = answer else { panic!("{answer:?} is no error") };
    let error: serde_json::Value = serde_json::from_str(json.as_str()).unwrap();
    (error["code"].as_i64().unwrap(), error["data"]["reason"].as_str().unwrap_or_default().to_owned())
}

async fn open(world: &World, caller: &Caller, task: TaskId) -> Vec<OpenInput> {
    world.database.store.scoped(&caller.auth).open_inputs(task).await.unwrap()
}

async fn until_open(world: &World, caller: &Caller, task: TaskId, count: usize) -> Vec<OpenInput> {
    until("the questions are open", async || open(world, caller, task).await.len() == count).await;
    open(world, caller, task).await
}

/// Sends an open question to a client, as a stream of the node does; answers its JSON-RPC id.
async fn deliver(world: &World, node: &Node, task: TaskId, input: InputId) -> String {
    let delivery = DeliveryId::new();
    let hold = Hold {
        input,
        task,
        delivery,
        session: SessionId::new(),
        stream: StreamId::new(),
        sequence: 1,
        node: node.engine.node(),
        purpose: Purpose::Question,
        now: node.engine.now(),
    };
    assert!(world.database.store.system().hold_input(hold).await.unwrap(), "nobody else holds it");
    delivery.to_string()
}

/// A task of the tool whose work has asked this.
struct Asking {
    task: Task,
    work: ScriptedCall,
    asked: JoinHandle<Answer>,
    input: InputId,
}

async fn asking(world: &World, node: &Node, caller: &Caller, tool: &str) -> Asking {
    let task = node.create(caller, tool).await;
    let work = node.script.next().await;
    let asked = ask(&work, form());
    let input = until_open(world, caller, task.id, 1).await[0].id;
    Asking { task, work, asked, input }
}

async fn is_working(engine: &Engine, caller: &Caller, task: TaskId) -> bool {
    engine.get(caller, task).await.unwrap().status == Status::Working
}

// req: INPUT-01, LIFE-03, LIFE-10
async fn a_task_that_asks_waits_and_goes_on(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let Asking { task, work, asked, input } = asking(&world, &node, &caller, "once").await;
    let waiting = node.engine.get(&caller, task.id).await.unwrap();
    assert_eq!(
        (waiting.status, waiting.message.as_deref()),
        (Status::InputRequired, Some("waiting for input: How many?"))
    );
    assert!(waiting.updated > task.updated);
    let shown = &open(&world, &caller, task.id).await[0];
    assert_eq!((&shown.question, shown.session), (&form(), caller.session));
    assert!(!asked.is_finished());

    let id = deliver(&world, &node, task.id, input).await;
    node.engine.answer(&caller, &id, accepted(3)).await.unwrap();
    assert_eq!(answer_of(asked).await, accepted(3), "the text that arrived");
    let working = node.engine.get(&caller, task.id).await.unwrap();
    assert_eq!((working.status, working.message.as_deref()), (Status::Working, Some("running")));
    assert!(working.updated > waiting.updated && open(&world, &caller, task.id).await.is_empty());

    // Once more, and on to the end.
    let asked = ask(&work, form_about("Really?"));
    let again = until_open(&world, &caller, task.id, 1).await[0].id;
    assert_ne!(again, input);
    assert_eq!(node.message(&caller, task.id).await, "waiting for input: Really?");
    let id = deliver(&world, &node, task.id, again).await;
    node.engine.answer(&caller, &id, accepted(1)).await.unwrap();
    assert_eq!(answer_of(asked).await, accepted(1));
    work.answer("done");
    assert_eq!(node.engine.result(&caller, task.id).await.unwrap().1, result("done"));
}

// req: INPUT-01
async fn the_last_of_two_answers_brings_a_task_back_to_work(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let Asking { task, work, asked, input } = asking(&world, &node, &caller, "once").await;
    let roots = ask(&work, Question { kind: InputKind::Roots, params: None });
    let both = until_open(&world, &caller, task.id, 2).await;
    let second = both.iter().find(|open| open.id != input).unwrap();
    assert_eq!(second.question.kind, InputKind::Roots);
    let ids = [deliver(&world, &node, task.id, input).await, deliver(&world, &node, task.id, second.id).await];
    node.engine.answer(&caller, &ids[0], accepted(3)).await.unwrap();
    assert_eq!(answer_of(asked).await, accepted(3));
    assert_eq!(node.status(&caller, task.id).await, Status::InputRequired);
    let listed = Answer::Result(RawJson::trusted(r#"{"roots":[]}"#));
    node.engine.answer(&caller, &ids[1], listed.clone()).await.unwrap();
    assert_eq!(answer_of(roots).await, listed);
    assert_eq!(node.status(&caller, task.id).await, Status::Working);
}

// req: INPUT-06
async fn errors_and_refusals_reach_the_work_as_they_are(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let answers = [
        Answer::Error(RawJson::trusted(r#"{"code":-1,"message":"User said \ud800 no","data":[1.0]}"#)),
        Answer::Result(RawJson::trusted(r#"{"action":"decline"}"#)),
        Answer::Result(RawJson::trusted(r#"{ "action":"cancel", "x":1e400}"#)),
    ];
    let task = node.create(&caller, "once").await;
    let work = node.script.next().await;
    for answer in answers {
        let asked = ask(&work, form());
        let input = until_open(&world, &caller, task.id, 1).await[0].id;
        let id = deliver(&world, &node, task.id, input).await;
        node.engine.answer(&caller, &id, answer.clone()).await.unwrap();
        assert_eq!(answer_of(asked).await, answer);
        assert_eq!(node.status(&caller, task.id).await, Status::Working);
    }
}

// req: INPUT-07 (legacy half)
async fn what_the_maker_did_not_declare_is_answered_for_it(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, mut caller) = (world.node().await, capable(&world, "a").await);
    caller.capabilities = RawJson::trusted(r#"{"elicitation":{},"sampling":{}}"#);
    let task = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let url = r#"{"mode":"url","message":"m","url":"https://x.example","elicitationId":"1"}"#;
    for (kind, params, code) in [
        (InputKind::Roots, "{}", -32601),
        (InputKind::Elicitation, url, -32602),
        (InputKind::Sampling, r#"{"messages":[],"maxTokens":1,"tools":[]}"#, -32602),
    ] {
        let asked = work.host.ask(Question { kind, params: Some(RawJson::trusted(params)) }).await;
        let Unasked(error) = asked.expect_err("another call may have asked");
        assert_eq!(error_of(&error).0, code, "{kind:?}");
    }
    let untouched = node.engine.get(&caller, task.id).await.unwrap();
    assert_eq!((untouched.status, untouched.updated), (Status::Working, task.updated));
    // A later attempt, at another node, knows the same of its maker.
    world.database.silence_nodes(Duration::from_secs(30)).await;
    let heir = world.node().await;
    let again = heir.create(&caller, "again").await;
    let work = heir.script.next().await;
    work.end(Attempt::Lost { detail: "gone".to_owned() });
    until("the task waits", async || heir.message(&caller, again.id).await.contains("trying again")).await;
    world.clock.advance(Duration::from_secs(5));
    let other = world.node().await;
    let work = other.script.next().await;
    assert_eq!(work.call.attempt, 2);
    assert_eq!(error_of(&work.host.answer_to(Question { kind: InputKind::Roots, params: None }).await).0, -32601);
}

// req: INPUT-05, INPUT-14
// field case: F-LB-03
async fn an_answer_counts_at_every_node_and_once(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, capable(&world, "a").await);
    let stranger = capable(&world, "b").await;
    let Asking { task, work, asked, input } = asking(&world, &here, &caller, "once").await;
    let id = deliver(&world, &here, task.id, input).await;
    let unknown = DeliveryId::new().to_string();
    for (who, id) in [(&stranger, id.as_str()), (&caller, &unknown), (&caller, "x"), (&caller, &id.to_uppercase())] {
        there.engine.answer(who, id, accepted(9)).await.unwrap();
    }
    assert_eq!(here.status(&caller, task.id).await, Status::InputRequired, "all of them were ignored");
    // Another session of the same caller will do.
    let elsewhere = Caller { session: Some(SessionId::new()), ..caller.clone() };
    there.engine.answer(&elsewhere, &id, accepted(3)).await.unwrap();
    there.engine.answer(&caller, &id, accepted(4)).await.unwrap();
    assert!(is_working(&here.engine, &caller, task.id).await);
    here.engine.watch_once().await.unwrap();
    assert_eq!(answer_of(asked).await, accepted(3), "found by the gathered look");
    here.engine.answer(&caller, &id, accepted(5)).await.unwrap();
    let before = here.engine.get(&caller, task.id).await.unwrap();
    work.answer("done");
    let (ended, outcome) = here.engine.result(&caller, task.id).await.unwrap();
    there.engine.answer(&caller, &id, accepted(6)).await.unwrap();
    assert_eq!((outcome, before.status), (result("done"), Status::Working));
    assert_eq!(here.engine.get(&caller, task.id).await.unwrap(), ended);
}

// req: INPUT-05
async fn of_two_answers_at_once_one_counts(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.input.questions = 100;
    let (here, there, caller) = (world.node().await, world.node().await, capable(&world, "a").await);
    let task = here.create(&caller, "once").await;
    let work = here.script.next().await;
    for _ in 0..8 {
        let asked = [ask(&work, form()), ask(&work, form_about("And?"))];
        let inputs = until_open(&world, &caller, task.id, 2).await;
        let ids =
            [deliver(&world, &here, task.id, inputs[0].id).await, deliver(&world, &here, task.id, inputs[1].id).await];
        // Two answers to each question, and with them the two last open questions, all at once.
        let writes = [(&here, &ids[0], 1), (&there, &ids[0], 2), (&there, &ids[1], 1), (&here, &ids[1], 2)];
        let writes = writes.map(|(node, id, n)| node.engine.answer(&caller, id, accepted(n)));
        futures_util::future::try_join_all(writes).await.unwrap();
        assert!(is_working(&here.engine, &caller, task.id).await, "nothing is left open");
        here.engine.watch_once().await.unwrap();
        for asked in asked {
            let answer = answer_of(asked).await;
            assert!(answer == accepted(1) || answer == accepted(2), "{answer:?}");
        }
    }
}

// req: INPUT-12, LIFE-03
async fn a_cancel_and_an_answer_leave_nothing_open(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, capable(&world, "a").await);
    for _ in 0..6 {
        let Asking { task, work, asked, input } = asking(&world, &here, &caller, "once").await;
        let id = deliver(&world, &here, task.id, input).await;
        let (cancelled, answered) =
            tokio::join!(here.engine.cancel(&caller, task.id), there.engine.answer(&caller, &id, accepted(3)));
        assert_eq!(cancelled.unwrap().status, Status::Ended(Ending::Cancelled));
        answered.unwrap();
        work.stop.cancelled().await;
        let answer = answer_of(asked).await;
        assert!(answer == accepted(3) || error_of(&answer).1 == "withdrawn", "{answer:?}");
        assert!(open(&world, &caller, task.id).await.is_empty());
        assert_eq!(here.status(&caller, task.id).await, Status::Ended(Ending::Cancelled));
    }
}

// req: INPUT-11
async fn past_its_deadline_a_question_is_an_error_to_the_work(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.input.timeout = Some(Duration::from_millis(30));
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let task = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let answer = work.host.answer_to(form()).await;
    assert_eq!(error_of(&answer), (-32603, "input_timeout".to_owned()));
    let working = node.engine.get(&caller, task.id).await.unwrap();
    assert_eq!((working.status, working.message.as_deref()), (Status::Working, Some("running")));
    assert!(open(&world, &caller, task.id).await.is_empty());
    work.answer("went on");
    assert_eq!(node.engine.result(&caller, task.id).await.unwrap().1, result("went on"));
    // A tool has a deadline of its own.
    world.rules.input.timeout = Some(Duration::from_secs(600));
    let node = world.node().await;
    node.create(&caller, "impatient").await;
    let answer = node.script.next().await.host.answer_to(form()).await;
    assert_eq!(error_of(&answer).1, "input_timeout");
}

/// Both orders at once, of two questions that are late at the same moment: the one's answer was written at another node and
/// this one has not heard of it, the other's comes when all is over.
// req: INPUT-11
async fn a_deadline_and_an_answer_agree_on_who_was_first(database: TestDatabase) {
    let mut world = World::new(database).await;
    // All that comes before it has to be stored by then.
    world.rules.input.timeout = Some(Duration::from_secs(5));
    let (here, there, caller) = (world.node().await, world.node().await, capable(&world, "a").await);
    let Asking { task, work, asked, input } = asking(&world, &here, &caller, "once").await;
    let unanswered = ask(&work, form_about("And?"));
    let both = until_open(&world, &caller, task.id, 2).await;
    let other = both.iter().find(|open| open.id != input).unwrap().id;
    let ids = [deliver(&world, &here, task.id, input).await, deliver(&world, &here, task.id, other).await];
    there.engine.answer(&caller, &ids[0], accepted(3)).await.unwrap();
    assert!(!asked.is_finished(), "nobody has told this node");
    assert_eq!(answer_of(asked).await, accepted(3), "the deadline finds the answer");
    assert_eq!(error_of(&answer_of(unanswered).await).1, "input_timeout");
    let before = here.engine.get(&caller, task.id).await.unwrap();
    there.engine.answer(&caller, &ids[1], accepted(4)).await.unwrap();
    assert_eq!(here.engine.get(&caller, task.id).await.unwrap(), before, "the answer came too late");
    assert_eq!(before.status, Status::Working);
}

// req: INPUT-03, INPUT-11
async fn a_resumed_call_has_what_is_left_of_its_time(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.input.timeout = Some(Duration::from_secs(60));
    let (doomed, caller) = (world.node().await, capable(&world, "a").await);
    let Asking { task, work, input, .. } = asking(&world, &doomed, &caller, "once").await;
    let _second = ask(&work, form_about("Sure?"));
    let both = until_open(&world, &caller, task.id, 2).await;
    let sure = both.iter().find(|open| open.id != input).unwrap().id;
    let upstream = taskhold::domain::work::UpstreamTask {
        id: "their-id".to_owned(),
        session: None,
        revision: "2025-11-25".to_owned(),
    };
    assert!(work.host.handed_over(upstream).await);
    let id = deliver(&world, &doomed, task.id, sure).await;
    let heir = world.node().await;
    heir.beat_until_it_may_judge().await;
    world.database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    heir.engine.beat_once().await.unwrap();
    assert_eq!(heir.engine.recover_once().await.unwrap(), 1);
    heir.engine.answer(&caller, &id, accepted(2)).await.unwrap();
    world.clock.advance(Duration::from_secs(61));
    heir.engine.beat_once().await.unwrap();
    assert_eq!(heir.engine.claim_once().await.unwrap(), 1);
    let resumed = heir.script.next().await;
    assert_eq!(answer_of(ask(&resumed, form_about("Sure?"))).await, accepted(2), "it was given in time");
    assert_eq!(error_of(&answer_of(ask(&resumed, form())).await).1, "input_timeout", "its time did not begin anew");
    assert!(is_working(&heir.engine, &caller, task.id).await);
}

// req: INPUT-13 (legacy half)
async fn an_answer_that_does_not_fit_leaves_the_question_open(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let Asking { task, work, asked, input } = asking(&world, &node, &caller, "once").await;
    let bad = || Answer::Result(RawJson::trusted(r#"{"action":"accept","content":{"n":"three"}}"#));
    let mut seen = Vec::new();
    for round in 0..world.rules.input.refused {
        let id = deliver(&world, &node, task.id, input).await;
        node.engine.answer(&caller, &id, bad()).await.unwrap();
        assert_eq!(node.status(&caller, task.id).await, Status::InputRequired, "round {round}");
        assert!(open(&world, &caller, task.id).await[0].held.is_none(), "it can be asked again");
        seen.push(id);
    }
    // An answer to an earlier id counts as well.
    deliver(&world, &node, task.id, input).await;
    node.engine.answer(&caller, &seen[0], accepted(3)).await.unwrap();
    assert_eq!(answer_of(asked).await, accepted(3));

    // The one bad answer too many becomes an error to the work.
    let asked = ask(&work, form());
    let input = until_open(&world, &caller, task.id, 1).await[0].id;
    let mut seen: Vec<String> = Vec::new();
    for _ in 0..=world.rules.input.refused {
        let id = deliver(&world, &node, task.id, input).await;
        // Nobody's second thoughts on an earlier one count.
        for earlier in &seen {
            node.engine.answer(&caller, earlier, bad()).await.unwrap();
        }
        assert!(open(&world, &caller, task.id).await[0].held.is_some(), "it is still there to be answered");
        node.engine.answer(&caller, &id, bad()).await.unwrap();
        seen.push(id);
    }
    let answer = answer_of(asked).await;
    assert_eq!(error_of(&answer), (-32602, "bad_answer".to_owned()));
    assert!(is_working(&node.engine, &caller, task.id).await);

    // So is one that is too large.
    let asked = ask(&work, form());
    let input = until_open(&world, &caller, task.id, 1).await[0].id;
    let id = deliver(&world, &node, task.id, input).await;
    let large = format!(r#"{{"action":"decline","x":"{}"}}"#, "x".repeat(world.rules.input.answer_limit));
    node.engine.answer(&caller, &id, Answer::Result(RawJson::trusted(large))).await.unwrap();
    assert!(!asked.is_finished() && open(&world, &caller, task.id).await[0].held.is_none());
}

async fn questions_are_bounded(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let task = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let large = form_about(&"x".repeat(world.rules.input.question_limit));
    assert_eq!(error_of(&work.host.answer_to(large).await), (-32602, "question_too_large".to_owned()));
    let odd = Question { params: Some(RawJson::trusted(r#"{"message":"m"}"#)), ..form() };
    assert_eq!(error_of(&work.host.answer_to(odd).await), (-32602, "bad_question".to_owned()));

    let most = world.rules.input.open;
    let asked: Vec<_> = (0..most).map(|n| ask(&work, form_about(&n.to_string()))).collect();
    let inputs = until_open(&world, &caller, task.id, most).await;
    let Answer::Error(error) = work.host.answer_to(form()).await else { panic!("one too many is an error") };
    assert!(error.as_str().contains("limits.open_questions of 4"), "{}", error.as_str());
    for input in inputs {
        let id = deliver(&world, &node, task.id, input.id).await;
        node.engine.answer(&caller, &id, accepted(1)).await.unwrap();
    }
    for asked in asked {
        assert_eq!(answer_of(asked).await, accepted(1));
    }
    for _ in most..world.rules.input.questions {
        let asked = ask(&work, form());
        let input = until_open(&world, &caller, task.id, 1).await[0].id;
        let id = deliver(&world, &node, task.id, input).await;
        node.engine.answer(&caller, &id, accepted(1)).await.unwrap();
        answer_of(asked).await;
    }
    // Another call that may have asked is asked.
    let Err(Unasked(Answer::Error(error))) = work.host.ask(form()).await else { panic!("this call asks no more") };
    assert!(error.as_str().contains("limits.questions of 8"), "{}", error.as_str());
    assert!(is_working(&node.engine, &caller, task.id).await);
}

async fn who_waits_for_input_leaves_its_slot_to_others(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.slots = 1;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let Asking { task, work, asked, input } = asking(&world, &node, &caller, "once").await;
    until("the slot is free", async || node.engine.free_slots() == 1).await;
    let other = node.create(&caller, "once").await;
    let other_work = node.script.next().await;
    let queued = node.create(&caller, "once").await;
    assert!(node.script.is_idle().await, "the slot is taken");
    let id = deliver(&world, &node, task.id, input).await;
    node.engine.answer(&caller, &id, accepted(3)).await.unwrap();
    assert_eq!(answer_of(asked).await, accepted(3), "it goes on without waiting for a slot");
    other_work.answer("other");
    node.engine.result(&caller, other.id).await.unwrap();
    assert_eq!(node.engine.claim_once().await.unwrap(), 0, "two ran where there is one slot");
    work.answer("done");
    node.engine.result(&caller, task.id).await.unwrap();
    until("the slot is free", async || node.engine.free_slots() == 1).await;
    assert_eq!(node.engine.claim_once().await.unwrap(), 1);
    node.script.next().await.answer("last");
    node.engine.result(&caller, queued.id).await.unwrap();
}

// req: INPUT-12
async fn a_question_that_the_work_drops_is_withdrawn(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let Asking { task, work, asked, input } = asking(&world, &node, &caller, "once").await;
    let id = deliver(&world, &node, task.id, input).await;
    asked.abort();
    until("the task works again", async || is_working(&node.engine, &caller, task.id).await).await;
    assert!(open(&world, &caller, task.id).await.is_empty());
    let before = node.engine.get(&caller, task.id).await.unwrap();
    node.engine.answer(&caller, &id, accepted(3)).await.unwrap();
    assert_eq!(node.engine.get(&caller, task.id).await.unwrap(), before, "the answer came too late");
    work.answer("done");
    node.engine.result(&caller, task.id).await.unwrap();
}

// req: INPUT-12, LIFE-03
async fn an_end_closes_what_is_open(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let Asking { task, work, asked, input } = asking(&world, &node, &caller, "once").await;
    let id = deliver(&world, &node, task.id, input).await;
    work.answer("did not wait");
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    assert_eq!(outcome, result("did not wait"));
    assert_eq!(error_of(&answer_of(asked).await).1, "withdrawn");
    assert!(open(&world, &caller, task.id).await.is_empty());
    node.engine.answer(&caller, &id, accepted(3)).await.unwrap();
    assert_eq!(node.engine.get(&caller, task.id).await.unwrap(), ended);
}

// req: EXEC-04, KEEP-06, LIFE-03
async fn a_lost_attempts_questions_go_with_it(database: TestDatabase) {
    let world = World::new(database).await;
    let (doomed, caller) = (world.node().await, capable(&world, "a").await);
    let (once, again) =
        (asking(&world, &doomed, &caller, "once").await, asking(&world, &doomed, &caller, "again").await);
    let old = deliver(&world, &doomed, again.task.id, again.input).await;
    let heir = world.node().await;
    heir.beat_until_it_may_judge().await;
    world.database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    heir.engine.beat_once().await.unwrap();
    assert_eq!(heir.engine.recover_once().await.unwrap(), 2);
    assert_eq!(heir.status(&caller, once.task.id).await, Status::Ended(Ending::Failed));
    assert!(is_working(&heir.engine, &caller, again.task.id).await, "it waits for its next attempt");
    for task in [once.task.id, again.task.id] {
        assert!(open(&world, &caller, task).await.is_empty());
    }
    // The next attempt asks for itself; an answer to the lost one's question is too late.
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(heir.engine.claim_once().await.unwrap(), 1);
    let work = heir.script.next().await;
    let asked = ask(&work, form());
    let input = until_open(&world, &caller, again.task.id, 1).await[0].id;
    assert_ne!(input, again.input);
    heir.engine.answer(&caller, &old, accepted(9)).await.unwrap();
    let id = deliver(&world, &heir, again.task.id, input).await;
    heir.engine.answer(&caller, &id, accepted(3)).await.unwrap();
    assert_eq!(answer_of(asked).await, accepted(3));
    // The lost attempt's work may ask on: nobody hears it.
    let Unasked(error) = again.work.host.ask(form_about("Still there?")).await.expect_err("its attempt is over");
    assert_eq!(error_of(&error).1, "withdrawn");

    // Work past its run limit is stopped, and asks no more.
    let brief = heir.create(&caller, "brief").await;
    let work = heir.script.next().await;
    let asked = ask(&work, form());
    let (_, outcome) = heir.engine.result(&caller, brief.id).await.unwrap();
    assert!(outcome.json().unwrap().as_str().contains("run_time_exceeded"), "{outcome:?}");
    assert_eq!(error_of(&answer_of(asked).await).1, "withdrawn");
    assert!(open(&world, &caller, brief.id).await.is_empty());
}

// req: INPUT-03, KEEP-06
async fn a_call_that_was_handed_over_keeps_its_questions(database: TestDatabase) {
    let world = World::new(database).await;
    let (doomed, caller) = (world.node().await, capable(&world, "a").await);
    let Asking { task, work, asked, input } = asking(&world, &doomed, &caller, "once").await;
    let second = ask(&work, form_about("Sure?"));
    let both = until_open(&world, &caller, task.id, 2).await;
    let sure = both.iter().find(|open| open.id != input).unwrap().id;
    let third = ask(&work, form_about("Quite?"));
    let all = until_open(&world, &caller, task.id, 3).await;
    let quite = all.iter().find(|open| ![input, sure].contains(&open.id)).unwrap().id;
    let upstream = taskhold::domain::work::UpstreamTask {
        id: "their-id".to_owned(),
        session: None,
        revision: "2025-11-25".to_owned(),
    };
    assert!(work.host.handed_over(upstream.clone()).await);

    // One question is answered and taken; of the others one is answered while nobody runs the task.
    let ids = [
        deliver(&world, &doomed, task.id, input).await,
        deliver(&world, &doomed, task.id, sure).await,
        deliver(&world, &doomed, task.id, quite).await,
    ];
    doomed.engine.answer(&caller, &ids[0], accepted(1)).await.unwrap();
    assert_eq!(answer_of(asked).await, accepted(1));
    let heir = world.node().await;
    heir.beat_until_it_may_judge().await;
    world.database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
    heir.engine.beat_once().await.unwrap();
    assert_eq!(heir.engine.recover_once().await.unwrap(), 1);
    assert_eq!(heir.status(&caller, task.id).await, Status::InputRequired);
    heir.engine.answer(&caller, &ids[1], accepted(2)).await.unwrap();

    world.clock.advance(Duration::from_secs(5));
    assert_eq!(heir.engine.claim_once().await.unwrap(), 1);
    let resumed = heir.script.next().await;
    assert_eq!(heir.message(&caller, task.id).await, "waiting for input: Quite?", "it says so all the time");
    assert_eq!(resumed.call.resume, Some(upstream));
    let asked = [ask(&resumed, form_about("Sure?")), ask(&resumed, form_about("Quite?"))];
    let [sure_asked, quite_asked] = asked;
    assert_eq!(answer_of(sure_asked).await, accepted(2), "the answer waited");
    let left = until_open(&world, &caller, task.id, 1).await;
    assert_eq!(left[0].id, quite, "the question is the same one");
    heir.engine.answer(&caller, &ids[2], accepted(3)).await.unwrap();
    assert_eq!(answer_of(quite_asked).await, accepted(3), "an id from before the crash counts");
    resumed.answer("all three");
    assert_eq!(heir.engine.result(&caller, task.id).await.unwrap().1, result("all three"));
    drop((second, third));
}

async fn a_clean_stop_does_not_wait_for_answers(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, other, caller) = (world.node().await, world.node().await, capable(&world, "a").await);
    let once = asking(&world, &node, &caller, "once").await;
    let again = asking(&world, &node, &caller, "again").await;
    tokio::time::timeout(Duration::from_secs(10), node.engine.drain(Duration::from_millis(50))).await.unwrap();
    assert_eq!(error_of(&answer_of(once.asked).await).1, "withdrawn");
    let (ended, outcome) = other.engine.result(&caller, once.task.id).await.unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    assert!(outcome.json().unwrap().as_str().contains("outcome_unknown"), "{outcome:?}");
    assert!(is_working(&other.engine, &caller, again.task.id).await);
    assert!(open(&world, &caller, again.task.id).await.is_empty(), "its next attempt asks for itself");
    assert_eq!(other.engine.claim_once().await.unwrap(), 1);
    assert_eq!(other.script.next().await.call.attempt, 1, "the attempt did not count");
}

// field case: F-SQL-07
async fn questions_go_with_their_task(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    for round in 0..5 {
        let Asking { task, work, asked, input } = asking(&world, &node, &caller, "once").await;
        let id = deliver(&world, &node, task.id, input).await;
        match round {
            0 => asked.abort(),
            1 => node.engine.answer(&caller, &id, accepted(3)).await.unwrap(),
            2 => drop(node.engine.cancel(&caller, task.id).await.unwrap()),
            _ => {}
        }
        work.answer("done");
        node.engine.result(&caller, task.id).await.unwrap();
    }
    let rows = "SELECT (SELECT COUNT(*) FROM task_inputs) + (SELECT COUNT(*) FROM input_deliveries)";
    assert!(world.database.number(rows).await >= 5);
    world.clock.advance(Duration::from_secs(2 * 3600));
    node.engine.reap_once().await.unwrap();
    assert_eq!(world.database.number(rows).await + world.database.rows_of_tasks().await, 0);
}

// req: NOTE-10, INPUT-02
async fn a_full_stream_keeps_no_question_from_another(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.input.question_limit = 300_000;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let task = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let other = Caller { session: Some(SessionId::new()), ..caller.clone() };
    let waits = |id: &str| Asked::in_session(id.to_owned(), true, false);
    let unread = node.engine.open_result_stream(&caller, task.id, waits("1"), None).await.unwrap();
    let mut read = node.engine.open_result_stream(&other, task.id, waits("2"), None).await.unwrap();
    let large = |what: &str| form_about(&format!("{what}{}", "x".repeat(200_000)));
    let first = ask(&work, large("first"));
    until("the first question is held", async || {
        open(&world, &caller, task.id).await.iter().any(|question| question.held.is_some())
    })
    .await;
    let second = ask(&work, large("second"));
    let wanted = async {
        loop {
            if let Item::Message { delivery: Delivery::Ask { question, .. }, .. } = read.next().await {
                return question;
            }
        }
    };
    let question = tokio::time::timeout(Duration::from_secs(10), wanted).await.expect("the stream with room gets it");
    assert_eq!(question, large("second"));
    drop((unread, read));
    work.answer("done");
    until("the task is over", async || node.status(&caller, task.id).await.is_terminal()).await;
    first.abort();
    second.abort();
}
