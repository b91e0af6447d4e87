// Finds the node of each key with the cluster clients of node-redis and ioredis: cluster.mjs PORT
import assert from "node:assert/strict";
import { Cluster } from "ioredis";
import { createCluster } from "redis";

const [port] = process.argv.slice(2);

const nodeRedis = createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] });
nodeRedis.on("error", () => {});
await nodeRedis.connect();
const ioredis = new Cluster([{ host: "127.0.0.1", port: Number(port) }]);

// Its key, whether a replica may answer, and the words; all of them strings.
const viaNodeRedis = (readonly, ...words) => nodeRedis.sendCommand(words[1], readonly, words);
const viaIoredis = (_readonly, name, ...rest) => ioredis.call(name, ...rest);

for (const [client, call] of Object.entries({ viaNodeRedis, viaIoredis })) {
  for (let user = 0; user < 50; user++) {
    const key = `${client}:${user}`;
    for (const expected of [0, 0, 1]) {
      const [limited] = await call(false, "RL.WINDOW", key, "2", "1h");
      assert.equal(limited, expected, key);
    }
    const [, , remaining] = await call(true, "RL.WINDOW_RO", key, "2", "1h");
    assert.equal(remaining, 0, key);
  }
}
await nodeRedis.close();
ioredis.disconnect();
console.log("50 keys with each cluster client of Node");
