//! Rounds that an upstream keeps itself, and their time.

use std::time::Duration;

use taskhold::domain::round::RequestDigest;
use taskhold::engine::{Called, Refusal};
use taskhold::executor::Attempt;

use super::directed::{end, form};
use super::harness::{World, call};
use super::rounds::{first, plain};
use crate::support::contract;
use crate::support::database::TestDatabase;

contract! {
    the_state_of_an_upstream_is_taken_once_and_in_time,
}

async fn the_state_of_an_upstream_is_taken_once_and_in_time(database: TestDatabase) {
    let world = World::new(database).await;
    let (node, caller) = (world.node().await, plain(&world, "a").await);
    let call = call("once");
    let digest = RequestDigest::new("tools/call", &call.name, call.arguments.as_str());
    let round = async || {
        let mut stream = first(&node, &caller, call.clone()).await;
        let work = node.script.next().await;
        assert!(work.host.takes_round("script", &[("k".to_owned(), form())], None).await);
        work.end(Attempt::Asked);
        match end(&mut stream).await {
            Called::Asks(round) => *round,
            other => panic!("it asks: {other:?}"),
        }
    };
    let take = async |state: &str| {
        let Some(passed) = node.engine.open_passed(&caller, &digest, state)? else { return Ok(None) };
        node.engine.spend_passed(&caller, &passed).await.map(|()| Some(passed))
    };
    let (early, late) = (round().await, round().await);
    assert_ne!(early.state, late.state);
    assert_eq!(early.questions, [("k".to_owned(), form())]);
    let timeout = world.rules.rounds.timeout;
    world.clock.advance(timeout - Duration::from_micros(1));
    assert_eq!(take(&early.state).await.unwrap().unwrap().state(), None);
    world.clock.advance(Duration::from_micros(1));
    for state in [&early.state, &late.state] {
        assert!(matches!(take(state).await, Err(Refusal::BadState)));
    }
    assert_eq!(take("none of these").await.unwrap(), None);
    // What was spent is forgotten when its state would not be taken any more.
    node.engine.reap_once().await.unwrap();
    assert_eq!(world.database.store.system().firsts().await.unwrap().round, None);
}
