-- What running work says and asks while it runs: questions to its caller, progress, streams of sessions, and calls that
-- an upstream runs as tasks of its own.

-- The newest progress note that was passed on, the `params` of the notification, and when: progress alone is no update.
ALTER TABLE tasks ADD COLUMN progress TEXT COLLATE "C";
ALTER TABLE tasks ADD COLUMN progress_at BIGINT;

-- By the session, a node finds the live tasks of the streams that it holds. `open_inputs` is counted under the row's
-- lock: the task goes back to work when the last one is gone.
ALTER TABLE task_live ADD COLUMN session UUID;
ALTER TABLE task_live ADD COLUMN open_inputs BIGINT NOT NULL DEFAULT 0 CHECK (open_inputs >= 0);
UPDATE task_live SET session = (SELECT t.session FROM tasks t WHERE t.id = task_live.task);
CREATE INDEX task_live_by_session ON task_live (session) WHERE session IS NOT NULL;

-- While a GET stream of the session is open: `stream_node` is its node, and `stream` an id of that node's for it, which
-- tells it from those of other nodes and from earlier ones. The one that was written last is the session's.
ALTER TABLE sessions ADD COLUMN stream_node UUID;
ALTER TABLE sessions ADD COLUMN stream UUID;
ALTER TABLE sessions ADD COLUMN log_level TEXT COLLATE "C";
-- 1 once the client has said that it is initialized, as those before this change have by now.
ALTER TABLE sessions ADD COLUMN initialized BIGINT NOT NULL DEFAULT 1;
CREATE INDEX sessions_by_stream_node ON sessions (stream_node) WHERE stream_node IS NOT NULL;

-- Questions of running tasks. One is open while its state says so and its task has a live row. `token` is the lease of the
-- attempt that asks; an attempt that took the question over from an earlier one asked it as `asked_as`. `delivery` and
-- `holder` are the JSON-RPC id and the session of the last stream that put it to a client, `node` that stream's node while
-- it holds the question. By `writer` the answer, or the withdrawal, finds itself;
-- `answered_as` is the delivery that the answer came by.
CREATE TABLE task_inputs (
    id UUID NOT NULL PRIMARY KEY,
    task UUID NOT NULL,
    context UUID NOT NULL,
    session UUID,
    token UUID NOT NULL,
    asked_as UUID,
    kind BIGINT NOT NULL CHECK (kind BETWEEN 0 AND 2),
    params TEXT COLLATE "C",
    state BIGINT NOT NULL CHECK (state BETWEEN 0 AND 3), -- open, answered, taken by the work, withdrawn
    created BIGINT NOT NULL,
    deadline BIGINT,
    refused BIGINT NOT NULL DEFAULT 0 CHECK (refused >= 0),
    delivery UUID,
    holder UUID,
    node UUID,
    writer UUID,
    answered_as UUID,
    answer TEXT COLLATE "C",
    answer_is_error BIGINT CHECK (answer_is_error IN (0, 1)),
    client_task TEXT COLLATE "C",
    CHECK (node IS NULL OR delivery IS NOT NULL),
    CHECK ((answer IS NULL) = (answer_is_error IS NULL))
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX task_inputs_by_task ON task_inputs (task, created, id);
CREATE INDEX task_inputs_open ON task_inputs (session) WHERE state = 0;
CREATE INDEX task_inputs_held ON task_inputs (node) WHERE node IS NOT NULL;

-- Every JSON-RPC id under which a question, or a request about the client's own task for it, was sent.
CREATE TABLE input_deliveries (
    id UUID NOT NULL PRIMARY KEY,
    input UUID NOT NULL,
    task UUID NOT NULL,
    context UUID NOT NULL,
    session UUID NOT NULL,
    stream UUID NOT NULL,
    sequence BIGINT NOT NULL,
    purpose BIGINT NOT NULL CHECK (purpose BETWEEN 0 AND 2), -- the question; get, result of the client's task
    created BIGINT NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX input_deliveries_by_task ON input_deliveries (task);
CREATE INDEX input_deliveries_by_stream ON input_deliveries (stream);

-- Calls that an upstream runs as a task of its own: written before the first poll.
CREATE TABLE upstream_tasks (
    task UUID NOT NULL PRIMARY KEY,
    upstream_id TEXT COLLATE "C" NOT NULL,
    upstream_session TEXT COLLATE "C",
    revision TEXT COLLATE "C" NOT NULL,
    created BIGINT NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- Hints between nodes, kept for a minute.
CREATE TABLE signals (
    id UUID NOT NULL PRIMARY KEY,
    kind BIGINT NOT NULL,
    context UUID NOT NULL,
    session UUID,
    subject TEXT COLLATE "C" NOT NULL,
    payload TEXT COLLATE "C",
    created BIGINT NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);
CREATE INDEX signals_by_time ON signals (created);

-- What legacy sessions subscribed to; `node` follows it at the upstream.
CREATE TABLE resource_subscriptions (
    session UUID NOT NULL,
    uri TEXT COLLATE "C" NOT NULL,
    context UUID NOT NULL,
    upstream TEXT COLLATE "C" NOT NULL,
    node UUID NOT NULL,
    created BIGINT NOT NULL,
    PRIMARY KEY (session, uri)
);
CREATE INDEX resource_subscriptions_by_node ON resource_subscriptions (node, upstream, uri);
