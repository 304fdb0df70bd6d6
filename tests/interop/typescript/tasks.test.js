// The official TypeScript SDK as a client: what a user of it does with tasks must work.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { Server, connect, create, databases } from './server.js';

const RELATED = 'io.modelcontextprotocol/related-task';

async function collect(stream) {
  const messages = [];
  for await (const message of stream) messages.push(message);
  return messages;
}

for (const [name, make] of Object.entries(databases())) {
  describe(`the TypeScript SDK, tasks on ${name}`, () => {
    let database, server, token, client;

    before(async () => {
      database = await make();
      token = await database.token('first');
      server = await Server.start(database);
      client = await connect(server.url, token);
    });

    after(async () => {
      await client?.close();
      await server?.kill('SIGTERM');
      await database?.remove();
    });

    const tasks = () => client.experimental.tasks;

    // req: CAP-01, CAP-02, CAP-03
    test('tasks are negotiated and offered', async () => {
      const { tasks } = client.getServerCapabilities();
      assert.deepEqual(tasks, { list: {}, cancel: {}, requests: { tools: { call: {} } } });
      const { tools } = await client.listTools();
      const sleep = tools.find((tool) => tool.name === 'sleep');
      assert.equal(sleep?.execution?.taskSupport, 'optional');
    });

    // req: TASK-01, TASK-02, TASK-06, TASK-08, LIFE-09
    test('a task is created, polled and gives its result', async () => {
      const task = await create(client, 'sleep', { ms: 300 });
      assert.equal(task.status, 'working');
      assert.equal(task.ttl, 60_000);
      const blocked = await tasks().getTaskResult(task.taskId, CallToolResultSchema);
      const seen = await tasks().getTask(task.taskId);
      assert.equal(seen.status, 'completed');
      assert.equal(seen.createdAt, task.createdAt);
      const again = await tasks().getTaskResult(task.taskId, CallToolResultSchema);
      assert.deepEqual(again, blocked);
      assert.equal(blocked._meta[RELATED].taskId, task.taskId);
    });

    // req: CAP-06
    test('without a task the call answers plainly, and both ways give the same', async () => {
      const args = { text: 'grüße', list: [1, 2, { deep: null }] };
      const plain = await client.callTool({ name: 'echo', arguments: args });
      const task = await create(client, 'echo', args);
      const result = await tasks().getTaskResult(task.taskId, CallToolResultSchema);
      delete result._meta[RELATED];
      if (Object.keys(result._meta).length === 0) delete result._meta;
      assert.deepEqual(result, plain);
    });

    test('callToolStream follows a task to its result', async () => {
      await client.listTools();
      const stream = tasks().callToolStream({ name: 'sleep', arguments: { ms: 200 } }, CallToolResultSchema, {
        task: { ttl: 60_000 },
      });
      const messages = await collect(stream);
      assert.equal(messages[0].type, 'taskCreated');
      assert.ok(messages.some((message) => message.type === 'taskStatus'));
      const last = messages.at(-1);
      assert.equal(last.type, 'result', JSON.stringify(last));
      assert.ok(!last.result.isError);
    });

    // req: TASK-26
    test('a failed tool fails its task and keeps its result', async () => {
      const task = await create(client, 'fail_tool', { message: 'no such invoice' });
      const result = await tasks().getTaskResult(task.taskId, CallToolResultSchema);
      assert.equal(result.isError, true);
      const seen = await tasks().getTask(task.taskId);
      assert.equal(seen.status, 'failed');
      assert.match(seen.statusMessage, /no such invoice/);
    });

    test('a JSON-RPC error of the tool is the error of the task', async () => {
      const task = await create(client, 'fail_rpc', { code: -32011 });
      await assert.rejects(tasks().getTaskResult(task.taskId, CallToolResultSchema), { code: -32011 });
      assert.equal((await tasks().getTask(task.taskId)).status, 'failed');
    });

    // req: TASK-12, TASK-13, TASK-15
    test('a cancelled task stays cancelled', async () => {
      const task = await create(client, 'sleep', { ms: 30_000 });
      const waiting = assert.rejects(tasks().getTaskResult(task.taskId, CallToolResultSchema), (error) => {
        assert.equal(error.code, -32800);
        assert.equal(error.data.taskId, task.taskId);
        return true;
      });
      assert.equal((await tasks().cancelTask(task.taskId)).status, 'cancelled');
      await waiting;
      await assert.rejects(tasks().cancelTask(task.taskId), { code: -32602, message: /cancelled/ });
      assert.equal((await tasks().getTask(task.taskId)).status, 'cancelled');
    });

    // req: TASK-16, TASK-19
    test('the list has every task, newest first', async () => {
      const made = [];
      for (let n = 0; n < 3; n++) made.unshift((await create(client, 'echo', { n })).taskId);
      const listed = [];
      let cursor;
      do {
        const page = await tasks().listTasks(cursor);
        listed.push(...page.tasks.map((task) => task.taskId));
        cursor = page.nextCursor;
      } while (cursor);
      assert.deepEqual(listed.slice(0, 3), made);
      assert.equal(new Set(listed).size, listed.length);
    });

    // req: AUTH-03, AUTH-04, TASK-11
    test('two tokens do not see each other', async () => {
      const stranger = await connect(server.url, await database.token('second'));
      try {
        const task = await create(client, 'sleep', { ms: 30_000 });
        const theirs = stranger.experimental.tasks;
        assert.deepEqual((await theirs.listTasks()).tasks, []);
        const missing = '00000000-0000-4000-8000-000000000000';
        const message = await theirs.getTask(missing).then(
          () => assert.fail('a task that never was is there'),
          (error) => error.message.replaceAll(missing, 'ID'),
        );
        const refused = (error) => {
          assert.equal(error.code, -32602);
          assert.equal(error.message.replaceAll(task.taskId, 'ID'), message);
          return true;
        };
        await assert.rejects(theirs.getTask(task.taskId), refused);
        await assert.rejects(theirs.getTaskResult(task.taskId, CallToolResultSchema), refused);
        await assert.rejects(theirs.cancelTask(task.taskId), refused);
        assert.equal((await tasks().getTask(task.taskId)).status, 'working');
        await tasks().cancelTask(task.taskId);
      } finally {
        await stranger.close();
      }
    });

    test('a token that was never issued is refused', async () => {
      const forged = token.replace(/.$/, (last) => (last === 'a' ? 'b' : 'a'));
      await assert.rejects(connect(server.url, forged), { code: 401 });
    });

    // req: LIFE-06, KEEP-06, HTTP-07
    test('kill -9 loses neither session nor tasks nor results', async () => {
      const done = await create(client, 'echo', { kept: true });
      const result = await tasks().getTaskResult(done.taskId, CallToolResultSchema);
      const before = await tasks().getTask(done.taskId);
      const live = await create(client, 'sleep', { ms: 30_000 });
      await server.kill('SIGKILL');
      server = await Server.start(database, { listen: server.url.host });

      // The same client: the SDK does not initialise anew, so its session must still be known.
      assert.deepEqual(await tasks().getTask(done.taskId), before);
      assert.deepEqual(await tasks().getTaskResult(done.taskId, CallToolResultSchema), result);
      const { createdAt } = await tasks().getTask(live.taskId);
      assert.equal(createdAt, live.createdAt);
      await tasks().cancelTask(live.taskId);
      const after = await create(client, 'echo', { after: true });
      assert.ok(!(await tasks().getTaskResult(after.taskId, CallToolResultSchema)).isError);
    });
  });
}
