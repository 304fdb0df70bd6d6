"""The official Python SDK that knows both eras, against the service: what a user of it does must work."""

import logging
import os
import signal
import unittest

import mcp_types as types
from mcp import MCPError
from mcp.client.extension import advertise
from pydantic import ValidationError

from extension import (
    TASKS,
    Cancel,
    Get,
    NamelessGet,
    TaskParams,
    TasksExtension,
    answers,
    cancel,
    connected,
    get,
    has_status,
    until,
    update,
)
from service import Postgres, Server, Sqlite, new_token

MODERN = "2026-07-28"
MISSING = "00000000-0000-4000-8000-000000000000"
# Calls that take longer than this become tasks, and are looked at as often.
SETTINGS = {"TASKHOLD_TASKS_GRACE": "1s", "TASKHOLD_TASKS_POLL_INTERVAL": "100ms"}
LONG = {"ms": 1500}
ENDLESS = {"ms": 60_000}

# It says which steps of a test took long, and a slow machine is no fault.
logging.getLogger("asyncio").setLevel(logging.ERROR)


class LegacyTask(types.Result):
    """A task as the handshake era shows it."""

    task_id: str
    status: str
    ttl: int


async def elicit(context, params):
    return types.ElicitResult(action="accept", content={"answer": "blue"})


async def sample(context, params):
    content = types.TextContent(type="text", text="a sampled answer")
    return types.CreateMessageResult(role="assistant", model="a-model", content=content)


class Tasks:
    """The cases; each database below runs them."""

    database_kind = None

    @classmethod
    def setUpClass(cls):
        cls.database = cls.database_kind()
        cls.addClassCleanup(cls.database.remove)
        cls.token = new_token(cls.database, "first")
        cls.server = Server(cls.database, settings=SETTINGS)
        cls.addClassCleanup(lambda: cls.server.end())

    def connected(self, mode=MODERN, token=None, **options):
        return connected(self.server.url, token or self.token, mode, **options)

    def with_tasks(self, mode=MODERN, token=None, **options):
        return self.connected(mode, token, extensions=[TasksExtension()], **options)

    async def refused(self, request, code):
        with self.assertRaises(MCPError) as refusal:
            await request
        self.assertEqual(refusal.exception.code, code)
        return refusal.exception

    async def made(self, client, tool="sleep", arguments=ENDLESS):
        """A call that became a task; its handle."""
        made = await client.session.call_tool(tool, arguments, allow_claimed=True)
        self.assertEqual((made.result_type, made.status), ("task", "working"))
        return made

    # req: MOD-01, MOD-09
    async def test_each_mode_finds_its_era(self):
        for mode, version in (("auto", MODERN), (MODERN, MODERN), ("legacy", "2025-11-25")):
            async with self.connected(mode) as (client, sent):
                tools = {tool.name for tool in (await client.list_tools()).tools}
                self.assertLessEqual({"echo", "sleep"}, tools)
                self.assertEqual((await client.call_tool("echo", {"n": 1})).content[0].text, '{"n":1}')
                self.assertEqual(client.protocol_version, version, mode)
                statuses = {status for _, status in sent}
                self.assertLessEqual(statuses, {200, 202}, "nothing was tried in vain")
                has_session = any("mcp-session-id" in request.headers for request, _ in sent)
                self.assertEqual(has_session, mode == "legacy")
                if mode == "auto":
                    self.assertEqual(client.server_capabilities.extensions, {TASKS: {}})
                    self.assertEqual(client.server_info.name, "taskhold")
                    self.assertFalse(hasattr(client.server_capabilities, "tasks") and client.server_capabilities.tasks)

    # req: EXT-01, LIFE-12
    async def test_a_call_that_ends_soon_answers_plainly_in_every_mode(self):
        for mode in ("auto", MODERN, "legacy"):
            for extensions in ([], [TasksExtension()]):
                async with self.connected(mode, extensions=extensions) as (client, _):
                    arguments = {"text": "grüße", "list": [1, 2, {"deep": None}]}
                    self.assertIn("grüße", (await client.call_tool("echo", arguments)).content[0].text)
                    failed = await client.call_tool("fail_tool", {"message": "no such invoice"})
                    self.assertTrue(failed.is_error)
                    await self.refused(client.call_tool("fail_rpc", {"code": -32011}), -32011)
                    await self.refused(client.call_tool("no_such_tool", {}), -32602)

    # req: EXT-03, EXT-05
    async def test_a_long_call_becomes_a_task_that_is_polled_to_its_result(self):
        async with self.with_tasks("auto") as (client, sent):
            made = await self.made(client, arguments=LONG)
            seen = await until(client.session, made.task_id, has_status("completed"))
            self.assertEqual(seen[0].created_at, made.created_at)
            self.assertEqual({shown.task_id for shown in seen}, {made.task_id})
            self.assertEqual({shown.status for shown in seen}, {"working", "completed"})
            self.assertTrue(all(shown.ttl_ms > 0 for shown in seen))
            self.assertEqual(seen[-1].result.content[0].text, "slept 1500 ms")
            named = [request.headers["mcp-name"] for request, _ in sent if request.headers.get("mcp-method") == "tasks/get"]
            self.assertEqual(set(named), {made.task_id})

    # req: EXT-04
    async def test_a_user_of_call_tool_sees_no_task(self):
        extension = TasksExtension()
        async with self.connected(extensions=[extension]) as (client, _):
            self.assertEqual((await client.call_tool("sleep", LONG)).content[0].text, "slept 1500 ms")
            self.assertEqual(len(extension.handles), 1)

    # req: EXT-01
    async def test_who_does_not_declare_the_extension_waits_for_the_result(self):
        for mode in ("auto", "legacy"):
            async with self.connected(mode) as (client, _):
                self.assertEqual((await client.call_tool("sleep", LONG)).content[0].text, "slept 1500 ms")
        # Declared by name alone: the SDK gets a handle, and knows nothing that takes it.
        async with self.connected(extensions=[advertise(TASKS)]) as (client, _):
            with self.assertRaises(ValidationError):
                await client.call_tool("sleep", LONG)

    # req: INPUT-08
    async def test_questions_of_a_task_are_answered_by_the_clients_own_callbacks(self):
        callbacks = {"elicitation_callback": elicit, "sampling_callback": sample}
        async with self.with_tasks(**callbacks) as (client, _):
            self.assertEqual((await client.call_tool("ask", {"n": 2})).content[0].text.count("blue"), 2)
            self.assertIn("a sampled answer", (await client.call_tool("sample", {})).content[0].text)

    async def test_questions_of_a_plain_call_are_answered_in_rounds(self):
        for mode in ("auto", "legacy"):
            callbacks = {"elicitation_callback": elicit, "sampling_callback": sample}
            async with self.connected(mode, **callbacks) as (client, _):
                self.assertEqual((await client.call_tool("ask", {"n": 2})).content[0].text.count("blue"), 2)
                self.assertIn("a sampled answer", (await client.call_tool("sample", {})).content[0].text)

    # req: INPUT-09
    async def test_a_task_waits_until_every_question_is_answered(self):
        async with self.with_tasks(elicitation_callback=elicit) as (client, _):
            made = await client.session.call_tool("ask", {"n": 2, "at_once": True}, allow_claimed=True)
            session, task = client.session, made.task_id
            shown = (await until(session, task, lambda shown: len(shown.input_requests or {}) == 2))[-1]
            self.assertEqual((shown.status, shown.result), ("input_required", None))
            first, second = shown.input_requests
            given = await answers(session, shown.input_requests)
            await self.refused(update(session, task, {first: {"action": "perhaps"}}), -32602)
            await update(session, task, {first: given[first], "unknown": {"action": "decline"}})
            partial = await get(session, task)
            self.assertEqual((partial.status, set(partial.input_requests)), ("input_required", {second}))
            await update(session, task, given)
            ended = (await until(session, task, has_status("completed")))[-1]
            self.assertEqual(ended.result.content[0].text.count("blue"), 2)
            await update(session, task, given)
            self.assertEqual(await get(session, task), ended)

    # req: EXT-07
    async def test_a_cancelled_task_stays_cancelled(self):
        async with self.with_tasks() as (client, _):
            made = await self.made(client)
            await cancel(client.session, made.task_id)
            shown = (await until(client.session, made.task_id, has_status("cancelled")))[-1]
            self.assertEqual((shown.result, shown.error), (None, None))
            await cancel(client.session, made.task_id)
            self.assertEqual(await get(client.session, made.task_id), shown)

    # req: EXT-08, EXT-09, AUTH-03
    async def test_a_task_is_missing_to_others_and_to_those_who_take_none(self):
        other = new_token(self.database, "second")
        async with self.with_tasks() as (client, _), self.with_tasks(token=other) as (stranger, _):
            made = await self.made(client)
            for request in (get, cancel, lambda session, task: update(session, task, {})):
                refused = [await self.refused(request(stranger.session, task), -32602) for task in (made.task_id, MISSING)]
                self.assertEqual(refused[0].error, refused[1].error)
            async with self.connected() as (silent, _):
                for request in (get, cancel):
                    error = await self.refused(request(silent.session, made.task_id), -32021)
                    self.assertEqual(error.data["requiredCapabilities"], {"extensions": {TASKS: {}}})
            self.assertEqual((await get(client.session, made.task_id, NamelessGet)).status, "working")
            await cancel(client.session, made.task_id)

    # req: LIFE-13
    async def test_a_task_is_the_same_in_both_eras(self):
        async with self.with_tasks() as (client, _), self.connected("legacy") as (older, _):
            made = await self.made(client)
            params = TaskParams(task_id=made.task_id)
            shown = await older.session.send_request(Get(params=params), LegacyTask)
            self.assertEqual((shown.task_id, shown.status, shown.ttl), (made.task_id, "working", made.ttl_ms))
            await self.refused(cancel(older.session, MISSING), -32602)
            cancelled = await older.session.send_request(Cancel(params=params), LegacyTask)
            self.assertEqual((await get(client.session, made.task_id)).status, cancelled.status)

    # req: LIFE-06, KEEP-06
    async def test_a_kill_loses_no_task_and_this_client_needs_no_session(self):
        async with self.with_tasks("auto") as (client, _):
            done = await self.made(client, arguments=LONG)
            ended = (await until(client.session, done.task_id, has_status("completed")))[-1]
            live = await self.made(client)
            self.server.end(signal.SIGKILL)
            type(self).server = Server(self.database, listen=self.server.listen, settings=SETTINGS)
            self.assertEqual(await get(client.session, done.task_id), ended)
            self.assertEqual((await get(client.session, live.task_id)).created_at, live.created_at)
            await cancel(client.session, live.task_id)
            self.assertEqual((await get(client.session, live.task_id)).status, "cancelled")


class TasksOnSqlite(Tasks, unittest.IsolatedAsyncioTestCase):
    database_kind = Sqlite


@unittest.skipUnless(os.environ.get("TASKHOLD_TEST_POSTGRES_URL"), "TASKHOLD_TEST_POSTGRES_URL is not set")
class TasksOnPostgres(Tasks, unittest.IsolatedAsyncioTestCase):
    database_kind = Postgres


if __name__ == "__main__":
    unittest.main()
