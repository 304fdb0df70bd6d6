// What the tests of work that talks back share: the protocol's reference server behind the service, and what clients answer it.
import { after, before, describe } from 'node:test';
import { EVERYTHING, Server, connect, databases, listed } from './server.js';

export const RELATED = 'io.modelcontextprotocol/related-task';

export const FORM = { action: 'accept', content: { name: 'Ada', integer: 7 } };
export const SAMPLE = { role: 'assistant', model: 'a-model', content: { type: 'text', text: 'a sampled answer' } };

/** Tests on each kind of database; they get what opens a client of the service, by `options` of the SDK's. */
export function inFrontOfEverything(what, tests) {
  for (const [name, make] of Object.entries(databases())) {
    describe(`${what} on ${name}`, () => {
      let database, server, token;

      before(async () => {
        database = await make();
        token = await database.token('client');
        server = await Server.start(database, { upstream: EVERYTHING });
        const client = await connect(server.url, token);
        await listed(client, 'trigger-sampling-request');
        await client.close();
      });

      after(async () => {
        await server?.kill('SIGTERM');
        await database?.remove();
      });

      tests((options) => connect(server.url, token, options));
    });
  }
}
