// What node-redis and ioredis ask of an ACL: acl.mjs one PORT, acl.mjs cluster PORT or acl.mjs sentinel PORT_OF_SENTINEL, as user app.
import assert from "node:assert/strict";
import { Cluster, Redis } from "ioredis";
import { createClient, createCluster, createSentinel } from "redis";

// A client that may not do what it wants tries again without end.
const watchdog = setTimeout(() => {
  console.error("still not done after 60 seconds");
  process.exit(1);
}, 60_000);

const [how, given] = process.argv.slice(2);
const port = Number(given);
const username = "app";
const password = "secret";

async function tryOut(call) {
  for (let user = 0; user < 20; user++) {
    const key = `limit:{${user}}`;
    assert.equal((await call(key, false, "RL.WINDOW", key, "100", "60"))[0], 0);
    assert.equal((await call(key, false, "RL.THROTTLE", `${key}:t`, "100", "100", "60"))[0], 0);
    assert.equal((await call(key, true, "RL.WINDOW_RO", key, "100", "60"))[0], 0);
    const [limited] = await call(key, false, "RL.ALL", "2", key, `${key}:t`, "WINDOW", "100", "60", "THROTTLE", "100", "100", "60");
    assert.equal(limited, 0);
  }
  for (const refused of [["RL.WINDOW", "other", "5", "60"], ["DEL", "limit:{1}"]]) {
    await assert.rejects(call(refused[1], false, ...refused), /NOPERM/);
  }
}

const url = `redis://127.0.0.1:${port}`;
const viaIoredis = (client) => (_key, _readonly, name, ...rest) => client.call(name, ...rest);
if (how === "one") {
  const node = createClient({ url, username, password, pingInterval: 200 });
  node.on("error", (error) => assert.fail(error));
  await node.connect();
  await tryOut((_key, _readonly, ...words) => node.sendCommand(words));
  await new Promise((resolve) => setTimeout(resolve, 500));
  await node.close();
  const io = new Redis(port, "127.0.0.1", { username, password });
  await tryOut(viaIoredis(io));
  io.disconnect();
} else if (how === "cluster") {
  const node = createCluster({ rootNodes: [{ url }], defaults: { username, password }, useReplicas: true });
  node.on("error", (error) => assert.fail(error));
  await node.connect();
  await tryOut((key, readonly, ...words) => node.sendCommand(key, readonly, words));
  await node.close();
  const io = new Cluster([{ host: "127.0.0.1", port }], { redisOptions: { username, password }, scaleReads: "all" });
  await tryOut(viaIoredis(io));
  io.disconnect();
} else {
  const sentinelRootNodes = [{ host: "127.0.0.1", port }];
  const node = createSentinel({
    name: "limits",
    sentinelRootNodes,
    sentinelClientOptions: { username, password },
    nodeClientOptions: { username, password },
  });
  node.on("error", (error) => assert.fail(error));
  await node.connect();
  await tryOut((_key, readonly, ...words) => node.sendCommand(readonly, words));
  await node.close();
  const io = new Redis({
    sentinels: sentinelRootNodes,
    name: "limits",
    username,
    password,
    sentinelUsername: username,
    sentinelPassword: password,
  });
  await tryOut(viaIoredis(io));
  io.disconnect();
}
clearTimeout(watchdog);
console.log(`node-redis and ioredis, ${how}`);
