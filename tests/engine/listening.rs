//! Streams that listen to tasks.

use std::time::Duration;

use futures_util::FutureExt as _;
use taskhold::domain::ids::TaskId;
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Ending;
use taskhold::domain::task::Status;
use taskhold::engine::{Caller, Item, Listening, Looked, Refusal, Stream, Wants};
use tokio::task::JoinHandle;

use super::harness::{Node, World};
use crate::http::harness::until;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::host::Answers as _;
use crate::support::script::{ScriptedCall, result};
use crate::support::waiting::Waiting;

contract! {
    a_slow_reader_is_told_the_newest_state_and_the_end,
    what_another_node_does_is_told_once,
    a_task_that_ended_or_went_before_it_was_told_of_ends_no_stream,
    streams_that_listen_are_bounded_and_give_their_places_back,
}

const ENDED: Status = Status::Ended(Ending::Completed);

/// A caller without a session that serves what it may be asked.
async fn capable(world: &World, name: &str) -> Caller {
    Caller { capabilities: RawJson::trusted(r#"{"roots":{}}"#), ..world.caller(name).await }
}

fn ask(work: &ScriptedCall) -> JoinHandle<Answer> {
    let host = work.host.clone();
    tokio::spawn(async move { host.answer_to(Question { kind: InputKind::Roots, params: None }).await })
}

async fn until_open(node: &Node, caller: &Caller, task: TaskId, count: usize) {
    until("the questions are open", async || node.engine.look(caller, task).await.unwrap().waiting.len() == count)
        .await;
}

/// Answers everything that a look has shown.
async fn answer(node: &Node, caller: &Caller, looked: &Looked) {
    let roots = || RawJson::trusted(r#"{"roots":[]}"#);
    let answers = looked.waiting.iter().map(|open| (open.id.to_string(), roots())).collect();
    node.engine.update(caller, looked.task.id, answers).await.unwrap();
}

async fn listen(node: &Node, caller: &Caller, tasks: &[TaskId]) -> Listening {
    let wants = Wants { tasks: tasks.to_vec(), ..Wants::default() };
    node.engine.listen(caller, wants).await.unwrap()
}

/// What is told next; nothing else comes before it.
async fn told(stream: &mut Stream) -> Looked {
    match tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("something is told") {
        Item::Task(looked) => *looked,
        other => panic!("not a task: {other:?}"),
    }
}

/// The end of a task, which may be there a moment before this node says so.
async fn told_of_the_end(stream: &mut Stream) -> Looked {
    loop {
        let looked = told(stream).await;
        if looked.task.status != Status::Working {
            return looked;
        }
    }
}

/// The same of what another node did: this one looks as often as it takes.
async fn told_from_afar(node: &Node, stream: &mut Stream) -> Looked {
    let told = async {
        loop {
            node.engine.watch_once().await.unwrap();
            tokio::select! {
                biased;
                item = stream.next() => match item {
                    Item::Task(looked) => return *looked,
                    other => panic!("not a task: {other:?}"),
                },
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told).await.expect("something is told")
}

// Of NOTE-10 the streams that listen to tasks.
async fn a_slow_reader_is_told_the_newest_state_and_the_end(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let task = node.create(&caller, "once").await.id;
    let work = node.script.next().await;
    let other = node.create(&caller, "once").await.id;
    let mut slow = listen(&node, &caller, &[task, other]).await.stream;
    // Another one is read never, and holds nobody up.
    let stuck = listen(&node, &caller, &[task]).await.stream;
    for id in [task, other] {
        let looked = told(&mut slow).await;
        assert_eq!((looked.task.id, looked.task.status), (id, Status::Working));
    }
    let mut asked = Vec::new();
    for n in 1..=3 {
        asked.push(ask(&work));
        until_open(&node, &caller, task, n).await;
    }
    let looked = told(&mut slow).await;
    assert_eq!((looked.task.status, looked.waiting.len()), (Status::InputRequired, 3), "three changes, one message");
    assert_eq!(looked, node.engine.look(&caller, task).await.unwrap());
    answer(&node, &caller, &looked).await;
    for asked in asked {
        assert!(matches!(asked.await.unwrap(), Answer::Result(_)));
    }
    work.answer("done");
    node.engine.result(&caller, task).await.unwrap();
    let looked = told_of_the_end(&mut slow).await;
    assert_eq!((looked.task.status, looked.outcome), (ENDED, Some(result("done"))), "never without the end");
    node.engine.cancel(&caller, other).await.unwrap();
    assert_eq!(told(&mut slow).await.task.id, other, "nothing follows the end");
    drop(stuck);
}

// Of NOTE-09 that a change is found by other nodes.
async fn what_another_node_does_is_told_once(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node().await, capable(&world, "a").await);
    let task = here.create(&caller, "once").await.id;
    let work = here.script.next().await;
    let last = here.create(&caller, "once").await.id;
    let both = [task, last];
    let mut streams = [listen(&there, &caller, &both).await.stream, listen(&there, &caller, &both).await.stream];
    for stream in &mut streams {
        for id in both {
            let looked = told(stream).await;
            assert_eq!((looked.task.id, looked.task.status), (id, Status::Working));
        }
    }
    let asked = ask(&work);
    until_open(&here, &caller, task, 1).await;
    let mut seen = Vec::new();
    for stream in &mut streams {
        seen.push(told_from_afar(&there, stream).await);
    }
    assert!(seen[0] == seen[1] && seen[0].waiting.len() == 1);
    // Rounds find what changed of late again and again.
    there.engine.watch_once().await.unwrap();
    answer(&here, &caller, &seen[0]).await;
    asked.await.unwrap();
    for stream in &mut streams {
        let looked = told_from_afar(&there, stream).await;
        assert_eq!((looked.task.status, looked.waiting.len()), (Status::Working, 0));
    }
    work.answer("done");
    here.engine.result(&caller, task).await.unwrap();
    for stream in &mut streams {
        let looked = told_from_afar(&there, stream).await;
        assert_eq!((looked.task.status, looked.outcome), (ENDED, Some(result("done"))));
    }
    here.engine.cancel(&caller, last).await.unwrap();
    for stream in &mut streams {
        assert_eq!(told_from_afar(&there, stream).await.task.id, last, "nothing follows the end");
    }
}

async fn a_task_that_ended_or_went_before_it_was_told_of_ends_no_stream(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, capable(&world, "a").await);
    let mut tasks = Vec::new();
    for text in ["one", "two"] {
        tasks.push(node.create(&caller, "once").await.id);
        node.script.next().await.answer(text);
        node.engine.result(&caller, tasks[tasks.len() - 1]).await.unwrap();
    }
    let live = node.create(&caller, "once").await.id;
    let wanted = [tasks[0], TaskId::new(), tasks[0], tasks[1], live];
    let Listening { mut stream, tasks: heard, .. } = listen(&node, &caller, &wanted).await;
    assert_eq!(heard, [tasks[0], tasks[1], live], "each once, in order");
    let looked = told(&mut stream).await;
    assert_eq!((looked.task.id, looked.outcome), (tasks[0], Some(result("one"))));
    // Its time to live is over before the reader comes to the other.
    world.clock.advance(Duration::from_secs(3600 + 601));
    let looked = told(&mut stream).await;
    assert_eq!((looked.task.id, looked.task.status), (live, Status::Working), "no more is said of it");
    assert!(stream.next().now_or_never().is_none());
    assert!(listen(&node, &caller, &tasks).await.tasks.is_empty());
}

// req: AUTH-03
async fn streams_that_listen_are_bounded_and_give_their_places_back(database: TestDatabase) {
    let mut world = World::new(database).await;
    world.rules.waiters_per_context = 2;
    let (node, caller, stranger) = (world.node().await, capable(&world, "a").await, capable(&world, "b").await);
    let task = node.create(&caller, "once").await.id;
    let work = node.script.next().await;
    let mut foreign = listen(&node, &stranger, &[task]).await;
    assert!(foreign.tasks.is_empty(), "as if there were none");
    let mut first = listen(&node, &caller, &[task]).await.stream;
    let second = listen(&node, &caller, &[task]).await.stream;
    let wants = Wants { tasks: vec![task], ..Wants::default() };
    let refused = node.engine.listen(&caller, wants.clone()).await.map(|_| ());
    assert!(matches!(refused, Err(Refusal::LimitReached { limit: "limits.streams", most: 2, .. })), "{refused:?}");
    drop(second);
    let again = node.engine.listen(&caller, wants).await.unwrap();
    drop(again);
    assert_eq!(told(&mut first).await.task.status, Status::Working);
    work.answer("done");
    node.engine.result(&caller, task).await.unwrap();
    assert_eq!(told_of_the_end(&mut first).await.task.status, ENDED);
    assert!(foreign.stream.next().now_or_never().is_none());
}
