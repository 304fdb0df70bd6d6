//! A migrated database of its own for each test, on either engine.

use std::any::Any;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqliteConnection};
use taskhold::domain::clock::Timestamp;
use taskhold::domain::ids::{LeaseToken, TaskId};
use taskhold::store::{DatabaseOptions, Store};
use tempfile::TempDir;

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

/// Deleted when dropped.
pub struct TestDatabase {
    pub backend: Backend,
    pub url: String,
    pub store: Store,
    /// How [`Self::store`] was opened.
    options: DatabaseOptions,
    /// What stands between the store and the server.
    _way: Option<Box<dyn Any + Send + Sync>>,
    _place: Place,
}

enum Place {
    Folder { _folder: TempDir },
    Database(String),
}

impl TestDatabase {
    /// A new, empty, migrated database.
    pub async fn new(backend: Backend) -> Self {
        let (url, place) = match backend {
            Backend::Sqlite => {
                let empty = empty(backend).await;
                taskhold::store::migrate(&options(&empty.0)).await.expect("migrates");
                empty
            }
            Backend::Postgres => from_template().await,
        };
        Self::opened(backend, options(&url), url, None, place).await
    }

    /// The same on PostgreSQL, reached by way of something that is made for it, and lasts as long. [`Self::url`] leads to the
    /// server itself.
    pub async fn by_way_of<W: Send + Sync + 'static>(way: impl AsyncFnOnce(&str) -> (W, DatabaseOptions)) -> Self {
        let (url, place) = from_template().await;
        let (way, options) = way(&url).await;
        Self::opened(Backend::Postgres, options, url, Some(Box::new(way)), place).await
    }

    async fn opened(
        backend: Backend,
        options: DatabaseOptions,
        url: String,
        way: Option<Box<dyn Any + Send + Sync>>,
        place: Place,
    ) -> Self {
        let store = taskhold::store::open(&options).await.expect("opens");
        Self { backend, url, store, options, _way: way, _place: place }
    }

    /// Closes the store and opens the same database again, as after a restart.
    pub async fn reopen(&mut self) {
        self.store.system().close().await;
        self.store = self.another().await;
    }

    /// A second store on the same database, as another process has it.
    pub async fn another(&self) -> Store {
        taskhold::store::open(&self.options).await.expect("opens")
    }

    /// Runs statements behind the store's back. Ids go in by [`Self::id`].
    pub async fn sql(&self, statements: &str) {
        run(&self.url, statements).await;
    }

    /// The first column of the only row.
    pub async fn number(&self, query: &str) -> i64 {
        number(&self.url, query).await
    }

    /// As if no node had reported for so long.
    pub async fn silence_nodes(&self, silence: std::time::Duration) {
        self.sql(&format!("UPDATE nodes SET heartbeat = heartbeat - {}", silence.as_micros())).await;
    }

    /// As if the nodes that were there before the newest had not reported for so long.
    pub async fn silence_nodes_but_the_newest(&self, silence: std::time::Duration) {
        let older = "heartbeat < (SELECT MAX(heartbeat) FROM nodes)";
        self.sql(&format!("UPDATE nodes SET heartbeat = heartbeat - {} WHERE {older}", silence.as_micros())).await;
    }

    /// Claims a waiting task for the only node there is, which knows nothing of it.
    pub async fn claim_for_the_only_node(&self, task: TaskId, now: Timestamp) {
        let (id, token) = (self.id(task.as_uuid()), self.id(LeaseToken::new().as_uuid()));
        self.sql(&format!(
            "UPDATE task_live SET node = (SELECT id FROM nodes), token = {token}, attempt = 1, claimed = {}
             WHERE task = {id} AND node IS NULL",
            now.micros()
        ))
        .await;
    }

    /// How many rows there are of tasks and all that belongs to them.
    pub async fn rows_of_tasks(&self) -> i64 {
        self.number(
            "SELECT (SELECT COUNT(*) FROM tasks) + (SELECT COUNT(*) FROM task_live)
                + (SELECT COUNT(*) FROM task_requests) + (SELECT COUNT(*) FROM task_outcomes)
                + (SELECT COUNT(*) FROM task_inputs) + (SELECT COUNT(*) FROM input_deliveries)
                + (SELECT COUNT(*) FROM upstream_tasks) + (SELECT COUNT(*) FROM parked_calls)",
        )
        .await
    }

    /// Holds the lock of an SQLite file for so long, as another program may.
    pub async fn lock(&self, time: std::time::Duration) {
        let mut connection = SqliteConnection::connect(&self.url).await.expect("connects");
        let begin = "PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE";
        sqlx::raw_sql(begin).execute(&mut connection).await.expect("takes the lock");
        tokio::time::sleep(time).await;
        sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.expect("gives the lock back");
        connection.close().await.expect("closes");
    }

    /// How many rows there are in each table that requests can reach.
    pub async fn rows(&self) -> Vec<i64> {
        let tables =
            ["tasks", "task_live", "task_requests", "task_outcomes", "sessions", "auth_contexts", "access_tokens"];
        let counts = tables.map(|table| format!("CAST((SELECT COUNT(*) FROM {table}) AS TEXT)")).join(" || ',' || ");
        let counts = texts(&self.url, &format!("SELECT {counts} AS counts"), "counts").await;
        counts[0].split(',').map(|count| count.parse().expect("a number")).collect()
    }

    /// An id as a literal of this engine.
    pub fn id(&self, id: uuid::Uuid) -> String {
        match self.backend {
            Backend::Sqlite => format!("X'{}'", id.simple()),
            Backend::Postgres => format!("'{id}'::uuid"),
        }
    }
}

/// An empty database that nobody has migrated, and what keeps it.
pub struct EmptyDatabase {
    pub url: String,
    _place: Place,
}

impl EmptyDatabase {
    pub async fn new(backend: Backend) -> Self {
        let (url, place) = empty(backend).await;
        Self { url, _place: place }
    }
}

pub fn options(url: &str) -> DatabaseOptions {
    DatabaseOptions { max_connections: 10, ..DatabaseOptions::new(url) }
}

/// Runs statements on any database.
pub async fn run(url: &str, statements: &str) {
    let statements = AssertSqlSafe(statements.to_owned());
    if url.starts_with("sqlite") {
        let mut connection =
            SqliteConnection::connect_with(&SqliteConnectOptions::from_str(url).expect("url")).await.expect("connects");
        sqlx::raw_sql(statements).execute(&mut connection).await.expect("runs");
        connection.close().await.expect("closes");
    } else {
        let mut connection = PgConnection::connect(url).await.expect("connects");
        sqlx::raw_sql(statements).execute(&mut connection).await.expect("runs");
        connection.close().await.expect("closes");
    }
}

/// Runs a statement on PostgreSQL in a transaction that lasts as long as what this answers.
pub async fn hold(url: &str, statement: &str) -> PgConnection {
    let mut connection = PgConnection::connect(url).await.expect("connects");
    let statements = AssertSqlSafe(format!("BEGIN; {statement}"));
    sqlx::raw_sql(statements).execute(&mut connection).await.expect("runs");
    connection
}

/// The first column of the only row.
pub async fn number(url: &str, query: &str) -> i64 {
    let query = AssertSqlSafe(query.to_owned());
    if url.starts_with("sqlite") {
        let mut connection = SqliteConnection::connect(url).await.expect("connects");
        let row = sqlx::query(query).fetch_one(&mut connection).await.expect("answers");
        connection.close().await.expect("closes");
        row.get(0)
    } else {
        let mut connection = PgConnection::connect(url).await.expect("connects");
        let row = sqlx::query(query).fetch_one(&mut connection).await.expect("answers");
        connection.close().await.expect("closes");
        row.get(0)
    }
}

/// All values of one column of text.
pub async fn texts(url: &str, query: &str, column: &str) -> Vec<String> {
    let query = AssertSqlSafe(query.to_owned());
    if url.starts_with("sqlite") {
        let mut connection = SqliteConnection::connect(url).await.expect("connects");
        let rows = sqlx::query(query).fetch_all(&mut connection).await.expect("answers");
        rows.iter().map(|row| row.get(column)).collect()
    } else {
        let mut connection = PgConnection::connect(url).await.expect("connects");
        let rows = sqlx::query(query).fetch_all(&mut connection).await.expect("answers");
        rows.iter().map(|row| row.get(column)).collect()
    }
}

async fn empty(backend: Backend) -> (String, Place) {
    match backend {
        Backend::Sqlite => {
            let folder = tempfile::tempdir().expect("a temporary folder");
            (format!("sqlite://{}", folder.path().join("taskhold.db").display()), Place::Folder { _folder: folder })
        }
        Backend::Postgres => {
            let name = new_name();
            run(&server(), &format!("CREATE DATABASE {name}")).await;
            (url_of(&name), Place::Database(name))
        }
    }
}

fn new_name() -> String {
    format!("test_{}", TaskId::new().as_uuid().simple())
}

/// Copies a database that is migrated once per cluster and set of migrations.
async fn from_template() -> (String, Place) {
    let mut hash = DefaultHasher::new();
    include_str!("../../migrations/postgres/0001_tasks.sql").hash(&mut hash);
    include_str!("../../migrations/postgres/0002_talk.sql").hash(&mut hash);
    let template = format!("template_{:016x}", hash.finish());
    let mut admin = PgConnection::connect(&server()).await.expect("the test cluster answers");
    // Tests are processes of their own: one makes the template, the others wait.
    sqlx::raw_sql("SELECT pg_advisory_lock(42)").execute(&mut admin).await.expect("locks");
    let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)")
        .bind(&template)
        .fetch_one(&mut admin)
        .await
        .expect("answers");
    if !there {
        let making = new_name();
        run(&server(), &format!("CREATE DATABASE {making}")).await;
        taskhold::store::migrate(&options(&url_of(&making))).await.expect("migrates");
        let rename = format!("ALTER DATABASE {making} RENAME TO {template}");
        // The last connections of the migration may still be on their way out.
        let mut tries = 0;
        while let Err(error) = sqlx::raw_sql(AssertSqlSafe(rename.as_str())).execute(&mut admin).await {
            tries += 1;
            assert!(tries < 100, "{error}");
            sqlx::raw_sql("SELECT pg_sleep(0.05)").execute(&mut admin).await.expect("waits");
        }
    }
    let name = new_name();
    let copy = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE {template}"));
    sqlx::raw_sql(copy).execute(&mut admin).await.expect("copies the template");
    admin.close().await.expect("closes");
    (url_of(&name), Place::Database(name))
}

/// The test cluster's URL.
fn server() -> String {
    #[expect(clippy::disallowed_methods, reason = "the one setting of the tests")]
    std::env::var("TASKHOLD_TEST_POSTGRES_URL").expect(
        "TASKHOLD_TEST_POSTGRES_URL is not set: run the tests by scripts/test, \
         or this command by scripts/postgres-for-tests",
    )
}

fn url_of(name: &str) -> String {
    let options = PgConnectOptions::from_str(&server()).expect("a PostgreSQL URL");
    format!("postgres://{}@{}:{}/{name}", options.get_username(), options.get_host(), options.get_port())
}

impl Drop for Place {
    fn drop(&mut self) {
        let Self::Database(name) = self else { return };
        let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        // Dropping cannot wait for a future on the runtime that it may be called from.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(run(&server(), &statement));
        });
        let _ = dropper.join();
    }
}
