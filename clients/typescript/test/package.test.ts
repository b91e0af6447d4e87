/** The packed package: what is in it, and that programs and bundlers can use it. No Redis is needed. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { after, before, describe as suite, test } from "node:test";
import { fileURLToPath } from "node:url";

import { build as esbuild } from "esbuild";
import { build as vite } from "vite";

import { firstAnswer, freePort } from "./servers.js";

const tools = fileURLToPath(new URL("../../", import.meta.url));
/** An application that has installed the packed package, and the packages that the client is developed with. */
const app = mkdtempSync(join(tmpdir(), "ratelimit-app-"));
after(() => rmSync(app, { recursive: true, force: true }));

const client = join(app, "node_modules/redis-ratelimit-client");
before(() => {
  mkdirSync(client, { recursive: true });
  for (const name of readdirSync(join(tools, "node_modules"))) {
    if (!name.startsWith(".")) symlinkSync(join(tools, "node_modules", name), join(app, "node_modules", name));
  }
  const pack = ["pack", "--ignore-scripts", "--silent", "--pack-destination", app, tools];
  const archive = execFileSync("npm", pack, { encoding: "utf8", cwd: app }).trim();
  execFileSync("tar", ["-xf", join(app, archive), "-C", client, "--strip-components=1"]);
});

interface Manifest {
  exports: Record<string, string | { import: string; require: string }>;
  typesVersions: { "*": Record<string, [string]> };
  scripts: Record<string, string>;
}

test("an installation runs no script, and each export has its files and types", () => {
  const manifest = JSON.parse(readFileSync(join(client, "package.json"), "utf8")) as Manifest;
  for (const script of ["preinstall", "install", "postinstall", "prepare"]) assert.ok(!(script in manifest.scripts));
  for (const [name, paths] of Object.entries(manifest.exports)) {
    if (typeof paths === "string") continue;
    for (const path of [paths.import, paths.require]) {
      readFileSync(join(client, path));
      readFileSync(join(client, path.replace(/js$/, "d.ts")));
    }
    const types = name === "." ? paths.require.replace(/js$/, "d.ts") : manifest.typesVersions["*"][name.slice(2)]?.[0];
    assert.equal(types, paths.require.replace(/js$/, "d.ts"), "for `moduleResolution: node`");
  }
});

test("each export can be required and imported, with the same names", async () => {
  const manifest = JSON.parse(readFileSync(join(client, "package.json"), "utf8")) as Manifest;
  const require = createRequire(import.meta.url);
  for (const part of Object.keys(manifest.exports)) {
    if (part === "./package.json") continue;
    const name = join("redis-ratelimit-client", part);
    const namesOf = (module: object) => Object.keys(module).filter((each) => !/^(default|module\.exports)$/.test(each));
    const names = namesOf((await import(name)) as object);
    assert.deepEqual(namesOf(require(name) as object).sort(), names.sort(), part);
    assert.ok(names.length > 0, part);
  }
});

/** Decides in memory, and by a local limit. */
const DECIDING = `
  import { MemoryLimiter } from "redis-ratelimit-client";
  export async function decide() {
    const limiter = new MemoryLimiter();
    const window = { limit: 1, period: "60s" };
    const replies = [await limiter.window("a", window), await limiter.window("a", window), await limiter.local("b", window).take()];
    limiter.close();
    return replies.map(({ allowed }) => allowed).join();
  }`;
const PRINTING = `import { decide } from "./decide.mjs"; decide().then(console.log);`;

suite("MemoryLimiter and local() work in the output of", () => {
  before(() => {
    writeFileSync(join(app, "decide.mjs"), DECIDING);
    writeFileSync(join(app, "entry.mjs"), PRINTING);
  });
  const entry = join(app, "entry.mjs");
  const bundle = (format: "esm" | "cjs", outfile: string) =>
    esbuild({ entryPoints: [entry], bundle: true, platform: "node", format, outfile });
  const build = { ssr: entry, outDir: join(app, "ssr") };
  const BUNDLERS: [string, string, (outfile: string) => Promise<unknown>][] = [
    ["esbuild as an ES module", "bundle.mjs", (outfile) => bundle("esm", outfile)],
    ["esbuild as CommonJS", "bundle.cjs", (outfile) => bundle("cjs", outfile)],
    // It sets NODE_ENV, with which npm would install no compiler.
    [
      "Vite for SSR",
      "ssr/entry.mjs",
      () =>
        vite({ root: app, logLevel: "error", ssr: { noExternal: true }, build }).finally(
          () => delete process.env["NODE_ENV"],
        ),
    ],
  ];
  for (const [name, file, bundleTo] of BUNDLERS) {
    test(name, async () => {
      await bundleTo(join(app, file));
      // Nothing of the package is looked up when the bundle runs.
      const away = mkdtempSync(join(tmpdir(), "ratelimit-bundle-"));
      cpSync(join(app, file), join(away, basename(file)));
      const found = execFileSync(process.execPath, [join(away, basename(file))], { encoding: "utf8" });
      rmSync(away, { recursive: true });
      assert.equal(found, "true,false,true\n");
    });
  }
});

/** What a program imports, and from where. */
const NEST: [string, string][] = [
  ["{ Controller, Get, HttpException, Module }", "@nestjs/common"],
  ["{ NestFactory }", "@nestjs/core"],
  ["{ clause, MemoryLimiter }", "redis-ratelimit-client"],
  ["{ RateLimitException, RateLimitGuard }", "redis-ratelimit-client/nestjs"],
];
const GUARDED = `
  class Pages { hello() { return "hello"; } }
  Get()(Pages.prototype, "hello", Object.getOwnPropertyDescriptor(Pages.prototype, "hello"));
  Controller()(Pages);
  class App {}
  Module({ controllers: [Pages] })(App);
  const app = await NestFactory.create(App, { logger: false });
  const limiter = new MemoryLimiter();
  app.useGlobalGuards(new RateLimitGuard(limiter, () => clause.window("k", { limit: 1, period: "60s" })));
  await app.listen(0, "127.0.0.1");
  const get = () => fetch("http://127.0.0.1:" + app.getHttpServer().address().port);
  const [one, two] = [await get(), await get()];
  console.log(one.status, two.status, (await two.json()).title, RateLimitException.prototype instanceof HttpException);
  process.exit();`;

const FLEXIBLE: [string, string][] = [
  ["{ RateLimiterMemory, RateLimiterRes, RateLimiterUnion }", "rate-limiter-flexible"],
  ["{ MemoryLimiter }", "redis-ratelimit-client"],
  ["{ RateLimiterRatelimit }", "redis-ratelimit-client/rate-limiter-flexible"],
];
const INSURED = `
  const options = { points: 1, duration: 60 };
  const insuranceLimiter = new RateLimiterMemory(options);
  const ours = new RateLimiterRatelimit({ ...options, storeClient: new MemoryLimiter(), insuranceLimiter });
  await ours.consume("k");
  const denied = await ours.consume("k").catch((reason) => reason);
  new RateLimiterUnion(ours, new RateLimiterMemory(options));
  new RateLimiterMemory(options).insuranceLimiter = ours;
  console.log(denied instanceof RateLimiterRes, denied.consumedPoints);`;

/** Returns a program as an ES module or as CommonJS. */
function programOf(kind: "mjs" | "cjs", parts: [string, string][], body: string): string {
  const load = ([names, from]: [string, string]) =>
    kind === "mjs"
      ? `import ${names} from "${from}";`
      : `const ${names.replaceAll(" as ", ": ")} = require("${from}");`;
  return `${parts.map(load).join("\n")}\n(async () => {${body}})();`;
}

function output(file: string, program: string): string {
  writeFileSync(join(app, file), program);
  return execFileSync(process.execPath, ["--no-warnings", join(app, file)], { encoding: "utf8", cwd: app }).trim();
}

for (const kind of ["mjs", "cjs"] as const) {
  test(`in a program that is ${kind}, Nest and rate-limiter-flexible know their own classes`, () => {
    assert.equal(output(`flexible.${kind}`, programOf(kind, FLEXIBLE, INSURED)), "true 2");
    // Nest has ES modules, which not every version of Node can require.
    if (kind === "cjs" && !(process.features as { require_module?: boolean }).require_module) return;
    const nest = "200 429 Request cannot be satisfied as assigned quota has been exceeded true";
    assert.equal(output(`nest.${kind}`, programOf(kind, NEST, GUARDED)), nest);
  });
}

test("without the engine everything but MemoryLimiter and local works", () => {
  const folder = join(app, "without-engine");
  cpSync(join(client, "dist/esm"), folder, { recursive: true });
  writeFileSync(join(folder, "engine-base64.js"), 'export default "";');
  writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
  const program = `
    import { Limiter, MemoryLimiter, Rate, Window } from "./index.js";
    const limiter = new Limiter({ sendCommand() {}, duplicate() {} });
    for (const make of [() => new MemoryLimiter(), () => limiter.local("k", Window.per("1/s"))]) {
      try { make(); } catch (error) { console.log(error.message); }
    }`;
  const line = "this package was built without its engine, which needs Rust: see its README.md";
  assert.equal(output("without-engine/program.js", program), `${line}\n${line}`);
});

suite("with a registry", { skip: process.env["CLIENTS"] !== "all" && "needs a registry: make test-clients" }, () => {
  const execute = (block: string, cwd: string) => execFileSync("sh", ["-ec", block], { cwd, stdio: "pipe" });

  test("a route of Next.js decides", async () => {
    const folder = mkdtempSync(join(tmpdir(), "ratelimit-next-"));
    try {
      writeFileSync(join(folder, "package.json"), '{ "private": true }');
      const archive = readdirSync(app).find((name) => name.endsWith(".tgz"));
      const packages = `next@16.4.6 react@19.3.1 react-dom@19.3.1 ${join(app, archive ?? "")}`;
      execute(`npm install --ignore-scripts --no-audit --no-fund --loglevel error ${packages}`, folder);
      mkdirSync(join(folder, "app/decide"), { recursive: true });
      writeFileSync(
        join(folder, "app/layout.js"),
        "export default ({ children }) => <html><body>{children}</body></html>;",
      );
      writeFileSync(join(folder, "app/decide/decide.mjs"), DECIDING);
      const route = `import { decide } from "./decide.mjs";
        export const dynamic = "force-dynamic";
        export const GET = async () => new Response(await decide());`;
      writeFileSync(join(folder, "app/decide/route.js"), route);
      const next = join(folder, "node_modules/next/dist/bin/next");
      const env = { ...process.env, NEXT_TELEMETRY_DISABLED: "1" };
      execFileSync(process.execPath, [next, "build"], { cwd: folder, env, stdio: "pipe" });
      const port = await freePort();
      const server = spawn(process.execPath, [next, "start", "-p", `${port}`], { cwd: folder, env, stdio: "ignore" });
      try {
        const answer = await firstAnswer(`http://127.0.0.1:${port}/decide`, server);
        assert.equal(await answer?.text(), "true,false,true");
      } finally {
        server.kill("SIGKILL");
      }
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });

  const checkout = process.env["RATELIMIT_CHECKOUT"] ?? "";
  test("the package is built and installed as README.md says", { skip: checkout === "" }, () => {
    const page = readFileSync(join(tools, "README.md"), "utf8");
    const blocks = [...page.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, text]) => text ?? "");
    assert.equal(blocks.length, 1, "each block is run here");
    const folder = mkdtempSync(join(tmpdir(), "ratelimit-npm-"));
    try {
      const copy = join(folder, "redis-ratelimit");
      const isSource = (path: string) => !/\/(node_modules|dist|build|target)$/.test(path);
      const own = "clients/typescript";
      cpSync(join(checkout, own), join(copy, own), { recursive: true, filter: isSource });
      writeFileSync(join(folder, "package.json"), '{ "private": true }');
      execute((blocks[0] ?? "").replaceAll("/path/to/redis-ratelimit", copy), folder);
      const program = `import { createClient } from "redis";
        import { Limiter, MemoryLimiter } from "redis-ratelimit-client";
        new Limiter(createClient()).close();
        console.log((await new MemoryLimiter().window("k", { limit: 1, period: "60s" })).allowed);`;
      writeFileSync(join(folder, "program.mjs"), program);
      assert.equal(execFileSync(process.execPath, [join(folder, "program.mjs")], { encoding: "utf8" }), "true\n");
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
});
