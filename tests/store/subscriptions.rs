//! Subscriptions to resources.

use taskhold::domain::ids::{NodeId, SessionId};
use taskhold::store::NewSubscription;

use super::sessions::new_session;
use super::{at, caller, contract};
use crate::support::database::TestDatabase;

contract! {
    subscriptions_belong_to_sessions_and_are_followed_by_one_node,
    subscriptions_of_a_session_are_bounded,
    what_a_dead_node_followed_is_taken_by_one_other,
}

fn new(session: SessionId, uri: &str, node: NodeId) -> NewSubscription {
    NewSubscription { session, uri: uri.to_owned(), upstream: "u".to_owned(), node, now: at(5) }
}

async fn subscriptions_belong_to_sessions_and_are_followed_by_one_node(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let (_, stranger) = caller(&db.store, "b").await;
    let system = db.store.system();
    let session = new_session(context, 1);
    scoped.add_session(session.clone(), 10).await.unwrap();
    let (here, there) = (NodeId::new(), NodeId::new());
    assert!(scoped.add_subscription(new(session.id, "x://1", here), 10).await.unwrap());
    assert!(!stranger.add_subscription(new(session.id, "x://2", here), 10).await.unwrap(), "not their session");
    assert!(!scoped.add_subscription(new(SessionId::new(), "x://2", here), 10).await.unwrap(), "no such session");
    let who = async |node, context, uri: &str| system.subscribers(node, context, "u", uri).await.unwrap();
    let mine = vec![(context, session.id)];
    assert_eq!(who(here, Some(context), "x://1").await, mine);
    assert_eq!(who(here, None, "x://1").await, mine, "over a link that is everybody's");
    assert!(who(there, None, "x://1").await.is_empty() && who(here, None, "x://2").await.is_empty());
    let (other, _) = caller(&db.store, "b").await;
    assert!(who(here, Some(other), "x://1").await.is_empty());
    // Another node takes it over.
    assert!(scoped.add_subscription(new(session.id, "x://1", there), 10).await.unwrap());
    assert_eq!(who(there, Some(context), "x://1").await, mine);
    assert!(who(here, None, "x://1").await.is_empty());
    assert_eq!(system.subscriptions_at(there).await.unwrap(), scoped.subscriptions(session.id).await.unwrap());
    assert_eq!(scoped.subscriptions(session.id).await.unwrap()[0].node, there);
    assert!(stranger.subscriptions(session.id).await.unwrap().is_empty());
    assert_eq!(stranger.end_subscription(session.id, "x://1").await.unwrap(), None);
    let ended = scoped.end_subscription(session.id, "x://1").await.unwrap().unwrap();
    assert_eq!((ended.upstream.as_str(), ended.node, ended.context), ("u", there, context));
    assert_eq!(scoped.end_subscription(session.id, "x://1").await.unwrap(), None);
    // A session that has ended is told nothing, and its rows go.
    assert!(scoped.add_subscription(new(session.id, "x://3", here), 10).await.unwrap());
    assert_eq!(system.reap_subscriptions(10).await.unwrap(), 0);
    assert!(scoped.end_session(session.id).await.unwrap());
    assert!(who(here, None, "x://3").await.is_empty() && system.subscriptions_at(here).await.unwrap().is_empty());
    assert_eq!(system.reap_subscriptions(10).await.unwrap(), 0);
    // Those of one that was reaped are left to the sweep, so many at a time.
    let unused = new_session(context, 1);
    scoped.add_session(unused.clone(), 10).await.unwrap();
    for uri in ["x://1", "x://2"] {
        assert!(scoped.add_subscription(new(unused.id, uri, here), 10).await.unwrap());
    }
    assert_eq!(system.reap_sessions(at(1_000_000), 10).await.unwrap(), 1);
    assert_eq!(system.reap_subscriptions(1).await.unwrap(), 1);
    assert_eq!(system.reap_subscriptions(10).await.unwrap(), 1);
}

async fn what_a_dead_node_followed_is_taken_by_one_other(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let session = new_session(context, 1);
    scoped.add_session(session.clone(), 10).await.unwrap();
    let (alive, retired, unknown) = (NodeId::new(), NodeId::new(), NodeId::new());
    for node in [alive, retired] {
        system.register_node(node).await.unwrap();
    }
    for (uri, node) in [("x://1", alive), ("x://2", retired), ("x://3", unknown)] {
        assert!(scoped.add_subscription(new(session.id, uri, node), 10).await.unwrap());
    }
    system.retire_node(retired).await.unwrap();
    let rows = system.orphaned_subscriptions(10).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.uri.as_str()).collect::<Vec<_>>(), ["x://2", "x://3"]);
    assert_eq!(system.orphaned_subscriptions(1).await.unwrap(), rows[..1]);
    for row in &rows {
        assert!(system.take_subscription(row.clone(), alive).await.unwrap());
        assert!(!system.take_subscription(row.clone(), alive).await.unwrap(), "another was first");
    }
    assert!(system.orphaned_subscriptions(10).await.unwrap().is_empty());
    assert_eq!(system.subscriptions_at(alive).await.unwrap().len(), 3);
}

async fn subscriptions_of_a_session_are_bounded(db: TestDatabase) {
    let (context, scoped) = caller(&db.store, "a").await;
    let session = new_session(context, 1);
    scoped.add_session(session.clone(), 10).await.unwrap();
    let node = NodeId::new();
    for uri in ["x://1", "x://2"] {
        assert!(scoped.add_subscription(new(session.id, uri, node), 2).await.unwrap());
    }
    assert!(!scoped.add_subscription(new(session.id, "x://3", node), 2).await.unwrap());
    assert!(scoped.add_subscription(new(session.id, "x://2", node), 2).await.unwrap(), "it has this one already");
    assert_eq!(scoped.subscriptions(session.id).await.unwrap().len(), 2);
}
