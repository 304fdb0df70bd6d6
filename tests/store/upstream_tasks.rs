//! Calls that were handed over to tasks of their upstreams.

use std::time::Duration;

use taskhold::domain::ids::{LeaseToken, NodeId};
use taskhold::domain::work::UpstreamTask;
use taskhold::store::Release;

use super::questions::Running;
use super::{at, contract, finish, result};
use crate::support::database::TestDatabase;

contract! {
    a_handed_over_call_is_known_to_later_attempts,
    only_the_lease_hands_over,
}

fn theirs(id: &str) -> UpstreamTask {
    UpstreamTask { id: id.to_owned(), session: Some("s-1".to_owned()), revision: "2025-11-25".to_owned() }
}

// req: KEEP-07
async fn a_handed_over_call_is_known_to_later_attempts(db: TestDatabase) {
    let work = Running::new(&db).await;
    assert_eq!(work.system.claim_of(work.task, work.token).await.unwrap().unwrap().handed_over, None);
    assert!(work.system.hand_over(work.task, work.token, theirs("one"), at(1)).await.unwrap());
    assert!(work.system.hand_over(work.task, work.token, theirs("one"), at(1)).await.unwrap());
    let claim = work.system.claim_of(work.task, work.token).await.unwrap().unwrap();
    assert_eq!(claim.handed_over, Some(theirs("one")));
    // Its node dies.
    let judge = NodeId::new();
    work.system.register_node(judge).await.unwrap();
    db.silence_nodes_but_the_newest(Duration::from_secs(60)).await;
    work.system.declare_dead(judge, Duration::from_secs(20)).await.unwrap();
    let orphans = work.system.orphans(None, 10).await.unwrap();
    assert_eq!(orphans, [claim]);
    let release = Release {
        task: work.task,
        token: work.token,
        not_before: at(2),
        counted: false,
        keep_inputs: true,
        message: "goes on".to_owned(),
        now: at(2),
    };
    assert!(work.system.release(release).await.unwrap());
    let claims = work.system.claim(judge, vec![LeaseToken::new()], at(3)).await.unwrap();
    assert_eq!((claims[0].lease.attempt, claims[0].handed_over.clone()), (1, Some(theirs("one"))));
    // The upstream may have lost it: handed over anew.
    let anew = UpstreamTask { session: None, ..theirs("two") };
    assert!(work.system.hand_over(work.task, claims[0].lease.token, anew.clone(), at(4)).await.unwrap());
    let handed_over =
        async || work.system.claim_of(work.task, claims[0].lease.token).await.unwrap().unwrap().handed_over;
    assert_eq!(handed_over().await, Some(anew));
    // Or is not to be handed over again.
    assert!(!work.system.take_back(work.task, LeaseToken::new()).await.unwrap());
    assert!(handed_over().await.is_some());
    assert!(work.system.take_back(work.task, claims[0].lease.token).await.unwrap());
    assert_eq!(handed_over().await, None);
}

// req: KEEP-09
async fn only_the_lease_hands_over(db: TestDatabase) {
    let work = Running::new(&db).await;
    assert!(!work.system.hand_over(work.task, LeaseToken::new(), theirs("zombie"), at(1)).await.unwrap());
    assert_eq!(work.system.claim_of(work.task, work.token).await.unwrap().unwrap().handed_over, None);
    work.system.finish(finish(work.task, work.token, result("x"), at(2))).await.unwrap();
    assert!(!work.system.hand_over(work.task, work.token, theirs("late"), at(3)).await.unwrap());
    assert_eq!(db.number("SELECT COUNT(*) FROM upstream_tasks").await, 0);
}
