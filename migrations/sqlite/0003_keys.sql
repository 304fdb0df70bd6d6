-- Calls under a key of their caller's (`Idempotency-Key`): the same key of the same context is the same call. `digest` is that
-- of the call, so that the key is not taken for another one.
ALTER TABLE tasks ADD COLUMN idempotency_key TEXT;
ALTER TABLE tasks ADD COLUMN digest TEXT;
-- 1 while the call is stored and is no task: no method and no list shows it.
ALTER TABLE tasks ADD COLUMN parked INTEGER NOT NULL DEFAULT 0 CHECK (parked IN (0, 1));
CREATE UNIQUE INDEX tasks_by_idempotency ON tasks (context, idempotency_key) WHERE idempotency_key IS NOT NULL;
