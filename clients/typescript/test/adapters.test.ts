/**
 * The stores for other packages, on a real server: RATELIMIT_SO is the module. The cases are written from the interfaces
 * that express-rate-limit 8.7, @nestjs/throttler 6.7 and rate-limiter-flexible 11.4 document. Each store's user has only the
 * rights that docs/commands.md lists.
 */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe as suite, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

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
import { Limiter, Unreachable, type Limits } from "../src/index.js";
import { RatelimitThrottlerStorage } from "../src/http/nestjs.js";
import { RateLimiterRatelimit, type ClientOrLimits } from "../src/adapters/rate-limiter-flexible.js";
import { freePort, Server, SINGLE } from "./servers.js";

let server: Server;
before(async () => (server = await Server.start()));
after(() => server.end());

let keys = 0;
/** Returns a key that no other test uses. */
const fresh = () => `key-${(keys += 1)}`;

/** A client without a server. */
async function gone(): Promise<Redis> {
  const client = new Redis(await freePort(), "127.0.0.1", { lazyConnect: true, retryStrategy: () => null });
  client.on("error", () => {});
  return client;
}

for (const [library, open] of SINGLE) {
  suite(`express-rate-limit on ${library}`, () => {
    let opened: ReturnType<typeof open>;
    before(async () => {
      await server.restrictTo("express-rate-limit", "~login:*");
      opened = open(server.port);
    });
    after(async () => {
      await opened.close();
      assert.deepEqual(await server.refused(), []);
    });
    const store = (windowMs: number, options = {}): RatelimitStore => {
      const made = new RatelimitStore(opened.client, options);
      made.init({ windowMs });
      return made;
    };

    test("increment counts from 1, and returns the end of the window that the first hit began", async () => {
      const [key, counted] = [fresh(), store(3000)];
      const began = Date.now();
      const first = await counted.increment(key);
      assert.equal(first.totalHits, 1);
      const end = Number(first.resetTime);
      assert.ok(end >= began + 3000 && end <= Date.now() + 3001, `${end - began}`);
      await sleep(400);
      const asked = Date.now();
      const second = await counted.increment(key);
      assert.equal(second.totalHits, 2);
      // The server does not know how long its reply is under way.
      const underWay = Date.now() - asked;
      assert.ok(Number(second.resetTime) - underWay <= end + 2, "the second hit does not move the end");
      await sleep(Math.max(0, end - Date.now()) + 20);
      assert.equal((await counted.increment(key)).totalHits, 1, "a new window");
    });

    test("get counts nothing, and returns undefined for a key without hits", async () => {
      const [key, counted] = [fresh(), store(60_000)];
      assert.equal(await counted.get(key), undefined);
      await counted.increment(key);
      await counted.increment(key);
      for (let at = 0; at < 2; at += 1) assert.equal((await counted.get(key))?.totalHits, 2);
    });

    test("decrement takes one hit back, never below none, and keeps the window", async () => {
      const [key, counted] = [fresh(), store(60_000)];
      await counted.increment(key);
      const { resetTime } = await counted.increment(key);
      await sleep(50);
      await counted.decrement(key);
      const asked = Date.now();
      const found = await counted.get(key);
      assert.equal(found?.totalHits, 1);
      assert.ok(Number(found?.resetTime) - (Date.now() - asked) <= Number(resetTime) + 2);
      for (let at = 0; at < 3; at += 1) await counted.decrement(key);
      assert.equal((await counted.increment(key)).totalHits, 1);
    });

    test("a window whose only hit is taken back ends when it would have ended", async () => {
      const [key, counted] = [fresh(), store(2000)];
      const { resetTime } = await counted.increment(key);
      for (let at = 0; at < 3; at += 1) {
        await sleep(200);
        await counted.decrement(key);
        assert.equal(await counted.get(key), undefined);
        const asked = Date.now();
        const again = await counted.increment(key);
        assert.equal(again.totalHits, 1);
        // The server does not know how long its reply is under way.
        const moved = Number(again.resetTime) - (Date.now() - asked) - Number(resetTime);
        assert.ok(moved <= 2, `the end moved by ${moved} ms`);
      }
      await sleep(Math.max(0, Number(resetTime) - Date.now()) + 20);
      assert.equal((await counted.increment(key)).totalHits, 1, "a new window");
      assert.ok(Number((await counted.get(key))?.resetTime) > Number(resetTime) + 1000);
    });

    test("resetKey forgets one key", async () => {
      const [one, other, counted] = [fresh(), fresh(), store(60_000)];
      await counted.increment(one);
      await counted.increment(other);
      await counted.resetKey(one);
      assert.equal(await counted.get(one), undefined);
      assert.equal((await counted.get(other))?.totalHits, 1);
    });

    test("keys have a prefix, and expire with their window", async () => {
      const key = fresh();
      const [one, other] = [store(60_000), store(60_000, { prefix: "login:" })];
      assert.deepEqual([one.prefix, other.prefix, one.localKeys], ["erl:", "login:", false]);
      await one.increment(key);
      assert.equal((await other.increment(key)).totalHits, 1);
      assert.equal(await server.admin.exists(`erl:${key}`, `login:${key}`), 2);
      const ttl = await server.admin.pttl(`erl:${key}`);
      assert.ok(ttl > 30_000 && ttl <= 121_000, `${ttl}`);
    });

    test("the middleware denies by it, skips by decrement, and finds no fault with it", async () => {
      const complaints: unknown[] = [];
      const logger = {
        error: (error: unknown) => complaints.push(error),
        warn: (error: unknown) => complaints.push(error),
      };
      const limit = rateLimit({
        windowMs: 60_000,
        limit: 2,
        logger,
        keyGenerator: ({ url }) => url,
        skipFailedRequests: true,
        store: new RatelimitStore(opened.client, { prefix: `erl:${fresh()}:` }) satisfies Store,
      });
      const app = express();
      app.get("/:status", limit, (request, response) => void response.status(Number(request.params.status)).end());
      const listening = createServer(app).listen(0, "127.0.0.1");
      await new Promise((ready) => listening.once("listening", ready));
      const get = async (path: string) => {
        const { status } = await fetch(`http://127.0.0.1:${(listening.address() as AddressInfo).port}${path}`);
        // What was skipped is given back after the answer.
        const end = Date.now() + 20_000;
        while (status === 404 && (await limit.getKey(path)) !== undefined && Date.now() < end) await sleep(5);
        return status;
      };
      const statuses = async (path: string) => [await get(path), await get(path), await get(path)];
      assert.deepEqual(await statuses("/200"), [200, 200, 429]);
      assert.deepEqual(await statuses("/404"), [404, 404, 404]);
      await (limit.resetKey("/200") as unknown as Promise<void>);
      assert.equal(await get("/200"), 200);
      assert.equal((await limit.getKey("/200"))?.totalHits, 1);
      assert.deepEqual(complaints, []);
      listening.close();
      listening.closeAllConnections();
    });

    test("an error of Redis is the store's error, and `unreachable` of a limiter decides", async () => {
      const client = await gone();
      const made = new RatelimitStore(client);
      made.init({ windowMs: 1000 });
      await assert.rejects(made.increment("k"), /ECONNREFUSED/);
      const allowing = new RatelimitStore(new Limiter(client, { unreachable: "allow" }));
      allowing.init({ windowMs: 1000 });
      assert.equal((await allowing.increment("k")).totalHits, 1);
      const denying = new RatelimitStore(new Limiter(client, { unreachable: "deny" }));
      denying.init({ windowMs: 1000 });
      await assert.rejects(denying.increment("k"), Unreachable);
      client.disconnect();
    });
  });

  suite(`@nestjs/throttler on ${library}`, { concurrency: true }, () => {
    let opened: ReturnType<typeof open>;
    before(async () => {
      await server.restrictTo("@nestjs/throttler");
      opened = open(server.port);
    });
    after(async () => {
      await opened.close();
      assert.deepEqual(await server.refused(), []);
    });
    const storage = (): ThrottlerStorage => new RatelimitThrottlerStorage(opened.client);
    /** Hits until one is denied: the second, unless the window ends in between. */
    const denied = async (hit: () => ReturnType<ThrottlerStorage["increment"]>) => {
      for (let at = 0; at < 100; at += 1) {
        const began = Date.now();
        const found = await hit();
        if (found.isBlocked) return { ...found, began };
      }
      return assert.fail("none of 100 hits was denied");
    };

    test("hits count up to the limit, then the key is blocked", async () => {
      const [key, made] = [fresh(), storage()];
      const found = [];
      for (let at = 0; at < 4; at += 1) found.push(await made.increment(key, 10_000, 2, 10_000, "default"));
      assert.deepEqual(
        found.map(({ totalHits, isBlocked }) => [totalHits, isBlocked]),
        [
          [1, false],
          [2, false],
          [3, true],
          [3, true],
        ],
      );
      assert.deepEqual(found[0], { totalHits: 1, timeToExpire: 10, isBlocked: false, timeToBlockExpire: 0 });
      const left = found[3]?.timeToBlockExpire ?? 0;
      assert.ok(left > 0 && left <= 10, `${left}`);
    });

    test("a block lasts as long as it is said to, hits do not prolong it, and then all is as new", async () => {
      const [key, made] = [fresh(), storage()];
      const hit = () => made.increment(key, 300, 1, 1200, "default");
      const { began } = await denied(hit);
      const end = Date.now() + 1200;
      while (Date.now() < began + 1000) {
        assert.ok((await hit()).isBlocked || Date.now() >= began + 1200, "the window is over, the block is not");
        await sleep(100);
      }
      await sleep(Math.max(0, end + 400 - Date.now()));
      assert.deepEqual(await hit(), { totalHits: 1, timeToExpire: 1, isBlocked: false, timeToBlockExpire: 0 });
    });

    test("without a block duration the window decides alone", async () => {
      const [key, made] = [fresh(), storage()];
      const hit = () => made.increment(key, 700, 1, 0, "default");
      assert.equal((await denied(hit)).timeToBlockExpire, 1);
      await sleep(1000);
      assert.equal((await hit()).isBlocked, false);
    });

    test("names and keys are counted apart, and a limit of 0 admits nobody", async () => {
      const [key, made] = [fresh(), storage()];
      const hits = async (of: string, name: string, limit = 5) =>
        (await made.increment(of, 60_000, limit, 5000, name)).totalHits;
      assert.deepEqual(
        [await hits(key, "a"), await hits(key, "a"), await hits(key, "b"), await hits(`${key}x`, "a")],
        [1, 2, 1, 1],
      );
      const none = await made.increment(fresh(), 60_000, 0, 5000, "default");
      assert.deepEqual([none.isBlocked, none.timeToBlockExpire], [true, 5]);
    });
  });

  suite(`rate-limiter-flexible on ${library}`, { concurrency: true }, () => {
    let opened: ReturnType<typeof open>;
    before(async () => {
      await server.restrictTo("rate-limiter-flexible");
      opened = open(server.port);
    });
    after(async () => {
      await opened.close();
      assert.deepEqual(await server.refused(), []);
    });
    const limiter = (options: Partial<ConstructorParameters<typeof RateLimiterRatelimit>[0]>): RateLimiterRatelimit =>
      new RateLimiterRatelimit({ points: 3, duration: 60, ...options, storeClient: opened.client });
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
      const [key, made] = [fresh(), limiter({ duration: 3 })];
      const first = await made.consume(key, 2);
      assert.deepEqual([first.consumedPoints, first.remainingPoints, first.isFirstInDuration], [2, 1, true]);
      assert.equal(first.msBeforeNext, 3000);
      assert.equal((await made.consume(key)).isFirstInDuration, false);
      const over = await denied(made.consume(key));
      assert.deepEqual([over.consumedPoints, over.remainingPoints], [4, 0]);
      assert.ok(over.msBeforeNext > 0 && over.msBeforeNext <= 3000);
      await sleep(over.msBeforeNext + 5);
      assert.equal((await made.consume(key)).consumedPoints, 1);
    });

    test("get, penalty, reward and delete", async () => {
      const [key, made] = [fresh(), limiter({})];
      assert.equal(await made.get(key), null);
      assert.equal((await made.penalty(key, 2)).consumedPoints, 2);
      assert.equal((await made.reward(key)).consumedPoints, 1);
      assert.equal((await made.get(key))?.remainingPoints, 2);
      assert.equal((await made.reward(key, 5)).consumedPoints, 0, "never below none");
      await made.consume(key);
      assert.deepEqual([await made.delete(key), await made.delete(key), await made.get(key)], [true, false, null]);
    });

    test("a reward of all points leaves the window's end as it was", async () => {
      const [key, made] = [fresh(), limiter({ duration: 30 })];
      await made.consume(key, 2);
      await sleep(300);
      assert.equal((await made.reward(key, 2)).consumedPoints, 0);
      const next = await made.consume(key);
      assert.equal(next.consumedPoints, 1);
      assert.ok(next.msBeforeNext <= 29_700, `${next.msBeforeNext} ms`);
    });

    test("points for which a window has no room are denied", async () => {
      const [key, made] = [fresh(), limiter({ points: 10 })];
      const over = await denied(made.consume(key, 2 ** 50));
      assert.deepEqual([over.consumedPoints, over.remainingPoints], [2 ** 50, 0]);
      assert.equal((await made.consume(key)).consumedPoints, 1);
    });

    test("block closes a key for its own time, whatever the duration is, and whatever was counted", async () => {
      for (const duration of [0.2, 1.5, 60]) {
        const [key, made] = [fresh(), limiter({ duration })];
        await made.consume(key);
        const began = Date.now();
        assert.equal((await made.block(key, 1.5)).msBeforeNext, 1500);
        const end = Date.now() + 1500;
        let tries = 0;
        for (; Date.now() < began + 1200; tries += 1) {
          const found: unknown = await made.consume(key).catch((error: unknown) => error);
          assert.ok(found instanceof RateLimiterRes, String(found));
          if (found.remainingPoints > 0) {
            assert.ok(Date.now() >= began + 1500, "it is open before its time");
            break;
          }
          // A block of the limiter's own duration is a window in which what comes is counted as well.
          assert.equal(found.consumedPoints, duration === 1.5 ? 5 + tries : 5);
          assert.ok(found.msBeforeNext <= 1500 && found.msBeforeNext >= began + 1500 - Date.now());
          await sleep(150);
        }
        await sleep(Math.max(0, end + 20 - Date.now()));
        if (tries > 0) assert.ok(((await made.get(key))?.consumedPoints ?? 0) <= 1, `${duration}`);
        assert.ok((await made.consume(key)).consumedPoints <= 2, `${duration}`);
      }
    });

    test("blockDuration blocks once when the points are exceeded", async () => {
      const [key, made] = [fresh(), limiter({ points: 1, duration: 1, blockDuration: 20 })];
      const began = Date.now();
      assert.equal((await denied(made.consume(key, 2))).msBeforeNext, 20_000);
      await sleep(1200);
      const later = await denied(made.consume(key));
      assert.ok(
        later.msBeforeNext <= 18_801 && later.msBeforeNext >= began + 20_000 - Date.now(),
        "it is not prolonged",
      );
      assert.equal(later.consumedPoints, 3);
    });

    test("a block that another process writes at the same time stands", async () => {
      const key = fresh();
      const block = (storeClient: ClientOrLimits) =>
        new RateLimiterRatelimit({ storeClient, points: 3, duration: 1 }).block(key, 20);
      const real = new Limiter(opened.client);
      // The other process has written after this one released what was there.
      const late = new Proxy(real, { get: (_, name) => (name === "release" ? () => Promise.resolve(0) : bound(name)) });
      const bound = (name: string | symbol): unknown =>
        (real[name as keyof Limiter] as unknown as (...args: unknown[]) => unknown).bind(real);
      await Promise.all([block(real), block(late)]);
      assert.ok((await denied(limiter({ duration: 1 }).consume(key))).msBeforeNext > 10_000);
      real.close();
    });

    test("set writes points for any time, and a block without end stays", async () => {
      const [one, two, three] = [fresh(), fresh(), fresh()];
      const made = limiter({ duration: 60 });
      assert.equal((await made.set(one, 2, 60)).consumedPoints, 2);
      assert.equal((await made.consume(one)).consumedPoints, 3);
      await denied(made.consume(one));
      await made.set(two, 12, 20);
      const found = await denied(made.consume(two));
      assert.equal(found.consumedPoints, 13);
      assert.ok(found.msBeforeNext > 0 && found.msBeforeNext <= 20_000);
      await made.set(two, 1, 20);
      assert.equal((await made.get(two))?.consumedPoints, 1);
      await made.block(three, 0);
      assert.deepEqual([(await made.get(three))?.msBeforeNext, (await made.get(three))?.consumedPoints], [-1, 4]);
      await made.set(three, 0, 0);
      assert.equal(await made.get(three), null);
      await assert.rejects(made.set(three, -1, 5), /^RangeError: points must be at least 0, not -1/);
    });

    test("a duration of 0 never ends, and points are whole numbers", async () => {
      const [key, made] = [fresh(), limiter({ duration: 0 })];
      assert.equal((await made.consume(key)).msBeforeNext, -1);
      assert.equal((await made.consume(key)).consumedPoints, 2);
      await assert.rejects(made.consume(key, 1.5), /decimal number/);
      await assert.rejects(made.consume(key, "2.0" as never), /integer values/);
      assert.equal((await made.consume(key, "1" as never)).consumedPoints, 3);
    });

    test("unions, queues, bursts, blocks in memory and insurance work", async () => {
      const key = fresh();
      const union = new RateLimiterUnion(limiter({ keyPrefix: "a" }), limiter({ keyPrefix: "b", points: 1 }));
      assert.deepEqual(Object.keys(await union.consume(key)), ["a", "b"]);
      await assert.rejects(
        union.consume(key),
        (found: object) => assert.deepEqual(Object.keys(found), ["b"]) === undefined,
      );

      const queue = new RateLimiterQueue(limiter({ keyPrefix: fresh(), points: 1, duration: 1 }));
      const began = Date.now();
      await Promise.all([queue.removeTokens(1), queue.removeTokens(1)]);
      assert.ok(Date.now() - began >= 900 && Date.now() - began < 30_000);

      const bursty = new BurstyRateLimiter(
        limiter({ keyPrefix: fresh(), points: 1 }),
        limiter({ keyPrefix: fresh(), points: 1 }),
      );
      await bursty.consume(key);
      await bursty.consume(key);
      await denied(bursty.consume(key));

      const inMemory = limiter({ keyPrefix: fresh(), points: 1, inMemoryBlockOnConsumed: 1 });
      await inMemory.consume(key);
      assert.equal((await denied(inMemory.consume(key))).consumedPoints, 0, "the server was not asked");

      const client = await gone();
      const insured = new RateLimiterRatelimit({
        storeClient: client,
        points: 1,
        duration: 5,
        insuranceLimiter: new RateLimiterMemory({ points: 2, duration: 5 }),
      });
      assert.equal((await insured.consume(key)).remainingPoints, 1);
      const alone = new RateLimiterRatelimit({ storeClient: client, points: 1, duration: 5 });
      await assert.rejects(alone.consume(key), Error);
      client.disconnect();
    });

    test("keys do not touch those of RateLimiterRedis", async () => {
      const key = fresh();
      await server.admin.set(`rlflx:${key}`, "7");
      assert.equal((await limiter({}).consume(key)).consumedPoints, 1);
    });
  });
}

test("a client that is none is refused", () => {
  for (const wrong of [undefined, "redis://127.0.0.1", {}]) {
    assert.throws(
      () => new RatelimitStore(wrong as never),
      /^TypeError: the client must be one of node-redis or ioredis/,
    );
    assert.throws(() => new RatelimitThrottlerStorage(wrong as never), /^TypeError: the client must be one of/);
    assert.throws(() => new RateLimiterRatelimit({ storeClient: wrong as never, points: 1, duration: 1 }));
  }
  assert.throws(
    () => new RatelimitStore({} as Limits, { prefixes: "a" } as never),
    /^TypeError: RatelimitStore has no option "prefixes"/,
  );
  assert.throws(
    () => new RatelimitStore(new Limiter(new Redis({ lazyConnect: true }))).init({ windowMs: 0 }),
    RangeError,
  );
});
