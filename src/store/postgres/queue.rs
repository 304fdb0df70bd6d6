//! What waits, who holds slots, and how tasks are claimed.

use super::Many;
use crate::store::sql::{claim_columns, queued, running};

/// See `Dialect::WAITING_IN`. The limit of a subquery cannot differ by its row. Rows are compared, and not columns for equality:
/// the planner, which then needs no order by them, may go through all that wait by their time instead of through the lane.
macro_rules! waiting_in {
    ($lock:literal) => {
        concat!(
            "SELECT w.context, w.tool, p.task, p.not_before
             FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w (context, tool, now, most, since)
             CROSS JOIN LATERAL (
                SELECT l.task, l.not_before FROM task_live l
                WHERE l.node IS NULL AND (l.context, l.tool, l.not_before) >= (w.context, w.tool, w.since)
                    AND (l.context, l.tool, l.not_before) <= (w.context, w.tool, w.now)
                ORDER BY l.context, l.tool, l.not_before, l.task LIMIT ($4::bigint[])[1] ",
            $lock,
            ") p"
        )
    };
}

pub const NOTE_WAITING: Many = &[concat!(
    "
    WITH wanted AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS w (id, message, now)
    ), locked AS MATERIALIZED (
        SELECT l.task, w.message, w.now
        FROM wanted w JOIN task_live l ON l.task = ANY (ARRAY[w.id])
        WHERE l.token IS NULL
        ORDER BY w.id FOR UPDATE OF l SKIP LOCKED
    )
    UPDATE tasks t SET message = k.message, updated = GREATEST(k.now, t.updated + 1)
    FROM locked k
    WHERE t.id = ANY (ARRAY[k.task]) AND t.status = 0 AND k.message <> COALESCE(t.message, ",
    queued!(),
    ")
    RETURNING t.id"
)];

pub const WAITING_IN: Many = &[waiting_in!("")];

pub const PICK_WAITING: Many = &[waiting_in!("FOR UPDATE SKIP LOCKED")];

pub const SLOTS_OF_CONTEXTS: Many = &["
    SELECT w.context, (
        SELECT COUNT(*) FROM task_live l WHERE l.context = w.context AND l.node IS NOT NULL AND l.open_inputs = 0
    ) AS held
    FROM unnest($1::uuid[]) AS w (context)"];

pub const SLOTS_OF_TENANTS: Many = &["
    SELECT w.name, (
        SELECT COUNT(*) FROM task_live l
        WHERE l.tenant = w.name AND l.tenant <> '' AND l.node IS NOT NULL AND l.open_inputs = 0
    ) AS held
    FROM unnest($1::text[]) AS w (name)"];

pub const SLOTS_OF_TOOLS: Many = &["
    SELECT w.name, (
        SELECT COUNT(*) FROM task_live l
        WHERE l.tool = w.name AND l.tool <> '' AND l.node IS NOT NULL AND l.open_inputs = 0
    ) AS held
    FROM unnest($1::text[]) AS w (name)"];

// The rows are those before this statement: none of the columns that it changes is taken from `tasks`.
pub const TAKE: Many = &[concat!(
    "
    WITH wanted AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[]) AS w (id, node, lease, now)
    ), taken AS (
        UPDATE task_live l SET node = w.node, token = w.lease, claimed = w.now,
            -- Whatever stands in a broken row: one that cannot be counted up would stop every claim.
            attempt = LEAST(l.attempt, 2147483646) + 1,
            context = CASE l.context WHEN '00000000-0000-0000-0000-000000000000'
                THEN COALESCE((SELECT t.context FROM tasks t WHERE t.id = l.task), l.context) ELSE l.context END
        FROM wanted w
        WHERE l.task = ANY (ARRAY[w.id]) AND l.token IS NULL
        RETURNING l.*
    ), silent AS (
        UPDATE tasks t SET message = NULL, updated = GREATEST(k.claimed, t.updated + 1) FROM taken k
        WHERE t.id = ANY (ARRAY[k.task]) AND t.status = 0 AND t.message <> ",
    running!(),
    "
    )
    SELECT ",
    claim_columns!(),
    " FROM taken l
      LEFT JOIN tasks t ON t.id = ANY (ARRAY[l.task])
      LEFT JOIN task_requests r ON r.task = ANY (ARRAY[l.task])
      LEFT JOIN upstream_tasks u ON u.task = ANY (ARRAY[l.task])"
)];

pub const CLAIMS: Many = &[concat!(
    "SELECT ",
    claim_columns!(),
    " FROM unnest($1::uuid[], $2::uuid[]) AS w (id, token)
      JOIN task_live l ON l.task = ANY (ARRAY[w.id]) AND l.token = w.token
      LEFT JOIN tasks t ON t.id = ANY (ARRAY[l.task])
      LEFT JOIN task_requests r ON r.task = ANY (ARRAY[l.task])
      LEFT JOIN upstream_tasks u ON u.task = ANY (ARRAY[l.task])"
)];
