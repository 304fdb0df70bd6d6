//! PostgreSQL goes away and comes back, on servers of the scenario's own.

use std::time::Duration;

use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};

use super::backends::KILL_ALL;
use crate::faults::suite::checker::Allowed;
use crate::faults::suite::fleet::FleetPlan;
use crate::faults::suite::stage::{lasting, play};
use crate::support::cluster::{Cluster, Stop};
use crate::support::database::run;

/// While the database is away requests are refused; what runs goes on.
const OF_OUTAGES: Allowed = Allowed { hiccups: true, lost_runs: false };
const PLACES: usize = 300;
/// What a killed server had acknowledged is on its disk.
const SETTINGS: [(&str, &str); 2] = [("fsync", "on"), ("max_connections", "300")];

// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_restart() {
    let cluster = Cluster::new(&SETTINGS).await;
    let database = cluster.create_database("taskhold").await;
    play("PostgreSQL restart", FleetPlan::of_three(&database), OF_OUTAGES, async |stage| {
        let mut restarts = 0;
        lasting(stage, async |stage| {
            // As by a crash, and as by an administrator, in turns.
            cluster.restart(if restarts % 2 == 0 { Stop::Immediate } else { Stop::Fast }).await;
            restarts += 1;
            let pause = stage.moment(1_000, 3_000);
            stage.pass(pause).await;
        })
        .await;
        stage.note(format!("{restarts} restarts"));
    })
    .await;
}

// req: KEEP-11, LIFE-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover() {
    let primary = Cluster::new(&SETTINGS).await;
    let database = primary.create_database("taskhold").await;
    let standby = primary.standby().await;
    let both = format!("{database},{}", standby.url("taskhold"));
    let plan = FleetPlan { urls: vec![both; 3], ..FleetPlan::of_three(&database) };
    play("failover to the standby", plan, OF_OUTAGES, async |_| {
        primary.stop(Stop::Kill).await;
        standby.promote().await;
    })
    .await;
}

/// Somebody else takes every place that the server has, while the nodes have to come again.
// req: KEEP-11, KEEP-18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_exhaustion() {
    let cluster = Cluster::new(&SETTINGS).await;
    let database = cluster.create_database("taskhold").await;
    let other = cluster.create_database("other").await;
    play("pool exhaustion", FleetPlan::of_three(&database), OF_OUTAGES, async |stage| {
        let of_nodes = KILL_ALL.replace("current_database()", "'taskhold'");
        let mut idle = Vec::new();
        let patience = tokio::time::Instant::now() + Duration::from_secs(30);
        while idle.len() < PLACES && tokio::time::Instant::now() < patience {
            if let Some(first) = idle.first_mut() {
                sqlx::raw_sql(sqlx::AssertSqlSafe(of_nodes.as_str())).execute(first).await.unwrap();
            }
            // Those who are refused try again, and take what the nodes lose.
            let wanted = (0..PLACES - idle.len()).map(|_| PgConnection::connect(&other));
            idle.extend(join_all(wanted).await.into_iter().flatten());
        }
        assert!(idle.len() > PLACES / 2, "only {} of {PLACES} places could be taken", idle.len());
        stage.pass(stage.plan.third()).await;
        stage.note(format!("{} of {PLACES} places taken", idle.len()));
        drop(idle);
        stage.until("a place to be free", async || PgConnection::connect(&other).await.is_ok()).await;
        run(&database, "SELECT 1").await;
    })
    .await;
}
