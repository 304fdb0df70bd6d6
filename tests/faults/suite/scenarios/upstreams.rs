//! Servers behind the service that are killed, or stop and go on.

use rustix::process::Signal;

use crate::faults::suite::checker::Allowed;
use crate::faults::suite::fleet::FleetPlan;
use crate::faults::suite::stage::{Stage, lasting, play};
use crate::support::database::{Backend, TestDatabase};
use crate::support::processes::Process;

/// Some upstream of some node; the processes between it and the node are supervisors.
fn victim(stage: &mut Stage) -> Option<Process> {
    let node = stage.any_node();
    let node = stage.fleet.pid(node);
    let family = Process::family_of(node);
    let servers: Vec<_> =
        family.into_iter().filter(|process| process.parent().is_some_and(|parent| !parent.is(node))).collect();
    let count = u64::try_from(servers.len()).unwrap();
    (count > 0).then(|| servers[usize::try_from(stage.rng.below(count)).unwrap()])
}

// req: EXEC-14, EXEC-23, KEEP-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_kills() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let allowed = Allowed { hiccups: false, lost_runs: true };
    play("upstream kills", FleetPlan::of_three(&database.url), allowed, async |stage| {
        let mut kills = 0;
        lasting(stage, async |stage| {
            kills += usize::from(victim(stage).is_some_and(|victim| victim.kill()));
            let pause = stage.moment(100, 500);
            stage.pass(pause).await;
        })
        .await;
        stage.note(format!("{kills} kills"));
    })
    .await;
}

// req: EXEC-14
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_stops() {
    let database = TestDatabase::new(Backend::Postgres).await;
    play("upstream stops", FleetPlan::of_three(&database.url), Allowed::default(), async |stage| {
        let mut stops = 0;
        lasting(stage, async |stage| {
            let Some(victim) = victim(stage) else { return };
            stops += usize::from(victim.signal(Signal::STOP));
            let pause = stage.moment(300, 1_000);
            stage.pass(pause).await;
            victim.signal(Signal::CONT);
        })
        .await;
        stage.note(format!("{stops} stops"));
    })
    .await;
}
