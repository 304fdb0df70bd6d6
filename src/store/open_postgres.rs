//! Connecting to PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use tokio::time::{Instant, timeout};

use super::link::{Doubt, Link, Own};
use super::open::OpenError;
use super::options::DatabaseOptions;
use super::postgres::{Listening, PostgresDialect};
use super::sql::Fault;
use super::sql_store::Connections;
use crate::domain::ids::NodeId;

/// Lanes of gathered writes and look-ups.
const WRITERS: u32 = 2;
const READERS: u32 = 2;
/// An exhausted pool refuses after this.
const ACQUIRE: Duration = Duration::from_secs(2);
/// How long the checks at the start may take.
const CHECKS: Duration = Duration::from_secs(20);
/// The oldest server, in the form of `server_version_num`.
const OLDEST_SERVER: i64 = 150_000;

/// How the service connects.
pub fn service_options(options: &DatabaseOptions, target: &PgConnectOptions) -> PgConnectOptions {
    // The server gives up a statement soon after we did, and a transaction whose owner went silent. Batches are small
    // and planned with guessed sizes: compiling them costs more than running them.
    base_options(options, target).options([
        ("statement_timeout", "6000"),
        ("idle_in_transaction_session_timeout", "15000"),
        ("jit", "off"),
        // Each statement reads a few rows in the order of one index. A planner that has no statistics yet, or old ones,
        // takes a large context for a small one: then it fetched all of it in the order of the disk and sorted it, for
        // one page (459 ms instead of 0.1 ms with 100,000 tasks).
        ("random_page_cost", "1.1"),
        ("enable_bitmapscan", "off"),
    ])
}

/// How migrations connect: they may take their time.
pub fn base_options(options: &DatabaseOptions, target: &PgConnectOptions) -> PgConnectOptions {
    let target = target.clone().application_name("taskhold");
    match &options.schema {
        Some(schema) => target.options([("search_path", schema)]),
        None => target,
    }
}

pub fn connections(options: &DatabaseOptions, target: &PgConnectOptions) -> Connections<PostgresDialect> {
    let service = service_options(options, target);
    let doubt = Arc::<Doubt>::default();
    let own = |_| Own::new(service.clone(), &doubt);
    let of_pool = Arc::clone(&doubt);
    // One of the owned ones is the heartbeat's, one listens.
    let shared = options.max_connections.saturating_sub(WRITERS + READERS + 2).max(2);
    let pool = PgPoolOptions::new()
        .max_connections(shared)
        .min_connections(0)
        .acquire_timeout(ACQUIRE)
        .test_before_acquire(false)
        .before_acquire(move |_, connection| {
            let answered = Instant::now().checked_sub(connection.idle_for);
            let sound = answered.is_some_and(|answered| !of_pool.covers(answered));
            Box::pin(async move { Ok(sound) })
        })
        .connect_lazy_with(service.clone());
    Connections {
        link: Link::new(pool, None, Arc::clone(&doubt)),
        writers: (0..WRITERS).map(own).collect(),
        readers: (0..READERS).map(own).collect(),
        heart: own(0),
        watch: None,
        ears: Some(Box::new(Listening(service))),
    }
}

/// Refuses servers that are too old, and poolers.
pub async fn check_server(options: &DatabaseOptions, target: &PgConnectOptions) -> Result<(), OpenError> {
    match timeout(CHECKS, checks(&service_options(options, target))).await {
        Ok(checked) => checked,
        Err(_) => Err(Fault::link("no answer in time").into()),
    }
}

async fn checks(service: &PgConnectOptions) -> Result<(), OpenError> {
    let mut first = connect(service).await?;
    let row = sqlx::raw_sql("SELECT current_setting('server_version_num'), current_setting('server_version')")
        .fetch_one(&mut first)
        .await?;
    let (number, name): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    if number.parse::<i64>().is_ok_and(|number| number < OLDEST_SERVER) {
        return Err(OpenError::ServerTooOld(name));
    }
    let mut second = connect(service).await?;
    // A pooler gives both one server connection in turn, so that the second's value is read on the first.
    for _ in 0..2 {
        let ours = probe(&mut first).await?;
        probe(&mut second).await?;
        let row = sqlx::raw_sql("SELECT current_setting('taskhold.probe', true)").fetch_one(&mut first).await?;
        if row.try_get::<Option<String>, _>(0)?.as_deref() != Some(ours.as_str()) {
            return Err(OpenError::Pooler);
        }
    }
    // Both were only for this check; a failed goodbye changes nothing.
    let _ = first.close().await;
    let _ = second.close().await;
    Ok(())
}

/// Connects; a pooler that does not know our startup options says so here.
pub async fn connect(options: &PgConnectOptions) -> Result<PgConnection, OpenError> {
    PgConnection::connect_with(options).await.map_err(|error| {
        if error.as_database_error().is_some_and(|refusal| refusal.message().contains("unsupported startup parameter"))
        {
            OpenError::Pooler
        } else {
            error.into()
        }
    })
}

async fn probe(connection: &mut PgConnection) -> Result<String, OpenError> {
    let value = NodeId::new().to_string();
    // The value is an id of ours; a statement with parameters would not pass a pooler.
    let statement = format!("SELECT set_config('taskhold.probe', '{value}', false)");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(value)
}
