-- Whose turn it is: slots are shared fairly between contexts. A waiting task stands in a lane of its context, beside it one for
-- each tool whose slots are limited. The first of each lane is found by steps over `task_live_lanes`, whatever the lanes' length.
-- `tenant` and `tool` are named only where their slots are limited. A row of the release before this one has the values that
-- stand here: it waits in a lane of those, and is put right by whoever claims it.
ALTER TABLE task_live ADD COLUMN context UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';
ALTER TABLE task_live ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE task_live ADD COLUMN tool TEXT COLLATE "C" NOT NULL DEFAULT '';
UPDATE task_live SET context = t.context FROM tasks t WHERE t.id = task_live.task;
-- None of these columns ever changes, so that what was HOT still is; a claim and a hand-back, which move a row from the waiting
-- to the running, never were. Each task pays for one entry more while it waits, and for one while it runs; the last three have
-- entries only for what is limited. `task_live_waiting` stays: it says whether anybody waits, and the release before claims by it.
CREATE INDEX task_live_lanes ON task_live (context, tool, not_before, task) WHERE node IS NULL;
CREATE INDEX task_live_slots ON task_live (context) WHERE node IS NOT NULL;
CREATE INDEX task_live_tenant_queue ON task_live (tenant) WHERE node IS NULL AND tenant <> '';
CREATE INDEX task_live_tenant_slots ON task_live (tenant) WHERE node IS NOT NULL AND tenant <> '';
CREATE INDEX task_live_tool_slots ON task_live (tool) WHERE node IS NOT NULL AND tool <> '';
