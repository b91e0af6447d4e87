/**
 * Every method on a real server, through node-redis over RESP2 and RESP3, a pool of it, and ioredis. RATELIMIT_PORT is the
 * port of a server with the module, RATELIMIT_HELD_PORT that of one whose clock stands at NOON, RATELIMIT_CLUSTER_PORT that
 * of a node of a cluster; all keys are flushed.
 */

import assert from "node:assert/strict";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { after, before, beforeEach, describe as suite, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Cluster, Redis } from "ioredis";
import { Cluster as Cluster6, Redis as Redis6 } from "ioredis-6";
import Ioredis50, { Cluster as Cluster50 } from "ioredis-5.0";
import { createClient, createClientPool } from "redis";
import { createClient as createClient50 } from "redis-5.0";
import { createClient as createClient6 } from "redis-6";

import { FAILURES } from "../src/breaker.js";
import {
  clause,
  Closed,
  codeOf,
  Limiter,
  MemoryLimiter,
  MissingModule,
  semaphore,
  type LimiterOptions,
} from "../src/index.js";
import { RatelimitThrottlerStorage } from "../src/adapters/throttler-storage.js";
import { CASES, run } from "./fixtures.js";
import { CLUSTERS, connected, Proxy, SINGLE, until, untilWaiting, type Opened } from "./servers.js";

const PORT = Number(process.env["RATELIMIT_PORT"]);
const HELD_PORT = Number(process.env["RATELIMIT_HELD_PORT"]);
const CLUSTER_PORT = Number(process.env["RATELIMIT_CLUSTER_PORT"]);
const NOON = 1_795_238_388_000;

/** For calls that the server must decide, however busy the machine is. */
const PATIENT = { deadline: 30_000 };

const plain = new Redis(PORT, { lazyConnect: true });
before(() => plain.connect());
after(() => plain.disconnect());

async function took(work: () => Promise<unknown>): Promise<number> {
  const begin = performance.now();
  await work();
  return performance.now() - begin;
}

/** Returns a result as a value to compare: without the counters of policies and ids that the server made. */
function comparable(found: unknown): unknown {
  if (Array.isArray(found)) return found.map(comparable);
  if (found instanceof Error) return found.message;
  if (typeof found !== "object" || found === null) return found;
  const isCounter = ([name, value]: [string, unknown]) =>
    typeof value === "number" && /^(allowed|denied|shadowDenied)$/.test(name);
  const fields = Object.entries(found).filter((field) => !isCounter(field));
  return Object.fromEntries(
    fields.map(([name, value]) => [name, name === "id" && String(value).length > 15 ? "made" : comparable(value)]),
  );
}

const nodeRedis = (port: number, RESP: 2 | 3, socketTimeout?: number): Promise<Opened> => {
  const socket = { host: "127.0.0.1", port, ...(socketTimeout !== undefined && { socketTimeout }) };
  return connected(createClient({ socket, RESP }));
};

const ioredis = (port: number, options: object = {}): Promise<Opened> =>
  connected(new Redis(port, "127.0.0.1", { lazyConnect: true, autoResendUnfulfilledCommands: false, ...options }));

const KINDS: [string, (port: number) => Promise<Opened>][] = [
  ["node-redis over RESP2", (port) => nodeRedis(port, 2)],
  ["node-redis over RESP3", (port) => nodeRedis(port, 3)],
  ["a pool of node-redis", (port) => connected(createClientPool({ socket: { host: "127.0.0.1", port } }))],
  ["ioredis", (port) => ioredis(port)],
  ["node-redis 5.0", (port) => connected(createClient50({ socket: { host: "127.0.0.1", port } }))],
  ["node-redis 6", (port) => connected(createClient6({ socket: { host: "127.0.0.1", port } }))],
  ["ioredis 5.0", (port) => connected(new Ioredis50.default(port, "127.0.0.1", { lazyConnect: true }))],
  ["ioredis 6", (port) => connected(new Redis6(port, "127.0.0.1", { lazyConnect: true }))],
];

for (const [kind, open] of KINDS) {
  suite(kind, () => {
    let opened: Opened;
    let limiter: Limiter;
    before(async () => {
      opened = await open(PORT);
      limiter = new Limiter(opened.client, PATIENT);
    });
    after(async () => {
      limiter.close();
      await opened.close();
    });
    beforeEach(async () => void (await plain.flushall()));

    test("every case is answered as by a MemoryLimiter", async () => {
      const redis = new Redis(HELD_PORT);
      const held = await open(HELD_PORT);
      const policies =
        "free THROTTLE 15 30 60; day WINDOW 1000 1d; plan WINDOW 9 1d; credits WINDOW 7 1d; jobs WINDOW 2 0;" +
        "rpm WINDOW 500 1min; tpm WINDOW 100000 1min";
      try {
        await redis.config("SET", "ratelimit.policies", policies);
        const server = new Limiter(held.client, PATIENT);
        for (const each of CASES) {
          await redis.flushall();
          await server.top({ reset: true });
          const memory = new MemoryLimiter({ policies, clock: () => NOON });
          // Neither clock moves, so a call that has to wait would wait forever.
          const turns = "block" in (each.options ?? {}) ? 1 : 3;
          for (let turn = 0; turn < turns; turn += 1) {
            const [found, expected] = await Promise.all(
              [server, memory].map((limiter) => run(limiter, each).catch((error: unknown) => error)),
            );
            assert.ok(turn > 0 || !(expected instanceof Error), `${each.words}: ${String(expected)}`);
            assert.deepEqual(comparable(found), comparable(expected), each.words);
          }
        }
        server.close();
      } finally {
        await redis.config("SET", "ratelimit.policies", "");
        await held.close();
        redis.disconnect();
      }
    });

    test("a call that waits holds up no other", async () => {
      const rate = { burst: 0, count: 1, period: "700ms" };
      const waited = await took(async () => {
        await limiter.throttle("k", rate);
        assert.ok((await limiter.throttle("k", rate, { block: 30_000 })).allowed);
      });
      assert.ok(690 < waited && waited < 15_000, `${waited}`);
      // Denied when its time is up.
      await limiter.reserve("job", semaphore(1), { id: "first" });
      const denied = await took(async () => {
        assert.equal((await limiter.reserve("job", semaphore(1), { block: 600 })).limited, 2);
      });
      assert.ok(590 < denied && denied < 15_000, `${denied}`);
      // Granted when somebody gives back, without an end to the wait.
      const second = limiter.reserve("job", semaphore(1), { id: "second", block: 0 });
      await untilWaiting(plain, 1);
      assert.equal(await limiter.release("job", "first"), 1);
      assert.equal((await second).id, "second");
      // Several wait at a time.
      const others = Array.from({ length: 3 }, (_, at) =>
        limiter.reserve("job", semaphore(1), { id: `${at}`, block: 0 }),
      );
      await untilWaiting(plain, 3);
      await limiter.release("job", "second");
      const passedOn = others.map(async (other) => {
        const { id } = await other;
        await limiter.release("job", id!);
        return id;
      });
      assert.deepEqual((await Promise.all(passedOn)).sort(), ["0", "1", "2"]);
    });

    test("a call that is given up leaves the line at once, and takes nothing", async () => {
      const [rate, window] = [
        { burst: 0, count: 1, period: "1h" },
        { limit: 1, period: "1h" },
      ];
      await limiter.reserve("job", semaphore(1), { id: "first" });
      await limiter.throttle("r", rate);
      await limiter.window("w", window);
      const controller = new AbortController();
      const options = { block: 0, signal: controller.signal };
      const given = [
        limiter.reserve("job", semaphore(1), options),
        limiter.acquire("job", semaphore(1), options, () => assert.fail("entered")),
        limiter.throttle("r", rate, options),
        limiter.window("w", window, options),
      ];
      await untilWaiting(plain, 4);
      const stays = limiter.reserve("job", semaphore(1), { id: "last", block: 0 });
      await untilWaiting(plain, 5);
      const reason = new Error("the user left");
      controller.abort(reason);
      for (const call of given) await assert.rejects(call, (error) => error === reason);
      await untilWaiting(plain, 1);
      await limiter.release("job", "first");
      assert.equal((await stays).id, "last");
      assert.deepEqual(
        (await limiter.held("job")).map(({ id }) => id),
        ["last"],
      );
      assert.deepEqual([await limiter.reset("r"), await limiter.reset("w")], [true, true]);
      assert.equal((await limiter.throttle("r", rate)).allowed, true);
    });

    test("closing the limiter ends the calls that wait", async () => {
      const closing = new Limiter(opened.client, PATIENT);
      await limiter.reserve("job", semaphore(1), { id: "first" });
      const waits = [1, 2].map(() => assert.rejects(closing.reserve("job", semaphore(1), { block: 0 }), Closed));
      await untilWaiting(plain, 2);
      closing.close();
      await Promise.all(waits);
      await untilWaiting(plain, 0);
    });

    test("a call that is given up before it has a connection leaves none open", async () => {
      const fresh = new Limiter(opened.client, PATIENT);
      const connected = async () => (await plain.info("clients")).match(/connected_clients:(\d+)/)?.[1];
      const before = Number(await connected());
      const given = Array.from({ length: 5 }, () => {
        const controller = new AbortController();
        const call = fresh.throttle("k", { burst: 9, count: 1, period: "1s" }, { block: 0, signal: controller.signal });
        controller.abort();
        return assert.rejects(call, (error) => error === controller.signal.reason);
      });
      await Promise.all(given);
      await sleep(200);
      await until(async () => Number(await connected()) <= before, `more than ${before} connections`);
      assert.equal(await plain.exists("k"), 0, "nothing was sent");
      fresh.close();
    });

    test("error replies are thrown even if outages allow", async () => {
      const allowing = new Limiter(opened.client, { unreachable: "allow", ...PATIENT });
      await assert.rejects(allowing.window("k", { limit: 5, period: "1m" }), /1min or 1mo/);
      await assert.rejects(allowing.throttle("k", { burst: -1, count: 1, period: "1s" }), /max_burst must be/);
      const wrong: (() => Promise<unknown>)[] = [
        () => allowing.window("k", { limit: -1, period: "60s" }),
        () => allowing.throttle("k", { burst: 1, count: 1, period: "1s" }, { block: 1, ahead: 1 }),
        () => allowing.window("k", { limit: 5, period: "60s" }, { quantity: 2n ** 70n }),
        () => allowing.top({ count: 0 }),
        () => allowing.release("k"),
      ];
      for (const ask of wrong) await assert.rejects(ask, (error) => codeOf(error) === "ERR", ask.toString());
    });

    test("a key is inspected and reset, and top has what was denied", async () => {
      await plain.call("RL.TOP", "RESET");
      const window = { limit: 1, period: "1h" };
      for (const allowed of [true, false]) {
        assert.equal((await limiter.window("k", window, { ban: "2h" })).allowed, allowed);
      }
      const info = await limiter.info("k");
      assert.deepEqual([info?.kind, info?.events, info?.fullInMs], ["window", 1, null]);
      assert.ok(info!.oldestMs! < 60_000 && 7_100_000 < info!.banMs && info!.banMs <= 7_200_000);
      assert.deepEqual(await limiter.top({ count: 1 }), [{ key: "k", db: 0, denials: 1, over: 0 }]);
      assert.deepEqual([await limiter.reset("k"), await limiter.reset("k")], [true, false]);
    });
  });
}

/** Starts a server that counts calls of RL.* and replies by `answer`; undefined closes the connection. PING gets `pong`. */
async function fake(
  answer: () => string | undefined,
  pong = "+PONG\r\n",
): Promise<{ port: number; calls: () => number; close(): void }> {
  const sockets = new Set<Socket>();
  let calls = 0;
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.on("data", (data) => {
      const commands = data
        .toString()
        .split(/\*(?=\d+\r\n\$)/)
        .slice(1);
      for (const command of commands) {
        if (command.includes("RL.")) {
          calls += 1;
          const reply = answer();
          if (reply === undefined) socket.destroy();
          else socket.write(reply);
        } else if (/PING\r/i.test(command)) {
          socket.write(pong);
        } else {
          socket.write(/INFO\r/i.test(command) ? "$9\r\nloading:0\r\n" : "+OK\r\n");
        }
      }
    });
  });
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  const close = () => {
    for (const socket of sockets) socket.destroy();
    server.close();
  };
  return { port: (server.address() as AddressInfo).port, calls: () => calls, close };
}

for (const [kind, open] of SINGLE) {
  suite(`${kind} without a server that answers`, () => {
    async function against(
      answer: () => string | undefined,
      options: LimiterOptions,
      body: (limiter: Limiter, calls: () => number) => Promise<void>,
      pong?: string,
    ) {
      const server = await fake(answer, pong);
      const opened = open(server.port);
      const limiter = new Limiter(opened.client, options);
      try {
        await body(limiter, server.calls);
      } finally {
        limiter.close();
        await opened.close();
        server.close();
      }
    }

    test("a call is given up at the deadline", () =>
      against(
        () => "",
        { unreachable: "allow", deadline: 300 },
        async (limiter) => {
          const plainly = await took(async () => {
            const reply = await limiter.window("k", "@day");
            assert.deepEqual([reply.limited, reply.reachable], [0, false]);
          });
          assert.ok(290 < plainly && plainly < 15_000, `${plainly}`);
          const waiting = await took(() => limiter.window("k", "@day", { block: 400 }));
          assert.ok(690 < waiting && waiting < 15_000, `${waiting}`);
        },
      ));

    test("a call whose reply was lost is not sent again", () =>
      against(
        () => undefined,
        { unreachable: "deny", ...PATIENT },
        async (limiter, calls) => {
          const reply = await limiter.throttle("k", "@free");
          assert.deepEqual([reply.limited, reply.reachable], [1, false]);
          assert.equal((await limiter.throttle("k", "@free", { block: 10 })).reachable, false);
          await sleep(300);
          assert.equal(calls(), 2);
        },
      ));

    test("a server without the module is not out of reach", () =>
      against(
        () => "-ERR unknown command 'RL.THROTTLE'\r\n",
        { unreachable: "allow", ...PATIENT },
        async (limiter) => {
          await assert.rejects(limiter.throttle("k", "@free"), (error) => {
            assert.ok(error instanceof MissingModule);
            assert.match(error.message, /^127\.0\.0\.1:\d+ has no redis-ratelimit.*unknown command/);
            return true;
          });
          await assert.rejects(limiter.throttle("k", "@free", { block: 10 }), /unknown command/);
        },
      ));

    test("error replies never open the breaker: each call is sent, and `unreachable` decides", async () => {
      for (const code of ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"]) {
        for (const pong of ["+PONG\r\n", `-${code} the reply to PING\r\n`]) {
          const begin = performance.now();
          await against(
            () => `-${code} the reply to a call\r\n`,
            { unreachable: "allow", ...PATIENT },
            async (limiter, calls) => {
              for (let call = 1; call <= 2 * FAILURES; call += 1) {
                assert.equal((await limiter.throttle("k", "@free")).reachable, false);
                assert.equal(calls(), call, `${code}: a call was not sent`);
              }
            },
            pong,
          );
          assert.ok(performance.now() - begin < 20_000, `${code}: no call waits for its deadline`);
        }
      }
    });
  });
}

for (const [kind, open] of SINGLE) {
  test(`closing the limiter ends calls of ${kind} that are connecting or sent, and closes its connections`, async () => {
    const proxy = await Proxy.before(PORT);
    for (const isConnected of [false, true]) {
      const { client, close } = open(proxy.port);
      const limiter = new Limiter(client, { unreachable: "allow", ...PATIENT });
      const rate = { burst: 9, count: 1, period: "1s" };
      if (isConnected) await limiter.throttle("k", rate);
      proxy.dropping = true;
      const given = limiter.throttle("k", rate);
      await until(() => proxy.connections > 0);
      limiter.close();
      await assert.rejects(given, Closed);
      const closed = performance.now();
      await until(() => proxy.connections === 0);
      assert.ok(performance.now() - closed < 15_000);
      proxy.dropping = false;
      await close();
    }
    proxy.end();
  });
}

test("a wrong password and a database that does not exist are error replies, not an outage", async () => {
  const socket = { host: "127.0.0.1", port: PORT };
  const wrong: [string, { username?: string; password?: string }, number][] = [
    ["WRONGPASS", { username: "nobody", password: "wrong" }, 0],
    ["ERR", {}, 99],
  ];
  for (const [code, user, db] of wrong) {
    const nodeRedis = createClient({ socket, ...user, database: db });
    const options = { ...socket, ...user, db, lazyConnect: true };
    for (const client of [nodeRedis, new Redis(options), new Ioredis50.default(options), new Redis6(options)]) {
      const limiter = new Limiter(client, { unreachable: "allow", ...PATIENT });
      await assert.rejects(limiter.window("k", { limit: 5, period: "60s" }), (error) => codeOf(error) === code);
      limiter.close();
    }
  }
});

test("a cluster that lets a client of ioredis run no command is an error reply, not an outage", async () => {
  const [username, password, port] = ["outsider", "secret", CLUSTER_PORT];
  const node = new Redis(port);
  await node.call("ACL", "SETUSER", username, "on", `>${password}`, "+ping");
  const [nodes, options] = [[{ host: "127.0.0.1", port }], { lazyConnect: true, redisOptions: { username, password } }];
  for (const client of [new Cluster(nodes, options), new Cluster50(nodes, options), new Cluster6(nodes, options)]) {
    const limiter = new Limiter(client, { unreachable: "allow", ...PATIENT });
    for (const call of [{}, { block: 10 }]) {
      const asked = limiter.window("k", { limit: 5, period: "60s" }, call);
      await assert.rejects(asked, (error) => codeOf(error) === "NOPERM");
    }
    limiter.close();
  }
  await node.call("ACL", "DELUSER", username);
  node.disconnect();
});

suite("patience", () => {
  const IMPATIENT: [string, () => Promise<Opened>][] = [
    ["node-redis waits longer than its socketTimeout", () => nodeRedis(PORT, 2, 1000)],
    [
      "ioredis waits longer than its commandTimeout",
      () => ioredis(PORT, { commandTimeout: 1000, socketTimeout: 1000 }),
    ],
  ];
  for (const [what, open] of IMPATIENT) {
    test(`a call of ${what}`, async () => {
      const opened = await open();
      const limiter = new Limiter(opened.client, PATIENT);
      await plain.flushall();
      await limiter.reserve("job", semaphore(1));
      const denied = await took(async () => {
        assert.equal((await limiter.reserve("job", semaphore(1), { block: 1800 })).limited, 2);
      });
      assert.ok(1790 < denied && denied < 15_000, `${denied}`);
      limiter.close();
      // A client of node-redis was closed by its socketTimeout meanwhile, as it was idle.
      if ((opened.client as { isOpen?: boolean }).isOpen !== false) await opened.close();
    });
  }

  for (const [kind, open] of SINGLE) {
    test(`a call of ${kind} that is given up takes nothing`, async (context) => {
      const proxy = await Proxy.before(PORT);
      // The server is asked to wait for a minute.
      proxy.change = (sent) => sent.replace("$3\r\n400\r\n", "$5\r\n60000\r\n");
      const opened = open(proxy.port);
      // The test must see it wait before it is given up.
      const frozen = new Limiter(opened.client, { unreachable: "allow", deadline: 4000 });
      const limiter = new Limiter(opened.client, PATIENT);
      context.after(async () => {
        frozen.close();
        await opened.close();
        proxy.end();
      });
      await plain.flushall();
      await limiter.reserve("job", semaphore(1), { id: "first", lease: 60_000 });
      const reply = frozen.reserve("job", semaphore(1), { block: 400 });
      await untilWaiting(plain, 1);
      assert.equal((await reply).reachable, false);
      // Long before the minute is over: it did not end, it hung up.
      await untilWaiting(plain, 0);
      assert.equal(await limiter.release("job", "first"), 1);
      assert.deepEqual(await limiter.held("job"), []);
    });
  }
});

suite("in a cluster", () => {
  // The cluster is not flushed, so each run has its own keys.
  const run = `${process.pid}:${Date.now()}`;
  for (const [kind, open] of CLUSTERS) {
    test(`${kind} finds the node of each key`, async () => {
      const { client, close } = await open(CLUSTER_PORT);
      const limiter = new Limiter(client, PATIENT);
      for (let number = 0; number < 30; number += 1) {
        const key = `${run}:${kind}:${number}`;
        assert.equal((await limiter.throttle(key, { burst: 4, count: 1, period: "1h" }, { quantity: 2 })).remaining, 3);
        const window = { limit: 3, period: "1h" };
        await limiter.acquire(`${key}:w`, window, {}, () => {});
        assert.equal((await limiter.windowRo(`${key}:w`, window)).remaining, 2);
        // A hit needs one key, so that no hash tags are needed.
        assert.equal((await new RatelimitThrottlerStorage(limiter).increment(key, 60_000, 2, 0, "hits")).totalHits, 1);
      }
      const rate = { burst: 0, count: 1, period: "200ms" };
      const waited = await took(async () => {
        for (const at of [1, 2, 3])
          assert.ok((await limiter.throttle(`${run}:${kind}:line`, rate, { block: 30_000 })).allowed, `${at}`);
      });
      assert.ok(399 < waited && waited < 15_000, `${waited}`);
      const tag = `{${run}:${kind}}`;
      const both = [clause.window(`${tag}a`, { limit: 1, period: "1h" }), clause.acquire(`${tag}b`, semaphore(2))];
      assert.deepEqual([(await limiter.all(both)).denied, (await limiter.all(both)).denied], [[], [`${tag}a`]]);
      assert.equal(await limiter.reset(`${tag}a`), true);
      assert.ok((await limiter.top({ count: 5 })).length > 0);
      assert.ok(Array.isArray(await limiter.policies()));
      limiter.close();
      await close();
    });
  }
});
