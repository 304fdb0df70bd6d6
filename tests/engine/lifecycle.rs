//! A task's life at one node and across two.

use std::time::Duration;

use taskhold::domain::ids::TaskId;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::{Ending, Outcome};
use taskhold::domain::task::Status;
use taskhold::engine::{Called, Refusal};
use taskhold::executor::{Attempt, Event};

use super::harness::{World, call, call_with, plainly};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::script::result;
use crate::support::waiting::Waiting;

const COMPLETED: Status = Status::Ended(Ending::Completed);
const CANCELLED: Status = Status::Ended(Ending::Cancelled);

contract! {
    a_task_is_answered_before_its_work_ends,
    a_result_is_waited_for_at_every_node,
    an_end_is_found_although_a_question_failed,
    a_waiter_that_leaves_changes_nothing,
    cancelling_at_another_node_stops_the_work,
    an_outcome_that_comes_after_a_cancel_is_dropped,
    strangers_tasks_are_missing_tasks,
    the_list_is_paged,
    what_may_not_become_a_task_leaves_nothing,
    a_plain_call_makes_no_task,
    plain_calls_of_one_caller_are_bounded,
    progress_becomes_the_status_message,
    a_panic_of_the_runner_is_an_outcome,
    work_past_its_run_limit_is_stopped,
    errors_of_the_work_end_a_task_as_failed,
}

// req: TASK-01, LIFE-01, TASK-06
async fn a_task_is_answered_before_its_work_ends(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "once").await;
    assert_eq!(task.status, Status::Working);
    assert_eq!(node.engine.get(&caller, task.id).await.unwrap(), task);
    let work = node.script.next().await;
    assert_eq!((work.call.attempt, work.call.upstream_tool.as_str()), (1, "once"));
    work.answer("done");
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    assert_eq!((ended.status, outcome), (COMPLETED, result("done")));
    assert_eq!(node.engine.get(&caller, task.id).await.unwrap(), ended);
    assert!(ended.updated > task.updated && ended.created == task.created);
}

// req: TASK-07, TASK-22
async fn a_result_is_waited_for_at_every_node(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let task = here.create(&caller, "once").await;
    let work = here.script.next().await;
    let waiters: Vec<_> = [&here, &here, &there, &there]
        .into_iter()
        .map(|node| {
            let (engine, caller) = (node.engine.clone(), caller.clone());
            tokio::spawn(async move { engine.result(&caller, task.id).await.unwrap() })
        })
        .collect();
    tokio::task::yield_now().await;
    work.answer("for all");
    let watcher = tokio::spawn({
        let there = there.engine.clone();
        async move {
            loop {
                there.watch_once().await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    for waiter in waiters {
        let (ended, outcome) = waiter.await.unwrap();
        assert_eq!((ended.status, outcome), (COMPLETED, result("for all")));
    }
    watcher.abort();
}

// req: TASK-07
async fn an_end_is_found_although_a_question_failed(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, world.caller("a").await);
    for polls in 1..40 {
        let task = here.create(&caller, "once").await;
        let mut waiter = std::pin::pin!(there.engine.result(&caller, task.id));
        let early = tokio::time::timeout(Duration::from_millis(5), &mut waiter).await;
        assert!(early.is_err(), "it waits while the work runs");
        here.script.next().await.answer("done");
        here.engine.result(&caller, task.id).await.unwrap();
        // A question that does not come to its end, wherever it may break off.
        tokio::select! {
            biased;
            asked = there.engine.watch_once() => asked.unwrap(),
            () = async {
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        there.engine.watch_once().await.unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(10), waiter).await.is_ok(), "broken off after {polls}");
    }
}

async fn plain_calls_of_one_caller_are_bounded(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.waiters_per_context = 1;
    let (node, caller, other) = (world.node().await, world.caller("a").await, world.caller("b").await);
    let plainly = |caller| plainly(&node.engine, caller, call("once"), "1");
    // It leaves as soon as its work has begun, and its call goes on.
    let work = tokio::select! {
        work = node.script.next() => work,
        answer = plainly(&caller) => panic!("nobody has answered it yet: {answer:?}"),
    };
    let refused = plainly(&caller).await;
    assert!(matches!(refused, Err(Refusal::LimitReached { limit: "limits.streams", most: 1, .. })), "{refused:?}");
    let (called, ()) = tokio::join!(plainly(&other), async { node.script.next().await.answer("another's") });
    assert_eq!(called.unwrap(), Called::Outcome(result("another's")));
    work.answer("at last");
    // The place is given up just after the work has ended.
    let again = loop {
        tokio::select! {
            again = node.script.next() => break again,
            refused = plainly(&caller) => assert!(refused.is_err(), "{refused:?}"),
        }
    };
    again.answer("again");
}

// req: TASK-23
async fn a_waiter_that_leaves_changes_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let gone = tokio::time::timeout(Duration::from_millis(20), node.engine.result(&caller, task.id)).await;
    assert!(gone.is_err(), "it waits while the work runs");
    assert!(!work.stop.is_cancelled());
    work.answer("still done");
    assert_eq!(node.engine.result(&caller, task.id).await.unwrap().1, result("still done"));
}

// req: TASK-12, TASK-14, LIFE-07
async fn cancelling_at_another_node_stops_the_work(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, world.caller("a").await);
    let task = here.create(&caller, "once").await;
    let work = here.script.next().await;
    let cancelled = there.engine.cancel(&caller, task.id).await.unwrap();
    assert_eq!(cancelled.status, CANCELLED);
    let message = "cancelled by request; that its work has stopped is not confirmed";
    assert_eq!(cancelled.message.as_deref(), Some(message));
    here.engine.watch_once().await.unwrap();
    work.stop.cancelled().await;
    work.answer("too late");
    let (ended, outcome) = here.engine.result(&caller, task.id).await.unwrap();
    assert_eq!((ended, outcome), (cancelled.clone(), Outcome::Cancelled));
    let again = here.engine.cancel(&caller, task.id).await.unwrap_err();
    assert!(matches!(again, Refusal::AlreadyEnded(CANCELLED)), "{again:?}");
    assert_eq!(here.engine.get(&caller, task.id).await.unwrap(), cancelled);
}

// req: LIFE-07, LIFE-04
async fn an_outcome_that_comes_after_a_cancel_is_dropped(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    for _ in 0..20 {
        let task = node.create(&caller, "once").await;
        let work = node.script.next().await;
        let (engine, owner) = (node.engine.clone(), caller.clone());
        let cancel = tokio::spawn(async move { engine.cancel(&owner, task.id).await });
        work.answer("raced");
        let reply = cancel.await.unwrap();
        let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
        match reply {
            Ok(task) => assert_eq!((ended, outcome), (task, Outcome::Cancelled)),
            Err(Refusal::AlreadyEnded(status)) => {
                assert_eq!((status, ended.status, outcome), (COMPLETED, COMPLETED, result("raced")));
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

// req: TASK-11, AUTH-02, AUTH-03, AUTH-04
async fn strangers_tasks_are_missing_tasks(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, owner, stranger) = (world.node().await, world.caller("a").await, world.caller("b").await);
    let task = node.create(&owner, "once").await;
    for id in [task.id, TaskId::new()] {
        let engine = &node.engine;
        assert!(matches!(engine.get(&stranger, id).await, Err(Refusal::UnknownTask)));
        assert!(matches!(engine.cancel(&stranger, id).await, Err(Refusal::UnknownTask)));
        assert!(matches!(engine.result(&stranger, id).await, Err(Refusal::UnknownTask)));
    }
    assert!(node.engine.list(&stranger, None).await.unwrap().tasks.is_empty());
    assert_eq!(node.engine.get(&owner, task.id).await.unwrap(), task);
}

// req: TASK-16, TASK-17, TASK-18, TASK-19
async fn the_list_is_paged(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller, stranger) = (world.node().await, world.caller("a").await, world.caller("b").await);
    let mut made = Vec::new();
    for at in 0..7 {
        made.push(node.create(&caller, "once").await.id);
        if at % 2 == 0 {
            world.clock.advance(Duration::from_millis(1)); // some are made at the same time
        }
    }
    let first = node.engine.list(&caller, None).await.unwrap();
    assert_eq!(first.tasks.len(), 3);
    assert!(first.tasks.is_sorted_by_key(|task| std::cmp::Reverse((task.created, task.id))));
    let cursor = first.next.clone().unwrap();
    assert!(matches!(node.engine.list(&stranger, Some(&cursor)).await, Err(Refusal::BadCursor)));
    let mut seen: Vec<_> = first.tasks.iter().map(|task| task.id).collect();
    let mut next = first.next;
    while let Some(cursor) = next {
        let page = node.engine.list(&caller, Some(&cursor)).await.unwrap();
        seen.extend(page.tasks.iter().map(|task| task.id));
        next = page.next;
    }
    made.sort_unstable();
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, made, "each once");
    assert_eq!(seen.len(), 7);
}

// req: EXEC-10, CAP-04, CAP-05, CAP-12
async fn what_may_not_become_a_task_leaves_nothing(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let engine = &node.engine;
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(2000));
    let create = |call| engine.create_task(&caller, call, None);
    assert!(matches!(create(call("missing")).await, Err(Refusal::UnknownTool(name)) if name == "missing"));
    assert!(matches!(create(call("never")).await, Err(Refusal::TaskForbidden { .. })));
    let bad = create(call_with("once", r#"{"bad":1}"#)).await;
    assert!(matches!(bad, Err(Refusal::InvalidArguments { message, .. }) if message == "/bad: not allowed"));
    assert!(matches!(create(call_with("once", &long)).await, Err(Refusal::ArgumentsTooLarge { limit: 1000, .. })));
    let plain = |call| plainly(engine, &caller, call, "1");
    assert!(matches!(plain(call("always")).await, Err(Refusal::TaskRequired { .. })));
    assert!(matches!(plain(call("missing")).await, Err(Refusal::UnknownTool(_))));
    assert!(engine.list(&caller, None).await.unwrap().tasks.is_empty());
    assert!(node.script.is_idle().await, "nothing ran");
}

// req: CAP-06, CAP-07
async fn a_plain_call_makes_no_task(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, mut caller) = (world.node().await, world.caller("a").await);
    let run = |caller: &taskhold::engine::Caller, tool: &'static str| {
        let (engine, caller) = (node.engine.clone(), caller.clone());
        tokio::spawn(async move { plainly(&engine, &caller, call(tool), "1").await })
    };
    let called = run(&caller, "once");
    node.script.next().await.answer("plain");
    assert_eq!(called.await.unwrap().unwrap(), Called::Outcome(result("plain")));
    caller.tasks_enabled = false;
    let called = run(&caller, "always");
    node.script.next().await.answer("plain too");
    assert_eq!(called.await.unwrap().unwrap(), Called::Outcome(result("plain too")));
    assert!(node.engine.list(&caller, None).await.unwrap().tasks.is_empty());
}

// req: LIFE-10, LIFE-08
async fn progress_becomes_the_status_message(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "once").await;
    let work = node.script.next().await;
    let event = |progress: f64, message: Option<&str>| Event::Progress {
        progress,
        total: Some(10.0),
        message: message.map(str::to_owned),
        params: RawJson::trusted(format!(r#"{{"progress":{progress}}}"#)),
    };
    work.host.tell(event(1.0, Some("first of many")));
    node.until_message(&caller, task.id, "first of many").await;
    let first = node.engine.get(&caller, task.id).await.unwrap();
    assert!(first.updated > task.updated);
    work.host.tell(event(2.0, None));
    work.host.tell(event(3.0, Some(&"long ".repeat(100))));
    work.answer("done");
    let (ended, _) = node.engine.result(&caller, task.id).await.unwrap();
    assert_eq!(ended.created, task.created);
    assert!(ended.updated > first.updated);
}

// req: EXEC-23
async fn a_panic_of_the_runner_is_an_outcome(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "once").await;
    node.script.next().await.panic();
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    let error: serde_json::Value = serde_json::from_str(outcome.json().unwrap().as_str()).unwrap();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&(-32603).into(), &"internal".into()));
}

// req: EXEC-04, EXEC-23, TASK-26
async fn work_past_its_run_limit_is_stopped(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let task = node.create(&caller, "brief").await;
    let work = node.script.next().await;
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    assert!(work.stop.is_cancelled());
    assert_eq!(ended.status, Status::Ended(Ending::Failed));
    assert!(outcome.json().unwrap().as_str().contains(r#""reason":"run_time_exceeded""#));
    assert!(ended.message.unwrap().starts_with("run time exceeded"));
    let (engine, owner) = (node.engine.clone(), caller.clone());
    let plain = tokio::spawn(async move { plainly(&engine, &owner, call("brief"), "1").await });
    let work = node.script.next().await;
    let Called::Outcome(outcome) = plain.await.unwrap().unwrap() else { panic!("it was stopped by the limit") };
    assert!(work.stop.is_cancelled());
    assert!(outcome.json().unwrap().as_str().contains(r#""reason":"run_time_exceeded""#));
}

// req: LIFE-11
async fn errors_of_the_work_end_a_task_as_failed(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, world.caller("a").await);
    let hostile =
        r#"{"code":-32011,"message":"a\u0000b \ud800","data":[1e400,1.0,18446744073709551615,{"z":1,"a":2}]}"#;
    let error = Outcome::Error { json: taskhold::domain::json::RawJson::trusted(hostile) };
    let task = node.create(&caller, "once").await;
    node.script.next().await.end(Attempt::Answered(error.clone()));
    let (ended, outcome) = node.engine.result(&caller, task.id).await.unwrap();
    assert_eq!((ended.status, outcome), (Status::Ended(Ending::Failed), error));
    assert_eq!(ended.message.as_deref(), Some("a\u{FFFD}b \u{FFFD}"));
}
