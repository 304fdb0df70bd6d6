//! PostgreSQL, and what speaks its protocol.

use std::future::Future;
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::postgres::{PgArguments, PgConnection, PgRow, Postgres};
use sqlx::{Arguments as _, Row as _};

use super::dialect::{Dialect, Many, bind, cells};
use super::nodes::lost;
use super::sql::{Arg, Args, Fault, running, task_columns, unconfirmed};

mod inputs;
mod listen;
mod queue;
mod watch;

pub use listen::{CHANNEL, Listening, listen_at};

/// See [`Dialect`].
pub struct PostgresDialect;

cells!(PgRow);

macro_rules! clock {
    () => {
        "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
    };
}

/// See [`Dialect::CREATE`].
macro_rules! create {
    ($unless_taken:literal, $made:literal) => {
        concat!(
            "
            WITH new AS MATERIALIZED (
                SELECT * FROM unnest(
                    $1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
                    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], $15::text[],
                    $16::uuid[], $17::uuid[], $18::bigint[], $19::text[], $20::text[], $21::bigint[], $22::text[],
                    $23::text[]
                ) AS w (
                    id, context, session, tool, upstream, upstream_tool, created,
                    granted_ttl, poll_interval, restart, attempts_allowed, run_limit, capabilities, progress_token,
                    params, node, token, hard_end, idempotency_key, digest, parked, counted_tenant, counted_tool
                )
            ), made AS (
                INSERT INTO tasks (
                    id, context, session, tool, upstream, upstream_tool, created, updated, status,
                    granted_ttl, poll_interval, restart, attempts_allowed, run_limit, capabilities, progress_token,
                    idempotency_key, digest, parked
                )
                SELECT id, context, session, tool, upstream, upstream_tool, created, created, 0,
                    granted_ttl, poll_interval, restart, attempts_allowed, run_limit, capabilities, progress_token,
                    idempotency_key, digest, parked
                FROM new ",
            $unless_taken,
            "
                RETURNING id
            ), asked AS (
                INSERT INTO task_requests (task, params) SELECT n.id, n.params FROM new n",
            $made,
            "
            ), live AS (
                INSERT INTO task_live
                    (task, session, node, token, attempt, not_before, claimed, hard_end, context, tenant, tool)
                SELECT n.id, n.session, n.node, n.token, CASE WHEN n.node IS NULL THEN 0 ELSE 1 END, n.created,
                    CASE WHEN n.node IS NULL THEN NULL ELSE n.created END, n.hard_end, n.context, n.counted_tenant, n.counted_tool
                FROM new n",
            $made,
            "
            )
            SELECT id FROM made"
        )
    };
}

/// A plan is made while a table has few rows, and kept while it grows: one that goes through all of them would do so for each
/// batch later. So rows of the hot path are found by `= ANY (ARRAY[id])`, which only an index on the id can do (`service_options` leaves it no
/// other way), and what else a condition says is put so that it fits no partial index.
///
/// Locking order, so that no two statements wait for each other: live rows first, by task id, in which order a batch's rows
/// come and its plan goes through them (see `service_options`); a row of `tasks` only under the lock of its live row. The row
/// by which claims count alone comes before all of them.
impl Dialect for PostgresDialect {
    type Database = Postgres;

    const BEGIN: &'static str = "BEGIN";
    /// One message, so that the settings cost no round trip. They are those of `service_options`, which says why.
    const BEGIN_POOLED: &'static str = "BEGIN; SET LOCAL statement_timeout = 6000; \
        SET LOCAL idle_in_transaction_session_timeout = 15000; SET LOCAL jit = off; \
        SET LOCAL random_page_cost = 1.1; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off; \
        SET LOCAL enable_mergejoin = off; SET LOCAL enable_seqscan = off";
    const MANY_IS_SEVERAL_STATEMENTS: bool = false;
    const TAKE_ANSWERS_CLAIMS: bool = true;
    const WATCH: Option<&'static str> = None;
    const WATCH_INTERVAL: Duration = Duration::from_millis(250);
    const FORGET_PLANS: Option<&'static str> = Some("DISCARD PLANS");
    const NOTIFY: Option<&'static str> = Some(listen::NOTIFY);
    const DEADLINE: Duration = Duration::from_secs(5);

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

    // Whether a key is taken is not asked where there is none: each row would be written as one that may be taken back. And
    // all are made, or none is: a join with those that were would go through them for each.
    const CREATE: Many = &[create!("", "")];
    const CREATE_KEYED: Many = &[create!(
        "ON CONFLICT (context, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING",
        " JOIN made m ON m.id = n.id"
    )];

    // The batch goes through the statement as a chain: a join of two of its parts would go through one for each row of the
    // other. The questions of the ended are found by an array: a join may begin with all open questions there are.
    const END: Many = &[concat!(
        "WITH wanted AS MATERIALIZED (
            SELECT * FROM unnest(
                $1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::text[],
                $9::uuid[]
            ) AS w (id, context, lease, status, message, now, expires, outcome, writer)
        ), gone AS (
            DELETE FROM task_live l USING wanted w
            WHERE l.task = ANY (ARRAY[w.id]) AND (w.lease IS NULL OR w.lease = l.token) AND (
                SELECT t.status IN (0, 1) AND (w.context IS NULL OR w.context = t.context) FROM tasks t WHERE t.id = w.id)
            RETURNING l.attempt, l.claimed, l.open_inputs, w.*, w.lease IS NULL AND l.node IS NOT NULL AS unconfirmed
        ), done AS (
            UPDATE tasks t
            SET status = g.status, message = CASE WHEN g.unconfirmed THEN g.message || ",
        unconfirmed!(),
        " ELSE g.message END,
                ended = g.now,
                updated = GREATEST(g.now, t.updated + 1, CASE WHEN t.message IS NULL THEN g.claimed + 1 END)
            FROM gone g
            WHERE t.id = ANY (ARRAY[g.id]) AND t.status IN (0, 1)
            RETURNING t.id, t.context, t.tool, t.status, t.message, t.created, t.updated, t.granted_ttl,
                t.poll_interval, t.session, t.progress_token, t.progress, t.progress_at, g.expires, g.outcome, g.writer,
                g.attempt, g.open_inputs
        ), kept AS (
            INSERT INTO task_outcomes (task, token, attempt, expires, outcome)
            SELECT id, writer, attempt, expires, outcome FROM done
        ), withdrawn AS (
            UPDATE task_inputs SET state = 3, node = NULL
            WHERE task = ANY (ARRAY(SELECT id FROM done WHERE open_inputs > 0)) AND state < 1
        )
        SELECT id, context, tool, status, message, created, updated, granted_ttl, poll_interval, session,
            progress_token, progress, progress_at, expires, NULL::bigint AS claimed
        FROM done"
    )];

    const WRITTEN: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        " FROM unnest($1::uuid[], $2::uuid[]) AS w (id, token)
          JOIN task_outcomes o ON o.task = ANY (ARRAY[w.id]) AND o.token = w.token
          JOIN tasks t ON t.id = ANY (ARRAY[w.id])"
    )];

    const NOTE: Many = &[concat!(
        "
        WITH wanted AS MATERIALIZED (
            SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bigint[])
                AS w (id, lease, message, progress, now)
        ), locked AS MATERIALIZED (
            SELECT l.task, l.claimed, w.message, w.progress, w.now
            FROM wanted w JOIN task_live l ON l.task = ANY (ARRAY[w.id]) AND w.lease = l.token
            ORDER BY w.id FOR UPDATE OF l
        )
        UPDATE tasks t
        SET message = CASE t.status WHEN 1 THEN t.message ELSE COALESCE(k.message, t.message) END,
            progress = COALESCE(k.progress, t.progress),
            progress_at = CASE WHEN k.progress IS NULL THEN t.progress_at ELSE k.now END,
            updated = CASE WHEN t.status <> 1 AND k.message <> COALESCE(t.message, ",
        running!(),
        ")
                THEN GREATEST(k.now, t.updated + 1, CASE WHEN t.message IS NULL THEN k.claimed + 1 END)
                ELSE GREATEST(t.updated, CASE WHEN t.message IS NULL THEN k.claimed END) END
        FROM locked k
        WHERE t.id = ANY (ARRAY[k.task]) AND t.status IN (0, 1)
        RETURNING t.id, t.context, t.tool, t.status, t.message, t.created, t.updated, t.granted_ttl, t.poll_interval,
            t.session, t.progress_token, t.progress, t.progress_at, NULL::bigint AS expires, k.claimed"
    )];

    const RELEASE: Many = &[concat!(
        "
        WITH wanted AS MATERIALIZED (
            SELECT * FROM unnest(
                $1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[]
            ) AS w (id, lease, not_before, uncounted, keeps, message, now)
        ), released AS (
            UPDATE task_live l
            SET node = NULL, token = NULL, claimed = NULL, not_before = w.not_before,
                attempt = GREATEST(0, l.attempt - w.uncounted),
                open_inputs = CASE WHEN w.keeps = 1 THEN l.open_inputs ELSE 0 END
            FROM wanted w JOIN task_live before ON before.task = ANY (ARRAY[w.id])
            WHERE l.task = ANY (ARRAY[w.id]) AND l.token = w.lease
            RETURNING l.task, before.claimed, w.keeps, w.message, w.now
        ), withdrawn AS (
            UPDATE task_inputs SET state = 3, node = NULL
            WHERE task = ANY (ARRAY(SELECT task FROM released WHERE keeps = 0)) AND state < 1
        ), back AS (
            UPDATE tasks t SET status = 0, message = k.message, updated = GREATEST(k.now, t.updated + 1)
            FROM released k
            WHERE k.keeps = 0 AND t.id = ANY (ARRAY[k.task]) AND t.status = 1
        ), changed AS (
            UPDATE tasks t SET message = k.message, updated = CASE WHEN k.message = COALESCE(t.message, ",
        running!(),
        ") THEN GREATEST(t.updated, CASE WHEN t.message IS NULL THEN k.claimed END)
                ELSE GREATEST(k.now, t.updated + 1, CASE WHEN t.message IS NULL THEN k.claimed + 1 END) END
            FROM released k
            WHERE t.id = ANY (ARRAY[k.task]) AND t.status = 0 AND t.message IS DISTINCT FROM k.message
        )
        SELECT k.task AS id, t.session FROM released k LEFT JOIN tasks t ON t.id = ANY (ARRAY[k.task])"
    )];

    const NOTE_WAITING: Many = queue::NOTE_WAITING;

    const COUNT_ALONE: &'static str = "SELECT id FROM schema_info WHERE id = 1 FOR UPDATE";

    const WAITING_IN: Many = queue::WAITING_IN;
    const PICK_WAITING: Many = queue::PICK_WAITING;
    const SLOTS_OF_CONTEXTS: Many = queue::SLOTS_OF_CONTEXTS;
    const SLOTS_OF_TENANTS: Many = queue::SLOTS_OF_TENANTS;
    const SLOTS_OF_TOOLS: Many = queue::SLOTS_OF_TOOLS;
    const TAKE: Many = queue::TAKE;
    const CLAIMS: Many = queue::CLAIMS;

    const FIND: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        " FROM unnest($1::uuid[], $2::uuid[]) AS w (context, id)
          JOIN tasks t ON t.id = ANY (ARRAY[w.id]) AND (t.context = w.context) IS TRUE AND t.parked = 0
          LEFT JOIN task_outcomes o ON o.task = ANY (ARRAY[t.id])"
    )];

    const FIND_OUTCOME: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        ", o.outcome
          FROM unnest($1::uuid[], $2::uuid[]) AS w (context, id)
          JOIN tasks t ON t.id = ANY (ARRAY[w.id]) AND (t.context = w.context) IS TRUE AND t.parked = 0
          LEFT JOIN task_outcomes o ON o.task = ANY (ARRAY[t.id])"
    )];

    const TASKS: Many = &[concat!(
        "SELECT ",
        task_columns!(),
        " FROM unnest($1::uuid[]) AS w (id)
          JOIN tasks t ON t.id = ANY (ARRAY[w.id])
          LEFT JOIN task_outcomes o ON o.task = ANY (ARRAY[t.id])"
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

    const SESSION_STREAMS: Many = &["
        SELECT s.id, s.context, s.last_used, s.stream_node, s.stream
        FROM unnest($1::uuid[]) AS w (id) JOIN sessions s ON s.id = w.id"];

    const TOKENS: Many = &["
        SELECT k.id, k.context, k.name, k.hash, k.created, k.expires, k.revoked, c.tenant
        FROM unnest($1::uuid[]) AS w (id)
        JOIN access_tokens k ON k.id = w.id
        JOIN auth_contexts c ON c.id = k.context"];

    const REAP: Many = &["
        WITH due AS MATERIALIZED (
            SELECT o.task FROM task_outcomes o
            WHERE o.expires <= ($1::bigint[])[1]
            ORDER BY o.expires, o.task LIMIT ($2::bigint[])[1]
            FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM tasks t USING due d WHERE t.id = d.task AND t.status NOT IN (0, 1) RETURNING t.id
        ), asked AS (
            DELETE FROM task_requests r USING gone g WHERE r.task = g.id
        ), inputs AS (
            DELETE FROM task_inputs i USING gone g WHERE i.task = g.id
        ), deliveries AS (
            DELETE FROM input_deliveries d USING gone g WHERE d.task = g.id
        ), handed AS (
            DELETE FROM upstream_tasks u USING gone g WHERE u.task = g.id
        ), ended AS (
            DELETE FROM task_outcomes o USING gone g WHERE o.task = g.id
        )
        SELECT id FROM gone"];

    const REAP_SESSIONS: Many = &["
        WITH due AS MATERIALIZED (
            SELECT id FROM sessions WHERE last_used < ($1::bigint[])[1]
            ORDER BY last_used, id LIMIT ($2::bigint[])[1]
            FOR UPDATE SKIP LOCKED
        )
        DELETE FROM sessions s USING due d WHERE s.id = d.id RETURNING s.id"];

    const REAP_SIGNALS: Many = &["
        WITH due AS MATERIALIZED (
            SELECT id FROM signals WHERE created < ($1::bigint[])[1]
            ORDER BY created, id LIMIT ($2::bigint[])[1]
            FOR UPDATE SKIP LOCKED
        )
        DELETE FROM signals s USING due d WHERE s.id = d.id RETURNING s.id"];

    /// A standby says so by this setting too, whatever it is set to.
    async fn takes_writes(connection: &mut PgConnection) -> Result<bool, Fault> {
        let row = sqlx::raw_sql("SHOW transaction_read_only").fetch_one(connection).await?;
        Ok(row.try_get::<String, _>(0)? == "off")
    }

    async fn fetch(
        connection: &mut PgConnection,
        sql: &'static str,
        args: Args,
        keep: bool,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        sqlx::query_with(sql, bind::<PgArguments>(args, add_list)?).persistent(keep).fetch_all(connection).await
    }

    async fn execute(
        connection: &mut PgConnection,
        sql: &'static str,
        args: Args,
        keep: bool,
    ) -> Result<u64, sqlx::Error> {
        let query = sqlx::query_with(sql, bind::<PgArguments>(args, add_list)?).persistent(keep);
        Ok(query.execute(connection).await?.rows_affected())
    }

    fn many(
        connection: &mut PgConnection,
        statement: Many,
        rows: Vec<Args>,
        keep: bool,
    ) -> impl Future<Output = Result<Vec<PgRow>, sqlx::Error>> + Send {
        let arrays = arrays(rows);
        async move {
            let Some((sql, arrays)) = statement.first().zip(arrays.transpose()?) else { return Ok(Vec::new()) };
            sqlx::query_with(*sql, arrays).persistent(keep).fetch(connection).try_collect().await
        }
    }
}

fn add_list(arguments: &mut PgArguments, ids: Vec<uuid::Uuid>) -> Result<(), sqlx::error::BoxDynError> {
    arguments.add(ids)
}

/// The rows as one array a column; `None` for no rows. Each column has one variant of [`Arg`] in all rows.
fn arrays(rows: Vec<Args>) -> Option<Result<PgArguments, sqlx::Error>> {
    let count = rows.len();
    let mut columns: Vec<Column> = Vec::new();
    for row in rows {
        if columns.is_empty() {
            columns = row.iter().map(|arg| Column::like(arg, count)).collect();
        }
        for (column, arg) in columns.iter_mut().zip(row) {
            column.push(arg);
        }
    }
    if count == 0 {
        return None;
    }
    let mut arguments = PgArguments::default();
    for column in columns {
        let added = match column {
            Column::Int(values) => arguments.add(values),
            Column::Text(values) => arguments.add(values.iter().map(Option::as_deref).collect::<Vec<_>>()),
            Column::Uuid(values) => arguments.add(values),
            Column::Bytes(values) => arguments.add(values),
        };
        if let Err(error) = added {
            return Some(Err(sqlx::Error::Encode(error)));
        }
    }
    Some(Ok(arguments))
}

enum Column {
    Int(Vec<Option<i64>>),
    Text(Vec<Option<std::sync::Arc<str>>>),
    Uuid(Vec<Option<uuid::Uuid>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

impl Column {
    fn like(arg: &Arg, count: usize) -> Self {
        match arg {
            Arg::Int(_) => Self::Int(Vec::with_capacity(count)),
            Arg::Text(_) => Self::Text(Vec::with_capacity(count)),
            Arg::Uuid(_) => Self::Uuid(Vec::with_capacity(count)),
            Arg::Bytes(_) => Self::Bytes(Vec::with_capacity(count)),
            Arg::Uuids(_) => unreachable!("a batch has no lists in its rows"),
        }
    }

    fn push(&mut self, arg: Arg) {
        match (self, arg) {
            (Self::Int(values), Arg::Int(value)) => values.push(value),
            (Self::Text(values), Arg::Text(value)) => values.push(value),
            (Self::Uuid(values), Arg::Uuid(value)) => values.push(value),
            (Self::Bytes(values), Arg::Bytes(value)) => values.push(value),
            (_, _) => unreachable!("the rows of a batch are made by one function"),
        }
    }
}
