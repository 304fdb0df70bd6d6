//! Legacy sessions.

use std::time::Duration;

use taskhold::domain::ids::{ContextId, NodeId, SessionId, StreamId};
use taskhold::domain::json::RawJson;
use taskhold::domain::session::{Session, SessionStream};
use taskhold::store::StreamPlace;

use super::{at, caller, contract_everywhere};
use crate::support::database::TestDatabase;

contract_everywhere! {
    sessions_are_kept_used_and_ended,
    a_session_knows_the_node_of_its_last_stream,
    idle_sessions_are_reaped,
    the_sessions_of_a_context_are_bounded,
    a_session_with_an_open_stream_makes_no_room,
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
        initialized: false,
        stream: None,
        log_level: None,
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

// req: HTTP-07
async fn a_session_with_an_open_stream_makes_no_room(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let [listening, unused, newer, newest] = [1, 2, 3, 4].map(|seconds| new_session(context, seconds));
    for session in [&listening, &unused] {
        scoped.add_session(session.clone(), 2).await.unwrap();
    }
    let stream = SessionStream { id: StreamId::new(), node: NodeId::new() };
    assert!(scoped.open_session_stream(listening.id, stream).await.unwrap());
    scoped.add_session(newer, 2).await.unwrap();
    assert!(scoped.session(listening.id).await.unwrap().is_some(), "it is in use");
    scoped.add_session(newest, 2).await.unwrap();
    assert_eq!(scoped.session(unused.id).await.unwrap(), None);
    assert!(scoped.session(listening.id).await.unwrap().is_some(), "it is in use");
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

async fn a_session_knows_the_node_of_its_last_stream(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let (system, session) = (db.store.system(), new_session(context, 5));
    scoped.add_session(session.clone(), 10).await.unwrap();
    let node = async || scoped.session(session.id).await.unwrap().unwrap().stream;
    let at_node = NodeId::new();
    let [old, new] = [StreamId::new(), StreamId::new()].map(|id| SessionStream { id, node: at_node });
    assert_eq!(node().await, None);
    assert!(scoped.open_session_stream(session.id, old).await.unwrap());
    assert_eq!(node().await, Some(old));
    assert!(scoped.open_session_stream(session.id, new).await.unwrap());
    system.close_session_stream(context, session.id, old.id).await.unwrap();
    assert_eq!(node().await, Some(new), "the end of an earlier stream is not that of a later one on the same node");
    let place = StreamPlace { context, session: session.id, last_used: at(5), stream: Some(new) };
    assert_eq!(system.session_streams(&[session.id, SessionId::new()]).await.unwrap(), [place]);
    assert_eq!(system.streams_at(at_node).await.unwrap(), [place]);
    let (foreign, stranger) = caller(&db.store, "b").await;
    assert!(!stranger.open_session_stream(session.id, old).await.unwrap());
    system.close_session_stream(foreign, session.id, new.id).await.unwrap();
    assert_eq!(node().await, Some(new), "no other context moves it");
    assert!(!scoped.open_session_stream(SessionId::new(), old).await.unwrap(), "there is no such session");
    system.close_session_stream(context, session.id, new.id).await.unwrap();
    assert_eq!(node().await, None);
    assert!(system.streams_at(at_node).await.unwrap().is_empty());
    assert_eq!(scoped.session(session.id).await.unwrap(), Some(session));
}
