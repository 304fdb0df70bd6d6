//! SQLite: one file, one machine, any number of processes.

use std::time::Duration;

use sqlx::Arguments as _;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};

use super::dialect::{Dialect, Many, bind, cells};
use super::nodes::lost;
use super::sql::{Args, Fault, queued, running, task_columns};

mod gathered;
mod inputs;
mod watch;

/// See [`Dialect`].
pub struct SqliteDialect;

cells!(SqliteRow);

macro_rules! clock {
    () => {
        "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
    };
}

/// When a task was claimed (`l` is its live row), where that is what it says.
macro_rules! seen {
    () => {
        "CASE WHEN tasks.message IS NULL THEN COALESCE(l.claimed, 0) ELSE 0 END"
    };
}

impl Dialect for SqliteDialect {
    type Database = Sqlite;

    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const BEGIN_POOLED: &'static str = Self::BEGIN;
    const MANY_IS_SEVERAL_STATEMENTS: bool = true;
    const TAKE_ANSWERS_CLAIMS: bool = false;
    const WATCH: Option<&'static str> = Some("PRAGMA data_version");
    const WATCH_INTERVAL: Duration = Duration::from_millis(20);
    const FORGET_PLANS: Option<&'static str> = None;
    const NOTIFY: Option<&'static str> = None;
    /// Above the busy time-out of 10 s, which must have its turn first.
    const DEADLINE: Duration = Duration::from_secs(15);

    const CLOCK: &'static str = concat!("SELECT ", clock!(), " AS now");

    const REGISTER_NODE: &'static str = concat!(
        "INSERT INTO nodes (id, heartbeat, dead) VALUES ($1, ",
        clock!(),
        ", 0) ON CONFLICT (id) DO UPDATE SET heartbeat = excluded.heartbeat RETURNING heartbeat"
    );

    const HEARTBEAT: &'static str =
        concat!("UPDATE nodes SET heartbeat = ", clock!(), " WHERE id = $1 AND dead = 0 RETURNING heartbeat");

    const DECLARE_DEAD: &'static str = concat!(
        "UPDATE nodes SET dead = 1 WHERE dead = 0 AND id <> $1 AND heartbeat < ",
        clock!(),
        " - $2 RETURNING id"
    );

    const LOST: &'static str = lost!(clock!());

    const CREATE: Many = gathered::CREATE;
    const CREATE_KEYED: Many = Self::CREATE;

    const END: Many = gathered::END;

    const WRITTEN: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        " FROM task_outcomes o JOIN tasks t ON t.id = o.task WHERE o.task = $1 AND o.token = $2"
    )];

    const NOTE: Many = &[concat!(
        "
        UPDATE tasks
        SET message = CASE status WHEN 1 THEN message ELSE COALESCE($3, message) END, progress = COALESCE($4, progress),
            progress_at = CASE WHEN $4 IS NULL THEN progress_at ELSE $5 END,
            updated = (SELECT CASE WHEN tasks.status <> 1 AND $3 <> COALESCE(tasks.message, ",
        running!(),
        ") THEN MAX($5, tasks.updated + 1, ",
        seen!(),
        " + 1) ELSE MAX(tasks.updated, ",
        seen!(),
        ") END FROM task_live l WHERE l.task = $1)
        WHERE id = $1 AND status IN (0, 1) AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = $1 AND l.token = $2)
        RETURNING id, context, tool, status, message, created, updated, granted_ttl, poll_interval, session,
            progress_token, progress, progress_at, NULL AS expires,
            (SELECT l.claimed FROM task_live l WHERE l.task = $1) AS claimed"
    )];

    const RELEASE: Many = &[
        "SELECT l.task AS id, t.session FROM task_live l LEFT JOIN tasks t ON t.id = l.task
        WHERE l.task = $1 AND l.token = $2",
        "UPDATE task_inputs SET state = 3, node = NULL WHERE $5 = 0 AND task = $1 AND state = 0",
        "UPDATE tasks SET status = 0, message = $6, updated = MAX($7, updated + 1)
        WHERE $5 = 0 AND id = $1 AND status = 1",
        // One that waits for input keeps the message that says what for.
        concat!(
            "UPDATE tasks SET message = $6, updated = (
                SELECT CASE WHEN $6 = COALESCE(tasks.message, ",
            running!(),
            ") THEN MAX(tasks.updated, ",
            seen!(),
            ") ELSE MAX($7, tasks.updated + 1, ",
            seen!(),
            " + 1) END
                FROM task_live l WHERE l.task = $1)
            WHERE id = $1 AND status = 0 AND message IS NOT $6"
        ),
        "UPDATE task_live
        SET node = NULL, token = NULL, claimed = NULL, not_before = $3, attempt = MAX(0, attempt - $4),
            open_inputs = CASE WHEN $5 = 1 THEN open_inputs ELSE 0 END
        WHERE task = $1",
    ];

    const NOTE_WAITING: Many = &[
        "SELECT task AS id FROM task_live WHERE task = $1 AND node IS NULL",
        concat!(
            "UPDATE tasks SET message = $2, updated = MAX($3, updated + 1)
            WHERE id = $1 AND status = 0 AND COALESCE(message, ",
            queued!(),
            ") <> $2"
        ),
    ];

    const COUNT_ALONE: &'static str = "SELECT id FROM schema_info WHERE id = 1";

    const WAITING_IN: Many = &["
        SELECT context, tool, task, not_before FROM task_live
        WHERE node IS NULL AND context = $1 AND tool = $2 AND not_before <= $3 AND not_before >= $5
        ORDER BY not_before, task LIMIT $4"];
    const PICK_WAITING: Many = Self::WAITING_IN;

    const SLOTS_OF_CONTEXTS: Many = &["
        SELECT $1 AS context, COUNT(*) AS held FROM task_live
        WHERE context = $1 AND node IS NOT NULL AND open_inputs = 0"];

    const SLOTS_OF_TENANTS: Many = &["
        SELECT $1 AS name, COUNT(*) AS held FROM task_live
        WHERE tenant = $1 AND tenant <> '' AND node IS NOT NULL AND open_inputs = 0"];

    const SLOTS_OF_TOOLS: Many = &["
        SELECT $1 AS name, COUNT(*) AS held FROM task_live
        WHERE tool = $1 AND tool <> '' AND node IS NOT NULL AND open_inputs = 0"];

    const TAKE: Many = gathered::TAKE;

    const CLAIMS: Many = gathered::CLAIMS;

    const FIND: Many = gathered::FIND;

    const FIND_OUTCOME: Many = gathered::FIND_OUTCOME;

    const TASKS: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        " FROM tasks t LEFT JOIN task_outcomes o ON o.task = t.id WHERE t.id = $1"
    )];

    const LOCK_LIVE: Many = inputs::LOCK_LIVE;
    const ASKED_BEFORE: Many = inputs::ASKED_BEFORE;
    const ASK: Many = inputs::ASK;
    const ADOPT: Many = inputs::ADOPT;
    const ANSWER: Many = inputs::ANSWER;
    const ANSWERED: Many = inputs::ANSWERED;
    const NEWEST_OPEN: Many = inputs::NEWEST_OPEN;
    const ONE_LESS: Many = inputs::ONE_LESS;
    const HOLD: Many = inputs::HOLD;
    const LAST_DELIVERIES: Many = inputs::LAST_DELIVERIES;
    const TASKS_OF_DELIVERIES: Many = inputs::TASKS_OF_DELIVERIES;
    const LET_GO: Many = inputs::LET_GO;
    const LET_GO_DEAD: Many = inputs::LET_GO_DEAD;
    const NEWS: &'static str = watch::NEWS;

    const SESSION_STREAMS: Many = &["SELECT id, context, last_used, stream_node, stream FROM sessions WHERE id = $1"];

    const TOKENS: Many = &["
        SELECT k.id, k.context, k.name, k.hash, k.created, k.expires, k.revoked, c.tenant
        FROM access_tokens k JOIN auth_contexts c ON c.id = k.context WHERE k.id = $1"];

    // The same rows each time: nothing else writes between the steps, and the outcomes, which say what is due, go last.
    const REAP: Many = &[
        "DELETE FROM tasks
        WHERE status NOT IN (0, 1)
            AND id IN (SELECT task FROM task_outcomes WHERE expires <= $1 ORDER BY expires, task LIMIT $2)
        RETURNING id",
        "DELETE FROM task_requests
        WHERE task IN (SELECT task FROM task_outcomes WHERE expires <= $1 ORDER BY expires, task LIMIT $2)
            AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = task_requests.task)",
        "DELETE FROM task_inputs
        WHERE task IN (SELECT task FROM task_outcomes WHERE expires <= $1 ORDER BY expires, task LIMIT $2)
            AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = task_inputs.task)",
        "DELETE FROM input_deliveries
        WHERE task IN (SELECT task FROM task_outcomes WHERE expires <= $1 ORDER BY expires, task LIMIT $2)
            AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = input_deliveries.task)",
        "DELETE FROM upstream_tasks
        WHERE task IN (SELECT task FROM task_outcomes WHERE expires <= $1 ORDER BY expires, task LIMIT $2)
            AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = upstream_tasks.task)",
        "DELETE FROM task_outcomes
        WHERE task IN (SELECT task FROM task_outcomes WHERE expires <= $1 ORDER BY expires, task LIMIT $2)
            AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = task_outcomes.task)",
    ];

    const REAP_SESSIONS: Many = &["DELETE FROM sessions
        WHERE id IN (SELECT id FROM sessions WHERE last_used < $1 ORDER BY last_used, id LIMIT $2)
        RETURNING id"];

    const REAP_SIGNALS: Many = &["DELETE FROM signals
        WHERE id IN (SELECT id FROM signals WHERE created < $1 ORDER BY created, id LIMIT $2)
        RETURNING id"];

    /// Whether the file can be written the first write says.
    async fn takes_writes(_connection: &mut SqliteConnection) -> Result<bool, Fault> {
        Ok(true)
    }

    async fn fetch(
        connection: &mut SqliteConnection,
        sql: &'static str,
        args: Args,
        keep: bool,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        sqlx::query_with(sql, bind::<SqliteArguments>(args, add_list)?).persistent(keep).fetch_all(connection).await
    }

    async fn execute(
        connection: &mut SqliteConnection,
        sql: &'static str,
        args: Args,
        keep: bool,
    ) -> Result<u64, sqlx::Error> {
        let query = sqlx::query_with(sql, bind::<SqliteArguments>(args, add_list)?).persistent(keep);
        Ok(query.execute(connection).await?.rows_affected())
    }

    async fn many(
        connection: &mut SqliteConnection,
        statement: Many,
        rows: Vec<Args>,
        keep: bool,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let Some((first, rest)) = statement.split_first().filter(|_| !rows.is_empty()) else { return Ok(Vec::new()) };
        if gathered::takes_all(statement) {
            let rows = gathered::arguments(statement, rows)?;
            let decided = Self::fetch(connection, first, rows.clone(), keep).await?;
            if !decided.is_empty() {
                for step in rest {
                    Self::execute(connection, step, rows.clone(), keep).await?;
                }
            }
            return Ok(decided);
        }
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            let decided = Self::fetch(connection, first, row.clone(), keep).await?;
            if decided.is_empty() {
                continue;
            }
            for step in rest {
                Self::execute(connection, step, row.clone(), keep).await?;
            }
            answers.extend(decided);
        }
        Ok(answers)
    }
}

/// One BLOB, sixteen bytes an id.
fn add_list(arguments: &mut SqliteArguments, ids: Vec<uuid::Uuid>) -> Result<(), sqlx::error::BoxDynError> {
    arguments.add(ids.into_iter().flat_map(uuid::Uuid::into_bytes).collect::<Vec<u8>>())
}
