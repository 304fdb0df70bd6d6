// A real OAuth authorization server (oidc-provider), and a person who logs in to it.
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

export const SCOPES = ['tasks:read', 'tasks:write', 'tools:call'];
export const REDIRECT = 'http://127.0.0.1:9/callback';
export const MACHINE = { id: 'machine', secret: 'a secret of the tests' };

const KINDS = {
  RS256: () => generateKeyPairSync('rsa', { modulusLength: 2048 }),
  ES256: () => generateKeyPairSync('ec', { namedCurve: 'P-256' }),
  EdDSA: () => generateKeyPairSync('ed25519'),
};

/** A private key as a JWK. oidc-provider signs its own id tokens by RS256 and wants a key for that as well. */
function key(algorithm, kid) {
  return { ...KINDS[algorithm]().privateKey.export({ format: 'jwk' }), alg: algorithm, use: 'sig', kid };
}

export class Issuer {
  /** One that signs access tokens by `algorithm`, each good for `seconds`. */
  static async start({ algorithm = 'RS256', seconds = 600 } = {}) {
    const server = createServer();
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    const issuer = new Issuer(server, algorithm, seconds);
    issuer.rotate();
    return issuer;
  }

  constructor(server, algorithm, seconds) {
    Object.assign(this, { server, algorithm, seconds, keys: 0 });
    this.url = `http://127.0.0.1:${server.address().port}`;
  }

  /** Signs with a new key from now on; what was signed before is good no more. */
  rotate() {
    this.keys += 1;
    const keys = [...new Set([this.algorithm, 'RS256'])].map((algorithm) => key(algorithm, `${algorithm}-${this.keys}`));
    const provider = new Provider(this.url, {
      clients: [
        {
          client_id: MACHINE.id,
          client_secret: MACHINE.secret,
          grant_types: ['client_credentials'],
          redirect_uris: [],
          response_types: [],
        },
      ],
      cookies: { keys: ['a key of the tests'] },
      features: {
        clientCredentials: { enabled: true },
        registration: { enabled: true },
        resourceIndicators: {
          enabled: true,
          useGrantedResource: () => true,
          getResourceServerInfo: (_context, resource) => ({
            scope: SCOPES.join(' '),
            audience: resource,
            accessTokenTTL: this.seconds,
            accessTokenFormat: 'jwt',
            jwt: { sign: { alg: this.algorithm } },
          }),
        },
      },
      issueRefreshToken: () => true,
      jwks: { keys },
      scopes: ['openid', 'offline_access', ...SCOPES],
    });
    this.server.removeAllListeners('request').on('request', provider.callback());
  }

  /** A token of a program's own, with these scopes. */
  async token(resource, scope) {
    const response = await fetch(`${this.url}/token`, {
      method: 'POST',
      headers: { authorization: `Basic ${btoa(`${MACHINE.id}:${encodeURIComponent(MACHINE.secret)}`)}` },
      body: new URLSearchParams({ grant_type: 'client_credentials', resource, scope }),
    });
    const answer = await response.json();
    if (!answer.access_token) throw new Error(JSON.stringify(answer));
    return answer.access_token;
  }

  async stop() {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

/** What a browser and its user do: log in, consent, and come back with a code. */
export async function logIn(url, login) {
  const cookies = new Map();
  let next = new URL(url);
  let body;
  for (let steps = 0; steps < 20; steps += 1) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const response = await fetch(next, { method: body ? 'POST' : 'GET', body, headers: { cookie }, redirect: 'manual' });
    body = undefined;
    for (const line of response.headers.getSetCookie()) {
      const [name, value] = line.split(';', 1)[0].split(/=(.*)/s);
      if (value) cookies.set(name, value);
      else cookies.delete(name);
    }
    const location = response.headers.get('location');
    if (location) {
      next = new URL(location, next);
      if (next.href.startsWith(REDIRECT)) return next.searchParams;
    } else {
      const page = await response.text();
      const [, action] = /action="([^"]+)"/.exec(page) ?? [];
      const [, prompt] = /name="prompt" value="([^"]+)"/.exec(page) ?? [];
      if (!action) throw new Error(`${response.status} at ${next}:\n${page}`);
      next = new URL(action, next);
      body = new URLSearchParams({ prompt, login, password: 'x' });
    }
  }
  throw new Error('the log-in has no end');
}
