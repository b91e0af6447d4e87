/**
 * Measures the decisions of MemoryLimiter in a second of processor time, as the median of several rounds: node
 * build/test/measure.js. The goal is 500,000.
 */

import { MemoryLimiter } from "../src/index.js";

const CALLS = 50_000;
const ROUNDS = 20;
const GOAL = 500_000;

const limiter = new MemoryLimiter();
const RATE = { burst: 15, count: 30, period: "60s" };
const WINDOW = { limit: 1000, period: "60s" };

async function measure(name: string, work: (at: number) => Promise<unknown>): Promise<void> {
  const rates: number[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const before = process.cpuUsage();
    for (let at = 0; at < CALLS; at += 1) await work(at);
    const { user, system } = process.cpuUsage(before);
    rates.push(CALLS / ((user + system) / 1e6));
  }
  const median = rates.sort((one, other) => one - other)[ROUNDS / 2] as number;
  console.log(
    `${name.padEnd(10)} ${Math.round(median).toLocaleString("en")} a second of CPU (goal ${GOAL.toLocaleString("en")})`,
  );
}

await measure("throttle", () => limiter.throttle("user:1", RATE));
await measure("window", (at) => limiter.window(`window:${at % 1000}`, WINDOW));
