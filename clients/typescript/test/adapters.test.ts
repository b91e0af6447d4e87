/**
 * The stores for other packages, on a limiter in memory whose clock is set, and on a real server: RATELIMIT_SO is the module.
 * The cases are written from the interfaces that express-rate-limit 8.7, @nestjs/throttler 6.7 and rate-limiter-flexible 11.4
 * document. On the server each store's user has only the rights that docs/commands.md lists.
 */

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, beforeEach, describe as suite, test } from "node:test";

import type { ThrottlerStorage } from "@nestjs/throttler";
import express from "express";
import { rateLimit, type Store } from "express-rate-limit";
import { Redis } from "ioredis";
import {
  BurstyRateLimiter,
  RateLimiterMemory,
  RateLimiterQueue,
  RateLimiterRes,
  RateLimiterUnion,
} from "rate-limiter-flexible";

import { RatelimitStore } from "../src/adapters/express-rate-limit.js";
import { RateLimiterRatelimit, type ClientOrLimits } from "../src/adapters/rate-limiter-flexible.js";
import { Limiter, MemoryLimiter, Unreachable, type Limits } from "../src/index.js";
import { RatelimitThrottlerStorage } from "../src/http/nestjs.js";
import { freePort, Server, SINGLE, until } from "./servers.js";

const NOON = 1_795_238_388_000;
let now = NOON;
let memory: MemoryLimiter;
beforeEach(() => {
  now = NOON;
  memory = new MemoryLimiter({ clock: () => now });
});

/** A client without a server. */
async function gone(): Promise<Redis> {
  const client = new Redis(await freePort(), "127.0.0.1", { lazyConnect: true, retryStrategy: () => null });
  client.on("error", () => {});
  return client;
}

suite("express-rate-limit", () => {
  const store = (client: ClientOrLimits, windowMs = 3000, options = {}): RatelimitStore => {
    const made = new RatelimitStore(client, options);
    made.init({ windowMs });
    return made;
  };
  /** Counts a hit. Returns the hits, and the time until the end of the window. */
  const hit = async (counted: RatelimitStore) => {
    const asked = Date.now();
    const { totalHits, resetTime } = await counted.increment("k");
    const late = Date.now() - asked;
    const left = Number(resetTime) - asked;
    assert.ok(left % 100 <= late, "the end is by the clock of the process");
    return [totalHits, left - (left % 100)];
  };

  test("hits count from 1, in a window that the first one begins", async () => {
    const counted = store(memory);
    assert.deepEqual(await hit(counted), [1, 3000]);
    now += 400;
    assert.deepEqual(await hit(counted), [2, 2600]);
    now += 2600;
    assert.deepEqual(await hit(counted), [1, 3000]);
  });

  test("get counts nothing, and returns undefined for a key without hits", async () => {
    const counted = store(memory);
    assert.equal(await counted.get("k"), undefined);
    await hit(counted);
    for (let at = 0; at < 2; at += 1) assert.equal((await counted.get("k"))?.totalHits, 1);
  });

  test("decrement takes a hit back, never below none, and the window ends when it would have ended", async () => {
    const counted = store(memory);
    await hit(counted);
    await hit(counted);
    await counted.decrement("k");
    assert.equal((await counted.get("k"))?.totalHits, 1);
    for (const left of [2800, 2600, 2400]) {
      now += 200;
      await counted.decrement("k");
      assert.equal(await counted.get("k"), undefined);
      assert.deepEqual(await hit(counted), [1, left]);
    }
    now += 2400;
    assert.deepEqual(await hit(counted), [1, 3000]);
    for (let at = 0; at < 3; at += 1) await counted.decrement("k");
    assert.deepEqual(await hit(counted), [1, 3000]);
  });

  test("keys have a prefix, are reset by themselves, and expire with their window", async () => {
    const [one, other] = [store(memory), store(memory, 3000, { prefix: "login:" })];
    assert.deepEqual([one.prefix, other.prefix, one.localKeys], ["erl:", "login:", false]);
    for (const counted of [one, other]) assert.equal((await counted.increment("k")).totalHits, 1);
    await one.resetKey("k");
    assert.equal(await one.get("k"), undefined);
    assert.equal((await other.get("k"))?.totalHits, 1);
    assert.ok((await memory.info("login:k"))!.ttlMs < 10_000);
  });

  test("the middleware denies by it, skips by decrement, and finds no fault with it", async () => {
    const complaints: unknown[] = [];
    const complain = (error: unknown) => void complaints.push(error);
    const limit = rateLimit({
      windowMs: 60_000,
      limit: 2,
      logger: { error: complain, warn: complain },
      keyGenerator: ({ url }) => url,
      skipFailedRequests: true,
      store: new RatelimitStore(memory) satisfies Store,
    });
    const app = express();
    app.get("/:status", limit, ({ params }, response) => void response.status(Number(params.status)).end());
    const server = app.listen(0, "127.0.0.1");
    await once(server, "listening");
    const get = async (path: string) => {
      const { port } = server.address() as { port: number };
      const { status } = await fetch(`http://127.0.0.1:${port}${path}`);
      // What was skipped is given back after the answer.
      if (status === 404) await until(async () => (await limit.getKey(path)) === undefined);
      return status;
    };
    const statuses = async (path: string) => [await get(path), await get(path), await get(path)];
    assert.deepEqual(await statuses("/200"), [200, 200, 429]);
    assert.deepEqual(await statuses("/404"), [404, 404, 404]);
    await (limit.resetKey("/200") as unknown as Promise<void>);
    assert.equal(await get("/200"), 200);
    assert.equal((await limit.getKey("/200"))?.totalHits, 1);
    assert.deepEqual(complaints, []);
    server.close();
    server.closeAllConnections();
  });

  test("an error of Redis is the store's error, and `unreachable` of a limiter decides", async () => {
    const client = await gone();
    await assert.rejects(store(client).increment("k"), /ECONNREFUSED/);
    assert.equal((await store(new Limiter(client, { unreachable: "allow" })).increment("k")).totalHits, 1);
    await assert.rejects(store(new Limiter(client, { unreachable: "deny" })).increment("k"), Unreachable);
    client.disconnect();
  });
});

suite("@nestjs/throttler", () => {
  const storage = (): ThrottlerStorage => new RatelimitThrottlerStorage(memory);

  test("hits count up to the limit, then the key is blocked for its time, which hits do not prolong", async () => {
    const hit = () => storage().increment("k", 300, 2, 1200, "default");
    const open = { isBlocked: false, timeToExpire: 1, timeToBlockExpire: 0 };
    for (const totalHits of [1, 2]) assert.deepEqual(await hit(), { totalHits, ...open });
    for (const timeToBlockExpire of [2, 1]) {
      assert.deepEqual(await hit(), {
        totalHits: 3,
        isBlocked: true,
        timeToExpire: timeToBlockExpire,
        timeToBlockExpire,
      });
      now += 599;
    }
    assert.equal((await hit()).isBlocked, true, "the window is over, and the block is not");
    now += 2;
    assert.deepEqual(await hit(), { totalHits: 1, ...open });
  });

  test("without a block duration the window decides alone", async () => {
    const hit = () => storage().increment("k", 700, 1, 0, "default");
    await hit();
    assert.deepEqual([(await hit()).isBlocked, (await hit()).timeToBlockExpire], [true, 1]);
    now += 700;
    assert.equal((await hit()).isBlocked, false);
  });

  test("names and keys are counted apart, and a limit of 0 admits nobody", async () => {
    const hits = async (of: string, name: string) => (await storage().increment(of, 60_000, 5, 5000, name)).totalHits;
    assert.deepEqual(
      [await hits("k", "a"), await hits("k", "a"), await hits("k", "b"), await hits("l", "a")],
      [1, 2, 1, 1],
    );
    const none = await storage().increment("k", 60_000, 0, 5000, "none");
    assert.deepEqual([none.isBlocked, none.timeToBlockExpire], [true, 5]);
  });
});

suite("rate-limiter-flexible", () => {
  type Options = Partial<ConstructorParameters<typeof RateLimiterRatelimit>[0]>;
  const limiter = (options: Options = {}) =>
    new RateLimiterRatelimit({ points: 3, duration: 60, storeClient: memory, ...options });
  /** Returns the rejection of a denied call. */
  const denied = async (call: Promise<unknown>): Promise<RateLimiterRes> => {
    const found = await call.then(
      () => assert.fail("it was allowed"),
      (error: unknown) => error,
    );
    assert.ok(found instanceof RateLimiterRes, String(found));
    return found;
  };

  test("consume counts points, and rejects with the wait once there are too many", async () => {
    const made = limiter({ duration: 3 });
    const { consumedPoints, remainingPoints, isFirstInDuration, msBeforeNext } = await made.consume("k", 2);
    assert.deepEqual([consumedPoints, remainingPoints, isFirstInDuration, msBeforeNext], [2, 1, true, 3000]);
    now += 1000;
    assert.equal((await made.consume("k")).isFirstInDuration, false);
    const over = await denied(made.consume("k"));
    assert.deepEqual([over.consumedPoints, over.remainingPoints, over.msBeforeNext], [4, 0, 2000]);
    now += 2000;
    assert.equal((await made.consume("k")).consumedPoints, 1);
  });

  test("get, penalty, reward and delete", async () => {
    const made = limiter();
    assert.equal(await made.get("k"), null);
    assert.equal((await made.penalty("k", 2)).consumedPoints, 2);
    assert.equal((await made.reward("k")).consumedPoints, 1);
    assert.equal((await made.get("k"))?.remainingPoints, 2);
    now += 300;
    assert.equal((await made.reward("k")).consumedPoints, 0);
    const next = await made.consume("k");
    assert.deepEqual([next.consumedPoints, next.msBeforeNext], [1, 59_700], "the window ends when it would have ended");
    assert.equal((await made.reward("k", 5)).consumedPoints, 0, "never below none");
    await made.consume("k");
    assert.deepEqual([await made.delete("k"), await made.delete("k"), await made.get("k")], [true, false, null]);
  });

  test("points for which a window has no room are denied", async () => {
    const made = limiter({ points: 10 });
    const over = await denied(made.consume("k", 2 ** 50));
    assert.deepEqual([over.consumedPoints, over.remainingPoints], [2 ** 50, 0]);
    assert.equal((await made.consume("k")).consumedPoints, 1);
  });

  test("block closes a key for its own time, whatever the duration is, and whatever was counted", async () => {
    for (const duration of [0.2, 1.5, 60]) {
      const made = limiter({ duration, keyPrefix: `${duration}` });
      await made.consume("k");
      assert.equal((await made.block("k", 1.5)).msBeforeNext, 1500);
      for (let at = 0; at < 5; at += 1) {
        const { consumedPoints, msBeforeNext } = await denied(made.consume("k"));
        assert.deepEqual([consumedPoints, msBeforeNext], [5, 1500 - 300 * at], "nothing is counted");
        now += 300;
      }
      assert.equal(await made.get("k"), null);
      assert.equal((await made.consume("k")).consumedPoints, 1);
    }
  });

  test("blockDuration blocks once when the points are exceeded", async () => {
    const made = limiter({ points: 1, duration: 1, blockDuration: 20 });
    assert.equal((await denied(made.consume("k", 2))).msBeforeNext, 20_000);
    now += 1200;
    const later = await denied(made.consume("k"));
    assert.deepEqual([later.msBeforeNext, later.consumedPoints], [18_800, 3], "it is not prolonged");
  });

  test("with blockOnConsumed it blocks later, also once", async () => {
    const made = limiter({ points: 1, duration: 60, blockDuration: 20, blockOnConsumed: 3 });
    await made.consume("k");
    assert.equal((await denied(made.consume("k"))).msBeforeNext, 60_000);
    assert.equal((await denied(made.consume("k"))).msBeforeNext, 20_000);
    now += 1200;
    const later = await denied(made.consume("k"));
    assert.deepEqual([later.msBeforeNext, later.consumedPoints], [18_800, 4]);
  });

  test("points that two processes write at the same time are those of one", async () => {
    await Promise.all([1, 2].map(() => limiter({ duration: 1 }).set("k", 2, 20)));
    assert.equal((await limiter({ duration: 1 }).get("k"))?.consumedPoints, 2);
  });

  test("set writes points for any time, and a block without end stays", async () => {
    const made = limiter();
    assert.equal((await made.set("one", 2, 60)).consumedPoints, 2);
    assert.equal((await made.consume("one")).consumedPoints, 3);
    await denied(made.consume("one"));
    await made.set("two", 12, 20);
    const found = await denied(made.consume("two"));
    assert.equal(found.consumedPoints, 13);
    await made.block("two", 20);
    await made.block("two", 5);
    assert.equal((await made.get("two"))?.msBeforeNext, 20_000, "a block that ends later stays");
    await made.set("two", 1, 20);
    assert.equal((await made.get("two"))?.consumedPoints, 1);
    await made.block("three", 0);
    const three = await made.get("three");
    assert.deepEqual([three?.msBeforeNext, three?.consumedPoints], [-1, 4]);
    assert.equal((await made.reward("three", 4)).consumedPoints, 4);
    await made.set("three", 0, 0);
    assert.equal(await made.get("three"), null);
    await made.block("three", 0);
    assert.deepEqual([await made.delete("three"), await made.delete("three")], [true, false]);
    await made.set("four", 12, 0);
    const four = await made.get("four");
    assert.deepEqual([four?.msBeforeNext, four?.consumedPoints], [-1, 12]);
    await assert.rejects(made.set("three", -1, 5), /^RangeError: points must be at least 0, not -1/);
  });

  test("a duration of 0 never ends, and points are whole numbers", async () => {
    const made = limiter({ duration: 0 });
    assert.equal((await made.consume("k")).msBeforeNext, -1);
    assert.equal((await made.consume("k")).consumedPoints, 2);
    await assert.rejects(made.consume("k", 1.5), /decimal number/);
    await assert.rejects(made.consume("k", "2.0" as never), /integer values/);
    assert.equal((await made.consume("k", "1" as never)).consumedPoints, 3);
  });

  test("unions, queues, bursts, blocks in memory and insurance work", async () => {
    const union = new RateLimiterUnion(limiter({ keyPrefix: "a" }), limiter({ keyPrefix: "b", points: 1 }));
    assert.deepEqual(Object.keys(await union.consume("k")), ["a", "b"]);
    const over = await union.consume("k").catch((found: object) => found);
    assert.deepEqual(Object.keys(over), ["b"]);

    const queue = new RateLimiterQueue(limiter({ storeClient: new MemoryLimiter(), points: 1, duration: 1 }));
    const began = Date.now();
    await Promise.all([queue.removeTokens(1), queue.removeTokens(1)]);
    assert.ok(Date.now() - began >= 900 && Date.now() - began < 30_000);

    const [slow, burst] = [limiter({ keyPrefix: "slow", points: 1 }), limiter({ keyPrefix: "burst", points: 1 })];
    const bursty = new BurstyRateLimiter(slow, burst);
    for (let at = 0; at < 2; at += 1) await bursty.consume("k");
    await denied(bursty.consume("k"));

    const inMemory = limiter({ keyPrefix: "in memory", points: 1, inMemoryBlockOnConsumed: 1 });
    await inMemory.consume("k");
    assert.equal((await denied(inMemory.consume("k"))).consumedPoints, 0, "the store was not asked");

    const storeClient = await gone();
    const insuranceLimiter = new RateLimiterMemory({ points: 2, duration: 5 });
    assert.equal((await limiter({ storeClient, insuranceLimiter }).consume("k")).remainingPoints, 1);
    await assert.rejects(limiter({ storeClient }).consume("k"), Error);
    storeClient.disconnect();
  });
});

suite("on a server", () => {
  let server: Server;
  before(async () => (server = await Server.start()));
  after(() => server.end());

  for (const [library, open] of SINGLE) {
    const STORES: [string, (client: ClientOrLimits) => Promise<unknown>, unknown][] = [
      [
        "express-rate-limit",
        async (client) => {
          const store = new RatelimitStore(client);
          store.init({ windowMs: 60_000 });
          for (let at = 0; at < 3; at += 1) await store.increment(library);
          await store.decrement(library);
          const hits = await store.get(library);
          await store.resetKey(library);
          return [hits?.totalHits, await store.get(library)];
        },
        [2, undefined],
      ],
      [
        "@nestjs/throttler",
        async (client) => {
          const hit = () => new RatelimitThrottlerStorage(client).increment(library, 60_000, 1, 120_000, "default");
          return [(await hit()).isBlocked, (await hit()).timeToBlockExpire];
        },
        [false, 120],
      ],
      [
        "rate-limiter-flexible",
        async (storeClient) => {
          const limiter = new RateLimiterRatelimit({ storeClient, points: 3, duration: 60 });
          // A key of RateLimiterRedis.
          await server.admin.set(`rlflx:${library}`, "7");
          const { consumedPoints } = await limiter.consume(library, 2);
          await limiter.reward(library);
          await limiter.block(library, 20);
          const blocked = await limiter.get(library);
          return [consumedPoints, blocked?.consumedPoints, await limiter.delete(library), await limiter.get(library)];
        },
        [2, 4, true, null],
      ],
    ];
    for (const [name, use, expected] of STORES) {
      test(`the store for ${name} on ${library} needs no other rights than docs/commands.md lists`, async () => {
        await server.restrictTo(name);
        const { client, close } = open(server.port);
        const limiter = new Limiter(client, { deadline: 30_000 });
        assert.deepEqual(await use(limiter), expected);
        limiter.close();
        await close();
        assert.deepEqual(await server.refused(), []);
      });
    }
  }
});

test("a client that is none is refused", () => {
  for (const wrong of [undefined, "redis://127.0.0.1", {}]) {
    for (const make of [
      () => new RatelimitStore(wrong as never),
      () => new RatelimitThrottlerStorage(wrong as never),
      () => new RateLimiterRatelimit({ storeClient: wrong as never, points: 1, duration: 1 }),
    ]) {
      assert.throws(make, /^TypeError: the client must be one of node-redis or ioredis|storeClient is not set/);
    }
  }
  assert.throws(
    () => new RatelimitStore({} as Limits, { prefixes: "a" } as never),
    /^TypeError: RatelimitStore has no option "prefixes"/,
  );
  assert.throws(() => new RatelimitStore(memory).init({ windowMs: 0 }), RangeError);
});
