//! Walking a list while everything else happens to it.

use std::collections::HashSet;
use std::sync::Arc;

use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::cursor::Position;
use taskhold::domain::ids::{ContextId, LeaseToken, NodeId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::lifecycle::spawn;
use taskhold::store::{End, Ended, Finish, Store};
use tokio_util::sync::CancellationToken;

use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::tasks::new_task;

const SURVIVORS: usize = 200;
const WALKS: usize = 12;
const PAGE: u32 = 7;
/// Many tasks are made at the same instant, so that their ids decide the order.
const INSTANTS: i64 = 10;

contract! {
    a_walk_shows_each_task_once_whatever_happens_meanwhile,
}

// req: TASK-20
async fn a_walk_shows_each_task_once_whatever_happens_meanwhile(database: TestDatabase) {
    let store = database.store.clone();
    let system = store.system();
    let context = system.ensure_context(ContextKey::default(), at(0)).await.unwrap();
    let node = NodeId::new();
    system.register_node(node).await.unwrap();
    let mut survivors = HashSet::new();
    for number in 0..SURVIVORS {
        let (id, token) = (TaskId::new(), LeaseToken::new());
        let created = at(number as i64 % INSTANTS);
        system.create(context, new_task(id, created, Some((node, token)))).await.unwrap();
        survivors.insert((id, token));
        // Its neighbours will go away.
        churn(&store, context, node, number as i64).await;
    }
    let stop = CancellationToken::new();
    let churners: Vec<_> = (0..4)
        .map(|number| {
            let (store, stop) = (store.clone(), stop.clone());
            spawn("churn", async move {
                let mut changes = 0;
                while !stop.is_cancelled() {
                    churn(&store, context, node, number + changes).await;
                    changes += 1;
                }
                changes
            })
        })
        .collect();
    // Half of the survivors end, visibly, while the walks go on.
    let ending = {
        let system = Arc::new(store.system());
        let ending: Vec<_> = survivors.iter().copied().take(SURVIVORS / 2).collect();
        spawn("ending", async move {
            for (task, token) in ending {
                let ended = system.finish(Finish { task, token, end: end(None) }).await.unwrap();
                assert!(matches!(ended, Ended::Done(_)));
                tokio::task::yield_now().await;
            }
        })
    };
    let ids: HashSet<_> = survivors.iter().map(|(id, _)| *id).collect();
    for walk in 0..WALKS {
        let walked = walk_once(&store, context).await;
        let seen: HashSet<_> = walked.iter().map(|position| position.id).collect();
        assert_eq!(seen.len(), walked.len(), "walk {walk} showed a task twice");
        let missed: Vec<_> = ids.difference(&seen).collect();
        assert!(missed.is_empty(), "walk {walk} missed {missed:?}");
        let ordered = walked
            .windows(2)
            .all(|pair| (pair[0].created, pair[0].id.as_uuid()) > (pair[1].created, pair[1].id.as_uuid()));
        assert!(ordered, "walk {walk} is not newest first");
    }
    ending.await.unwrap();
    stop.cancel();
    for churner in churners {
        assert!(churner.await.unwrap() > 0, "something changed meanwhile");
    }
}

async fn walk_once(store: &Store, context: ContextId) -> Vec<Position> {
    let store = store.system();
    let mut walked: Vec<Position> = Vec::new();
    loop {
        let page = store.list(context, walked.last().copied(), PAGE, at(100)).await.unwrap();
        if page.is_empty() {
            return walked;
        }
        walked.extend(page.iter().map(|task| Position { created: task.created, id: task.id }));
    }
}

/// Makes three tasks somewhere in the list, ends two of them so that they have expired, and deletes what has expired.
async fn churn(store: &Store, context: ContextId, node: NodeId, number: i64) {
    let system = store.system();
    let created = at(number % INSTANTS);
    let tasks: Vec<_> = (0..3).map(|_| (TaskId::new(), LeaseToken::new())).collect();
    for &(id, token) in &tasks {
        system.create(context, new_task(id, created, Some((node, token)))).await.unwrap();
    }
    let [finished, cancelled, other] = tasks[..] else { unreachable!("three were made") };
    let finish = Finish { task: finished.0, token: finished.1, end: end(Some(at(50))) };
    assert!(matches!(system.finish(finish).await.unwrap(), Ended::Done(_)));
    let cancel = End { outcome: Outcome::Cancelled, ..end(Some(at(60))) };
    assert!(matches!(system.cancel(context, cancelled.0, cancel).await.unwrap(), Ended::Done(_)));
    // Readable for now, but soon gone, too: the list stays short.
    let finish = Finish { task: other.0, token: other.1, end: end(Some(at(101))) };
    assert!(matches!(system.finish(finish).await.unwrap(), Ended::Done(_)));
    system.reap(at(100 + number % 2), 100).await.unwrap();
}

fn end(expires: Option<Timestamp>) -> End {
    let outcome = Outcome::Result { json: RawJson::trusted(r#"{"content":[]}"#), is_error: false };
    End { outcome, message: None, now: at(20), expires }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + seconds * 1_000_000)
}
