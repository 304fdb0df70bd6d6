// The clients that docs/clients.md shows, as a reader would run them: each block there marked "run by scripts/interop".
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import { DEMO_TOOLS, Database, Server } from './server.js';

const PAGE = new URL('../../../docs/clients.md', import.meta.url);
const { TASKHOLD_INTEROP_PYTHON: PYTHON, TASKHOLD_INTEROP_PYTHON_MODERN: PYTHON_MODERN } = process.env;
/** The sections whose programs need what cannot be installed beside the rest. */
const MODERN = ['Python SDK 2'];
const MARKED = /^## (?<title>[^\n]+)$|<!-- run by scripts\/interop -->\n```(?<language>\w+)\n(?<code>.*?)\n```/gms;

const programs = [];
let title;
for (const { groups } of (await readFile(PAGE, 'utf8')).matchAll(MARKED)) {
  if (groups.title) title = groups.title;
  else programs.push({ ...groups, title });
}

/** Runs a program given on standard input; answers what it printed. */
function run({ language, code, title }, environment) {
  const python = MODERN.includes(title) ? PYTHON_MODERN : PYTHON;
  const [command, ...args] = { js: [process.execPath, '--input-type=module', '-'], python: [python, '-'] }[language];
  return new Promise((resolve, reject) => {
    const options = { cwd: import.meta.dirname, env: { ...process.env, ...environment }, timeout: 60_000 };
    const child = execFile(command, args, options, (error, stdout, stderr) =>
      error ? reject(new Error(`${error.message}\n${stdout}${stderr}`)) : resolve(stdout),
    );
    child.stdin.end(code);
  });
}

describe('the clients of docs/clients.md', () => {
  let database, server;

  before(async () => {
    database = await Database.sqlite();
    server = await Server.start(database, { upstream: DEMO_TOOLS });
  });

  after(async () => {
    await server?.kill('SIGTERM');
    await database?.remove();
  });

  test('four of them are there', () => assert.equal(programs.length, 4));

  for (const program of programs) {
    test(program.title, async () => {
      const code = program.code.replaceAll('127.0.0.1:8080', server.url.host);
      assert.notEqual(code, program.code);
      const output = await run({ ...program, code }, { TOKEN: await database.token(program.title) });
      assert.match(output, /^task [0-9a-f-]{36}$/m);
      assert.match(output, /waited 2 s/);
    });
  }
});
