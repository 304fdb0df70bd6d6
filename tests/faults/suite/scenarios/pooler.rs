//! A connection pooler between the nodes and PostgreSQL.

use crate::faults::suite::checker::Allowed;
use crate::faults::suite::fleet::FleetPlan;
use crate::faults::suite::stage::{lasting, play};
use crate::support::database::{Backend, TestDatabase};
use crate::support::pgbouncer::PgBouncer;

/// The pooler is killed and started again; what runs goes on.
// req: KEEP-11, KEEP-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pgbouncer_restarts() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let mut bouncer = PgBouncer::before(&database.url, 8, &[]).await;
    let plan = FleetPlan {
        urls: vec![bouncer.url_of(&database.url); 3],
        config: "[database]\npooler = \"transaction\"\n".to_owned(),
        ..FleetPlan::of_three(&database.url)
    };
    let allowed = Allowed { hiccups: true, lost_runs: false };
    play("PgBouncer restarts", plan, allowed, async |stage| {
        let mut restarts = 0;
        lasting(stage, async |stage| {
            bouncer.restart().await;
            restarts += 1;
            let pause = stage.moment(500, 2_000);
            stage.pass(pause).await;
        })
        .await;
        stage.note(format!("{restarts} restarts"));
    })
    .await;
}
