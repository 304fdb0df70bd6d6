"""The extension for tasks on top of `mcp` 2.3, which has none of its own: what a user of the SDK writes, by its public points of
extension and nothing else."""

import asyncio
import contextlib
import time
from typing import Any, ClassVar, Literal

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from pydantic import TypeAdapter

TASKS = "io.modelcontextprotocol/tasks"
PATIENCE_S = 60
ENDED = ("completed", "failed", "cancelled")


class Task(types.Result):
    """What each answer about a task has. Required here is what the extension requires, so that a lack of it is an error."""

    task_id: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None


class Handle(Task):
    result_type: Literal["task"]


class Shown(Task):
    result_type: Literal["complete"]
    input_requests: dict[str, Any] | None = None
    result: types.CallToolResult | None = None
    error: types.ErrorData | None = None


class Acknowledged(types.Result):
    result_type: Literal["complete"]


class TaskParams(types.RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


class Get(types.Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class Update(types.Request[UpdateParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class Cancel(types.Request[TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


class NamelessGet(Get):
    """Without `Mcp-Name`, as clients send it that know nothing of it."""

    name_param: ClassVar[str | None] = None


REQUEST = TypeAdapter(types.InputRequest)


def has_status(*statuses):
    return lambda shown: shown.status in statuses


async def get(session, task_id, kind=Get):
    return await session.send_request(kind(params=TaskParams(task_id=task_id)), Shown)


async def update(session, task_id, responses):
    return await session.send_request(Update(params=UpdateParams(task_id=task_id, input_responses=responses)), Acknowledged)


async def cancel(session, task_id):
    return await session.send_request(Cancel(params=TaskParams(task_id=task_id)), Acknowledged)


async def until(session, task_id, is_so):
    """Polls at the pace that it is told, until this is so of the task; answers all that it saw."""
    deadline, seen = time.monotonic() + PATIENCE_S, []
    while not seen or not is_so(seen[-1]):
        assert time.monotonic() < deadline, f"task {task_id} stays as it is: {seen[-1:]}"
        if seen:
            await asyncio.sleep(seen[-1].poll_interval_ms / 1000)
        seen.append(await get(session, task_id))
    return seen


async def answers(session, requests):
    """What the client's own callbacks say to these requests, by their keys."""
    given = {}
    for key, request in requests.items():
        context = ClientRequestContext(session=session, request_id=key, meta=None)
        answer = await session.dispatch_input_request(context, REQUEST.validate_python(request, by_name=False))
        given[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    return given


class TasksExtension(ClientExtension):
    """Makes `call_tool` follow a task to its result, whatever it asks on its way."""

    identifier = TASKS

    def __init__(self):
        self.handles = []

    def claims(self):
        return [ResultClaim(result_type="task", model=Handle, resolve=self.resolve)]

    async def resolve(self, handle, context):
        self.handles.append(handle)
        while True:
            shown = (await until(context.session, handle.task_id, has_status(*ENDED, "input_required")))[-1]
            if shown.status == "input_required":
                given = await answers(context.session, shown.input_requests)
                await update(context.session, handle.task_id, given)
            elif shown.result is not None:
                return shown.result
            else:
                raise RuntimeError(f"the task is {shown.status}: {shown.error}")


@contextlib.asynccontextmanager
async def connected(url, token, mode, **options):
    """A client as a user of the SDK makes it, and the requests that it sends, each with the status of its answer."""
    sent = []

    async def note(response):
        sent.append((response.request, response.status_code))

    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False, event_hooks={"response": [note]}) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client:
            yield client, sent
