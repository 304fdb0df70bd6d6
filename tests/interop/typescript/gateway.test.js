// The reference server of the protocol, unchanged, behind the service: its tools become tasks.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { EVERYTHING, Server, connect, create, databases, listed } from './server.js';

for (const [name, make] of Object.entries(databases())) {
  describe(`server-everything, tasks on ${name}`, () => {
    let database, server, client;

    before(async () => {
      database = await make();
      server = await Server.start(database, { upstream: EVERYTHING });
      client = await connect(server.url, await database.token('gateway'));
      await listed(client, 'get-env');
    });

    after(async () => {
      await client?.close();
      await server?.kill('SIGTERM');
      await database?.remove();
    });

    // req: EXEC-01
    test('its tools are listed, and can be tasks although it says that they cannot', async () => {
      const { tools } = await client.listTools();
      const names = tools.map((tool) => tool.name);
      for (const tool of ['echo', 'get-sum', 'get-env']) assert.ok(names.includes(tool), `${tool} of ${names}`);
      const slow = tools.find((tool) => tool.name === 'trigger-long-running-operation');
      assert.equal(slow.execution.taskSupport, 'optional');
      assert.equal(slow.annotations.readOnlyHint, true);
    });

    test('its long operation runs as a task', async () => {
      const task = await create(client, 'trigger-long-running-operation', { duration: 2, steps: 4 });
      assert.equal(task.status, 'working');
      const result = await client.experimental.tasks.getTaskResult(task.taskId, CallToolResultSchema);
      assert.match(result.content[0].text, /completed/i);
      assert.equal((await client.experimental.tasks.getTask(task.taskId)).status, 'completed');
    });

    // req: EXEC-25
    test('it finds nothing of ours in its environment', async () => {
      const task = await create(client, 'get-env', {});
      const result = await client.experimental.tasks.getTaskResult(task.taskId, CallToolResultSchema);
      const names = Object.keys(JSON.parse(result.content[0].text));
      assert.ok(names.includes('PATH'));
      assert.deepEqual(names.filter((variable) => variable.startsWith('TASKHOLD')), []);
    });
  });
}
