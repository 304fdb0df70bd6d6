//! Migrations, and the schema that they make.

use futures_util::future::join_all;
use taskhold::domain::ids::SessionId;
use taskhold::domain::work::NewTask;
use taskhold::store::{DatabaseOptions, OpenError, check_migrations, migrate, open};

use crate::support::database::{Backend, EmptyDatabase, TestDatabase, number, options, run, texts};

/// How many there are.
pub const MIGRATIONS: i64 = 5;

/// Runs a case on an empty database of each engine.
macro_rules! on_empty {
    ($($case:ident),* $(,)?) => {
        mod on_sqlite {
            use crate::support::database::{Backend, EmptyDatabase};
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(EmptyDatabase::new(Backend::Sqlite).await).await;
                }
            )*
        }

        mod on_postgres {
            use crate::support::database::{Backend, EmptyDatabase};
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(EmptyDatabase::new(Backend::Postgres).await).await;
                }
            )*
        }
    };
}

on_empty! {
    a_second_run_does_nothing,
    six_at_once_migrate_once,
    a_schema_from_the_future_is_refused,
    a_newer_schema_that_allows_us_is_served,
    a_database_without_migrations_is_not_served,
    a_database_of_another_program_is_refused_and_left_alone,
    a_migration_with_another_text_stops_those_that_are_missing,
    tasks_that_live_through_the_second_migration_have_their_session,
}

async fn a_second_run_does_nothing(db: EmptyDatabase) {
    assert_eq!(
        check_migrations(&options(&db.url)).await.unwrap(),
        ["0001 tasks", "0002 talk", "0003 keys", "0004 rounds", "0005 queue"]
    );
    migrate(&options(&db.url)).await.unwrap();
    assert!(check_migrations(&options(&db.url)).await.unwrap().is_empty());
    run(
        &db.url,
        "INSERT INTO server_keys (kind, secret, created) VALUES ('x', 'y', 1)"
            .replace("'y'", if db.url.starts_with("sqlite") { "X'79'" } else { "'y'" })
            .as_str(),
    )
    .await;
    migrate(&options(&db.url)).await.unwrap();
    assert_eq!(number(&db.url, "SELECT COUNT(*) FROM server_keys").await, 1);
    assert_eq!(number(&db.url, "SELECT COUNT(*) FROM _sqlx_migrations").await, MIGRATIONS);
    assert_eq!(number(&db.url, "SELECT COUNT(*) FROM schema_info WHERE holder IS NOT NULL").await, 0);
}

// req: KEEP-01
async fn six_at_once_migrate_once(db: EmptyDatabase) {
    let runs = (0..6).map(|_| {
        let options = options(&db.url);
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(migrate(&options))
        })
    });
    for result in join_all(runs).await {
        result.unwrap().unwrap();
    }
    assert_eq!(number(&db.url, "SELECT COUNT(*) FROM _sqlx_migrations").await, MIGRATIONS);
    open(&options(&db.url)).await.unwrap().system().ping().await.unwrap();
}

// req: KEEP-01
async fn a_schema_from_the_future_is_refused(db: EmptyDatabase) {
    migrate(&options(&db.url)).await.unwrap();
    run(&db.url, "UPDATE schema_info SET oldest_binary = 999").await;
    for error in [
        migrate(&options(&db.url)).await.unwrap_err(),
        check_migrations(&options(&db.url)).await.unwrap_err(),
        open(&options(&db.url)).await.err().expect("is not opened"),
    ] {
        assert!(matches!(error, OpenError::FromTheFuture { needed: 999, .. }), "{error}");
        assert!(error.to_string().contains("update taskhold"), "{error}");
    }
}

async fn a_newer_schema_that_allows_us_is_served(db: EmptyDatabase) {
    migrate(&options(&db.url)).await.unwrap();
    let checksum = if db.url.starts_with("sqlite") { "X'00'" } else { "'x'" };
    let success = if db.url.starts_with("sqlite") { "1" } else { "true" };
    run(
        &db.url,
        &format!(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
            VALUES (998, 'later', {success}, {checksum}, 1)"
        ),
    )
    .await;
    migrate(&options(&db.url)).await.unwrap();
    open(&options(&db.url)).await.unwrap().system().ping().await.unwrap();
}

async fn a_database_without_migrations_is_not_served(db: EmptyDatabase) {
    let error = open(&options(&db.url)).await.err().expect("is not opened").to_string();
    assert!(error.contains("`taskhold migrate` makes"), "{error}");
    if let Some(path) = db.url.strip_prefix("sqlite://") {
        assert!(error.contains(&format!("there is no file {path}: ")), "{error}");
        assert!(!std::path::Path::new(path).exists(), "a check makes no file");
    }
}

/// Somebody else's tables, in which our names and our notes may have another meaning.
async fn a_database_of_another_program_is_refused_and_left_alone(db: EmptyDatabase) {
    let url = if db.url.starts_with("sqlite") { format!("{}?mode=rwc", db.url) } else { db.url.clone() };
    let bytes = if db.url.starts_with("sqlite") { "BLOB" } else { "BYTEA" };
    for theirs in [
        format!("CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, checksum {bytes}, success BOOLEAN)"),
        "DROP TABLE _sqlx_migrations; CREATE TABLE tasks (title TEXT)".to_owned(),
    ] {
        run(&url, &theirs).await;
        for error in [
            migrate(&options(&db.url)).await.unwrap_err(),
            check_migrations(&options(&db.url)).await.unwrap_err(),
            open(&options(&db.url)).await.err().expect("is not opened"),
        ] {
            assert!(matches!(error, OpenError::NotOurs(_)), "{error}");
            assert!(error.to_string().contains("belongs to another program"), "{error}");
        }
    }
    let count = if db.url.starts_with("sqlite") {
        "SELECT COUNT(*) FROM sqlite_schema"
    } else {
        "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'"
    };
    assert_eq!(number(&db.url, count).await, 1, "theirs");
    if let Some(path) = db.url.strip_prefix("sqlite://") {
        let header = std::fs::read(path).unwrap();
        assert_eq!(header[18..20], [1, 1], "its journal is what it was");
    }
}

/// A schema of PostgreSQL may be shared as long as no names meet.
#[tokio::test]
async fn tables_with_other_names_may_stand_beside_ours() {
    let db = EmptyDatabase::new(Backend::Postgres).await;
    run(&db.url, "CREATE TABLE invoices (number BIGINT)").await;
    migrate(&options(&db.url)).await.unwrap();
    assert!(check_migrations(&options(&db.url)).await.unwrap().is_empty());
}

/// Who may not make schemas may use one that is there.
#[tokio::test]
async fn a_schema_that_is_there_need_not_be_made() {
    let db = EmptyDatabase::new(Backend::Postgres).await;
    let role = format!("role_{}", SessionId::new().as_uuid().simple());
    run(&db.url, &format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA own AUTHORIZATION {role}")).await;
    let (_, place) = db.url.split_once('@').unwrap();
    let url = format!("postgres://{role}@{place}");
    let install = |schema: &str| DatabaseOptions { schema: Some(schema.to_owned()), ..options(&url) };
    migrate(&install("own")).await.unwrap();
    assert!(matches!(migrate(&install("new")).await.unwrap_err(), OpenError::Forbidden(_)));
    run(&db.url, &format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
}

/// One text was changed after it had run, on the way to one that has yet to.
async fn a_migration_with_another_text_stops_those_that_are_missing(db: EmptyDatabase) {
    migrate(&options(&db.url)).await.unwrap();
    let other = if db.url.starts_with("sqlite") { "X'00'" } else { "'x'" };
    run(&db.url, &format!("UPDATE _sqlx_migrations SET checksum = {other} WHERE version = 1")).await;
    migrate(&options(&db.url)).await.unwrap();
    open(&options(&db.url)).await.unwrap();
    run(&db.url, BEFORE_TALK).await;
    let error = migrate(&options(&db.url)).await.unwrap_err();
    assert!(matches!(&error, OpenError::Changed(name) if name == "0001 tasks"), "{error}");
    assert!(error.to_string().contains("docs/databases.md"), "{error}");
    assert_eq!(number(&db.url, "SELECT COUNT(*) FROM _sqlx_migrations").await, 1, "nothing was run");
    if db.url.starts_with("postgres") {
        assert_eq!(number(&db.url, "SELECT COUNT(*) FROM schema_info WHERE holder IS NOT NULL").await, 0);
    }
}

/// The second migration's work, undone: what it finds in a database of the first.
pub const BEFORE_TALK: &str = "
    DROP TABLE task_inputs;
    DROP TABLE input_deliveries;
    DROP TABLE upstream_tasks;
    DROP TABLE signals;
    DROP TABLE resource_subscriptions;
    DROP INDEX task_live_by_session;
    DROP INDEX sessions_by_stream_node;
    ALTER TABLE tasks DROP COLUMN progress;
    ALTER TABLE tasks DROP COLUMN progress_at;
    ALTER TABLE task_live DROP COLUMN session;
    ALTER TABLE task_live DROP COLUMN open_inputs;
    ALTER TABLE sessions DROP COLUMN stream;
    ALTER TABLE sessions DROP COLUMN stream_node;
    ALTER TABLE sessions DROP COLUMN log_level;
    ALTER TABLE sessions DROP COLUMN initialized;
    DROP INDEX task_live_lanes;
    DROP INDEX task_live_slots;
    DROP INDEX task_live_tenant_queue;
    DROP INDEX task_live_tenant_slots;
    DROP INDEX task_live_tool_slots;
    ALTER TABLE task_live DROP COLUMN context;
    ALTER TABLE task_live DROP COLUMN tenant;
    ALTER TABLE task_live DROP COLUMN tool;
    DROP TABLE parked_calls;
    DROP INDEX tasks_by_idempotency;
    ALTER TABLE tasks DROP COLUMN idempotency_key;
    ALTER TABLE tasks DROP COLUMN digest;
    ALTER TABLE tasks DROP COLUMN parked;
    DELETE FROM _sqlx_migrations WHERE version IN (2, 3, 4, 5);";

// req: KEEP-01
async fn tasks_that_live_through_the_second_migration_have_their_session(db: EmptyDatabase) {
    migrate(&options(&db.url)).await.unwrap();
    let store = open(&options(&db.url)).await.unwrap();
    let (_, scoped) = super::caller(&store, "a").await;
    for session in [Some(SessionId::new()), None] {
        scoped.create(NewTask { session, ..super::new_task(super::at(0)) }).await.unwrap();
    }
    store.system().close().await;
    run(&db.url, BEFORE_TALK).await;
    assert_eq!(
        check_migrations(&options(&db.url)).await.unwrap(),
        ["0002 talk", "0003 keys", "0004 rounds", "0005 queue"]
    );
    migrate(&options(&db.url)).await.unwrap();
    let live = "SELECT COUNT(*) FROM task_live l JOIN tasks t ON t.id = l.task WHERE ";
    assert_eq!(number(&db.url, &format!("{live} l.session = t.session AND l.open_inputs = 0")).await, 1);
    assert_eq!(number(&db.url, &format!("{live} l.session IS NULL AND t.session IS NULL")).await, 1);
    assert_eq!(number(&db.url, &format!("{live} l.context = t.context AND l.tenant = '' AND l.tool = ''")).await, 2);
}

#[tokio::test]
async fn both_databases_have_the_same_schema() {
    let sqlite = TestDatabase::new(Backend::Sqlite).await;
    let postgres = TestDatabase::new(Backend::Postgres).await;
    let of_sqlite = texts(
        &sqlite.url,
        "SELECT t.name || '.' || c.name || ' ' || CASE c.type WHEN 'INTEGER' THEN 'integer' WHEN 'TEXT' THEN 'text' ELSE 'bytes' END
            || CASE WHEN c.\"notnull\" THEN ' not null' ELSE '' END AS line
         FROM sqlite_schema t JOIN pragma_table_info(t.name) c
         WHERE t.type = 'table' AND t.name NOT LIKE '\\_sqlx%' ESCAPE '\\' AND t.name NOT LIKE 'sqlite%' ORDER BY 1",
        "line",
    )
    .await;
    let of_postgres = texts(
        &postgres.url,
        "SELECT table_name || '.' || column_name || ' ' ||
            CASE data_type WHEN 'bigint' THEN 'integer' WHEN 'text' THEN 'text' WHEN 'uuid' THEN 'bytes' WHEN 'bytea' THEN 'bytes' ELSE data_type END
            || CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END AS line
         FROM information_schema.columns
         WHERE table_schema = 'public' AND table_name NOT LIKE '\\_sqlx%' ORDER BY 1",
        "line",
    )
    .await;
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(sorted(of_sqlite), sorted(of_postgres));
    let indexes = "SELECT name AS line FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL";
    let of_sqlite = texts(&sqlite.url, indexes, "line").await;
    let indexes = "SELECT indexname::text AS line FROM pg_indexes WHERE schemaname = 'public' AND indexname NOT LIKE '%\\_key' AND indexname NOT LIKE '%\\_pkey'";
    assert_eq!(sorted(of_sqlite), sorted(texts(&postgres.url, indexes, "line").await));
    let collated = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = 'public'
        AND table_name NOT LIKE '\\_sqlx%' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'";
    assert_eq!(postgres.number(collated).await, 0, "text is compared byte by byte");
}

// req: EXEC-25
#[cfg(unix)]
#[tokio::test]
async fn the_sqlite_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let db = TestDatabase::new(Backend::Sqlite).await;
    super::caller(&db.store, "a").await;
    let path = db.url.trim_start_matches("sqlite://");
    for file in [path.to_owned(), format!("{path}-wal"), format!("{path}-shm")] {
        let mode = std::fs::metadata(&file).unwrap_or_else(|error| panic!("{file}: {error}")).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_missing_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/nowhere/taskhold.db", folder.path().display());
    let error = migrate(&options(&url)).await.unwrap_err();
    assert!(matches!(error, OpenError::MissingFolder(_)), "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_away_is_an_error_without_its_password() {
    let error = migrate(&options("postgres://u:hunter2@127.0.0.1:1/d")).await.unwrap_err();
    assert!(matches!(error, OpenError::Store(_)), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
}

// req: KEEP-16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schemas_of_one_database_are_two_installs() {
    let db = EmptyDatabase::new(Backend::Postgres).await;
    let install = |schema: &str| DatabaseOptions { schema: Some(schema.to_owned()), ..options(&db.url) };
    let mut keys = Vec::new();
    for schema in ["one", "two"] {
        migrate(&install(schema)).await.unwrap();
        let store = open(&install(schema)).await.unwrap();
        let (_, scoped) = super::caller(&store, "a").await;
        scoped.create(super::new_task(super::at(0))).await.unwrap();
        assert_eq!(scoped.list(None, 10, super::at(1)).await.unwrap().len(), 1);
        keys.push(store.system().server_key("cursor").await.unwrap());
        store.system().close().await;
    }
    assert_ne!(keys[0], keys[1]);
    assert_eq!(number(&db.url, "SELECT (SELECT COUNT(*) FROM one.tasks) + (SELECT COUNT(*) FROM two.tasks)").await, 2);
}
