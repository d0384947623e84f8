// Drives the published client against the port given as the last argument.
const assert = require('node:assert');
const WebSocket = require('ws');
const { LocktopusClient } = require('@locktopus/client');

const port = Number(process.argv.at(-1));
const resource = (type, ...path) => ({ type, path });

async function connected(namespace, abandonTimeoutMs) {
  const client = new LocktopusClient(WebSocket, { host: '127.0.0.1', port, namespace, secure: false, abandonTimeoutMs });
  await client.connect();
  return client;
}

async function locksAndReleases() {
  const client = await connected('npm-simple');
  assert.strictEqual(await client.lock(resource('write', 'a', 'b'), resource('read', 'c')), true);
  assert.strictEqual(client.isAcquired(), true);
  assert.match(client.getLockId(), /^[0-9]+$/);
  assert.strictEqual(await client.acquire(), true);
  await client.release();
  assert.strictEqual(client.getState(), 'ready');
  assert.strictEqual(await client.lock(resource('write', 'a')), true);
  await client.release();
  client.close();
}

async function waitsItsTurn() {
  const first = await connected('npm-turns');
  const second = await connected('npm-turns');
  assert.strictEqual(await first.lock(resource('write', 'x')), true);
  assert.strictEqual(await second.lock(resource('read', 'x', 'y')), false);
  assert.strictEqual(second.getState(), 'enqueued');
  const acquired = second.acquire();
  await first.release();
  assert.strictEqual(await acquired, true);
  await second.release();
  first.close();
  second.close();
}

async function givesUpWaiting() {
  const first = await connected('npm-gives-up');
  const second = await connected('npm-gives-up');
  assert.strictEqual(await first.lock(resource('write', 'x')), true);
  assert.strictEqual(await second.lock(resource('write', 'x')), false);
  const acquired = second.acquire();
  await second.release();
  assert.strictEqual(await acquired, false);
  await first.release();
  assert.strictEqual(await second.lock(resource('write', 'x')), true);
  await second.release();
  first.close();
  second.close();
}

async function abandonsItsLock(abandonTimeoutMs) {
  const first = await connected('npm-abandons', abandonTimeoutMs);
  const second = await connected('npm-abandons');
  assert.strictEqual(await first.lock(resource('write', 'x')), true);
  assert.strictEqual(await second.lock(resource('write', 'x')), false);
  const closedAt = Date.now();
  first.close();
  assert.strictEqual(await second.acquire(), true);
  const waited = Date.now() - closedAt;
  assert.ok(waited >= abandonTimeoutMs - 1, `${waited} ms`);
  assert.ok(waited < abandonTimeoutMs + 8000, `${waited} ms`);
  await second.release();
  second.close();
}

async function takesTurnsWithMany() {
  const clients = await Promise.all(Array.from({ length: 20 }, () => connected('npm-many')));
  let inside = 0;
  let turns = 0;
  const work = async (client) => {
    for (let turn = 0; turn < 5; turn += 1) {
      await client.lock(resource('write', 'shared'), resource('write', `own-${turn}`));
      await client.acquire();
      inside += 1;
      assert.strictEqual(inside, 1, 'two are inside at once');
      await new Promise((resolve) => setImmediate(resolve));
      inside -= 1;
      turns += 1;
      await client.release();
    }
    client.close();
  };
  await Promise.all(clients.map(work));
  assert.strictEqual(turns, 100);
}

(async () => {
  await locksAndReleases();
  await waitsItsTurn();
  await givesUpWaiting();
  await abandonsItsLock(0);
  await abandonsItsLock(500);
  await takesTurnsWithMany();
  console.log('all came out as expected');
  process.exit(0);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
