//! Calls of which the service decides whether they become tasks, and looking at and answering those.

use std::time::Duration;

use taskhold::domain::ids::{InputId, SessionId, TaskId};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::{Ending, Outcome};
use taskhold::domain::task::{Status, Task};
use taskhold::domain::work::UpstreamTask;
use taskhold::engine::{Asked, Called, Caller, Directed, Item, Looked, Refusal, Stream};
use taskhold::executor::{Attempt, Event};
use tokio::task::JoinHandle;

use super::harness::{Node, World, call, call_with};
use crate::http::harness::until;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::host::Answers;
use crate::support::script::{ScriptedCall, result};
use crate::support::waiting::Waiting;

contract! {
    the_mode_and_the_caller_decide,
    a_call_that_ends_within_its_grace_makes_no_task,
    a_call_that_outlasts_its_grace_becomes_a_task_and_runs_on,
    a_call_that_asks_becomes_a_task,
    what_a_caller_cannot_be_asked_makes_no_task,
    an_outcome_during_the_promotion_is_the_tasks,
    a_promoted_call_is_stopped_by_a_cancel,
    a_promoted_call_keeps_its_run_limit,
    a_promoted_call_that_was_never_sent_is_tried_again,
    a_draining_node_promotes_nothing,
    a_drain_hands_a_promoted_call_back,
    what_runs_at_an_upstream_goes_on_when_its_call_became_a_task,
    a_node_without_its_database_promotes_nothing,
    a_caller_that_leaves_before_it_is_told_leaves_no_task,
    a_look_shows_everything_at_one_moment,
    an_update_answers_by_key_and_once,
    a_bad_answer_spoils_its_update_and_nothing_else,
    an_update_is_taken_in_any_status,
    an_answer_counts_whichever_era_it_comes_from,
}

const CAPABLE: &str = r#"{"elicitation":{"form":{}},"roots":{}}"#;
const FORM: &str = r#"{"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]},"x":1.0e0}"#;
const SOON: Duration = Duration::from_millis(20);
/// Long enough for what has to come before it, on a machine that is busy.
const LATER: Duration = Duration::from_secs(1);

async fn world(database: TestDatabase) -> World {
    let mut world = World::new(database).await;
    world.rules.grace = SOON;
    world
}

/// A caller of the stateless era that serves some of what it may be asked.
pub async fn caller(world: &World, name: &str) -> Caller {
    let caller = world.caller(name).await;
    Caller { capabilities: RawJson::trusted(CAPABLE), takes_requests: false, session: None, ..caller }
}

fn asked() -> Asked {
    Asked { ends_with_client: true, ..Asked::in_session("1".to_owned(), true, true) }
}

pub fn form() -> Question {
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(FORM)) }
}

pub fn accepted(n: u32) -> RawJson {
    RawJson::trusted(format!(r#"{{"action":"accept","content":{{"n":{n},"more":1.0e0}}}}"#))
}

async fn directed(node: &Node, caller: &Caller, tool: &str) -> Directed {
    node.engine.call_directed(caller, call(tool), asked()).await.unwrap()
}

pub async fn stream(node: &Node, caller: &Caller, tool: &str) -> Stream {
    match directed(node, caller, tool).await {
        Directed::Stream(stream) => stream,
        Directed::Task(created) => panic!("a task at once: {created:?}"),
    }
}

/// What the stream ends with, past everything that is said before.
pub async fn end(stream: &mut Stream) -> Called {
    loop {
        match stream.next().await {
            Item::Message { .. } => {}
            Item::Called { answer, .. } => return answer.unwrap(),
            other => panic!("no end of a call: {other:?}"),
        }
    }
}

pub async fn promoted(stream: &mut Stream) -> Task {
    match end(stream).await {
        Called::Promoted(created) => created.task,
        other => panic!("no task: {other:?}"),
    }
}

pub fn ask(work: &ScriptedCall, question: Question) -> JoinHandle<Answer> {
    let host = work.host.clone();
    tokio::spawn(async move { host.answer_to(question).await })
}

async fn look(node: &Node, caller: &Caller, task: TaskId) -> Looked {
    node.engine.look(caller, task).await.unwrap()
}

pub async fn until_waiting(node: &Node, caller: &Caller, task: TaskId, count: usize) -> Looked {
    until("the questions are open", async || look(node, caller, task).await.waiting.len() == count).await;
    look(node, caller, task).await
}

fn progress(value: f64, message: &str) -> Event {
    Event::Progress {
        progress: value,
        total: None,
        message: Some(message.to_owned()),
        params: RawJson::trusted(format!(r#"{{"progress":{value}}}"#)),
    }
}

// req: EXT-01, EXT-02, EXT-04
async fn the_mode_and_the_caller_decide(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, declares) = (world.node().await, caller(&world, "a").await);
    let silent = Caller { tasks_enabled: false, ..declares.clone() };
    for tool in ["always", "eager", "at once"] {
        let Directed::Task(created) = directed(&node, &declares, tool).await else { panic!("{tool} is no task") };
        assert_eq!(look(&node, &declares, created.task.id).await.task.status, Status::Working);
        assert!(node.script.next().await.call.is_task);
    }
    let made = node.engine.list(&declares, None).await.unwrap().tasks.len();
    for (by, tool) in [(&declares, "never"), (&silent, "never"), (&silent, "eager"), (&silent, "once")] {
        let mut stream = stream(&node, by, tool).await;
        let work = node.script.next().await;
        assert!(!work.call.is_task);
        work.answer("plain");
        assert_eq!(end(&mut stream).await, Called::Outcome(result("plain")), "{tool}");
    }
    let refuse = |caller: Caller, call| {
        let engine = node.engine.clone();
        async move { engine.call_directed(&caller, call, asked()).await.unwrap_err() }
    };
    let bad = || call_with("once", r#"{"bad":1}"#);
    assert!(matches!(refuse(silent.clone(), call("always")).await, Refusal::TaskRequired { .. }));
    assert!(matches!(refuse(declares.clone(), call("missing")).await, Refusal::UnknownTool(_)));
    assert!(matches!(refuse(declares.clone(), bad()).await, Refusal::InvalidArguments { .. }));
    assert!(matches!(refuse(silent, bad()).await, Refusal::InvalidArguments { .. }));
    let bad = call_with("eager", r#"{"bad":1}"#);
    assert!(matches!(refuse(declares.clone(), bad).await, Refusal::InvalidArguments { .. }));
    assert!(node.script.is_idle().await, "nothing ran");
    assert_eq!(node.engine.list(&declares, None).await.unwrap().tasks.len(), made);
}

// req: EXT-04
async fn a_call_that_ends_within_its_grace_makes_no_task(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "once").await;
    node.script.next().await.answer("soon");
    assert_eq!(end(&mut stream).await, Called::Outcome(result("soon")));
    assert!(node.engine.list(&caller, None).await.unwrap().tasks.is_empty());
}

// req: EXT-04, NOTE-03 (modern half), LIFE-10, LIFE-13
async fn a_call_that_outlasts_its_grace_becomes_a_task_and_runs_on(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.grace = LATER;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let with_token = taskhold::engine::ToolCall { progress_token: Some(RawJson::trusted("7")), ..call("once") };
    let Directed::Stream(mut stream) = node.engine.call_directed(&caller, with_token, asked()).await.unwrap() else {
        panic!("a task at once")
    };
    let work = node.script.next().await;
    work.host.tell(progress(1.0, "begun"));
    let Item::Message { .. } = stream.next().await else { panic!("progress comes before the answer") };
    let task = promoted(&mut stream).await;
    assert_eq!((task.status, &task.progress_token), (Status::Working, &None));
    node.until_message(&caller, task.id, "begun").await;
    work.host.tell(progress(2.0, "well under way"));
    node.until_message(&caller, task.id, "well under way").await;
    assert!(node.script.is_idle().await, "the work was not begun again");
    assert!(!work.stop.is_cancelled());
    // Told of it, its caller may leave.
    drop(stream);
    let there = world.node().await;
    work.answer("done");
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    assert_eq!((ended.status, outcome), (Status::Ended(Ending::Completed), result("done")));
    let looked = look(&there, &caller, task.id).await;
    assert_eq!(looked, Looked { task: ended, outcome: Some(result("done")), waiting: Vec::new() });
}

// req: INPUT-08, EXT-04, INPUT-01
async fn a_call_that_asks_becomes_a_task(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "once").await;
    let work = node.script.next().await;
    let answers = [ask(&work, form()), ask(&work, Question { kind: InputKind::Roots, params: None })];
    let task = promoted(&mut stream).await;
    let open = until_waiting(&node, &caller, task.id, 2).await;
    assert_eq!(open.task.status, Status::InputRequired);
    let update = open.waiting.iter().map(|open| {
        let json = match open.question.kind {
            InputKind::Roots => RawJson::trusted(r#"{"roots":[]}"#),
            _ => accepted(3),
        };
        (open.id.to_string(), json)
    });
    node.engine.update(&caller, task.id, update.collect()).await.unwrap();
    let [first, second] = answers;
    assert_eq!(first.await.unwrap(), Answer::Result(accepted(3)));
    assert_eq!(second.await.unwrap(), Answer::Result(RawJson::trusted(r#"{"roots":[]}"#)));
    work.answer("done");
    assert_eq!(node.engine.result(&caller, task.id).await.unwrap().1, result("done"));
}

// req: INPUT-07
async fn what_a_caller_cannot_be_asked_makes_no_task(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "once").await;
    let work = node.script.next().await;
    let sampling = ask(&work, Question { kind: InputKind::Sampling, params: Some(RawJson::trusted("{}")) });
    let Answer::Error(error) = sampling.await.unwrap() else { panic!("it was not declared") };
    assert!(error.as_str().contains("-32601"), "{}", error.as_str());
    work.answer("went on");
    assert_eq!(end(&mut stream).await, Called::Outcome(result("went on")));
    assert!(node.engine.list(&caller, None).await.unwrap().tasks.is_empty());
}

// req: EXT-04, LIFE-06
async fn an_outcome_during_the_promotion_is_the_tasks(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.grace = Duration::from_nanos(1);
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    for polls in 0..40 {
        let mut stream = stream(&node, &caller, "once").await;
        let work = node.script.next().await;
        // Before, during and after the commit.
        for _ in 0..polls * 4 {
            tokio::task::yield_now().await;
        }
        work.answer("raced");
        let tasks = match end(&mut stream).await {
            Called::Outcome(outcome) => {
                assert_eq!(outcome, result("raced"));
                continue;
            }
            Called::Promoted(created) => created.task.id,
            other => panic!("nobody stopped it: {other:?}"),
        };
        assert_eq!(node.engine.result(&caller, tasks).await.unwrap().1, result("raced"));
    }
    assert!(node.script.is_idle().await, "each ran once");
}

// req: LIFE-07, EXT-07
async fn a_promoted_call_is_stopped_by_a_cancel(database: TestDatabase) {
    let world = world(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let slots = node.engine.free_slots();
    let mut stream = stream(&node, &caller, "once").await;
    let work = node.script.next().await;
    let task = promoted(&mut stream).await;
    assert_eq!(node.engine.free_slots(), slots - 1, "it counts like others");
    node.engine.cancel(&caller, task.id).await.unwrap();
    work.stop.cancelled().await;
    work.answer("too late");
    let looked = look(&node, &caller, task.id).await;
    assert_eq!((looked.task.status, looked.outcome), (Status::Ended(Ending::Cancelled), Some(Outcome::Cancelled)));
    until("its slot is given back", async || node.engine.free_slots() == slots).await;
}

// req: EXEC-04
async fn a_promoted_call_keeps_its_run_limit(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.grace = Duration::from_millis(5);
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "brief").await;
    let work = node.script.next().await;
    let outcome = match end(&mut stream).await {
        Called::Promoted(created) => node.engine.result(&caller, created.task.id).await.unwrap().1,
        Called::Outcome(outcome) => outcome,
        other => panic!("nobody stopped it: {other:?}"),
    };
    assert!(work.stop.is_cancelled());
    assert!(outcome.json().unwrap().as_str().contains(r#""reason":"run_time_exceeded""#), "{outcome:?}");
}

// req: KEEP-06
async fn a_promoted_call_that_was_never_sent_is_tried_again(database: TestDatabase) {
    let world = world(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "once").await;
    let work = node.script.next().await;
    let task = promoted(&mut stream).await;
    work.end(Attempt::NotDispatched { detail: "it is starting".to_owned() });
    until("it waits for its next attempt", async || {
        world.clock.advance(Duration::from_secs(60));
        node.engine.beat_once().await.unwrap();
        node.engine.claim_once().await.unwrap() == 1
    })
    .await;
    let again = node.script.next().await;
    assert_eq!((again.call.attempt, again.call.is_task), (2, true));
    again.answer("at last");
    assert_eq!(node.engine.result(&caller, task.id).await.unwrap().1, result("at last"));
}

// req: KEEP-10
async fn a_draining_node_promotes_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "once").await;
    let work = node.script.next().await;
    node.engine.drain(Duration::from_secs(5)).await;
    // It goes on as it is, and what it asks has nobody who answers.
    let Answer::Error(_) = ask(&work, form()).await.unwrap() else { panic!("nobody answers a call") };
    work.answer("in time");
    assert_eq!(end(&mut stream).await, Called::Outcome(result("in time")));
    let there = world.node().await;
    assert!(there.engine.list(&caller, None).await.unwrap().tasks.is_empty());
}

// req: KEEP-10
async fn a_drain_hands_a_promoted_call_back(database: TestDatabase) {
    let world = world(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "again").await;
    let work = node.script.next().await;
    let task = promoted(&mut stream).await;
    node.engine.drain(Duration::from_secs(5)).await;
    assert!(work.stop.is_cancelled());
    let there = world.node().await;
    let again = there.script.next().await;
    assert_eq!(again.call.attempt, 1, "it was given back uncounted");
    again.answer("elsewhere");
    assert_eq!(there.engine.result(&caller, task.id).await.unwrap().1, result("elsewhere"));
}

// req: KEEP-07, KEEP-10 (of calls that became tasks)
async fn what_runs_at_an_upstream_goes_on_when_its_call_became_a_task(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.grace = LATER;
    let theirs = UpstreamTask {
        id: "\"their-id\"".to_owned(),
        session: Some("s".to_owned()),
        revision: "2026-07-28".to_owned(),
    };
    // Handed over before the call became a task, and after.
    for early in [true, false] {
        let (node, caller) = (world.node().await, caller(&world, "a").await);
        let mut stream = stream(&node, &caller, "once").await;
        let work = node.script.next().await;
        assert!(!early || work.host.handed_over(theirs.clone()).await);
        assert!(!work.host.is_kept(), "an upstream's task ends with a call that is none");
        let task = promoted(&mut stream).await;
        assert!(early || work.host.handed_over(theirs.clone()).await);
        until("it is stored", async || work.host.is_kept()).await;
        node.engine.drain(Duration::from_secs(30)).await;
        assert!(!work.stop.is_cancelled(), "its upstream is told nothing");
        let there = world.node().await;
        let resumed = there.script.next().await;
        assert_eq!((resumed.call.attempt, &resumed.call.resume), (1, &Some(theirs.clone())));
        resumed.answer("elsewhere");
        assert_eq!(there.engine.result(&caller, task.id).await.unwrap().1, result("elsewhere"));
    }
}

// req: KEEP-11
async fn a_node_without_its_database_promotes_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let mut stream = stream(&node, &caller, "once").await;
    let work = node.script.next().await;
    // Its last report is old by now.
    world.clock.advance(Duration::from_secs(60));
    let Answer::Error(_) = ask(&work, form()).await.unwrap() else { panic!("nobody answers a call") };
    work.answer("plain");
    assert_eq!(end(&mut stream).await, Called::Outcome(result("plain")));
    assert!(node.engine.list(&caller, None).await.unwrap().tasks.is_empty());
}

// req: MOD-10
async fn a_caller_that_leaves_before_it_is_told_leaves_no_task(database: TestDatabase) {
    let world = world(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let live = async |node: &Node| {
        let tasks = node.engine.list(&caller, None).await.unwrap().tasks;
        tasks.iter().filter(|task| !task.status.is_terminal()).count()
    };
    // Before the end of the grace: the work is stopped and no task is made.
    drop(stream(&node, &caller, "once").await);
    node.script.next().await.stop.cancelled().await;
    // When the task is made and its answer not read.
    let unread = stream(&node, &caller, "once").await;
    let work = node.script.next().await;
    until("it became a task", async || live(&node).await == 1).await;
    drop(unread);
    work.stop.cancelled().await;
    until("its task is cancelled", async || live(&node).await == 0).await;
    // Wherever it leaves while a task is made at once.
    for polls in 1..30 {
        let mut made = std::pin::pin!(node.engine.call_directed(&caller, call("eager"), asked()));
        let told = tokio::select! {
            biased;
            made = &mut made => Some(made.unwrap()),
            () = async {
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
            } => None,
        };
        if let Some(Directed::Task(created)) = told {
            node.engine.cancel(&caller, created.task.id).await.unwrap();
        }
    }
    until("they are cancelled", async || live(&node).await == 0).await;
}

/// A task of a caller of the stateless era whose work has asked this, with the key.
async fn asking(node: &Node, caller: &Caller) -> (TaskId, ScriptedCall, JoinHandle<Answer>, InputId) {
    let Directed::Task(created) = directed(node, caller, "eager").await else { panic!("no task") };
    let work = node.script.next().await;
    let asked = ask(&work, form());
    let key = until_waiting(node, caller, created.task.id, 1).await.waiting[0].id;
    (created.task.id, work, asked, key)
}

// req: EXT-05, INPUT-08, EXT-08, AUTH-02
async fn a_look_shows_everything_at_one_moment(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, owner, stranger) = (world.node().await, caller(&world, "a").await, caller(&world, "b").await);
    let (task, work, asked, key) = asking(&node, &owner).await;
    let looked = look(&node, &owner, task).await;
    assert_eq!(looked.task.status, Status::InputRequired);
    assert_eq!((looked.waiting.len(), &looked.waiting[0].question), (1, &form()));
    assert_eq!(look(&world.node().await, &owner, task).await, looked, "the same key at every node");
    assert!(matches!(node.engine.look(&stranger, task).await, Err(Refusal::UnknownTask)));
    assert!(matches!(node.engine.look(&owner, TaskId::new()).await, Err(Refusal::UnknownTask)));
    // However status and questions change meanwhile, a look has both of one moment.
    let engine = node.engine.clone();
    let by = owner.clone();
    let watcher = tokio::spawn(async move {
        loop {
            let looked = engine.look(&by, task).await.unwrap();
            assert_eq!(looked.task.status == Status::InputRequired, !looked.waiting.is_empty(), "{looked:?}");
            assert_eq!(looked.task.status.is_terminal(), looked.outcome.is_some());
            if looked.outcome.is_some() {
                return;
            }
        }
    });
    node.engine.update(&owner, task, vec![(key.to_string(), accepted(1))]).await.unwrap();
    asked.await.unwrap();
    for n in 0..5 {
        let question = Question { params: Some(RawJson::trusted(FORM.replace("many", &n.to_string()))), ..form() };
        let asked = ask(&work, question);
        let again = until_waiting(&node, &owner, task, 1).await.waiting[0].id;
        assert_ne!(again, key, "keys are unique over the task's life");
        node.engine.update(&owner, task, vec![(again.to_string(), accepted(n))]).await.unwrap();
        asked.await.unwrap();
    }
    work.answer("done");
    watcher.await.unwrap();
}

// req: INPUT-09, INPUT-05
async fn an_update_answers_by_key_and_once(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, owner, stranger) = (world.node().await, caller(&world, "a").await, caller(&world, "b").await);
    let there = world.node().await;
    let (task, work, asked, key) = asking(&node, &owner).await;
    let roots = ask(&work, Question { kind: InputKind::Roots, params: None });
    let open = until_waiting(&node, &owner, task, 2).await.waiting;
    let second = open.iter().find(|open| open.id != key).unwrap().id;
    let answers = |n| vec![("unknown".to_owned(), accepted(9)), (key.to_string(), accepted(n))];
    assert!(matches!(node.engine.update(&stranger, task, answers(9)).await, Err(Refusal::UnknownTask)));
    assert!(matches!(node.engine.update(&owner, TaskId::new(), answers(9)).await, Err(Refusal::UnknownTask)));
    // At another node; of several at once one counts.
    let updates = (0..6).map(|n| {
        let (engine, owner, answers) = (there.engine.clone(), owner.clone(), answers(n));
        async move { engine.update(&owner, task, answers).await }
    });
    for updated in futures_util::future::join_all(updates).await {
        updated.unwrap();
    }
    let partial = look(&there, &owner, task).await;
    assert_eq!(partial.task.status, Status::InputRequired, "another one is open");
    assert_eq!(partial.waiting.iter().map(|open| open.id).collect::<Vec<_>>(), [second], "what was written is read");
    node.engine.watch_once().await.unwrap();
    let Answer::Result(given) = asked.await.unwrap() else { panic!("an answer") };
    assert!((0..6).any(|n| given == accepted(n)), "one of them, as it arrived");
    let listed = RawJson::trusted(r#"{"roots":[]}"#);
    node.engine.update(&owner, task, vec![(second.to_string(), listed.clone())]).await.unwrap();
    assert_eq!(roots.await.unwrap(), Answer::Result(listed));
    assert_eq!(look(&node, &owner, task).await.task.status, Status::Working);
    work.answer("done");
}

// req: INPUT-13 (modern half)
async fn a_bad_answer_spoils_its_update_and_nothing_else(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let (task, work, asked, key) = asking(&node, &caller).await;
    let roots = ask(&work, Question { kind: InputKind::Roots, params: None });
    let open = until_waiting(&node, &caller, task, 2).await;
    let second = open.waiting.iter().find(|open| open.id != key).unwrap().id;
    for bad in ["7", "null", "[]", "{}", r#"{"action":"accept","content":{"n":"x"}}"#] {
        let answers =
            vec![(second.to_string(), RawJson::trusted(r#"{"roots":[]}"#)), (key.to_string(), RawJson::trusted(bad))];
        let refused = node.engine.update(&caller, task, answers).await.unwrap_err();
        assert!(matches!(&refused, Refusal::InvalidAnswer { key: named, .. } if *named == key.to_string()), "{bad}");
        assert_eq!(look(&node, &caller, task).await, open, "nothing of it was used");
    }
    assert!(!asked.is_finished() && !roots.is_finished());
    let good = vec![
        (second.to_string(), RawJson::trusted(r#"{"roots":[]}"#)),
        (key.to_string(), RawJson::trusted(r#"{"action":"decline"}"#)),
    ];
    node.engine.update(&caller, task, good).await.unwrap();
    assert_eq!(asked.await.unwrap(), Answer::Result(RawJson::trusted(r#"{"action":"decline"}"#)));
    roots.await.unwrap();
    work.answer("done");
}

// req: INPUT-09
async fn an_update_is_taken_in_any_status(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, caller(&world, "a").await);
    let (task, work, asked, key) = asking(&node, &caller).await;
    let update = || node.engine.update(&caller, task, vec![(key.to_string(), accepted(2))]);
    update().await.unwrap();
    assert_eq!(asked.await.unwrap(), Answer::Result(accepted(2)));
    let working = look(&node, &caller, task).await;
    update().await.unwrap();
    assert_eq!(look(&node, &caller, task).await, working, "a repeated one changes nothing");
    work.answer("done");
    let (ended, _) = node.engine.result(&caller, task).await.unwrap();
    update().await.unwrap();
    assert_eq!(look(&node, &caller, task).await.task, ended);
}

// req: LIFE-13, INPUT-10
async fn an_answer_counts_whichever_era_it_comes_from(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, modern) = (world.node().await, caller(&world, "a").await);
    let legacy = Caller { session: Some(SessionId::new()), takes_requests: true, ..modern.clone() };
    // Made in a session, answered by key; its session is told that the question is gone by its own stream.
    let task = node.create(&legacy, "once").await.id;
    let work = node.script.next().await;
    let asked_of_work = ask(&work, form());
    let asked = Asked::in_session("9".to_owned(), true, false);
    let mut waits = node.engine.open_result_stream(&legacy, task, asked, None).await.unwrap();
    let key = until_waiting(&node, &modern, task, 1).await.waiting[0].id;
    let sent = loop {
        match waits.next().await {
            Item::Message { delivery: taskhold::engine::Delivery::Ask { id, .. }, .. } => break id,
            Item::Message { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    node.engine.update(&modern, task, vec![(key.to_string(), accepted(5))]).await.unwrap();
    assert_eq!(asked_of_work.await.unwrap(), Answer::Result(accepted(5)));
    loop {
        match waits.next().await {
            Item::Message { delivery: taskhold::engine::Delivery::Withdrawn { id, .. }, .. } => {
                assert_eq!(id, sent);
                break;
            }
            Item::Message { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    // Made without one, answered by a stream that waits for its result.
    drop(waits);
    let (task, work, asked_of_work, _) = asking(&node, &modern).await;
    let asked = Asked::in_session("10".to_owned(), true, false);
    let mut waits = node.engine.open_result_stream(&legacy, task, asked, None).await.unwrap();
    let sent = loop {
        match waits.next().await {
            Item::Message { delivery: taskhold::engine::Delivery::Ask { id, .. }, .. } => break id,
            Item::Message { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    node.engine.answer(&legacy, &sent, Answer::Result(accepted(6))).await.unwrap();
    assert_eq!(asked_of_work.await.unwrap(), Answer::Result(accepted(6)));
    assert_eq!(look(&node, &modern, task).await.task.status, Status::Working);
    node.engine.cancel(&legacy, task).await.unwrap();
    work.stop.cancelled().await;
    assert_eq!(look(&node, &modern, task).await.outcome, Some(Outcome::Cancelled));
}
