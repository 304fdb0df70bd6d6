// Runs the binary under test: on a free port, on a database of its own, ended by its own process id.
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const STARTS_WITHIN_MS = 60_000;
const BINARY = process.env.TASKHOLD_BINARY;
if (!BINARY) throw new Error('TASKHOLD_BINARY must name the binary under test (scripts/interop sets it)');

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
  static async start(database, listen = '127.0.0.1:0', upstreamCommand = 'demo-server --test-tools') {
    const upstream = `test='${BINARY}' ${upstreamCommand}`;
    const child = spawn(BINARY, ['serve', '--listen', listen, '--database-url', database.url, '--upstream', upstream], {
      env: environment,
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
