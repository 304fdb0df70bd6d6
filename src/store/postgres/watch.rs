//! What is new for everything that waits on a node: one statement.

use super::super::watch::news;

pub const NEWS: &str = news! {
    // The first part gives the columns their types, which a bare NULL has not.
    ended: "
    SELECT 0::bigint AS what, w.id, NULL::uuid AS task, NULL::uuid AS context, NULL::uuid AS session,
        NULL::bigint AS kind, NULL::bigint AS status, NULL::bigint AS created, NULL::bigint AS updated,
        NULL::bigint AS granted_ttl, NULL::bigint AS poll_interval, NULL::bigint AS expires,
        NULL::text AS tool, NULL::text AS message, NULL::text AS progress_token, NULL::text AS progress,
        NULL::text AS params, NULL::text AS client_task, NULL::text AS subject, NULL::text AS payload,
        NULL::uuid AS delivery, NULL::uuid AS holder, NULL::bigint AS progress_at,
        NULL::bigint AS claimed
    FROM unnest($1::uuid[]) AS w (id)
    WHERE NOT EXISTS (SELECT 1 FROM task_live l WHERE l.task = w.id)",
    // A list of ids is one array.
    session_ids: "unnest($2::uuid[]) AS w (id)",
    context_ids: "unnest($16::uuid[]) AS w (id)",
    // Not a join: of how many ids there are the plan knows nothing, and it would go through the list for each row. A test
    // that is no join is looked up in a table made once.
    is_of_sessions: "(t.session IN (SELECT s.id FROM unnest($2::uuid[]) AS s (id))) IS TRUE",
    asking_ids: "unnest($3::uuid[]) AS w (id)",
    listened_ids: "unnest($15::uuid[]) AS w (id)",
    held_ids: "unnest($4::uuid[]) AS w (id)",
    input_ids: "unnest($5::uuid[]) AS w (id)",
    // Passes over a NULL.
    last_change: "GREATEST(t.updated, t.progress_at, c.claimed)",
    // Here `IS NOT` is for NULL and truth values alone.
    is_not: "IS DISTINCT FROM",
    // In bytes, as the bound is.
    f_size: "octet_length(f.payload)",
    s_size: "octet_length(s.payload)",
    // No join either, for the reason that `is_of_sessions` gives.
    not_heard: "(g.id IN (SELECT h.id FROM unnest($11::uuid[]) AS h (id))) IS NOT TRUE",
    not_said: "(t.id IN (SELECT h.id FROM unnest($13::uuid[]) AS h (id))) IS NOT TRUE",
    // From where such a parameter stands its type does not follow.
    as_int: "::bigint",
};
