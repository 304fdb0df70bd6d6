//! Many writers at once: whoever is told that it ended a task has ended it.

use std::sync::Arc;

use futures_util::future::join_all;
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::ids::{ContextId, LeaseToken, NodeId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::task::Status;
use taskhold::lifecycle::spawn;
use taskhold::store::{End, Ended, Finish, Note, Store};

use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::tasks::new_task;

const ROUNDS: u64 = 1000;
/// Rounds in progress at once.
const AT_ONCE: u64 = 50;

contract! {
    a_cancel_and_a_completion_never_both_win,
}

// req: LIFE-04, LIFE-07, TASK-12, TASK-13
async fn a_cancel_and_a_completion_never_both_win(database: TestDatabase) {
    let context = database.store.system().ensure_context(ContextKey::default(), at(0)).await.unwrap();
    let node = NodeId::new();
    database.store.system().register_node(node).await.unwrap();
    let (mut cancelled, mut completed) = (0, 0);
    for first in (0..ROUNDS).step_by(AT_ONCE as usize) {
        let rounds = (first..first + AT_ONCE).map(|round| race(database.store.clone(), context, node, round));
        for winner in join_all(rounds).await {
            match winner {
                Winner::Cancel => cancelled += 1,
                Winner::Completion => completed += 1,
            }
        }
    }
    assert!(cancelled > ROUNDS / 20, "the cancel won {cancelled} times, the completion {completed} times");
    assert!(completed > ROUNDS / 20, "the cancel won {cancelled} times, the completion {completed} times");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Winner {
    Cancel,
    Completion,
}

/// One task that is cancelled and completed, each twice, while it reports progress.
async fn race(store: Store, context: ContextId, node: NodeId, round: u64) -> Winner {
    let (id, token) = (TaskId::new(), LeaseToken::new());
    let store = Arc::new(store.system());
    store.create(context, new_task(id, at(0), Some((node, token)))).await.unwrap();
    // Different for every round and reproducible; who is first is still up to the scheduler and the database.
    let jitter = move |salt: u64| (round.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (8 * salt)) % 12;
    let finish = |jitter: u64| {
        let store = Arc::clone(&store);
        spawn("completion", async move {
            yield_times(jitter).await;
            let outcome = Outcome::Result { json: RawJson::trusted(r#"{"content":[]}"#), is_error: false };
            let end = End { outcome, message: None, now: at(5), expires: None };
            store.finish(Finish { task: id, token, end }).await.unwrap()
        })
    };
    let cancel = |jitter: u64| {
        let store = Arc::clone(&store);
        spawn("cancel", async move {
            yield_times(jitter).await;
            let end = End { outcome: Outcome::Cancelled, message: None, now: at(5), expires: None };
            store.cancel(context, id, end).await.unwrap()
        })
    };
    let note = {
        let store = Arc::clone(&store);
        spawn("note", async move {
            yield_times(jitter(4)).await;
            store
                .note(Note { task: id, token, message: Some("half way".to_owned()), progress: None, now: at(9) })
                .await
                .unwrap()
        })
    };
    let finishes = [finish(jitter(0)), finish(jitter(1))];
    let cancels = [cancel(jitter(2)), cancel(jitter(3))];
    let finishes: Vec<Ended> = join_all(finishes).await.into_iter().map(Result::unwrap).collect();
    let cancels: Vec<Ended> = join_all(cancels).await.into_iter().map(Result::unwrap).collect();
    note.await.unwrap();

    let (task, outcome) = store.outcome(context, id).await.unwrap().unwrap();
    let outcome = outcome.expect("it has ended");
    assert_eq!(task.status, Status::Ended(outcome.ending()));
    for done in finishes.iter().chain(&cancels) {
        assert!(matches!(done, Ended::Refused) || *done == Ended::Done(task.clone()), "{done:?} but stored {task:?}");
    }
    let won = |answers: &[Ended]| answers.iter().filter(|answer| matches!(answer, Ended::Done(_))).count();
    // A repeated completion finds itself; a repeated cancel finds the task ended.
    let (winner, expected) =
        if outcome == Outcome::Cancelled { (Winner::Cancel, (0, 1)) } else { (Winner::Completion, (2, 0)) };
    assert_eq!((won(&finishes), won(&cancels)), expected, "{winner:?} won round {round}");
    winner
}

async fn yield_times(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + seconds * 1_000_000)
}
