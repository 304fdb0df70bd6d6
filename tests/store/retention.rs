//! What goes, and what stays.

use std::time::Duration;

use futures_util::future::join_all;
use taskhold::domain::ids::{NodeId, TaskId};
use taskhold::domain::outcome::Outcome;
use taskhold::domain::work::NewTask;
use taskhold::store::{End, Ended};

use super::{at, caller, claimed_task, contract, end, new_task, result};
use crate::support::database::TestDatabase;

contract! {
    only_expired_ends_are_reaped,
    reaping_goes_in_bounded_batches_on_several_nodes,
    overdue_tasks_are_found_and_ended_whatever_their_lease,
}

// req: KEEP-03, KEEP-04
async fn only_expired_ends_are_reaped(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let (live, forever, later, gone) = (new_task(at(0)), new_task(at(0)), new_task(at(0)), new_task(at(0)));
    for task in [&live, &forever, &later, &gone] {
        scoped.create(task.clone()).await.unwrap();
    }
    let until = |expires| End { expires, ..end(Outcome::Cancelled, at(1)) };
    scoped.cancel(forever.id, until(None)).await.unwrap();
    scoped.cancel(later.id, until(Some(at(11)))).await.unwrap();
    scoped.cancel(gone.id, until(Some(at(10)))).await.unwrap();
    assert_eq!(system.reap(at(9), 100).await.unwrap(), 0);
    assert_eq!(system.reap(at(10), 100).await.unwrap(), 1);
    assert_eq!(system.reap(at(10), 100).await.unwrap(), 0);
    assert_eq!(scoped.get(gone.id).await.unwrap(), None);
    for kept in [&live, &forever, &later] {
        assert!(scoped.get(kept.id).await.unwrap().is_some());
    }
    // However far a clock is ahead.
    assert_eq!(system.reap(at(10_000_000_000), 100).await.unwrap(), 1);
    assert!(scoped.get(live.id).await.unwrap().is_some());
    assert!(scoped.get(forever.id).await.unwrap().is_some());
    for table in ["tasks", "task_requests"] {
        assert_eq!(db.number(&format!("SELECT COUNT(*) FROM {table}")).await, 2, "{table}");
    }
    assert_eq!(db.number("SELECT COUNT(*) FROM task_live").await, 1);
    assert_eq!(db.number("SELECT COUNT(*) FROM task_outcomes").await, 1);
}

// req: KEEP-03
async fn reaping_goes_in_bounded_batches_on_several_nodes(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let tasks: Vec<TaskId> = join_all((0..50).map(|_| async {
        let new = new_task(at(0));
        scoped.create(new.clone()).await.unwrap();
        scoped.cancel(new.id, End { expires: Some(at(2)), ..end(Outcome::Cancelled, at(1)) }).await.unwrap();
        new.id
    }))
    .await;
    assert_eq!(tasks.len(), 50);
    assert_eq!(db.store.system().reap(at(5), 10).await.unwrap(), 10);
    let other = db.another().await;
    let reapers = [&db.store, &other].map(|store| async move {
        let mut reaped = 0;
        while db_has_more(store.system().reap(at(5), 7).await.unwrap(), &mut reaped) {}
        reaped
    });
    let reaped: u64 = join_all(reapers).await.into_iter().sum();
    let left = db.store.system().reap(at(5), 100).await.unwrap();
    assert_eq!(reaped + left, 40, "each row is deleted and counted once");
    assert_eq!(db.number("SELECT COUNT(*) FROM tasks").await, 0);
    assert_eq!(db.number("SELECT COUNT(*) FROM task_requests").await, 0);
    assert_eq!(db.number("SELECT COUNT(*) FROM task_outcomes").await, 0);
}

fn db_has_more(batch: u64, total: &mut u64) -> bool {
    assert!(batch <= 7);
    *total += batch;
    batch > 0
}

async fn overdue_tasks_are_found_and_ended_whatever_their_lease(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let (running, _) = claimed_task(at(0), NodeId::new());
    let first = NewTask { hard_end: at(100), ..running };
    let second = NewTask { hard_end: at(200), ..new_task(at(1)) };
    let never = NewTask { hard_end: at(100_000), ..new_task(at(2)) };
    for task in [&first, &second, &never] {
        scoped.create(task.clone()).await.unwrap();
    }
    assert!(system.overdue(at(100) - Duration::from_micros(1), 10).await.unwrap().is_empty());
    assert_eq!(system.overdue(at(100), 10).await.unwrap().len(), 1, "at its hard end, not after it");
    let found = system.overdue(at(300), 10).await.unwrap();
    assert_eq!(
        found.iter().map(|o| (o.task.id, o.hard_end)).collect::<Vec<_>>(),
        [(first.id, at(100)), (second.id, at(200))]
    );
    assert_eq!(system.overdue(at(300), 1).await.unwrap().len(), 1);
    for overdue in found {
        assert!(matches!(system.end(overdue.task.id, end(result("expired"), at(300))).await.unwrap(), Ended::Done(_)));
    }
    assert!(system.overdue(at(300), 10).await.unwrap().is_empty());
    let task = scoped.get(first.id).await.unwrap().unwrap();
    assert_eq!(task.expires, Some(at(300) + Duration::from_secs(600)));
}
