/** Outages behind sentinels and in a cluster. REDIS_SERVER and RATELIMIT_SO are the server and the module. */

import assert from "node:assert/strict";
import { describe as suite, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Redis } from "ioredis";
import { createSentinel } from "redis";

import { Closed, Limiter, semaphore, type LimiterOptions, type Reply } from "../src/index.js";
import { slotOf } from "../src/cluster.js";
import { CLUSTERS, connected, Proxy, Server, SINGLE, until, untilWaiting, type Opened } from "./servers.js";

/** Long enough for a server that answers, however busy the machine is. */
const DEADLINE = 3000;
const SOON = DEADLINE + 5000;
const PATIENT = { deadline: 30_000 };
const WINDOW = { limit: 1_000_000, period: "1d" };

async function timed(ask: () => Promise<Reply>): Promise<{ reply: Reply; ms: number }> {
  const begin = performance.now();
  const reply = await ask();
  return { reply, ms: performance.now() - begin };
}

/** Asks until the server decides, for a while. */
async function decided(ask: () => Promise<Reply>, withinMs: number): Promise<Reply> {
  const begin = performance.now();
  for (;;) {
    const { reply, ms } = await timed(ask);
    assert.ok(ms <= SOON, `a call took ${ms} ms`);
    if (reply.reachable) return reply;
    assert.ok(performance.now() - begin < withinMs, `no decision within ${withinMs} ms`);
    await sleep(10);
  }
}

/** Uses a limiter, and ends it, its client and the servers. */
async function use(
  opened: Opened,
  servers: (Server | Proxy)[],
  body: (limiter: Limiter) => Promise<void>,
  options: LimiterOptions = { unreachable: "deny", deadline: DEADLINE },
): Promise<void> {
  const limiter = new Limiter(opened.client, options);
  try {
    await body(limiter);
  } finally {
    limiter.close();
    await opened.close();
    for (const server of servers) await server.end();
  }
}

/** A call that is given up while it waits, one that is granted too late, and one that stays in line. */
async function giveUp(limiter: Limiter, node: Server): Promise<void> {
  const job = semaphore(1);
  await limiter.reserve("{k}", job, { id: "first" });
  const controller = new AbortController();
  const given = limiter.reserve("{k}", job, { id: "second", block: 60_000, signal: controller.signal });
  await untilWaiting(node.admin, 1);
  controller.abort();
  await assert.rejects(given, (error) => error === controller.signal.reason);
  await untilWaiting(node.admin, 0);
  // A grant in the same turn is given back.
  const late = new AbortController();
  const third = limiter.reserve("{k}", job, { block: 60_000, signal: late.signal });
  await untilWaiting(node.admin, 1);
  const released = limiter.release("{k}", "first");
  late.abort();
  await assert.rejects(third, (error) => error === late.signal.reason);
  assert.equal(await released, 1);
  await until(async () => (await limiter.held("{k}")).length === 0, "not given back");
  const fourth = AbortSignal.abort();
  await assert.rejects(limiter.window("{k}w", WINDOW, { signal: fourth }), (error) => error === fourth.reason);
  assert.equal(await node.admin.exists("{k}w"), 0);
  // Closing the limiter ends a call that waits.
  await limiter.reserve("{k}", job);
  const waits = limiter.reserve("{k}", job, { block: 0 });
  await untilWaiting(node.admin, 1);
  limiter.close();
  await assert.rejects(waits, Closed);
  await untilWaiting(node.admin, 0);
}

/**
 * A master that was demoted answers READONLY. The call after it goes to the master that there is now. So does this call, if
 * `expected` is undefined; otherwise it fails with such an error.
 */
async function leave(
  limiter: Limiter,
  first: Server,
  second: Server,
  expected: RegExp | undefined,
  move: () => unknown,
) {
  assert.equal((await limiter.window("k", WINDOW)).remaining, WINDOW.limit - 1);
  // Some connections are for calls that may wait.
  assert.equal((await limiter.window("k", WINDOW, { block: 1 })).remaining, WINDOW.limit - 2);
  await first.admin.replicaof("127.0.0.1", second.port);
  await move();
  // A reply that comes after READONLY does not make it a master again.
  const asked = await Promise.allSettled([limiter.window("k", WINDOW), limiter.windowRo("k", "@none")]);
  const errors = asked.map((each) => each.status === "rejected" && String((each.reason as Error).message));
  let taken = 0;
  if (expected === undefined) taken += 1;
  assert.match(String(errors[0]), expected ?? /^false$/);
  assert.match(String(errors[1]), /no policy has the name none/);
  const waits = limiter.window("k", WINDOW, { block: 1 });
  assert.equal((await waits).remaining, WINDOW.limit - (taken += 1));
  const replies = await Promise.all(Array.from({ length: 20 }, () => limiter.window("k", WINDOW)));
  assert.equal(Math.min(...replies.map(({ remaining }) => remaining)), WINDOW.limit - taken - 20);
  assert.equal((await limiter.window("k", WINDOW, { block: 1 })).remaining, WINDOW.limit - taken - 21);
}

suite("a master that became a replica is left", () => {
  for (const [library, open] of SINGLE) {
    test(`${library}: a single server whose name leads to another by then`, async () => {
      const [first, second] = [await Server.start(), await Server.start()];
      const proxy = await Proxy.before(first.port);
      const lead = () => proxy.leadTo(second.port, false);
      const body = (limiter: Limiter) => leave(limiter, first, second, /^READONLY/, lead);
      await use(open(proxy.port), [proxy, first, second], body, PATIENT);
    });
  }
});

const SENTINELS: [string, (port: number) => Promise<Opened>][] = [
  [
    "node-redis",
    (port) => connected(createSentinel({ name: "limits", sentinelRootNodes: [{ host: "127.0.0.1", port }] })),
  ],
  [
    "ioredis",
    async (port) => {
      const client = new Redis({ name: "limits", sentinels: [{ host: "127.0.0.1", port }] });
      client.on("error", () => {});
      await client.ping();
      return { client, close: () => client.disconnect() };
    },
  ],
];

suite("behind sentinels", () => {
  for (const [library, open] of SENTINELS) {
    test(`${library}: a call that is given up rejects at once, and a late grant is given back`, async () => {
      const master = await Server.start();
      const sentinel = await Server.sentinelOf(master, 1);
      const body = async (limiter: Limiter) => {
        if (library === "ioredis") return giveUp(limiter, master);
        // The client has no connection that can be closed: the call stays in line until its time is up.
        const job = semaphore(1);
        await limiter.reserve("k", job, { id: "first" });
        const controller = new AbortController();
        const given = limiter.reserve("k", job, { id: "second", block: 60_000, signal: controller.signal });
        await untilWaiting(master.admin, 1);
        controller.abort();
        await assert.rejects(given, (error) => error === controller.signal.reason);
        await master.admin.call("RL.RELEASE", "k", "first");
        await until(async () => (await limiter.held("k")).length === 0, "not given back");
      };
      await use(await open(sentinel.port), [sentinel, master], body, PATIENT);
    });

    test(`${library}: a master that became a replica is left`, async () => {
      const [first, second] = [await Server.start(), await Server.start()];
      const sentinel = await Server.sentinelOf(first, 1);
      // As a failover does, but at one moment.
      const move = async () => {
        await sentinel.admin.call("SENTINEL", "REMOVE", "limits");
        await sentinel.admin.call("SENTINEL", "MONITOR", "limits", "127.0.0.1", second.port, 1);
      };
      const expected = library === "node-redis" ? /aborted/ : undefined;
      const body = (limiter: Limiter) => leave(limiter, first, second, expected, move);
      await use(await open(sentinel.port), [sentinel, first, second], body, PATIENT);
    });

    test(`${library} follows a failover, and a call is counted once`, async () => {
      const master = await Server.start();
      const replica = await Server.start("--replicaof", `127.0.0.1 ${master.port}`);
      const sentinel = await Server.sentinelOf(master, 1);
      const isKnown = async () =>
        String(await sentinel.admin.call("SENTINEL", "REPLICAS", "limits")).includes(`${replica.port}`);
      while (!(await isKnown()) || !(await replica.admin.info("replication")).includes("master_link_status:up"))
        await sleep(50);
      await use(await open(sentinel.port), [sentinel, replica, master], async (limiter) => {
        const ask = () => limiter.window("k", WINDOW);
        const first = await decided(ask, 30_000);
        const second = await decided(ask, 30_000);
        assert.equal(second.remaining, first.remaining - 1);
        // WAIT waits for the writes of its own connection, and so for all writes before them.
        await master.admin.set("last", "1");
        assert.equal(await master.admin.wait(1, 30_000), 1);
        await master.kill();
        const { reply, ms } = await timed(ask);
        assert.ok(ms <= SOON, `a call took ${ms} ms`);
        const last = await decided(ask, 30_000);
        // A call that was given up is not sent to the new master. On a slow machine, that one may decide it in time.
        assert.equal(last.remaining, second.remaining - (reply.reachable ? 2 : 1));
      });
    });
  }
});

suite("in a cluster", () => {
  for (const [library, open] of CLUSTERS.slice(0, 2)) {
    test(`${library}: a node that is stopped holds up no other node's calls`, async () => {
      const { nodes, ofSlot } = await Server.cluster();
      const keyOf = (node: Server): string => {
        for (let number = 0; ; number += 1) if (ofSlot(slotOf(`k${number}`)) === node) return `k${number}`;
      };
      const [one, stopped] = nodes as [Server, Server, Server];
      await use(await open(one.port), nodes, async (limiter) => {
        const [there, away] = [keyOf(one), keyOf(stopped)];
        const before = await decided(() => limiter.window(away, WINDOW), 30_000);
        await decided(() => limiter.window(there, WINDOW), 30_000);
        stopped.signal("SIGSTOP");
        const open: number[] = [];
        for (let at = 0; at < 20; at += 1) {
          const { reply, ms } = await timed(() => limiter.window(away, WINDOW));
          assert.deepEqual([reply.reachable, ms <= SOON], [false, true]);
          if (at >= 10) open.push(ms);
          assert.ok((await limiter.window(there, WINDOW)).reachable);
        }
        assert.ok(Math.min(...open) < 5, "the breaker of the node opens");
        stopped.signal("SIGCONT");
        const after = await decided(() => limiter.window(away, WINDOW), 20_000);
        assert.ok(after.remaining < before.remaining);
      });
    });

    test(`${library}: a replica that takes over is found, and a call is counted once`, async () => {
      const { nodes, ofSlot } = await Server.cluster();
      const master = ofSlot(slotOf("k"));
      const replica = await Server.start("--cluster-enabled", "yes");
      await use(
        await open((nodes.find((node) => node !== master) as Server).port),
        [...nodes, replica],
        async (limiter) => {
          const first = await decided(() => limiter.window("k", WINDOW), 30_000);
          await replica.admin.call("CLUSTER", "MEET", "127.0.0.1", master.port);
          const id = String(await master.admin.call("CLUSTER", "MYID"));
          await until(() =>
            replica.admin.call("CLUSTER", "REPLICATE", id).then(
              () => true,
              () => false,
            ),
          );
          await until(async () => (await replica.admin.info("replication")).includes("master_link_status:up"));
          await master.kill();
          assert.equal((await timed(() => limiter.window("k", WINDOW))).reply.reachable, false);
          await replica.admin.call("CLUSTER", "FAILOVER", "TAKEOVER");
          const next = await decided(() => limiter.window("k", WINDOW), 20_000);
          assert.equal(next.remaining, first.remaining - 1);
        },
      );
    });

    test(`${library}: a call that is given up leaves the line, and a late grant is given back`, async () => {
      const { nodes, ofSlot } = await Server.cluster();
      const body = (limiter: Limiter) => giveUp(limiter, ofSlot(slotOf("{k}")));
      await use(await open((nodes[0] as Server).port), nodes, body, PATIENT);
    });

    test(`${library}: connections that are killed are opened again`, async () => {
      const { nodes } = await Server.cluster();
      await use(await open((nodes[0] as Server).port), nodes, async (limiter) => {
        for (let round = 0; round < 3; round += 1) {
          await decided(() => limiter.window(`k${round}`, WINDOW), 30_000);
          for (const node of nodes) await node.admin.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
          await decided(() => limiter.window(`k${round}`, WINDOW), 20_000);
        }
      });
    });
  }
});
