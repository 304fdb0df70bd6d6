-- Portable columns only: uuid (compared bytewise, as SQLite compares its BLOBs), BIGINT microseconds since the epoch,
-- TEXT COLLATE "C". No foreign keys: each insert would lock its context's row, and every write that must happen
-- together is one statement or one transaction anyway.

-- Authorization contexts: what tasks are bound to. Empty text stands for "none".
CREATE TABLE auth_contexts (
    id UUID NOT NULL PRIMARY KEY,
    tenant TEXT COLLATE "C" NOT NULL,
    issuer TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    client TEXT COLLATE "C" NOT NULL,
    created BIGINT NOT NULL,
    UNIQUE (tenant, issuer, subject, client)
);

-- Issued tokens; the secret is nowhere, only its argon2id hash.
CREATE TABLE access_tokens (
    id UUID NOT NULL PRIMARY KEY,
    context UUID NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    created BIGINT NOT NULL,
    expires BIGINT,
    revoked BIGINT
);

-- One row a task. No column that changes is indexed, and pages keep room, so that every update stays on its page (HOT).
CREATE TABLE tasks (
    id UUID NOT NULL PRIMARY KEY,
    context UUID NOT NULL,
    session UUID,
    created BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    ended BIGINT,
    status BIGINT NOT NULL CHECK (status BETWEEN 0 AND 5),
    granted_ttl BIGINT CHECK (granted_ttl > 0),
    poll_interval BIGINT NOT NULL CHECK (poll_interval >= 0),
    restart BIGINT NOT NULL CHECK (restart IN (0, 1)),
    attempts_allowed BIGINT NOT NULL CHECK (attempts_allowed >= 0),
    run_limit BIGINT NOT NULL CHECK (run_limit >= 0),
    era BIGINT NOT NULL DEFAULT 0,
    method TEXT COLLATE "C" NOT NULL DEFAULT 'tools/call',
    tool TEXT COLLATE "C" NOT NULL,
    upstream TEXT COLLATE "C" NOT NULL,
    upstream_tool TEXT COLLATE "C" NOT NULL,
    message TEXT COLLATE "C",
    capabilities TEXT COLLATE "C" NOT NULL,
    progress_token TEXT COLLATE "C",
    CHECK ((status IN (0, 1)) = (ended IS NULL))
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 2,
    autovacuum_vacuum_cost_limit = 1000
);
CREATE INDEX tasks_by_context ON tasks (context, created DESC, id DESC);

-- One row an unfinished task, made with it and deleted by the write that ends it: small whatever the history.
-- It is also the lock of a task: every write of a live task locks this row first.
CREATE TABLE task_live (
    task UUID NOT NULL PRIMARY KEY,
    node UUID,
    token UUID,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    not_before BIGINT NOT NULL,
    claimed BIGINT,
    hard_end BIGINT NOT NULL,
    CHECK ((node IS NULL) = (token IS NULL) AND (node IS NULL) = (claimed IS NULL))
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 200,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 2,
    autovacuum_vacuum_cost_limit = 2000
);
CREATE INDEX task_live_by_node ON task_live (node) WHERE node IS NOT NULL;
CREATE INDEX task_live_waiting ON task_live (not_before, task) WHERE node IS NULL;
CREATE INDEX task_live_by_hard_end ON task_live (hard_end);

-- The call's params as they arrived. Insert-only.
CREATE TABLE task_requests (
    task UUID NOT NULL PRIMARY KEY,
    params TEXT COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 2,
    autovacuum_vacuum_cost_limit = 1000
);

-- How a task ended. Insert-only; `token` is the writer's, so that a repeated write finds itself.
CREATE TABLE task_outcomes (
    task UUID NOT NULL PRIMARY KEY,
    token UUID NOT NULL,
    attempt BIGINT NOT NULL,
    expires BIGINT,
    outcome TEXT COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 2,
    autovacuum_vacuum_cost_limit = 1000
);
CREATE INDEX task_outcomes_by_expiry ON task_outcomes (expires, task) WHERE expires IS NOT NULL;

-- Each start of each process.
CREATE TABLE nodes (
    id UUID NOT NULL PRIMARY KEY,
    heartbeat BIGINT NOT NULL,
    dead BIGINT NOT NULL DEFAULT 0 CHECK (dead IN (0, 1))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);

-- Legacy sessions.
CREATE TABLE sessions (
    id UUID NOT NULL PRIMARY KEY,
    context UUID NOT NULL,
    revision TEXT COLLATE "C" NOT NULL,
    capabilities TEXT COLLATE "C" NOT NULL,
    created BIGINT NOT NULL,
    last_used BIGINT NOT NULL
);
CREATE INDEX sessions_by_last_use ON sessions (last_used);
CREATE INDEX sessions_by_context ON sessions (context, last_used);

-- The installation's own keys.
CREATE TABLE server_keys (
    kind TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    secret BYTEA NOT NULL,
    created BIGINT NOT NULL
);

-- The last known lists of each upstream; an exposed name, once given, does not move.
CREATE TABLE upstream_catalogs (
    upstream TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    exposed TEXT COLLATE "C" NOT NULL,
    definition TEXT COLLATE "C" NOT NULL,
    rank BIGINT NOT NULL,
    listed BIGINT NOT NULL CHECK (listed IN (0, 1)),
    seen BIGINT NOT NULL,
    PRIMARY KEY (upstream, kind, name),
    UNIQUE (kind, exposed)
);

-- The oldest schema whose binary may run on this one.
UPDATE schema_info SET oldest_binary = 1 WHERE id = 1;
