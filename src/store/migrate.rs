//! Migrations: numbered, forward only, the same numbers for every database.
//!
//! To add one: a file `NNNN_name.sql` in both folders of `migrations/` and a line in [`MIGRATIONS`]. A migration that
//! older binaries cannot work with ends with `UPDATE schema_info SET oldest_binary = NNNN`.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqlSafeStr as _};
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::migrate_pooled;
use super::migrate_wait::Wait;
use super::open::OpenError;
use super::open_postgres::{base_options, check_server, connect};
use super::open_sqlite::{check_access, check_folder, in_full, look_options, prepare_file, writer_options};
use super::options::{DatabaseOptions, Pooler, Target};
use super::schema::{Found, MARK, has_schema};
use super::sql::{Fault, statements};
use super::targets::Targets;
use crate::domain::ids::NodeId;

struct Step {
    version: i64,
    name: &'static str,
    postgres: &'static str,
    sqlite: &'static str,
}

const MIGRATIONS: &[Step] = &[
    Step {
        version: 1,
        name: "tasks",
        postgres: include_str!("../../migrations/postgres/0001_tasks.sql"),
        sqlite: include_str!("../../migrations/sqlite/0001_tasks.sql"),
    },
    Step {
        version: 2,
        name: "talk",
        postgres: include_str!("../../migrations/postgres/0002_talk.sql"),
        sqlite: include_str!("../../migrations/sqlite/0002_talk.sql"),
    },
    Step {
        version: 3,
        name: "keys",
        postgres: include_str!("../../migrations/postgres/0003_keys.sql"),
        sqlite: include_str!("../../migrations/sqlite/0003_keys.sql"),
    },
    Step {
        version: 4,
        name: "rounds",
        postgres: include_str!("../../migrations/postgres/0004_rounds.sql"),
        sqlite: include_str!("../../migrations/sqlite/0004_rounds.sql"),
    },
    Step {
        version: 5,
        name: "queue",
        postgres: include_str!("../../migrations/postgres/0005_queue.sql"),
        sqlite: include_str!("../../migrations/sqlite/0005_queue.sql"),
    },
];

/// How long one node may migrate without renewing its lease.
const LEASE: Duration = Duration::from_secs(30);
/// How long a node waits for another one's migration.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long opening a SQLite file waits for others that do.
const CONNECT_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// SQLite tells nobody that it waits, and most waits are over sooner.
const QUIET: Duration = Duration::from_secs(1);

statements! {
    FIRST_ROW = "INSERT INTO schema_info (id, oldest_binary) VALUES (1, 0) ON CONFLICT DO NOTHING";
}

macro_rules! clock {
    () => {
        "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
    };
}

const SCHEMA_INFO_POSTGRES: &str = "CREATE TABLE IF NOT EXISTS schema_info (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    oldest_binary BIGINT NOT NULL,
    holder UUID,
    lease_until BIGINT
)";
const SCHEMA_INFO_SQLITE: &str = "CREATE TABLE IF NOT EXISTS schema_info (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    oldest_binary INTEGER NOT NULL,
    holder BLOB,
    lease_until INTEGER
) STRICT";
/// The lease: whoever set it migrates. Neither a lock that waits (it would deadlock with an index built concurrently)
/// nor one of the session (it would not pass a pooler).
const TAKE_LEASE: &str = concat!(
    "UPDATE schema_info SET holder = $1, lease_until = ",
    clock!(),
    " + $2 WHERE id = 1 AND (holder IS NULL OR holder = $1 OR lease_until < ",
    clock!(),
    ")"
);
/// Who has it, and for how many seconds at least.
const HOLDER: &str = concat!(
    "SELECT holder::text, (lease_until - ",
    clock!(),
    ") / 1000000 FROM schema_info WHERE id = 1 AND holder IS NOT NULL"
);
const DROP_LEASE: &str = "UPDATE schema_info SET holder = NULL, lease_until = NULL WHERE id = 1 AND holder = $1";

/// The newest schema that this binary knows.
pub fn own_schema() -> i64 {
    MIGRATIONS.iter().map(|step| step.version).max().unwrap_or(0)
}

/// The tables of this binary's schema, but the one in which the migrations that ran are noted.
pub fn tables() -> Vec<&'static str> {
    let lines = MIGRATIONS.iter().flat_map(|step| step.postgres.lines());
    let made = lines.filter_map(|line| line.strip_prefix("CREATE TABLE ")?.split([' ', '(']).next());
    std::iter::once(MARK).chain(made).collect()
}

/// Brings the database up to this binary's schema; does nothing if it is there. Several processes may do so at once.
///
/// # Errors
/// If the database cannot be reached, was migrated by a newer version that says older ones must not run, or a migration
/// fails: then none of it has happened.
pub async fn migrate(options: &DatabaseOptions) -> Result<(), OpenError> {
    match options.target()? {
        Target::Sqlite(path) => migrate_sqlite(&path).await,
        Target::Postgres(targets) => {
            check_server(options, &targets).await?;
            migrate_postgres(options, &targets.map(|target| base_options(options, target))).await
        }
    }
}

/// The migrations that [`migrate`] would run, by number and name. Changes nothing. Refuses servers that are too old, and
/// poolers.
///
/// # Errors
/// As [`migrate`].
pub async fn check_migrations(options: &DatabaseOptions) -> Result<Vec<String>, OpenError> {
    match options.target()? {
        Target::Sqlite(path) => check_sqlite(&path).await,
        Target::Postgres(targets) => check_postgres(options, &targets).await,
    }
}

async fn check_sqlite(path: &Path) -> Result<Vec<String>, OpenError> {
    look_sqlite(path).await?.map_or_else(|| Ok(missing(|_| false)), |found| found.pending())
}

async fn check_postgres(
    options: &DatabaseOptions,
    targets: &Targets<PgConnectOptions>,
) -> Result<Vec<String>, OpenError> {
    look_postgres(options, targets).await?.pending()
}

/// `None` if the file is not there.
pub(super) async fn look_sqlite(path: &Path) -> Result<Option<Found>, OpenError> {
    check_folder(path)?;
    if !path.exists() {
        return Ok(None);
    }
    check_access(path)?;
    let mut connection = connect_sqlite(&look_options(path)).await?;
    let found = Found::in_sqlite(&mut connection).await?;
    let _ = connection.close().await;
    Ok(Some(found))
}

/// From now on the server that answered is the one in use.
pub(super) async fn look_postgres(
    options: &DatabaseOptions,
    targets: &Targets<PgConnectOptions>,
) -> Result<Found, OpenError> {
    check_server(options, targets).await?;
    let mut connection = connect(&targets.map(|target| base_options(options, target))).await?;
    let found = Found::in_postgres(&mut connection).await?;
    let _ = connection.close().await;
    Ok(found)
}

async fn migrate_sqlite(path: &Path) -> Result<(), OpenError> {
    prepare_file(path)?;
    // Before the file is turned to what we need: it may be somebody else's.
    if let Some(found) = look_sqlite(path).await?
        && found.pending()?.is_empty()
    {
        return Ok(());
    }
    let mut connection = connect_sqlite(&writer_options(path)).await?;
    // The whole run in one exclusive transaction: the others wait here and then find nothing left to do.
    let deadline = Instant::now() + PATIENCE;
    let mut wait = Wait::new(Instant::now(), QUIET);
    let mut transaction = loop {
        let begun = {
            let mut begin = Box::pin(connection.begin_with("BEGIN EXCLUSIVE"));
            loop {
                tokio::select! {
                    begun = &mut begin => break begun,
                    () = sleep_until(wait.next()) => say_locked(&mut wait),
                }
            }
        };
        match begun.map_err(Fault::from) {
            Ok(transaction) => break transaction,
            Err(Fault::Link(_)) if Instant::now() < deadline => sleep(POLL).await,
            Err(fault) => return Err(fault.into()),
        }
    };
    sqlx::query(SCHEMA_INFO_SQLITE).execute(&mut *transaction).await?;
    sqlx::query(FIRST_ROW).execute(&mut *transaction).await?;
    let found = Found::in_sqlite(&mut transaction).await?;
    let pending = found.pending()?;
    if !pending.is_empty() {
        tracing::info!(file = %in_full(path).display(), migrations = pending.join(", "), "migrating the database");
        sqlite_migrator().run(&mut *transaction).await.map_err(not_migrated)?;
    }
    transaction.commit().await?;
    Ok(connection.close().await?)
}

fn say_locked(wait: &mut Wait) {
    if let Some(waited) = wait.is_due(Instant::now()) {
        tracing::info!(
            waited_s = waited.as_secs(),
            "another process has the lock of the database file, as one that migrates does: waiting for it"
        );
    }
}

/// Turning a new file to WAL does not wait for another process that does the same; so we do.
async fn connect_sqlite(options: &SqliteConnectOptions) -> Result<SqliteConnection, OpenError> {
    let deadline = Instant::now() + CONNECT_PATIENCE;
    let mut wait = Wait::new(Instant::now(), QUIET);
    loop {
        match SqliteConnection::connect_with(options).await.map_err(Fault::from) {
            Ok(connection) => return Ok(connection),
            Err(Fault::Link(_)) if Instant::now() < deadline => {
                say_locked(&mut wait);
                sleep(POLL).await;
            }
            Err(fault) => return Err(fault.into()),
        }
    }
}

async fn migrate_postgres(options: &DatabaseOptions, targets: &Targets<PgConnectOptions>) -> Result<(), OpenError> {
    let mut connection = connect(targets).await?;
    let found = Found::in_postgres(&mut connection).await?;
    if found.pending()?.is_empty() {
        return Ok(connection.close().await?);
    }
    if let Err(error) = prepare_schema(options, &mut connection).await {
        // Whoever may change tables has to do it.
        return Err(if is_forbidden(&error) { OpenError::Forbidden(found.pending()?) } else { error.into() });
    }
    let holder = NodeId::new().as_uuid();
    wait_for_lease(&mut connection, holder).await?;
    let mut keeper = connect(targets).await?;
    let migrated = async {
        let found = Found::in_postgres(&mut connection).await?;
        let pending = found.pending()?;
        if pending.is_empty() {
            return Ok(());
        }
        tracing::info!(lease.holder = %holder, migrations = pending.join(", "), "migrating the database");
        let migrator = postgres_migrator();
        let run = if options.pooler == Pooler::Transaction {
            migrate_pooled::run(&migrator, &mut connection).await
        } else {
            migrator.run(&mut connection).await
        };
        run.map_err(|error| match error {
            MigrateError::Execute(cause) | MigrateError::ExecuteMigration(cause, _) if is_forbidden(&cause) => {
                OpenError::Forbidden(pending)
            }
            error => not_migrated(error),
        })
    };
    let result = tokio::select! {
        migrated = migrated => migrated,
        lost = keep_lease(&mut keeper, holder) => Err(lost),
    };
    // If this fails the lease runs out by itself.
    let dropped = apart(&mut keeper, sqlx::query(DROP_LEASE).bind(holder)).await;
    result?;
    dropped?;
    keeper.close().await?;
    Ok(connection.close().await?)
}

async fn wait_for_lease(connection: &mut PgConnection, holder: Uuid) -> Result<(), OpenError> {
    let deadline = Instant::now() + PATIENCE;
    let mut wait = Wait::new(Instant::now(), Duration::ZERO);
    while !take_lease(connection, holder).await? {
        if Instant::now() > deadline {
            return Err(OpenError::MigrationLocked);
        }
        if let Some(waited) = wait.is_due(Instant::now())
            && let Some(row) = sqlx::raw_sql(HOLDER).fetch_optional(&mut *connection).await?
        {
            let (holder, left): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            tracing::info!(
                lease.holder = holder,
                lease.left_s = left,
                waited_s = waited.as_secs(),
                "another process migrates the database: waiting for it; its own log names it by this holder"
            );
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// The schema and the table with the lease. PostgreSQL's `IF NOT EXISTS` looks first and makes then: of several at once
/// some fail although all that they want is there.
async fn prepare_schema(options: &DatabaseOptions, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut statements = Vec::new();
    if let Some(schema) = &options.schema
        // Who may not make schemas may not even ask for one that is there.
        && !has_schema(connection, schema).await?
    {
        statements.push(format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
    }
    statements.push(SCHEMA_INFO_POSTGRES.to_owned());
    statements.push(FIRST_ROW.to_owned());
    for statement in statements {
        let mut tries = 1;
        while let Err(error) = sqlx::raw_sql(AssertSqlSafe(statement.as_str())).execute(&mut *connection).await {
            if tries == 10 || !is_lost_race(&error) {
                return Err(error);
            }
            tries += 1;
            sleep(POLL).await;
        }
    }
    Ok(())
}

/// The role lacks a right: to make a schema or a table, to change one that another role owns, or to use any schema at all.
fn is_forbidden(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ["42501", "3F000"].contains(&code.as_ref()))
}

fn not_migrated(error: MigrateError) -> OpenError {
    match error {
        MigrateError::VersionMismatch(version) => OpenError::Changed(named(version)),
        error => OpenError::Migration(error.to_string()),
    }
}

/// Duplicate key (of the system's own tables), schema, table, type; a table changed under our feet.
fn is_lost_race(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ["23505", "42P06", "42P07", "42710", "XX000"].contains(&code.as_ref()))
}

async fn take_lease(connection: &mut PgConnection, holder: Uuid) -> Result<bool, OpenError> {
    let lease = i64::try_from(LEASE.as_micros()).unwrap_or(i64::MAX);
    Ok(apart(connection, sqlx::query(TAKE_LEASE).bind(holder).bind(lease)).await? > 0)
}

/// Runs a statement in a transaction of its own, which a pooler passes as it is; answers how many rows it wrote.
async fn apart(
    connection: &mut PgConnection,
    query: sqlx::query::Query<'_, sqlx::Postgres, PgArguments>,
) -> Result<u64, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let done = query.persistent(false).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(done.rows_affected())
}

/// Renews the lease for ever; answers why it cannot.
async fn keep_lease(connection: &mut PgConnection, holder: Uuid) -> OpenError {
    loop {
        sleep(LEASE / 5).await;
        match take_lease(connection, holder).await {
            Ok(true) => {}
            Ok(false) => return OpenError::MigrationLocked,
            Err(error) => return error,
        }
    }
}

pub fn postgres_migrator() -> Migrator {
    migrator(|step| step.postgres)
}

pub fn sqlite_migrator() -> Migrator {
    migrator(|step| step.sqlite)
}

fn migrator(sql: impl Fn(&Step) -> &'static str) -> Migrator {
    let migrations = MIGRATIONS.iter().map(|step| {
        Migration::new(step.version, step.name.into(), MigrationType::Simple, sql(step).into_sql_str(), false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    // A newer version may have added some; whether we may run on them is what `schema_info` says.
    migrator.set_ignore_missing(true);
    // Several at once are kept apart by the lease and by the exclusive transaction.
    migrator.set_locking(false);
    migrator
}

/// A migration by number and name.
pub fn named(version: i64) -> String {
    let step = MIGRATIONS.iter().find(|step| step.version == version);
    step.map_or_else(|| format!("{version:04}"), |step| format!("{version:04} {}", step.name))
}

/// Those that were not applied.
pub fn missing(is_applied: impl Fn(i64) -> bool) -> Vec<String> {
    let versions = MIGRATIONS.iter().map(|step| step.version);
    versions.filter(|version| !is_applied(*version)).map(named).collect()
}
