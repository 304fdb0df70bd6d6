//! No method with a context reaches another context's rows.

use futures_util::future::join_all;
use taskhold::domain::ids::NodeId;
use taskhold::domain::input::Answer;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::store::Ended;

use super::questions::{Running, then};
use super::sessions::new_session;
use super::{at, caller, claimed_task, contract, end, finish, new_task, result};
use crate::support::database::TestDatabase;

contract! {
    a_foreign_task_is_a_missing_task,
    a_foreign_session_is_a_missing_session,
    gathered_look_ups_keep_contexts_apart,
    a_foreign_question_is_an_unknown_question,
}

// req: AUTH-03, AUTH-04, AUTH-13
async fn a_foreign_task_is_a_missing_task(db: TestDatabase) {
    let (_, owner) = caller(&db.store, "owner").await;
    let (_, stranger) = caller(&db.store, "stranger").await;
    let (live, _) = claimed_task(at(0), NodeId::new());
    let (over, token) = claimed_task(at(0), NodeId::new());
    owner.create(live.clone()).await.unwrap();
    owner.create(over.clone()).await.unwrap();
    db.store.system().finish(finish(over.id, token, result("secret"), at(1))).await.unwrap();
    let before = (owner.outcome(live.id).await.unwrap(), owner.outcome(over.id).await.unwrap());
    for id in [live.id, over.id] {
        assert_eq!(stranger.get(id).await.unwrap(), None);
        assert_eq!(stranger.outcome(id).await.unwrap(), None);
        assert_eq!(stranger.cancel(id, end(Outcome::Cancelled, at(2))).await.unwrap(), Ended::Refused);
    }
    assert!(stranger.list(None, 100, at(2)).await.unwrap().is_empty());
    assert_eq!((owner.outcome(live.id).await.unwrap(), owner.outcome(over.id).await.unwrap()), before);
    assert_eq!(owner.list(None, 100, at(2)).await.unwrap().len(), 2);
    // An id that another context has already is not taken over.
    let stolen = taskhold::domain::work::NewTask { id: live.id, ..new_task(at(3)) };
    assert!(stranger.create(stolen).await.is_err());
    assert_eq!(owner.outcome(live.id).await.unwrap(), before.0);
}

// req: AUTH-03
async fn a_foreign_session_is_a_missing_session(db: TestDatabase) {
    let (context, owner) = caller(&db.store, "owner").await;
    let (_, stranger) = caller(&db.store, "stranger").await;
    let session = new_session(context, 1);
    owner.add_session(session.clone(), 10).await.unwrap();
    assert_eq!(stranger.session(session.id).await.unwrap(), None);
    stranger.touch_session(session.id, at(9)).await.unwrap();
    assert!(!stranger.end_session(session.id).await.unwrap());
    assert_eq!(owner.session(session.id).await.unwrap(), Some(session));
}

// req: AUTH-03
async fn gathered_look_ups_keep_contexts_apart(db: TestDatabase) {
    let mut callers = Vec::new();
    for n in 0..4 {
        let (context, scoped) = caller(&db.store, &format!("caller {n}")).await;
        let new = new_task(at(n));
        scoped.create(new.clone()).await.unwrap();
        callers.push((context, scoped, new.id));
    }
    // All at once, so that they share statements: everybody asks for everything.
    let looks = callers.iter().flat_map(|asking| callers.iter().map(move |owning| (asking, owning))).cycle().take(400);
    let found = join_all(looks.map(|((context, scoped, _), (owner, _, id))| async move {
        let (task, full) = tokio::join!(scoped.get(*id), scoped.outcome(*id));
        (context == owner, task.unwrap(), full.unwrap(), *id)
    }))
    .await;
    for (own, task, full, id) in found {
        assert_eq!(task.as_ref().map(|task| task.id), own.then_some(id));
        assert_eq!(full.map(|(task, _)| task), task);
    }
}

// req: AUTH-03, AUTH-04, INPUT-05, INPUT-14
async fn a_foreign_question_is_an_unknown_question(db: TestDatabase) {
    let work = Running::new(&db).await;
    let (_, stranger) = caller(&db.store, "stranger").await;
    let input = work.ask("secret", at(1)).await;
    let sent = work.send(input).await;
    let seen = async || {
        let delivered = work.scoped.delivered(sent).await.unwrap().unwrap();
        (work.task().await, work.scoped.open_inputs(work.task).await.unwrap(), delivered)
    };
    let before = seen().await;
    assert!(stranger.open_inputs(work.task).await.unwrap().is_empty());
    assert_eq!(stranger.delivered(sent).await.unwrap(), None);
    let forged = Answer::Result(RawJson::trusted("{}"));
    assert_eq!(stranger.answer_input(sent, forged.clone(), &then("forged"), at(2)).await.unwrap(), None);
    stranger.refuse_answer(sent).await.unwrap();
    assert!(!stranger.set_client_task(sent, RawJson::trusted("{}")).await.unwrap());
    assert_eq!(seen().await, before);
    let session = new_session(work.context, 1);
    work.scoped.add_session(session.clone(), 10).await.unwrap();
    stranger.set_log_level(session.id, "debug").await.unwrap();
    assert_eq!(work.scoped.session(session.id).await.unwrap().unwrap().log_level, None);
    work.scoped.set_log_level(session.id, "debug").await.unwrap();
    assert_eq!(work.scoped.session(session.id).await.unwrap().unwrap().log_level.as_deref(), Some("debug"));
    assert!(work.scoped.answer_input(sent, forged, &then("answered"), at(3)).await.unwrap().is_some());
}
