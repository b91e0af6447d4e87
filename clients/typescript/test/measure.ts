/** How many decisions a second MemoryLimiter makes: node build/test/measure.js. The most of several rounds; the goal is 500,000. */

import { MemoryLimiter } from "../src/index.js";

const CALLS = 50_000;
const ROUNDS = 20;
const GOAL = 500_000;

const limiter = new MemoryLimiter();
const RATE = { burst: 15, count: 30, period: 60 };
const WINDOW = { limit: 1000, period: 60 };

async function measure(name: string, work: (at: number) => Promise<unknown>): Promise<void> {
  let most = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    const before = performance.now();
    for (let at = 0; at < CALLS; at += 1) await work(at);
    most = Math.max(most, CALLS / ((performance.now() - before) / 1000));
  }
  console.log(
    `${name.padEnd(10)} ${Math.round(most).toLocaleString("en")} a second (goal ${GOAL.toLocaleString("en")})`,
  );
}

await measure("throttle", () => limiter.throttle("user:1", RATE));
await measure("window", (at) => limiter.window(`window:${at % 1000}`, WINDOW));
