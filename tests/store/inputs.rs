//! Questions: asked, answered, taken, withdrawn.

use futures_util::future::join_all;
use taskhold::domain::ids::{DeliveryId, InputId, LeaseToken, NodeId};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::task::{Status, Task};
use taskhold::domain::work::UpstreamTask;
use taskhold::store::{Afterwards, Asked, Ended, NewInput, Note, Release, Taken};

use super::questions::{Running, answer, question, then};
use super::{at, contract_everywhere, end, finish, result};
use crate::support::database::TestDatabase;

contract_everywhere! {
    a_task_waits_until_every_question_is_answered,
    open_questions_and_given_answers_are_rows,
    an_answer_reaches_the_work_once,
    the_first_answer_wins,
    only_the_lease_asks_takes_and_withdraws,
    a_withdrawn_question_is_closed,
    the_end_of_a_task_closes_its_questions,
    what_is_asked_is_kept_to_the_byte,
    a_repeated_question_is_asked_anew_after_a_retry,
    a_given_answer_is_not_asked_for_again,
    an_answer_to_a_later_asking_of_the_same_is_for_nobody_who_begins_anew,
    of_questions_asked_at_once_each_keeps_the_task_saying_what_it_waits_for,
    a_call_that_was_handed_over_keeps_its_questions,
    equal_questions_are_adopted_one_by_one,
    a_waiting_task_says_what_it_waits_for,
    a_task_asks_so_often_in_its_life,
    an_adopted_question_keeps_its_deadline,
}

// req: INPUT-01, LIFE-08
async fn a_task_waits_until_every_question_is_answered(db: TestDatabase) {
    let work = Running::new(&db).await;
    let first = work.ask("first", at(1)).await;
    let task = work.task().await;
    assert_eq!((task.status, task.message.as_deref()), (Status::InputRequired, Some("waiting for input: first")));
    assert_eq!((task.updated, task.session), (at(1), Some(work.session)));
    let second = work.ask("second", at(2)).await;
    assert_eq!(work.open().await, [first, second]);
    assert_eq!(work.task().await.updated, at(2));
    let (one, two) = (work.send(first).await, work.send(second).await);
    assert_eq!(work.task().await.updated, at(2), "to be sent is no change of the question");

    let task = work.answer(two, "two", at(3)).await.expect("it is open");
    assert_eq!(task, work.task().await);
    let first_left = (Status::InputRequired, Some("waiting for input: first"));
    assert_eq!((task.status, task.message.as_deref()), first_left, "no question that is answered");
    assert_eq!(task.updated, at(3), "the open questions changed");
    assert_eq!(work.open().await, [first]);

    let task = work.answer(one, "one", at(4)).await.expect("it is open");
    assert_eq!(task, work.task().await);
    assert_eq!((task.status, task.message.as_deref(), task.updated), (Status::Working, Some("works again"), at(4)));
    assert!(work.open().await.is_empty());
    let third = work.ask("third", at(5)).await;
    assert_eq!(work.task().await.status, Status::InputRequired);
    work.answer(work.send(third).await, "three", at(6)).await.unwrap();
    assert_eq!(work.task().await.status, Status::Working);
}

// req: INPUT-03
async fn open_questions_and_given_answers_are_rows(mut db: TestDatabase) {
    let work = Running::new(&db).await;
    let (first, second) = (work.ask("first", at(1)).await, work.ask("second", at(2)).await);
    let sent = work.send(first).await;
    work.answer(sent, "one", at(3)).await.unwrap();
    drop(work.scoped);
    db.reopen().await;
    let (_, scoped) = super::caller(&db.store, "asked").await;
    let open = scoped.open_inputs(work.task).await.unwrap();
    assert_eq!(open.iter().map(|open| (open.id, &open.question)).collect::<Vec<_>>(), [(second, &question("second"))]);
    assert_eq!(scoped.get(work.task).await.unwrap().unwrap().status, Status::InputRequired);
    assert!(!scoped.delivered(sent).await.unwrap().unwrap().is_open);
    let system = db.store.system();
    assert_eq!(system.take_answer(first, work.token).await.unwrap(), Taken::Answer(answer("one")));
    assert_eq!(system.take_answer(second, work.token).await.unwrap(), Taken::Open);
}

// req: INPUT-05
async fn an_answer_reaches_the_work_once(db: TestDatabase) {
    let work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    assert_eq!(work.system.take_answer(input, work.token).await.unwrap(), Taken::Open);
    work.answer(work.send(input).await, "x", at(2)).await.unwrap();
    let updated = work.task().await.updated;
    let other = db.another().await.system();
    let takes = join_all((0..20).map(|n| {
        let system = if n % 2 == 0 { &work.system } else { &other };
        async { system.take_answer(input, work.token).await.unwrap() }
    }))
    .await;
    assert_eq!(takes.iter().filter(|taken| **taken == Taken::Answer(answer("x"))).count(), 1);
    assert_eq!(takes.iter().filter(|taken| **taken == Taken::Gone).count(), 19);
    assert_eq!(work.task().await.updated, updated);
    assert_eq!(work.system.take_answer(InputId::new(), work.token).await.unwrap(), Taken::Gone);
}

// req: INPUT-14, INPUT-05
async fn the_first_answer_wins(db: TestDatabase) {
    let work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    let early = work.send(input).await;
    work.system.let_go(work.node, &[early]).await.unwrap();
    let late = work.send(input).await;
    let other = db.another().await;
    let (_, there) = super::caller(&other, "asked").await;
    let answers =
        join_all((0..20).map(|n| {
            let (scoped, delivery) = if n % 2 == 0 { (&work.scoped, early) } else { (&there, late) };
            async move {
                scoped.answer_input(delivery, answer(&n.to_string()), &then("on"), at(2)).await.unwrap().map(|_| n)
            }
        }))
        .await;
    let won: Vec<_> = answers.into_iter().flatten().collect();
    assert_eq!(won.len(), 1, "{won:?}");
    assert_eq!(
        work.system.take_answer(input, work.token).await.unwrap(),
        Taken::Answer(answer(&won[0].to_string())),
        "what was accepted is what the work gets"
    );
    let before = work.task().await;
    for delivery in [early, late, DeliveryId::new()] {
        assert_eq!(work.answer(delivery, "late", at(9)).await, None);
        work.scoped.refuse_answer(delivery).await.unwrap();
        assert!(!work.scoped.set_client_task(delivery, RawJson::trusted("{}")).await.unwrap());
    }
    assert_eq!(work.task().await, before);
}

// req: KEEP-09
async fn only_the_lease_asks_takes_and_withdraws(db: TestDatabase) {
    let work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    let stranger = LeaseToken::new();
    let before = work.task().await;
    let asked = NewInput { token: stranger, ..work.question("y", at(2)) };
    assert_eq!(work.system.ask(asked).await.unwrap(), Asked::Refused);
    let same = NewInput { token: stranger, ..work.question("x", at(2)) };
    assert_eq!(work.system.ask(same).await.unwrap(), Asked::Refused);
    assert_eq!(work.system.take_answer(input, stranger).await.unwrap(), Taken::Gone);
    assert_eq!(work.system.withdraw_input(input, stranger, &then("no"), at(2)).await.unwrap(), None);
    assert_eq!((work.task().await, work.open().await), (before, vec![input]));
    work.answer(work.send(input).await, "x", at(3)).await.unwrap();
    assert_eq!(work.system.take_answer(input, stranger).await.unwrap(), Taken::Gone);
    assert_eq!(work.system.take_answer(input, work.token).await.unwrap(), Taken::Answer(answer("x")));
}

// req: INPUT-12
async fn a_withdrawn_question_is_closed(db: TestDatabase) {
    let work = Running::new(&db).await;
    let (first, second) = (work.ask("first", at(1)).await, work.ask("second", at(2)).await);
    let sent = work.send(first).await;
    let task = work.system.withdraw_input(first, work.token, &then("gave up"), at(3)).await.unwrap().unwrap();
    assert_eq!(
        (task.status, task.updated, task.message.as_deref()),
        (Status::InputRequired, at(3), Some("waiting for input: second"))
    );
    assert_eq!(work.system.withdraw_input(first, work.token, &then("again"), at(4)).await.unwrap(), None);
    assert_eq!(work.answer(sent, "late", at(4)).await, None);
    assert_eq!(work.system.take_answer(first, work.token).await.unwrap(), Taken::Gone);
    let delivered = work.scoped.delivered(sent).await.unwrap().unwrap();
    assert!(!delivered.is_open && delivered.input == first);
    assert!(!work.system.hold_input(work.hold(first)).await.unwrap());
    let task = work.system.withdraw_input(second, work.token, &then("gave up"), at(5)).await.unwrap().unwrap();
    assert_eq!((task.status, task.message.as_deref()), (Status::Working, Some("gave up")));
    assert_eq!(work.task().await, task);
}

// req: INPUT-12
async fn the_end_of_a_task_closes_its_questions(db: TestDatabase) {
    for cancelled in [true, false] {
        let work = Running::new(&db).await;
        let (held, free) = (work.ask("held", at(1)).await, work.ask("free", at(2)).await);
        let sent = work.send(held).await;
        let ended = if cancelled {
            work.scoped.cancel(work.task, end(Outcome::Cancelled, at(3))).await.unwrap()
        } else {
            work.system.finish(finish(work.task, work.token, result("x"), at(3))).await.unwrap()
        };
        assert!(matches!(ended, Ended::Done(_)));
        let task = work.task().await;
        assert!(work.open().await.is_empty());
        assert_eq!(work.answer(sent, "late", at(4)).await, None);
        assert!(!work.system.hold_input(work.hold(free)).await.unwrap());
        assert_eq!(work.system.take_answer(held, work.token).await.unwrap(), Taken::Gone);
        assert_eq!(work.system.withdraw_input(free, work.token, &then("no"), at(4)).await.unwrap(), None);
        assert_eq!(work.system.ask(work.question("more", at(4))).await.unwrap(), Asked::Refused);
        assert!(!work.scoped.delivered(sent).await.unwrap().unwrap().is_open);
        assert_eq!(work.task().await, task, "nothing follows an end");
    }
    assert_eq!(db.number("SELECT COUNT(*) FROM task_inputs WHERE state = 0 OR node IS NOT NULL").await, 0);
}

async fn what_is_asked_is_kept_to_the_byte(db: TestDatabase) {
    let work = Running::new(&db).await;
    let odd = RawJson::trusted(r#"{"b":1e400,"a":"\u0000\ud800","a ":-0.0,"ü":"🜚"}"#);
    let questions = [
        Question { kind: InputKind::Sampling, params: Some(odd.clone()) },
        Question { kind: InputKind::Roots, params: None },
    ];
    for (n, asked) in questions.iter().enumerate() {
        let new = NewInput {
            question: asked.clone(),
            deadline: Some(at(100)),
            message: "a\0b".to_owned(),
            ..work.question("", at(n as u64 + 1))
        };
        let stored = work.system.ask(new.clone()).await.unwrap();
        let Asked::Stored(task) = stored else { panic!("{stored:?}") };
        assert_eq!(task.message.as_deref(), Some("a\u{FFFD}b"));
        let open = work.scoped.open_inputs(work.task).await.unwrap();
        let [.., open] = open.as_slice() else { panic!("{open:?}") };
        assert_eq!((open.id, &open.question, open.created), (new.id, asked, new.now));
        assert_eq!((open.task, open.context, open.session), (work.task, work.context, Some(work.session)));
    }
    let open = work.open().await;
    for (input, given) in open.into_iter().zip([Answer::Result(odd.clone()), Answer::Error(odd)]) {
        let sent = work.send(input).await;
        work.scoped.answer_input(sent, given.clone(), &then("on"), at(9)).await.unwrap().unwrap();
        assert_eq!(work.system.take_answer(input, work.token).await.unwrap(), Taken::Answer(given));
    }
}

// req: LIFE-10
async fn a_waiting_task_says_what_it_waits_for(db: TestDatabase) {
    let mut work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    let asking = work.task().await;
    let progress = Some(RawJson::trusted(r#"{"progress":1}"#));
    let note = |now| Note {
        task: work.task,
        token: work.token,
        message: Some("1 of 2".to_owned()),
        progress: progress.clone(),
        now,
    };
    let noted = work.system.note(note(at(2))).await.unwrap().unwrap();
    assert_eq!((noted.message.as_deref(), noted.updated), (Some("waiting for input: x"), asking.updated));
    assert_eq!(noted.progress, progress);
    next_attempt(&mut work, true).await;
    assert_eq!(
        work.task().await.message.as_deref(),
        Some("waiting for input: x"),
        "while it waits for its attempt, and after"
    );
    let sent = work.send(input).await;
    work.answer(sent, "a", at(12)).await.unwrap();
    let note = Note { task: work.task, token: work.token, message: Some("1 of 2".to_owned()), progress, now: at(13) };
    assert_eq!(work.system.note(note).await.unwrap().unwrap().message.as_deref(), Some("1 of 2"));
}

/// Gives the lease back and claims the task again.
async fn next_attempt(work: &mut Running, keep_inputs: bool) {
    let release = Release {
        task: work.task,
        token: work.token,
        not_before: at(10),
        counted: true,
        keep_inputs,
        message: "tries again".to_owned(),
        now: at(10),
    };
    assert!(work.system.release(release).await.unwrap());
    work.node = NodeId::new();
    work.system.register_node(work.node).await.unwrap();
    let claims = work.system.claim(work.node, vec![LeaseToken::new()], at(11)).await.unwrap();
    let [claim] = claims.as_slice() else { panic!("{claims:?}") };
    assert_eq!(claim.lease.task, work.task);
    work.token = claim.lease.token;
}

async fn a_repeated_question_is_asked_anew_after_a_retry(db: TestDatabase) {
    let mut work = Running::new(&db).await;
    let (old, other) = (work.ask("x", at(1)).await, work.ask("y", at(2)).await);
    let sent = work.send(old).await;
    next_attempt(&mut work, false).await;
    let task = work.task().await;
    assert_eq!((task.status, task.message.as_deref()), (Status::Working, Some("running")));
    assert!(work.open().await.is_empty());
    assert_eq!(work.answer(sent, "late", at(12)).await, None);
    let new = work.ask("x", at(13)).await;
    assert!(new != old && new != other);
    assert_eq!(work.open().await, [new]);
}

async fn a_given_answer_is_not_asked_for_again(db: TestDatabase) {
    let mut work = Running::new(&db).await;
    let (given, used) = (work.ask("given", at(1)).await, work.ask("used", at(2)).await);
    for (input, text) in [(given, "given"), (used, "used")] {
        work.answer(work.send(input).await, text, at(3)).await.unwrap();
    }
    work.system.take_answer(used, work.token).await.unwrap();
    let lost = work.token;
    next_attempt(&mut work, false).await;
    let updated = work.task().await.updated;
    let asked = work.system.ask(work.question("given", at(12))).await.unwrap();
    assert_eq!(asked, Asked::Adopted { id: given, task: work.task().await, deadline: None });
    assert_eq!((work.task().await.status, work.task().await.updated), (Status::Working, updated));
    assert_eq!(work.system.take_answer(given, lost).await.unwrap(), Taken::Gone);
    assert_eq!(work.system.take_answer(given, work.token).await.unwrap(), Taken::Answer(answer("given")));
    // Kind and params must be the same.
    let roots = Question { kind: InputKind::Roots, ..question("given") };
    for question in [question("used"), question("given"), roots] {
        let asked = work.system.ask(NewInput { question, ..work.question("", at(13)) }).await.unwrap();
        assert!(matches!(asked, Asked::Stored(_)), "an answer is used once: {asked:?}");
    }
}

async fn an_answer_to_a_later_asking_of_the_same_is_for_nobody_who_begins_anew(db: TestDatabase) {
    for is_followed in [false, true] {
        let mut work = Running::new(&db).await;
        if is_followed {
            let to = UpstreamTask { id: "\"t\"".to_owned(), session: None, revision: "2025-11-25".to_owned() };
            assert!(work.system.hand_over(work.task, work.token, to, at(1)).await.unwrap());
        }
        let mut rounds = Vec::new();
        for round in ["one", "two"] {
            let input = work.ask("the next one?", at(2)).await;
            work.answer(work.send(input).await, round, at(3)).await.unwrap();
            rounds.push(input);
        }
        work.system.take_answer(rounds[0], work.token).await.unwrap();
        next_attempt(&mut work, is_followed).await;
        let asked = work.system.ask(work.question("the next one?", at(12))).await.unwrap();
        if is_followed {
            // Its upstream waits for just this answer.
            assert!(matches!(asked, Asked::Adopted { id, .. } if id == rounds[1]), "{asked:?}");
        } else {
            assert!(matches!(asked, Asked::Stored(_)), "{asked:?}");
            assert_eq!(work.system.take_answer(rounds[1], work.token).await.unwrap(), Taken::Gone);
        }
        end_of(&work).await;
    }
}

async fn end_of(work: &Running) {
    let ended = work.system.finish(finish(work.task, work.token, result("x"), at(20))).await.unwrap();
    assert!(matches!(ended, Ended::Done(_)));
}

async fn of_questions_asked_at_once_each_keeps_the_task_saying_what_it_waits_for(db: TestDatabase) {
    let work = Running::new(&db).await;
    let mut asked = Vec::new();
    for (text, n) in [("a", 1), ("b", 2), ("c", 3)] {
        asked.push(work.ask(text, at(n)).await);
    }
    let says = |task: &Task| task.message.clone().unwrap();
    let task = work.answer(work.send(asked[2]).await, "c", at(4)).await.unwrap();
    assert_eq!(says(&task), "waiting for input: b");
    let task = work.answer(work.send(asked[0]).await, "a", at(5)).await.unwrap();
    assert_eq!(says(&task), "waiting for input: b");
    let long = Question { params: Some(RawJson::trusted(r#"{"message":"0123456789"}"#)), ..question("") };
    let asked_long = work.system.ask(NewInput { question: long, ..work.question("d", at(6)) }).await.unwrap();
    assert!(matches!(asked_long, Asked::Stored(_)));
    let short = Afterwards { limit: 24, ..then("gave up") };
    let task = work.system.withdraw_input(asked[1], work.token, &short, at(7)).await.unwrap().unwrap();
    assert!(says(&task).starts_with("waiting for input: 0") && says(&task).len() <= 24, "{}", says(&task));
}

// req: INPUT-03
async fn a_call_that_was_handed_over_keeps_its_questions(db: TestDatabase) {
    let mut work = Running::new(&db).await;
    let (first, second) = (work.ask("first", at(1)).await, work.ask("second", at(2)).await);
    let sent = work.send(first).await;
    next_attempt(&mut work, true).await;
    assert_eq!(work.task().await.status, Status::InputRequired);
    // Answered while nobody had asked for it again, and after that.
    work.answer(sent, "one", at(12)).await.expect("it is still open");
    let again = work.question("second", at(13));
    let asked = work.system.ask(again.clone()).await.unwrap();
    assert_eq!(asked, Asked::Adopted { id: second, task: work.task().await, deadline: None });
    assert_eq!(work.open().await, [second]);
    work.answer(work.send(second).await, "two", at(14)).await.unwrap();
    assert_eq!(work.task().await.status, Status::Working);
    assert!(
        matches!(work.system.ask(work.question("first", at(15))).await.unwrap(), Asked::Adopted { id, .. } if id == first)
    );
    for (input, text) in [(first, "one"), (second, "two")] {
        assert_eq!(work.system.take_answer(input, work.token).await.unwrap(), Taken::Answer(answer(text)));
    }
}

async fn equal_questions_are_adopted_one_by_one(db: TestDatabase) {
    let mut work = Running::new(&db).await;
    let twins = [work.ask("x", at(1)).await, work.ask("x", at(2)).await];
    assert_ne!(twins[0], twins[1], "an attempt may ask the same twice");
    next_attempt(&mut work, true).await;
    for twin in twins {
        let asked = work.system.ask(work.question("x", at(12))).await.unwrap();
        assert!(matches!(asked, Asked::Adopted { id, .. } if id == twin), "{asked:?}");
    }
    let asked = work.system.ask(work.question("x", at(13))).await.unwrap();
    assert!(matches!(asked, Asked::Stored(_)), "{asked:?}");
    assert_eq!(work.open().await.len(), 3);
    // The same write again is the same question.
    let again = work.question("x", at(14));
    for _ in 0..2 {
        assert!(matches!(work.system.ask(again.clone()).await.unwrap(), Asked::Stored(_)));
    }
    assert_eq!(work.open().await.len(), 4);
}

async fn a_task_asks_so_often_in_its_life(db: TestDatabase) {
    let mut work = Running::new(&db).await;
    let most = |new: NewInput| NewInput { most: 2, ..new };
    let given = work.ask("given", at(1)).await;
    work.answer(work.send(given).await, "given", at(2)).await.unwrap();
    next_attempt(&mut work, false).await;
    let last = most(work.question("last", at(12)));
    assert!(matches!(work.system.ask(last.clone()).await.unwrap(), Asked::Stored(_)));
    let before = work.task().await;
    assert_eq!(work.system.ask(most(work.question("more", at(13)))).await.unwrap(), Asked::Full);
    assert_eq!((work.task().await, work.open().await), (before, vec![last.id]), "nothing changes");
    // What has been asked before is no further question.
    assert!(matches!(work.system.ask(last).await.unwrap(), Asked::Stored(_)));
    let again = work.system.ask(most(work.question("given", at(14)))).await.unwrap();
    assert!(matches!(again, Asked::Adopted { id, .. } if id == given), "{again:?}");
    let stranger = NewInput { token: LeaseToken::new(), ..most(work.question("more", at(15))) };
    assert_eq!(work.system.ask(stranger).await.unwrap(), Asked::Refused);
}

// req: INPUT-11
async fn an_adopted_question_keeps_its_deadline(db: TestDatabase) {
    let mut work = Running::new(&db).await;
    let asked = NewInput { deadline: Some(at(100)), ..work.question("x", at(1)) };
    work.system.ask(asked.clone()).await.unwrap();
    for round in 0..2 {
        next_attempt(&mut work, true).await;
        let again = NewInput { deadline: Some(at(200 + round)), ..work.question("x", at(50)) };
        let adopted = work.system.ask(again).await.unwrap();
        assert_eq!(adopted, Asked::Adopted { id: asked.id, task: work.task().await, deadline: Some(at(100)) });
    }
}
