"""The official Python SDK as a client: what a user of it does with tasks must work."""

import os
import signal
import unittest

from mcp import McpError
from mcp.types import CallToolResult

from service import Postgres, Server, Sqlite, new_token
from session import connected

RELATED = "io.modelcontextprotocol/related-task"
TTL_MS = 60_000
MISSING = "00000000-0000-4000-8000-000000000000"


async def create(session, tool, arguments):
    """Makes a task of a call; answers the task as it was at creation."""
    return (await session.experimental.call_tool_as_task(tool, arguments, ttl=TTL_MS)).task


async def outcome(session, task):
    return await session.experimental.get_task_result(task.taskId, CallToolResult)


class Tasks:
    """The cases; each database below runs them."""

    database_kind = None

    @classmethod
    def setUpClass(cls):
        cls.database = cls.database_kind()
        cls.addClassCleanup(cls.database.remove)
        cls.token = new_token(cls.database, "first")
        cls.server = Server(cls.database)
        cls.addClassCleanup(lambda: cls.server.end())

    def connected(self, token=None):
        return connected(self.server.url, token or self.token)

    async def refused(self, request, code):
        with self.assertRaises(McpError) as refusal:
            await request
        self.assertEqual(refusal.exception.error.code, code)
        return refusal.exception.error

    # req: CAP-01, CAP-02, CAP-03
    async def test_tasks_are_negotiated_and_offered(self):
        async with self.connected() as session:
            tasks = session.get_server_capabilities().tasks
            self.assertIsNotNone(tasks.list)
            self.assertIsNotNone(tasks.cancel)
            self.assertIsNotNone(tasks.requests.tools.call)
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            self.assertEqual(tools["sleep"].execution.taskSupport, "optional")

    # req: TASK-01, TASK-02, TASK-06, TASK-08, LIFE-09
    async def test_a_task_is_created_polled_and_gives_its_result(self):
        async with self.connected() as session:
            task = await create(session, "sleep", {"ms": 300})
            self.assertEqual((task.status, task.ttl), ("working", TTL_MS))
            seen = [polled async for polled in session.experimental.poll_task(task.taskId)]
            self.assertEqual(seen[-1].status, "completed")
            self.assertTrue(all(polled.createdAt == task.createdAt for polled in seen))
            first = await outcome(session, task)
            self.assertEqual(first.content[0].text, "slept 300 ms")
            self.assertEqual(first.meta[RELATED]["taskId"], task.taskId)
            self.assertEqual(await outcome(session, task), first)

    # req: TASK-06
    async def test_the_result_waits_for_the_end(self):
        async with self.connected() as session:
            task = await create(session, "sleep", {"ms": 300})
            self.assertEqual((await outcome(session, task)).content[0].text, "slept 300 ms")

    # req: CAP-06
    async def test_without_a_task_the_call_answers_plainly_and_both_ways_give_the_same(self):
        async with self.connected() as session:
            arguments = {"text": "grüße", "list": [1, 2, {"deep": None}]}
            plain = await session.call_tool("echo", arguments)
            result = await outcome(session, await create(session, "echo", arguments))
            self.assertIsNone(plain.meta)
            self.assertEqual(set(result.meta), {RELATED})
            self.assertEqual(result.model_copy(update={"meta": None}), plain)

    # req: TASK-26
    async def test_a_failed_tool_fails_its_task_and_keeps_its_result(self):
        async with self.connected() as session:
            task = await create(session, "fail_tool", {"message": "no such invoice"})
            self.assertTrue((await outcome(session, task)).isError)
            seen = await session.experimental.get_task(task.taskId)
            self.assertEqual(seen.status, "failed")
            self.assertIn("no such invoice", seen.statusMessage)

    async def test_a_json_rpc_error_of_the_tool_is_the_error_of_the_task(self):
        async with self.connected() as session:
            task = await create(session, "fail_rpc", {"code": -32011})
            await self.refused(outcome(session, task), -32011)
            self.assertEqual((await session.experimental.get_task(task.taskId)).status, "failed")

    # req: TASK-12, TASK-13, TASK-15
    async def test_a_cancelled_task_stays_cancelled(self):
        async with self.connected() as session:
            tasks = session.experimental
            task = await create(session, "sleep", {"ms": 30_000})
            self.assertEqual((await tasks.cancel_task(task.taskId)).status, "cancelled")
            error = await self.refused(outcome(session, task), -32800)
            self.assertEqual(error.data["taskId"], task.taskId)
            self.assertIn("cancelled", (await self.refused(tasks.cancel_task(task.taskId), -32602)).message)
            self.assertEqual((await tasks.get_task(task.taskId)).status, "cancelled")

    # req: TASK-16, TASK-19
    async def test_the_list_has_every_task_newest_first(self):
        # A context of its own, with more tasks than a page has.
        async with self.connected(new_token(self.database, "lists")) as session:
            made = [(await create(session, "echo", {"n": n})).taskId for n in range(53)]
            listed, pages, cursor = [], 0, None
            while pages == 0 or cursor is not None:
                page = await session.experimental.list_tasks(cursor)
                listed += [task.taskId for task in page.tasks]
                pages, cursor = pages + 1, page.nextCursor
            self.assertEqual(listed, made[::-1])
            self.assertEqual(pages, 2)

    # req: AUTH-03, AUTH-04, TASK-11
    async def test_two_tokens_do_not_see_each_other(self):
        other = new_token(self.database, "second")
        async with self.connected() as session, self.connected(other) as stranger:
            task = await create(session, "sleep", {"ms": 30_000})
            theirs = stranger.experimental
            self.assertEqual((await theirs.list_tasks()).tasks, [])
            missing = (await self.refused(theirs.get_task(MISSING), -32602)).message.replace(MISSING, "ID")
            for request in (theirs.get_task(task.taskId), outcome(stranger, task), theirs.cancel_task(task.taskId)):
                error = await self.refused(request, -32602)
                self.assertEqual(error.message.replace(task.taskId, "ID"), missing)
            self.assertEqual((await session.experimental.get_task(task.taskId)).status, "working")
            await session.experimental.cancel_task(task.taskId)

    # req: LIFE-06, KEEP-06, HTTP-07
    async def test_a_kill_loses_neither_session_nor_tasks_nor_results(self):
        async with self.connected() as session:
            tasks = session.experimental
            done = await create(session, "echo", {"kept": True})
            result = await outcome(session, done)
            before = await tasks.get_task(done.taskId)
            live = await create(session, "sleep", {"ms": 30_000})
            self.server.end(signal.SIGKILL)
            type(self).server = Server(self.database, listen=self.server.listen)

            # The same session: the SDK does not initialise anew, so it must still be known.
            self.assertEqual(await tasks.get_task(done.taskId), before)
            self.assertEqual(await outcome(session, done), result)
            self.assertEqual((await tasks.get_task(live.taskId)).createdAt, live.createdAt)
            self.assertEqual((await tasks.cancel_task(live.taskId)).status, "cancelled")
            self.assertFalse((await outcome(session, await create(session, "echo", {"after": True}))).isError)


class TasksOnSqlite(Tasks, unittest.IsolatedAsyncioTestCase):
    database_kind = Sqlite


@unittest.skipUnless(os.environ.get("TASKHOLD_TEST_POSTGRES_URL"), "TASKHOLD_TEST_POSTGRES_URL is not set")
class TasksOnPostgres(Tasks, unittest.IsolatedAsyncioTestCase):
    database_kind = Postgres


if __name__ == "__main__":
    unittest.main()
