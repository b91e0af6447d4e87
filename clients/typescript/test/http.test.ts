/** The middleware of each framework, asking a limiter in memory. No Redis is needed. */

import "reflect-metadata";

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe as suite, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Controller, Get, Module, Param, Res, type INestApplication, type Type } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ExpressAdapter } from "@nestjs/platform-express";
import { FastifyAdapter } from "@nestjs/platform-fastify";
import express from "express";
import { fastify } from "fastify";
import { Hono } from "hono";

import { rateLimit as ofExpress } from "../src/http/express.js";
import { rateLimit as ofFastify, rateLimitHook } from "../src/http/fastify.js";
import { rateLimit as ofFetch } from "../src/http/fetch.js";
import { RateLimit, RateLimitGuard } from "../src/http/nestjs.js";
import {
  addReply,
  Busy,
  clause,
  Denied,
  Limiter,
  MemoryLimiter,
  problem,
  repliesOf,
  semaphore,
  Window,
} from "../src/index.js";
import type { AllReply, Clauses, Problem } from "../src/index.js";
import { replyOf } from "./fixtures.js";
import { until } from "./servers.js";

const unreached = replyOf({
  limited: 1,
  limit: 0,
  remaining: 0,
  retryAfterMs: null,
  resetAfterMs: 0,
  reachable: false,
});

/** A limiter at a fixed time. The key "unreached" is denied as without Redis, and the key "busy" throws Busy. */
class TestLimiter extends MemoryLimiter {
  constructor() {
    super({ clock: () => 1_795_238_388_000 });
  }

  override all(clauses: Clauses): Promise<AllReply> {
    const { key } = clauses.flat()[0] ?? {};
    if (key === "busy") return Promise.reject(new Busy("busy"));
    return key === "unreached"
      ? Promise.resolve({ ...unreached, answers: [] } as unknown as AllReply)
      : super.all(clauses);
  }
}

const SECOND = Window.per("2/s");
const site = () => clause.window("site", Window.per("100/min"), { name: "site" });

/** The limits of a route, by its path. */
function route({ url }: { url: string }) {
  const path = url.replace(/^.*\//, "");
  if (path === "broken") throw new Error("trouble");
  if (path === "held") return clause.acquire("held", semaphore(1), { name: "route" });
  if (path === "tokens" || path === "refused") {
    return [
      clause.window("{t}:calls", SECOND),
      clause.acquire("{t}:tokens", Window.per("100/min"), { name: "tokens", quantity: 40 }),
    ];
  }
  return ["unlimited", "added", "thrown", "overrun"].includes(path)
    ? null
    : clause.window(path, SECOND, { name: "route" });
}

/** Ends the requests for "held". */
let letGo = () => {};

/** Handles a request. `target` is that of addReply. */
async function handle(path: string, target: object): Promise<string> {
  if (path === "held") await new Promise<void>((resolve) => (letGo = resolve));
  if (path === "added") {
    const own = replyOf({ limited: 0, limit: 9, remaining: 1, retryAfterMs: null, resetAfterMs: 2000 });
    assert.equal(addReply(target, own, { names: "own" }), undefined);
  }
  if (path === "tokens") {
    const [, reply] = repliesOf(target) as AllReply[];
    reply?.reservation?.set({ tokens: 7 });
  }
  if (path === "refused") throw new Error("trouble");
  if (path === "thrown")
    throw new Denied(replyOf({ limited: 1, limit: 9, remaining: 0, retryAfterMs: 2500, resetAfterMs: 9000 }));
  if (path === "overrun") throw new Busy("busy");
  return "hello";
}

/** An application with a limit of its own and one for each route. */
interface App {
  get(path: string): Promise<Response>;
  close(): unknown;
}

async function listening(
  server: Server,
  close: () => unknown = () => (server.closeAllConnections(), server.close()),
): Promise<App> {
  if (!server.listening) await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = server.address() as AddressInfo;
  return { get: (path) => fetch(`http://127.0.0.1:${port}/${path}`), close };
}

function expressApp(limiter: Limiter): Promise<App> {
  const app = express();
  app.use(ofExpress(limiter, site));
  app.get("/:path", ofExpress(limiter, route), async ({ params }, response) => {
    response.send(await handle(params.path, response));
  });
  app.set("env", "test");
  return listening(createServer(app));
}

async function fastifyApp(limiter: Limiter): Promise<App> {
  const app = fastify();
  await app.register(ofFastify, { limiter, limits: site });
  app.get("/:path", { onRequest: rateLimitHook(limiter, route) }, ({ params }, reply) =>
    handle((params as { path: string }).path, reply),
  );
  await app.listen({ port: 0, host: "127.0.0.1" });
  return listening(app.server, () => app.close());
}

/** Decorators are called as functions: the tests are compiled without them. */
function nestModule(limiter: Limiter): Type {
  class Hello {
    hello(path: string, response: object): Promise<string> {
      return handle(path, response);
    }
  }
  Controller()(Hello);
  const hello = Object.getOwnPropertyDescriptor(Hello.prototype, "hello") as PropertyDescriptor;
  Get(":path")(Hello.prototype, "hello", hello);
  Param("path")(Hello.prototype, "hello", 0);
  Res({ passthrough: true })(Hello.prototype, "hello", 1);
  RateLimit(limiter, route)(Hello.prototype, "hello", hello);
  class App {}
  const guard = { provide: APP_GUARD, useValue: new RateLimitGuard(limiter, site) };
  Module({ controllers: [Hello], providers: [guard] })(App);
  return App;
}

async function nestApp(limiter: Limiter, adapter: ExpressAdapter | FastifyAdapter): Promise<App> {
  const app: INestApplication = await NestFactory.create(nestModule(limiter), adapter as never, { logger: false });
  await app.listen(0, "127.0.0.1");
  return listening(app.getHttpServer() as Server, () => app.close());
}

function fetchApp(limiter: Limiter): App {
  const [ofSite, ofRoute] = [ofFetch(limiter, site), ofFetch(limiter, route)];
  const answer = async (request: Request) => new Response(await handle(request.url.replace(/^.*\//, ""), request));
  const get = (path: string) => {
    const answered = ofSite(new Request(`http://app/${path}`), (request) => ofRoute(request, answer));
    return answered.catch((error: unknown) => new Response(String(error), { status: 500 }));
  };
  return { get, close: () => {} };
}

function honoApp(limiter: Limiter): App {
  const app = new Hono();
  for (const [path, limited] of [
    ["*", ofFetch(limiter, site)],
    ["/:path", ofFetch(limiter, route)],
  ] as const) {
    app.use(path, async (context, next) => {
      context.res = await limited(context.req.raw, async () => {
        await next();
        return context.res;
      });
    });
  }
  app.get("/:path", async (context) => context.text(await handle(context.req.param("path"), context.req)));
  app.onError((error, context) => {
    if (!(error instanceof Denied || error instanceof Busy)) return context.text("trouble", 500);
    return context.json(problem(error), error.status, error.headers);
  });
  return { get: async (path) => app.request(`/${path}`), close: () => {} };
}

const FRAMEWORKS: [string, (limiter: Limiter) => App | Promise<App>][] = [
  ["Express", expressApp],
  ["Fastify", fastifyApp],
  ["Nest on Express", (limiter) => nestApp(limiter, new ExpressAdapter())],
  ["Nest on Fastify", (limiter) => nestApp(limiter, new FastifyAdapter())],
  ["the Fetch API", fetchApp],
  ["Hono", honoApp],
];

for (const [name, start] of FRAMEWORKS) {
  suite(name, () => {
    const limiter = new TestLimiter();
    let app: App;
    before(async () => (app = await start(limiter)));
    after(() => (app.close(), limiter.close()));
    const get = async (path: string) => {
      const answer = await app.get(path);
      const body = await answer.text();
      return { status: answer.status, headers: Object.fromEntries(answer.headers), body };
    };

    test("an application's limit and a route's end in one set of headers, the tightest in X-RateLimit", async () => {
      const { status, headers: found, body } = await get("allowed");
      assert.deepEqual([status, body], [200, "hello"]);
      assert.equal(found["ratelimit-policy"], '"site";q=100;w=60, "route";q=2;w=1');
      assert.match(found["ratelimit"] ?? "", /^"site";r=\d+;t=60, "route";r=1;t=1$/);
      assert.deepEqual([found["x-ratelimit-limit"], found["x-ratelimit-remaining"]], ["2", "1"]);
      assert.equal(found["retry-after"], undefined);
    });

    test("a reply that a route adds is next to that of the application", async () => {
      const { headers: found } = await get("added");
      assert.equal(found["ratelimit-policy"], '"site";q=100;w=60, "own";q=9');
      assert.equal(found["x-ratelimit-limit"], "9");
    });

    test("a route without a limit has the headers of the application's", async () => {
      const { status, headers: found } = await get("unlimited");
      assert.deepEqual(
        [status, found["ratelimit-policy"], found["x-ratelimit-limit"]],
        [200, '"site";q=100;w=60', "100"],
      );
    });

    test("a denial is 429 with Retry-After and a problem that names the limit", async () => {
      for (let at = 0; at < 2; at += 1) assert.equal((await get("denied")).status, 200);
      const { status, headers: found, body } = await get("denied");
      assert.deepEqual([status, found["retry-after"], found["x-ratelimit-remaining"]], [429, "1", "0"]);
      assert.match(found["ratelimit"] ?? "", /, "route";r=0;t=1$/);
      assert.match(found["content-type"] ?? "", /^application\/problem\+json/);
      const expected: Problem = {
        type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        status: 429,
        "violated-policies": ["route"],
      };
      assert.deepEqual(JSON.parse(body), expected);
    });

    test("a denial that no limiter decided, and Busy, are 503", async () => {
      for (const path of ["unreached", "busy"]) {
        const { status, headers: found, body } = await get(path);
        assert.deepEqual(
          [status, found["retry-after"], found["ratelimit-policy"]],
          [503, path === "busy" ? "1" : undefined, '"site";q=100;w=60'],
          path,
        );
        assert.match(found["content-type"] ?? "", /^application\/problem\+json/);
        assert.match(body, /"type":"https:\/\/iana.org\/assignments\/http-problem-types#temporary-reduced-capacity"/);
      }
    });

    test("Denied and Busy that a route throws are 429 and 503", async () => {
      for (const [path, expected, after] of [
        ["thrown", 429, "3"],
        ["overrun", 503, "1"],
      ] as const) {
        const { status, headers: found } = await get(path);
        assert.deepEqual([status, found["ratelimit-policy"]?.slice(0, 6)], [expected, '"site"']);
        // Nest takes no headers from errors.
        if (!name.startsWith("Nest")) assert.equal(found["retry-after"], after);
      }
    });

    test("another error is the framework's", async () => {
      assert.equal((await get("broken")).status, 500);
    });

    test("what a clause reserves is held until the request ends", async () => {
      const isHeld = async () => (await limiter.held("held")).length > 0;
      for (let at = 0; at < 2; at += 1) {
        const first = get("held");
        await until(isHeld);
        const { status, headers: found } = await get("held");
        assert.deepEqual([status, found["retry-after"]], [429, "1"], "the other may give it back at any time");
        letGo();
        assert.equal((await first).status, 200);
        await until(async () => !(await isHeld()));
      }
    });

    test("the true cost is applied, and an error of the server gives back what was reserved", async () => {
      const { headers: found } = await get("tokens");
      assert.equal(found["ratelimit-policy"], '"site";q=100;w=60, "limit-1";q=2;w=1, "tokens";q=100;w=60');
      const isLeft = (left: number) => async () =>
        (await limiter.held("{t}:tokens")).length === 0 &&
        (await limiter.windowRo("{t}:tokens", Window.per("100/min"))).remaining === left;
      await until(isLeft(93));
      assert.equal((await get("refused")).status, 500);
      await until(isLeft(93));
    });
  });
}

const GET = () => new Request("http://app/");

test("a middleware that asks twice has one item", async () => {
  const limited = ofFetch(new TestLimiter(), () => clause.window("a", SECOND, { name: "a" }));
  const answer = await limited(GET(), (request) => limited(request, () => new Response("hello")));
  assert.equal(answer.headers.get("ratelimit"), '"a";r=0;t=1');
});

test("a reservation is held while the body of a response is read, or until it is given up", async () => {
  const limiter = new TestLimiter();
  const limited = ofFetch(limiter, () => clause.acquire("stream", semaphore(1)));
  for (const end of ["read", "cancel"] as const) {
    let stream: ReadableStreamDefaultController | undefined;
    const body = new ReadableStream({ start: (controller) => (stream = controller) });
    const answer = await limited(GET(), () => new Response(body));
    assert.equal((await limiter.held("stream")).length, 1);
    if (end === "read") stream?.close();
    await (end === "read" ? answer.text() : answer.body?.cancel());
    await until(async () => (await limiter.held("stream")).length === 0);
  }
});

test("a reservation is held while its handler works, even if the client has hung up", async () => {
  const limiter = new TestLimiter();
  const app = express();
  app.use(ofExpress(limiter, () => clause.acquire("work", Window.per("100/min"), { quantity: 10 })));
  let respond: (() => unknown) | undefined;
  app.get("/", (_request, response) => {
    respond = () => {
      repliesOf(response)[0]?.reservation?.set(30);
      response.end();
    };
  });
  const server = createServer(app);
  const { close } = await listening(server);
  const { port } = server.address() as AddressInfo;
  const aborted = new AbortController();
  const answer = fetch(`http://127.0.0.1:${port}/`, { signal: aborted.signal });
  await until(() => Promise.resolve(respond !== undefined));
  aborted.abort();
  await assert.rejects(answer);
  await sleep(50);
  assert.equal((await limiter.held("work")).length, 1);
  respond?.();
  await until(async () => (await limiter.held("work")).length === 0);
  assert.equal((await limiter.windowRo("work", Window.per("100/min"))).remaining, 70);
  close();
});

test("headers are set on a response that cannot be changed, and a partition key may be that of the request", async () => {
  const limits = () => clause.window("a", Window.per("5/min"));
  const limited = ofFetch(new TestLimiter(), limits, { pk: ({ url }) => url, xRateLimit: false });
  const answer = await limited(GET(), () => Response.redirect("http://b/"));
  assert.deepEqual([answer.status, answer.headers.get("location")], [302, "http://b/"]);
  assert.equal(answer.headers.get("ratelimit"), `"default";r=4;t=60;pk=:${btoa("http://app/")}:`);
  assert.equal(answer.headers.get("x-ratelimit-limit"), null);
});

test("a program can answer denials by itself", async () => {
  const limiter = new TestLimiter();
  const app = express();
  app.use(
    ofExpress(limiter, () => clause.window("a", Window.per("0/min")), {
      denied: (_, response) => void response.status(418).end("no"),
    }),
  );
  const { get, close } = await listening(createServer(app));
  const hook = fastify();
  await hook.register(ofFastify, {
    limiter,
    limits: () => clause.window("busy", SECOND),
    denied: (_: unknown, response: { code(status: number): { send(body: string): unknown } }) =>
      response.code(418).send("no"),
  });
  hook.get("/", () => "hello");
  const limited = ofFetch(limiter, () => clause.window("unreached", SECOND), {
    denied: () => new Response("no", { status: 418 }),
  });
  const injected = await hook.inject("/");
  const answers = [
    await get(""),
    new Response(injected.body, { status: injected.statusCode }),
    await limited(GET(), () => new Response("")),
  ];
  for (const answer of answers) assert.deepEqual([answer.status, await answer.text()], [418, "no"]);
  await hook.close();
  close();
});

test("wrong arguments are a TypeError", async () => {
  const limiter = new TestLimiter();
  const wrong: [() => unknown, RegExp][] = [
    [
      () => new RateLimitGuard(limiter, site, { limit: 5 } as never),
      /^TypeError: RateLimitGuard has no option "limit"/,
    ],
    [() => rateLimitHook(limiter, "throttle" as never), /^TypeError: rateLimitHook takes a function/],
    [() => ofExpress(site as never, site), /^TypeError: rateLimit takes a limiter, not a function/],
  ];
  for (const [make, says] of wrong) assert.throws(make, says);
  await assert.rejects(
    async () => fastify().register(ofFastify, { limiter, limits: site, max: 5 } as never),
    /^TypeError: rateLimitHook has no option "max"/,
  );
});
