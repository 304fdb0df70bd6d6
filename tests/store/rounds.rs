//! Rounds of stored calls.

use std::time::Duration;

use taskhold::domain::ids::{LeaseToken, TaskId};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::round::RoundState;
use taskhold::domain::work::{CallKey, NewTask};
use taskhold::store::{Given, NewInput, ScopedStore, Spend};

use super::questions::{Running, then};
use super::{at, caller, contract_everywhere, end, finish, new_task, result};
use crate::support::database::{Backend, TestDatabase, hold};

contract_everywhere! {
    a_round_is_given_back_once_and_in_time,
    a_round_that_is_open_keeps_its_number,
    the_first_rounds_of_a_context_are_bounded,
    rounds_that_expired_are_given_up_once,
    a_call_that_was_given_up_stays_so_until_it_has_ended,
    a_round_that_is_prolonged_meanwhile_is_not_given_up,
    a_call_that_became_a_task_is_not_given_up,
    calls_that_have_ended_take_no_places,
    a_name_stands_for_the_first_question_that_had_it,
    a_parked_call_shows_what_it_waits_for_and_its_end,
    a_round_that_nothing_is_stored_of_is_spent_once,
}

/// A stored call that is no task.
async fn parked(scoped: &ScopedStore) -> TaskId {
    let keyed = Some(CallKey { key: None, digest: "d".to_owned(), parked: true });
    let new = NewTask { keyed, ..new_task(at(0)) };
    assert!(scoped.create(new.clone()).await.unwrap());
    new.id
}

async fn spend(scoped: &ScopedStore, call: TaskId, round: u32, now: u64) -> bool {
    let state = RoundState { call, round };
    scoped.spend_round(Spend { state, now: at(now), until: at(now + 100) }).await.unwrap()
}

async fn a_round_is_given_back_once_and_in_time(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (_, other) = caller(&db.store, "b").await;
    let call = parked(&scoped).await;
    assert_eq!(scoped.give_round(call, at(10), 9).await.unwrap(), Given::Round(1));
    assert_eq!(other.give_round(call, at(10), 9).await.unwrap(), Given::Closed, "it is another's");
    assert!(!spend(&other, call, 1, 5).await && !spend(&scoped, call, 2, 5).await);
    assert!(!spend(&scoped, call, 1, 10).await, "its time has come");
    assert!(!spend(&scoped, TaskId::new(), 1, 5).await);
    assert_eq!(scoped.parked(call).await.unwrap().unwrap().round, Some((1, at(10))));
    let both = tokio::join!(spend(&scoped, call, 1, 9), spend(&scoped, call, 1, 9));
    assert!(both.0 ^ both.1, "{both:?}");
    assert_eq!(scoped.parked(call).await.unwrap().unwrap().round, None);
    assert!(!spend(&scoped, call, 1, 9).await);
    let state = RoundState { call, round: 1 };
    assert!(scoped.keep_round(state, at(500)).await.unwrap());
    assert_eq!(scoped.give_round(call, at(20), 9).await.unwrap(), Given::Round(2));
    assert!(!scoped.keep_round(state, at(500)).await.unwrap(), "there is a later one");
    assert!(!spend(&scoped, call, 1, 9).await);
    assert!(spend(&scoped, call, 2, 9).await);
    scoped.close_rounds(call).await.unwrap();
    assert!(!scoped.keep_round(RoundState { call, round: 2 }, at(500)).await.unwrap());
}

async fn a_round_that_is_open_keeps_its_number(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let call = parked(&scoped).await;
    for expires in [10, 20] {
        assert_eq!(scoped.give_round(call, at(expires), 9).await.unwrap(), Given::Round(1));
        assert_eq!(scoped.parked(call).await.unwrap().unwrap().round, Some((1, at(expires))));
    }
    assert!(spend(&scoped, call, 1, 15).await);
    // A call that has become a task has no rounds any more.
    scoped.unpark(call).await.unwrap();
    assert_eq!(scoped.give_round(call, at(30), 9).await.unwrap(), Given::Closed);
}

async fn the_first_rounds_of_a_context_are_bounded(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (_, other) = caller(&db.store, "b").await;
    let calls = [parked(&scoped).await, parked(&scoped).await, parked(&scoped).await];
    for call in &calls[..2] {
        assert_eq!(scoped.give_round(*call, at(10), 2).await.unwrap(), Given::Round(1));
    }
    assert_eq!(scoped.give_round(calls[2], at(10), 2).await.unwrap(), Given::Full);
    let theirs = parked(&other).await;
    assert_eq!(other.give_round(theirs, at(10), 2).await.unwrap(), Given::Round(1));
    assert!(spend(&scoped, calls[0], 1, 5).await);
    assert_eq!(scoped.give_round(calls[0], at(10), 2).await.unwrap(), Given::Round(2), "who has one goes on");
    scoped.close_rounds(calls[1]).await.unwrap();
    assert_eq!(scoped.give_round(calls[2], at(10), 2).await.unwrap(), Given::Round(1));
}

async fn rounds_that_expired_are_given_up_once(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let mut calls = Vec::new();
    for expires in [10, 11, 12, 100] {
        let call = parked(&scoped).await;
        scoped.give_round(call, at(expires), 9).await.unwrap();
        calls.push(call);
    }
    assert!(system.give_up_rounds(at(9), 10).await.unwrap().is_empty());
    let (one, two) = tokio::join!(system.give_up_rounds(at(12), 2), system.give_up_rounds(at(12), 2));
    let mut all = [one.unwrap(), two.unwrap()].concat();
    all.extend(system.give_up_rounds(at(12), 2).await.unwrap());
    all.sort_unstable();
    let mut expected = calls[..3].to_vec();
    expected.sort_unstable();
    assert_eq!(all, expected);
    assert_eq!(scoped.parked(calls[0]).await.unwrap().unwrap().round, None);
    assert!(scoped.parked(calls[3]).await.unwrap().unwrap().round.is_some());
}

async fn a_parked_call_shows_what_it_waits_for_and_its_end(db: TestDatabase) {
    let work = Running::new(&db).await;
    let (_, stranger) = caller(&db.store, "b").await;
    let question = Question { kind: InputKind::Roots, params: None };
    let name = Some("na\0me".to_owned());
    let new = NewInput { question: question.clone(), name, ..work.question("x", at(1)) };
    work.system.ask(new.clone()).await.unwrap();
    work.ask("y", at(2)).await;
    let found = work.scoped.parked(work.task).await.unwrap().unwrap();
    let names: Vec<_> = found.waiting.iter().map(|open| open.name.as_deref()).collect();
    assert_eq!(names, [Some("na\u{FFFD}me"), None]);
    assert_eq!((found.waiting[0].id, &found.waiting[0].question), (new.id, &question));
    assert_eq!((found.parked, &found.outcome, found.round), (false, &None, None));
    assert_eq!(stranger.parked(work.task).await.unwrap(), None);
    let answer = Answer::Result(RawJson::trusted(r#"{"roots":[]}"#));
    work.scoped.answer_waiting((work.task, new.id), answer, &then("on"), at(3)).await.unwrap().unwrap();
    assert_eq!(work.scoped.parked(work.task).await.unwrap().unwrap().waiting.len(), 1);
    work.system.finish(finish(work.task, work.token, result("me"), at(4))).await.unwrap();
    let found = work.scoped.parked(work.task).await.unwrap().unwrap();
    assert_eq!((found.outcome, found.waiting), (Some(result("me")), Vec::new()));
    assert!(found.task.updated >= at(4) - Duration::from_micros(1));
}

async fn a_round_that_nothing_is_stored_of_is_spent_once(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (_, other) = caller(&db.store, "b").await;
    let (id, spender) = (TaskId::new(), LeaseToken::new());
    let spend = |by| scoped.spend_passed(id, by, at(10));
    let both = tokio::join!(spend(LeaseToken::new()), spend(spender));
    assert!(both.0.unwrap() ^ *both.1.as_ref().unwrap());
    // Whoever was not told that it was written finds itself; nobody else does.
    assert_eq!(spend(spender).await.unwrap(), both.1.unwrap());
    assert!(!spend(LeaseToken::new()).await.unwrap());
    assert!(!other.spend_passed(id, spender, at(10)).await.unwrap());
    // It holds no place of a parked call, and goes when its time has come.
    let call = parked(&scoped).await;
    assert_eq!(scoped.give_round(call, at(100), 1).await.unwrap(), Given::Round(1));
    let system = db.store.system();
    assert_eq!(system.firsts().await.unwrap().round, Some(at(10)));
    assert!(system.give_up_rounds(at(10), 1).await.unwrap().is_empty(), "nothing runs for it");
    assert_eq!(system.firsts().await.unwrap().round, Some(at(100)));
}

async fn a_call_that_was_given_up_stays_so_until_it_has_ended(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let call = parked(&scoped).await;
    scoped.give_round(call, at(10), 9).await.unwrap();
    assert!(spend(&scoped, call, 1, 5).await);
    assert_eq!(system.give_up_rounds(at(105), 9).await.unwrap(), [call]);
    assert!(system.give_up_rounds(at(105), 9).await.unwrap().is_empty(), "somebody sees to it");
    // Who waited for it comes too late.
    assert!(!scoped.keep_round(RoundState { call, round: 1 }, at(500)).await.unwrap());
    assert_eq!(scoped.give_round(call, at(500), 9).await.unwrap(), Given::Closed);
    assert!(!scoped.unpark(call).await.unwrap());
    assert_eq!(scoped.get(call).await.unwrap(), None);
    // Whoever was to end it died.
    assert_eq!(system.give_up_rounds(at(165), 9).await.unwrap(), [call]);
    system.end(call, end(Outcome::Cancelled, at(166))).await.unwrap();
    assert!(system.give_up_rounds(at(226), 9).await.unwrap().is_empty());
    assert_eq!(db.number("SELECT COUNT(*) FROM parked_calls").await, 0);
}

async fn a_round_that_is_prolonged_meanwhile_is_not_given_up(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let call = parked(&scoped).await;
    scoped.give_round(call, at(10), 9).await.unwrap();
    assert!(spend(&scoped, call, 1, 5).await);
    let state = RoundState { call, round: 1 };
    if db.backend == Backend::Sqlite {
        // Here writers are one after the other.
        assert!(scoped.keep_round(state, at(500)).await.unwrap());
        assert!(db.store.system().give_up_rounds(at(105), 9).await.unwrap().is_empty());
        return;
    }
    let late = at(500).micros();
    let mut first = hold(&db.url, &format!("UPDATE parked_calls SET expires = {late}")).await;
    let system = db.store.system();
    let giving_up = tokio::spawn(async move { system.give_up_rounds(at(105), 9).await });
    let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while db.number(waits).await == 0 {
        assert!(!giving_up.is_finished(), "it waits for whoever writes that row");
        tokio::task::yield_now().await;
    }
    sqlx::raw_sql("COMMIT").execute(&mut first).await.unwrap();
    assert!(giving_up.await.unwrap().unwrap().is_empty());
    assert!(scoped.keep_round(state, at(600)).await.unwrap());
}

async fn a_call_that_became_a_task_is_not_given_up(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let call = parked(&scoped).await;
    scoped.give_round(call, at(10), 9).await.unwrap();
    assert!(spend(&scoped, call, 1, 5).await);
    assert!(scoped.unpark(call).await.unwrap());
    assert!(scoped.unpark(call).await.unwrap(), "it is one");
    let found = scoped.parked(call).await.unwrap().unwrap();
    assert_eq!((found.parked, found.round), (false, None));
    assert_eq!(db.number("SELECT COUNT(*) FROM parked_calls").await, 0);
    assert!(db.store.system().give_up_rounds(at(1000), 9).await.unwrap().is_empty());
    let (_, stranger) = caller(&db.store, "b").await;
    assert!(!stranger.unpark(call).await.unwrap());
}

async fn calls_that_have_ended_take_no_places(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let (ended, next) = (parked(&scoped).await, parked(&scoped).await);
    assert_eq!(scoped.give_round(ended, at(10), 1).await.unwrap(), Given::Round(1));
    assert_eq!(scoped.give_round(next, at(10), 1).await.unwrap(), Given::Full);
    db.store.system().end(ended, end(Outcome::Cancelled, at(5))).await.unwrap();
    assert_eq!(scoped.give_round(next, at(10), 1).await.unwrap(), Given::Round(1));
    assert_eq!(scoped.parked(ended).await.unwrap().unwrap().round, Some((1, at(10))), "its end can be fetched");
}

async fn a_name_stands_for_the_first_question_that_had_it(db: TestDatabase) {
    let work = Running::new(&db).await;
    let named = |text: &str, time| NewInput { name: Some("n".to_owned()), ..work.question(text, at(time)) };
    let names = async || {
        let found = work.scoped.parked(work.task).await.unwrap().unwrap();
        found.waiting.into_iter().map(|open| open.name).collect::<Vec<_>>()
    };
    let first = named("first", 1);
    work.system.ask(first.clone()).await.unwrap();
    work.system.ask(named("second", 2)).await.unwrap();
    assert_eq!(names().await, [Some("n".to_owned()), None]);
    // It is not let go when that one is answered.
    let answer = Answer::Result(RawJson::trusted("{}"));
    work.scoped.answer_waiting((work.task, first.id), answer, &then("on"), at(3)).await.unwrap().unwrap();
    assert_eq!(names().await, [None]);
}
