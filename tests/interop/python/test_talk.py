"""Work that talks back, as a user of the official Python SDK sees it: questions, progress and status inside a task."""

import asyncio
import os
import time
import unittest

from mcp import types

from service import Postgres, Server, Sqlite, new_token
from session import connected

RELATED = "io.modelcontextprotocol/related-task"
PATIENCE_S = 60


class Talker:
    """What a session was asked and told."""

    def __init__(self):
        self.asked = []
        self.told = []

    async def elicit(self, context, params):
        self.asked.append((context.meta, params))
        return types.ElicitResult(action="accept", content={"answer": "blue"})

    async def sample(self, context, params):
        self.asked.append((context.meta, params))
        content = types.TextContent(type="text", text="a sampled answer")
        return types.CreateMessageResult(role="assistant", model="a-model", content=content)

    async def hear(self, message):
        if isinstance(message, types.ServerNotification):
            self.told.append(message.root)

    def connected(self, url, token):
        return connected(
            url, token, elicitation_callback=self.elicit, sampling_callback=self.sample, message_handler=self.hear
        )

    def statuses(self, task):
        kind = types.TaskStatusNotification
        return [told.params.status for told in self.told if isinstance(told, kind) and told.params.taskId == task]

    async def until(self, what, is_so):
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline, f"waited too long for {what}"
            await asyncio.sleep(0.05)


class Talk:
    """The cases; each database below runs them."""

    database_kind = None

    @classmethod
    def setUpClass(cls):
        cls.database = cls.database_kind()
        cls.addClassCleanup(cls.database.remove)
        cls.token = new_token(cls.database, "talker")
        cls.server = Server(cls.database)
        cls.addClassCleanup(lambda: cls.server.end())

    # req: INPUT-01, INPUT-02, NOTE-01
    async def test_an_elicitation_inside_a_task_is_answered(self):
        talker = Talker()
        async with talker.connected(self.server.url, self.token) as session:
            created = await session.experimental.call_tool_as_task("ask", {"n": 2}, ttl=60_000)
            task = created.task.taskId
            result = await session.experimental.get_task_result(task, types.CallToolResult)
            self.assertEqual(result.content[0].text.count("blue"), 2)
            self.assertEqual(len(talker.asked), 2)
            for meta, params in talker.asked:
                self.assertEqual(meta.model_dump()[RELATED]["taskId"], task)
                self.assertIn("answer", params.requestedSchema["properties"])
            await talker.until("the notification of the end", lambda: "completed" in talker.statuses(task))
            self.assertIn("input_required", talker.statuses(task))

    # req: INPUT-02
    async def test_a_sampling_request_inside_a_task_is_answered(self):
        talker = Talker()
        async with talker.connected(self.server.url, self.token) as session:
            created = await session.experimental.call_tool_as_task("sample", {}, ttl=60_000)
            task = created.task.taskId
            result = await session.experimental.get_task_result(task, types.CallToolResult)
            self.assertIn("a sampled answer", result.content[0].text)
            (meta, _), = talker.asked
            self.assertEqual(meta.model_dump()[RELATED]["taskId"], task)

    # req: INPUT-15
    async def test_a_question_of_a_plain_call_is_answered(self):
        talker = Talker()
        async with talker.connected(self.server.url, self.token) as session:
            result = await session.call_tool("ask", {"n": 1})
            self.assertIn("blue", result.content[0].text)
            (meta, _), = talker.asked
            self.assertTrue(meta is None or RELATED not in meta.model_dump())

    # req: NOTE-03 (legacy half)
    async def test_progress_of_a_plain_call_reaches_its_caller(self):
        talker, seen = Talker(), []

        async def progress(value, total, message):
            seen.append((value, total))

        async with talker.connected(self.server.url, self.token) as session:
            await session.call_tool("prog", {"n": 3}, progress_callback=progress)
        self.assertEqual(seen, sorted(seen))
        self.assertEqual(seen[-1], (3, 3))


class TalkOnSqlite(Talk, unittest.IsolatedAsyncioTestCase):
    database_kind = Sqlite


@unittest.skipUnless(os.environ.get("TASKHOLD_TEST_POSTGRES_URL"), "TASKHOLD_TEST_POSTGRES_URL is not set")
class TalkOnPostgres(Talk, unittest.IsolatedAsyncioTestCase):
    database_kind = Postgres
