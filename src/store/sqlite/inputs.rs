//! Questions of running tasks. Nothing needs a lock: each transaction has the whole database.

use super::Many;

pub const LOCK_LIVE: Many = &["SELECT task AS id, token FROM task_live WHERE task = $1"];

pub const ASKED_BEFORE: Many = &["
    SELECT task AS id, id AS input, deadline FROM task_inputs
    WHERE task = $1 AND (
        id = $2 OR asked_as = $2 OR (token <> $3 AND state IN (0, 1) AND kind = $4 AND params IS $5
            AND (state = 0 OR EXISTS (SELECT 1 FROM upstream_tasks u WHERE u.task = $1) OR NOT EXISTS (
                SELECT 1 FROM task_inputs s
                WHERE s.task = $1 AND s.token <> $3 AND s.state = 2 AND s.kind = $4 AND s.params IS $5))))
    ORDER BY (id = $2 OR asked_as IS $2) DESC, created, id LIMIT 1"];

pub const ASK: Many = &[
    "UPDATE tasks SET status = 1, message = $7,
        updated = MAX($8, updated + 1, COALESCE((SELECT l.claimed + 1 FROM task_live l WHERE l.task = $1 AND message IS NULL), 0))
    WHERE id = $1 AND status IN (0, 1) AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = $1 AND l.token = $3)
        AND (SELECT COUNT(*) FROM task_inputs i WHERE i.task = $1) < $9
    RETURNING id",
    "UPDATE task_live SET open_inputs = open_inputs + 1 WHERE task = $1",
    "INSERT INTO task_inputs (id, task, context, session, token, kind, params, state, created, deadline, name)
    SELECT $2, $1, context, session, $3, $4, $5, 0, $8, $6, $10 FROM tasks WHERE id = $1",
];

pub const ADOPT: Many = &["
    UPDATE task_inputs SET token = $3, asked_as = $4
    WHERE id = $2 AND task = $1 AND state IN (0, 1)
        AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = $1 AND l.token = $3)
    RETURNING task AS id"];

pub const ANSWER: Many = &["
    UPDATE task_inputs SET state = 1, answer = $4, answer_is_error = $5, writer = $6, answered_as = $7, node = NULL
    WHERE id = $2 AND task = $1 AND context = $3 AND state = 0
        AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = $1)
    RETURNING task AS id"];

pub const ANSWERED: Many = &["SELECT task AS id FROM task_inputs WHERE id = $1 AND writer = $2 AND state IN (1, 2)"];

pub const NEWEST_OPEN: Many = &["
    SELECT task AS id, kind, params FROM task_inputs WHERE task = $1 AND state = 0
    ORDER BY created DESC, id DESC LIMIT 1"];

pub const ONE_LESS: Many = &[
    "UPDATE task_live SET open_inputs = open_inputs - 1 WHERE task = $1 RETURNING task AS id",
    "UPDATE tasks SET updated = MAX($3, updated + 1),
        message = CASE status WHEN 1 THEN COALESCE($4, message) ELSE message END
    WHERE id = $1 AND status IN (0, 1)
        AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = $1 AND l.open_inputs > 0)",
    "UPDATE tasks SET status = 0, message = $2, updated = MAX($3, updated + 1)
    WHERE id = $1 AND status = 1
        AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = $1 AND l.open_inputs = 0)",
];

/// An id that was sent before goes on only on its stream, while no other has been sent since and no answer to it was refused.
pub const HOLD: Many = &[
    "UPDATE task_inputs SET delivery = $2, node = $7, holder = $4
    WHERE id = $3 AND task = $1 AND state = 0 AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = $1) AND (
        CASE WHEN $8 = 0 THEN client_task IS NULL AND (node IS NULL OR (node = $7 AND delivery = $2))
        ELSE client_task IS NOT NULL AND (node IS NULL OR (node = $7 AND holder = $4)) END
    ) AND NOT EXISTS (
        SELECT 1 FROM input_deliveries d WHERE d.id = $2 AND (d.stream <> $5 OR task_inputs.delivery IS NOT $2))
    RETURNING $2 AS id",
    "INSERT INTO input_deliveries (id, input, task, context, session, stream, sequence, purpose, created)
    SELECT $2, $3, $1, context, $4, $5, $6, $8, $9 FROM task_inputs WHERE id = $3
    ON CONFLICT (id) DO UPDATE SET sequence = excluded.sequence",
];

pub const LAST_DELIVERIES: Many = &["
    SELECT d.id FROM input_deliveries d
    JOIN task_inputs i ON i.id = d.input AND i.delivery = d.id AND i.state = 0 AND i.node = $2
    WHERE d.id = $1 AND d.sequence = $3"];

pub const TASKS_OF_DELIVERIES: Many = &["
    SELECT d.task AS id, t.session FROM input_deliveries d LEFT JOIN tasks t ON t.id = d.task WHERE d.id = $1"];

pub const LET_GO: Many = &["
    UPDATE task_inputs SET node = NULL
    WHERE id = (SELECT d.input FROM input_deliveries d WHERE d.id = $1) AND delivery = $1 AND node = $2
    RETURNING id"];

pub const LET_GO_DEAD: Many = &["
    UPDATE task_inputs SET node = NULL
    WHERE task = $1 AND node IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = task_inputs.node AND n.dead = 0)
    RETURNING id"];
