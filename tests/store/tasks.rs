//! Making, reading and ending one task.

use taskhold::domain::ids::{LeaseToken, NodeId, SessionId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::{Ending, Outcome};
use taskhold::domain::retention::Ttl;
use taskhold::domain::task::{Status, Task};
use taskhold::domain::work::{CallKey, NewTask};
use taskhold::store::{Ended, Note, Watch};

use super::{at, caller, claimed_task, contract_everywhere, end, finish, new_task, result};
use crate::support::database::TestDatabase;

contract_everywhere! {
    a_new_task_is_working_and_all_of_it_is_kept,
    a_task_outlives_its_process,
    outcomes_are_kept_to_the_byte,
    an_end_is_final,
    a_late_outcome_is_dropped,
    a_repeated_finish_finds_itself_done,
    a_strangers_lease_cannot_speak,
    messages_move_the_time_only_when_they_differ,
    times_never_go_back,
    unstorable_text_is_made_storable,
    what_is_not_there_is_none,
    operators_see_every_context,
    operators_see_no_call_that_is_no_task,
}

// req: LIFE-01
async fn a_new_task_is_working_and_all_of_it_is_kept(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let new = NewTask { session: Some(SessionId::new()), ..new_task(at(5)) };
    scoped.create(new.clone()).await.unwrap();
    let task = scoped.get(new.id).await.unwrap().unwrap();
    assert_eq!(
        task,
        Task {
            id: new.id,
            context,
            tool: "demo__wait".to_owned(),
            status: Status::Working,
            message: Some("queued".to_owned()),
            created: at(5),
            updated: at(5),
            granted: Ttl::Milliseconds(3_600_000),
            poll_interval_ms: 1000,
            expires: None,
            session: new.session,
            progress_token: Some(RawJson::trusted("\"p-1\"")),
            progress: None,
            progress_at: at(5),
        }
    );
    assert_eq!(scoped.outcome(new.id).await.unwrap(), Some((task, None)));

    let node = NodeId::new();
    let claims = db.store.system().claim(node, vec![LeaseToken::new()], at(6)).await.unwrap();
    let [claim] = claims.as_slice() else { panic!("{claims:?}") };
    assert_eq!(claim.work.params, new.params);
    assert_eq!(claim.work.context, context);
    assert_eq!((claim.work.hard_end, claim.work.run_limit), (new.hard_end, new.run_limit));
    assert_eq!((claim.work.restart, claim.work.attempts_allowed), (new.restart, 3));
    assert_eq!((claim.work.upstream.as_str(), claim.work.upstream_tool.as_str()), ("demo", "wait"));

    let endless = NewTask { granted: Ttl::Unlimited, progress_token: None, ..new_task(at(5)) };
    scoped.create(endless.clone()).await.unwrap();
    assert_eq!(scoped.get(endless.id).await.unwrap().unwrap().granted, Ttl::Unlimited);
}

// req: LIFE-06, KEEP-06
async fn a_task_outlives_its_process(mut db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (running, token) = claimed_task(at(0), NodeId::new());
    let waiting = new_task(at(1));
    scoped.create(running.clone()).await.unwrap();
    scoped.create(waiting.clone()).await.unwrap();
    let ended = db.store.system().finish(finish(running.id, token, result("first"), at(2))).await.unwrap();
    db.reopen().await;
    let (_, scoped) = caller(&db.store, "a").await;
    let (task, outcome) = scoped.outcome(running.id).await.unwrap().unwrap();
    assert_eq!(ended, Ended::Done(task));
    assert_eq!(outcome, Some(result("first")));
    let claims = db.store.system().claim(NodeId::new(), vec![LeaseToken::new()], at(3)).await.unwrap();
    assert_eq!(claims[0].lease.task, waiting.id);
    assert_eq!(claims[0].work.params, waiting.params);
}

// req: LIFE-11
async fn outcomes_are_kept_to_the_byte(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let odd = r#"{"z":1.0,"a":18446744073709551615,"n":1e400,"s":"\u0000 \ud800 \u00e9é","z":2,"e":-0}"#;
    let long = format!(r#"{{"text":"{}"}}"#, "x".repeat(3 << 20));
    for json in [odd, &long] {
        for outcome in [
            Outcome::Result { json: RawJson::trusted(json), is_error: false },
            Outcome::Result { json: RawJson::trusted(json), is_error: true },
            Outcome::Error { json: RawJson::trusted(json) },
            Outcome::Cancelled,
        ] {
            let (new, token) = claimed_task(at(0), NodeId::new());
            scoped.create(new.clone()).await.unwrap();
            let ended = db.store.system().finish(finish(new.id, token, outcome.clone(), at(1))).await.unwrap();
            let Ended::Done(task) = ended else { panic!("{ended:?}") };
            assert_eq!(task.status, Status::Ended(outcome.ending()));
            assert_eq!(scoped.outcome(new.id).await.unwrap(), Some((task, Some(outcome))));
        }
    }
}

// req: LIFE-04
async fn an_end_is_final(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let (new, token) = claimed_task(at(0), NodeId::new());
    scoped.create(new.clone()).await.unwrap();
    system.finish(finish(new.id, token, result("first"), at(1))).await.unwrap();
    let before = scoped.outcome(new.id).await.unwrap();

    assert_eq!(scoped.cancel(new.id, end(Outcome::Cancelled, at(2))).await.unwrap(), Ended::Refused);
    assert_eq!(system.end(new.id, end(result("second"), at(2))).await.unwrap(), Ended::Refused);
    let stranger = finish(new.id, LeaseToken::new(), result("third"), at(2));
    assert_eq!(system.finish(stranger).await.unwrap(), Ended::Refused);
    let note = Note { task: new.id, token, message: Some("still there".to_owned()), progress: None, now: at(2) };
    assert!(system.note(note).await.unwrap().is_none());
    system.note_waiting(vec![(new.id, "queued".to_owned())], at(2)).await.unwrap();
    assert!(system.claim(NodeId::new(), vec![LeaseToken::new()], at(9)).await.unwrap().is_empty());
    assert_eq!(scoped.outcome(new.id).await.unwrap(), before);
    assert_eq!(db.number("SELECT COUNT(*) FROM task_live").await, 0);
}

// req: LIFE-07, TASK-12
async fn a_late_outcome_is_dropped(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (new, token) = claimed_task(at(0), NodeId::new());
    scoped.create(new.clone()).await.unwrap();
    let Ended::Done(task) = scoped.cancel(new.id, end(Outcome::Cancelled, at(1))).await.unwrap() else {
        panic!("the cancel was refused")
    };
    assert_eq!(task.status, Status::Ended(Ending::Cancelled));
    let late = finish(new.id, token, result("late"), at(2));
    assert_eq!(db.store.system().finish(late).await.unwrap(), Ended::Refused);
    assert_eq!(scoped.outcome(new.id).await.unwrap(), Some((task, Some(Outcome::Cancelled))));
}

async fn a_repeated_finish_finds_itself_done(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (new, token) = claimed_task(at(0), NodeId::new());
    scoped.create(new.clone()).await.unwrap();
    let first = db.store.system().finish(finish(new.id, token, result("first"), at(1))).await.unwrap();
    let again = db.store.system().finish(finish(new.id, token, result("second"), at(9))).await.unwrap();
    assert_eq!(first, again);
    assert!(matches!(first, Ended::Done(_)));
    assert_eq!(scoped.outcome(new.id).await.unwrap().unwrap().1, Some(result("first")));
}

// req: KEEP-09
async fn a_strangers_lease_cannot_speak(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let (new, token) = claimed_task(at(0), NodeId::new());
    scoped.create(new.clone()).await.unwrap();
    let stranger = LeaseToken::new();
    assert_eq!(system.finish(finish(new.id, stranger, result("zombie"), at(1))).await.unwrap(), Ended::Refused);
    let note = |token| Note { task: new.id, token, message: Some("hello".to_owned()), progress: None, now: at(1) };
    assert!(system.note(note(stranger)).await.unwrap().is_none());
    assert!(system.claim_of(new.id, stranger).await.unwrap().is_none());
    assert_eq!(scoped.get(new.id).await.unwrap().unwrap().message.as_deref(), Some("running"));
    assert!(system.note(note(token)).await.unwrap().is_some());
    assert_eq!(system.claim_of(new.id, token).await.unwrap().unwrap().lease.attempt, 1);
    assert!(matches!(system.finish(finish(new.id, token, result("owner"), at(2))).await.unwrap(), Ended::Done(_)));
    assert_eq!(scoped.outcome(new.id).await.unwrap().unwrap().1, Some(result("owner")));
}

// req: LIFE-08
async fn messages_move_the_time_only_when_they_differ(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let (new, token) = claimed_task(at(0), NodeId::new());
    scoped.create(new.clone()).await.unwrap();
    let note =
        |message: &str, now| Note { task: new.id, token, message: Some(message.to_owned()), progress: None, now };
    assert!(system.note(note("running", at(5))).await.unwrap().is_some());
    assert_eq!(scoped.get(new.id).await.unwrap().unwrap().updated, at(0));
    assert!(system.note(note("half", at(6))).await.unwrap().is_some());
    let task = scoped.get(new.id).await.unwrap().unwrap();
    assert_eq!((task.updated, task.message.as_deref()), (at(6), Some("half")));
    let waiting = new_task(at(0));
    scoped.create(waiting.clone()).await.unwrap();
    system
        .note_waiting(vec![(waiting.id, "queued".to_owned()), (new.id, "not waiting".to_owned())], at(7))
        .await
        .unwrap();
    assert_eq!(scoped.get(waiting.id).await.unwrap().unwrap().updated, at(0));
    assert_eq!(scoped.get(new.id).await.unwrap().unwrap(), task);
    system.note_waiting(vec![(waiting.id, "queued: 3 ahead".to_owned())], at(8)).await.unwrap();
    let task = scoped.get(waiting.id).await.unwrap().unwrap();
    assert_eq!((task.updated, task.message.as_deref()), (at(8), Some("queued: 3 ahead")));
}

async fn times_never_go_back(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (new, token) = claimed_task(at(100), NodeId::new());
    scoped.create(new.clone()).await.unwrap();
    let note = Note { task: new.id, token, message: Some("from the past".to_owned()), progress: None, now: at(1) };
    assert!(db.store.system().note(note).await.unwrap().is_some());
    assert_eq!(scoped.get(new.id).await.unwrap().unwrap().updated.micros(), at(100).micros() + 1);
    let Ended::Done(task) = db.store.system().finish(finish(new.id, token, result("x"), at(2))).await.unwrap() else {
        panic!("refused")
    };
    assert_eq!(task.updated.micros(), at(100).micros() + 2);
}

async fn unstorable_text_is_made_storable(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a\0b").await;
    let (mut new, token) = claimed_task(at(0), NodeId::new());
    new.tool = "to\0ol".to_owned();
    scoped.create(new.clone()).await.unwrap();
    assert_eq!(scoped.get(new.id).await.unwrap().unwrap().tool, "to\u{FFFD}ol");
    let note = Note { task: new.id, token, message: Some("a\0b".to_owned()), progress: None, now: at(1) };
    assert!(db.store.system().note(note).await.unwrap().is_some());
    assert_eq!(scoped.get(new.id).await.unwrap().unwrap().message.as_deref(), Some("a\u{FFFD}b"));
}

async fn what_is_not_there_is_none(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let id = TaskId::new();
    assert_eq!(scoped.get(id).await.unwrap(), None);
    assert_eq!(scoped.outcome(id).await.unwrap(), None);
    assert_eq!(scoped.cancel(id, end(Outcome::Cancelled, at(0))).await.unwrap(), Ended::Refused);
    assert_eq!(db.store.system().details(id).await.unwrap(), None);
    let watch = Watch { tasks: vec![id], ..Watch::nothing(at(0)) };
    assert_eq!(db.store.system().watch(watch).await.unwrap().ended, [id]);
    db.store.system().ping().await.unwrap();
}

// req: KEEP-08
async fn operators_see_every_context(db: TestDatabase) {
    let (_, one) = caller(&db.store, "a").await;
    let (_, two) = caller(&db.store, "b").await;
    let system = db.store.system();
    let node = NodeId::new();
    let (running, token) = claimed_task(at(1), node);
    let waiting = new_task(at(2));
    one.create(running.clone()).await.unwrap();
    two.create(waiting.clone()).await.unwrap();
    let all = system.all_tasks(None, 10).await.unwrap();
    let shown: Vec<_> = all.iter().map(|details| (details.task.id, details.attempt, details.node)).collect();
    assert_eq!(shown, [(waiting.id, 0, None), (running.id, 1, Some(node))]);
    let page = system.all_tasks(Some(taskhold::domain::cursor::Position { created: at(2), id: waiting.id }), 10).await;
    assert_eq!(page.unwrap().iter().map(|details| details.task.id).collect::<Vec<_>>(), [running.id]);
    system.finish(finish(running.id, token, result("x"), at(3))).await.unwrap();
    let details = system.details(running.id).await.unwrap().unwrap();
    assert_eq!((details.attempt, details.node, details.outcome), (1, None, Some(result("x"))));
    assert_eq!((details.upstream.as_str(), details.upstream_tool.as_str()), ("demo", "wait"));
}

async fn operators_see_no_call_that_is_no_task(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let task = new_task(at(1));
    scoped.create(task.clone()).await.unwrap();
    let keyed = |key: Option<&str>| CallKey { key: key.map(str::to_owned), digest: "d".to_owned(), parked: true };
    let (keyed, parked) = (Some(keyed(Some("k"))), Some(keyed(None)));
    let calls = [keyed, parked].map(|keyed| NewTask { keyed, ..new_task(at(2)) });
    for call in &calls {
        assert!(scoped.create(call.clone()).await.unwrap());
        assert!(system.details(call.id).await.unwrap().unwrap().parked);
    }
    let listed = async || {
        let all = system.all_tasks(None, 2).await.unwrap();
        all.iter().map(|details| details.task.id).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, [task.id], "they take no place of a page");
    scoped.unpark(calls[0].id).await.unwrap();
    assert_eq!(listed().await, [calls[0].id, task.id], "it is one from now on");
    assert!(!system.details(calls[0].id).await.unwrap().unwrap().parked);
}
