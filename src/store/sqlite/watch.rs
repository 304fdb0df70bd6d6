//! What is new for everything that waits on a process. A list of ids is one BLOB, cut into its ids here.

use super::super::watch::news;

pub const NEWS: &str = news! {
    // Columns have no types, but a BLOB has to be cut into its ids before the first part.
    ended: "
    WITH RECURSIVE places (n) AS (
        SELECT 0 UNION ALL SELECT n + 1 FROM places
        WHERE 16 * n < MAX(
            length($1), length($2), length($3), length($4), length($5), length($11), length($13), length($15),
            length($16)
        )
    ),
    task_ids (id) AS (SELECT substr($1, 16 * n + 1, 16) FROM places WHERE n < length($1) / 16),
    session_ids (id) AS (SELECT substr($2, 16 * n + 1, 16) FROM places WHERE n < length($2) / 16),
    context_ids (id) AS (SELECT substr($16, 16 * n + 1, 16) FROM places WHERE n < length($16) / 16),
    asking_ids (id) AS (SELECT substr($3, 16 * n + 1, 16) FROM places WHERE n < length($3) / 16),
    held_ids (id) AS (SELECT substr($4, 16 * n + 1, 16) FROM places WHERE n < length($4) / 16),
    input_ids (id) AS (SELECT substr($5, 16 * n + 1, 16) FROM places WHERE n < length($5) / 16),
    heard_ids (id) AS (SELECT substr($11, 16 * n + 1, 16) FROM places WHERE n < length($11) / 16),
    said_ids (id) AS (SELECT substr($13, 16 * n + 1, 16) FROM places WHERE n < length($13) / 16),
    listened_ids (id) AS (SELECT substr($15, 16 * n + 1, 16) FROM places WHERE n < length($15) / 16)
    SELECT 0 AS what, w.id, NULL AS task, NULL AS context, NULL AS session,
        NULL AS kind, NULL AS status, NULL AS created, NULL AS updated,
        NULL AS granted_ttl, NULL AS poll_interval, NULL AS expires,
        NULL AS tool, NULL AS message, NULL AS progress_token, NULL AS progress,
        NULL AS params, NULL AS client_task, NULL AS subject, NULL AS payload,
        NULL AS delivery, NULL AS holder, NULL AS progress_at, NULL AS claimed
    FROM task_ids w
    WHERE NOT EXISTS (SELECT 1 FROM task_live l WHERE l.task = w.id)",
    // Those that were cut above.
    session_ids: "session_ids w",
    context_ids: "context_ids w",
    is_of_sessions: "t.session IN (SELECT id FROM session_ids)",
    asking_ids: "asking_ids w",
    listened_ids: "listened_ids w",
    held_ids: "held_ids w",
    input_ids: "input_ids w",
    // Of several values one of which is NULL, the largest is NULL.
    last_change: "MAX(t.updated, COALESCE(t.progress_at, 0), COALESCE(c.claimed, 0))",
    // Compares any two values.
    is_not: "IS NOT",
    // Of a text, `length` would count the characters.
    f_size: "length(CAST(f.payload AS BLOB))",
    s_size: "length(CAST(s.payload AS BLOB))",
    // The list is made a set once.
    not_heard: "g.id NOT IN (SELECT id FROM heard_ids)",
    not_said: "t.id NOT IN (SELECT id FROM said_ids)",
    // A parameter has the type of what is bound.
    as_int: "",
};
