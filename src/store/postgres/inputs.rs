//! Questions of running tasks. Each of these runs in a transaction that holds the lock of the tasks' live rows, taken by a
//! statement of its own: what the others see is not older than the lock. So no question that was asked meanwhile is missed,
//! and the count in the live row is that of the open questions.

use super::Many;

pub const LOCK_LIVE: Many = &["
    SELECT l.task AS id, l.token
    FROM unnest($1::uuid[]) AS w (id) JOIN task_live l ON l.task = ANY (ARRAY[w.id])
    ORDER BY w.id FOR UPDATE OF l"];

pub const ASKED_BEFORE: Many = &["
    SELECT DISTINCT ON (w.task) w.task AS id, i.id AS input, i.deadline
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[]) AS w (task, id, lease, kind, params)
    JOIN task_inputs i ON i.task = w.task
    WHERE i.id = w.id OR i.asked_as = w.id
        OR (i.token <> w.lease AND i.state IN (0, 1) AND i.kind = w.kind AND i.params IS NOT DISTINCT FROM w.params
            AND (i.state = 0 OR EXISTS (SELECT 1 FROM upstream_tasks u WHERE u.task = w.task) OR NOT EXISTS (
                SELECT 1 FROM task_inputs s
                WHERE s.task = w.task AND s.token <> w.lease AND s.state = 2
                    AND s.kind = w.kind AND s.params IS NOT DISTINCT FROM w.params)))
    ORDER BY w.task, (i.id = w.id OR i.asked_as IS NOT DISTINCT FROM w.id) DESC, i.created, i.id"];

pub const ASK: Many = &["
    WITH wanted AS MATERIALIZED (
        SELECT * FROM unnest(
            $1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::bigint[], $7::text[], $8::bigint[],
            $9::bigint[], $10::text[]
        ) AS w (task, id, lease, kind, params, deadline, message, now, most, name)
    ), changed AS (
        UPDATE tasks t SET status = 1, message = w.message,
            updated = GREATEST(w.now, t.updated + 1, CASE WHEN t.message IS NULL THEN l.claimed + 1 END)
        FROM wanted w JOIN task_live l ON l.task = w.task AND l.token = w.lease
        WHERE t.id = w.task AND t.status IN (0, 1)
            AND (SELECT COUNT(*) FROM task_inputs i WHERE i.task = w.task) < w.most
        RETURNING t.id, t.context, t.session
    ), counted AS (
        UPDATE task_live l SET open_inputs = l.open_inputs + 1 FROM changed c WHERE l.task = c.id
    ), asked AS (
        INSERT INTO task_inputs (id, task, context, session, token, kind, params, state, created, deadline, name)
        SELECT w.id, c.id, c.context, c.session, w.lease, w.kind, w.params, 0, w.now, w.deadline, w.name
        FROM wanted w JOIN changed c ON c.id = w.task
    )
    SELECT id FROM changed"];

pub const ADOPT: Many = &["
    UPDATE task_inputs i SET token = w.lease, asked_as = w.id
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[]) AS w (task, input, lease, id)
    JOIN task_live l ON l.task = w.task AND l.token = w.lease
    WHERE i.id = w.input AND i.task = w.task AND i.state IN (0, 1)
    RETURNING i.task AS id"];

pub const ANSWER: Many = &["
    UPDATE task_inputs i
    SET state = 1, answer = w.answer, answer_is_error = w.is_error, writer = w.writer, answered_as = w.delivery,
        node = NULL
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::uuid[], $7::uuid[])
        AS w (task, input, context, answer, is_error, writer, delivery)
    JOIN task_live l ON l.task = w.task
    WHERE i.id = w.input AND i.task = w.task AND i.context = w.context AND i.state = 0
    RETURNING i.task AS id"];

pub const ANSWERED: Many = &["
    SELECT i.task AS id
    FROM unnest($1::uuid[], $2::uuid[]) AS w (input, writer)
    JOIN task_inputs i ON i.id = w.input AND i.writer = w.writer AND i.state IN (1, 2)"];

pub const NEWEST_OPEN: Many = &["
    SELECT DISTINCT ON (i.task) i.task AS id, i.kind, i.params
    FROM unnest($1::uuid[]) AS w (task)
    JOIN task_inputs i ON i.task = w.task AND i.state = 0
    ORDER BY i.task, i.created DESC, i.id DESC"];

pub const ONE_LESS: Many = &["
    WITH lessened AS (
        UPDATE task_live l SET open_inputs = l.open_inputs - 1
        FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[]) AS w (task, message, now, asking)
        WHERE l.task = w.task
        RETURNING l.task, l.open_inputs, w.message, w.now, w.asking
    ), back AS (
        UPDATE tasks t SET status = 0, message = k.message, updated = GREATEST(k.now, t.updated + 1)
        FROM lessened k
        WHERE t.id = k.task AND k.open_inputs = 0 AND t.status = 1
    ), fewer AS (
        UPDATE tasks t SET updated = GREATEST(k.now, t.updated + 1),
            message = CASE t.status WHEN 1 THEN COALESCE(k.asking, t.message) ELSE t.message END
        FROM lessened k
        WHERE t.id = k.task AND k.open_inputs > 0 AND t.status IN (0, 1)
    )
    SELECT task AS id FROM lessened"];

/// An id that was sent before goes on only on its stream, while no other has been sent since and no answer to it was refused.
pub const HOLD: Many = &["
    WITH held AS (
        UPDATE task_inputs i SET delivery = w.id, node = w.node, holder = w.session
        FROM unnest(
            $1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::bigint[], $7::uuid[], $8::bigint[],
            $9::bigint[]
        ) AS w (task, id, input, session, stream, sequence, node, purpose, now)
        JOIN task_live l ON l.task = w.task
        WHERE i.id = w.input AND i.task = w.task AND i.state = 0 AND (
            CASE WHEN w.purpose = 0
                THEN i.client_task IS NULL AND (i.node IS NULL OR (i.node = w.node AND i.delivery = w.id))
            ELSE i.client_task IS NOT NULL AND (i.node IS NULL OR (i.node = w.node AND i.holder = w.session)) END
        ) AND NOT EXISTS (
            SELECT 1 FROM input_deliveries d
            WHERE d.id = w.id AND (d.stream <> w.stream OR i.delivery IS DISTINCT FROM w.id))
        RETURNING w.*, i.context
    )
    INSERT INTO input_deliveries (id, input, task, context, session, stream, sequence, purpose, created)
    SELECT id, input, task, context, session, stream, sequence, purpose, now FROM held
    ON CONFLICT (id) DO UPDATE SET sequence = EXCLUDED.sequence
    RETURNING id"];

pub const LAST_DELIVERIES: Many = &["
    SELECT d.id
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS w (id, node, sequence)
    JOIN input_deliveries d ON d.id = w.id AND d.sequence = w.sequence
    JOIN task_inputs i ON i.id = d.input AND i.delivery = d.id AND i.state = 0 AND i.node = w.node"];

pub const TASKS_OF_DELIVERIES: Many = &["
    SELECT DISTINCT d.task AS id, t.session
    FROM unnest($1::uuid[]) AS w (id) JOIN input_deliveries d ON d.id = w.id
    LEFT JOIN tasks t ON t.id = d.task"];

pub const LET_GO: Many = &["
    UPDATE task_inputs i SET node = NULL
    FROM unnest($1::uuid[], $2::uuid[]) AS w (delivery, node)
    JOIN input_deliveries d ON d.id = w.delivery
    WHERE i.id = d.input AND i.delivery = w.delivery AND i.node = w.node
    RETURNING i.id"];

pub const LET_GO_DEAD: Many = &["
    UPDATE task_inputs i SET node = NULL
    FROM unnest($1::uuid[]) AS w (task)
    WHERE i.task = w.task AND i.node IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = i.node AND n.dead = 0)
    RETURNING i.id"];
