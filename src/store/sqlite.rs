//! SQLite: one file, one machine, any number of processes.

use std::time::Duration;

use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};

use super::dialect::{Dialect, Many, bind, cells};
use super::sql::{Args, claim_columns, task_columns};

/// See [`Dialect`].
pub struct SqliteDialect;

cells!(SqliteRow);

macro_rules! clock {
    () => {
        "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
    };
}

/// Sets the message `$3` at the time `$4` where it differs.
macro_rules! change_message {
    ($id:literal, $message:literal, $now:literal) => {
        concat!(
            "UPDATE tasks SET message = ",
            $message,
            ", updated = MAX(",
            $now,
            ", updated + 1) WHERE id = ",
            $id,
            " AND status IN (0, 1) AND message IS NOT ",
            $message
        )
    };
}

impl Dialect for SqliteDialect {
    type Database = Sqlite;

    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const MANY_IS_SEVERAL_STATEMENTS: bool = true;
    const WATCH: Option<&'static str> = Some("PRAGMA data_version");
    const WATCH_INTERVAL: Duration = Duration::from_millis(20);
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

    const PICK_WAITING: &'static str = "
        SELECT task FROM task_live
        WHERE node IS NULL AND not_before <= $1
        ORDER BY not_before, task LIMIT $2";

    const CREATE: Many = &[
        "INSERT INTO tasks (
            id, context, session, tool, upstream, upstream_tool, message, created, updated, status,
            granted_ttl, poll_interval, restart, attempts_allowed, run_limit, capabilities, progress_token
        ) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, 0, $9, $10, $11, $12, $13, $14, $15)
        RETURNING id",
        "INSERT INTO task_requests (task, params) VALUES ($1, $16)",
        "INSERT INTO task_live (task, node, token, attempt, not_before, claimed, hard_end)
        VALUES ($1, $17, $18, CASE WHEN $17 IS NULL THEN 0 ELSE 1 END, $8,
            CASE WHEN $17 IS NULL THEN NULL ELSE $8 END, $19)",
    ];

    const END: Many = &[
        "UPDATE tasks SET status = $4, message = $5, ended = $6, updated = MAX($6, updated + 1)
        WHERE id = $1 AND status IN (0, 1) AND ($2 IS NULL OR context = $2)
            AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = $1 AND ($3 IS NULL OR l.token = $3))
        RETURNING id, context, tool, status, message, created, updated, granted_ttl, poll_interval, $7 AS expires",
        "INSERT INTO task_outcomes (task, token, attempt, expires, outcome)
        SELECT task, $9, attempt, $7, $8 FROM task_live WHERE task = $1",
        "DELETE FROM task_live WHERE task = $1",
    ];

    const WRITTEN: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        " FROM task_outcomes o JOIN tasks t ON t.id = o.task WHERE o.task = $1 AND o.token = $2"
    )];

    const NOTE: Many =
        &["SELECT task AS id FROM task_live WHERE task = $1 AND token = $2", change_message!("$1", "$3", "$4")];

    const RELEASE: Many = &[
        "UPDATE task_live
        SET node = NULL, token = NULL, claimed = NULL, not_before = $3, attempt = MAX(0, attempt - $4)
        WHERE task = $1 AND token = $2
        RETURNING task AS id",
        change_message!("$1", "$5", "$6"),
    ];

    const NOTE_WAITING: Many =
        &["SELECT task AS id FROM task_live WHERE task = $1 AND node IS NULL", change_message!("$1", "$2", "$3")];

    const TAKE: Many = &[
        "UPDATE task_live SET node = $2, token = $3, claimed = $5, attempt = attempt + 1
        WHERE task = $1 AND node IS NULL
        RETURNING task AS id",
        change_message!("$1", "$4", "$5"),
    ];

    const CLAIMS: Many = &[concat!(
        "SELECT ",
        claim_columns!(),
        " FROM task_live l
          LEFT JOIN tasks t ON t.id = l.task
          LEFT JOIN task_requests r ON r.task = l.task
          WHERE l.task = $1 AND l.token = $2"
    )];

    const FIND: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        " FROM tasks t LEFT JOIN task_outcomes o ON o.task = t.id WHERE t.context = $1 AND t.id = $2"
    )];

    const FIND_OUTCOME: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        ", o.outcome FROM tasks t LEFT JOIN task_outcomes o ON o.task = t.id WHERE t.context = $1 AND t.id = $2"
    )];

    const LIVE: Many = &["SELECT task AS id FROM task_live WHERE task = $1"];

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
        "DELETE FROM task_outcomes
        WHERE task IN (SELECT task FROM task_outcomes WHERE expires <= $1 ORDER BY expires, task LIMIT $2)
            AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = task_outcomes.task)",
    ];

    const REAP_SESSIONS: Many = &["DELETE FROM sessions
        WHERE id IN (SELECT id FROM sessions WHERE last_used < $1 ORDER BY last_used, id LIMIT $2)
        RETURNING id"];

    async fn fetch(
        connection: &mut SqliteConnection,
        sql: &'static str,
        args: Args,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        sqlx::query_with(sql, bind::<SqliteArguments>(args)?).fetch_all(connection).await
    }

    async fn execute(connection: &mut SqliteConnection, sql: &'static str, args: Args) -> Result<u64, sqlx::Error> {
        Ok(sqlx::query_with(sql, bind::<SqliteArguments>(args)?).execute(connection).await?.rows_affected())
    }

    async fn many(
        connection: &mut SqliteConnection,
        statement: Many,
        rows: Vec<Args>,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let Some((first, rest)) = statement.split_first() else { return Ok(Vec::new()) };
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            let decided = Self::fetch(connection, first, row.clone()).await?;
            if decided.is_empty() {
                continue;
            }
            for step in rest {
                Self::execute(connection, step, row.clone()).await?;
            }
            answers.extend(decided);
        }
        Ok(answers)
    }
}
