// A service whose callers show access tokens of a real OAuth authorization server: what the official SDK finds by itself, and
// what becomes of tasks when tokens lapse and keys change.
import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { after, before, describe, test } from 'node:test';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { Issuer, REDIRECT, SCOPES, logIn } from './issuer.js';
import { Server, create, databases, within } from './server.js';

/** A service for the tokens of this issuer, at a URL that it knows before it starts. */
async function serve(database, issuer) {
  const port = await new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
  const variables = {
    TASKHOLD_AUTH_MODE: 'oauth',
    TASKHOLD_OAUTH_ISSUER: issuer.url,
    TASKHOLD_OAUTH_LEEWAY: '0s',
    TASKHOLD_SERVER_PUBLIC_URL: `http://127.0.0.1:${port}`,
  };
  return Server.start(database, { listen: `127.0.0.1:${port}`, variables });
}

/** What the SDK wants to know of a client with a person before it. */
class Person {
  redirectUrl = REDIRECT;
  refreshed = 0;

  clientMetadata = {
    client_name: 'taskhold-interop',
    redirect_uris: [REDIRECT],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  };

  clientInformation = () => this.registered;
  saveClientInformation = (registered) => void (this.registered = registered);
  tokens = () => this.held;
  codeVerifier = () => this.verifier;
  saveCodeVerifier = (verifier) => void (this.verifier = verifier);
  redirectToAuthorization = (url) => void (this.sentTo = url);

  saveTokens(tokens) {
    if (this.held) this.refreshed += 1;
    this.held = tokens;
  }
}

/** A client that knows nothing but the URL. */
async function logInAndConnect(url, person, login) {
  const open = async () => {
    const client = new Client({ name: 'taskhold-interop', version: '1.0.0' });
    const transport = new StreamableHTTPClientTransport(url, { authProvider: person });
    return [client, transport, await client.connect(transport).catch((error) => error)];
  };
  const [, transport, refused] = await open();
  assert.ok(refused instanceof UnauthorizedError, `${refused}`);
  const { searchParams } = person.sentTo;
  assert.equal(searchParams.get('resource'), url.href);
  assert.deepEqual(searchParams.get('scope').split(' ').filter((scope) => scope.includes(':')), SCOPES);
  await transport.finishAuth((await logIn(person.sentTo, login)).get('code'));
  const [client, , connected] = await open();
  assert.equal(connected, undefined);
  return client;
}

/** Sends one message of a client without a session. */
async function send(url, token, method) {
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      accept: 'application/json',
      'content-type': 'application/json',
      ...(token && { authorization: `Bearer ${token}` }),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { taskId: 'x' } }),
  });
  await response.arrayBuffer();
  return { status: response.status, challenge: response.headers.get('www-authenticate') };
}

for (const [name, make] of Object.entries(databases())) {
  describe(`a real authorization server, ${name}`, () => {
    let database, issuer, server;

    before(async () => {
      database = await make();
      issuer = await Issuer.start({ algorithm: 'ES256', seconds: 4 });
      server = await serve(database, issuer);
    });

    after(async () => {
      await server?.kill('SIGTERM');
      await issuer?.stop();
      await database?.remove();
    });

    // req: AUTH-10, AUTH-11
    // field case: F-AUTH-05
    test('a client that knows the URL alone gets in, and keeps its task through refreshed tokens', async () => {
      const person = new Person();
      const client = await logInAndConnect(server.url, person, 'ada');
      const { taskId: id } = await create(client, 'sleep', { ms: 9_000 });
      const first = person.held.access_token;
      const status = async () => (await client.experimental.tasks.getTask(id)).status;
      assert.equal(await status(), 'working');
      await within('two refreshed tokens', async () => (await status()) && person.refreshed >= 2);
      const lapsed = await send(server.url, first, 'tasks/get');
      assert.equal(lapsed.status, 401);
      assert.match(lapsed.challenge, /^Bearer error="invalid_token", resource_metadata="http:/);
      const result = await client.experimental.tasks.getTaskResult(id, CallToolResultSchema);
      assert.ok(!result.isError, JSON.stringify(result));
      // The same person by another client sees the task; another person does not.
      const again = await logInAndConnect(server.url, new Person(), 'ada');
      assert.equal((await again.experimental.tasks.getTask(id)).status, 'completed');
      const other = await logInAndConnect(server.url, new Person(), 'eve');
      await assert.rejects(other.experimental.tasks.getTask(id), { code: -32602 });
      for (const one of [client, again, other]) await one.close();
    });

    // req: AUTH-10
    // field case: F-AUTH-07 (a token for somebody else)
    test('a program is let in for its scopes, and for this service', async () => {
      const resource = server.url.href;
      assert.equal((await send(server.url, undefined, 'tasks/get')).status, 401);
      const elsewhere = await issuer.token('https://other.example/mcp', SCOPES.join(' '));
      assert.equal((await send(server.url, elsewhere, 'tasks/get')).status, 401);
      const reader = await issuer.token(resource, 'tasks:read');
      // 400: it would need a session.
      assert.equal((await send(server.url, reader, 'tasks/get')).status, 400);
      const refused = await send(server.url, reader, 'tasks/cancel');
      assert.equal(refused.status, 403);
      assert.match(refused.challenge, /^Bearer error="insufficient_scope", scope="tasks:write", resource_metadata="http:/);
    });

    // req: AUTH-10
    test('a new signing key is taken within half a minute', async () => {
      const asks = async () => (await send(server.url, await issuer.token(server.url.href, 'tasks:read'), 'tasks/get')).status;
      assert.equal(await asks(), 400);
      issuer.rotate();
      await within('the new key', async () => (await asks()) === 400, 45_000);
    });
  });
}

for (const algorithm of ['RS256', 'EdDSA']) {
  // req: AUTH-10
  test(`tokens that are signed by ${algorithm} count`, async () => {
    const database = await databases().SQLite();
    const issuer = await Issuer.start({ algorithm });
    const server = await serve(database, issuer);
    try {
      const token = await issuer.token(server.url.href, 'tasks:read');
      assert.equal((await send(server.url, token, 'tasks/get')).status, 400);
    } finally {
      await server.kill('SIGTERM');
      await issuer.stop();
      await database.remove();
    }
  });
}
