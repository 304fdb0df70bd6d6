// The reference server asked directly and through the gateway: what it lists and what it answers is the same JSON, apart from
// the fields that the documents name as ours. Both sides declare the same capabilities and answer its questions alike. Raw
// JSON-RPC on both sides: a typed client would hide what is lost.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, describe, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Database, Server } from './server.js';

const SCRIPT = fileURLToPath(import.meta.resolve('@modelcontextprotocol/server-everything/dist/index.js'));
const RELATED_TASK = 'io.modelcontextprotocol/related-task';
// What the service declares to its upstreams.
const CAPABILITIES = { elicitation: { form: {}, url: {} }, sampling: { tools: {}, context: {} }, roots: {} };
const INITIALIZE = {
  protocolVersion: '2025-11-25',
  capabilities: CAPABILITIES,
  clientInfo: { name: 'golden', version: '1.0.0' },
};

// Each tool, and the arguments of its calls.
const CALLS = {
  echo: [{ message: 'a "b" \u0000 \u{1f980}' }],
  'get-annotated-message': ['error', 'success', 'debug'].map((messageType) => ({ messageType, includeImage: true })),
  'get-resource-links': [{ count: 4 }],
  'get-resource-reference': [{ resourceType: 'Text', resourceId: 1 }],
  'get-structured-content': [{ location: 'Chicago' }],
  'get-sum': [{ a: 1, b: 2.5 }],
  'get-tiny-image': [{}],
  'gzip-file-as-resource': [{ name: 'a.gz', data: 'data:text/plain,hello', outputType: 'resource' }],
  'trigger-long-running-operation': [{ duration: 0.2, steps: 2 }],
  'trigger-sampling-request': [{ prompt: 'hello', maxTokens: 7 }],
  'trigger-elicitation-request': [{}],
  'trigger-url-elicitation': [{ url: 'https://example.com/', elicitationId: 'golden-1' }],
  'get-roots-list': [{}],
  'simulate-research-query': [{ topic: 'golden' }],
  'get-env': [{}],
  'toggle-simulated-logging': [{}, {}],
  'toggle-subscriber-updates': [{}, {}],
};
// Compared by shape: the environments differ, the toggles name their session, and these name the time or an id of the moment.
const BY_SHAPE = new Set([
  'get-env', 'toggle-simulated-logging', 'toggle-subscriber-updates', 'get-resource-reference', 'resource-prompt',
  'demo://resource/dynamic/text/7', 'demo://resource/dynamic/blob/7', 'simulate-research-query',
]);
const PROMPTS = {
  'simple-prompt': {},
  'args-prompt': { city: 'Ulm', state: 'BW' },
  'completable-prompt': { department: 'Engineering', name: 'Alice' },
  'resource-prompt': { resourceType: 'Text', resourceId: '1' },
};
const COMPLETIONS = [
  { ref: { type: 'ref/prompt', name: 'completable-prompt' }, argument: { name: 'department', value: 'E' } },
  {
    ref: { type: 'ref/prompt', name: 'completable-prompt' },
    argument: { name: 'name', value: '' },
    context: { arguments: { department: 'Engineering' } },
  },
  { ref: { type: 'ref/resource', uri: 'demo://resource/dynamic/text/{resourceId}' }, argument: { name: 'resourceId', value: '1' } },
];

/** How both sides answer what the server asks. */
function answer({ method }) {
  switch (method) {
    case 'elicitation/create':
      return { result: { action: 'decline' } };
    case 'sampling/createMessage':
      return { result: { role: 'assistant', content: { type: 'text', text: 'sampled' }, model: 'golden' } };
    case 'ping':
      return { result: {} };
    default:
      return { error: { code: -32601, message: `this client does not serve "${method}"` } };
  }
}

/** The server as a child of this process. */
class Direct {
  #waiting = new Map();
  #next = 1;

  constructor() {
    this.child = spawn(process.execPath, [SCRIPT, 'stdio'], { stdio: ['pipe', 'pipe', 'ignore'] });
    let text = '';
    this.child.stdout.setEncoding('utf8').on('data', (data) => {
      const lines = (text + data).split('\n');
      text = lines.pop();
      for (const line of lines.filter(Boolean)) this.#take(JSON.parse(line));
    });
  }

  #take(message) {
    if (message.method && message.id !== undefined) this.#send({ id: message.id, ...answer(message) });
    else if (!message.method) this.#waiting.get(message.id)?.(message);
  }

  #send(message) {
    this.child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
  }

  request(method, params) {
    const id = this.#next++;
    const answered = new Promise((resolve) => this.#waiting.set(id, resolve));
    this.#send({ id, method, params });
    return answered;
  }

  async open() {
    await this.request('initialize', INITIALIZE);
    this.#send({ method: 'notifications/initialized' });
  }

  close() {
    this.child.kill();
  }
}

/** The same through the gateway, by Streamable HTTP. */
class Gateway {
  #next = 1;
  #headers;

  constructor(url, token) {
    this.url = url;
    this.#headers = {
      Authorization: `Bearer ${token}`,
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
    };
  }

  #post(message) {
    const body = JSON.stringify({ jsonrpc: '2.0', ...message });
    return fetch(this.url, { method: 'POST', headers: this.#headers, body });
  }

  async request(method, params) {
    const id = this.#next++;
    const response = await this.#post({ id, method, params });
    const session = response.headers.get('mcp-session-id');
    if (session) this.#headers['Mcp-Session-Id'] = session;
    if (!response.headers.get('content-type').startsWith('text/event-stream')) return response.json();
    let text = '';
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
      const events = (text + chunk).split('\n\n');
      text = events.pop();
      for (const event of events) {
        const data = event.split('\n').find((line) => line.startsWith('data: {'));
        const message = data ? JSON.parse(data.slice(6)) : {};
        if (message.method && message.id !== undefined) await this.#post({ id: message.id, ...answer(message) });
        else if (message.id === id) return message;
      }
    }
    throw new Error(`the stream of ${method} ended without an answer`);
  }

  async open() {
    await this.request('initialize', INITIALIZE);
    await this.#post({ method: 'notifications/initialized' });
  }
}

/** The types of all values, by their keys. */
function shape(value) {
  if (Array.isArray(value)) return value.map(shape);
  if (value === null || typeof value !== 'object') return typeof value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, shape(inner)]));
}

/** A response without its id, which each connection numbers on its own. */
function outcome({ result, error }) {
  return error ? { error } : { result };
}

async function listed(side, name) {
  const deadline = AbortSignal.timeout(60_000);
  for (;;) {
    const { result } = await side.request('tools/list', {});
    if (result.tools.some((tool) => tool.name === name)) return result.tools;
    await setTimeout(100, undefined, { signal: deadline });
  }
}

/** The result of a call that the server runs only as a task, without our or its own id of the task. */
async function asTask(side, name, args) {
  const { result } = await side.request('tools/call', { name, arguments: args, task: { ttl: 60_000 } });
  const answered = await side.request('tasks/result', { taskId: result.task.taskId });
  const { [RELATED_TASK]: related, ...meta } = answered.result._meta;
  assert.equal(related.taskId, result.task.taskId);
  return { result: { ...answered.result, _meta: meta } };
}

describe('server-everything directly and through the gateway', () => {
  let database, server, direct, gateway;

  before(async () => {
    database = await Database.sqlite();
    server = await Server.start(database, { upstream: `'${process.execPath}' '${SCRIPT}' stdio` });
    direct = new Direct();
    gateway = new Gateway(server.url, await database.token('golden'));
    await Promise.all([direct.open(), gateway.open()]);
    // The last that it lists, once it knows what its client can do.
    await Promise.all([listed(direct, 'trigger-sampling-request'), listed(gateway, 'trigger-sampling-request')]);
  });

  after(async () => {
    direct?.close();
    await server?.kill('SIGTERM');
    await database?.remove();
  });

  const same = async (label, method, params) => {
    const [theirs, ours] = (await Promise.all([direct.request(method, params), gateway.request(method, params)])).map(outcome);
    if (BY_SHAPE.has(label) && label === 'get-env') {
      assert.ok(Object.keys(JSON.parse(ours.result.content[0].text)).includes('PATH'));
      assert.deepEqual(shape(ours), shape(theirs), label);
    } else if (BY_SHAPE.has(label)) assert.deepEqual(shape(ours), shape(theirs), label);
    else assert.deepEqual(ours, theirs, label);
    return theirs.result;
  };

  // req: EXEC-01
  // field case: F-GW-04
  test('its tools differ in `execution` alone', async () => {
    const without = (tools) => tools.map(({ execution: _, ...tool }) => tool);
    const [theirs, ours] = await Promise.all([direct, gateway].map((side) => side.request('tools/list', {})));
    assert.deepEqual(without(ours.result.tools), without(theirs.result.tools));
    assert.deepEqual(Object.keys(ours.result), Object.keys(theirs.result));
    for (const { name, execution } of ours.result.tools) {
      const its = theirs.result.tools.find((tool) => tool.name === name).execution;
      assert.deepEqual(execution, { ...its, taskSupport: its?.taskSupport === 'required' ? 'required' : 'optional' }, name);
    }
  });

  // req: EXEC-06
  test('its prompts, resources, templates and completions are the same', async () => {
    const { prompts } = await same('prompts', 'prompts/list', {});
    assert.deepEqual(prompts.map(({ name }) => name).sort(), Object.keys(PROMPTS).sort());
    for (const [name, args] of Object.entries(PROMPTS)) await same(name, 'prompts/get', { name, arguments: args });
    const { resources } = await same('resources', 'resources/list', {});
    for (const { uri } of resources) await same(uri, 'resources/read', { uri });
    const { resourceTemplates } = await same('templates', 'resources/templates/list', {});
    for (const { uriTemplate } of resourceTemplates) {
      const uri = uriTemplate.replace('{resourceId}', '7');
      await same(uri, 'resources/read', { uri });
    }
    await same('nowhere', 'resources/read', { uri: 'demo://nowhere' });
    for (const completion of COMPLETIONS) await same('completion', 'completion/complete', completion);
    for (const method of ['resources/subscribe', 'resources/unsubscribe']) await same(method, method, { uri: resources[0].uri });
    await same('level', 'logging/setLevel', { level: 'emergency' });
  });

  // req: EXEC-01, EXEC-06
  // field case: F-GW-05
  test('its results are the same', async () => {
    const { result } = await direct.request('tools/list', {});
    assert.deepEqual(result.tools.map(({ name }) => name).sort(), Object.keys(CALLS).sort());
    for (const { name, execution } of result.tools) {
      for (const args of CALLS[name]) {
        if (execution?.taskSupport === 'required') {
          const [theirs, ours] = await Promise.all([direct, gateway].map((side) => asTask(side, name, args)));
          assert.deepEqual(shape(ours), shape(theirs), name);
        } else await same(name, 'tools/call', { name, arguments: args });
      }
    }
  });
});
