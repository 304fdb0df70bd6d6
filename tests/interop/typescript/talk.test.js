// Work that talks back, as a user of the official TypeScript SDK sees it: questions, progress and status inside a task.
// The work is the reference server's, unchanged.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  CallToolResultSchema,
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  TaskStatusNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { FORM, RELATED, SAMPLE, inFrontOfEverything } from './everything.js';
import { create, within } from './server.js';

/** A client that answers what it is asked, and what it was asked and told. */
async function talker(open) {
  const client = await open({
    capabilities: { elicitation: { form: {} }, sampling: {} },
  });
  const asked = [];
  const told = [];
  client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
    asked.push(params);
    return FORM;
  });
  client.setRequestHandler(CreateMessageRequestSchema, ({ params }) => {
    asked.push(params);
    return SAMPLE;
  });
  client.setNotificationHandler(TaskStatusNotificationSchema, ({ params }) => void told.push(params));
  return { client, asked, told };
}

inFrontOfEverything('the TypeScript SDK, work that talks back', (open) => {
  // req: INPUT-01, INPUT-02, NOTE-01, NOTE-02
  test('an elicitation inside a task reaches its client, whose answer reaches the work', async () => {
    const { client, asked, told } = await talker(open);
    const { taskId: id } = await create(client, 'trigger-elicitation-request', {});
    const result = await client.experimental.tasks.getTaskResult(id, CallToolResultSchema);
    assert.match(JSON.stringify(result.content), /Ada/);
    assert.equal(asked.length, 1);
    assert.equal(asked[0]._meta[RELATED].taskId, id);
    assert.equal(asked[0].requestedSchema.properties.name.type, 'string');
    await within('the notification of the end', () => told.some((task) => task.status === 'completed'));
    const statuses = told.filter((task) => task.taskId === id).map((task) => task.status);
    assert.ok(statuses.includes('input_required'), statuses.join());
    assert.equal(statuses.at(-1), 'completed');
    for (const task of told) {
      assert.ok(Number.isInteger(task.ttl) && task.lastUpdatedAt >= task.createdAt, JSON.stringify(task));
      assert.equal(task._meta?.[RELATED], undefined);
    }
    await client.close();
  });

  // req: INPUT-02
  test('a client that only polls is asked on its own stream', async () => {
    const { client, asked } = await talker(open);
    const { taskId: id } = await create(client, 'trigger-sampling-request', { prompt: 'say something' });
    const ended = async () => (await client.experimental.tasks.getTask(id)).status === 'completed';
    await within('the task to end', ended);
    assert.equal(asked.length, 1);
    assert.equal(asked[0]._meta[RELATED].taskId, id);
    assert.match(asked[0].messages[0].content.text, /say something/);
    const result = await client.experimental.tasks.getTaskResult(id, CallToolResultSchema);
    assert.match(JSON.stringify(result.content), /a sampled answer/);
    await client.close();
  });

  // req: INPUT-15
  test('a question of a plain call comes on the call\'s own stream, of no task', async () => {
    const { client, asked } = await talker(open);
    const result = await client.callTool({ name: 'trigger-elicitation-request', arguments: {} });
    assert.match(JSON.stringify(result.content), /Ada/);
    assert.equal(asked.length, 1);
    assert.equal(asked[0]._meta?.[RELATED], undefined);
    await client.close();
  });

  // req: NOTE-03 (legacy half)
  test('progress of a task comes with the token that its client gave', async () => {
    const { client } = await talker(open);
    const seen = [];
    const onprogress = (progress) => seen.push(progress);
    const { taskId: id } = await create(client, 'trigger-long-running-operation', { duration: 1, steps: 4 }, { onprogress });
    await client.experimental.tasks.getTaskResult(id, CallToolResultSchema);
    await within('progress', () => seen.length > 0);
    const values = seen.map(({ progress }) => progress);
    assert.deepEqual(values, [...values].sort((a, b) => a - b));
    assert.ok(seen.every(({ total }) => total === 4));
    await client.close();
  });
});
