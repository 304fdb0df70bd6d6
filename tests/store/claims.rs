//! Who runs a task.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use taskhold::domain::ids::{LeaseToken, NodeId, TaskId};
use taskhold::domain::outcome::Ending;
use taskhold::domain::queue::{Counted, SlotLimit, SlotLimits};
use taskhold::domain::task::Status;
use taskhold::domain::work::{Claim, NewTask};
use taskhold::store::{Note, Release, Wish};

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
    slots_are_shared_fairly_between_contexts,
    what_a_limit_holds_back_stops_nobody_else,
    no_limit_is_overrun_by_claims_at_once,
    a_lane_whose_first_may_not_run_yet_waits,
    of_many_lanes_each_has_its_turn,
    who_is_held_back_hides_nobody,
    rows_of_the_release_before_are_claimed,
    waiting_tasks_are_counted_so_far,
    broken_rows_hide_no_orphans,
    a_row_that_cannot_be_counted_up_stops_no_claim,
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
    let first = system.claim(node, tokens(2), at(10)).await.unwrap();
    assert_eq!(first.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), [tasks[1].id, tasks[2].id]);
    let rest = system.claim(node, tokens(5), at(10)).await.unwrap();
    assert_eq!(rest.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), [tasks[0].id]);
    assert!(system.claim(node, tokens(5), at(10)).await.unwrap().is_empty());
    assert!(system.claim(node, Vec::new(), at(100)).await.unwrap().is_empty());
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
                let claims = system.claim(NodeId::new(), tokens(7), at(1000)).await.unwrap();
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
    let note = Note { task: new.id, token, message: Some("zombie".to_owned()), progress: None, now: at(2) };
    assert!(system.note(note).await.unwrap().is_none());
    assert!(system.claim(NodeId::new(), tokens(1), at(4)).await.unwrap().is_empty());
    let second = system.claim(NodeId::new(), tokens(1), at(5)).await.unwrap().remove(0);
    assert_eq!(second.lease.attempt, 2);
    assert!(system.release(release(second.lease.token, false, 6)).await.unwrap());
    let third = system.claim(NodeId::new(), tokens(1), at(6)).await.unwrap().remove(0);
    assert_eq!(third.lease.attempt, 2, "a hand-back without a dispatch does not count");
}

async fn a_claim_says_so_in_the_message(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let new = new_task(at(0));
    scoped.create(new.clone()).await.unwrap();
    db.store.system().claim(NodeId::new(), tokens(1), at(3)).await.unwrap();
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
    let claims = system.claim(NodeId::new(), tokens(3), at(5)).await.unwrap();
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
    assert!(system.claim(NodeId::new(), tokens(3), at(5)).await.unwrap().is_empty());
    assert!(system.queue(10, at(5)).await.unwrap().is_empty());
    assert_eq!(db.number("SELECT COUNT(*) FROM task_live").await, 1);
}

/// Waiting tasks of a caller, oldest first.
async fn backlog(db: &TestDatabase, name: &str, from: u64, count: u64, counted: &Counted) -> Vec<TaskId> {
    let (_, scoped) = caller(&db.store, name).await;
    let tasks: Vec<_> = (from..from + count).map(|n| NewTask { counted: counted.clone(), ..new_task(at(n)) }).collect();
    futures_util::future::try_join_all(tasks.iter().map(|new| scoped.create(new.clone()))).await.unwrap();
    tasks.iter().map(|task| task.id).collect()
}

fn claimed(claims: &[Claim]) -> HashSet<TaskId> {
    claims.iter().map(|claim| claim.lease.task).collect()
}

fn wish(count: usize, now: u64) -> Wish {
    Wish { node: NodeId::new(), tokens: tokens(count), now: at(now) }
}

fn set(tasks: &[&[TaskId]]) -> HashSet<TaskId> {
    tasks.concat().into_iter().collect()
}

// req: AUTH-15
async fn slots_are_shared_fairly_between_contexts(db: TestDatabase) {
    let (system, plain) = (db.store.system(), Counted::default());
    let a = backlog(&db, "a", 0, 20, &plain).await;
    let (b, c) = (backlog(&db, "b", 100, 2, &plain).await, backlog(&db, "c", 50, 9, &plain).await);
    let order = [a[0], c[0], b[0], a[1], c[1], b[1], a[2], c[2], a[3], c[3]];
    assert_eq!(system.queue(10, at(1000)).await.unwrap(), order);
    let node = NodeId::new();
    let first = system.claim(node, tokens(4), at(1000)).await.unwrap();
    assert_eq!(claimed(&first), set(&[&order[..4]]));
    // Whoever holds the fewest is next: `a` has two by now.
    assert_eq!(system.queue(3, at(1000)).await.unwrap(), order[4..7]);
    let one = system.claim(node, tokens(1), at(1000)).await.unwrap();
    assert_eq!(claimed(&one), set(&[&[c[1]]]));
    // One that waits for input holds no slot.
    let asks = first.iter().find(|claim| claim.lease.task == a[0]).unwrap().lease;
    db.sql(&format!(
        "UPDATE task_live SET open_inputs = 1 WHERE task IN ({}, {})",
        db.id(asks.task.as_uuid()),
        db.id(a[1].as_uuid())
    ))
    .await;
    assert_eq!(claimed(&system.claim(node, tokens(1), at(1000)).await.unwrap()), set(&[&[a[2]]]));
    // Of the rest each context gets what is left of it, however unequal the lanes are.
    let rest = system.claim(node, tokens(64), at(1000)).await.unwrap();
    assert_eq!(rest.len(), 31 - 6);
    assert!(system.queue(10, at(1000)).await.unwrap().is_empty());
}

// req: AUTH-15
async fn what_a_limit_holds_back_stops_nobody_else(db: TestDatabase) {
    let system = db.store.system();
    let of = |tenant: &str, tool: &str| Counted { tenant: tenant.to_owned(), tool: tool.to_owned() };
    let slow = backlog(&db, "a", 0, 50, &of("", "slow")).await;
    let other = backlog(&db, "a", 100, 3, &of("", "")).await;
    let acme = [backlog(&db, "b", 200, 5, &of("acme", "")).await, backlog(&db, "c", 300, 5, &of("acme", "")).await];
    let limits = SlotLimits {
        context: Some(4),
        tenants: BTreeMap::from([("acme".to_owned(), 3)]),
        tools: BTreeMap::from([("slow".to_owned(), 2)]),
    };
    let taken = system.claim_within(&limits, wish(64, 1000)).await.unwrap();
    assert!(taken.is_held_back && !taken.is_short);
    assert_eq!(claimed(&taken.claims), set(&[&slow[..2], &other[..2], &acme[0][..2], &acme[1][..1]]));
    let taken = system.claim_within(&limits, wish(64, 1000)).await.unwrap();
    assert!(taken.claims.is_empty() && taken.is_held_back);
    let queue = system.queue_within(&limits, 10, at(1000)).await.unwrap();
    assert!(queue.next.is_empty(), "{queue:?}");
    let reached = |task: TaskId| queue.held_back.iter().find(|(id, _)| *id == task).map(|(_, limit)| *limit);
    assert_eq!(reached(slow[2]), Some(SlotLimit::Tool(2)));
    assert_eq!(reached(other[2]), Some(SlotLimit::Context(4)));
    assert_eq!((reached(acme[0][2]), reached(acme[1][1])), (Some(SlotLimit::Tenant(3)), Some(SlotLimit::Tenant(3))));
    // Without limits they are all due.
    let taken = system.claim_within(&SlotLimits::default(), wish(64, 1000)).await.unwrap();
    assert_eq!((taken.claims.len(), taken.is_held_back), (63 - 7, false));
}

// req: AUTH-15
async fn no_limit_is_overrun_by_claims_at_once(db: TestDatabase) {
    let acme = Counted { tenant: "acme".to_owned(), tool: String::new() };
    backlog(&db, "a", 0, 4, &acme).await;
    backlog(&db, "b", 0, 4, &acme).await;
    let limits = SlotLimits { tenants: BTreeMap::from([("acme".to_owned(), 1)]), ..SlotLimits::default() };
    let stores = [db.another().await, db.another().await];
    for round in 0..60 {
        let claims = stores
            .iter()
            .chain([&db.store])
            .map(async |store| store.system().claim_within(&limits, wish(1, 1000)).await.unwrap().claims.len());
        let taken: usize = futures_util::future::join_all(claims).await.into_iter().sum();
        assert_eq!(taken, 1, "round {round}");
        db.sql("UPDATE task_live SET node = NULL, token = NULL, claimed = NULL WHERE node IS NOT NULL").await;
    }
}

async fn a_lane_whose_first_may_not_run_yet_waits(db: TestDatabase) {
    let (system, plain) = (db.store.system(), Counted::default());
    let (late, due) = (backlog(&db, "a", 500, 3, &plain).await, backlog(&db, "b", 0, 1, &plain).await);
    assert_eq!(claimed(&system.claim(NodeId::new(), tokens(9), at(10)).await.unwrap()), set(&[&due]));
    assert!(!system.anybody_waits(at(10)).await.unwrap() && system.anybody_waits(at(500)).await.unwrap());
    assert_eq!(claimed(&system.claim(NodeId::new(), tokens(9), at(501)).await.unwrap()), set(&[&late[..2]]));
}

async fn of_many_lanes_each_has_its_turn(db: TestDatabase) {
    let (system, plain) = (db.store.system(), Counted::default());
    let mut waiting = HashSet::new();
    for n in 0..130 {
        waiting.extend(backlog(&db, &format!("caller {n}"), n, 1, &plain).await);
    }
    let mut rounds = 0;
    while !waiting.is_empty() {
        let taken = system.claim_within(&SlotLimits::default(), wish(40, 1000)).await.unwrap();
        assert!(!taken.claims.is_empty() && rounds < 10);
        assert!(claimed(&taken.claims).iter().all(|task| waiting.remove(task)), "each once");
        rounds += 1;
    }
    let taken = system.claim_within(&SlotLimits::default(), wish(40, 1000)).await.unwrap();
    assert!(taken.claims.is_empty() && !taken.is_short);
}

// req: AUTH-15
async fn who_is_held_back_hides_nobody(db: TestDatabase) {
    let (system, plain) = (db.store.system(), Counted::default());
    let acme = Counted { tenant: "acme".to_owned(), tool: String::new() };
    for n in 0..300 {
        // Every other one is not due, either.
        backlog(&db, &format!("caller {n}"), n % 2 * 5000, 1, &acme).await;
    }
    let limits = SlotLimits { tenants: BTreeMap::from([("acme".to_owned(), 1)]), ..SlotLimits::default() };
    let taken = system.claim_within(&limits, wish(1, 1000)).await.unwrap();
    assert_eq!(taken.claims.len(), 1);
    for name in ["a", "b", "c"] {
        let free = backlog(&db, name, 900, 2, &plain).await;
        let queue = system.queue_within(&limits, 10, at(1000)).await.unwrap();
        assert!(queue.next == free && !queue.is_partial && queue.held_back.len() == 10, "{queue:?}");
        let taken = system.claim_within(&limits, wish(8, 1000)).await.unwrap();
        assert_eq!(claimed(&taken.claims), set(&[&free]));
        assert!(taken.is_held_back && !taken.is_short);
    }
    let queue = system.queue_within(&SlotLimits::default(), 100, at(9999)).await.unwrap();
    assert!(queue.is_partial && queue.next.len() == 100);
}

// field case: F-OPS-07
async fn rows_of_the_release_before_are_claimed(db: TestDatabase) {
    let (system, plain) = (db.store.system(), Counted::default());
    let old = [backlog(&db, "a", 0, 3, &plain).await, backlog(&db, "b", 10, 3, &plain).await].concat();
    // It does not name what this one has added.
    let nobody = db.id(uuid::Uuid::nil());
    db.sql(&format!("UPDATE task_live SET context = {nobody}, tenant = '', tool = ''")).await;
    let new = backlog(&db, "a", 20, 3, &plain).await;
    assert_eq!(system.queue(4, at(99)).await.unwrap(), [old[0], new[0], old[1], new[1]]);
    assert_eq!(claimed(&system.claim(NodeId::new(), tokens(2), at(99)).await.unwrap()), set(&[&[old[0], new[0]]]));
    let right = "SELECT COUNT(*) FROM task_live l JOIN tasks t ON t.id = l.task AND t.context = l.context";
    assert_eq!(db.number(right).await, 4, "who claims puts right whose it is");
    assert_eq!(system.claim(NodeId::new(), tokens(9), at(99)).await.unwrap().len(), 7);
    assert_eq!(db.number(right).await, 9);
}

async fn waiting_tasks_are_counted_so_far(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let acme = Counted { tenant: "acme".to_owned(), tool: String::new() };
    backlog(&db, "a", 0, 5, &acme).await;
    backlog(&db, "b", 0, 4, &acme).await;
    assert_eq!((scoped.waiting(100).await.unwrap(), scoped.waiting(3).await.unwrap()), (5, 3));
    let of_tenant = async |name, most| db.store.system().waiting_of_tenant(name, most).await.unwrap();
    assert_eq!((of_tenant("acme", 100).await, of_tenant("acme", 7).await, of_tenant("", 7).await), (9, 7, 0));
    db.store.system().claim(NodeId::new(), tokens(4), at(9)).await.unwrap();
    assert_eq!((scoped.waiting(100).await.unwrap(), of_tenant("acme", 100).await), (3, 5));
}

// field case: F-Q-05
async fn broken_rows_hide_no_orphans(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let mut tasks: Vec<_> = (0..7).map(|_| claimed_task(at(0), NodeId::new()).0).collect();
    tasks.sort_by_key(|task| task.id);
    for task in &tasks {
        scoped.create(task.clone()).await.unwrap();
    }
    for broken in &tasks[..4] {
        db.sql(&format!("UPDATE task_requests SET params = '{{' WHERE task = {}", db.id(broken.id.as_uuid()))).await;
    }
    let orphans = db.store.system().orphans(None, 2).await.unwrap();
    assert_eq!(claimed(&orphans), set(&[&[tasks[4].id, tasks[5].id]]));
}

// field case: F-Q-05
async fn a_row_that_cannot_be_counted_up_stops_no_claim(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (node, system) = (NodeId::new(), db.store.system());
    for attempt in [i64::MAX, i64::from(u32::MAX), 0] {
        let task = new_task(at(0));
        scoped.create(task.clone()).await.unwrap();
        db.sql(&format!("UPDATE task_live SET attempt = {attempt} WHERE task = {}", db.id(task.id.as_uuid()))).await;
    }
    assert_eq!(system.claim(node, tokens(4), at(5)).await.unwrap().len(), 3);
    db.sql(&format!("UPDATE task_live SET attempt = {} WHERE attempt > 1", i64::MAX)).await;
    assert_eq!(system.held(node).await.unwrap().len(), 3, "and none of them hides the others");
    assert_eq!(system.orphans(None, 10).await.unwrap().len(), 3);
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
    let claims = db.store.system().claim(NodeId::new(), tokens(2), at(5)).await.unwrap();
    assert_eq!(claims.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), [free.id]);
    transaction.rollback().await.unwrap();
    let claims = db.store.system().claim(NodeId::new(), tokens(2), at(5)).await.unwrap();
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
