//! Nodes that are killed, stopped and replaced.

use rustix::process::Signal;

use crate::faults::suite::checker::Allowed;
use crate::faults::suite::fleet::FleetPlan;
use crate::faults::suite::stage::{lasting, play};
use crate::support::database::{Backend, TestDatabase};

/// Connections break, and what ran on a node that is gone is lost with it.
const OF_KILLS: Allowed = Allowed { hiccups: true, lost_runs: true };
/// As long as the balancer may take to learn that a node is no longer ready.
const LEAVING: &str = "[server]\ndrain_delay = \"2s\"\n";

// req: KEEP-06, KEEP-07, LIFE-04, LIFE-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_kill() {
    let database = TestDatabase::new(Backend::Postgres).await;
    play("node kill", FleetPlan::of_three(&database.url), OF_KILLS, async |stage| {
        let node = stage.any_node();
        stage.fleet.kill(node).await;
        if stage.plan.is_short {
            stage.fleet.silence(node).await;
        }
    })
    .await;
}

// req: KEEP-06, KEEP-07, LIFE-04, LIFE-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_node_kills() {
    let database = TestDatabase::new(Backend::Postgres).await;
    play("repeated node kills", FleetPlan::of_three(&database.url), OF_KILLS, async |stage| {
        let mut kills = 0;
        lasting(stage, async |stage| {
            let node = stage.any_node();
            stage.fleet.kill(node).await;
            if stage.plan.is_short {
                stage.fleet.silence(node).await;
            }
            stage.fleet.launch(node).await;
            kills += 1;
            let pause = stage.moment(300, 1_500);
            stage.pass(pause).await;
        })
        .await;
        stage.note(format!("{kills} kills"));
    })
    .await;
}

// req: KEEP-10
// field case: F-DUR-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let plan = FleetPlan { config: LEAVING.to_owned(), ..FleetPlan::of_three(&database.url) };
    play("rolling restart", plan, Allowed::default(), async |stage| {
        let mut restarts = 0;
        lasting(stage, async |stage| {
            for node in 0..stage.fleet.len() {
                let status = stage.fleet.terminate(node).await;
                assert!(status.success(), "node {node}: {status}");
                stage.fleet.launch(node).await;
                restarts += 1;
                let attempts = "SELECT COALESCE(MAX(attempt), 0)
                    FROM (SELECT attempt FROM task_live UNION ALL SELECT attempt FROM task_outcomes) a";
                assert!(database.number(attempts).await <= 1, "a hand-back is counted as an attempt");
            }
        })
        .await;
        let retried = stage.fleet.balancer.retried();
        stage.note(format!("{restarts} restarts, {retried} connections refused and made elsewhere"));
    })
    .await;
}

/// Stopped, not dead: others take over what it held, and when it goes on it has to find that out before it speaks.
// req: KEEP-09
// field case: F-Q-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_past_the_lease() {
    let database = TestDatabase::new(Backend::Postgres).await;
    play("stop past the lease", FleetPlan::of_three(&database.url), OF_KILLS, async |stage| {
        let node = stage.any_node();
        let dead = "SELECT COUNT(*) FROM nodes WHERE dead = 1";
        stage.fleet.signal(node, Signal::STOP);
        if stage.plan.is_short {
            stage.fleet.silence(node).await;
        }
        stage.until("the stopped node to be judged", async || database.number(dead).await > 0).await;
        stage.pass(stage.plan.third() / 4).await;
        stage.fleet.signal(node, Signal::CONT);
    })
    .await;
}
