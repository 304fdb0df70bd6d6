//! Statements that are run once for a whole batch: its rows come as one JSON array of arrays.
//!
//! Each statement that is sent to an SQLite connection costs two changes of thread; run for each row, they cost more than what
//! they do. The rows are taken apart once (`MATERIALIZED`): without that, each column that is read would write its row as text
//! and parse it again.

use std::sync::Arc;

use serde::ser::{Serialize, SerializeSeq, Serializer};

use super::Many;
use crate::store::sql::{Arg, Args, claim_columns, running, task_columns, unconfirmed};

/// By this a statement is known as one for a whole batch.
const ROWS: &str = "json_each($1)";

/// Begins a statement with the batch as `w`, with these columns; `{}` is a row.
macro_rules! batch {
    ($columns:literal) => {
        concat!(
            "WITH given AS MATERIALIZED (SELECT value AS v FROM json_each($1)), w AS MATERIALIZED (SELECT ",
            $columns,
            " FROM given) "
        )
    };
}

/// The batch with its tasks' ids alone.
macro_rules! batch_of_ids {
    () => {
        batch!("unhex(v->>0) AS id")
    };
}

pub const CREATE: Many = &[
    concat!(
        batch!(
            "unhex(v->>0) AS id, unhex(v->>1) AS context, unhex(v->>2) AS session, v->>3 AS tool, v->>4 AS upstream,
            v->>5 AS upstream_tool, v->>6 AS created, v->>7 AS granted_ttl, v->>8 AS poll_interval,
            v->>9 AS restart, v->>10 AS attempts_allowed, v->>11 AS run_limit, v->>12 AS capabilities,
            v->>13 AS progress_token, v->>18 AS idempotency_key, v->>19 AS digest, v->>20 AS parked"
        ),
        "INSERT INTO tasks (
            id, context, session, tool, upstream, upstream_tool, created, updated, status,
            granted_ttl, poll_interval, restart, attempts_allowed, run_limit, capabilities, progress_token,
            idempotency_key, digest, parked
        )
        SELECT id, context, session, tool, upstream, upstream_tool, created, created, 0,
            granted_ttl, poll_interval, restart, attempts_allowed, run_limit, capabilities, progress_token,
            idempotency_key, digest, parked
        FROM w WHERE true
        ON CONFLICT (context, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id"
    ),
    // Ids are made for the batch: those that are there were made by it.
    concat!(
        batch!("unhex(v->>0) AS id, COALESCE($2, v->>14) AS params"),
        "INSERT INTO task_requests (task, params)
        SELECT id, params FROM w WHERE EXISTS (SELECT 1 FROM tasks t WHERE t.id = w.id)"
    ),
    concat!(
        batch!(
            "unhex(v->>0) AS id, unhex(v->>1) AS context, unhex(v->>2) AS session, v->>6 AS created, unhex(v->>15) AS node,
            unhex(v->>16) AS token, v->>17 AS hard_end, v->>21 AS tenant, v->>22 AS tool"
        ),
        "INSERT INTO task_live (task, session, node, token, attempt, not_before, claimed, hard_end, context, tenant, tool)
        SELECT id, session, node, token, CASE WHEN node IS NULL THEN 0 ELSE 1 END, created,
            CASE WHEN node IS NULL THEN NULL ELSE created END, hard_end, context, tenant, tool
        FROM w WHERE EXISTS (SELECT 1 FROM tasks t WHERE t.id = w.id)"
    ),
];

/// After the first step, a live row of an ended task is one that this write has ended: each write that ends one deletes it.
pub const END: Many = &[
    concat!(
        batch!(
            "unhex(v->>0) AS id, unhex(v->>1) AS context, unhex(v->>2) AS lease, v->>3 AS status, v->>4 AS message,
            v->>5 AS now"
        ),
        "UPDATE tasks SET status = w.status, ended = w.now,
            updated = MAX(w.now, updated + 1, COALESCE((
                SELECT l.claimed + 1 FROM task_live l WHERE l.task = w.id AND tasks.message IS NULL), 0)),
            message = CASE
            WHEN w.lease IS NULL AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = w.id AND l.node IS NOT NULL)
            THEN w.message || ",
        unconfirmed!(),
        " ELSE w.message END
        FROM w
        WHERE tasks.id = w.id AND tasks.status IN (0, 1) AND (w.context IS NULL OR tasks.context = w.context)
            AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = w.id AND (w.lease IS NULL OR l.token = w.lease))
        RETURNING id, context, tool, status, message, created, updated, granted_ttl, poll_interval, session,
            progress_token, progress, progress_at, NULL AS expires, NULL AS claimed"
    ),
    concat!(
        batch!("unhex(v->>0) AS id, v->>6 AS expires, COALESCE($2, v->>7) AS outcome, unhex(v->>8) AS writer"),
        "INSERT INTO task_outcomes (task, token, attempt, expires, outcome)
        SELECT l.task, w.writer, l.attempt, w.expires, w.outcome
        FROM w CROSS JOIN task_live l ON l.task = w.id
        WHERE EXISTS (SELECT 1 FROM tasks t WHERE t.id = w.id AND t.status NOT IN (0, 1))"
    ),
    concat!(
        batch_of_ids!(),
        "UPDATE task_inputs SET state = 3, node = NULL
        WHERE state = 0 AND task IN (
            SELECT l.task FROM w CROSS JOIN task_live l ON l.task = w.id
            WHERE l.open_inputs > 0 AND EXISTS (SELECT 1 FROM tasks t WHERE t.id = w.id AND t.status NOT IN (0, 1)))"
    ),
    concat!(
        batch_of_ids!(),
        "DELETE FROM task_live WHERE task IN (
            SELECT t.id FROM w CROSS JOIN tasks t ON t.id = w.id WHERE t.status NOT IN (0, 1))"
    ),
];

pub const TAKE: Many = &[
    concat!(
        batch!("unhex(v->>0) AS id, unhex(v->>1) AS node, unhex(v->>2) AS token, v->>3 AS now"),
        "UPDATE task_live SET node = w.node, token = w.token, claimed = w.now,
            attempt = MIN(attempt, 2147483646) + 1,
            context = CASE context WHEN x'00000000000000000000000000000000'
                THEN COALESCE((SELECT t.context FROM tasks t WHERE t.id = w.id), context) ELSE context END
        FROM w
        WHERE task_live.task = w.id AND task_live.node IS NULL
        RETURNING task AS id"
    ),
    concat!(
        batch!("unhex(v->>0) AS id, unhex(v->>2) AS token, v->>3 AS now"),
        "UPDATE tasks SET message = NULL, updated = MAX(w.now, updated + 1)
        FROM w
        WHERE tasks.id = w.id AND tasks.status = 0 AND tasks.message <> ",
        running!(),
        "
            AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = w.id AND l.token = w.token)"
    ),
];

pub const CLAIMS: Many = &[concat!(
    batch!("unhex(v->>0) AS id, unhex(v->>1) AS token"),
    "SELECT ",
    claim_columns!(),
    " FROM w CROSS JOIN task_live l ON l.task = w.id AND l.token = w.token
      LEFT JOIN tasks t ON t.id = l.task
      LEFT JOIN task_requests r ON r.task = l.task
      LEFT JOIN upstream_tasks u ON u.task = l.task"
)];

pub const FIND: Many = &[concat!(
    batch!("unhex(v->>0) AS context, unhex(v->>1) AS id"),
    "SELECT ",
    task_columns!(),
    " FROM w CROSS JOIN tasks t ON t.id = w.id AND t.context = w.context AND t.parked = 0
      LEFT JOIN task_outcomes o ON o.task = t.id"
)];

pub const FIND_OUTCOME: Many = &[concat!(
    batch!("unhex(v->>0) AS context, unhex(v->>1) AS id"),
    "SELECT ",
    task_columns!(),
    ", o.outcome FROM w CROSS JOIN tasks t ON t.id = w.id AND t.context = w.context AND t.parked = 0
      LEFT JOIN task_outcomes o ON o.task = t.id"
)];

/// Whether a statement takes all rows of a batch at once.
pub fn takes_all(statement: Many) -> bool {
    statement.first().is_some_and(|step| step.contains(ROWS))
}

/// A text of more bytes is not made a part of JSON, which would hold it several times: it is the argument `$2`.
const LARGE: usize = 16 << 10;
/// How a statement takes the text that may be large, and which of a row's arguments that is.
const LARGE_OF: &str = "COALESCE($2, v->>";

/// The arguments of a statement for a whole batch: its rows as a JSON array of arrays, ids and other bytes in hexadecimal, and
/// apart from these a large text, which is in a batch of its own.
pub fn arguments(statement: Many, mut rows: Vec<Args>) -> Result<Args, sqlx::Error> {
    let mut large = None::<Arc<str>>;
    if let [row] = rows.as_mut_slice()
        && row.iter().any(|arg| matches!(arg, Arg::Text(Some(text)) if text.len() > LARGE))
    {
        let at =
            statement.iter().find_map(|step| step.split(LARGE_OF).nth(1)?.split(')').next()?.parse::<usize>().ok());
        if let Some(Arg::Text(text)) = at.and_then(|at| row.get_mut(at)) {
            large = text.take();
        }
    }
    let cells: Vec<Cells> = rows.iter().map(Cells).collect();
    let json = serde_json::to_string(&cells).map_err(|error| sqlx::Error::Encode(error.into()))?;
    Ok(vec![Arg::from(json), Arg::Text(large)])
}

struct Cells<'a>(&'a Args);

impl Serialize for Cells<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_seq(Some(self.0.len()))?;
        for arg in self.0 {
            match arg {
                Arg::Int(value) => row.serialize_element(value)?,
                Arg::Text(value) => row.serialize_element(&value.as_deref())?,
                Arg::Uuid(value) => {
                    let mut text = uuid::Uuid::encode_buffer();
                    row.serialize_element(&value.map(|id| &*id.simple().encode_lower(&mut text)))?;
                }
                Arg::Bytes(value) => {
                    let text = value.as_deref().map(|bytes| data_encoding::HEXLOWER.encode(bytes));
                    row.serialize_element(&text)?;
                }
                Arg::Uuids(_) => return Err(serde::ser::Error::custom("a batch has no lists in its rows")),
            }
        }
        row.end()
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, SqliteConnection};

    use super::*;
    use crate::store::dialect::Dialect;
    use crate::store::sql::{Cells as _, args};
    use crate::store::sqlite::SqliteDialect;
    use crate::store::{DatabaseOptions, migrate};

    const ALL: [(&str, Many); 6] = [
        ("CREATE", CREATE),
        ("END", END),
        ("TAKE", TAKE),
        ("CLAIMS", CLAIMS),
        ("FIND", FIND),
        ("FIND_OUTCOME", FIND_OUTCOME),
    ];

    #[test]
    fn every_step_of_a_gathered_statement_takes_the_whole_batch() {
        for (name, statement) in ALL {
            assert!(takes_all(statement) && statement.iter().all(|step| step.contains(ROWS)), "{name}");
        }
    }

    #[tokio::test]
    async fn a_batch_comes_out_as_it_went_in() {
        let text = "\u{1}\"\\\n\u{7f}\u{2028}\u{1f600} {\"a\":\"\\ud800\\u0000\"}";
        let id = uuid::Uuid::from_u128(7);
        let rows = [
            args![i64::MIN, text, id, vec![0_u8, 255]],
            args![None::<i64>, None::<&str>, None::<uuid::Uuid>, i64::MAX],
        ];
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let sql = "SELECT value->>0 AS a, value->>1 AS b, unhex(value->>2) AS c, value->>3 AS d FROM json_each($1)";
        let arguments = arguments(FIND, rows.to_vec()).unwrap();
        let read = SqliteDialect::fetch(&mut connection, sql, arguments, false).await.unwrap();
        assert_eq!(read[0].int("a").unwrap(), i64::MIN);
        assert_eq!(read[0].text("b").unwrap(), text);
        assert_eq!(read[0].uuid("c").unwrap(), id);
        assert_eq!(read[0].text("d").unwrap(), "00ff");
        assert_eq!((read[1].maybe_int("a").unwrap(), read[1].maybe_text("b").unwrap()), (None, None));
        assert_eq!((read[1].maybe_uuid("c").unwrap(), read[1].int("d").unwrap()), (None, i64::MAX));
    }

    #[test]
    fn a_large_text_is_no_part_of_the_json() {
        let large = "x".repeat(LARGE + 1);
        for (statement, at, count) in [(CREATE, 14, 23), (END, 7, 9)] {
            let mut row = vec![Arg::Text(Some("small".into())); count];
            row[at] = Arg::Text(Some(large.as_str().into()));
            let apart = arguments(statement, vec![row.clone()]).unwrap();
            assert!(matches!(&apart[0], Arg::Text(Some(json)) if json.len() < LARGE));
            assert!(matches!(&apart[1], Arg::Text(Some(text)) if **text == *large));
            row[at] = Arg::Text(Some("small".into()));
            assert!(matches!(arguments(statement, vec![row]).unwrap()[1], Arg::Text(None)));
        }
    }

    /// However large the tables are, a batch costs what its rows do.
    #[tokio::test]
    async fn no_gathered_statement_goes_through_a_table() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("taskhold.db").display());
        migrate::migrate(&DatabaseOptions::new(url.as_str())).await.unwrap();
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        for (name, statement) in ALL {
            for step in statement {
                let explain: &'static str = format!("EXPLAIN QUERY PLAN {step}").leak();
                let plan = SqliteDialect::fetch(&mut connection, explain, args!["[]"], false).await.unwrap();
                let lines: Vec<String> = plan.iter().map(|line| line.text("detail").unwrap()).collect();
                let scans = lines.iter().filter(|line| {
                    line.starts_with("SCAN")
                        && !["SCAN w", "SCAN given", "SCAN json_each"]
                            .iter()
                            .any(|own| line.split(" VIRTUAL").next() == Some(own))
                });
                assert_eq!(scans.count(), 0, "{name}: {}", lines.join("\n"));
                assert!(!lines.iter().any(|line| line.contains("AUTOMATIC")), "{name}: {}", lines.join("\n"));
            }
        }
    }
}
