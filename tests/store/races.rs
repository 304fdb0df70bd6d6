//! Many writers, one task: the database decides.

use futures_util::future::join_all;
use taskhold::domain::ids::NodeId;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::task::Status;
use taskhold::store::{Ended, Note, Release};

use super::{at, caller, claimed_task, contract, end, finish, result};
use crate::support::database::TestDatabase;

contract! {
    exactly_one_of_many_ends_wins,
    ends_notes_and_releases_do_not_block_each_other,
}

// req: LIFE-04
async fn exactly_one_of_many_ends_wins(db: TestDatabase) {
    let (_, here) = caller(&db.store, "a").await;
    let other = db.another().await;
    let (_, there) = caller(&other, "a").await;
    let mut tasks = Vec::new();
    for _ in 0..40 {
        let (new, token) = claimed_task(at(0), NodeId::new());
        here.create(new.clone()).await.unwrap();
        tasks.push((new.id, token));
    }
    let (here, there, db, other) = (&here, &there, &db, &other);
    let races = tasks.iter().map(|&(id, token)| async move {
        let cancelled = end(Outcome::Cancelled, at(1));
        let (a, b, c, d) = tokio::join!(
            async { db.store.system().finish(finish(id, token, result("work"), at(1))).await.unwrap() },
            async { here.cancel(id, cancelled.clone()).await.unwrap() },
            async { there.cancel(id, cancelled.clone()).await.unwrap() },
            async { other.system().end(id, end(result("system"), at(1))).await.unwrap() },
        );
        let outcomes = [result("work"), Outcome::Cancelled, Outcome::Cancelled, result("system")];
        let mut won = [a, b, c, d].into_iter().zip(outcomes).filter_map(|(ended, outcome)| match ended {
            Ended::Done(task) => Some((task, outcome)),
            Ended::Refused => None,
        });
        let (task, outcome) = won.next().expect("one wins");
        assert!(won.next().is_none(), "only one wins");
        assert_eq!(task.status, Status::Ended(outcome.ending()));
        assert_eq!(here.outcome(id).await.unwrap(), Some((task.clone(), Some(outcome.clone()))));
        assert_eq!(there.outcome(id).await.unwrap(), Some((task, Some(outcome))));
    });
    join_all(races).await;
    assert_eq!(db.number("SELECT COUNT(*) FROM task_live").await, 0);
    assert_eq!(db.number("SELECT COUNT(*) FROM task_outcomes").await, 40);
}

async fn ends_notes_and_releases_do_not_block_each_other(db: TestDatabase) {
    let (_, here) = caller(&db.store, "a").await;
    let other = db.another().await;
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let (new, token) = claimed_task(at(0), NodeId::new());
        here.create(new.clone()).await.unwrap();
        tasks.push((new.id, token));
    }
    let (db, other) = (&db, &other);
    let work = tasks.iter().enumerate().flat_map(|(n, &(task, token))| {
        [&db.store, other].map(|store| async move {
            let system = store.system();
            for step in 0..4 {
                let note = Note { task, token, message: format!("step {step} of {n}"), now: at(step) };
                system.note(note).await.unwrap();
            }
            let release =
                Release { task, token, not_before: at(9), counted: true, message: "again".to_owned(), now: at(9) };
            if n % 2 == 0 {
                (system.release(release).await.unwrap(), false)
            } else {
                (false, matches!(system.finish(finish(task, token, result("x"), at(9))).await.unwrap(), Ended::Done(_)))
            }
        })
    });
    let done = join_all(work).await;
    assert_eq!(done.iter().filter(|(released, _)| *released).count(), 15, "each lease is given back once");
    assert_eq!(done.iter().filter(|(_, finished)| *finished).count(), 30, "a repeated finish finds itself");
}
