// What the tests share: the binary under test, run on a free port and a database of its own and ended by its own process id,
// and clients of it.
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CreateTaskResultSchema } from '@modelcontextprotocol/sdk/types.js';

const run = promisify(execFile);
const STARTS_WITHIN_MS = 60_000;
const BINARY = process.env.TASKHOLD_BINARY;
if (!BINARY) throw new Error('TASKHOLD_BINARY must name the binary under test (scripts/interop sets it)');

/** The command lines of the bundled server: with the tools for users, and with those for tests. */
export const DEMO_TOOLS = `'${BINARY}' demo-server`;
export const TEST_TOOLS = `'${BINARY}' demo-server --test-tools`;

/** The command line of the protocol's reference server. */
const EVERYTHING_SCRIPT = fileURLToPath(import.meta.resolve('@modelcontextprotocol/server-everything/dist/index.js'));
export const EVERYTHING = `'${process.execPath}' '${EVERYTHING_SCRIPT}' stdio`;

/** The child's environment: nothing of ours that configures the service. */
const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TASKHOLD_')));

/** One empty database, named in the way of `--database-url`. */
export class Database {
  static async sqlite() {
    const folder = await mkdtemp(join(tmpdir(), 'taskhold-interop-'));
    return new Database(`sqlite://${join(folder, 'taskhold.db')}`, () => rm(folder, { recursive: true }));
  }

  /** A new database of the cluster that `adminUrl` names. */
  static async postgres(adminUrl) {
    const name = `interop_${randomBytes(8).toString('hex')}`;
    const sql = (text) => run('psql', ['--no-psqlrc', '--quiet', '--set=ON_ERROR_STOP=1', `--command=${text}`, adminUrl]);
    await sql(`CREATE DATABASE ${name}`);
    const url = new URL(adminUrl);
    url.pathname = `/${name}`;
    return new Database(url.href, () => sql(`DROP DATABASE ${name} WITH (FORCE)`));
  }

  constructor(url, remove) {
    this.url = url;
    this.remove = remove;
  }

  /** A new token, by default of a new context. */
  async token(name) {
    const { stdout } = await run(BINARY, ['token', 'create', '--name', name, '--database-url', this.url], {
      env: environment,
    });
    return stdout.trim();
  }
}

export class Server {
  /** Resolves once the server says that it listens. */
  static async start(database, { listen = '127.0.0.1:0', upstream = TEST_TOOLS, variables = {} } = {}) {
    const args = ['serve', '--listen', listen, '--database-url', database.url, '--upstream', `test=${upstream}`];
    const child = spawn(BINARY, args, {
      env: { ...environment, TASKHOLD_LOG: 'info', ...variables },
      stdio: ['ignore', 'inherit', 'pipe'],
    });
    const server = new Server(child);
    server.url = await server.#listening();
    return server;
  }

  constructor(child) {
    this.child = child;
    this.log = '';
    this.exited = new Promise((resolve) => child.once('close', resolve));
    child.stderr.setEncoding('utf8').on('data', (text) => (this.log += text));
  }

  async kill(signal = 'SIGKILL') {
    this.child.kill(signal);
    await this.exited;
  }

  #listening() {
    return new Promise((resolve, reject) => {
      const fail = (why) => reject(new Error(`the server ${why}:\n${this.log}`));
      const timer = setTimeout(() => fail(`did not start within ${STARTS_WITHIN_MS} ms`), STARTS_WITHIN_MS);
      const settle = (how, value) => (clearTimeout(timer), how(value));
      this.child.once('error', (error) => settle(reject, error));
      this.exited.then(() => settle(fail, 'ended before it was ready'));
      this.child.stderr.on('data', () => {
        const found = /taskhold is listening on (http:\/\/[^\s"]+)/.exec(this.log);
        if (found) settle(resolve, new URL(found[1]));
      });
    });
  }
}

/** Every kind of database that there is here, as functions that make an empty one. */
export function databases() {
  const adminUrl = process.env.TASKHOLD_TEST_POSTGRES_URL;
  if (!adminUrl) {
    console.log('# TASKHOLD_TEST_POSTGRES_URL is not set: on SQLite only');
    return { SQLite: () => Database.sqlite() };
  }
  return { SQLite: () => Database.sqlite(), PostgreSQL: () => Database.postgres(adminUrl) };
}

export async function connect(url, token, options = {}) {
  const client = new Client({ name: 'taskhold-interop', version: '1.0.0' }, options);
  const transport = new StreamableHTTPClientTransport(url, {
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
  });
  await client.connect(transport);
  return client;
}

/** Makes a task of a call, as a user of the SDK does, and answers the task as it was at creation. */
export async function create(client, name, args, options = {}) {
  const request = { method: 'tools/call', params: { name, arguments: args } };
  const { task } = await client.request(request, CreateTaskResultSchema, { task: { ttl: 60_000 }, ...options });
  return task;
}

/** Asks again and again until the answer is yes. */
export async function within(what, isSo, milliseconds = 60_000) {
  const deadline = Date.now() + milliseconds;
  while (!(await isSo())) {
    if (Date.now() > deadline) throw new Error(`waited too long for ${what}`);
    await pause(50);
  }
}

/** Waits until a tool is offered: the service is ready before a slow upstream is, which must not hold up the others. */
export function listed(client, name) {
  return within(`${name} to be listed`, async () => (await client.listTools()).tools.some((tool) => tool.name === name));
}
