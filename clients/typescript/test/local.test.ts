/** Leases with a clock and a fake server, and on real servers. RATELIMIT_SO is the module. */

import assert from "node:assert/strict";
import { describe as suite, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import type { Call } from "../src/command.js";
import {
  Closed,
  codeOf,
  DeadlinePassed,
  Limiter,
  UnexpectedReply,
  type LimiterOptions,
  type Reply,
  type Window,
} from "../src/index.js";
import type { LocalOptions } from "../src/local.js";
import { Local, type Timer } from "../src/local.js";
import { isErrorReply } from "../src/errors.js";
import type { Attempt } from "../src/transport.js";
import { Server, SINGLE, until } from "./servers.js";

/** A clock that a test sets. */
class Held implements Timer {
  now = 1_000_000;
  wallAhead = 0;
  #timers: { at: number; callback: () => void }[] = [];

  monotonic(): number {
    return this.now;
  }

  wall(): number {
    return this.now + this.wallAhead;
  }

  after(ms: number, callback: () => void): () => void {
    const timer = { at: this.now + ms, callback };
    this.#timers.push(timer);
    return () => (this.#timers = this.#timers.filter((each) => each !== timer));
  }

  /** Advances the clock, and calls the timers that are due. */
  async pass(ms: number): Promise<void> {
    const end = this.now + ms;
    for (;;) {
      const [first] = this.#timers.filter(({ at }) => at <= end).sort((one, other) => one.at - other.at);
      if (first === undefined) break;
      this.#timers = this.#timers.filter((each) => each !== first);
      this.now = Math.max(this.now, first.at);
      first.callback();
      await settled();
    }
    this.now = end;
  }
}

/** Lets pending promises settle. */
const settled = () => new Promise(setImmediate);

/** A server that grants RL.ACQUIRE from `free` units, unless `answer` returns a reply. It records all calls. */
class Fake {
  sent: string[] = [];
  free = 100;
  limit = 100;
  reservations = 1;
  answer: (words: string[]) => unknown = () => undefined;
  #before: string[] | undefined;
  /** The commands that were sent in one turn of the event loop. */
  pipelines: string[][] = [];

  async send(words: string[]): Promise<unknown> {
    this.sent.push(words.slice(2).join(" "));
    if (this.#before === undefined) {
      this.pipelines.push((this.#before = []));
      setImmediate(() => (this.#before = undefined));
    }
    this.#before.push(words[0] as string);
    const answer = await this.answer(words);
    if (answer instanceof Error) throw answer;
    return answer === undefined ? this.#decide(words) : answer;
  }

  #decide(words: string[]): unknown {
    const id = words[words.indexOf("ID") + 1];
    const quantity = Number(words[words[2]?.startsWith("@") ? 3 : 4]);
    if (words[0] !== "RL.ACQUIRE") return 1;
    const granted = words.includes("ATMOST") ? Math.min(quantity, this.free) : quantity <= this.free ? quantity : 0;
    this.free -= granted;
    const all = [this.limit, this.free, granted ? -1 : 30, 1000, granted ? id : null];
    return [granted ? 0 : 1, ...all, ...(words.includes("ATMOST") ? [granted, this.reservations] : [])];
  }
}

const WINDOW = { limit: 100, period: "1s" };
const AWAY: Reply = { allowed: true, reachable: false } as Reply;

function local(options: LocalOptions = {}, window: Window | `@${string}` = WINDOW) {
  const [clock, server] = [new Held(), new Fake()];
  const state = { isAway: false, isForgiving: false };
  const core = {
    ask: async <T>(call: Call<T>, attempt: Attempt = { over: false }) => {
      attempt.isSent = !state.isAway;
      return call.read(await server.send(call.words.map(String)));
    },
    isForgiven: (error: unknown) => state.isForgiving && !isErrorReply(error),
    answerWithoutServer: (_: unknown, __: unknown, ___: unknown, error: unknown) => {
      if (error instanceof UnexpectedReply) throw error;
      return { value: AWAY as never, fallback: undefined };
    },
  };
  return { clock, server, state, limit: new Local(core, "k", window, options, clock) };
}

/** The units of each RL.ACQUIRE and RL.APPLY, without ids. */
const units = (sent: string[]) => sent.map((words) => words.replace(/ ?[\w-]{16}-\d+ ?/, "#"));
const lost = () => new DeadlinePassed("no reply");
const refusal = (text: string) => Object.assign(new Error(text), { name: "ReplyError" });
const READONLY = "READONLY You can't write against a read only replica.";

suite("leases with a held clock", () => {
  test("a batch is spent without the server, and settled when nothing is left", async () => {
    const { limit, server } = local();
    const replies = await Promise.all(Array.from({ length: 20 }, () => limit.take()));
    assert.ok(replies.every(({ allowed }) => allowed));
    // 1 for the first take, then half a lease's demand for the takes that came meanwhile.
    const acquired = server.sent
      .filter((words) => words.includes("ATMOST"))
      .map((words) => Number(words.split(" ")[2]));
    assert.deepEqual(acquired.slice(0, 2), [1, 10]);
    await settled();
    const applied = server.sent.filter((words) => !words.endsWith(" MS")).map((words) => Number(words.split(" ")[1]));
    assert.deepEqual(applied, [1, 10]);
    assert.ok(limit.tryTake(), "the next was fetched ahead of need");
    assert.ok(
      server.pipelines.some((each) => each.join(" ").includes("RL.APPLY RL.ACQUIRE")),
      JSON.stringify(server.pipelines),
    );
    const held = await holding(5);
    held.limit.tryTake(5);
    await settled();
    assert.equal(units(held.server.sent)[0], "#5", "without the timer");
  });

  test("a cancelled take spends nothing, and its batch is left to others until it is given back", async () => {
    const { limit, server } = local();
    const controller = new AbortController();
    const given = limit.take(3, { signal: controller.signal });
    controller.abort("the user left");
    await assert.rejects(given, (reason) => reason === "the user left");
    await settled();
    assert.equal(limit.tryTake(2)?.allowed, true, "of the batch that came");
    await limit.close();
    assert.deepEqual(units(server.sent.slice(1)), ["#2"]);
    // If no others take, all of it is given back.
    const unused = local();
    const again = new AbortController();
    const alone = unused.limit.take(4, { signal: again.signal });
    again.abort();
    await assert.rejects(alone, (reason) => reason === again.signal.reason);
    await settled();
    await unused.limit.close();
    assert.deepEqual(units(unused.server.sent.slice(1)), ["#"]);
  });

  /** Creates a limit that holds this many units, requested when the clock was at 1,000,000. */
  async function holding(quantity: number, options: LocalOptions = {}, roundTripMs = 0) {
    const all = local(options);
    all.server.answer = () => void (all.clock.now += roundTripMs);
    assert.equal(all.limit.tryTake(quantity), undefined);
    await settled();
    all.server.answer = () => undefined;
    all.server.free = 0;
    all.server.sent = [];
    return all;
  }

  test("a take that can never be allowed is denied at once, and nothing is sent for it", async () => {
    for (const [window, leave, most] of [
      [{ limit: 5, period: "1h" }, 0, 5],
      [{ limit: 5n, period: "1h" }, 2, 3],
      [{ limit: 0, period: "1h" }, 0, 0],
    ] as const) {
      const { limit, server } = local({ leave }, window);
      server.limit = server.free = Number(window.limit);
      for (const reply of [limit.tryTake(most + 1), await limit.take(most + 1), await limit.take(most + 100)]) {
        const { allowed, limited, retryAfterMs, limit: most, remaining } = reply!;
        assert.deepEqual([allowed, limited, retryAfterMs, most, remaining], [false, 1, null, Number(window.limit), 0]);
      }
      assert.deepEqual(server.sent, []);
    }
    const { limit, server } = local({}, { limit: 5, period: "1h" });
    server.answer = () => [1, 5, 0, 3_600_000, 3_600_000, null, 0, 1];
    assert.equal((await limit.take()).retryAfterMs, 3_600_000);
    assert.equal(limit.tryTake(6)?.retryAfterMs, null, "also while a denial is remembered");
    assert.equal(server.sent.length, 1);
  });

  test("close tries three times, and throws the last error unless outages are forgiven", async () => {
    for (const isForgiving of [false, true]) {
      const { limit, server, clock, state } = await holding(5);
      state.isForgiving = isForgiving;
      limit.tryTake(3);
      server.answer = () => lost();
      const closed = limit.close().then(
        () => "closed",
        (error: unknown) => error,
      );
      for (let at = 0; at < 5; at += 1) {
        await settled();
        await clock.pass(100);
      }
      const outcome = await closed;
      assert.ok(isForgiving ? outcome === "closed" : outcome instanceof DeadlinePassed, String(outcome));
      assert.deepEqual(units(server.sent), ["#3", "#3", "#3"]);
    }
    const once = await holding(5);
    once.limit.tryTake(3);
    once.server.answer = () => (once.server.sent.length === 1 ? lost() : undefined);
    const closed = once.limit.close();
    await settled();
    await once.clock.pass(100);
    await closed;
    assert.deepEqual(units(once.server.sent), ["#3", "#3"]);
  });

  test("close throws what the server refuses to settle, whatever unreachable says", async () => {
    const { limit, server, state } = await holding(5);
    state.isForgiving = true;
    limit.tryTake(3);
    server.answer = () => refusal(READONLY);
    await assert.rejects(limit.close(), (error) => codeOf(error) === "READONLY");
    assert.equal(server.sent.length, 1);
  });

  test("without Redis the batch is spent, and then unreachable decides", async () => {
    const { limit, server, state, clock } = await holding(5);
    state.isAway = true;
    server.answer = () => lost();
    for (let at = 0; at < 5; at += 1) assert.ok(limit.tryTake()?.reachable);
    assert.equal(limit.tryTake(), undefined);
    for (let at = 0; at < 50; at += 1) assert.equal(await limit.take(), AWAY);
    state.isAway = false;
    server.answer = () => undefined;
    server.free = 100;
    server.sent = [];
    assert.ok((await limit.take()).reachable);
    await clock.pass(200);
    const released = server.sent.filter((words) => units([words])[0] === "#");
    assert.ok(
      released.every((id) => server.sent.some((words) => words.includes(`ID ${id} `))),
      "what was not sent",
    );
    assert.ok(units(server.sent).includes("#5"));
  });

  test("a reply that cannot be read is the take's error, and what it may have reserved is released", async () => {
    for (const reply of [null, [], [0, 100, 99, -1, 0, "id", null, 1]]) {
      const { limit, server } = local();
      server.answer = () => reply;
      await assert.rejects(limit.take(), UnexpectedReply, JSON.stringify(reply));
      server.answer = () => undefined;
      assert.ok((await limit.take()).allowed, "the next take asks again");
      assert.deepEqual(units(server.sent.slice(1, 2)), ["#"]);
      await limit.close();
    }
  });

  test("close settles the batch, and takes nothing afterwards", async () => {
    const { limit, server } = await holding(5);
    limit.tryTake(2);
    await limit.close();
    assert.deepEqual(units(server.sent), ["#2"]);
    assert.throws(() => limit.tryTake(), Closed);
    await assert.rejects(limit.take(), Closed);
    await limit.close();
    const busy = local();
    const taken = busy.limit.take();
    const closed = busy.limit.close();
    assert.ok((await taken).allowed, "what was asked for before is answered");
    await closed;
    assert.equal(busy.server.sent.length, 2);
  });

  test("wrong limits and options are refused", () => {
    for (const [window, options, error] of [
      [{ limit: 5, period: 0 }, {}, /^RangeError: local takes a window with a period; 0 is a semaphore/],
      [{ burst: 1, count: 1, period: "1s" } as never, {}, /^TypeError: local takes a window /],
      [WINDOW, { lease: "soon" }, /^RangeError: lease must be milliseconds/],
      [WINDOW, { quantity: 3 } as never, /^TypeError: local has no option "quantity"/],
      [WINDOW, { leave: 1.5 }, /^RangeError: leave must be a whole number/],
    ] as [Window, LocalOptions, RegExp][]) {
      assert.throws(() => local(options, window), error, JSON.stringify(options));
    }
    const { limit } = local();
    for (const quantity of [0, -1, 1.5, NaN])
      assert.throws(() => limit.tryTake(quantity), /^RangeError: quantity must be a whole number and at least 1/);
    for (const quantity of ["3", 3n, null]) {
      assert.throws(() => limit.tryTake(quantity as never), /^TypeError: quantity must be a number, not/);
    }
  });
});

for (const [kind, open] of SINGLE) {
  suite(`leases on a server by ${kind}`, () => {
    async function on(options: LimiterOptions, body: (server: Server, limiter: Limiter) => Promise<void>) {
      const server = await Server.start();
      const opened = open(server.port);
      const limiter = new Limiter(opened.client, options);
      try {
        await body(server, limiter);
      } finally {
        limiter.close();
        await opened.close();
        await server.end();
      }
    }

    test("two processes never spend more than the limit, and give back what they do not spend", () =>
      on({ deadline: 30_000 }, async (_, limiter) => {
        const window = { limit: 50, period: "1h" };
        const lease = "10s";
        const [one, other] = [limiter.local("k", window, { lease }), limiter.local("k", window, { lease })];
        const replies = await Promise.all(Array.from({ length: 40 }, () => [one.take(), other.take()]).flat());
        // One may be denied while the other holds units that it does not spend in the end.
        const allowed = replies.filter(({ allowed }) => allowed).length;
        assert.ok(allowed > 25 && allowed <= 50, `${allowed} were allowed`);
        const denied = replies.find(({ allowed }) => !allowed);
        assert.ok(denied!.retryAfterMs! > 0 && denied!.limit === 50);
        await Promise.all([one.close(), other.close()]);
        assert.deepEqual(await limiter.held("k"), []);
        assert.equal((await limiter.info("k"))?.events, allowed);
      }));

    test("a decision takes a small part of a round trip", () =>
      on({ deadline: 30_000 }, async (_, limiter) => {
        const window = { limit: 1e9, period: "1h" };
        const local = limiter.local("k", window, { lease: "1h" });
        await local.take(1e8);
        const [decisions, roundTrips]: [number[], number[]] = [[], []];
        for (let round = 0; round < 1000; round += 1) {
          const began = performance.now();
          // A single one is too short to be measured.
          for (let each = 0; each < 10; each += 1) local.tryTake();
          const decided = performance.now();
          await limiter.window("w", window);
          decisions.push((decided - began) / 10);
          roundTrips.push(performance.now() - decided);
        }
        const [decisionMs, roundTripMs] = [decisions, roundTrips].map((times) => times.sort((a, b) => a - b)[500]!);
        console.log(`a decision takes ${decisionMs! * 1000} us, a round trip ${roundTripMs! * 1000} us`);
        assert.ok(decisionMs! * 10 < roundTripMs!);
        await local.close();
      }));

    test("a policy, a fixed window and LEAVE", () =>
      on({ deadline: 30_000 }, async (server, limiter) => {
        await server.admin.config("SET", "ratelimit.policies", "day WINDOW 3 1d FIXED; jobs WINDOW 2 0");
        const day = limiter.local("d", "@day", { lease: "10s", leave: 1 });
        const allowed = [];
        for (let at = 0; at < 3; at += 1) allowed.push((await day.take()).allowed);
        assert.deepEqual(allowed, [true, true, false]);
        await day.close();
        const jobs = limiter.local("j", "@jobs", { lease: "10s" });
        await jobs.take();
        await until(async () => (await limiter.held("j")).length === 0);
        await assert.rejects(jobs.take(), /semaphore/);
        assert.deepEqual(await limiter.held("j"), []);
        const none = limiter.local("n", "@none");
        await assert.rejects(none.take(), /no policy has the name none/);
      }));

    test("while the server is killed the batch is spent, then unreachable decides, and what was spent is counted later", () =>
      on({ unreachable: "allow", deadline: 10_000 }, async (server, limiter) => {
        const limit = limiter.local("k", { limit: 50, period: "1h" }, { lease: "30s" });
        await limit.take();
        limit.tryTake(10);
        while (limit.tryTake(4) === undefined) await sleep(5);
        await server.kill();
        assert.ok(limit.tryTake(4)?.reachable);
        assert.equal((await limit.take(10)).reachable, false);
        await server.start();
        await until(async () => (await limit.take(5)).reachable);
        await limit.close();
        // The server has lost the reservation, so what was spent of it is counted by FORCE.
        assert.ok((await limiter.info("k"))!.events! >= 8);
      }));

    test("a server that hangs: takes are answered at the deadline, and no reservation is left", () =>
      on({ unreachable: "deny", deadline: 2000 }, async (server, limiter) => {
        const limit = limiter.local("k", { limit: 50, period: "1h" });
        await limit.take();
        await sleep(200);
        server.signal("SIGSTOP");
        try {
          const began = performance.now();
          assert.deepEqual([(await limit.take()).reachable, (await limit.take()).allowed], [false, false]);
          assert.ok(performance.now() - began < 15_000);
        } finally {
          server.signal("SIGCONT");
        }
        await until(async () => (await limit.take()).reachable);
        await until(async () => (await limiter.held("k")).length === 0);
        await limit.close();
      }));
  });
}
