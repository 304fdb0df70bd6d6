-- Calls that are no tasks and ask their callers by rounds: an answer that asks carries a state, which the caller gives back
-- with its own answers. `round` is the number of the state that was given out last, `open` is 1 while it may be given back,
-- and by `spender` the write that took it back finds itself. When `expires` has come nobody is waited for any more: `open`
-- is 2 then, and until the call has ended somebody sees to that each time when `expires` has come.
-- A round that its upstream keeps itself has a row only once it was spent: `task` names it, and `round` is 0.
CREATE TABLE parked_calls (
    task BLOB NOT NULL PRIMARY KEY,
    context BLOB NOT NULL,
    round INTEGER NOT NULL CHECK (round >= 0),
    open INTEGER NOT NULL CHECK (open IN (0, 1, 2)),
    spender BLOB,
    expires INTEGER NOT NULL
) STRICT;
CREATE INDEX parked_calls_by_context ON parked_calls (context);
CREATE INDEX parked_calls_by_expiry ON parked_calls (expires);

-- The name that the work's server gave to a question, where it gives names.
ALTER TABLE task_inputs ADD COLUMN name TEXT;
