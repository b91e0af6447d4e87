/**
 * MemoryLimiter, which needs no server; server.test.ts compares it with one. RATELIMIT_SO is the module of a server to fail
 * over from, and RATELIMIT_CHECKOUT the checkout with docs/testing.md. Without them the tests that need them are skipped.
 */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Redis } from "ioredis";

import { clause, Closed, Limiter, MemoryLimiter, semaphore, UnknownPolicy, type Window } from "../src/index.js";
import type { Limits, MemoryLimiterOptions, Reply } from "../src/index.js";
import { Server } from "./servers.js";

const NOON = 1_795_238_388_000;
const HOUR: Window = { limit: 8, period: "1h" };

function held(options: Omit<MemoryLimiterOptions, "clock"> = {}): { limiter: MemoryLimiter; clock: { now: number } } {
  const clock = { now: NOON };
  return { limiter: new MemoryLimiter({ ...options, clock: () => clock.now }), clock };
}

test("keys of any characters and bytes are distinct", async () => {
  const { limiter } = held();
  for (const key of ["käufer:1", "käufer:2", "\0", "", "日本".repeat(2000), Buffer.from([0xff, 0xfe])]) {
    assert.equal((await limiter.window(key, { limit: 1, period: "60s" })).allowed, true);
    assert.equal((await limiter.window(key, { limit: 1, period: "60s" })).allowed, false);
  }
  const reply = await limiter.reserve("s", semaphore(2), { id: 'a"b\\c\nü' });
  assert.deepEqual(
    (await limiter.held("s")).map((each) => each.id),
    [reply.id],
  );
});

test("errors are those of a server", async () => {
  const { limiter } = held();
  await assert.rejects(limiter.throttle("k", { burst: -1, count: 1, period: "1s" }), /^ReplyError: ERR max_burst /);
  await assert.rejects(limiter.window("k", "@gold"), (error) => error instanceof UnknownPolicy);
  await assert.rejects(
    limiter.throttle("k", { limit: 1, period: "1s" } as never),
    /^TypeError: throttle takes a rate /,
  );
  await assert.rejects(
    limiter.throttle(5 as never, { burst: 1, count: 1, period: "1s" }),
    /^TypeError: the key must be a string/,
  );
});

test("wrong clocks, shares and settings are refused", async () => {
  const wrong: [unknown, RegExp][] = [
    [{ clock: 5 }, /clock must be a function/],
    [{ share: "1/4" }, /share must be a number/],
    [{ share: 0 }, /share must be above 0/],
    [{ share: 1.5 }, /share must be above 0/],
    [{ share: NaN }, /share must be above 0/],
    [{ policies: "free THROTTLE 1" }, /polic/],
    [{ settings: { "no-such": "1" } }, /no-such/],
    [{ nonsense: 1 }, /no option/],
  ];
  for (const [options, text] of wrong) assert.throws(() => new MemoryLimiter(options as MemoryLimiterOptions), text);
  for (const now of [-1, NaN, null, undefined, "5"]) {
    const limiter = new MemoryLimiter({ clock: () => now as number });
    await assert.rejects(limiter.window("k", HOUR), /clock must return milliseconds/, String(now));
  }
});

test("policies are given as an object or as in the setting", async () => {
  for (const policies of [
    "free THROTTLE 1 30 60; day WINDOW 3 1d",
    { free: "THROTTLE 1 30 60", day: "WINDOW 3 1d" },
    { "@free": "THROTTLE 1 30 60", day: "WINDOW 3 1d" },
  ]) {
    const { limiter } = held({ policies });
    assert.equal((await limiter.throttle("k", "@free")).limit, 2);
    const named = (await limiter.policies()).map(({ name, definition, allowed }) => [name, definition, allowed]);
    assert.deepEqual(named, [
      ["day", "WINDOW 3 1d", 0],
      ["free", "THROTTLE 1 30 60", 1],
    ]);
  }
});

test("a call that is given up leaves the line, and takes nothing", async () => {
  const { limiter } = held();
  await limiter.reserve("s", semaphore(1), { id: "first" });
  const controller = new AbortController();
  const second = limiter.reserve("s", semaphore(1), { id: "second", block: 0, signal: controller.signal });
  const third = limiter.reserve("s", semaphore(1), { id: "third", block: 0 });
  assert.equal((await limiter.info("s"))?.waiting, 2);
  controller.abort();
  await assert.rejects(second, (error) => error === controller.signal.reason);
  // The call is given up by setImmediate.
  await new Promise(setImmediate);
  assert.equal((await limiter.info("s"))?.waiting, 1);
  await limiter.release("s", "first");
  assert.equal((await third).id, "third");
  // If it is granted and given up in the same turn, it is given back.
  const late = new AbortController();
  const fourth = limiter.reserve("s", semaphore(1), { id: "fourth", block: 0, signal: late.signal });
  await sleep(10);
  const released = limiter.release("s", "third");
  late.abort();
  await assert.rejects(fourth, (error) => error === late.signal.reason);
  await released;
  await sleep(50);
  assert.deepEqual(await limiter.held("s"), []);
});

test("a call that is given up leaves the line where there is no setImmediate, as in browsers", async () => {
  const { limiter } = held();
  await limiter.reserve("s", semaphore(1), { id: "first" });
  const controller = new AbortController();
  const second = limiter.reserve("s", semaphore(1), { block: 0, signal: controller.signal });
  const { setImmediate } = globalThis;
  Object.assign(globalThis, { setImmediate: undefined });
  try {
    controller.abort();
    await assert.rejects(second, (error) => error === controller.signal.reason);
    await sleep(20);
  } finally {
    Object.assign(globalThis, { setImmediate });
  }
  assert.equal((await limiter.info("s"))?.waiting, 0);
});

test("a call that is given up between its grant and its reply keeps nothing", async () => {
  const window = { limit: 3, period: "1h" };
  const rate = { burst: 2, count: 3, period: "1h" };
  const [two, five] = [
    { quantity: 2, block: "2h" },
    { quantity: 5, block: "2h", atmost: true },
  ];
  const calls: [string, (limiter: MemoryLimiter, signal: AbortSignal) => Promise<Reply>][] = [
    ["throttle", (limiter, signal) => limiter.throttle("k", rate, { ...two, signal })],
    ["throttle atmost", (limiter, signal) => limiter.throttle("k", rate, { ...five, signal })],
    ["window", (limiter, signal) => limiter.window("k", window, { ...two, signal })],
    ["window atmost", (limiter, signal) => limiter.window("k", window, { ...five, signal })],
    ["reserve", (limiter, signal) => limiter.reserve("k", window, { ...two, signal })],
    ["reserve atmost", (limiter, signal) => limiter.reserve("k", window, { ...five, signal })],
  ];
  for (const [name, ask] of calls) {
    const outcomes = new Set<boolean>();
    // The reply passes some promises on its way to the caller, and the signal may fire at each of them.
    for (let turns = 0; turns < 6; turns += 1) {
      const { limiter, clock } = held();
      const isRate = name.startsWith("throttle");
      const all = { quantity: 3 };
      assert.ok((await (isRate ? limiter.throttle("k", rate, all) : limiter.window("k", window, all))).allowed);
      const controller = new AbortController();
      const asked = ask(limiter, controller.signal).catch(() => undefined);
      clock.now += 3_600_000;
      // Any call lets the engine grant what is due.
      void limiter.held("other");
      for (let turn = 0; turn < turns; turn += 1) await Promise.resolve();
      controller.abort();
      const reply = await asked;
      await sleep(5);
      const taken = reply === undefined ? 0 : (reply.granted ?? 2);
      const left = await (isRate ? limiter.throttleRo("k", rate) : limiter.windowRo("k", window));
      assert.equal(left.remaining, 3 - taken, `${name}, given up after ${turns} turns`);
      outcomes.add(reply === undefined);
    }
    assert.deepEqual([...outcomes], [true, false], `${name} was given up before its reply, and after it`);
  }
});

test("a clock that fails ends the calls that wait, and they leave the line", async () => {
  const { limiter, clock } = held();
  await limiter.reserve("s", semaphore(1));
  const second = limiter.reserve("s", semaphore(1), { block: 0 });
  clock.now = NaN;
  await assert.rejects(second, /clock must return milliseconds/);
  clock.now = NOON;
  assert.equal((await limiter.info("s"))?.waiting, 0);
});

test("closing ends the calls that wait", async () => {
  const { limiter } = held();
  await limiter.reserve("s", semaphore(1));
  const second = limiter.reserve("s", semaphore(1), { block: 0 });
  await sleep(10);
  limiter.close();
  await assert.rejects(second, Closed);
});

test("leases are decided in the process too", async () => {
  const limiter = new MemoryLimiter();
  const local = limiter.local("k", { limit: 5, period: "1h" }, { lease: "1min" });
  const taken: boolean[] = [];
  for (let at = 0; at < 6; at += 1) taken.push((await local.take()).allowed);
  assert.deepEqual(taken, [true, true, true, true, true, false]);
  await local.close();
  assert.equal((await limiter.windowRo("k", { limit: 5, period: "1h" })).remaining, 0);
});

test("calls wait by the system's clock, or by that of a test", async () => {
  const real = new MemoryLimiter();
  const rate = { burst: 0, count: 10, period: "1s" };
  const began = performance.now();
  await real.throttle("k", rate);
  assert.equal((await real.throttle("k", rate, { block: "1min" })).allowed, true);
  assert.ok(performance.now() - began >= 80);
  await real.throttle("slow", { ...rate, period: "1h" });
  assert.equal((await real.throttle("slow", { ...rate, period: "1h" }, { block: 1 })).allowed, false);
  await real.reserve("s", semaphore(1));
  assert.equal((await real.reserve("s", semaphore(1), { block: 50 })).limited, 2);

  const { limiter, clock } = held();
  await limiter.throttle("k", { burst: 0, count: 1, period: "1h" });
  let reply: Reply | undefined;
  const waiting = limiter.throttle("k", { burst: 0, count: 1, period: "1h" }, { block: "2h" }).then((given) => {
    reply = given;
  });
  while ((await limiter.info("k"))?.waiting !== 1) await sleep(1);
  assert.equal(reply, undefined);
  clock.now += 3_600_000;
  await waiting;
  assert.equal((reply as unknown as Reply).allowed, true);
});

test("a share scales limits, and all shares together never exceed the limit", async () => {
  const { limiter } = held({ share: 1 / 4, policies: { day: "WINDOW 10 1d" } });
  assert.equal((await limiter.window("w", { limit: 10, period: "60s" })).limit, 2);
  assert.equal((await limiter.window("few", { limit: 3, period: "60s" })).limit, 1);
  assert.equal((await limiter.window("d", "@day")).limit, 2);
  const reply = await limiter.throttle("t", { burst: 15, count: 30, period: "60s" }, { quantity: 4 });
  assert.deepEqual([reply.limit, reply.remaining, reply.resetAfterMs], [4, 0, 32_000]);
  const { answers } = await limiter.all([
    clause.window("{u}a", { limit: 8, period: "60s" }),
    clause.acquire("{u}b", semaphore(4)),
  ]);
  assert.deepEqual(
    answers.map((answer) => answer.limit),
    [2, 1],
  );
  for (let processes = 1; processes < 12; processes += 1) {
    const limit = processes + 25;
    const one = held({ share: 1 / processes }).limiter;
    const { granted } = await one.window("k", { limit, period: "60s" }, { quantity: 100, atmost: true });
    assert.equal(granted, Math.floor(limit / processes));
  }
});

test(
  "it decides while Redis is away, and what was reserved with it is settled with it",
  { skip: process.env["RATELIMIT_SO"] === undefined && "RATELIMIT_SO is not set" },
  async () => {
    const server = await Server.start();
    const redis = new Redis(server.port, { lazyConnect: true });
    redis.on("error", () => {});
    const unreachable: Limits = new MemoryLimiter({ share: 1 / 4 });
    const limiter = new Limiter(redis, { unreachable, deadline: 10_000 });
    try {
      for (let at = 0; at < 8; at += 1) assert.equal((await limiter.window("w", HOUR)).limit, 8);
      assert.equal((await limiter.window("w", HOUR)).allowed, false);
      await server.kill();
      const outcomes: unknown[] = [];
      for (let at = 0; at < 4; at += 1) {
        const { allowed, limit, reachable } = await limiter.window("w", HOUR);
        outcomes.push([allowed, limit, reachable]);
      }
      assert.deepEqual(outcomes, [
        [true, 2, false],
        [true, 2, false],
        [false, 2, false],
        [false, 2, false],
      ]);
      assert.deepEqual((await limiter.reserve("s", HOUR, { id: "ours" })).reachable, false);
      const both = [await limiter.reserve("s2", HOUR), await limiter.reserve("s2", HOUR)];
      await limiter.acquire("s3", HOUR, {}, () => {});
      await server.start();
      for (let at = 0; at < 600 && !(await limiter.windowRo("w", HOUR)).reachable; at += 1) await sleep(50);
      assert.equal((await limiter.window("w", HOUR)).limit, 8);
      assert.equal(await limiter.renew("s", "ours"), true);
      assert.equal(await limiter.apply("s", "ours"), true);
      assert.equal(await limiter.apply("s", "ours"), false);
      await limiter.reserve("s2", HOUR, { id: "there" });
      assert.equal(await limiter.release("s2", "there", ...both.map(({ id }) => String(id))), 3);
    } finally {
      limiter.close();
      redis.disconnect();
      await server.end();
    }
  },
);

/** A stand-in for vitest, which docs/testing.md uses. */
const VITEST = `
import assert from "node:assert/strict";
const expect = (found) => ({ toBe: (expected) => assert.equal(found, expected) });
const test = async (name, body) => { await body(); console.log("passed " + name); };
`;

test("the tests of an application pass", (context) => {
  const checkout = process.env["RATELIMIT_CHECKOUT"];
  if (checkout === undefined) return context.skip("RATELIMIT_CHECKOUT is not set");
  const page = readFileSync(join(checkout, "docs/testing.md"), "utf8");
  const blocks = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map(([, text]) => text ?? "");
  assert.equal(blocks.length, 1, "each block has a test here");
  const folder = new URL("../readme/", import.meta.url);
  mkdirSync(folder, { recursive: true });
  const file = fileURLToPath(new URL("testing.mjs", folder));
  writeFileSync(file, (blocks[0] ?? "").replace(/^import .* from "vitest";$/m, VITEST));
  assert.match(execFileSync(process.execPath, [file], { encoding: "utf8" }), /^passed a user is greeted/);
});
