/**
 * The stores of clients/typescript compared with those that they replace: decisions a second, and the server's CPU time for each.
 *
 *     node adapters.mjs [--quick] [--write PAGE]
 *
 * RATELIMIT_SO is the module, REDIS_SERVER the server, CLIENT the built client (dist/esm). All stores ask one server through
 * ioredis or node-redis, and keep it busy with 64 calls at a time. Each round runs all of them, one after the other, in an order that turns; the table has the medians of the rounds,
 * and the median of each round's own ratio. --write puts the table into a page, between its marks.
 */

import "reflect-metadata";

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { ThrottlerStorageRedisService } from "@nest-lab/throttler-storage-redis";
import { Redis } from "ioredis";
import { RedisStore } from "rate-limit-redis";
import { RateLimiterRedis } from "rate-limiter-flexible";
import { createClient } from "redis";

const client = (name) => import(pathToFileURL(join(process.env.CLIENT, `${name}.js`)).href);
const { Limiter } = await client("index");
const { RatelimitStore } = await client("adapters/express-rate-limit");
const { RatelimitThrottlerStorage } = await client("http/nestjs");
const { RateLimiterRatelimit } = await client("adapters/rate-limiter-flexible");

const isQuick = process.argv.includes("--quick");
const page = process.argv.includes("--write") ? process.argv[process.argv.indexOf("--write") + 1] : undefined;
const ROUNDS = isQuick ? 3 : 11;
const DECISIONS = isQuick ? 4_000 : 20_000;
const AT_ONCE = 64;
const KEYS = 1_000;
/** No window ends while a round runs. */
const WINDOW_MS = 600_000;
const GOAL = 1.1;

async function startServer() {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  await new Promise((closed) => probe.close(closed));
  const dir = mkdtempSync(join(tmpdir(), "ratelimit-bench-"));
  const words = ["--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"];
  const server = spawn(
    process.env.REDIS_SERVER ?? "redis-server",
    [...words, "--loadmodule", process.env.RATELIMIT_SO].map(String),
    {
      stdio: "ignore",
    },
  );
  const end = () => {
    server.kill("SIGKILL");
    rmSync(dir, { recursive: true, force: true });
  };
  process.on("exit", end);
  return port;
}

const port = await startServer();
const connect = () => new Redis(port, "127.0.0.1", { maxRetriesPerRequest: null, retryStrategy: () => 50 });
const admin = connect();
admin.on("error", () => {});
await admin.ping();
const ioredis = connect();
const nodeRedis = createClient({ url: `redis://127.0.0.1:${port}` });
await nodeRedis.connect();

/** How our store and theirs are asked for a decision. */
const express = (client, sendCommand) =>
  [new RatelimitStore(new Limiter(client)), new RedisStore({ sendCommand })].map((store) => {
    store.init({ windowMs: WINDOW_MS });
    return (key) => store.increment(key);
  });
const throttler = (limit) =>
  [new RatelimitThrottlerStorage(new Limiter(ioredis)), new ThrottlerStorageRedisService(ioredis)].map(
    (store) => (key) => store.increment(key, WINDOW_MS, limit, WINDOW_MS, "default"),
  );
const FLEXIBLE = { points: 1e9, duration: WINDOW_MS / 1000 };
const flexible = (client, more) =>
  [
    new RateLimiterRatelimit({ storeClient: new Limiter(client), ...FLEXIBLE }),
    new RateLimiterRedis({ storeClient: client, ...FLEXIBLE, ...more }),
  ].map((store) => (key) => store.consume(key));

const onIoredis = express(ioredis, (...words) => ioredis.call(...words));
const onNodeRedis = express(nodeRedis, (...words) => nodeRedis.sendCommand(words));
/** What is compared: [for, their store, the client, our store and theirs]. */
const PAIRS = [
  ["express-rate-limit", "rate-limit-redis 6.0.1", "ioredis", onIoredis],
  ["express-rate-limit", "rate-limit-redis 6.0.1", "node-redis", onNodeRedis],
  ["@nestjs/throttler, allowed", "throttler-storage-redis 1.2.0", "ioredis", throttler(1e9)],
  ["@nestjs/throttler, denied", "throttler-storage-redis 1.2.0", "ioredis", throttler(1)],
  ["rate-limiter-flexible", "RateLimiterRedis 11.4.0", "ioredis", flexible(ioredis, {})],
  ["rate-limiter-flexible", "RateLimiterRedis 11.4.0", "node-redis", flexible(nodeRedis, { useRedisPackage: true })],
];

async function cpuSeconds() {
  const info = await admin.info("cpu");
  const of = (name) => Number(new RegExp(`${name}:([\\d.]+)`).exec(info)[1]);
  return of("used_cpu_user") + of("used_cpu_sys");
}

/** Microseconds of the server's CPU for a decision, and decisions a second. */
async function measure(ask) {
  let begun = 0;
  const one = async () => {
    while (begun < DECISIONS) {
      begun += 1;
      await ask(`user:${begun % KEYS}`);
    }
  };
  const cpu = await cpuSeconds();
  const began = performance.now();
  await Promise.all(Array.from({ length: AT_ONCE }, one));
  const seconds = (performance.now() - began) / 1000;
  return { cpuUs: (((await cpuSeconds()) - cpu) * 1e6) / DECISIONS, perSecond: DECISIONS / seconds };
}

const median = (values) => [...values].sort((one, other) => one - other)[Math.floor(values.length / 2)];

/** The figures of all rounds, for our store and theirs of each pair. */
const found = PAIRS.map(() => [[], []]);
for (let round = -1; round < ROUNDS; round += 1) {
  await admin.flushall();
  for (const [at, [, , , asks]] of PAIRS.entries()) {
    for (const which of round % 2 === 0 ? [0, 1] : [1, 0]) {
      const measured = await measure((key) => asks[which](`${at}:${which}:${key}`));
      // The first round opens connections and loads scripts.
      if (round >= 0) found[at][which].push(measured);
    }
  }
}

const lines = [
  "| for | instead of | on | server CPU: ours | theirs | ratio | decisions/s: ours | theirs |",
  "|---|---|---|---|---|---|---|---|",
];
let missed = 0;
for (const [at, [name, theirs, library]] of PAIRS.entries()) {
  const [ours, others] = found[at];
  const cpu = (list) => median(list.map(({ cpuUs }) => cpuUs));
  const rate = (list) => Math.round(median(list.map(({ perSecond }) => perSecond)) / 100) * 100;
  const ratio = median(ours.map(({ cpuUs }, round) => cpuUs / others[round].cpuUs));
  const verdict = ratio <= GOAL ? "met" : "MISSED";
  if (verdict === "MISSED") missed += 1;
  lines.push(
    `| ${name} | ${theirs} | ${library} | ${cpu(ours).toFixed(1)} us | ${cpu(others).toFixed(1)} us | ${ratio.toFixed(2)}, ${verdict} | ${rate(ours)} | ${rate(others)} |`,
  );
}
const table = lines.join("\n");
console.log(table);
console.log(
  `\nThe goal is a ratio of at most ${GOAL}: ${missed === 0 ? "met" : `MISSED by ${missed}`}. Medians of ${ROUNDS} rounds of ${DECISIONS} decisions.`,
);
if (page !== undefined) {
  const text = readFileSync(page, "utf8");
  const marked = /(<!-- adapters -->\n)[^]*?(<!-- \/adapters -->)/;
  if (!marked.test(text)) throw new Error(`${page} has no marks <!-- adapters --> and <!-- /adapters -->`);
  writeFileSync(page, text.replace(marked, `$1\n${table}\n\n$2`));
}
process.exit(0);
