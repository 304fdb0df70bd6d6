//! The database ends connections on its own.

use crate::faults::suite::checker::Allowed;
use crate::faults::suite::fleet::FleetPlan;
use crate::faults::suite::stage::{lasting, play};
use crate::support::database::{Backend, TestDatabase};

/// Ends every connection to the database but the one that asks.
pub const KILL_ALL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
const KILL_SOME: &str = "SELECT pg_terminate_backend(pid) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    ORDER BY random() LIMIT 4) AS victims";

// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backend_kills() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let allowed = Allowed { hiccups: true, lost_runs: false };
    play("backend kills", FleetPlan::of_three(&database.url), allowed, async |stage| {
        let mut kills = 0;
        lasting(stage, async |stage| {
            database.sql(KILL_SOME).await;
            kills += 1;
            let pause = stage.moment(100, 400);
            stage.pass(pause).await;
        })
        .await;
        stage.note(format!("{kills} times up to 4 backends"));
    })
    .await;
}
