/**
 * Several limits that are reserved, settled and charged as one. RATELIMIT_PORT is the port of a server with the module,
 * RATELIMIT_CLUSTER_PORT that of a node of a cluster; all keys of the server are flushed.
 */

import assert from "node:assert/strict";
import { subscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { after, before, beforeEach, describe as suite, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { Redis } from "ioredis";
import { createClient, createClientPool, ErrorReply } from "redis";

import {
  clause,
  Closed,
  Denied,
  Lapsed,
  Limiter,
  MemoryLimiter,
  Rate,
  retryAfter,
  semaphore,
  UnknownPolicy,
  type CallOptions,
  type Clause,
  type Client,
  type Limits,
  type Reply,
  type Reservation,
} from "../src/index.js";
import { SECOND_RELEASE_MS } from "../src/core.js";
import { slotOf } from "../src/cluster.js";
import {
  clausesOf,
  heldTimers,
  means,
  MISTAKES,
  Recorder,
  refused,
  run,
  SEVERAL,
  type Case,
  type SeveralCase,
} from "./fixtures.js";
import { CLUSTERS, connected, until, type Opened } from "./servers.js";

const PORT = Number(process.env["RATELIMIT_PORT"]);
const CLUSTER_PORT = Number(process.env["RATELIMIT_CLUSTER_PORT"]);

const TOKENS = { limit: 1000, period: "1h" };
const DOLLARS = { limit: 5000, period: "1d" };
const NINE = { limit: 9, period: "60s" };
const PAIR = [clause.acquire("a", NINE), clause.acquire("b", NINE)];
/** Two reservations, x in the key a and y in b. */
const ANSWERS = ["x", "y"].map((id) => [0, 9, 8, -1, 20000, id]);
const RESERVED = [0, 9, 8, -1, 20000, 1, ANSWERS];
const QUEUED = ["OK", "QUEUED", "QUEUED"];
/** The pair, a semaphore c, and a window d that reserves nothing. */
const FOUR = [...PAIR, clause.acquire("c", semaphore(2)), clause.window("d", NINE)];
const FOUR_RESERVED = [0, 9, 8, -1, 20000, 1, [...ANSWERS, [0, 2, 1, -1, 20000, "z"], [0, 9, 8, -1, 60000]]];

/** Returns the replies of the server to the commands of a case. */
function repliesOf({ replies = [] }: SeveralCase): unknown[] {
  const isError = (each: unknown): each is { error: string } =>
    typeof each === "object" && each !== null && "error" in each;
  const answers = replies.map((each) => (isError(each) ? new ErrorReply(each.error) : each));
  return answers.length === 1 ? answers : ["OK", ...answers.map(() => "QUEUED"), answers];
}

/** Returns the limits of a call of a language model. The estimates are reserved. */
function llmCall(tag: string, { tokens = 400, dollars = 900 } = {}): Clause[] {
  return [
    clause.window(`${tag}:rpm`, { limit: 60, period: "1min" }, { name: "requests" }),
    clause.acquire(`${tag}:tpm`, TOKENS, { name: "tokens", quantity: tokens }),
    clause.acquire(`${tag}:usd`, DOLLARS, { name: "dollars", quantity: dollars }),
    clause.acquire(`${tag}:calls`, semaphore(2), { name: "calls" }),
  ];
}

suite("several limits as one", () => {
  for (const given of SEVERAL) {
    test(given.says, async () => {
      const clauses = given.clauses.map(clausesOf);
      const recorder = new Recorder(...(given.force ? [] : [given.reply]), ...repliesOf(given));
      const limiter = new Limiter(recorder);
      const reply = await limiter.all(clauses, given.force ? { force: true } : {});
      assert.deepEqual([reply.paid, reply.denied], [given.paid, given.denied ?? []]);
      assert.deepEqual(
        reply.names,
        clauses.flat().map(({ name }) => name),
      );
      if (given.force) {
        means(reply, given.means, given.says);
        assert.deepEqual(recorder.sent, given.sent);
        return;
      }
      if (given.then === undefined) return assert.equal(reply.reservation, undefined);
      const reservation = reply.reservation!;
      assert.deepEqual(reservation.ids, given.ids);
      recorder.sent = [];
      const settle = {
        apply: () => reservation.apply(given.cost),
        release: () => reservation.release(),
        renew: () => reservation.renew({ lease: given.lease }),
      }[given.then];
      if (given.raises === undefined) assert.equal(await settle(), given.means);
      else await assert.rejects(settle(), (error: Error) => error.message === given.raises);
      assert.deepEqual(recorder.sent, given.sent);
    });
  }

  test("the end of the work settles all in one step, unless the work did", async () => {
    const [applied, released] = ["RL.APPLY", "RL.RELEASE"].map((word) => [`${word} a x`, `${word} b y`]);
    const cases: [unknown, (job: Reservation) => unknown, unknown[], unknown][] = [
      [[1, 1], () => "result", applied!, "result"],
      [[1, 1], (job) => (job.set({ a: 1 }), job.set({ a: 7 })), ["RL.APPLY a x 7", "RL.APPLY b y"], undefined],
      [[1, 1], (job) => job.apply({ b: 3 }), ["RL.APPLY a x", "RL.APPLY b y 3"], true],
      [[1, 0], (job) => (job.set({ a: 7 }), Promise.reject(new EvalError())), released!, "EvalError"],
      // It is not sent again, as its reply may have been lost.
      [refused(), () => "result", applied!, "Error"],
    ];
    for (const [reply, work, sent, expected] of cases) {
      const recorder = new Recorder(RESERVED, ...QUEUED, reply);
      const outcome = await new Limiter(recorder).acquire(PAIR, work).catch((error) => error.name);
      assert.deepEqual([recorder.sent.slice(1), outcome], [["MULTI", ...sent, "EXEC"], expected]);
    }
  });

  test("what the server refuses before EXEC is the error", async () => {
    const aborted = new ErrorReply("EXECABORT Transaction discarded because of previous errors.");
    const recorder = new Recorder(RESERVED, "OK", "QUEUED", new ErrorReply("NOPERM no permissions"), aborted);
    await assert.rejects(
      new Limiter(recorder).acquire(PAIR, {}, () => {}),
      /^Error: NOPERM/,
    );
  });

  test("an unknown policy is named", async () => {
    const missing = new ErrorReply("NOPOLICY no policy has the name gold");
    const limiter = new Limiter(new Recorder(...QUEUED, [[0, 9, 8, -1, 60000], missing]));
    const charged = limiter.all([clause.window("a", NINE), clause.window("b", "@gold")], { force: true });
    await assert.rejects(charged, (error) => error instanceof UnknownPolicy && /gold \(limit b\)$/.test(error.message));
  });

  test("`await using` applies what was set, or else gives everything back, and throws as the callback does", async () => {
    const [applied, released] = [
      ["RL.APPLY a x 2", "RL.APPLY b y"],
      ["RL.RELEASE a x", "RL.RELEASE b y"],
    ];
    const set = (job: Reservation) => job.set({ a: 2 });
    const look = (job: Reservation) => assert.deepEqual(job.ids, { a: "x", b: "y" });
    const work = new EvalError("work");
    const fail = () => {
      throw work;
    };
    const isLapsed = (error: unknown) => error instanceof Lapsed && /what was reserved of "b"/.test(error.message);
    const isBoth = (both: { error: unknown; suppressed: unknown }) => isLapsed(both.error) && both.suppressed === work;
    const cases: [unknown, (job: Reservation) => void, string[], ((error: never) => boolean) | RegExp | undefined][] = [
      [[1, 1], set, applied, undefined],
      [[1, 1], look, released, undefined],
      [[1, 0], set, applied, isLapsed],
      [[1, 0], look, released, isLapsed],
      [[1, 0], fail, released, isBoth],
      [refused(), look, released, /ECONNREFUSED/],
    ];
    for (const [reply, use, sent, error] of cases) {
      for (const unreachable of ["raise", "allow"] as const) {
        const recorder = new Recorder(RESERVED, ...QUEUED, reply);
        const used = async () => {
          await using job = await new Limiter(recorder, { unreachable }).acquire(PAIR);
          use(job);
        };
        const isForgiven = reply instanceof Error && unreachable === "allow";
        if (error === undefined || isForgiven) await used();
        else await assert.rejects(used, error as RegExp);
        assert.deepEqual(recorder.sent.slice(2, 4), sent);
      }
    }
  });

  test("a renewal that hangs does not delay the next ones", async () => {
    const recorder = new Recorder(RESERVED, ...QUEUED, new Promise(() => {}), ...QUEUED, new Promise(() => {}));
    const reservation = await new Limiter(recorder).acquire(
      PAIR.map(({ key }) => clause.acquire(key, NINE, { lease: 90 })),
    );
    await until(() => recorder.sent.filter((words) => words === "EXEC").length >= 3);
    await assert.rejects(reservation.release());
  });

  test(
    "a single reservation is renewed while its work runs, also one that waited, and with `await using`",
    { timeout: 30_000 },
    async () => {
      const held = [0, 3, 2, -1, 20000, "job"];
      const renewed = (recorder: Recorder) =>
        until(() => recorder.sent.filter((sent) => /^RL.RENEW/.test(sent)).length > 2);
      const [waited, used] = [1, 2].map(() => new Recorder(held, 1, 1, 1, 1, 1)) as [Recorder, Recorder];
      await new Limiter(waited).acquire("k", NINE, { lease: 900, block: 5 }, () => renewed(waited));
      {
        await using job = await new Limiter(used).acquire("k", NINE, { lease: 900 });
        await renewed(used);
        assert.equal(job.signal.aborted, false);
      }
      assert.deepEqual(
        [waited, used].map(({ sent }) => sent.slice(3)),
        [
          ["RL.RENEW k job", "RL.APPLY k job"],
          ["RL.RENEW k job", "RL.RELEASE k job"],
        ],
      );
    },
  );

  test("work learns by a signal that its lease has ended, or may have ended", { timeout: 30_000 }, async () => {
    const held = [0, 3, 2, -1, 20000, "job"];
    const messages: [string, unknown][] = [];
    for (const name of ["lapsed", "unsettled"]) {
      subscribe(`redis-ratelimit-client:${name}`, (message) => messages.push([name, message]));
    }
    for (const [replies, lease, text] of [
      // A late timer must not end it first.
      [[held, 0, 0], 900, "the reservation job has lapsed while its work runs"],
      [[held, ...Array<Error>(9).fill(refused())], 30, "the reservation job may have lapsed: no renewal was answered"],
    ] as const) {
      const recorder = new Recorder(...replies);
      const work = new Limiter(recorder).acquire("k", NINE, { lease }, async ({ signal }) => {
        await once(signal, "abort");
        throw signal.reason;
      });
      await assert.rejects(work, (error: Error) => error instanceof Lapsed && error.message === text);
    }
    const lapsed = ["lapsed", { names: ["k"], ids: { k: "job" } }];
    assert.deepEqual(messages.slice(0, 2), [lapsed, lapsed]);
    const [name, { key, error }] = messages[2] as [string, { key: string; error: Error }];
    assert.deepEqual([name, key, error.message, messages.length], ["unsettled", "k", refused().message, 3]);
  });

  test("what no server executed at the end of the work is settled later, unless its lease has ended", async () => {
    const [held, settled] = [[0, 9, 8, -1, 20000, "job"], "RL.APPLY k job"];
    const lapsed: unknown[] = [];
    subscribe("redis-ratelimit-client:lapsed", (message) => lapsed.push(message));
    for (const [failures, replies, sent] of [
      // It meets an open breaker, and is the call that probes both at first and later.
      [3, [refused(), "PONG", 1], ["PING", "PING", settled]],
      [0, [new ErrorReply("LOADING the data"), 0], [settled, settled]],
    ] as const) {
      const recorder = new Recorder(held, ...Array.from({ length: failures }, refused), ...replies);
      const limiter = new Limiter(recorder, { unreachable: "allow" });
      await limiter.acquire("k", NINE, async () => {
        await sleep(1);
        for (let call = 0; call < failures; call += 1) await assert.rejects(limiter.held("k"));
      });
      await until(() => recorder.replies.length === 0, "it is not settled");
      assert.deepEqual(recorder.sent.slice(1 + failures), sent);
    }
    await until(() => lapsed.length > 0, "the lease that had ended is not reported");
    assert.deepEqual(lapsed, [{ names: ["k"], ids: { k: "job" } }]);
  });

  test("a reservation is renewed only as long as somebody can settle it", async () => {
    setFlagsFromString("--expose-gc");
    const collectGarbage = runInNewContext("gc") as () => void;
    const leased = PAIR.map(({ key }) => clause.acquire(key, NINE, { lease: 15 }));
    const [kept, dropped] = [new Recorder(RESERVED), new Recorder(RESERVED)];
    const job = await new Limiter(kept).acquire(leased);
    await new Limiter(dropped).acquire(leased);
    await until(() => {
      const hasEnded = kept.sent.length > 20 && dropped.sent.length === 0;
      if (kept.sent.length > 20) [kept.sent, dropped.sent] = [[], []];
      collectGarbage();
      return hasEnded;
    });
    await assert.rejects(job.release());
  });

  test("a longer lease slows renewals only once the server knows it, a shorter one speeds them up at once", async (context) => {
    const deadline = 86_400_000;
    const timers = heldTimers(context);
    // Other timers are those of deadlines.
    const renewals = () => timers.filter(({ ms }) => Number.isInteger(ms) && ms !== deadline);
    const pause = () => renewals().at(-1)!.ms;
    const turn = () => new Promise(setImmediate);
    const renewed = [1, 1];
    let answer = (_: unknown) => {};
    const late = () => new Promise((resolve) => (answer = resolve));
    const recorder = new Recorder(RESERVED, ...QUEUED, late(), ...QUEUED, renewed);
    const leased = [clause.acquire("a", NINE, { lease: 600 }), clause.acquire("b", NINE, { lease: "2min" })];
    const reservation = await new Limiter(recorder, { deadline }).acquire(leased);
    assert.equal(pause(), 200);

    let renewing = reservation.renew({ lease: "1min" });
    assert.equal(pause(), 200);
    answer(renewed);
    assert.equal(await renewing, true);
    renewals().at(-1)!.call();
    await turn();
    assert.equal(pause(), 20_000);

    recorder.replies.push(...QUEUED, late());
    renewing = reservation.renew({ lease: 300 });
    assert.equal(pause(), 100);
    answer(renewed);
    await renewing;

    // The server may not have heard of the longer lease.
    recorder.replies.push(...QUEUED, refused(), ...QUEUED, renewed);
    await assert.rejects(reservation.renew({ lease: "1min" }), /ECONNREFUSED/);
    renewals().at(-1)!.call();
    await turn();
    assert.equal(pause(), 100);

    // A renewal that sends nothing leaves the timer alone.
    const [{ length: timersBefore }, { length: sentBefore }] = [renewals(), recorder.sent];
    for (const [options, error] of [
      [{ lease: 0 }, RangeError],
      [{ lease: 30, leases: 5 }, TypeError],
      [{ lease: 30, signal: {} }, TypeError],
      [{ lease: 30, signal: AbortSignal.abort(new EvalError()) }, EvalError],
    ] as [object, typeof Error][]) {
      await assert.rejects(reservation.renew(options), error);
    }
    assert.deepEqual([renewals().length, recorder.sent.length], [timersBefore, sentBefore]);
  });

  for (const mistake of MISTAKES) {
    test(`an error is thrown before anything is sent if ${mistake.says}`, async () => {
      const { clauses, force, options, cost } = mistake;
      const recorder = new Recorder(FOUR_RESERVED);
      const limiter = new Limiter(recorder);
      const kind = mistake.error === "type" ? TypeError : RangeError;
      const isCall = "call" in mistake;
      if (isCall || clauses !== undefined) {
        const call = async () =>
          isCall ? run(limiter, mistake as Case) : limiter.all(clauses!.map(clausesOf), { force, ...options });
        await assert.rejects(call, kind);
        assert.deepEqual(recorder.sent, []);
        return;
      }
      const { reservation } = await limiter.all(FOUR);
      assert.throws(() => reservation!.set(cost!), kind);
      await assert.rejects(reservation!.apply(cost), kind);
      assert.equal(recorder.sent.length, 1);
    });
  }

  test("a mistake of plain JavaScript is an error before anything is sent", async () => {
    const recorder = new Recorder(FOUR_RESERVED);
    const limiter = new Limiter(recorder);
    for (const [call, text] of [
      [() => limiter.all([...PAIR, clause.window("c", NINE, { name: "a" })]), 'same name, which is "a"'],
      [() => limiter.acquire([clause.window("a", NINE)]), "at least one of clause.acquire"],
      [() => limiter.reserve([clause.acquire("a", NINE, { check: true })]), "at least one of clause.acquire"],
      [() => limiter.acquire(PAIR, { lease: 5 } as object), 'acquire has no option "lease"'],
      [() => limiter.reserve(PAIR, { lease: 5 } as object), 'reserve has no option "lease"'],
      [() => limiter.reserve([5 as never]), "reserve takes clauses made by"],
      [() => limiter.acquire(PAIR, {}, 5 as never), "the work as a function"],
      [() => limiter.acquire(PAIR, {}, undefined as never), "the work as a function"],
      [async () => clause.window("a", NINE, { name: 7 as never }), "name must be a string"],
    ] as [() => Promise<unknown>, string][]) {
      await assert.rejects(call, (error: Error) => error.message.includes(text), text);
    }
    assert.deepEqual(recorder.sent, []);
    const { reservation } = await limiter.all(FOUR);
    for (const [cost, text] of [
      [{ e: 1 }, 'there is no limit "e", but "a", "b", "c", "d"'],
      [{ a: 0.5 }, "must be a whole number"],
    ] as [never, string][]) {
      await assert.rejects(reservation!.apply(cost), (error: Error) => error.message.includes(text), text);
    }
    assert.equal(recorder.sent.length, 1);
  });

  test("a settlement that was cancelled is repeated at the end, unless the work did", async () => {
    const held = [0, 3, 2, -1, 20000, "job"];
    type Settle = (job: Reservation, options?: CallOptions) => Promise<unknown>;
    /** Settles with a signal that fires before or after the command was sent. */
    const cancelled = async (settle: Settle, job: Reservation, isSent: boolean) => {
      const controller = new AbortController();
      if (!isSent) controller.abort(new EvalError());
      const settling = settle(job, { signal: controller.signal });
      controller.abort(new EvalError());
      await assert.rejects(settling, EvalError);
      assert.equal(job.settled, isSent);
    };
    const apply =
      (cost?: number): Settle =>
      (job, options) =>
        job.apply(cost, options);
    for (const [settle, words] of [
      [apply(2), "RL.APPLY k job 2"],
      [apply(), "RL.APPLY k job"],
      [(job, options) => job.release(options), "RL.RELEASE k job"],
    ] as [Settle, string][]) {
      // A reply of 0 says nothing if the first of the two may have been executed.
      for (const [isSent, reply, ends] of [
        [true, 1, undefined],
        [true, 0, undefined],
        [false, 0, Lapsed],
      ] as const) {
        const recorder = new Recorder(held, ...(isSent ? [new Promise(() => {})] : []), reply);
        const replies = [...recorder.replies];
        const used = async () => {
          await using job = await new Limiter(recorder).acquire("k", NINE);
          await cancelled(settle, job, isSent);
        };
        const called = () => new Limiter(recorder).acquire("k", NINE, (job) => cancelled(settle, job, isSent));
        for (const work of [used, called]) {
          if (ends === undefined) await work();
          else await assert.rejects(work, ends);
          assert.deepEqual(recorder.sent.splice(0).slice(1), isSent ? [words, words] : [words]);
          recorder.replies.push(...replies);
        }
      }
    }
    // Work that fails releases, and what the work has repeated is not repeated again.
    for (const [repeats, sent] of [
      [false, "RL.RELEASE k job"],
      [true, "RL.APPLY k job 2"],
    ] as const) {
      const recorder = new Recorder(held, new Promise(() => {}), 1);
      const work = new Limiter(recorder).acquire("k", NINE, async (job) => {
        await cancelled(apply(2), job, true);
        if (repeats) await apply(2)(job);
        throw new TypeError("work");
      });
      await assert.rejects(work, { message: "work" });
      assert.deepEqual(recorder.sent.slice(1), ["RL.APPLY k job 2", sent]);
    }
  });

  test("once the limiter is closed, nothing is renewed, and settling throws", async () => {
    const [recorder, memory] = [new Recorder(RESERVED, refused()), new MemoryLimiter()];
    const leased = PAIR.map(({ key }) => clause.acquire(key, NINE, { lease: 900 }));
    const limiter = new Limiter(recorder, { unreachable: memory });
    const work = limiter.acquire(leased, {}, async (job) => {
      // It is reserved in the process, where renewals end as well.
      await limiter.acquire(leased);
      limiter.close();
      await until(async () => (await memory.held("a")).length === 0);
      await assert.rejects(job.renew(), Closed);
    });
    await assert.rejects(work, Closed);
    assert.equal(recorder.sent.length, 2);
  });

  test("a limit may have the name of a member of all objects", async () => {
    const single = new Recorder([0, 3, 2, -1, 20000, "job"], 1);
    await new Limiter(single).acquire("constructor", { limit: 3, period: "60s" }, {}, () => {});
    assert.equal(single.sent[1], "RL.APPLY constructor job");
    const several = new Recorder(RESERVED, ...QUEUED, [1, 1]);
    const names = [clause.acquire("toString", NINE), clause.acquire("__proto__", NINE)];
    await new Limiter(several).acquire(names, {}, (job) => job.set({ ["__proto__"]: 3 }));
    assert.deepEqual(several.sent.slice(2, 4), ["RL.APPLY toString x", "RL.APPLY __proto__ y 3"]);
  });

  test("replies with reservations can be compared and printed", async () => {
    const [one, other] = [
      await new Limiter(new Recorder(RESERVED)).all(PAIR),
      await new Limiter(new Recorder(RESERVED)).all(PAIR),
    ];
    assert.deepEqual(one, other);
    assert.deepEqual(JSON.parse(JSON.stringify(one)), one);
  });

  test("without Redis `unreachable` decides several limits", async () => {
    const allowing = new Limiter(new Recorder(refused()), { unreachable: "allow" });
    const found = await allowing.acquire(PAIR, {}, async (job) => {
      job.set({ a: 5 });
      return [job.reply.reachable, job.ids, await job.renew()];
    });
    assert.deepEqual(found, [false, {}, true]);
    const denying = new Limiter(new Recorder(refused()), { unreachable: "deny" });
    await assert.rejects(denying.acquire(PAIR), Denied);
    await assert.rejects(new Limiter(new Recorder(refused())).acquire(PAIR), /ECONNREFUSED/);
    // Counting what was used is never denied, and a lease that cannot be settled ends by itself.
    const charged = await new Limiter(new Recorder(refused()), { unreachable: "deny" }).all(
      [clause.window("a", NINE)],
      {
        force: true,
      },
    );
    assert.deepEqual([charged.allowed, charged.reachable], [true, false]);
    const later = new Limiter(new Recorder(RESERVED, refused()), { unreachable: "allow" });
    assert.equal(await later.acquire(PAIR, {}, () => "result"), "result");
  });

  test("reservations of a MemoryLimiter are settled there", async () => {
    const memory = new MemoryLimiter();
    const recorder = new Recorder(refused());
    const limiter = new Limiter(recorder, { unreachable: memory });
    await limiter.acquire(llmCall("u"), {}, async (job) => {
      assert.deepEqual([job.reply.reachable, Object.keys(job.ids)], [false, ["tokens", "dollars", "calls"]]);
      assert.ok(await job.renew({ lease: "1min" }));
      job.set({ tokens: 100 });
    });
    assert.equal(recorder.sent.length, 1);
    assert.deepEqual([await memory.held("u:tpm"), await memory.held("u:calls")], [[], []]);
    assert.equal((await memory.windowRo("u:tpm", TOKENS)).remaining, 900);
  });

  test("a fallback without handles settles limit by limit", async () => {
    const memory = new MemoryLimiter();
    const own = new Proxy(memory, {
      get: (_, name) => {
        if (name === "reserve") return async (clauses: Clause[]) => ({ ...(await memory.all(clauses)) });
        const value: unknown = memory[name as keyof MemoryLimiter];
        return typeof value === "function" ? (value as () => unknown).bind(memory) : value;
      },
      has: () => false,
    });
    const limiter = new Limiter(new Recorder(refused()), { unreachable: own as unknown as Limits });
    await limiter.acquire(llmCall("u"), {}, (job) => job.set({ tokens: 7 }));
    assert.equal((await memory.windowRo("u:tpm", TOKENS)).remaining, 993);
    assert.deepEqual(await memory.held("u:calls"), []);
  });

  /** A sentinel client, whose transport says whether a command was sent. Its first reply comes when the test says so. */
  function late() {
    let [answer, fail] = [(_: unknown) => {}, (_: unknown) => {}];
    const recorder = new Recorder(new Promise((resolve, reject) => ([answer, fail] = [resolve, reject])));
    const sendCommand = (_: boolean, words: unknown[]) => recorder.sendCommand(words);
    const { sent, ids } = recorder;
    return { client: { sendCommand, getSentinelNode: () => {} } as Client, sent, ids, answer, fail };
  }
  const connectionLost = () => new Error("Connection is closed.");

  test("what a call reserved that nobody waits for any more is given back", async () => {
    const LATE = [0, 9, 8, -1, 20000];
    const reserving: [string, (limiter: Limiter, signal: AbortSignal) => Promise<unknown>, number][] = [
      ["a deadline", (limiter) => limiter.reserve("a", NINE), 1],
      ["a deadline of a call that waits", (limiter) => limiter.reserve("a", NINE, { block: 1 }), 2],
      ["the caller may use an id of its own again", (limiter) => limiter.reserve("a", NINE, { id: "mine" }), 0],
      ["a deadline of several", (limiter) => limiter.all([clause.window("w", NINE), clause.acquire("a", NINE)]), 1],
      ["a signal", (limiter, signal) => limiter.reserve("a", NINE, { block: 0, signal }), 2],
    ];
    for (const [what, reserve, releasesIfLost] of reserving) {
      for (const lost of [false, true]) {
        const { client, sent, ids, answer, fail } = late();
        await assert.rejects(reserve(new Limiter(client, { deadline: 20 }), AbortSignal.timeout(20)));
        const [id] = ids;
        if (lost) fail(connectionLost());
        else answer(sent[0]!.startsWith("RL.ALL") ? [...LATE, 1, [LATE, [...LATE, id]]] : [...LATE, id]);
        const releases = lost ? releasesIfLost : Math.min(releasesIfLost, 1);
        await until(() => sent.length > releases);
        await sleep(SECOND_RELEASE_MS + 50);
        assert.deepEqual(sent.slice(1), Array<string>(releases).fill(`RL.RELEASE a ${id}`), `${what}, lost: ${lost}`);
      }
    }
  });

  test("an aborted call gives back what was granted too late, or may have been", async () => {
    const full = clause.window("f", { limit: 0, period: "1h" });
    const others = [
      clause.throttle("t", { burst: 4, count: 1, period: "1h" }, { quantity: 3 }),
      [full, clause.window("w", NINE)],
      clause.window("c", NINE, { check: true }),
    ];
    const taken = ["RL.THROTTLE t 4 1 1h -3", "RL.WINDOW w 9 60s -1"];
    for (const lost of [false, true]) {
      const { client, sent, ids, answer, fail } = late();
      const controller = new AbortController();
      const call = new Limiter(client).acquire([...PAIR, ...others], { signal: controller.signal });
      await sleep(1);
      controller.abort(new EvalError());
      await assert.rejects(call, EvalError);
      const [one, other] = ids;
      assert.notEqual(one, other);
      const granted = [0, 9, 8, -1, 20000];
      const replies = [...ids.map((id) => [...granted, id]), granted, [1, 0, 0, -1, 0], granted, granted];
      if (lost) fail(connectionLost());
      else answer([...granted, 1, replies]);
      await sleep(5);
      const released = [`RL.RELEASE a ${one}`, `RL.RELEASE b ${other}`];
      assert.deepEqual(sent.slice(1), lost ? released : [...released, ...taken]);
    }
  });

  test("an aborted call releases an id of the caller's only if the reply says that this call reserved it", async () => {
    const granted = [0, 9, 8, -1, 20000, "mine"];
    const mine = { id: "mine" };
    const [one, two] = [clause.acquire("a", NINE, mine), clause.window("w", NINE)];
    const calls: [(limiter: Limiter, signal: AbortSignal) => Promise<unknown>, unknown][] = [
      [(limiter, signal) => limiter.reserve("a", NINE, { ...mine, signal }), granted],
      [(limiter, signal) => limiter.reserve("a", NINE, { ...mine, block: 0, signal }), granted],
      [(limiter, signal) => limiter.all([one], { signal }), [...granted.slice(0, 5), 1, [granted]]],
      [(limiter, signal) => limiter.reserve([one, two], { signal }), [...granted.slice(0, 5), 1, [granted, granted]]],
    ];
    for (const [call, grant] of calls) {
      for (const outcome of ["granted", "lost", "DUPLICATE"]) {
        const { client, sent, answer, fail } = late();
        const controller = new AbortController();
        const given = call(new Limiter(client), controller.signal);
        await sleep(1);
        controller.abort("late");
        await assert.rejects(given, (reason) => reason === "late");
        if (outcome === "granted") answer(grant);
        else fail(outcome === "lost" ? connectionLost() : new ErrorReply("DUPLICATE the id is held"));
        await sleep(5);
        const releases = sent.filter((words) => words.startsWith("RL.RELEASE"));
        assert.deepEqual(releases, outcome === "granted" ? ["RL.RELEASE a mine"] : [], `${sent[0]}, ${outcome}`);
      }
    }
  });
});

const plain = new Redis(PORT, { lazyConnect: true });
before(() => plain.connect());
after(() => plain.disconnect());

const socket = { host: "127.0.0.1", port: PORT };
const KINDS: [string, () => Promise<Opened>][] = [
  ["node-redis", () => connected(createClient({ socket }))],
  ["node-redis over RESP3", () => connected(createClient({ socket, RESP: 3 }))],
  ["a pool of node-redis", () => connected(createClientPool({ socket }))],
  ["ioredis", () => connected(new Redis(PORT, { lazyConnect: true }))],
  ...CLUSTERS.map(([library, open]): [string, () => Promise<Opened>] => [
    `a cluster of ${library}`,
    () => open(CLUSTER_PORT),
  ]),
  [
    "sentinels of node-redis",
    async () => {
      const { client, close } = await connected(createClient({ socket }));
      const master = client as ReturnType<typeof createClient>;
      const sendCommand = (_: boolean, words: string[]) => master.sendCommand(words);
      return { client: { sendCommand, getSentinelNode: () => {} } as Client, close };
    },
  ],
  ["memory", async () => ({ client: new Recorder(), close: () => {} })],
];

for (const [kind, open] of KINDS) {
  suite(`several limits as one, by ${kind}`, () => {
    let opened: Opened;
    let limiter: Limiter;
    let tag = "";
    let runs = 0;
    before(async () => {
      opened = await open();
      const policies = { jobs: "WINDOW 2 0", day: "WINDOW 9 1d" };
      limiter = kind === "memory" ? new MemoryLimiter({ policies }) : new Limiter(opened.client, { deadline: 30_000 });
    });
    after(async () => {
      limiter.close();
      await opened.close();
    });
    beforeEach(async () => {
      await plain.flushall();
      // The cluster is not flushed, so each run has its own keys.
      tag = `{${kind}:${process.pid}:${Date.now()}:${(runs += 1)}}`;
    });

    /** Returns the tokens and dollars that are left, and the number of calls that run. */
    const left = async (): Promise<number[]> => [
      (await limiter.windowRo(`${tag}:tpm`, TOKENS)).remaining,
      (await limiter.windowRo(`${tag}:usd`, DOLLARS)).remaining,
      (await limiter.held(`${tag}:calls`)).length,
    ];

    test("the true cost of each limit is counted by name", async () => {
      await limiter.acquire(llmCall(tag), {}, async (job) => {
        assert.deepEqual(await left(), [600, 4100, 1]);
        // Longer than the maximum that was reserved: it is counted in full.
        job.set({ tokens: 1300 });
      });
      assert.deepEqual(await left(), [0, 4100, 0]);
      assert.equal((await limiter.windowRo(`${tag}:tpm`, { limit: 2000, period: "1h" })).remaining, 700);
    });

    test("all and reserve give the same handle", async () => {
      for (const ask of ["all", "reserve"] as const) {
        const { paid, reservation } = await limiter[ask](llmCall(tag, { tokens: 10, dollars: 10 }));
        assert.deepEqual(paid, ["requests", "tokens", "dollars", "calls"]);
        assert.equal(await reservation!.renew({ lease: "1min" }), true);
        assert.equal(await reservation!.apply({ tokens: 3, dollars: 0 }), true);
        // A second time there is nothing left to settle, and nothing is counted.
        assert.equal(await reservation!.apply({ tokens: 3 }), false);
        assert.equal(await reservation!.release(), false);
      }
      assert.deepEqual(await left(), [994, 5000, 0]);
    });

    if (["node-redis", "ioredis", "memory"].includes(kind)) {
      test("leases are renewed while the work runs", async () => {
        const clauses = [
          clause.acquire(`${tag}:tpm`, TOKENS, { quantity: 10, name: "tokens", lease: 3000 }),
          clause.acquire(`${tag}:calls`, semaphore(2), { name: "calls" }),
        ];
        await limiter.acquire(clauses, { block: "30s" }, async (job) => {
          await sleep(4500);
          assert.equal((await limiter.held(`${tag}:tpm`)).length, 1);
          job.set({ tokens: 4 });
        });
        assert.equal((await limiter.windowRo(`${tag}:tpm`, TOKENS)).remaining, 996);
        // Reservations without work are not renewed.
        const { reservation } = await limiter.all(clauses);
        await until(async () => (await limiter.held(`${tag}:tpm`)).length === 0);
        assert.equal(await reservation!.apply({ tokens: 4 }), false);
      });
    }

    // A sentinel client has no other connection for a call that waits.
    if (!kind.startsWith("sentinels")) {
      /** Waits until this many calls wait in the line of the running calls. */
      const untilInLine = (count: number): Promise<void> =>
        until(async () => (await limiter.info(`${tag}:calls`))?.waiting === count, `not ${count} calls wait`);

      test("callers who wait take turns, by weight, however many calls each has", async () => {
        for (const isSeveral of [false, true]) {
          await limiter.reserve(`${tag}:calls`, semaphore(1), { id: "first" });
          const order: string[] = [];
          const works: Promise<void>[] = [];
          for (const by of ["a", "a", "a", "b", "c", "c", "c"]) {
            const options = { block: "30s", by, weight: by === "c" ? 2 : undefined };
            const work = () => void order.push(by);
            const clauses = [clause.window(`${tag}:rpm`, TOKENS), clause.acquire(`${tag}:calls`, semaphore(1))];
            if (isSeveral) works.push(limiter.acquire(clauses, options, work));
            else works.push(limiter.acquire(`${tag}:calls`, semaphore(1), options, work));
            await untilInLine(works.length);
          }
          await limiter.release(`${tag}:calls`, "first");
          await Promise.all(works);
          assert.deepEqual(order, ["a", "b", "c", "c", "a", "c", "a"]);
        }
      });

      test("a call over several limits that is given up while it waits leaves nothing held", async () => {
        await limiter.reserve(`${tag}:calls`, semaphore(1), { id: "first" });
        const clauses = [clause.acquire(`${tag}:tpm`, TOKENS), clause.acquire(`${tag}:calls`, semaphore(1))];
        const controller = new AbortController();
        const options = { block: "30s", signal: controller.signal };
        const given = [
          limiter.all(clauses, options),
          limiter.reserve(clauses, options),
          limiter.acquire(clauses, options, () => assert.fail("entered")),
        ];
        await untilInLine(3);
        assert.deepEqual(await limiter.held(`${tag}:tpm`), [], "it holds nothing while it waits");
        controller.abort(new EvalError());
        for (const call of given) await assert.rejects(call, EvalError);
        await limiter.release(`${tag}:calls`, "first");
        await until(async () => (await left())[2] === 0 && (await limiter.info(`${tag}:calls`)) === null);
        assert.deepEqual(await limiter.held(`${tag}:tpm`), []);
      });
    }

    test("a closed key keeps all others away until its time is up", async () => {
      const keeps = ({ limited, remaining, retryAfterMs }: Reply) => {
        assert.deepEqual([limited, remaining], [1, 0]);
        assert.ok(7_190_000 < retryAfterMs! && retryAfterMs! <= 7_200_000, `${retryAfterMs}`);
      };
      const rate = Rate.per("5/s");
      const closings = [
        () => limiter.close(`${tag}:rate`, rate, "2h"),
        () => limiter.close(`${tag}:tpm`, TOKENS, 7_200_000),
        // The later end stays.
        () => limiter.close(`${tag}:rate`, rate, retryAfter("60")!),
        () => limiter.close(`${tag}:tpm`, TOKENS, "1s"),
      ];
      for (const close of closings) {
        const { allowed, remaining, resetAfterMs } = await close();
        assert.deepEqual([allowed, remaining], [true, 0]);
        assert.ok(7_190_000 < resetAfterMs && resetAfterMs <= 7_200_000, `${resetAfterMs}`);
      }
      keeps(await limiter.throttle(`${tag}:rate`, rate));
      keeps(await limiter.window(`${tag}:tpm`, TOKENS));
      keeps(await limiter.reserve(`${tag}:tpm`, TOKENS));
      keeps(await limiter.all([clause.window(`${tag}:rpm`, TOKENS), clause.window(`${tag}:tpm`, TOKENS)]));
    });

    if (kind.includes("cluster of node-redis")) {
      test("a transaction follows its slot", async () => {
        const { slots } = opened.client as unknown as { slots: { master: { address: string } }[] };
        const own = slots[slotOf(tag)]!;
        // As if the slot had moved from another node.
        slots[slotOf(tag)] = slots.find(({ master }) => master.address !== own.master.address)!;
        const charged = ["tpm", "usd"].map((name) => clause.window(`${tag}:${name}`, TOKENS, { quantity: 7 }));
        assert.equal((await limiter.all(charged, { force: true })).remaining, 993);
      });
    }

    if (kind.includes("cluster")) {
      test("keys of several slots are not charged as one step", async () => {
        const clauses = [..."abcdef"].map((name) => clause.window(`${tag.slice(1, -1)}:${name}`, TOKENS));
        await assert.rejects(limiter.all(clauses, { force: true }), /CROSSSLOT/);
        for (const { key } of clauses) assert.equal(await limiter.info(key), null);
      });
      return;
    }

    test("the limits of a hash count from the next call on, and come before policies", async () => {
      const define = (name: string, definition?: string) => {
        if (limiter instanceof MemoryLimiter) return limiter.define(`${tag}:limits`, name, definition);
        if (definition === undefined) return plain.hdel(`${tag}:limits`, name);
        return plain.hset(`${tag}:limits`, name, definition);
      };
      const options = { limits: `${tag}:limits` };
      const ask = () =>
        limiter.all([clause.window(`${tag}:rpm`, "@rpm"), clause.window(`${tag}:tpm`, TOKENS)], options);
      await assert.rejects(ask(), UnknownPolicy);
      await define("rpm", "WINDOW 1 1min");
      assert.deepEqual([(await ask()).allowed, (await ask()).denied], [true, [`${tag}:rpm`]]);
      await define("rpm", "WINDOW 3 1min");
      const { answers } = await ask();
      assert.deepEqual([answers[0]?.limit, answers[0]?.remaining, answers[1]?.remaining], [3, 1, 998]);
      assert.equal((await limiter.allRo([clause.window(`${tag}:rpm`, "@rpm")], options)).remaining, 1);
      await define("rpm", "WINDOW none");
      await assert.rejects(ask(), /the field rpm of the hash of limits is not a definition/);
      await define("rpm");
      await assert.rejects(ask(), UnknownPolicy);
    });

    test("a policy among the limits is applied or released", async () => {
      await plain.config("SET", "ratelimit.policies", "jobs WINDOW 2 0; day WINDOW 9 1d");
      try {
        const day = clause.acquire(`${tag}:day`, "@day", { quantity: 3 });
        await limiter.acquire([clause.acquire(`${tag}:jobs`, "@jobs"), day], {}, async () => {
          assert.equal((await limiter.held(`${tag}:jobs`)).length, 1);
        });
        assert.deepEqual(await limiter.held(`${tag}:jobs`), []);
        assert.equal((await limiter.windowRo(`${tag}:day`, "@day")).remaining, 6);
      } finally {
        await plain.config("SET", "ratelimit.policies", "");
      }
    });
  });
}
