//! Who runs a task.

use std::collections::HashSet;
use std::time::Duration;

use taskhold::domain::ids::{LeaseToken, NodeId};
use taskhold::domain::outcome::Ending;
use taskhold::domain::task::Status;
use taskhold::store::{Note, Release};

use super::{at, caller, claimed_task, contract_everywhere, new_task};
use crate::support::database::{Backend, TestDatabase};

contract_everywhere! {
    claims_are_oldest_first_and_only_when_due,
    no_task_is_claimed_twice,
    a_released_task_is_claimed_again,
    a_claim_says_so_in_the_message,
    a_broken_row_is_ended_and_stops_nobody,
    a_locked_row_is_skipped,
    changes_are_noticed,
}

fn tokens(count: usize) -> Vec<LeaseToken> {
    (0..count).map(|_| LeaseToken::new()).collect()
}

async fn claims_are_oldest_first_and_only_when_due(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let tasks = [new_task(at(3)), new_task(at(1)), new_task(at(2)), new_task(at(99))];
    for task in &tasks {
        scoped.create(task.clone()).await.unwrap();
    }
    assert_eq!(system.queue(10, at(10)).await.unwrap(), [tasks[1].id, tasks[2].id, tasks[0].id]);
    assert_eq!(system.queue(1, at(10)).await.unwrap(), [tasks[1].id]);
    let node = NodeId::new();
    let first = system.claim(node, tokens(2), "running", at(10)).await.unwrap();
    assert_eq!(first.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), [tasks[1].id, tasks[2].id]);
    let rest = system.claim(node, tokens(5), "running", at(10)).await.unwrap();
    assert_eq!(rest.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), [tasks[0].id]);
    assert!(system.claim(node, tokens(5), "running", at(10)).await.unwrap().is_empty());
    assert!(system.claim(node, Vec::new(), "running", at(100)).await.unwrap().is_empty());
    let leases: HashSet<_> = first.iter().chain(&rest).map(|claim| (claim.lease.task, claim.lease.token)).collect();
    let held: HashSet<_> = system.held(node).await.unwrap().iter().map(|lease| (lease.task, lease.token)).collect();
    assert_eq!(leases, held);
    assert!(first.iter().all(|claim| claim.lease.attempt == 1 && claim.lease.claimed == at(10)));
}

async fn no_task_is_claimed_twice(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let made = futures_util::future::try_join_all((0..60).map(|n| scoped.create(new_task(at(n))))).await.unwrap();
    assert_eq!(made.len(), 60);
    let others = [db.another().await, db.another().await];
    let claimers =
        others.iter().chain([&db.store]).flat_map(|store| [store.system(), store.system()]).map(|system| async move {
            let mut mine = Vec::new();
            loop {
                let claims = system.claim(NodeId::new(), tokens(7), "running", at(1000)).await.unwrap();
                if claims.is_empty() && system.queue(1, at(1000)).await.unwrap().is_empty() {
                    return mine;
                }
                mine.extend(claims.into_iter().map(|claim| claim.lease.task));
            }
        });
    let claimed: Vec<_> = futures_util::future::join_all(claimers).await.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 60);
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>().len(), 60);
}

// req: KEEP-08
async fn a_released_task_is_claimed_again(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let (new, token) = claimed_task(at(0), NodeId::new());
    scoped.create(new.clone()).await.unwrap();
    let release = |token, counted, seconds| Release {
        task: new.id,
        token,
        not_before: at(seconds),
        counted,
        keep_inputs: false,
        message: "waiting for a retry".to_owned(),
        now: at(1),
    };
    assert!(!system.release(release(LeaseToken::new(), true, 5)).await.unwrap());
    assert!(system.release(release(token, true, 5)).await.unwrap());
    assert!(!system.release(release(token, true, 5)).await.unwrap());
    assert_eq!(scoped.get(new.id).await.unwrap().unwrap().message.as_deref(), Some("waiting for a retry"));
    let note = Note { task: new.id, token, message: "zombie".to_owned(), progress: None, now: at(2) };
    assert!(system.note(note).await.unwrap().is_none());
    assert!(system.claim(NodeId::new(), tokens(1), "x", at(4)).await.unwrap().is_empty());
    let second = system.claim(NodeId::new(), tokens(1), "x", at(5)).await.unwrap().remove(0);
    assert_eq!(second.lease.attempt, 2);
    assert!(system.release(release(second.lease.token, false, 6)).await.unwrap());
    let third = system.claim(NodeId::new(), tokens(1), "x", at(6)).await.unwrap().remove(0);
    assert_eq!(third.lease.attempt, 2, "a hand-back without a dispatch does not count");
}

async fn a_claim_says_so_in_the_message(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let new = new_task(at(0));
    scoped.create(new.clone()).await.unwrap();
    db.store.system().claim(NodeId::new(), tokens(1), "running", at(3)).await.unwrap();
    let task = scoped.get(new.id).await.unwrap().unwrap();
    assert_eq!((task.message.as_deref(), task.updated), (Some("running"), at(3)));
}

async fn a_broken_row_is_ended_and_stops_nobody(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let (cut, lost, good) = (new_task(at(0)), new_task(at(1)), new_task(at(2)));
    for task in [&cut, &lost, &good] {
        scoped.create(task.clone()).await.unwrap();
    }
    db.sql(&format!("UPDATE task_requests SET params = '{{\"name\":' WHERE task = {}", db.id(cut.id.as_uuid()))).await;
    db.sql(&format!("DELETE FROM task_requests WHERE task = {}", db.id(lost.id.as_uuid()))).await;
    let claims = system.claim(NodeId::new(), tokens(3), "running", at(5)).await.unwrap();
    assert_eq!(claims.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), [good.id]);
    for broken in [&cut, &lost] {
        let (task, outcome) = scoped.outcome(broken.id).await.unwrap().unwrap();
        assert_eq!(task.status, Status::Ended(Ending::Failed));
        assert_eq!(task.expires, Some(broken.created + Duration::from_secs(3600)));
        assert!(outcome.unwrap().json().unwrap().as_str().contains("internal"));
    }
    // A live row without any task.
    let gone = new_task(at(0));
    scoped.create(gone.clone()).await.unwrap();
    db.sql(&format!("DELETE FROM tasks WHERE id = {}", db.id(gone.id.as_uuid()))).await;
    assert!(system.claim(NodeId::new(), tokens(3), "running", at(5)).await.unwrap().is_empty());
    assert!(system.queue(10, at(5)).await.unwrap().is_empty());
    assert_eq!(db.number("SELECT COUNT(*) FROM task_live").await, 1);
}

/// On SQLite there are no locked rows.
async fn a_locked_row_is_skipped(db: TestDatabase) {
    use sqlx::{Connection, PgConnection};
    if db.backend == Backend::Sqlite {
        return;
    }
    let (_, scoped) = caller(&db.store, "a").await;
    let (locked, free) = (new_task(at(0)), new_task(at(1)));
    scoped.create(locked.clone()).await.unwrap();
    scoped.create(free.clone()).await.unwrap();
    let mut other = PgConnection::connect(&db.url).await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM task_live WHERE task = $1 FOR UPDATE")
        .bind(locked.id.as_uuid())
        .execute(&mut *transaction)
        .await
        .unwrap();
    let claims = db.store.system().claim(NodeId::new(), tokens(2), "running", at(5)).await.unwrap();
    assert_eq!(claims.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), [free.id]);
    transaction.rollback().await.unwrap();
    let claims = db.store.system().claim(NodeId::new(), tokens(2), "running", at(5)).await.unwrap();
    assert_eq!(claims.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), [locked.id]);
}

async fn changes_are_noticed(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    assert!(system.may_have_changed().await.unwrap());
    // Nothing has happened since: SQLite knows that.
    assert_eq!(system.may_have_changed().await.unwrap(), db.backend == Backend::Postgres);
    scoped.create(new_task(at(0))).await.unwrap();
    assert!(system.may_have_changed().await.unwrap(), "this process wrote");
    let other = db.another().await;
    let (_, elsewhere) = caller(&other, "a").await;
    system.may_have_changed().await.unwrap();
    elsewhere.create(new_task(at(0))).await.unwrap();
    assert!(system.may_have_changed().await.unwrap(), "another process wrote");
}
