/**
 * A process of clients/python/tests/test_proof.py: spends a limit at random moments, and records each unit with the readings
 * of the clocks that decided it. PROOF_SPEND says what to spend.
 */

import { closeSync, openSync, writeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { Redis } from "ioredis";

import { codeOf, Limiter } from "../src/index.js";

interface Spend {
  port: number;
  /** The file of the records. */
  file: string;
  limit: number;
  period: string;
  fixed: boolean;
  lease_ms: number;
  /** Calls per second. */
  per_second: number;
  /** The end, in seconds of the clock that all processes of the machine share. */
  until: number;
}

const machineMs = (): number => Number(process.hrtime.bigint()) / 1e6;

/** The reading of the machine's clock, and that of the wall clock, in seconds, and the units. */
function recordOf(at: number, wall: number): Buffer {
  const record = Buffer.alloc(24);
  record.writeDoubleLE(at / 1000);
  record.writeDoubleLE(wall / 1000, 8);
  record.writeBigInt64LE(1n, 16);
  return record;
}

// Each decision reads the monotonic clock and then the wall clock. The first such pair in a tryTake is the decision's.
let [last, decided, decidedWall] = [0, 0, 0];
const now = Date.now.bind(Date);
performance.now = () => (last = machineMs());
Date.now = () => {
  const wall = now();
  if (decided === 0) [decided, decidedWall] = [last, wall];
  return wall;
};

const given = JSON.parse(process.env["PROOF_SPEND"] ?? "") as Spend;
const { port, limit, period, fixed, lease_ms: lease } = given;
const redis = new Redis(port, "127.0.0.1", { lazyConnect: true });
redis.on("error", () => {});
const limiter = new Limiter(redis, { unreachable: "deny", deadline: 5000 });
const local = limiter.local("proof", { limit, period, fixed }, { lease });
const out = openSync(given.file, "a");
const end = given.until * 1000;
for (let next = machineMs(); machineMs() < end; await sleep(1)) {
  while (next <= machineMs() && machineMs() < end) {
    next += (-Math.log(1 - Math.random()) * 1000) / given.per_second;
    decided = 0;
    let reply = local.tryTake();
    while (reply === undefined && machineMs() < end) {
      await sleep(1);
      decided = 0;
      reply = local.tryTake();
    }
    if (reply?.allowed) writeSync(out, recordOf(decided, decidedWall));
  }
}
await local.close().catch((error: unknown) => {
  // The server has just become a replica.
  if (codeOf(error) !== "READONLY") throw error;
});
closeSync(out);
limiter.close();
redis.disconnect();
