-- The same tables as on PostgreSQL, in STRICT tables: ids as 16-byte BLOBs, times as INTEGER microseconds since the epoch.

-- Authorization contexts: what tasks are bound to. Empty text stands for "none".
CREATE TABLE auth_contexts (
    id BLOB NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    client TEXT NOT NULL,
    created INTEGER NOT NULL,
    UNIQUE (tenant, issuer, subject, client)
) STRICT;

-- Issued tokens; the secret is nowhere, only its argon2id hash.
CREATE TABLE access_tokens (
    id BLOB NOT NULL PRIMARY KEY,
    context BLOB NOT NULL,
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER,
    revoked INTEGER
) STRICT;

-- One row a task. No column that changes is indexed.
CREATE TABLE tasks (
    id BLOB NOT NULL PRIMARY KEY,
    context BLOB NOT NULL,
    session BLOB,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    ended INTEGER,
    status INTEGER NOT NULL CHECK (status BETWEEN 0 AND 5),
    granted_ttl INTEGER CHECK (granted_ttl > 0),
    poll_interval INTEGER NOT NULL CHECK (poll_interval >= 0),
    restart INTEGER NOT NULL CHECK (restart IN (0, 1)),
    attempts_allowed INTEGER NOT NULL CHECK (attempts_allowed >= 0),
    run_limit INTEGER NOT NULL CHECK (run_limit >= 0),
    era INTEGER NOT NULL DEFAULT 0,
    method TEXT NOT NULL DEFAULT 'tools/call',
    tool TEXT NOT NULL,
    upstream TEXT NOT NULL,
    upstream_tool TEXT NOT NULL,
    message TEXT,
    capabilities TEXT NOT NULL,
    progress_token TEXT,
    CHECK ((status IN (0, 1)) = (ended IS NULL))
) STRICT;
CREATE INDEX tasks_by_context ON tasks (context, created DESC, id DESC);

-- One row an unfinished task, made with it and deleted by the write that ends it: small whatever the history.
CREATE TABLE task_live (
    task BLOB NOT NULL PRIMARY KEY,
    node BLOB,
    token BLOB,
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    not_before INTEGER NOT NULL,
    claimed INTEGER,
    hard_end INTEGER NOT NULL,
    CHECK ((node IS NULL) = (token IS NULL) AND (node IS NULL) = (claimed IS NULL))
) STRICT;
CREATE INDEX task_live_by_node ON task_live (node) WHERE node IS NOT NULL;
CREATE INDEX task_live_waiting ON task_live (not_before, task) WHERE node IS NULL;
CREATE INDEX task_live_by_hard_end ON task_live (hard_end);

-- The call's params as they arrived. Insert-only.
CREATE TABLE task_requests (
    task BLOB NOT NULL PRIMARY KEY,
    params TEXT NOT NULL
) STRICT;

-- How a task ended. Insert-only; `token` is the writer's, so that a repeated write finds itself.
CREATE TABLE task_outcomes (
    task BLOB NOT NULL PRIMARY KEY,
    token BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    expires INTEGER,
    outcome TEXT
) STRICT;
CREATE INDEX task_outcomes_by_expiry ON task_outcomes (expires, task) WHERE expires IS NOT NULL;

-- Each start of each process.
CREATE TABLE nodes (
    id BLOB NOT NULL PRIMARY KEY,
    heartbeat INTEGER NOT NULL,
    dead INTEGER NOT NULL DEFAULT 0 CHECK (dead IN (0, 1))
) STRICT;

-- Legacy sessions.
CREATE TABLE sessions (
    id BLOB NOT NULL PRIMARY KEY,
    context BLOB NOT NULL,
    revision TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    created INTEGER NOT NULL,
    last_used INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_by_last_use ON sessions (last_used);
CREATE INDEX sessions_by_context ON sessions (context, last_used);

-- The installation's own keys.
CREATE TABLE server_keys (
    kind TEXT NOT NULL PRIMARY KEY,
    secret BLOB NOT NULL,
    created INTEGER NOT NULL
) STRICT;

-- The last known lists of each upstream; an exposed name, once given, does not move.
CREATE TABLE upstream_catalogs (
    upstream TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    exposed TEXT NOT NULL,
    definition TEXT NOT NULL,
    rank INTEGER NOT NULL,
    listed INTEGER NOT NULL CHECK (listed IN (0, 1)),
    seen INTEGER NOT NULL,
    PRIMARY KEY (upstream, kind, name),
    UNIQUE (kind, exposed)
) STRICT;

-- The oldest schema whose binary may run on this one.
UPDATE schema_info SET oldest_binary = 1 WHERE id = 1;
