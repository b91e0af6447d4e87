/**
 * Checks leases with processes that share one limit. A third of them are killed with SIGKILL and started again at random
 * moments, another third are stopped and continued, and once the server and its replica change their roles. Each records
 * every unit that it spends, with the clock readings on which tryTake decided. No (t - period, t] and no window of the
 * calendar may have more than the limit. With FIXED this is for windows of the calendar only.
 *
 *     node leases.js proof SECONDS [SEED] [FIXED]  prints the units that were spent; fails if a window has too many
 *     node leases.js decide                        measures a decision and a round trip
 *     node leases.js spend                         runs as a process of clients/python/tests/test_proof.py
 *
 * RATELIMIT_SO is the module, LEASES_PROCESSES the number of processes (16), LEASES_LIMIT the limit of the proof (400).
 */

import { fork, type ChildProcess } from "node:child_process";
import { closeSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Redis } from "ioredis";

import { codeOf, Limiter } from "../src/index.js";
import { Proxy, Server } from "./servers.js";

const PROCESSES = Number(process.env["LEASES_PROCESSES"] ?? 16);
const PERIOD_MS = 1000;
const LEASE_MS = 50;

/** The clock that all processes of the machine share. */
const machineMs = (): number => Number(process.hrtime.bigint()) / 1e6;

/** Returns a generator of random numbers from a seed (mulberry32). */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A unit that was spent, with the time of its decision by the machine's clock and by the wall clock. */
export interface Taken {
  at: number;
  wall: number;
}

/** The length of a record: both times in seconds and the units, as in the Python client's test. */
const RECORD_BYTES = 24;

function recordOf({ at, wall }: Taken): Buffer {
  const record = Buffer.alloc(RECORD_BYTES);
  record.writeDoubleLE(at / 1000);
  record.writeDoubleLE(wall / 1000, 8);
  record.writeBigInt64LE(1n, 16);
  return record;
}

/** Returns the largest number of units in any (t - period, t]. */
export function worstWindow(times: readonly number[], periodMs: number): number {
  const sorted = [...times].sort((one, other) => one - other);
  let [first, worst] = [0, 0];
  sorted.forEach((at, last) => {
    while ((sorted[first] as number) <= at - periodMs) first += 1;
    worst = Math.max(worst, last - first + 1);
  });
  return worst;
}

/** Returns the largest number of units in any window that begins at a multiple of its length. */
export function worstFixedWindow(times: readonly number[], periodMs: number): number {
  const sums = new Map<number, number>();
  for (const at of times) {
    const window = Math.floor(at / periodMs);
    sums.set(window, (sums.get(window) ?? 0) + 1);
  }
  return Math.max(0, ...sums.values());
}

/** A time span by the machine's clock. */
interface Span {
  begin: number;
  end: number;
}

interface Settings {
  port: number;
  limit: number;
  /** Calls per second. */
  rate: number;
  seed: number;
  file: string;
  /** Whether windows are those of the calendar. */
  fixed: boolean;
  /** The time span of the calls. Without it the parent process sends one. */
  span?: Span;
}

function spanOfParent(): Promise<Span> {
  return new Promise<Span>((resolve) => {
    process.once("message", (span) => {
      process.disconnect();
      resolve(span as Span);
    });
    process.send?.("ready");
  });
}

/** A process that takes at random moments. */
async function work(settings: Settings): Promise<void> {
  const { port, limit, rate, seed, file, fixed } = settings;
  // Each decision reads the monotonic clock and then the wall clock. The first such pair in a tryTake is the decision's.
  let [last, decided, decidedWall] = [0, 0, 0];
  const now = Date.now.bind(Date);
  performance.now = () => (last = machineMs());
  Date.now = () => {
    const wall = now();
    if (decided === 0) [decided, decidedWall] = [last, wall];
    return wall;
  };
  const redis = new Redis(port, "127.0.0.1", { lazyConnect: true });
  redis.on("error", () => {});
  const limiter = new Limiter(redis, { unreachable: "deny", deadline: 5000 });
  const window = fixed ? { limit, period: `${PERIOD_MS / 1000}s`, fixed } : { limit, period: `${PERIOD_MS}ms` };
  const local = limiter.local("proof", window, { lease: LEASE_MS });
  const random = randomOf(seed);
  const out = openSync(file, "a");
  const { begin, end } = settings.span ?? (await spanOfParent());
  let next = Math.max(begin, machineMs());
  while (machineMs() < end) {
    while (next <= machineMs() && machineMs() < end) {
      next += (-Math.log(1 - random()) * 1000) / rate;
      decided = 0;
      let reply = local.tryTake();
      while (reply === undefined && machineMs() < end) {
        await sleep(1);
        decided = 0;
        reply = local.tryTake();
      }
      if (reply?.allowed) writeSync(out, recordOf({ at: decided, wall: decidedWall }));
    }
    await sleep(1);
  }
  await local.close().catch((error: unknown) => {
    // The server has just become a replica.
    if (codeOf(error) !== "READONLY") throw error;
  });
  closeSync(out);
  limiter.close();
  redis.disconnect();
}

/** The arguments of a process of clients/python/tests/test_proof.py. */
interface Spend {
  port: number;
  file: string;
  limit: number;
  fixed: boolean;
  per_second: number;
  /** The end, in seconds of the machine's clock. */
  until: number;
}

function spend({ port, file, limit, fixed, per_second: rate, until }: Spend): Promise<void> {
  const span = { begin: machineMs(), end: until * 1000 };
  return work({ port, limit, rate, seed: process.pid, file, fixed, span });
}

/** Starts a process, which waits until all are ready. */
function start(settings: Settings): { child: ChildProcess; isReady: Promise<void>; go: (span: Span) => void } {
  const child = fork(fileURLToPath(import.meta.url), ["work", JSON.stringify(settings)], { stdio: "inherit" });
  child.on("error", () => {});
  const isReady = new Promise<void>((resolve) => {
    child.once("message", () => resolve());
    child.once("exit", () => resolve());
  });
  return { child, isReady, go: (span) => void (child.connected && child.send(span, () => {})) };
}

const ended = (child: ChildProcess): Promise<unknown> =>
  child.exitCode !== null || child.signalCode !== null
    ? Promise.resolve()
    : new Promise((resolve) => child.once("exit", resolve));

function readAll(folder: string): Taken[] {
  const taken: Taken[] = [];
  for (const name of readdirSync(folder)) {
    const bytes = readFileSync(join(folder, name));
    for (let at = 0; at + RECORD_BYTES <= bytes.length; at += RECORD_BYTES) {
      const [when, wall] = [bytes.readDoubleLE(at) * 1000, bytes.readDoubleLE(at + 8) * 1000];
      taken.push({ at: when, wall });
    }
  }
  return taken;
}

export interface Proof {
  units: number;
  /** The largest number of units in any period. */
  worst: number;
  /** The largest number of units in any window of the calendar. */
  worstFixed: number;
  limit: number;
  kills: number;
  stops: number;
}

/** Makes the replica of a server the master without losing writes, and leads the proxy to it. */
async function failOver(server: Server, replica: Server, way: Proxy): Promise<void> {
  await server.admin.call("FAILOVER", "TO", "127.0.0.1", replica.port, "TIMEOUT", 20_000);
  for (const end = machineMs() + 60_000; !/role:master/.test(await replica.admin.info("replication"));) {
    if (machineMs() > end) throw new Error("the replica does not take over");
    await sleep(5);
  }
  way.leadTo(replica.port);
}

/** Runs the processes for some seconds. */
export async function proof(seconds: number, seed: number, fixed = false): Promise<Proof> {
  const limit = Number(process.env["LEASES_LIMIT"] ?? 400);
  const folder = mkdtempSync(join(tmpdir(), "ratelimit-leases-"));
  const server = await Server.start();
  const replica = await Server.start("--replicaof", "127.0.0.1", `${server.port}`);
  while (!/master_link_status:up/.test(await replica.admin.info("replication"))) await sleep(20);
  const way = await Proxy.before(server.port);
  const random = randomOf(seed);
  let [kills, stops, files] = [0, 0, 0];
  const begin = () => {
    const file = join(folder, `${(files += 1)}`);
    const rate = (1.5 * limit) / PROCESSES;
    return start({ port: way.port, limit, rate, seed: seed + files, file, fixed });
  };
  const first = Array.from({ length: PROCESSES }, begin);
  await Promise.all(first.map(({ isReady }) => isReady));
  const span: Span = { begin: machineMs(), end: machineMs() + seconds * 1000 };
  const { end } = span;
  const failover = sleep(seconds * 1000 * (0.3 + 0.4 * random())).then(() => failOver(server, replica, way));
  const lives = first.map(async (started, number) => {
    started.go(span);
    let { child } = started;
    try {
      while (machineMs() < end) {
        await sleep(500 + random() * 2500);
        if (machineMs() > end - 1000 || number % 3 === 2) continue;
        if (number % 3 === 0) {
          child.kill("SIGKILL");
          await ended(child);
          kills += 1;
          const again = begin();
          child = again.child;
          await again.isReady;
          again.go(span);
        } else {
          child.kill("SIGSTOP");
          await sleep(random() * 400);
          child.kill("SIGCONT");
          stops += 1;
        }
      }
      await ended(child);
    } finally {
      child.kill("SIGKILL");
    }
  });
  try {
    await Promise.all([...lives, failover]);
    const taken = readAll(folder);
    const times = taken.map(({ at }) => at);
    const walls = taken.map(({ wall }) => wall);
    const [worst, worstFixed] = [worstWindow(times, PERIOD_MS), worstFixedWindow(walls, PERIOD_MS)];
    return { units: times.length, worst, worstFixed, limit, kills, stops };
  } finally {
    way.end();
    await replica.end();
    await server.end();
    rmSync(folder, { recursive: true, force: true });
  }
}

const median = (times: number[]): number => times.sort((one, other) => one - other)[times.length >> 1] ?? NaN;

/** Returns the median times of a decision in the process and of a round trip, in microseconds. */
export async function decide(): Promise<{ decisionUs: number; roundTripUs: number }> {
  const server = await Server.start();
  const redis = new Redis(server.port, "127.0.0.1", { lazyConnect: true });
  const limiter = new Limiter(redis);
  try {
    const window = { limit: 1e9, period: "1h" };
    const local = limiter.local("decide", window, { lease: "1h" });
    local.tryTake(1e8);
    while (local.tryTake() === undefined) await sleep(1);
    const decisions: number[] = [];
    // A single call is too short to be measured, so there are ten.
    for (let round = 0; round < 20_000; round += 1) {
      const began = process.hrtime.bigint();
      for (let each = 0; each < 10; each += 1) local.tryTake();
      decisions.push(Number(process.hrtime.bigint() - began) / 10_000);
    }
    const roundTrips: number[] = [];
    for (let round = 0; round < 2000; round += 1) {
      const began = process.hrtime.bigint();
      await limiter.window("round", window);
      roundTrips.push(Number(process.hrtime.bigint() - began) / 1000);
    }
    await local.close();
    return { decisionUs: median(decisions), roundTripUs: median(roundTrips) };
  } finally {
    limiter.close();
    redis.disconnect();
    await server.end();
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [what, ...given] = process.argv.slice(2);
  const [one = 0, two = 0] = given.map(Number);
  if (what === "work") await work(JSON.parse(given[0] as string) as Settings);
  else if (what === "spend") await spend(JSON.parse(process.env["PROOF_SPEND"] ?? "") as Spend);
  else if (what === "decide") console.log(await decide());
  else if (what === "proof") {
    const seed = two || Date.now() % 1_000_000;
    const fixed = given[2] === "FIXED";
    const found = await proof(one, seed, fixed);
    console.log({ seed, ...found });
    if ((fixed ? found.worstFixed : Math.max(found.worst, found.worstFixed)) > found.limit) process.exitCode = 1;
  } else throw new Error("usage: leases.js proof SECONDS [SEED] [FIXED] | decide | spend");
}
