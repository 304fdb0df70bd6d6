//! Who is alive, and what the dead leave behind.

use std::time::Duration;

use taskhold::domain::ids::{NodeId, StreamId, TaskId};
use taskhold::domain::outcome::Outcome;
use taskhold::domain::session::SessionStream;
use taskhold::store::{Beat, Hold, NewSubscription};

use super::questions::Running;
use super::sessions::new_session;
use super::{at, caller, claimed_task, contract_everywhere, finish, new_task};
use crate::support::database::TestDatabase;

contract_everywhere! {
    a_heartbeat_tells_the_databases_time,
    only_the_silent_are_declared_dead,
    the_dead_leave_orphans,
    what_may_be_recovered_is_known_by_one_look,
    a_retired_node_is_forgotten_when_nothing_is_left,
}

const SECOND: Duration = Duration::from_secs(1);

/// Makes a node look as if it had last been heard of so long ago.
async fn silence(db: &TestDatabase, node: NodeId, seconds: u64) {
    let id = db.id(node.as_uuid());
    db.sql(&format!("UPDATE nodes SET heartbeat = heartbeat - {} WHERE id = {id}", seconds * 1_000_000)).await;
}

async fn a_heartbeat_tells_the_databases_time(db: TestDatabase) {
    let system = db.store.system();
    let node = NodeId::new();
    let before = taskhold::domain::clock::Clock::now(&*taskhold::domain::clock::SystemClock::new());
    let registered = system.register_node(node).await.unwrap();
    let Beat { database_now, alive } = system.heartbeat(node).await.unwrap();
    assert!(alive && database_now >= registered);
    assert!(database_now.since(before) < 60 * SECOND && before.since(database_now) < 60 * SECOND);
    assert!(!system.heartbeat(NodeId::new()).await.unwrap().alive, "nobody knows this node");
}

async fn only_the_silent_are_declared_dead(db: TestDatabase) {
    let system = db.store.system();
    let [judge, fresh, silent] = [NodeId::new(), NodeId::new(), NodeId::new()];
    for node in [judge, fresh, silent] {
        system.register_node(node).await.unwrap();
    }
    silence(&db, silent, 30).await;
    silence(&db, judge, 30).await;
    silence(&db, fresh, 10).await;
    assert_eq!(system.declare_dead(judge, 20 * SECOND).await.unwrap(), [silent]);
    assert_eq!(system.declare_dead(judge, 20 * SECOND).await.unwrap(), []);
    assert!(!system.heartbeat(silent).await.unwrap().alive, "death is final");
    assert!(system.heartbeat(fresh).await.unwrap().alive);
    assert!(system.heartbeat(judge).await.unwrap().alive);
}

// req: KEEP-09
async fn the_dead_leave_orphans(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let [judge, dead, unknown] = [NodeId::new(), NodeId::new(), NodeId::new()];
    system.register_node(judge).await.unwrap();
    system.register_node(dead).await.unwrap();
    let mut orphans: Vec<TaskId> = Vec::new();
    for node in [dead, unknown, dead, unknown, dead] {
        let (new, _) = claimed_task(at(0), node);
        orphans.push(new.id);
        scoped.create(new).await.unwrap();
    }
    let (own, _) = claimed_task(at(0), judge);
    scoped.create(own.clone()).await.unwrap();
    scoped.create(new_task(at(0))).await.unwrap();
    silence(&db, dead, 30).await;
    system.declare_dead(judge, 20 * SECOND).await.unwrap();
    orphans.sort();
    let all = system.orphans(None, 100).await.unwrap();
    assert_eq!(all.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), orphans);
    let first = system.orphans(None, 2).await.unwrap();
    let next = system.orphans(Some(first[1].lease.task), 100).await.unwrap();
    assert_eq!(first.iter().chain(&next).map(|claim| claim.lease.task).collect::<Vec<_>>(), orphans);
    let lease = all[0].lease;
    assert_eq!(system.claim_of(lease.task, lease.token).await.unwrap().unwrap(), all[0]);
    assert_eq!(system.held(judge).await.unwrap().iter().map(|lease| lease.task).collect::<Vec<_>>(), [own.id]);
}

async fn what_may_be_recovered_is_known_by_one_look(db: TestDatabase) {
    let work = Running::new(&db).await;
    let system = db.store.system();
    let [judge, dead] = [NodeId::new(), NodeId::new()];
    for node in [judge, dead, work.node] {
        system.register_node(node).await.unwrap();
    }
    let input = work.ask("x", at(1)).await;
    let session = new_session(work.context, 1);
    let id = session.id;
    work.scoped.add_session(session, 10).await.unwrap();
    let lost = async || system.anything_lost(judge, 20 * SECOND).await.unwrap();
    // All that the living have is no loss, and one that judges says nothing of itself.
    work.scoped.open_session_stream(id, SessionStream { id: StreamId::new(), node: judge }).await.unwrap();
    let subscription =
        |node| NewSubscription { session: id, uri: "x://1".to_owned(), upstream: "u".to_owned(), node, now: at(1) };
    work.scoped.add_subscription(subscription(judge), 10).await.unwrap();
    silence(&db, judge, 30).await;
    silence(&db, dead, 10).await;
    assert!(!lost().await);
    silence(&db, dead, 20).await;
    assert!(lost().await, "it is silent");
    system.declare_dead(judge, 20 * SECOND).await.unwrap();
    assert!(!lost().await, "it had nothing");
    for of in [dead, NodeId::new()] {
        let (new, token) = claimed_task(at(0), of);
        work.scoped.create(new.clone()).await.unwrap();
        assert!(lost().await, "a lease");
        system.finish(finish(new.id, token, Outcome::Cancelled, at(1))).await.unwrap();
        assert!(!lost().await);
        let delivery = Hold { node: of, ..work.hold(input) };
        assert!(system.hold_input(delivery.clone()).await.unwrap());
        assert!(lost().await, "a question");
        system.let_go(of, &[delivery.delivery]).await.unwrap();
        assert!(!lost().await);
        let stream = SessionStream { id: StreamId::new(), node: of };
        work.scoped.open_session_stream(id, stream).await.unwrap();
        assert!(lost().await, "a stream");
        system.close_session_stream(work.context, id, stream.id).await.unwrap();
        assert!(!lost().await);
        work.scoped.add_subscription(subscription(of), 10).await.unwrap();
        assert!(lost().await, "a subscription");
        work.scoped.add_subscription(subscription(judge), 10).await.unwrap();
        assert!(!lost().await);
    }
}

async fn a_retired_node_is_forgotten_when_nothing_is_left(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let [living, idle, busy] = [NodeId::new(), NodeId::new(), NodeId::new()];
    let mut now = at(0);
    for node in [living, idle, busy] {
        now = system.register_node(node).await.unwrap();
    }
    let (held, _) = claimed_task(at(0), busy);
    scoped.create(held).await.unwrap();
    system.retire_node(idle).await.unwrap();
    system.retire_node(busy).await.unwrap();
    assert!(!system.heartbeat(idle).await.unwrap().alive);
    assert_eq!(system.forget_nodes(now - 60 * SECOND).await.unwrap(), 0, "not yet");
    assert_eq!(system.forget_nodes(now + 60 * SECOND).await.unwrap(), 1, "only the one without leases");
    assert_eq!(db.number("SELECT COUNT(*) FROM nodes").await, 2);
}
