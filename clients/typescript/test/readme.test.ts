/** The programs in the README run as they are pasted. RATELIMIT_PORT is the port of a server with the module. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Redis } from "ioredis";

import { freePort } from "./servers.js";

const URL_OF_REDIS = `redis://127.0.0.1:${process.env["RATELIMIT_PORT"]}`;
const README = readFileSync(new URL("../../README.md", import.meta.url), "utf8");
const [first, http, ...others] = [...README.matchAll(/^```js\n(.*?)^```$/gms)].map(([, text]) => text);

/** The package finds itself by its name from a file in its own folder. */
function pasted(name: string, text: string | undefined): string {
  const folder = new URL("../readme/", import.meta.url);
  mkdirSync(folder, { recursive: true });
  const file = fileURLToPath(new URL(`${name}.mjs`, folder));
  writeFileSync(file, text ?? "");
  return file;
}

test("the first program runs to its end", async () => {
  assert.equal(others.length, 0, "a block that nothing runs");
  const redis = new Redis(URL_OF_REDIS);
  await redis.flushall();
  redis.disconnect();
  const program = spawn(process.execPath, [pasted("first", first)], {
    env: { ...process.env, REDIS_URL: URL_OF_REDIS },
  });
  let [said, complained] = ["", ""];
  program.stdout.on("data", (data) => (said += data));
  program.stderr.on("data", (data) => (complained += data));
  const [status] = (await once(program, "exit")) as [number | null];
  assert.equal(status, 0, complained);
  assert.match(said, /^done 0\ntrue 2 \[/);
});

test("the server of Express tells how a client stands", async (context) => {
  try {
    createRequire(import.meta.url).resolve("express");
  } catch {
    console.log("skipped express: it is not installed");
    context.skip("express is not installed");
    return;
  }
  const redis = new Redis(URL_OF_REDIS);
  await redis.flushall();
  redis.disconnect();
  const port = await freePort();
  const env = { ...process.env, REDIS_URL: URL_OF_REDIS, PORT: `${port}` };
  const program = spawn(process.execPath, [pasted("http", http)], { env, stdio: ["ignore", "ignore", "inherit"] });
  try {
    let answer: Response | undefined;
    for (let attempt = 0; answer === undefined && attempt < 300; attempt += 1) {
      answer = await fetch(`http://127.0.0.1:${port}/`).catch(() => undefined);
      if (answer === undefined) await sleep(100);
    }
    assert.equal(await answer?.text(), "hello");
    assert.equal(answer?.headers.get("ratelimit-policy"), '"default";q=10;w=20');
    const statuses: number[] = [];
    for (let at = 0; at < 12; at += 1) statuses.push((await fetch(`http://127.0.0.1:${port}/`)).status);
    assert.ok(statuses.includes(429), `${statuses}`);
  } finally {
    program.kill();
  }
});
