/** How many decisions a second MemoryLimiter makes: node build/test/measure.js. The most of several rounds; the goal is 500,000. */

import { MemoryLimiter } from "../src/index.js";

const CALLS = 200_000;
const ROUNDS = 7;
const GOAL = 500_000;

const limiter = new MemoryLimiter();
const RATE = { burst: 15, count: 30, period: 60 };
const WINDOW = { limit: 1000, period: 60 };

async function measure(name: string, work: (at: number) => Promise<unknown>): Promise<void> {
  let most = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    const before = process.cpuUsage();
    for (let at = 0; at < CALLS; at += 1) await work(at);
    const { user, system } = process.cpuUsage(before);
    most = Math.max(most, CALLS / ((user + system) / 1e6));
  }
  console.log(
    `${name.padEnd(10)} ${Math.round(most).toLocaleString("en")} a second of CPU (goal ${GOAL.toLocaleString("en")})`,
  );
}

await measure("throttle", () => limiter.throttle("user:1", RATE));
await measure("window", (at) => limiter.window(`user:${at % 1000}`, WINDOW));
