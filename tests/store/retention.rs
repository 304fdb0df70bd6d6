//! What goes, and what stays.

use std::time::Duration;

use futures_util::future::join_all;
use taskhold::domain::ids::{NodeId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::work::{NewTask, UpstreamTask};
use taskhold::store::{End, Ended, Firsts, Signal, SignalKind};

use super::questions::{Running, then};
use super::sessions::new_session;
use super::{at, caller, claimed_task, contract, end, new_task, result};
use crate::support::database::TestDatabase;

contract! {
    only_expired_ends_are_reaped,
    reaping_goes_in_bounded_batches_on_several_nodes,
    overdue_tasks_are_found_and_ended_whatever_their_lease,
    nothing_that_belongs_to_a_task_outlives_it,
    what_goes_first_is_known_by_one_look,
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

async fn what_goes_first_is_known_by_one_look(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    assert_eq!(system.firsts().await.unwrap(), Firsts::default());
    for (number, expires) in [(1, None), (2, Some(at(20))), (3, Some(at(10)))] {
        let over = new_task(at(0));
        scoped.create(over.clone()).await.unwrap();
        scoped.cancel(over.id, End { expires, ..end(Outcome::Cancelled, at(1)) }).await.unwrap();
        scoped.create(NewTask { hard_end: at(40 - number), ..new_task(at(0)) }).await.unwrap();
        scoped.add_session(new_session(context, 50 + number), 10).await.unwrap();
        let signal = Signal {
            id: over.id.as_uuid(),
            kind: SignalKind::SessionEnded,
            context,
            session: None,
            subject: String::new(),
            payload: None,
            created: at(60 + number),
        };
        system.signal(signal).await.unwrap();
        let (task, context) = (db.id(over.id.as_uuid()), db.id(context.as_uuid()));
        let (columns, expires) = ("task, context, round, open, expires", at(70 + number).micros());
        let parked = format!("INSERT INTO parked_calls ({columns}) VALUES ({task}, {context}, 1, 1, {expires})");
        db.sql(&parked).await;
    }
    let (dead, living) = (NodeId::new(), NodeId::new());
    let heard = system.register_node(dead).await.unwrap();
    system.register_node(living).await.unwrap();
    system.retire_node(dead).await.unwrap();
    let expected = Firsts {
        hard_end: Some(at(37)),
        expiry: Some(at(10)),
        round: Some(at(71)),
        session: Some(at(51)),
        signal: Some(at(61)),
        node: Some(heard),
    };
    assert_eq!(system.firsts().await.unwrap(), expected);
}

// req: KEEP-03
// field case: F-SQL-07
async fn nothing_that_belongs_to_a_task_outlives_it(db: TestDatabase) {
    const TABLES: [&str; 8] = [
        "tasks",
        "task_live",
        "task_requests",
        "task_outcomes",
        "task_inputs",
        "input_deliveries",
        "upstream_tasks",
        "signals",
    ];
    let counts = async || {
        let mut counts = Vec::new();
        for table in TABLES {
            counts.push(db.number(&format!("SELECT COUNT(*) FROM {table}")).await);
        }
        counts
    };
    let base = counts().await;
    let system = db.store.system();
    join_all((0..200).map(async |n| {
        let work = Running::new(&db).await;
        let (answered, withdrawn) = (work.ask("answered", at(1)).await, work.ask("withdrawn", at(2)).await);
        let (open, _unsent) = (work.ask("open", at(3)).await, work.ask("never sent", at(4)).await);
        let (one, two, three) = (work.send(answered).await, work.send(withdrawn).await, work.send(open).await);
        work.answer(one, "x", at(5)).await.unwrap();
        work.system.let_go(work.node, &[two]).await.unwrap();
        work.send(withdrawn).await;
        work.system.withdraw_input(withdrawn, work.token, &then("no"), at(5)).await.unwrap().unwrap();
        assert!(work.scoped.set_client_task(three, RawJson::trusted(r#"{"taskId":"x"}"#)).await.unwrap());
        let upstream = UpstreamTask { id: n.to_string(), session: None, revision: "2025-11-25".to_owned() };
        assert!(work.system.hand_over(work.task, work.token, upstream, at(6)).await.unwrap());
        let signal = Signal {
            id: work.task.as_uuid(),
            kind: SignalKind::PlainAnswer,
            context: work.context,
            session: Some(work.session),
            subject: three.to_string(),
            payload: Some(RawJson::trusted("{}")),
            created: at(6),
        };
        work.system.signal(signal).await.unwrap();
        let over = End { expires: Some(at(20)), ..end(Outcome::Cancelled, at(7)) };
        assert!(matches!(work.scoped.cancel(work.task, over).await.unwrap(), Ended::Done(_)));
    }))
    .await;
    assert_eq!(counts().await, [200, 0, 200, 200, 800, 800, 200, 200]);
    // As long as the task is there, so is what belongs to it.
    assert_eq!(system.reap(at(19), 500).await.unwrap(), 0);
    assert_eq!(counts().await[4..7], [800, 800, 200]);
    assert_eq!(system.reap(at(20), 150).await.unwrap(), 150);
    assert_eq!(counts().await[4..7], [200, 200, 50], "with the task, not later");
    assert_eq!(system.reap(at(20), 150).await.unwrap(), 50);
    assert_eq!(system.reap_signals(at(66), 500).await.unwrap(), 200);
    assert_eq!(counts().await, base);
}
