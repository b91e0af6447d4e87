/** The words of calls and the results of replies, without a server. */

import assert from "node:assert/strict";
import { subscribe } from "node:diagnostics_channel";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { describe as suite, test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import {
  createClientPool,
  createCluster,
  createSentinel,
  ErrorReply,
  SocketClosedUnexpectedlyError,
  TimeoutError,
} from "redis";

import {
  Busy,
  clause,
  Closed,
  codeOf,
  Denied,
  headers,
  isUnreachable,
  Lapsed,
  Limiter,
  MemoryLimiter,
  Rate,
  semaphore,
  Duplicate,
  MissingModule,
  UnexpectedReply,
  UnknownPolicy,
  Window,
  type CallOptions,
  type Fallback,
  type Reply,
  type Reservation,
  type ThrottleOptions,
} from "../src/index.js";
import { FAILURES } from "../src/breaker.js";
import { Connections } from "../src/connections.js";
import { CASES, SPOKEN, inCamelCase, limit, means, Recorder, refused, run, errorOf } from "./fixtures.js";
import { freePort } from "./servers.js";

class IoredisRecorder extends Recorder {
  call(...words: unknown[]): Promise<unknown> {
    return this.sendCommand(words);
  }
}

const ALLOWED = [0, 5, 4, -1, 1000];
const RESERVED = [0, 3, 2, -1, 20000, "job"];
const REFUSED = [2, 3, 0, 700, 20000, null];

suite("calls", () => {
  for (const Client of [Recorder, IoredisRecorder]) {
    test(`each call sends the words of its case through a ${Client.name} and reads the reply`, async () => {
      for (const given of CASES) {
        const recorder = new Client(given.reply);
        const found = await run(new Limiter(recorder), given);
        assert.deepEqual(recorder.sent, [given.words]);
        means(found, inCamelCase(given.means), given.words);
      }
    });
  }

  test("a reply that cannot be read is an error", async () => {
    for (const given of CASES.filter(({ call }) => call !== "info")) {
      for (const reply of [{}, "", [{}]]) {
        await assert.rejects(run(new Limiter(new Recorder(reply)), given), UnexpectedReply, given.words);
      }
    }
    for (const reply of [
      ["kind", "window", "events", null],
      ["oldest", {}],
    ]) {
      await assert.rejects(new Limiter(new Recorder(reply)).info("k"), UnexpectedReply);
    }
    // A cancelled call gives back as if such a reply had been lost.
    const [controller, recorder] = [new AbortController(), new Recorder({}, 1)];
    const given = new Limiter(recorder).reserve("k", "@day", { signal: controller.signal });
    controller.abort("late");
    await assert.rejects(given, (reason) => reason === "late");
    await sleep(1);
    assert.deepEqual(recorder.sent, ["RL.ACQUIRE k @day 1 MS", `RL.RELEASE k ${recorder.ids[0]}`]);
  });

  test("large numbers are bigints", async () => {
    const recorder = new Recorder(ALLOWED);
    await new Limiter(recorder).throttle("k", { burst: 2n ** 62n, count: 1, period: "1s" }, { quantity: -(2n ** 62n) });
    assert.deepEqual(recorder.sent, ["RL.THROTTLE k 4611686018427387904 1 1s -4611686018427387904 MS"]);
  });

  const everyCall = (limiter: Limiter, options: CallOptions = {}): (() => Promise<unknown>)[] => [
    () => limiter.throttle("k", { burst: 1, count: 1, period: "1s" }, options),
    () => limiter.throttleRo("k", "@free", options),
    () => limiter.window("k", { limit: 1, period: "1s" }, options),
    () => limiter.windowRo("k", "@day", options),
    () => limiter.reserve("k", "@day", options),
    () => limiter.acquire("k", "@day", options, () => assert.fail("entered")),
    () => limiter.acquireRo("k", "@day", options),
    () => limiter.apply("k", "id", undefined, options),
    () => limiter.release("k", "id", "other", options),
    () => limiter.renew("k", "id", options),
    () => limiter.held("k", options),
    () => limiter.all([clause.window("k", "@day")], options),
    () => limiter.allRo([clause.window("k", "@day")], options),
    () => limiter.reset("k", options),
    () => limiter.info("k", options),
    () => limiter.top(options),
    () => limiter.policies(options),
    () => limiter.local("k", { limit: 1, period: "1s" }).take(1, options),
  ];

  test("a call whose signal has fired sends nothing, and rejects with the signal's reason", async () => {
    const recorder = new Recorder();
    const calls = everyCall(new Limiter(recorder, { unreachable: "allow" }), { signal: AbortSignal.abort("left") });
    for (const call of calls) await assert.rejects(call(), (reason) => reason === "left", call.toString());
    assert.deepEqual(recorder.sent, []);
  });

  test("a call of a limiter that is closed sends nothing, and throws Closed", async () => {
    const recorder = new Recorder();
    for (const limiter of [new Limiter(recorder, { unreachable: "allow" }), new MemoryLimiter()]) {
      limiter.close();
      for (const call of everyCall(limiter)) await assert.rejects(call(), Closed, call.toString());
      await assert.rejects(limiter.throttle("k", { burst: 1, count: 1, period: "1s" }), Closed);
      await assert.rejects(limiter.window("k", { limit: 1, period: "1s" }), Closed);
    }
    assert.deepEqual(recorder.sent, []);
  });

  test("the error of a call that is not answered names the server", async (context) => {
    context.mock.method(performance, "now", () => 0);
    const silence = { name: "DeadlinePassed", message: "the server did not answer within 5 ms" };
    const open = { message: `the server does not answer: ${silence.message}` };
    for (const deadline of [5, "5ms"]) {
      const limiter = new Limiter({ sendCommand: () => new Promise(() => {}) }, { deadline });
      for (let call = 1; call <= FAILURES; call += 1) await assert.rejects(limiter.throttle("k", "@free"), silence);
      // One call probes, and the others are answered at once.
      const probing = assert.rejects(limiter.throttle("k", "@free"), silence);
      await assert.rejects(limiter.throttle("k", "@free"), open);
      await probing;
      limiter.close();
    }
  });

  test("a call that is given up while it probes is not sent", async () => {
    let answer = (_: unknown) => {};
    const recorder = new Recorder(...Array.from({ length: FAILURES }, refused), new Promise((pong) => (answer = pong)));
    const limiter = new Limiter(recorder, { deadline: 20 });
    for (let call = 1; call <= FAILURES + 1; call += 1) await assert.rejects(limiter.throttle("k", "@free"));
    answer("PONG");
    await sleep(1);
    assert.deepEqual(recorder.sent.slice(FAILURES), ["PING"]);
  });

  test("a call ends after a second unless the limiter has a deadline", async () => {
    const limiter = new Limiter({ sendCommand: () => new Promise(() => {}) });
    await assert.rejects(limiter.throttle("k", "@free"), { message: "the server did not answer within 1000 ms" });
  });

  /** Returns a function that makes a call and then advances the clock, as if the program were busy for that long. */
  function busyCalls(context: TestContext, limiter: Limiter): (busyMs: number) => Promise<Reply> {
    let now = 0;
    context.after(() => limiter.close());
    context.mock.method(performance, "now", () => now);
    return (busyMs) => {
      const call = limiter.throttle("k", "@free");
      now += busyMs;
      return call;
    };
  }

  test("a call of a busy program waits longer for its reply", async (context) => {
    let replyMs = 30;
    const sendCommand = () => sleep(replyMs).then(() => ALLOWED);
    const busyCall = busyCalls(context, new Limiter({ sendCommand }, { deadline: 20, unreachable: "allow" }));
    assert.ok((await busyCall(60)).reachable);
    // The timers of a machine that stands still are as late as those of a busy program.
    replyMs = 1000;
    assert.ok(!(await busyCall(20)).reachable);
  });

  test("a call of a busy program that gets no reply is Busy and no failure, until the server is silent for long", async (context) => {
    const [silent, deadline] = [{ sendCommand: () => new Promise(() => {}) }, 20];
    const busyCall = busyCalls(context, new Limiter(silent, { deadline }));
    const busy = { name: "Busy", message: "this program was busy, and read no reply of the server within 80 ms" };
    const silence = { name: "DeadlinePassed" };
    for (let call = 1; call < FAILURES; call += 1) await assert.rejects(busyCall(deadline + 30), silence);
    // Ten deadlines, and how late the timer was.
    for (let ms = 100 + 80; ms < 10 * 80; ms += 80) await assert.rejects(busyCall(deadline + 60), busy);
    await assert.rejects(busyCall(deadline + 60), silence);
    void busyCall(0).catch(() => {});
    await assert.rejects(busyCall(0), { message: /^the server does not answer: / });
    // A part of a long deadline was enough.
    const patient = busyCalls(context, new Limiter(silent, { deadline: 400 }));
    await assert.rejects(patient(445), silence);
    await assert.rejects(patient(460), { name: "Busy" });
  });

  test("a silent server is noticed although each call is aborted before its deadline", async (context) => {
    context.mock.method(performance, "now", () => 0);
    const [deadline, turn] = [20, () => new Promise(setImmediate)];
    // The types of Node 18 do not have it.
    const active = process as unknown as { getActiveResourcesInfo(): string[] };
    for (const answers of [false, true]) {
      const sendCommand = () => (answers ? turn().then(() => ALLOWED) : new Promise(() => {}));
      const limiter = new Limiter({ sendCommand }, { deadline });
      for (let call = 1; call <= FAILURES; call += 1) {
        const timers = () => active.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
        const [controller, timersBefore] = [new AbortController(), timers()];
        const given = limiter.throttle("k", "@free", { signal: controller.signal, force: true });
        controller.abort("late");
        await assert.rejects(given, (reason) => reason === "late");
        assert.ok(timers() <= timersBefore, "no timer keeps the program running");
        await sleep(2 * deadline);
        // If it was late, the timer of the call goes on for a moment.
        await sleep(5);
      }
      const probing = limiter.throttle("k", "@free").catch(() => {});
      const next = limiter.throttle("k", "@free");
      if (answers) assert.ok((await next).allowed);
      else
        await assert.rejects(next, { message: /^the server does not answer: the server did not answer within 20 ms/ });
      await probing;
      limiter.close();
    }
  });

  test("a signal is no outage: its reason is thrown whatever `unreachable` says", async () => {
    const silent = { sendCommand: () => new Promise(() => {}) };
    for (const unreachable of ["raise", "allow", "deny"] as const) {
      const limiter = new Limiter(silent, { unreachable });
      // An AbortError and a TimeoutError are also errors of the client libraries.
      const controller = new AbortController();
      const given = limiter.window("k", "@day", { signal: controller.signal });
      controller.abort();
      await assert.rejects(given, (reason) => reason === controller.signal.reason);
      const late = AbortSignal.timeout(5);
      const all = limiter.all([clause.window("k", "@day")], { signal: late });
      // The timer of such a signal keeps no program running.
      const [, reason] = await Promise.all([sleep(50), all.catch((error: unknown) => error)]);
      assert.equal(reason, late.reason);
    }
  });

  test("work that had not begun when the signal fired does not begin, and gives its reservation back", async () => {
    const controller = new AbortController();
    const recorder = new Recorder(RESERVED, 1);
    const send = recorder.sendCommand.bind(recorder);
    recorder.sendCommand = async (words) => {
      const reply = await send(words);
      if (recorder.sent.length === 1) queueMicrotask(() => queueMicrotask(() => controller.abort("late")));
      return reply;
    };
    const given = new Limiter(recorder).acquire("k", "@day", { signal: controller.signal, id: "job" }, () =>
      assert.fail("entered"),
    );
    await assert.rejects(given, (reason) => reason === "late");
    assert.deepEqual(recorder.sent, ["RL.ACQUIRE k @day 1 ID job MS", "RL.RELEASE k job"]);
  });

  test("a cancelled call gives back what it took, but not what was used or booked", async () => {
    const rate = { burst: 9, count: 1, period: "1s" };
    const cases: [ThrottleOptions, unknown[], string[]][] = [
      [{ quantity: 2 }, ALLOWED, ["RL.THROTTLE k 9 1 1s -2"]],
      [{ quantity: 2, force: true }, ALLOWED, []],
      // Bookings that were made meanwhile do not move, so the next call would get the same turn as one of them.
      [{ ahead: "1min" }, [...ALLOWED.slice(0, 5), 100], []],
    ];
    for (const [options, reply, undone] of cases) {
      const [controller, recorder] = [new AbortController(), new Recorder(reply, ALLOWED)];
      const given = new Limiter(recorder).throttle("k", rate, { ...options, signal: controller.signal });
      controller.abort("late");
      await assert.rejects(given, (reason) => reason === "late");
      await sleep(1);
      assert.deepEqual(recorder.sent.slice(1), undone, recorder.sent[0]);
    }
  });

  test("groups and limits in constants need no annotations", async () => {
    const [rpm, plan] = [clause.throttle("{u}rpm", Rate.per("60/min")), clause.window("{u}plan", Window.per("5/min"))];
    const group = [plan, clause.acquire("{u}credits", semaphore(5))];
    const clauses = [rpm, group];
    const flat = [rpm, ...group];
    for (const given of [clauses, flat]) {
      await new Limiter(new Recorder([...ALLOWED, 1, [ALLOWED, ALLOWED, RESERVED]])).all(given);
    }
  });

  test("a limit of the wrong kind is a TypeError before anything is sent", async () => {
    const recorder = new Recorder();
    const limiter = new Limiter(recorder);
    const rate = { burst: 4, count: 1, period: "60s" };
    const window = { limit: 3, period: "60s" };
    const noRates = [undefined, null, {}, 5, [], { burst: 1 }, { ...rate, limit: 5 }, { ...rate, tz: "UTC" }, window];
    const noWindows = [undefined, null, {}, 5, { limit: 1 }, { ...window, typo: 1 }, { ...window, fixed: "yes" }, rate];
    const wrong: (() => unknown)[] = [
      ...noRates.flatMap((limit) =>
        (["throttle", "throttleRo"] as const).map((method) => () => limiter[method]("k", limit as never)),
      ),
      ...noWindows.flatMap((limit) =>
        (["window", "windowRo", "reserve", "acquireRo"] as const).map(
          (method) => () => limiter[method]("k", limit as never),
        ),
      ),
      () => limiter.acquire("k", rate as never, {}, () => assert.fail("entered")),
      () => clause.throttle("k", window as never),
      () => clause.window("k", rate as never),
      () => clause.acquire("k", rate as never),
      () => limiter.all([window as never]),
      () => limiter.all(clause.window("k", window) as never),
    ];
    const kinds = /takes a (rate|window) \{|takes (clauses|an array of clauses)|^fixed must be true or false/;
    for (const ask of wrong) {
      await assert.rejects(
        async () => ask(),
        (error) => error instanceof TypeError && kinds.test(error.message),
        `${ask}`,
      );
    }
    await assert.rejects(limiter.throttle("k", window as never), /a rate .*, not the window \{"limit":3/);
    await assert.rejects(limiter.window("k", rate as never), /a window .*, not the rate \{"burst":4/);
    for (const ask of [
      () => limiter.window("k", semaphore(1)),
      () => limiter.windowRo("k", semaphore(1)),
      () => limiter.close("k", semaphore(1), "30s"),
      () => clause.window("k", semaphore(1)),
    ]) {
      await assert.rejects(async () => ask(), /^RangeError: \S+ takes a .*semaphore/, `${ask}`);
    }
    assert.deepEqual(recorder.sent, []);
  });

  test("options that do not exist, and wrong values, are refused before anything is sent", async () => {
    const recorder = new Recorder();
    const limiter = new Limiter(recorder);
    const work = () => assert.fail("entered");
    const unknown: [string, string, (options: never) => unknown][] = [
      ["throttle", "countDenied", (options) => limiter.throttle("k", "@free", options)],
      ["throttleRo", "atmost", (options) => limiter.throttleRo("k", "@free", options)],
      ["window", "ahead", (options) => limiter.window("k", "@day", options)],
      ["reserve", "ban", (options) => limiter.reserve("k", "@day", options)],
      ["reserve", "settle", (options) => limiter.reserve("k", "@day", options)],
      ["clause.acquire", "ban", (options) => clause.acquire("k", "@day", options)],
      ["renew", "leases", (options) => limiter.renew("k", "id", options)],
      ["top", "limit", (options) => limiter.top(options)],
      ["Limiter", "onUnreachable", (options) => new Limiter(recorder, options)],
      ["headers", "limit", (options) => headers({ reachable: true } as never, options)],
      ["Rate.per", "burst", (options) => Rate.per("30/min", options)],
      ["Window.per", "limit", (options) => Window.per("30/min", options)],
    ];
    const deadline = (value: unknown) => () => new Limiter(recorder, { deadline: value as number });
    const unreachable = (value: unknown) => () => new Limiter(recorder, { unreachable: value as "allow" });
    const settle = (value: unknown, window: Window | "@day" = "@day") => {
      return () => limiter.acquire("k", window, { settle: value as "apply" }, work);
    };
    const choices = `unreachable must be "raise", "allow", "deny" or an object with a limiter's methods, not`;
    const made = "clause.throttle, clause.window and clause.acquire";
    const client = "the client must be one of node-redis or ioredis, not";
    const wrong: [typeof Error, string, () => unknown][] = [
      ...unknown.map(([owner, name, ask]): (typeof wrong)[0] => {
        return [TypeError, `${owner} has no option "${name}"`, () => ask({ [name]: 5 } as never)];
      }),
      [TypeError, "the options of throttle must be an object, not 3", () => limiter.throttle("k", "@free", 3 as never)],
      [TypeError, "quantity must be a number", () => limiter.throttle("k", "@free", { quantity: "3" } as never)],
      [TypeError, "the key must be a string or a Buffer, not 5", () => limiter.throttle(5 as never, "@free")],
      [
        TypeError,
        `all takes clauses made by ${made}, not []`,
        () => limiter.all([[clause.window("k", "@day"), [] as never]]),
      ],
      [TypeError, "the id must be a string or a Buffer, not 5", () => limiter.reserve("k", "@day", { id: 5 } as never)],
      [TypeError, "the id must be a string or a Buffer, not undefined", () => limiter.apply("k", undefined as never)],
      [TypeError, "signal must be an AbortSignal, not {}", () => limiter.window("k", "@day", { signal: {} as never })],
      [TypeError, 'settle must be "apply" or "release", not 5', settle(5)],
      [RangeError, 'settle must be "apply" or "release", not "drop"', settle("drop")],
      [RangeError, 'settle must be "release" for a semaphore, not "apply"', settle("apply", semaphore(1))],
      [TypeError, `${choices} {}`, unreachable({})],
      [RangeError, `${choices} "alow"`, unreachable("alow")],
      ...["250", "1mo", {}].map((value): (typeof wrong)[0] => {
        return [TypeError, "deadline must be a number of milliseconds, not", deadline(value)];
      }),
      ...[0, -1, 0.25, NaN, Infinity, "0ms", "25d"].map((value): (typeof wrong)[0] => {
        return [RangeError, "deadline must be from 1 to", deadline(value)];
      }),
      [TypeError, `${client} {}`, () => new Limiter({} as never)],
      [TypeError, `${client} "redis://a": make a client of the URL, by`, () => new Limiter("redis://a" as never)],
      [TypeError, `${client} undefined`, () => new Limiter(undefined as never)],
      ...[1.5, NaN, 2 ** 60].map((quantity): (typeof wrong)[0] => {
        return [RangeError, "quantity must be a whole number", () => limiter.throttle("k", "@free", { quantity })];
      }),
      [RangeError, "block must be a whole number", () => limiter.throttle("k", "@free", { block: 0.5 })],
      ...[0, "0s", "1mo", "soon", "", "-5s"].map((ban): (typeof wrong)[0] => {
        return [RangeError, "ban must be", () => limiter.window("k", "@day", { ban })];
      }),
      ...["1 hours", "1 h", "hour", "5 per minute", "", "-1s", "1.5s"].map((period): (typeof wrong)[0] => {
        const ask = () => limiter.window("k", { limit: 5, period });
        return [RangeError, 'period must be a string such as "10s"', ask];
      }),
      ...[-1, 1.5, NaN, null, {}].map((period): (typeof wrong)[0] => {
        const ask = () => limiter.window("k", { limit: 5, period: period as never });
        return [typeof period === "number" ? RangeError : TypeError, 'period must be a string such as "10s"', ask];
      }),
      // Only here: the clients for Python and Rust take a number alone as seconds.
      ...(
        [
          [60, "60"],
          [60n, "60n"],
          ["60", '"60"'],
        ] as const
      ).flatMap(([given, shown]): typeof wrong => {
        const [period, says] = [given as never, `period must have a unit: write "60s", not ${shown}`];
        return [
          [RangeError, says, () => limiter.window("k", { limit: 5, period })],
          [RangeError, says, () => limiter.throttle("k", { burst: 4, count: 5, period })],
        ];
      }),
      ...(
        [
          [() => limiter.window("k", "5/min" as never), 'Window.per("5/min")'],
          [() => limiter.reserve("k", " 5 per minute" as never), 'Window.per(" 5 per minute")'],
          [() => limiter.throttle("k", "30/min" as never), 'Rate.per("30/min")'],
          [() => clause.throttle("k", "30/min" as never), 'Rate.per("30/min")'],
        ] as const
      ).map(([ask, maker]): (typeof wrong)[0] => [RangeError, `a limit in words must be made by ${maker}`, ask]),
    ];
    for (const [kind, says, ask] of wrong)
      await assert.rejects(async () => ask(), errorOf(kind, says), `${says} ${ask}`);
    assert.deepEqual(recorder.sent, []);
  });

  test("a limit can be written in words", () => {
    for (const { say, options, rate, window, error } of SPOKEN) {
      const given = inCamelCase(options ?? {}) as object;
      if (error) assert.throws(() => Rate.per(say, given), errorOf(RangeError, ""), say);
      if (rate) assert.deepEqual(Rate.per(say, given), limit({ rate }), say);
      if (window) assert.deepEqual(Window.per(say, given), limit({ window }), say);
    }
    assert.throws(() => Rate.per(30 as never), errorOf(TypeError, "a limit is written as"));
    for (const [make, text] of [
      [() => Rate.per("30/m"), /^a limit is written as "30\/min", .*, not "30\/m": m is min or mo$/],
      [() => Rate.per("30 per 2 years"), /^a rate has no period in months or years/],
      [() => Window.per("30/constructor"), /: the unit is one of ms, s, min, h, d, w, mo, y$/],
    ] as const) {
      assert.throws(make, (error: Error) => error instanceof RangeError && text.test(error.message), `${text}`);
    }
  });

  test("info reads the replies of RESP2 and RESP3", async () => {
    const fields = { kind: "window", events: 3, oldest: -1, newest: 5, ban: 0, waiting: 1, ttl: 900 };
    const pairs = Object.entries(fields);
    const meaning = { kind: "window", events: 3, fullInMs: null, oldestMs: null, newestMs: 5, waiting: 1, ttlMs: 900 };
    for (const reply of [pairs.flat(), new Map(pairs), fields]) {
      means(await new Limiter(new Recorder(reply)).info("k"), meaning, "info");
    }
    for (const nothing of [[], new Map(), {}, null])
      assert.equal(await new Limiter(new Recorder(nothing)).info("k"), null);
  });

  test("the package has the pages that its README links", () => {
    const { files } = createRequire(import.meta.url)("../../package.json");
    const readme = readFileSync(new URL("../../README.md", import.meta.url), "utf8");
    const pages = [...readme.matchAll(/\]\((?!\.\.)([^)#]+\.md)/g)].map(([, page]) => page);
    assert.ok(pages.length > 0);
    for (const page of pages) assert.ok(files.includes(page), page);
  });
});

suite("settling", () => {
  const fail = () => {
    throw new EvalError("work");
  };
  const lost = refused();
  const busy = new Error("max number of clients reached");
  const ofSemaphore = new ErrorReply("ERR the reservation is a semaphore's and must be given back with RL.RELEASE");
  const [applied, released] = ["RL.APPLY k job", "RL.RELEASE k job"];
  const [place, policy] = [{ window: semaphore(3) }, { window: "@jobs" as const }];
  const [allow, deny] = [{ unreachable: "allow" as const }, { unreachable: "deny" as const }];

  interface Settling {
    work?: (job: Reservation) => unknown;
    window?: Window | `@${string}`;
    unreachable?: "allow" | "deny";
    settle?: "apply" | "release";
    quantity?: number;
  }
  /** The replies, what is asked, and the commands after RL.ACQUIRE with the outcome. */
  const cases: [unknown[], Settling, unknown[]][] = [
    [[RESERVED, 1], {}, [applied, "result"]],
    [[RESERVED, 1], { window: "@day" }, [applied, "result"]],
    // An error of releasing, or a lease that ended, does not hide the error of the work.
    [[RESERVED, 1], { work: fail }, [released, "EvalError"]],
    [[RESERVED, lost], { work: fail }, [released, "EvalError"]],
    [[RESERVED, 0], { work: fail }, [released, "EvalError"]],
    [[RESERVED, 0], { work: fail, ...place }, [released, "EvalError"]],
    // A semaphore is released on success as well, also if only its policy or the server says so.
    [[RESERVED, 1], place, [released, "result"]],
    [[RESERVED, 1], { window: { limit: 3, period: "0" } }, [released, "result"]],
    [[RESERVED, 1], { settle: "release", ...policy }, [released, "result"]],
    [[RESERVED, ofSemaphore, 1], policy, [applied, released, "result"]],
    // Other errors release nothing, whatever their text is.
    [[RESERVED, new ErrorReply("WRONGTYPE the key holds no semaphore")], policy, [applied, "Error"]],
    [[RESERVED, ofSemaphore], { settle: "apply", ...policy }, [applied, "Error"]],
    [[RESERVED, 1], { work: (job) => job.set(2) }, ["RL.APPLY k job 2", undefined]],
    // What the work has settled is not settled again.
    [[RESERVED, 1], { work: (job) => job.apply(37) }, ["RL.APPLY k job 37", true]],
    [[RESERVED, 0], { work: (job) => job.release() }, [released, false]],
    [[RESERVED, 1, 1], { work: (job) => job.renew({ lease: 9000 }) }, ["RL.RENEW k job LEASE 9000", applied, true]],
    [[[0, 3, 3, -1, 0, null]], { quantity: 0 }, ["result"]],
    [[RESERVED, 0], {}, [applied, "Lapsed"]],
    [[RESERVED, 0], place, [released, "Lapsed"]],
    // Without Redis `unreachable` decides whether the work runs, and later the lease ends by itself.
    [[lost], {}, ["Error"]],
    [[lost], allow, ["result"]],
    [[lost], deny, ["Denied"]],
    [[RESERVED, lost], allow, [applied, "result"]],
    [[RESERVED, lost], {}, [applied, "Error"]],
    ...[{}, allow, deny].map((each): [unknown[], Settling, unknown[]] => [[RESERVED, busy], each, [applied, "Busy"]]),
  ];

  test("the end of the work settles", async () => {
    for (const [replies, asked, expected] of cases) {
      const { work = () => "result", window = { limit: 3, period: "1d" }, unreachable = "raise", ...options } = asked;
      const recorder = new Recorder(...replies);
      const limiter = new Limiter(recorder, { unreachable });
      const outcome = await limiter.acquire("k", window, options, work).catch((error) => error.name);
      assert.deepEqual([...recorder.sent.slice(1), outcome], expected);
    }
  });

  test("a denial is thrown with its reply and settles nothing", async () => {
    const limiter = new Limiter(new Recorder(REFUSED));
    await assert.rejects(limiter.acquire("k", semaphore(3), {}, fail), (error) => {
      assert.ok(error instanceof Denied);
      assert.deepEqual([error.reply.limited, error.reply.retryAfterMs], [2, 700]);
      return true;
    });
    assert.match(new Lapsed("late").stack ?? "", /^Lapsed: late\n/);
  });
});

suite("without Redis", () => {
  const ask = (error: Error, unreachable: "raise" | "allow" | "deny") =>
    new Limiter(new Recorder(error), { unreachable }).throttle("k", "@free");
  class ReplyError extends Error {}

  test("errors of the connection are answered by `unreachable`", async () => {
    for (const error of [
      refused(),
      new SocketClosedUnexpectedlyError(),
      new ErrorReply("LOADING Redis is loading the dataset in memory"),
      new ErrorReply("CLUSTERDOWN The cluster is down"),
      new ErrorReply("TRYAGAIN Multiple keys request during rehashing of slot"),
      new Error("Connection is closed."),
      new Error("Stream isn't writeable and enableOfflineQueue options is false"),
    ]) {
      await assert.rejects(ask(error, "raise"), error);
      assert.ok(isUnreachable(error), error.message);
      const [allowed, denied] = [await ask(error, "allow"), await ask(error, "deny")];
      assert.deepEqual([allowed.allowed, allowed.limited, allowed.reachable], [true, 0, false]);
      assert.deepEqual([denied.limited, denied.reachable, denied.retryAfterMs], [1, false, null]);
    }
  });

  test("a breaker that opens and closes, and calls decided without Redis, are published", async () => {
    const messages: [string, Record<string, unknown>][] = [];
    for (const name of ["breaker", "unreachable"]) {
      subscribe(`redis-ratelimit-client:${name}`, (message) => messages.push([name, message as never]));
    }
    const failures = Array.from({ length: FAILURES }, refused);
    const limiter = new Limiter(new Recorder(...failures, "PONG", ALLOWED), { unreachable: "deny" });
    for (const _ of failures) await limiter.throttle("k", "@free");
    assert.equal((await limiter.throttle("k", "@free")).reachable, true);
    await assert.rejects(new Limiter(new Recorder(refused())).throttle("k", "@free"));
    const decided = ["unreachable", { command: "RL.THROTTLE", key: "k", error: failures[0] }];
    const changed = { server: "the server", isOpen: true, error: failures[0] };
    assert.deepEqual(messages, [
      ...[decided, decided, ["breaker", changed], decided],
      ["breaker", { ...changed, isOpen: false, error: undefined }],
    ]);
  });

  test("error replies are thrown whatever `unreachable` is", async () => {
    for (const error of [
      new ErrorReply("ERR max_burst must be 0 or more"),
      new ReplyError("ERR max_burst must be 0 or more"),
      new ErrorReply("WRONGPASS"),
      new TypeError("a mistake"),
      // All clients of a pool are in use, but Redis is there.
      new TimeoutError("Timeout waiting for a client after 3000ms"),
    ]) {
      for (const unreachable of ["raise", "allow", "deny"] as const)
        await assert.rejects(ask(error, unreachable), error);
      assert.equal(isUnreachable(error), false);
    }
    for (const error of [new Busy("busy"), AbortSignal.abort().reason]) assert.equal(isUnreachable(error), false);
    const [reply, other] = [new ErrorReply("WRONGTYPE Operation against a key"), new TypeError("WRONGTYPE no reply")];
    assert.deepEqual([codeOf(reply), codeOf(new ReplyError("BUSY")), codeOf(other)], ["WRONGTYPE", "BUSY", undefined]);
  });

  test("an unknown command names the server, and an unknown policy is named", async () => {
    const limiter = new Limiter(new Recorder(new ErrorReply("ERR unknown command 'RL.THROTTLE'")), {
      unreachable: "allow",
    });
    await assert.rejects(limiter.throttle("k", "@free"), (error) => {
      assert.ok(error instanceof MissingModule && error.cause instanceof ErrorReply);
      assert.match(error.message, /has no redis-ratelimit.*RL\.THROTTLE.*unknown command/);
      return true;
    });
    await assert.rejects(ask(new ErrorReply("NOPOLICY no policy has the name free"), "allow"), (error) => {
      assert.ok(error instanceof UnknownPolicy);
      assert.match(error.message, /^NOPOLICY no policy has .*free/);
      return true;
    });
  });

  test("an id that is held is an error of its own", async () => {
    const message = "DUPLICATE the id is already held or waiting: use another id, or apply or release it first";
    for (const limiter of [new Limiter(new Recorder(new ErrorReply(message))), new MemoryLimiter()]) {
      const reserve = () => limiter.reserve("k", { limit: 5, period: "60s" }, { id: "job" });
      if (limiter instanceof MemoryLimiter) await reserve();
      await assert.rejects(reserve(), (error) => {
        assert.ok(error instanceof Duplicate && error.cause instanceof Error);
        assert.deepEqual([error.name, error.message, codeOf(error)], ["Duplicate", message, "DUPLICATE"]);
        return true;
      });
    }
  });

  test("a server that accepts no more connections is busy, not out of reach", async () => {
    for (const error of [
      new ErrorReply("ERR max number of clients reached"),
      new Error("ERR max number of clients reached"),
    ]) {
      await assert.rejects(ask(error, "allow"), Busy);
    }
  });

  test("another object with the same methods decides instead", async () => {
    const asked: unknown[][] = [];
    const reply = await new Limiter(new Recorder(ALLOWED)).throttle("k", "@free");
    const method =
      (name: string, answer: unknown) =>
      async (...given: unknown[]) => {
        asked.push([name, ...given]);
        return answer;
      };
    const local = {
      throttle: method("throttle", reply),
      reserve: method("reserve", { ...reply, id: "mine" }),
      apply: method("apply", true),
    } as Fallback;
    const limiter = new Limiter(new Recorder(refused(), refused(), refused()), { unreachable: local });
    assert.deepEqual(await limiter.throttle("k", "@free", { quantity: 2 }), { ...reply, reachable: false });
    // What it reserved is settled with it.
    assert.equal(await limiter.acquire("k", "@day", {}, (job) => job.id), "mine");
    assert.deepEqual(asked, [
      ["throttle", "k", "@free", { quantity: 2 }],
      ["reserve", "k", "@day", {}],
      ["apply", "k", "mine", undefined, {}],
    ]);
    await assert.rejects(limiter.throttleRo("k", "@free"), /ECONNREFUSED/, "a method that it has not");
  });

  test("replies have the sixth element too", async () => {
    const limiter = (unreachable: "allow" | "deny") => new Limiter(new Recorder(refused()), { unreachable });
    const atmost = { quantity: 7, atmost: true };
    assert.equal((await limiter("allow").throttle("k", "@free", atmost)).granted, 7);
    assert.equal((await limiter("deny").window("k", "@day", atmost)).granted, 0);
    assert.equal((await limiter("allow").throttle("k", "@free", { ahead: 5 })).waitMs, 0);
    const all = await limiter("deny").all([clause.throttle("k", "@free")]);
    assert.deepEqual([all.limited, all.clause, all.answers], [1, 0, []]);
  });

  test("what Redis never denies is allowed", async () => {
    const limiter = () => new Limiter(new Recorder(refused()), { unreachable: "deny" });
    assert.ok((await limiter().throttle("k", "@free", { quantity: -1 })).allowed);
    assert.ok((await limiter().window("k", "@day", { quantity: 0 })).allowed);
    assert.ok((await limiter().window("k", "@day", { force: true })).allowed);
    // This is an error of the server.
    assert.ok(!(await limiter().reserve("k", "@day", { quantity: -1 })).allowed);
    const booked = await limiter().throttle("k", "@free", { ahead: 5, quantity: 0 });
    assert.deepEqual([booked.allowed, booked.waitMs], [true, 0]);
  });

  test("settling, listing and inspecting keys throws, whatever decides other calls", async () => {
    for (const unreachable of ["allow", new MemoryLimiter()] as const) {
      const limiter = () => new Limiter(new Recorder(refused()), { unreachable });
      for (const ask of [
        () => limiter().apply("k", "a"),
        () => limiter().release("k", "a"),
        () => limiter().renew("k", "a"),
        () => limiter().held("k"),
        () => limiter().reset("k"),
        () => limiter().info("k"),
        () => limiter().top(),
        () => limiter().policies(),
      ]) {
        await assert.rejects(ask, { message: refused().message }, ask.toString());
      }
    }
  });
});

suite("the limiter's own connections", () => {
  test("the error of a connection is why it failed, and not that of the PING on it", async () => {
    const copy = {
      connect: () => Promise.reject(new ErrorReply("WRONGPASS invalid username-password pair")),
      send: () => Promise.reject(new ErrorReply("NOAUTH Authentication required.")),
      isReady: () => false,
      close: () => {},
      lastError: undefined,
    };
    const connections = new Connections(
      () => copy,
      () => undefined,
      1000,
    );
    const call = { key: "k", words: ["RL.INFO", "k"] };
    await assert.rejects(connections.send(call, { over: false }), (error) => codeOf(error) === "WRONGPASS");
  });

  test("a client of node-redis that must be connected and is not is a mistake, not an outage", async () => {
    const port = await freePort();
    const socket = { host: "127.0.0.1", port, reconnectStrategy: false } as const;
    for (const [client, kind] of [
      [createClientPool({ socket }), "pool"],
      [createSentinel({ name: "limits", sentinelRootNodes: [{ host: "127.0.0.1", port }] }), "sentinel client"],
      [createCluster({ rootNodes: [{ socket }] }), "cluster client"],
    ] as const) {
      const limiter = new Limiter(client, { unreachable: "allow", deadline: 5000 });
      const isClear = ({ message }: Error) => message.startsWith(`connect the ${kind} of node-redis before it is used`);
      await assert.rejects(limiter.throttle("k", "@free"), isClear);
      await assert.rejects(limiter.top(), isClear);
      await assert.rejects(limiter.reserve("k", semaphore(1), { block: 10 }), isClear);
      limiter.close();
    }
  });

  test("while a pool or a cluster client of node-redis connects, Redis is out of reach", async () => {
    // A pool that is destroyed while it connects goes on connecting.
    const reconnectStrategy = (retries: number) => (retries < 50 ? 20 : false);
    const socket = { host: "127.0.0.1", port: await freePort(), reconnectStrategy } as const;
    const pool = createClientPool({ socket }, { maximum: 1, acquireTimeout: 100 });
    for (const client of [pool, createCluster({ rootNodes: [{ socket }] })]) {
      client.on("error", () => {});
      const limiter = new Limiter(client, { deadline: 20 });
      const connecting = client.connect();
      await assert.rejects(limiter.throttle("k", "@free"), (error) => {
        // A busy program may be late to notice.
        const says =
          /^the (server did not answer within 20 ms|cluster client is still connecting)$|^this program was busy/;
        assert.match((error as Error).message, says);
        return true;
      });
      limiter.close();
      client.destroy();
      await connecting.catch(() => {});
    }
  });
});
