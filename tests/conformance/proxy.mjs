// Adds the access token to the suite's requests, which it cannot send itself. Works on bytes, so that every header that the
// suite sent keeps its case and its spaces; one request a connection. `Host` and `Origin` are ours only where they name this
// proxy: what the suite makes up passes as it is.
import net from 'node:net';

export async function proxy(target, token) {
  const up = new URL(target);
  let self;
  const server = net.createServer((client) => {
    let head = Buffer.alloc(0);
    const upstream = net.connect(Number(up.port), up.hostname);
    const end = () => (client.destroy(), upstream.destroy());
    for (const socket of [client, upstream]) socket.on('error', end);
    client.on('close', () => upstream.destroy());
    upstream.on('close', () => client.end());
    const onData = (data) => {
      head = Buffer.concat([head, data]);
      const at = head.indexOf('\r\n\r\n');
      if (at < 0) return;
      client.off('data', onData);
      const lines = head.subarray(0, at).toString('latin1').split('\r\n').map((line) => {
        if (/^host:/i.test(line) && line.includes(self)) return `Host: ${up.host}`;
        if (/^origin:/i.test(line) && line.includes(`http://${self}`)) return `Origin: ${up.origin}`;
        return /^(connection|keep-alive):/i.test(line) ? undefined : line;
      });
      const ours = [`Authorization: Bearer ${token}`, 'Connection: close'];
      upstream.write(Buffer.from([...lines.filter((line) => line !== undefined), ...ours, '', ''].join('\r\n'), 'latin1'));
      upstream.write(head.subarray(at + 4));
      client.pipe(upstream, { end: false });
      upstream.pipe(client);
    };
    client.on('data', onData);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  self = `127.0.0.1:${server.address().port}`;
  return { url: `http://${self}${up.pathname}`, close: () => server.close() };
}
