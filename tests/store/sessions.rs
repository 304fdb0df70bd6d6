//! Legacy sessions.

use std::time::Duration;

use taskhold::domain::ids::{ContextId, SessionId};
use taskhold::domain::json::RawJson;
use taskhold::domain::session::Session;

use super::{at, caller, contract};
use crate::support::database::TestDatabase;

contract! {
    sessions_are_kept_used_and_ended,
    idle_sessions_are_reaped,
    the_sessions_of_a_context_are_bounded,
    a_client_that_leaves_early_does_not_get_around_the_bound,
}

pub fn new_session(context: ContextId, seconds: u64) -> Session {
    Session {
        id: SessionId::new(),
        context,
        revision: "2025-11-25".to_owned(),
        capabilities: RawJson::trusted(r#"{"tasks":{},"x":1.0}"#),
        created: at(seconds),
        last_used: at(seconds),
    }
}

// req: HTTP-07
async fn sessions_are_kept_used_and_ended(mut db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let session = new_session(context, 5);
    scoped.add_session(session.clone(), 10).await.unwrap();
    db.reopen().await;
    let (_, scoped) = caller(&db.store, "a").await;
    assert_eq!(scoped.session(session.id).await.unwrap(), Some(session.clone()));
    scoped.touch_session(session.id, at(9)).await.unwrap();
    assert_eq!(scoped.session(session.id).await.unwrap().unwrap().last_used, at(9));
    scoped.touch_session(session.id, at(7)).await.unwrap();
    assert_eq!(scoped.session(session.id).await.unwrap().unwrap().last_used, at(9), "never back");
    assert!(scoped.end_session(session.id).await.unwrap());
    assert!(!scoped.end_session(session.id).await.unwrap());
    assert_eq!(scoped.session(session.id).await.unwrap(), None);
}

async fn idle_sessions_are_reaped(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let sessions: Vec<_> = (1..=5).map(|seconds| new_session(context, seconds)).collect();
    for session in &sessions {
        scoped.add_session(session.clone(), 10).await.unwrap();
    }
    let system = db.store.system();
    assert_eq!(system.reap_sessions(at(1), 10).await.unwrap(), 0, "only those before");
    assert_eq!(system.reap_sessions(at(4), 2).await.unwrap(), 2);
    assert_eq!(system.reap_sessions(at(4), 2).await.unwrap(), 1);
    assert_eq!(scoped.session(sessions[2].id).await.unwrap(), None);
    assert!(scoped.session(sessions[3].id).await.unwrap().is_some());
}

// A caller that never ends its sessions has only so many, and others are not touched.
async fn the_sessions_of_a_context_are_bounded(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let (other, others) = caller(&db.store, "b").await;
    let foreign = new_session(other, 0);
    others.add_session(foreign.clone(), 3).await.unwrap();
    let sessions: Vec<_> = (1..=5).map(|seconds| new_session(context, seconds)).collect();
    for session in &sessions[..4] {
        scoped.add_session(session.clone(), 3).await.unwrap();
    }
    assert_eq!(scoped.session(sessions[0].id).await.unwrap(), None, "the oldest made room");
    scoped.touch_session(sessions[1].id, at(9)).await.unwrap();
    scoped.add_session(sessions[4].clone(), 3).await.unwrap();
    let kept = [1, 3, 4];
    for (at, session) in sessions.iter().enumerate() {
        assert_eq!(scoped.session(session.id).await.unwrap().is_some(), kept.contains(&at), "{at}");
    }
    assert!(others.session(foreign.id).await.unwrap().is_some());
}

async fn a_client_that_leaves_early_does_not_get_around_the_bound(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    // The last ones leave soonest, so that none of them brings up what those before have left out.
    for seconds in 1..=40 {
        let add = scoped.add_session(new_session(context, seconds), 1);
        let leave = async {
            for _ in seconds..=40 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            added = add => added.unwrap(),
            () = leave => {}
        }
    }
    let one_left = async {
        while db.number("SELECT COUNT(*) FROM sessions").await != 1 {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), one_left).await.is_ok());
}
