//! The test that prepares every constant statement on its engine. A noun's file adds its list here; the macro that
//! makes the list leaves none of its statements out, and a test counts the files.

use sqlx::{Connection as _, Executor as _, PgConnection, SqlSafeStr as _, SqliteConnection};

use super::dialect::{Dialect, statements};
use super::postgres::PostgresDialect;
use super::sqlite::SqliteDialect;
use super::*;

const SHARED: &[(&str, &[&str])] = &[
    ("catalog.rs", catalog::STATEMENTS),
    ("claims.rs", claims::STATEMENTS),
    ("contexts.rs", contexts::STATEMENTS),
    ("keys.rs", keys::STATEMENTS),
    ("migrate.rs", migrate::STATEMENTS),
    ("nodes.rs", nodes::STATEMENTS),
    ("operators.rs", operators::STATEMENTS),
    ("retention.rs", retention::STATEMENTS),
    ("sessions.rs", sessions::STATEMENTS),
    ("tasks.rs", tasks::STATEMENTS),
    ("tokens.rs", tokens::STATEMENTS),
];

fn all<D: Dialect>() -> impl Iterator<Item = &'static str> {
    SHARED.iter().flat_map(|(_, list)| list.iter().copied()).chain(statements::<D>())
}

#[test]
fn every_file_with_statements_is_in_the_list() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store");
    let mut with_statements: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| std::fs::read_to_string(entry.path()).unwrap().contains("\nstatements! {"))
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    with_statements.sort();
    assert_eq!(with_statements, SHARED.iter().map(|(file, _)| *file).collect::<Vec<_>>());
}

#[tokio::test]
async fn every_statement_prepares_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("taskhold.db").display());
    migrate::migrate(&DatabaseOptions { url: url.as_str().into(), schema: None, max_connections: 1 }).await.unwrap();
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    for sql in all::<SqliteDialect>().chain(SqliteDialect::WATCH) {
        (&mut connection).prepare(sql.into_sql_str()).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

#[tokio::test]
async fn every_statement_prepares_on_postgres() {
    #[expect(clippy::disallowed_methods, reason = "the one setting of the tests")]
    let url = std::env::var("TASKHOLD_TEST_POSTGRES_URL")
        .expect("TASKHOLD_TEST_POSTGRES_URL is not set: run the tests by scripts/test");
    let schema = format!("prepared_{}", TaskId::new().as_uuid().simple());
    let options = DatabaseOptions { url: url.as_str().into(), schema: Some(schema.clone()), max_connections: 1 };
    migrate::migrate(&options).await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    connection.execute(sqlx::AssertSqlSafe(format!("SET search_path TO {schema}"))).await.unwrap();
    for sql in all::<PostgresDialect>() {
        (&mut connection).prepare(sql.into_sql_str()).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
    connection.execute(sqlx::AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"))).await.unwrap();
}
