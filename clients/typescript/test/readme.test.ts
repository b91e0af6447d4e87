/**
 * Runs the programs of README.md, and those of ADAPTERS.md before and after the switch, on a server. RATELIMIT_SO is the
 * module.
 */

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe as suite, test } from "node:test";
import { fileURLToPath } from "node:url";

import { testUnlessStopped } from "./machine.js";
import { firstAnswer, freePort, Server, until } from "./servers.js";

let server: Server;
before(async () => (server = await Server.start()));
after(() => server.end());

const urlOfRedis = () => `redis://127.0.0.1:${server.port}`;
const page = (name: string) => readFileSync(new URL(`../../${name}`, import.meta.url), "utf8");
const SWITCH = new URL("../../../examples/switch/", import.meta.url);

/** The programs of README.md, each by its heading. */
const PROGRAMS = new Map<string, string>();
let heading = "";
for (const [, title, text] of page("README.md").matchAll(/^#+ ([^\n]*)$|^```(?:js|ts)\n(.*?)^```$/gms)) {
  if (title !== undefined) heading = title;
  else if (text?.includes("import ")) PROGRAMS.set(heading, text);
}

const FOLDER = new URL("../readme/", import.meta.url);
mkdirSync(FOLDER, { recursive: true });

/** The package finds itself by its name from a file in its own folder. */
function pasted(name: string, text: string | undefined): string {
  const file = fileURLToPath(new URL(name, FOLDER));
  writeFileSync(file, text ?? "");
  if (!name.endsWith(".mts")) return file;
  const tsc = fileURLToPath(new URL("../../node_modules/.bin/tsc", import.meta.url));
  const options = ["--ignoreConfig", "--strict", "--module", "nodenext", "--target", "es2022"];
  options.push("--types", "node", "--experimentalDecorators", "--emitDecoratorMetadata");
  const { status, stdout } = spawnSync(tsc, [...options, file], { encoding: "utf8" });
  assert.equal(status, 0, stdout);
  return file.replace(/\.mts$/, ".mjs");
}

/** Runs a server while it is used. */
async function serving(file: string, use: (get: (path: string) => Promise<Response>) => Promise<void>): Promise<void> {
  await server.admin.flushall();
  const port = await freePort();
  const env = { ...process.env, REDIS_URL: urlOfRedis(), PORT: `${port}` };
  const program = spawn(process.execPath, [file], { env, stdio: ["ignore", "ignore", "inherit"] });
  const get = (path: string) => fetch(`http://127.0.0.1:${port}${path}`);
  try {
    assert.ok(await firstAnswer(`http://127.0.0.1:${port}/nowhere`, program), "it does not listen");
    await server.admin.flushall();
    await use(get);
  } finally {
    program.kill("SIGKILL");
  }
}

/** Returns the output of a program that ends by itself. */
async function printed(name: string, heading: string): Promise<string> {
  await server.admin.flushall();
  const file = pasted(name, PROGRAMS.get(heading));

  const program = spawn(process.execPath, [file], { env: { ...process.env, REDIS_URL: urlOfRedis() } });
  let [said, complained] = ["", ""];
  program.stdout.on("data", (data) => (said += data));
  program.stderr.on("data", (data) => (complained += data));
  const [status] = (await once(program, "exit")) as [number | null];
  assert.equal(status, 0, complained);
  return said;
}

testUnlessStopped("the programs without a web server run to their ends", async () => {
  assert.equal(await printed("first.mjs", "redis-ratelimit-client for TypeScript"), "go ahead\n");
  assert.equal(await printed("limits.mjs", "Limits"), "sleep 0\n");
  assert.equal(await printed("reservations.mjs", "Reservations"), "done\n");
  assert.match(await printed("several.mjs", "Several limits at once"), /^true 2 \[/);
  assert.equal(await printed("tenants.mjs", "Limits of each tenant"), "600 200000\n");
  assert.equal(await printed("events.mjs", "Events"), "");
  assert.equal(await printed("signal.mjs", "Cancel a call"), "true\n");
  assert.equal(await printed("local.mjs", "In the process"), "go ahead\n");
  assert.equal(await printed("memory.mjs", "Without a server"), "true\nfalse\ntrue\n");
});

test("the program on the first page of the project runs", async (context) => {
  const checkout = process.env["RATELIMIT_CHECKOUT"];
  if (checkout === undefined) return context.skip("RATELIMIT_CHECKOUT is not set");
  const [, text = ""] = /^```js\n(.*?)^```$/ms.exec(readFileSync(join(checkout, "README.md"), "utf8")) ?? [];
  await server.admin.flushall();
  // It runs until it is killed, like a service.
  const client = `createClient({ url: "${urlOfRedis()}" })`;
  const program = spawn(process.execPath, [pasted("page.mjs", text.replace("createClient()", client))]);
  try {
    const [said] = (await once(program.stdout, "data")) as [Buffer];
    assert.equal(said.toString(), "go ahead\n");
  } finally {
    program.kill("SIGKILL");
  }
});

test("each program of README.md is run here", () => {
  const all = ["redis-ratelimit-client for TypeScript", "Limits", "Express", "Tokens in Express", "Fastify", "NestJS"];
  all.push("Hono, Next.js, Bun and Deno", "Another framework", "Reservations", "Several limits at once");
  all.push("Limits of each tenant", "Events", "Cancel a call", "In the process", "Without a server");
  assert.deepEqual([...PROGRAMS.keys()], all);
});

/** Serves the default export, as Bun and Deno do. */
const SERVING = `
import { createServer } from "node:http";
import app from "./hono.mjs";
createServer(async (request, response) => {
  const answer = await app.fetch(new Request("http://127.0.0.1" + request.url));
  response.writeHead(answer.status, Object.fromEntries(answer.headers)).end(await answer.text());
}).listen(process.env.PORT);`;

for (const [name, file] of [
  ["Express", "express.mts"],
  ["Another framework", "http.mjs"],
  ["Fastify", "fastify.mjs"],
  ["NestJS", "nest.mts"],
  ["Hono, Next.js, Bun and Deno", "hono.mjs"],
] as const) {
  testUnlessStopped(`the program of ${name} limits a site and a route, in one set of headers`, async () => {
    const program = pasted(file, PROGRAMS.get(name));
    await serving(file === "hono.mjs" ? pasted("serve-hono.mjs", SERVING) : program, async (get) => {
      const hello = await get("/");
      assert.deepEqual([hello.status, await hello.text()], [200, "hello"]);
      assert.equal(hello.headers.get("ratelimit-policy"), '"site";q=10;w=20');
      const found = await get("/search");
      assert.equal(await found.text(), "found");
      assert.equal(found.headers.get("ratelimit-policy"), '"site";q=10;w=20, "search";q=5;w=60');
      assert.equal(found.headers.get("x-ratelimit-limit"), "5");
      let last = found;
      for (let at = 0; at < 5; at += 1) last = await get("/search");
      assert.equal(last.status, 429);
      assert.match(last.headers.get("content-type") ?? "", /^application\/problem\+json/);
      assert.deepEqual(((await last.json()) as { "violated-policies": string[] })["violated-policies"], ["search"]);
      assert.ok(Number(last.headers.get("retry-after")) > 0);
    });
  });
}

testUnlessStopped("the program of Express counts the true cost of a request instead of its estimate", async () => {
  await serving(pasted("tokens.mts", PROGRAMS.get("Tokens in Express")), async (get) => {
    const chat = await get("/chat");
    assert.deepEqual([chat.status, await chat.text()], [200, "hello"]);
    assert.equal(
      chat.headers.get("ratelimit-policy"),
      '"tokens";q=100000;qu="tokens";w=60, "calls";q=5;qu="concurrent-requests"',
    );
    assert.match(chat.headers.get("ratelimit") ?? "", /^"tokens";r=95904;/);
    // It is settled after the response was sent.
    let left = "";
    await until(async () => {
      left = (await get("/chat")).headers.get("ratelimit") ?? "";
      return left.includes('"calls";r=4');
    });
    const calls = (100_000 - 4096 - Number(/r=(\d+)/.exec(left)?.[1])) / 812;
    assert.ok(Number.isInteger(calls) && calls > 0, left);
  });
});

const EXAMPLES = ["express-rate-limit.mjs", "nestjs.mts", "rate-limiter-flexible.mjs"];
const DIFFS = [...page("ADAPTERS.md").matchAll(/^```diff\n(.*?)^```$/gms)].map(([, text]) => text ?? "");

suite("to switch", () => {
  for (const [at, example] of EXAMPLES.entries()) {
    const diff = DIFFS[at] ?? "";
    const after = readFileSync(new URL(example.replace(".", ".after."), SWITCH), "utf8");
    // In the diff, each line that goes is followed by those that come.
    const before = diff.split(/^-/m).reduce((text, pair) => {
      const [old = "", ...made] = pair.split(/^\+/m);
      return text.replace(made.join(""), () => old);
    }, after);

    test(`the diff on the page has all lines of ${example} that name ours`, () => {
      const ours = after.split("\n").filter((line) => /Ratelimit|clientAddress/.test(line));
      const made = diff.split("\n").filter((line) => line.startsWith("+"));
      assert.deepEqual(
        made,
        ours.map((line) => `+${line}`),
      );
      assert.doesNotMatch(before, /Ratelimit|clientAddress/);
    });

    // The package that ours replaces cannot be installed with the newest Nest.
    for (const [which, text] of Object.entries(example === "nestjs.mts" ? { after } : { before, after })) {
      test(`${example} ${which} the switch lets three through and denies the fourth`, async () => {
        await serving(pasted(`switch-${which}-${example}`, text), async (get) => {
          const answers = [await get("/"), await get("/"), await get("/"), await get("/")];
          assert.deepEqual(
            answers.map(({ status }) => status),
            [200, 200, 200, 429],
          );
          assert.equal(await answers[0]?.text(), "hello\n");
          const wait = Number(answers[3]?.headers.get("retry-after"));
          assert.ok(wait > 0 && wait <= 120, `${wait}`);
        });
      });
    }
  }
});
