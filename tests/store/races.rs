//! Many writers, one task: the database decides.

use futures_util::future::join_all;
use taskhold::domain::ids::NodeId;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::task::Status;
use taskhold::store::{Asked, Ended, Note, Release, Store};

use super::questions::{Running, answer, then};
use super::{at, caller, claimed_task, contract, end, finish, result};
use crate::support::database::TestDatabase;

contract! {
    exactly_one_of_many_ends_wins,
    ends_notes_and_releases_do_not_block_each_other,
    questions_and_the_status_agree_whoever_is_first,
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
                let note =
                    Note { task, token, message: Some(format!("step {step} of {n}")), progress: None, now: at(step) };
                system.note(note).await.unwrap();
            }
            let release = Release {
                task,
                token,
                not_before: at(9),
                counted: true,
                keep_inputs: false,
                message: "again".to_owned(),
                now: at(9),
            };
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

/// Rounds, each with a task of its own, and how many go on at once.
const ROUNDS: usize = 400;
const AT_ONCE: usize = 20;

// req: INPUT-01, INPUT-12
async fn questions_and_the_status_agree_whoever_is_first(db: TestDatabase) {
    let other = db.another().await;
    for first in (0..ROUNDS).step_by(AT_ONCE) {
        join_all((first..first + AT_ONCE).map(|round| questions_race(&db, &other, round))).await;
    }
    // What is open of live tasks, by the questions, by the count and by the status.
    let disagree = "SELECT COUNT(*) FROM (
            SELECT t.status, l.open_inputs,
                (SELECT COUNT(*) FROM task_inputs i WHERE i.task = t.id AND i.state = 0) AS open
            FROM tasks t JOIN task_live l ON l.task = t.id
        ) AS live
        WHERE open <> open_inputs OR status <> CASE WHEN open > 0 THEN 1 ELSE 0 END";
    assert_eq!(db.number(disagree).await, 0);
    let live = i64::try_from(ROUNDS / 4 * 3).unwrap();
    assert_eq!(db.number("SELECT COUNT(*) FROM task_live").await, live, "a quarter ended");
    assert!(db.number("SELECT COUNT(*) FROM tasks WHERE status = 0").await > 0, "some were answered");
    assert!(db.number("SELECT COUNT(*) FROM tasks WHERE status = 1").await > 0, "some wait");
}

/// Two open questions are answered at two nodes while a third is asked, and sometimes while one is withdrawn, the lease is
/// given back, or the task ends.
async fn questions_race(db: &TestDatabase, other: &Store, round: usize) {
    let work = Running::new(db).await;
    let (one, two) = (work.ask("one", at(1)).await, work.ask("two", at(2)).await);
    let (sent_one, sent_two) = (work.send(one).await, work.send(two).await);
    let (_, there) = caller(other, "asked").await;
    let there = &there;
    let yielding = async |salt: usize| {
        for _ in 0..(round * 7 + salt * 5) % 11 {
            tokio::task::yield_now().await;
        }
    };
    let (first, second, third, _, ()) = tokio::join!(
        async {
            yielding(1).await;
            work.answer(sent_one, "one", at(3)).await
        },
        async {
            yielding(2).await;
            there.answer_input(sent_two, answer("two"), &then("on"), at(3)).await.unwrap()
        },
        async {
            yielding(3).await;
            other.system().ask(work.question("three", at(3))).await.unwrap()
        },
        async {
            yielding(4).await;
            let note = Note {
                task: work.task,
                token: work.token,
                message: Some("busy".to_owned()),
                progress: None,
                now: at(3),
            };
            work.system.note(note).await.unwrap()
        },
        async {
            yielding(5).await;
            match round % 4 {
                0 => drop(work.system.withdraw_input(one, work.token, &then("gave up"), at(3)).await.unwrap()),
                1 => drop(work.system.finish(finish(work.task, work.token, result("x"), at(3))).await.unwrap()),
                2 => {
                    let release = Release {
                        task: work.task,
                        token: work.token,
                        not_before: at(9),
                        counted: true,
                        keep_inputs: false,
                        message: "again".to_owned(),
                        now: at(3),
                    };
                    assert!(work.system.release(release).await.unwrap());
                }
                _ => {}
            }
        },
    );
    if round % 4 == 3 {
        assert!(first.is_some() && second.is_some(), "nobody else closes them");
        assert!(matches!(third, Asked::Stored(_)), "{third:?}");
        let task = work.answer(work.send(work.open().await[0]).await, "three", at(4)).await.unwrap();
        // Some go back to work, in others one more is asked.
        assert_eq!(task.status, Status::Working, "the last answer was given");
        if round % 8 == 3 {
            work.ask("four", at(5)).await;
        }
    }
}
