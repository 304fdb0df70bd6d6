// The official TypeScript SDK as a receiver of tasks: what an upstream asks goes to it as a task of its own.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks';
import {
  CallToolResultSchema,
  CreateMessageRequestSchema,
  ElicitRequestSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { FORM, RELATED, SAMPLE, inFrontOfEverything } from './everything.js';
import { create, within } from './server.js';

/** A client that answers `later`, by a task of its own where it is asked for one. */
async function receiver(open, declared) {
  const taskStore = new InMemoryTaskStore();
  const asked = [];
  const tasks = [];
  const capabilities = { elicitation: { form: {} }, sampling: {}, tasks: declared };
  const client = await open({ capabilities, taskStore });
  const serve = (schema, later) =>
    client.setRequestHandler(schema, async ({ params }, extra) => {
      asked.push(params);
      if (!params.task) return later();
      const task = await extra.taskStore.createTask({ ttl: params.task.ttl, pollInterval: 200 });
      tasks.push(task.taskId);
      setTimeout(() => void extra.taskStore.storeTaskResult(task.taskId, 'completed', later()), 500);
      return { task };
    });
  serve(ElicitRequestSchema, () => FORM);
  serve(CreateMessageRequestSchema, () => SAMPLE);
  return { client, asked, tasks, taskStore };
}

const ALL = { cancel: {}, list: {}, requests: { elicitation: { create: {} }, sampling: { createMessage: {} } } };

inFrontOfEverything('the TypeScript SDK as a receiver of tasks', (open) => {
  // req: CAP-08
  test('what an upstream asks is a task of the client that declared it', async () => {
    const { client, asked, tasks, taskStore } = await receiver(open, ALL);
    for (const [tool, args, expected] of [
      ['trigger-elicitation-request', {}, /Ada/],
      ['trigger-sampling-request', { prompt: 'say something' }, /a sampled answer/],
    ]) {
      const { taskId: id } = await create(client, tool, args);
      const result = await client.experimental.tasks.getTaskResult(id, CallToolResultSchema);
      assert.match(JSON.stringify(result.content), expected);
      const params = asked.at(-1);
      assert.ok(params.task.ttl > 0 && params.task.ttl <= 60_000, JSON.stringify(params.task));
      assert.equal(params._meta[RELATED].taskId, id);
    }
    assert.equal(asked.length, 2);
    assert.equal(tasks.length, 2);
    taskStore.cleanup();
    await client.close();
  });

  // req: CAP-08
  test('a client that declared it of sampling alone is asked the rest plainly', async () => {
    const declared = { requests: { sampling: { createMessage: {} } } };
    const { client, asked, tasks, taskStore } = await receiver(open, declared);
    const { taskId: id } = await create(client, 'trigger-elicitation-request', {});
    const result = await client.experimental.tasks.getTaskResult(id, CallToolResultSchema);
    assert.match(JSON.stringify(result.content), /Ada/);
    assert.equal(asked.length, 1);
    assert.equal(asked[0].task, undefined);
    assert.deepEqual(tasks, []);
    taskStore.cleanup();
    await client.close();
  });

  // req: CAP-08
  test('the client\'s task is cancelled with the one that asks', async () => {
    const { client, tasks, taskStore } = await receiver(open, ALL);
    client.setRequestHandler(ElicitRequestSchema, async ({ params }, extra) => {
      const task = await extra.taskStore.createTask({ ttl: params.task.ttl, pollInterval: 200 });
      tasks.push(task.taskId);
      return { task };
    });
    const { taskId: id } = await create(client, 'trigger-elicitation-request', {});
    await within('the question', () => tasks.length === 1);
    await client.experimental.tasks.cancelTask(id);
    await within('the end of the client\'s task', async () => (await taskStore.getTask(tasks[0])).status === 'cancelled');
    taskStore.cleanup();
    await client.close();
  });
});
