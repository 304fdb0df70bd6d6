// Runs the official conformance suite's server scenarios of one revision against the built binary, one by one, and compares
// with the baseline. Called by scripts/conformance.
//
//   node run.mjs REVISION SUITE [PATTERN]    SUITE is the folder that the package was installed into; PATTERN a regular
//                                            expression that scenarios must match
import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { proxy } from './proxy.mjs';

const [revision, suite, pattern = ''] = process.argv.slice(2);
const BINARY = process.env.TASKHOLD_BINARY;
const TIMEOUT_MS = 60_000;
// All that the suite has for servers of this revision.
const SCENARIOS = {
  '2025-11-25': [
    'server-initialize', 'server-session-lifecycle', 'ping', 'dns-rebinding-protection', 'server-sse-multiple-streams',
    'server-sse-polling', 'tools-list', 'tools-call-simple-text', 'tools-call-image', 'tools-call-audio',
    'tools-call-embedded-resource', 'tools-call-mixed-content', 'tools-call-error', 'tools-call-with-progress',
    'json-schema-2020-12', 'tools-call-elicitation', 'elicitation-sep1034-defaults', 'elicitation-sep1330-enums',
    'tools-call-sampling', 'logging-set-level', 'tools-call-with-logging', 'resources-list', 'prompts-list',
    'completion-complete', 'resources-read-text', 'resources-read-binary', 'resources-templates-read',
    'resources-subscribe', 'resources-unsubscribe', 'prompts-get-simple', 'prompts-get-with-args',
    'prompts-get-embedded-resource', 'prompts-get-with-image',
  ],
  '2026-07-28': [
    'tasks-lifecycle', 'tasks-capability-negotiation', 'tasks-wire-fields', 'tasks-request-state-removal', 'tasks-mrtr-input',
    'tasks-request-headers', 'tasks-dispatch-and-envelope', 'tasks-required-task-error', 'tasks-mrtr-composition',
    'server-stateless', 'http-header-validation', 'http-custom-header-server-validation', 'dns-rebinding-protection',
    'server-sse-multiple-streams', 'tools-list', 'tools-call-simple-text', 'tools-call-image', 'tools-call-audio',
    'tools-call-embedded-resource', 'tools-call-mixed-content', 'tools-call-error', 'tools-call-with-progress',
    'json-schema-2020-12', 'input-required-result-basic-elicitation', 'input-required-result-basic-sampling',
    'input-required-result-basic-list-roots', 'input-required-result-request-state',
    'input-required-result-multiple-input-requests', 'input-required-result-multi-round',
    'input-required-result-missing-input-response', 'input-required-result-result-type',
    'input-required-result-unsupported-methods', 'input-required-result-tampered-state',
    'input-required-result-capability-check', 'input-required-result-ignore-extra-params',
    'input-required-result-validate-input', 'input-required-result-non-tool-request', 'caching', 'resources-list',
    'prompts-list', 'sep-2164-resource-not-found', 'completion-complete', 'resources-read-text', 'resources-read-binary',
    'resources-templates-read', 'prompts-get-simple', 'prompts-get-with-args', 'prompts-get-embedded-resource',
    'prompts-get-with-image',
  ],
};
// Scenarios of an extension are not asked for by a revision.
const isOfExtension = (scenario) => scenario.startsWith('tasks-');

const folder = await mkdtemp(join(tmpdir(), 'taskhold-conformance-'));
const database = `sqlite://${join(folder, 'taskhold.db')}`;
const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TASKHOLD_')));

async function start() {
  const args = ['serve', '--listen', '127.0.0.1:0', '--database-url', database, '--demo', '--conformance'];
  const child = spawn(BINARY, args, { env: environment, cwd: folder, stdio: ['ignore', 'ignore', 'pipe'] });
  let log = '';
  const url = await new Promise((resolve, reject) => {
    child.once('exit', (code) => reject(new Error(`the server ended with ${code}:\n${log}`)));
    child.stderr.setEncoding('utf8').on('data', (text) => {
      log += text;
      const found = /taskhold is listening on (http:\/\/[^\s"]+)/.exec(log);
      if (found) resolve(found[1]);
    });
  });
  return { child, url };
}

async function token() {
  const args = ['token', 'create', '--name', 'conformance', '--database-url', database];
  return (await promisify(execFile)(BINARY, args, { env: environment })).stdout.trim();
}

/** The suite's program; older versions of node need a copy without an import that this never uses. */
async function program() {
  const dist = join(suite, 'node_modules/@modelcontextprotocol/conformance/dist');
  if (Number(process.versions.node.split('.')[0]) >= 22) return join(dist, 'index.js');
  const patched = join(dist, 'index.node20.js');
  if (!existsSync(patched)) {
    await writeFile(patched, (await readFile(join(dist, 'index.js'), 'utf8')).replace('globSync as a,', ''));
  }
  return patched;
}

async function run(cli, url, scenario) {
  const out = join(folder, 'results', scenario);
  const args = [cli, 'server', '--url', url, '--scenario', scenario, '-o', out, '--timeout', String(TIMEOUT_MS)];
  const version = isOfExtension(scenario) ? [] : ['--spec-version', revision];
  const child = spawn(process.execPath, [...args, ...version], { stdio: ['ignore', 'pipe', 'pipe'] });
  let log = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => (log += text));
  const timer = setTimeout(() => child.kill('SIGKILL'), TIMEOUT_MS + 30_000);
  await new Promise((resolve) => child.once('close', resolve));
  clearTimeout(timer);
  const made = (await readdir(out).catch(() => [])).map((name) => join(out, name, 'checks.json')).find(existsSync);
  if (made) return JSON.parse(await readFile(made, 'utf8'));
  return [{ id: 'no-result', status: 'FAILURE', errorMessage: log.slice(-500) }];
}

/** Known failures and the reason of each. */
async function baseline() {
  const known = new Map();
  const text = await readFile(new URL(`baseline-${revision}.txt`, import.meta.url), 'utf8');
  for (const line of text.split('\n').filter((line) => line.trim() && !line.startsWith('#'))) {
    const [entry, reason] = line.split('#').map((part) => part.trim());
    if (!reason) throw new Error(`this entry of the baseline has no reason: ${line}`);
    if (!SCENARIOS[revision].includes(entry.split(':')[0])) throw new Error(`the baseline names no scenario: ${entry}`);
    known.set(entry, reason);
  }
  return known;
}

const known = await baseline();
const used = new Set();
let [passed, unexpected] = [0, 0];
const server = await start();
const front = await proxy(server.url, await token());
try {
  const cli = await program();
  const chosen = SCENARIOS[revision].filter((scenario) => new RegExp(pattern).test(scenario));
  for (const scenario of chosen) {
    const checks = await run(cli, front.url, scenario);
    const count = (status) => checks.filter((check) => check.status === status).length;
    const failures = checks.filter((check) => check.status === 'FAILURE').map((check) => {
      const entry = [scenario, `${scenario}:${check.id}`].find((entry) => known.has(entry));
      if (entry) used.add(entry);
      return { ...check, known: entry };
    });
    const bad = failures.filter((failure) => !failure.known);
    passed += count('SUCCESS');
    unexpected += bad.length;
    const word = bad.length ? 'FAIL' : failures.length ? 'KNOWN' : count('SUCCESS') ? 'PASS' : 'SKIP';
    console.log(`${word.padEnd(5)} ${scenario.padEnd(32)} passed ${count('SUCCESS')}, warnings ${count('WARNING')}`);
    for (const { id, errorMessage, description } of bad) console.log(`      ${id}: ${errorMessage ?? description}`);
    for (const { id, errorMessage } of checks.filter((check) => check.status === 'WARNING')) {
      console.log(`      warning: ${id}: ${errorMessage ?? ''}`);
    }
  }
  const stale = [...known.keys()].filter((entry) => chosen.includes(entry.split(':')[0]) && !used.has(entry));
  for (const entry of stale) console.log(`STALE ${entry}: it passes now, take it out of the baseline`);
  console.log(`conformance ${revision}: ${chosen.length} scenarios, ${passed} checks passed, ${unexpected} failed`);
  process.exitCode = unexpected || stale.length || !passed ? 1 : 0;
} finally {
  front.close();
  const ended = new Promise((resolve) => server.child.once('close', resolve));
  server.child.kill('SIGTERM');
  await ended;
  await rm(folder, { recursive: true });
}
