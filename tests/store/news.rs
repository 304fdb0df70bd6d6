//! One gathered question for everything that waits.

use taskhold::domain::ids::{ContextId, DeliveryId, InputId, NodeId, SessionId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::work::NewTask;
use taskhold::store::{Closed, Closing, News, Note, Release, Signal, SignalKind, Watch};
use uuid::Uuid;

use super::questions::{Running, then};
use super::{at, caller, claimed_task, contract, end, new_task};
use crate::support::database::{Backend, TestDatabase};

contract! {
    nothing_wanted_is_nothing_told,
    ends_are_told,
    changes_of_a_sessions_tasks_are_told,
    changes_of_a_task_that_is_listened_to_are_told,
    questions_are_told_until_a_stream_has_them,
    closed_questions_are_told_to_streams_and_work,
    questions_that_moved_are_told_to_the_node_that_had_them,
    short_tasks_of_a_session_are_told,
    a_task_that_waits_to_be_run_is_told,
    many_short_tasks_of_one_session_hide_no_others,
    the_newest_changes_can_be_asked_for_alone,
    signals_are_told_from_a_moment_on,
    signals_are_read_once_and_in_bounded_parts,
    signals_go_after_their_time,
}

fn nothing() -> Watch {
    Watch::nothing(at(0))
}

async fn nothing_wanted_is_nothing_told(db: TestDatabase) {
    let work = Running::new(&db).await;
    work.ask("x", at(1)).await;
    work.system.signal(signal(SignalKind::CancelCall, 5)).await.unwrap();
    assert_eq!(work.system.watch(nothing()).await.unwrap(), News::default());
}

// req: KEEP-18
async fn ends_are_told(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let tasks: Vec<NewTask> = (0..200).map(|_| new_task(at(0))).collect();
    for new in &tasks {
        scoped.create(new.clone()).await.unwrap();
    }
    let mut over: Vec<TaskId> = tasks.iter().step_by(3).map(|new| new.id).collect();
    for &id in &over {
        scoped.cancel(id, end(Outcome::Cancelled, at(1))).await.unwrap();
    }
    over.push(TaskId::new());
    let mut wanted: Vec<TaskId> = tasks.iter().map(|new| new.id).collect();
    wanted.extend(over.last());
    let mut news = db.store.system().watch(Watch { tasks: wanted, ..nothing() }).await.unwrap();
    news.ended.sort_unstable();
    over.sort_unstable();
    assert_eq!(news, News { ended: over, ..News::default() });
}

// req: NOTE-01
async fn changes_of_a_sessions_tasks_are_told(db: TestDatabase) {
    let work = Running::new(&db).await;
    let (other, _) = claimed_task(at(0), work.node);
    work.scoped.create(NewTask { session: Some(SessionId::new()), ..other }).await.unwrap();
    work.scoped.create(new_task(at(50))).await.unwrap();
    let changed = async |since| {
        let watch = Watch { sessions: vec![work.session], changed_since: since, ..nothing() };
        work.system.watch(watch).await.unwrap().changed
    };
    assert_eq!(changed(at(0)).await, [work.task().await]);
    assert!(changed(at(1)).await.is_empty());
    let params = RawJson::trusted(r#"{"progressToken":1,"progress":0.5}"#);
    let note = |progress: &RawJson, now| Note {
        task: work.task,
        token: work.token,
        message: Some("running".to_owned()),
        progress: Some(progress.clone()),
        now,
    };
    let noted = work.system.note(note(&params, at(20))).await.unwrap().unwrap();
    assert_eq!((noted.updated, noted.progress.as_ref()), (at(0), Some(&params)), "progress alone is no update");
    assert_eq!(changed(at(20)).await, [noted], "and yet it is told");
    let plain = Note { progress: None, message: Some("half".to_owned()), ..note(&params, at(30)) };
    let noted = work.system.note(plain).await.unwrap().unwrap();
    assert_eq!((noted.updated, noted.progress.as_ref()), (at(30), Some(&params)));
    assert_eq!(changed(at(30)).await, std::slice::from_ref(&noted));
    assert_eq!(noted, work.task().await);
    work.ask("x", at(40)).await;
    assert_eq!(changed(at(40)).await, [work.task().await]);
    assert!(changed(at(41)).await.is_empty());
}

// Of NOTE-05 what other nodes do.
async fn changes_of_a_task_that_is_listened_to_are_told(db: TestDatabase) {
    let work = Running::new(&db).await;
    work.scoped.create(new_task(at(50))).await.unwrap();
    let news = async |since| {
        let listened = vec![work.task, TaskId::new()];
        let watch = Watch { listened, changed_since: since, ..nothing() };
        work.system.watch(watch).await.unwrap()
    };
    assert_eq!(news(at(0)).await, News { changed: vec![work.task().await], ..News::default() });
    for n in 1..3 {
        work.ask(&format!("question {n}"), at(10 * n)).await;
        // Its questions are read with it by who tells of it.
        assert_eq!(news(at(10 * n)).await, News { changed: vec![work.task().await], ..News::default() });
    }
    let both = Watch { listened: vec![work.task], sessions: vec![work.session], ..nothing() };
    assert_eq!(work.system.watch(both).await.unwrap().changed.len(), 1, "it is told once");
    work.scoped.cancel(work.task, end(Outcome::Cancelled, at(40))).await.unwrap();
    assert_eq!(news(at(0)).await, News::default(), "the end is asked for by itself");
}

// req: INPUT-02, INPUT-03
async fn questions_are_told_until_a_stream_has_them(db: TestDatabase) {
    let work = Running::new(&db).await;
    let (first, second) = (work.ask("first", at(1)).await, work.ask("second", at(2)).await);
    let open = async |sessions, asking| {
        let watch = Watch { sessions, asking, ..nothing() };
        work.system.watch(watch).await.unwrap().open
    };
    let stored = work.scoped.open_inputs(work.task).await.unwrap();
    assert_eq!(open(vec![work.session], vec![]).await, stored);
    assert_eq!(open(vec![], vec![work.task]).await, stored);
    assert_eq!(open(vec![work.session], vec![work.task]).await, stored, "each once");
    assert!(open(vec![SessionId::new()], vec![TaskId::new()]).await.is_empty());
    let sent = work.send(first).await;
    assert_eq!(open(vec![work.session], vec![work.task]).await, stored[1..]);
    work.system.let_go(work.node, &[sent]).await.unwrap();
    work.system.withdraw_input(second, work.token, &then("no"), at(3)).await.unwrap();
    let known = work.scoped.open_inputs(work.task).await.unwrap();
    assert_eq!(known[0].last.map(|last| (last.delivery, last.holder)), Some((sent, work.session)));
    assert_eq!(open(vec![work.session], vec![work.task]).await, known);
    work.scoped.cancel(work.task, end(Outcome::Cancelled, at(4))).await.unwrap();
    assert!(open(vec![work.session], vec![work.task]).await.is_empty());
}

// req: INPUT-12
async fn closed_questions_are_told_to_streams_and_work(db: TestDatabase) {
    let work = Running::new(&db).await;
    let mut inputs = Vec::new();
    let mut sent = Vec::new();
    for n in 0..4 {
        let input = work.ask(&format!("question {n}"), at(n)).await;
        inputs.push(input);
        sent.push(work.send(input).await);
    }
    let news = async || {
        let watch = Watch { held: sent.clone(), inputs: inputs.clone(), ..nothing() };
        let mut news = work.system.watch(watch).await.unwrap();
        let place = |all: &[Uuid], one: Uuid| all.iter().position(|id| *id == one).unwrap();
        let all_sent: Vec<Uuid> = sent.iter().map(|id| id.as_uuid()).collect();
        let all_inputs: Vec<Uuid> = inputs.iter().map(|id| id.as_uuid()).collect();
        news.closed.sort_by_key(|closed| place(&all_sent, closed.delivery.as_uuid()));
        news.settled.sort_by_key(|id| place(&all_inputs, id.as_uuid()));
        (news.closed, news.settled)
    };
    assert_eq!(news().await, (vec![], vec![]));
    work.answer(sent[0], "x", at(9)).await.unwrap();
    work.system.withdraw_input(inputs[1], work.token, &then("no"), at(9)).await.unwrap();
    // Another stream has it now: whoever had it before does not hold it any more, and needs not be told.
    work.system.let_go(work.node, &[sent[2]]).await.unwrap();
    work.send(inputs[2]).await;
    let closed = |at: usize, how| Closed { delivery: sent[at], how };
    let over = vec![closed(0, Closing::Answered), closed(1, Closing::Withdrawn), closed(2, Closing::Answered)];
    assert_eq!(news().await, (over.clone(), inputs[..2].to_vec()));
    work.scoped.cancel(work.task, end(Outcome::Cancelled, at(10))).await.unwrap();
    assert_eq!(news().await, ([over, vec![closed(3, Closing::Withdrawn)]].concat(), inputs.clone()));
    let unknown = Watch { held: vec![DeliveryId::new()], inputs: vec![InputId::new()], ..nothing() };
    let news = work.system.watch(unknown).await.unwrap();
    assert_eq!((news.closed.len(), news.settled.len()), (1, 1));
}

// req: INPUT-14, HTTP-09
async fn questions_that_moved_are_told_to_the_node_that_had_them(db: TestDatabase) {
    let work = Running::new(&db).await;
    let first = work.hold(work.ask("x", at(1)).await);
    assert!(work.system.hold_input(first.clone()).await.unwrap());
    let node = NodeId::new();
    work.system.register_node(node).await.unwrap();
    let closed = async |node| {
        let watch = Watch { held: vec![first.delivery], node, ..nothing() };
        work.system.watch(watch).await.unwrap().closed
    };
    assert_eq!(closed(Some(work.node)).await, []);
    let moved = [Closed { delivery: first.delivery, how: Closing::Moved }];
    assert_eq!(work.scoped.rehold_stream(first.stream, node).await.unwrap().len(), 1);
    assert_eq!(closed(Some(work.node)).await, moved);
    assert_eq!((closed(Some(node)).await, closed(None).await), (vec![], vec![]));
    work.system.retire_node(node).await.unwrap();
    assert_eq!(closed(Some(work.node)).await, [], "the dead have nothing");
    work.system.let_go(node, &[first.delivery]).await.unwrap();
    assert_eq!(closed(Some(work.node)).await, [], "nobody has it");
}

// req: NOTE-01
async fn short_tasks_of_a_session_are_told(db: TestDatabase) {
    let work = Running::new(&db).await;
    let stored = work.task().await;
    let contexts = vec![ContextId::new(), stored.context];
    let over = async |sessions, over_since| {
        let watch = Watch { sessions, contexts: contexts.clone(), over_since, ..nothing() };
        work.system.watch(watch).await.unwrap().over
    };
    work.scoped.create(new_task(at(0))).await.unwrap();
    assert!(over(vec![work.session], Some(at(0))).await.is_empty(), "it is alive");
    work.scoped.cancel(work.task, end(Outcome::Cancelled, at(10))).await.unwrap();
    assert_eq!(over(vec![work.session], Some(at(0))).await, [(stored.context, work.task)]);
    assert!(over(vec![work.session], Some(at(1))).await.is_empty(), "made before that");
    assert!(over(vec![work.session], None).await.is_empty());
    assert!(over(vec![SessionId::new()], Some(at(0))).await.is_empty());
    let known = Watch { sessions: vec![work.session], contexts, over_since: Some(at(0)), ..nothing() };
    let said = Watch { said: vec![work.task], ..known.clone() };
    assert!(work.system.watch(said).await.unwrap().over.is_empty(), "it is known already");
    let others = Watch { contexts: vec![ContextId::new()], ..known };
    assert!(work.system.watch(others).await.unwrap().over.is_empty(), "it is not theirs");
}

async fn a_task_that_waits_to_be_run_is_told(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let (running, token) = claimed_task(at(1), NodeId::new());
    scoped.create(running.clone()).await.unwrap();
    let is_waiting = async |waiting_by| system.watch(Watch { waiting_by, ..nothing() }).await.unwrap().is_waiting;
    assert!(!is_waiting(Some(at(1000))).await, "it runs");
    let release = Release {
        task: running.id,
        token,
        not_before: at(60),
        counted: true,
        keep_inputs: false,
        message: "again".to_owned(),
        now: at(50),
    };
    assert!(system.release(release).await.unwrap());
    assert!(!is_waiting(Some(at(59))).await, "its time has not come");
    assert!(is_waiting(Some(at(60))).await);
    assert!(!is_waiting(None).await, "nobody asked");
}

// req: NOTE-01
async fn many_short_tasks_of_one_session_hide_no_others(db: TestDatabase) {
    let (auth, scoped) = caller(&db.store, "a").await;
    let [many, few] = [SessionId::new(), SessionId::new()];
    let mut last = None;
    for (number, of) in [many; 510].into_iter().chain([few]).enumerate() {
        let new = NewTask { session: Some(of), ..new_task(at(number as u64)) };
        let ended = end(Outcome::Cancelled, at(1000));
        scoped.create(new.clone()).await.unwrap();
        scoped.cancel(new.id, ended).await.unwrap();
        last = Some(new.id);
    }
    let watch = Watch { sessions: vec![many, few], contexts: vec![auth], over_since: Some(at(0)), ..nothing() };
    let first = db.store.system().watch(watch.clone()).await.unwrap().over;
    assert!(first.len() < 511 && first.contains(&(auth, last.unwrap())), "{} are told", first.len());
    let said: Vec<_> = first.iter().map(|(_, task)| *task).collect();
    let rest = db.store.system().watch(Watch { said, ..watch }).await.unwrap().over;
    assert_eq!(first.len() + rest.len(), 511);
    assert!(rest.iter().all(|end| !first.contains(end)));
}

// req: HTTP-09
async fn the_newest_changes_can_be_asked_for_alone(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let id = SessionId::new();
    let tasks: Vec<_> = (0..5).map(|n| NewTask { session: Some(id), ..new_task(at(n)) }).collect();
    for new in &tasks {
        scoped.create(new.clone()).await.unwrap();
    }
    let watch = Watch { sessions: vec![id], newest: 2, ..nothing() };
    let changed = db.store.system().watch(watch).await.unwrap().changed;
    let changed: Vec<_> = changed.into_iter().map(|task| task.id).collect();
    assert_eq!(changed, [tasks[4].id, tasks[3].id]);
}

fn signal(kind: SignalKind, seconds: u64) -> Signal {
    Signal {
        id: Uuid::from_u128(u128::from(seconds) << 64 | kind.code() as u128),
        kind,
        context: ContextId::new(),
        session: None,
        subject: "7".to_owned(),
        payload: None,
        created: at(seconds),
    }
}

async fn signals_are_told_from_a_moment_on(db: TestDatabase) {
    let system = db.store.system();
    let mut given = Vec::new();
    for (n, kind) in SignalKind::ALL.into_iter().enumerate() {
        let mut signal = signal(kind, n as u64);
        if n % 2 == 0 {
            signal.session = Some(SessionId::new());
            signal.payload = Some(RawJson::trusted(r#"{"result":{"n":1e400}}"#));
        }
        system.signal(signal.clone()).await.unwrap();
        system.signal(signal.clone()).await.unwrap();
        given.push(signal);
    }
    for since in [0, 3, 5, 6] {
        let watch = Watch { signals_since: Some(at(since)), ..nothing() };
        assert_eq!(system.watch(watch).await.unwrap().signals, given[since as usize..]);
    }
    let later = match db.backend {
        Backend::Sqlite => format!("X'{}'", Uuid::from_u128(1).simple()),
        Backend::Postgres => format!("'{}'", Uuid::from_u128(1)),
    };
    let newer = format!(
        "INSERT INTO signals (id, kind, context, subject, created) VALUES ({later}, 99, {later}, '', {})",
        at(9).micros()
    );
    db.sql(&newer).await;
    let watch = Watch { signals_since: Some(at(5)), ..nothing() };
    assert_eq!(
        system.watch(watch).await.unwrap().signals,
        given[5..],
        "one that this version does not know is passed over"
    );
}

/// Each node reads what was given once, and never much at once.
async fn signals_are_read_once_and_in_bounded_parts(db: TestDatabase) {
    let system = db.store.system();
    let large = RawJson::trusted(format!(r#"{{"result":"{}"}}"#, "x".repeat(3 << 20)));
    for n in 0..5 {
        system.signal(Signal { payload: Some(large.clone()), ..signal(SignalKind::PlainAnswer, n) }).await.unwrap();
    }
    system.signal(signal(SignalKind::CancelCall, 5)).await.unwrap();
    let (mut heard, mut parts) = (Vec::new(), Vec::new());
    loop {
        let watch = Watch { signals_since: Some(at(0)), heard: heard.clone(), ..nothing() };
        let read = system.watch(watch).await.unwrap().signals;
        if read.is_empty() {
            break;
        }
        parts.push(read.iter().map(|signal| signal.created).collect::<Vec<_>>());
        heard.extend(read.iter().map(|signal| signal.id));
    }
    assert_eq!(parts, [vec![at(0), at(1), at(2)], vec![at(3), at(4), at(5)]]);
}

// req: KEEP-03
async fn signals_go_after_their_time(db: TestDatabase) {
    let system = db.store.system();
    for n in 0..10 {
        system.signal(signal(SignalKind::SessionEnded, n)).await.unwrap();
    }
    assert_eq!(system.reap_signals(at(0), 100).await.unwrap(), 0);
    assert_eq!(system.reap_signals(at(7), 4).await.unwrap(), 4);
    assert_eq!(system.reap_signals(at(7), 4).await.unwrap(), 3);
    let watch = Watch { signals_since: Some(at(0)), ..nothing() };
    let left: Vec<_> = system.watch(watch).await.unwrap().signals.iter().map(|signal| signal.created).collect();
    assert_eq!(left, [at(7), at(8), at(9)]);
}
