//! Connecting to PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use tokio::time::{Instant, timeout};

use super::connect::{self, connect_to, search};
use super::dialect::Dialect as _;
use super::link::{Link, Own, Shared};
use super::open::OpenError;
use super::options::{DatabaseOptions, Pooler};
use super::postgres::{Listening, PostgresDialect};
use super::sql::Fault;
use super::sql_store::Connections;
use super::targets::Targets;
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

/// How the service connects. A pooler takes no settings: `BEGIN_POOLED` makes them for each transaction.
pub fn service_options(options: &DatabaseOptions, target: &PgConnectOptions) -> PgConnectOptions {
    let base = base_options(options, target);
    if options.pooler == Pooler::Transaction {
        return base;
    }
    // The server gives up a statement soon after we did, and a transaction whose owner went silent. Batches are small
    // and planned with guessed sizes: compiling them costs more than running them.
    base.options([
        ("statement_timeout", "6000"),
        ("idle_in_transaction_session_timeout", "15000"),
        ("jit", "off"),
        // Each statement reads a few rows in the order of one index. A planner that has no statistics yet, or old ones,
        // takes a large context for a small one: then it fetched all of it in the order of the disk and sorted it, for
        // one page (459 ms instead of 0.1 ms with 100,000 tasks).
        ("random_page_cost", "1.1"),
        ("enable_bitmapscan", "off"),
        // A batch locks its rows in the order of their ids, which a join keeps that goes through them one by one or sorts
        // them. A hashed one would take them as they lie on the disk, and two batches could wait for each other.
        ("enable_hashjoin", "off"),
        // Plans are made while a table has few rows, and kept while it grows: one that goes through all of them, or sorts them,
        // does so for each batch later.
        ("enable_mergejoin", "off"),
        ("enable_seqscan", "off"),
    ])
}

/// How migrations connect: they may take their time.
pub fn base_options(options: &DatabaseOptions, target: &PgConnectOptions) -> PgConnectOptions {
    let target = target.clone().application_name("taskhold");
    if options.pooler == Pooler::Transaction {
        // A pooler refuses what it cannot keep apart, and a statement that is kept would meet another client's.
        return target.extra_float_digits(None).statement_cache_capacity(0);
    }
    match &options.schema {
        Some(schema) => target.options([("search_path", schema)]),
        None => target,
    }
}

/// # Errors
/// If a URL to listen at cannot be used.
pub fn connections(
    options: &DatabaseOptions,
    targets: &Targets<PgConnectOptions>,
) -> Result<Connections<PostgresDialect>, OpenError> {
    let listen = options.listen_target()?.unwrap_or_default();
    let listen = listen.iter().map(|server| base_options(options, server)).collect();
    let targets = Arc::new(targets.map(|target| service_options(options, target)));
    // Without servers of its own it listens at that in use.
    let ears = Listening::at(listen, options.listen_urls.is_empty().then(|| Arc::clone(&targets)));
    let shared = Shared { targets, doubt: Arc::default(), pooler: options.pooler };
    let own = |_| Own::new(&shared);
    // One of the owned ones is the heartbeat's, one claims, one listens.
    let most = options.max_connections.saturating_sub(WRITERS + READERS + 3).max(2);
    let of_pool = shared.clone();
    Ok(Connections {
        link: Link::new(Box::new(move |target| pool(most, &of_pool, target)), None, shared.clone()),
        writers: (0..WRITERS).map(own).collect(),
        readers: (0..READERS).map(own).collect(),
        heart: own(0),
        watch: None,
        ears,
    })
}

fn pool(most: u32, shared: &Shared<PostgresDialect>, target: &PgConnectOptions) -> PgPool {
    let doubt = Arc::clone(&shared.doubt);
    let targets = Arc::downgrade(&shared.targets);
    PgPoolOptions::new()
        .max_connections(most)
        .min_connections(0)
        .acquire_timeout(ACQUIRE)
        .test_before_acquire(false)
        .before_acquire(move |_, connection| {
            let answered = Instant::now().checked_sub(connection.idle_for);
            let sound = answered.is_some_and(|answered| !doubt.covers(answered));
            Box::pin(async move { Ok(sound) })
        })
        .after_connect(move |connection, _| {
            let targets = targets.upgrade().filter(|targets| targets.several());
            Box::pin(async move {
                let Some(targets) = targets else { return Ok(()) };
                match PostgresDialect::takes_writes(connection).await {
                    Ok(true) => Ok(()),
                    other => {
                        search::<PostgresDialect>(&targets);
                        let reason = other.err().map_or("the server takes no writes", |_| "the new connection broke");
                        Err(sqlx::Error::Protocol(reason.to_owned()))
                    }
                }
            })
        })
        .connect_lazy_with(target.clone())
}

/// Refuses servers that are too old, and poolers. From now on the server that answered is the one in use.
pub async fn check_server(options: &DatabaseOptions, targets: &Targets<PgConnectOptions>) -> Result<(), OpenError> {
    let service = targets.map(|target| service_options(options, target));
    let checked = timeout(CHECKS, checks(&service, options.pooler))
        .await
        .unwrap_or_else(|_| Err(Fault::link("no answer in time").into()));
    targets.go_to(service.held());
    checked
}

async fn checks(service: &Targets<PgConnectOptions>, pooler: Pooler) -> Result<(), OpenError> {
    let mut first = connect(service).await?;
    let row = sqlx::raw_sql("SELECT current_setting('server_version_num'), current_setting('server_version')")
        .fetch_one(&mut first)
        .await?;
    let (number, name): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    if number.parse::<i64>().is_ok_and(|number| number < OLDEST_SERVER) {
        return Err(OpenError::ServerTooOld(name));
    }
    if pooler == Pooler::Transaction {
        let _ = first.close().await;
        return Ok(());
    }
    let mut second = connect(service).await?;
    if are_pooled(&mut first, &mut second).await? {
        return Err(OpenError::Pooler);
    }
    // Both were only for this check; a failed goodbye changes nothing.
    let _ = first.close().await;
    let _ = second.close().await;
    Ok(())
}

/// Whether a pooler in transaction mode gives both one server connection in turn: then the second's value is read on the first.
async fn are_pooled(first: &mut PgConnection, second: &mut PgConnection) -> Result<bool, sqlx::Error> {
    for _ in 0..2 {
        let ours = probe(first).await?;
        probe(second).await?;
        let row = sqlx::raw_sql("SELECT current_setting('taskhold.probe', true)").fetch_one(&mut *first).await?;
        if row.try_get::<Option<String>, _>(0)?.as_deref() != Some(ours.as_str()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Connects; a pooler that does not know our startup options says so here.
pub async fn connect(targets: &Targets<PgConnectOptions>) -> Result<PgConnection, OpenError> {
    match connect::connect::<PostgresDialect>(targets).await {
        Ok((_, connection)) => Ok(connection),
        Err(fault) if is_of_a_pooler(&fault) => Err(OpenError::Pooler),
        Err(fault) => Err(fault.into()),
    }
}

/// Whether there is such a pooler at this address.
pub async fn is_pooler(server: &PgConnectOptions) -> Result<bool, Fault> {
    let mut first = connect_to::<PostgresDialect>(server, false).await?;
    let mut second = connect_to::<PostgresDialect>(server, false).await?;
    let are_pooled = are_pooled(&mut first, &mut second).await?;
    // Both were only for this question; a failed goodbye changes nothing.
    let _ = first.close().await;
    let _ = second.close().await;
    Ok(are_pooled)
}

/// No server refuses a connection so.
pub fn is_of_a_pooler(fault: &Fault) -> bool {
    fault.detail().contains("unsupported startup parameter")
}

async fn probe(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    let value = NodeId::new().to_string();
    // The value is an id of ours; a statement with parameters would not pass a pooler.
    let statement = format!("SELECT set_config('taskhold.probe', '{value}', false)");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(value)
}
