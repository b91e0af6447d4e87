/**
 * What calls return while Redis does not answer, and after how long. The test prints the figures of the table in
 * clients/README.md. With OUTAGES_TABLE it allows less time for a busy machine. REDIS_SERVER and RATELIMIT_SO are the server
 * and the module. OUTAGES_CALLS is the number of first calls after idle closing, restart and CLIENT KILL.
 */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { after, describe as suite, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Redis } from "ioredis";

import { Busy, Limiter, semaphore, type Reply, type Reservation } from "../src/index.js";
import { isOwnStop, testUnlessStopped } from "./machine.js";
import { freePort, Proxy, Server, SINGLE, until, type Opened } from "./servers.js";

/** True if the figures are for the table. */
const IS_EXACT = process.env["OUTAGES_TABLE"] !== undefined;
/** The deadline of the table. On a busy machine, a server that is there may take longer. */
const SHORT = 250;
const DEADLINE = IS_EXACT ? SHORT : 1000;
/** The milliseconds that a busy machine may add to the time of a call. */
const SLACK = IS_EXACT ? 50 : 5000;
const CALLS = Number(process.env["OUTAGES_CALLS"] ?? 100);
const WINDOW = { limit: 1_000_000_000, period: "1d" };

/** A deadline for calls that the server must decide: a lost connection is noticed at once, and a slow reply is no loss. */
const PATIENT = 10_000;

/** Measures how late bare timers are that are as long as the deadline, because the machine is busy. */
class Lateness {
  /** The longest delay since begin() was called. */
  #now = 0;
  readonly #interval = setInterval(() => {
    const begin = performance.now();
    setTimeout(() => {
      this.#now = Math.max(this.#now, performance.now() - begin - DEADLINE);
    }, DEADLINE);
  }, 2);

  /** The longest time of a call: the deadline, and what a busy machine and late timers add. */
  get soon(): number {
    return DEADLINE + SLACK + this.#now;
  }

  begin(): void {
    this.#now = 0;
  }

  end(): void {
    clearInterval(this.#interval);
  }
}

const lateness = new Lateness();

/** "decided", "unreachable", "Busy" or another error. */
type Outcome = string;

interface MeasuredCall {
  outcome: Outcome;
  reply: Reply | undefined;
  error: unknown;
  ms: number;
}

async function measured(limiter: Limiter, key = "k"): Promise<MeasuredCall> {
  const begin = performance.now();
  const tell = (outcome: Outcome, reply?: Reply, error?: unknown): MeasuredCall => {
    return { outcome, reply, error, ms: performance.now() - begin };
  };
  try {
    const reply = await limiter.window(key, WINDOW);
    return tell(reply.reachable ? "decided" : "unreachable", reply);
  } catch (error) {
    return tell(error instanceof Busy ? "Busy" : String(error), undefined, error);
  }
}

const atOnce = (limiter: Limiter, count: number): Promise<MeasuredCall[]> =>
  Promise.all(Array.from({ length: count }, () => measured(limiter)));

/** Makes calls at a rate per second. */
async function aSecond(limiter: Limiter, rate: number, seconds: number): Promise<MeasuredCall[]> {
  const begin = performance.now();
  const calls: Promise<MeasuredCall>[] = [];
  while (performance.now() - begin < seconds * 1000) {
    const due = ((performance.now() - begin) / 1000) * rate;
    while (calls.length < due) calls.push(measured(limiter));
    await sleep(1);
  }
  return Promise.all(calls);
}

const sorted = (times: number[]): number[] => [...times].sort((one, other) => one - other);
const middle = (times: number[]): number => sorted(times)[Math.floor(times.length / 2)] ?? 0;
const most = (times: number[]): number => Math.max(0, ...times);
const times = (calls: MeasuredCall[]): number[] => calls.map(({ ms }) => ms);
const count = (calls: MeasuredCall[], outcome: Outcome): number =>
  calls.filter((each) => each.outcome === outcome).length;

/** Checks the outcome of calls. Those of which the program read no reply, because it was busy, say nothing. */
function all(calls: MeasuredCall[], outcome: Outcome, withinMs: number): void {
  const others = new Map<Outcome, number>();
  for (const { outcome: other, error } of calls) {
    if (other !== outcome && (IS_EXACT || !isOwnStop(error))) others.set(other, (others.get(other) ?? 0) + 1);
  }
  assert.deepEqual([...others], [], `${calls.length} calls should be ${outcome}`);
  assert.ok(most(times(calls)) <= withinMs, `a call took ${most(times(calls))} ms`);
}

interface Row {
  what: string;
  library: string;
  answer: string;
  calls: MeasuredCall[];
  then: string;
}

const rows: Row[] = [];
const short = (ms: number): string => (ms < 0.095 ? ms.toFixed(3) : ms < 9.5 ? ms.toFixed(1) : ms.toFixed(0));
const spans = (calls: MeasuredCall[]): string => `${short(middle(times(calls)))} / ${short(most(times(calls)))}`;

/** Waits until the server decides again. Returns the time that took. */
async function untilDecided(limiter: Limiter): Promise<number> {
  const begin = performance.now();
  while ((await measured(limiter)).outcome !== "decided") {
    assert.ok(performance.now() - begin < 60_000, "the server does not decide again");
    await sleep(5);
  }
  return performance.now() - begin;
}

/** What a test of an outage works with. The proxy is before the server. */
interface Setup {
  server: Server;
  proxy: Proxy;
  limiter: Limiter;
}

/** Returns a test with a server, and a limiter on it, or on the proxy if `isFar`. */
function withLimiter(
  open: (port: number) => Opened,
  body: (setup: Setup) => Promise<unknown>,
  { deadline = DEADLINE, isFar = false } = {},
): () => Promise<void> {
  return async () => {
    const server = await Server.start();
    const proxy = await Proxy.before(server.port);
    const opened = open(isFar ? proxy.port : server.port);
    const limiter = new Limiter(opened.client, { unreachable: "deny", deadline });
    lateness.begin();
    try {
      await body({ server, proxy, limiter });
    } finally {
      limiter.close();
      await opened.close();
      proxy.end();
      await server.end();
    }
  };
}

/** Measures an outage: the server is killed, stopped or cut off. */
async function outage(
  what: string,
  library: string,
  limiter: Limiter,
  begin: () => unknown,
  end: () => unknown,
): Promise<void> {
  all(await atOnce(limiter, 100), "decided", 5000);
  await begin();
  // Closed: all these wait for their deadline, unless the connection is refused.
  const waiting = [...(await atOnce(limiter, 200)), ...(await atOnce(limiter, 600))];
  // Opens meanwhile.
  const flowing = await aSecond(limiter, 600, 1.5);
  await until(async () => (await measured(limiter)).ms < DEADLINE / 10, "the breaker does not open");
  const open: MeasuredCall[] = [];
  for (let at = 0; at < 1000; at += 1) open.push(await measured(limiter));
  all([...waiting, ...flowing], "unreachable", lateness.soon);
  all(open, "unreachable", lateness.soon);
  assert.ok(middle(times(open)) < (IS_EXACT ? 0.1 : 1), `an open breaker answers after ${middle(times(open))} ms`);
  await end();
  const back = await untilDecided(limiter);
  assert.ok(back <= 2000 + SLACK, `${back} ms until the server decides again`);
  const after = await atOnce(limiter, 200);
  all(after, "decided", 5000);
  const then = `open: ${short(middle(times(open)))} ms; the server's again after ${short(back)} ms`;
  rows.push({ what, library, answer: "as `unreachable` says", calls: [...waiting, ...flowing], then });
}

for (const [library, open] of SINGLE) {
  suite(`${library} in an outage`, () => {
    /** Registers an outage that begins and ends by these functions. */
    function testOutage(what: string, begin: (setup: Setup) => unknown, end: (setup: Setup) => unknown): void {
      const measure = (setup: Setup) =>
        outage(
          what,
          library,
          setup.limiter,
          () => begin(setup),
          () => end(setup),
        );
      testUnlessStopped(what, withLimiter(open, measure, { isFar: what === "packets dropped" }));
    }

    testOutage(
      "killed",
      ({ server }) => server.kill(),
      ({ server }) => server.start(),
    );
    testOutage(
      "stopped (SIGSTOP)",
      ({ server }) => server.signal("SIGSTOP"),
      ({ server }) => server.signal("SIGCONT"),
    );
    testOutage(
      "packets dropped",
      ({ proxy }) => (proxy.dropping = true),
      ({ proxy }) => (proxy.dropping = false),
    );

    const killed = async ({ server, limiter }: Setup) => {
      all([await measured(limiter)], "decided", PATIENT);
      server.signal("SIGSTOP");
      const underWay = atOnce(limiter, 100);
      await sleep(50);
      await server.kill();
      all(await underWay, "unreachable", PATIENT / 2);
      for (let at = 0; at < 10; at += 1) all([await measured(limiter)], "unreachable", PATIENT / 2);
      await server.start();
      assert.ok((await untilDecided(limiter)) <= 2000 + SLACK);
    };
    test(
      "killed: calls under way and later ones are answered at once, long before their deadline",
      withLimiter(open, killed, { deadline: PATIENT }),
    );

    /** Makes a first call by each of `many` limiters after their connections were closed, until there are enough calls. */
    async function firstCalls(
      what: string,
      server: Server,
      many: number,
      close: (round: number) => Promise<unknown>,
      remains: (before: number) => number,
    ): Promise<void> {
      const opened = Array.from({ length: many }, () => open(server.port));
      const limiters = opened.map(({ client }) => new Limiter(client, { unreachable: "deny", deadline: PATIENT }));
      const calls: MeasuredCall[] = [];
      try {
        for (const [at, limiter] of limiters.entries())
          all([await measured(limiter, `k${at}`)], "decided", PATIENT + 50);
        let before = WINDOW.limit - 1;
        for (let round = 0; round * many < CALLS; round += 1) {
          await close(round);
          // At most the first call on a connection may be lost.
          const first = await Promise.all(limiters.map((limiter, at) => measured(limiter, `k${at}`)));
          const lost = first.filter(({ outcome }) => outcome === "unreachable");
          const again = async (each: MeasuredCall, at: number) =>
            each.outcome === "unreachable" ? measured(limiters[at]!, `k${at}`) : each;
          const found = await Promise.all(first.map(again));
          all(found, "decided", PATIENT + 50);
          before = remains(before);
          for (const { reply } of found) assert.equal(reply?.remaining, before);
          calls.push(...lost, ...found);
        }
      } finally {
        for (const limiter of limiters) limiter.close();
        for (const each of opened) await each.close();
        await server.end();
      }
      const then = `${count(calls, "unreachable")} as unreachable`;
      rows.push({ what, library, answer: "the server's decision, counted once", calls, then });
    }

    test("restarted", async () => {
      const server = await Server.start();
      const restart = async () => {
        await server.kill();
        await server.start();
      };
      // The server has lost its data.
      await firstCalls("restarted", server, 20, restart, () => WINDOW.limit - 1);
    });

    test("idle connections closed (timeout 1)", async () => {
      const server = await Server.start("--timeout", "1");
      const wait = async (round: number) => {
        await sleep(1900);
        // In every other round the program is busy while the server closes them, and sees nothing of it before it calls.
        const end = performance.now() + 700;
        while (round % 2 === 1 && performance.now() < end);
        if (round % 2 === 0) await sleep(700);
      };
      await firstCalls("idle connections closed (timeout 1)", server, 50, wait, (before) => before - 1);
    });

    test("CLIENT KILL", async () => {
      const server = await Server.start();
      // The calls follow as soon as the answer to this has come.
      const kill = () => server.admin.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
      await firstCalls("CLIENT KILL", server, 1, kill, (before) => before - 1);
    });

    /** Records calls, and waits until the server decides again. */
    async function record(what: string, answer: string, limiter: Limiter, calls: MeasuredCall[]): Promise<void> {
      const back = await untilDecided(limiter);
      assert.ok(back <= 2000 + SLACK, `${back} ms until the server decides again`);
      rows.push({ what, library, answer, calls, then: `the server's again after ${short(back)} ms` });
    }

    const full = async ({ server, limiter }: Setup) => {
      await server.admin.config("SET", "maxclients", "1");
      const calls = [...(await atOnce(limiter, 200)), ...(await atOnce(limiter, 600))];
      all(calls, "Busy", lateness.soon);
      await server.admin.config("SET", "maxclients", "100");
      await record("maxclients", "`Busy`", limiter, calls);
    };
    testUnlessStopped("maxclients", withLimiter(open, full));

    const loading = async ({ server, limiter }: Setup) => {
      await server.admin.eval("for i = 1, 3000 do redis.call('SET', 'key' .. i, i) end", 0);
      await server.admin.save();
      await server.kill();
      // It answers while it loads for some seconds.
      server.launch("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024");
      await sleep(500);
      const calls = [...(await atOnce(limiter, 200)), ...(await atOnce(limiter, 600))];
      calls.push(...(await aSecond(limiter, 600, 1)));
      all(calls, "unreachable", lateness.soon);
      const watcher = new Redis(server.port, "127.0.0.1", { enableReadyCheck: false });
      while ((await watcher.info("persistence")).includes("\nloading:1")) await sleep(5);
      watcher.disconnect();
      await record("LOADING", "as `unreachable` says", limiter, calls);
    };
    testUnlessStopped("LOADING", withLimiter(open, loading));

    const busyProgram = async ({ proxy, limiter }: Setup) => {
      const busyCalls = async (count: number) => {
        const calls: MeasuredCall[] = [];
        while (calls.length < count) {
          const call = measured(limiter);
          const end = performance.now() + SHORT + 100;
          while (performance.now() < end);
          calls.push(await call);
        }
        return calls;
      };
      await untilDecided(limiter);
      const near = await busyCalls(5);
      assert.ok(count(near, "decided") > 0);
      // Too far for the time that a late timer waits.
      proxy.delayMs = 30;
      const far = await busyCalls(6);
      assert.ok(count(far, "Busy") > 0);
      const others = [...near, ...far].filter(({ outcome }) => outcome !== "decided" && outcome !== "Busy");
      assert.deepEqual(others, []);
      // The breaker is closed.
      proxy.delayMs = 0;
      assert.equal((await measured(limiter)).outcome, "decided");
    };
    test(
      "the program is busy for longer than the deadline",
      withLimiter(open, busyProgram, { deadline: SHORT, isFar: true }),
    );

    const hangsLater = async ({ server, limiter }: Setup) => {
      assert.equal((await limiter.reserve("s", semaphore(1))).allowed, true);
      const waits = limiter.reserve("s", semaphore(1), { block: 600 });
      await sleep(100);
      // The server answers others as the wait begins, but not when it ends.
      all([await measured(limiter)], "decided", PATIENT);
      server.signal("SIGSTOP");
      assert.equal((await waits).reachable, false);
    };
    testUnlessStopped("hangs while a call waits", withLimiter(open, hangsLater));

    const unsent = async ({ server, proxy }: Setup) => {
      const opened = open(proxy.port);
      const limiter = new Limiter(opened.client, { unreachable: "allow", deadline: PATIENT });
      const [key, window] = ["reserved", { limit: 9, period: "1h" }];
      const held = () => server.admin.call("RL.HELD", key) as Promise<unknown[]>;
      // Whether its end or the work itself settles, and whether it fails.
      for (const work of [() => {}, (job: Reservation) => job.apply().catch(() => {}), () => assert.fail("work")]) {
        const done = limiter.acquire(key, window, async (job) => {
          proxy.leadTo(await freePort());
          await sleep(50);
          await work(job);
        });
        await done.catch((error: unknown) => assert.ok(error instanceof assert.AssertionError));
        assert.equal((await held()).length, 1);
        proxy.leadTo(server.port);
        await until(async () => (await held()).length === 0);
        await untilDecided(limiter);
      }
      assert.equal((await limiter.windowRo(key, window)).remaining, 7);
      limiter.close();
      await opened.close();
    };
    test("what could not be sent at the end of the work is settled later", withLimiter(open, unsent));

    const slow = async ({ proxy, limiter }: Setup) => {
      await measured(limiter);
      proxy.delayMs = 0.24 * DEADLINE;
      const calls: MeasuredCall[] = [];
      for (const many of [200, 600]) calls.push(...(await atOnce(limiter, many)));
      calls.push(...(await aSecond(limiter, 600, 2)));
      assert.equal(count(calls, "decided") + count(calls, "Busy"), calls.length);
      assert.ok(most(times(calls)) <= lateness.soon, `${most(times(calls))}`);
      const busy = count(calls, "Busy");
      assert.ok(0 < busy && busy < calls.length, `${busy} of ${calls.length} are Busy`);
      const answer = `the server's decision (${calls.length - busy}) or \`Busy\` (${busy})`;
      rows.push({ what: "pool full on a slow server", library, answer, calls, then: "0 as unreachable" });
    };
    testUnlessStopped("pool full on a slow server", withLimiter(open, slow, { isFar: true }));
  });
}

after(() => {
  lateness.end();
  const require = createRequire(import.meta.url);
  const versions = SINGLE.map(([library]) => {
    const name = library === "ioredis" ? "ioredis" : "redis";
    return `${library} ${(require(`${name}/package.json`) as { version: string }).version}`;
  });
  const lines = [
    `TypeScript, on ${versions.join(" and ")}, with a deadline of ${DEADLINE} ms, and of ${PATIENT} ms for first calls after`,
    "restarts, idle closing and CLIENT KILL. Times are in milliseconds.",
    "",
    "| What happens | Client | What a call answers | Calls | After, p50 / max | Then |",
    "|---|---|---|---|---|---|",
    ...[...new Set(rows.map(({ what }) => what))].flatMap((what) =>
      rows
        .filter((row) => row.what === what)
        .map(
          ({ library, answer, calls, then }) =>
            `| ${what} | ${library} | ${answer} | ${calls.length} | ${spans(calls)} | ${then} |`,
        ),
    ),
  ];
  console.log(lines.join("\n"));
});
