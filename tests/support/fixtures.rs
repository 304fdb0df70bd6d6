//! Databases as an earlier release left them: `tests/fixtures/schema-NNNN`, made by `scripts/make-fixture`.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::database::{Backend, EmptyDatabase, number, run};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/schema-0004");

/// Every column of that schema with a time.
const TIMES: &[(&str, &[&str])] = &[
    ("auth_contexts", &["created"]),
    ("access_tokens", &["created", "expires", "revoked"]),
    ("tasks", &["created", "updated", "ended", "progress_at"]),
    ("task_live", &["not_before", "claimed", "hard_end"]),
    ("task_outcomes", &["expires"]),
    ("nodes", &["heartbeat"]),
    ("sessions", &["created", "last_used"]),
    ("server_keys", &["created"]),
    ("upstream_catalogs", &["seen"]),
    ("task_inputs", &["created", "deadline"]),
    ("input_deliveries", &["created"]),
    ("upstream_tasks", &["created"]),
    ("signals", &["created"]),
    ("resource_subscriptions", &["created"]),
    ("parked_calls", &["expires"]),
];

/// The database of the release with schema 0004 after its last node was killed, as if that had been a minute ago. Not migrated.
pub struct Fixture {
    pub database: EmptyDatabase,
    caller: Value,
}

impl Fixture {
    pub async fn load(backend: Backend) -> Self {
        let name = if backend == Backend::Sqlite { "sqlite" } else { "postgres" };
        let read = |file: &str| std::fs::read_to_string(format!("{FOLDER}/{file}")).expect("the fixture is there");
        let database = EmptyDatabase::new(backend).await;
        if let Some(file) = database.url.strip_prefix("sqlite://") {
            std::fs::write(file, "").expect("the file can be made");
        }
        run(&database.url, &read(&format!("{name}.sql"))).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_micros();
        let killed = number(&database.url, "SELECT MAX(updated) FROM tasks").await;
        let later = i64::try_from(now).expect("it fits") - 60_000_000 - killed;
        let tables = TIMES.iter().map(|(table, columns)| {
            let columns = columns.iter().map(|column| format!("{column} = {column} + {later}"));
            format!("UPDATE {table} SET {};", columns.collect::<Vec<_>>().join(", "))
        });
        run(&database.url, &tables.collect::<String>()).await;
        let callers: Value = serde_json::from_str(&read("caller.json")).expect("it is JSON");
        Self { database, caller: callers[name].clone() }
    }

    pub fn url(&self) -> &str {
        &self.database.url
    }

    pub fn token(&self) -> &str {
        self.caller["token"].as_str().expect("a token")
    }

    pub fn session(&self) -> &str {
        self.caller["session"].as_str().expect("a session")
    }

    /// The id of the task that stood so.
    pub fn task(&self, name: &str) -> &Value {
        assert!(self.caller["tasks"][name].is_string(), "there is a task {name}");
        &self.caller["tasks"][name]
    }
}
