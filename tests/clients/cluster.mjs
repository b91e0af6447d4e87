// Finds the node of each key with the cluster clients of node-redis and ioredis: cluster.mjs PORT
import assert from "node:assert/strict";
import { Cluster, Redis } from "ioredis";
import { createCluster } from "redis";

const [port] = process.argv.slice(2);

const nodeRedis = createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] });
nodeRedis.on("error", () => {});
await nodeRedis.connect();
const ioredis = new Cluster([{ host: "127.0.0.1", port: Number(port) }]);

// A key, whether a replica may answer, and the words; all of them strings.
const viaNodeRedis = (key, readonly, ...words) => nodeRedis.sendCommand(key, readonly, words);
const viaIoredis = (_key, _readonly, name, ...rest) => ioredis.call(name, ...rest);
const clients = Object.entries({ viaNodeRedis, viaIoredis });

for (const [client, call] of clients) {
  for (let user = 0; user < 50; user++) {
    const key = `${client}:${user}`;
    for (const expected of [0, 0, 1]) {
      const [limited] = await call(key, false, "RL.WINDOW", key, "2", "1h");
      assert.equal(limited, expected, key);
    }
    const [, , remaining] = await call(key, true, "RL.WINDOW_RO", key, "2", "1h");
    assert.equal(remaining, 0, key);
  }
}

// How many calls were redirected.
const direct = ioredis.nodes("master").map(({ options }) => new Redis(options.port, "127.0.0.1"));
async function moved() {
  const told = await Promise.all(direct.map((node) => node.info("errorstats")));
  return told.map((lines) => Number(/MOVED:count=(\d+)/.exec(lines)?.[1] ?? 0)).reduce((sum, count) => sum + count);
}

// Several limits of one slot.
const LIMITS = ["WINDOW", "2", "1h", "ACQUIRE", "9", "0"];
const CROSS_SLOT = ["RL.ALL", "2", "foo", "bar", "WINDOW", "2", "1h", "WINDOW", "2", "1h"];
for (const [client, call] of clients) {
  const before = await moved();
  for (let user = 0; user < 50; user++) {
    const keys = [`{${client}:${user}}:all:rate`, `{${client}:${user}}:all:jobs`];
    for (const expected of [0, 0, 1]) {
      const [limited] = await call(keys[0], false, "RL.ALL", "2", ...keys, ...LIMITS);
      assert.equal(limited, expected, keys[0]);
    }
    const [, , remaining] = await call(keys[0], true, "RL.ALL_RO", "2", ...keys, ...LIMITS);
    assert.equal(remaining, 0, keys[0]);
  }
  // node-redis is told a key. ioredis knows no keys of such a command, tries any node and follows the redirection.
  const redirected = (await moved()) - before;
  assert.equal(redirected > 0, call === viaIoredis, `${client}: ${redirected}`);
  await assert.rejects(call("foo", false, ...CROSS_SLOT), /CROSSSLOT /);
}
// Of a script ioredis knows the keys.
const SCRIPT = "return redis.call('RL.ALL', #KEYS, KEYS[1], KEYS[2], unpack(ARGV))";
const before = await moved();
for (let user = 0; user < 50; user++) {
  const keys = [`{script:${user}}:all:rate`, `{script:${user}}:all:jobs`];
  for (const expected of [0, 0, 1]) {
    const [limited] = await ioredis.eval(SCRIPT, 2, ...keys, ...LIMITS);
    assert.equal(limited, expected, keys[0]);
  }
}
assert.equal((await moved()) - before, 0);
await nodeRedis.close();
ioredis.disconnect();
direct.forEach((node) => node.disconnect());
console.log("50 keys and pairs of keys with each cluster client of Node");
