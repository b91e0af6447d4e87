/** The middleware of each framework. No Redis is needed. */

import "reflect-metadata";

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { after, describe as suite, test } from "node:test";

import { Controller, Get, Module, type INestApplication, type Type } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ExpressAdapter } from "@nestjs/platform-express";
import { FastifyAdapter } from "@nestjs/platform-fastify";
import express from "express";
import { fastify, type FastifyInstance } from "fastify";

import { rateLimit as ofExpress } from "../src/http/express.js";
import { rateLimit as ofFastify, rateLimitHook } from "../src/http/fastify.js";
import { Busy, Window, type Problem, type Reply } from "../src/index.js";
import { RateLimit, RateLimitGuard } from "../src/http/nestjs.js";
import { replyOf } from "./fixtures.js";

const allowed = replyOf({ limited: 0, limit: 5, remaining: 4, retryAfterMs: null, resetAfterMs: 2000 });
const denied = replyOf({ limited: 1, limit: 5, remaining: 0, retryAfterMs: 1500, resetAfterMs: 9000 });
const unreached = replyOf({ ...denied, retryAfterMs: null, reachable: false });

/** What a framework is asked: the application has one limit, and each route another. */
interface App {
  close(): unknown;
  port: number;
}

/** Answers of the application's limit and of the route's, by the path. */
const ROUTE: Record<string, Reply | null | Error> = {
  "/allowed": { ...allowed, limit: 2, remaining: 1 },
  "/denied": denied,
  "/unlimited": null,
  "/unreached": unreached,
  "/busy": new Busy("busy"),
  "/broken": new Error("trouble"),
};
const site = () => ({ ...allowed, remaining: 3 });
const SITE = { limits: Window.per("5/min"), names: "site" };
const route = (url: string | undefined): Reply | null | undefined => {
  const found = ROUTE[String(url)];
  if (found instanceof Error) throw found;
  return found;
};
const ON_ROUTE = { limits: Window.per("2/s"), names: "route" };

async function listening(server: Server): Promise<App> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

function expressApp(): Promise<App> {
  const app = express();
  app.use(ofExpress(site, SITE));
  app.get(
    "/:path",
    ofExpress((request: express.Request) => route(request.path), ON_ROUTE),
    (_, response) => void response.send("hello"),
  );
  app.use((error: Error, _: express.Request, response: express.Response, __: express.NextFunction) => {
    response.status(500).send(error.message);
  });
  return listening(createServer(app));
}

async function fastifyApp(): Promise<App> {
  const app: FastifyInstance = fastify();
  await app.register(ofFastify, { check: site, ...SITE });
  app.get("/:path", { onRequest: rateLimitHook(({ url }) => route(url), ON_ROUTE) }, () => "hello");
  await app.listen({ port: 0, host: "127.0.0.1" });
  return { port: (app.server.address() as AddressInfo).port, close: () => app.close() };
}

/** Decorators are called as functions: the tests are compiled without them. */
function nestModule(): Type {
  class Hello {
    hello(): string {
      return "hello";
    }
  }
  Controller()(Hello);
  const hello = Object.getOwnPropertyDescriptor(Hello.prototype, "hello") as PropertyDescriptor;
  Get(":path")(Hello.prototype, "hello", hello);
  RateLimit((request: { url: string }) => route(request.url), ON_ROUTE)(Hello.prototype, "hello", hello);
  class App {}
  const guard = { provide: APP_GUARD, useValue: new RateLimitGuard(site, SITE) };
  Module({ controllers: [Hello], providers: [guard] })(App);
  return App;
}

async function nestApp(adapter: ExpressAdapter | FastifyAdapter): Promise<App> {
  const app: INestApplication = await NestFactory.create(nestModule(), adapter as never, { logger: false });
  await app.listen(0, "127.0.0.1");
  const server = app.getHttpServer() as Server;
  return { port: (server.address() as AddressInfo).port, close: () => app.close() };
}

const FRAMEWORKS: [string, () => Promise<App>][] = [
  ["Express", expressApp],
  ["Fastify", fastifyApp],
  ["Nest on Express", () => nestApp(new ExpressAdapter())],
  ["Nest on Fastify", () => nestApp(new FastifyAdapter())],
];

for (const [name, start] of FRAMEWORKS) {
  suite(name, () => {
    let app: App | undefined;
    after(() => app?.close());
    const get = async (path: string) => {
      app ??= await start();
      const answer = await fetch(`http://127.0.0.1:${app.port}${path}`);
      const found = Object.fromEntries(answer.headers);
      return { status: answer.status, headers: found, body: await answer.text() };
    };

    test("an application's limit and a route's end in one set of headers, the tightest in X-RateLimit", async () => {
      const { status, headers: found, body } = await get("/allowed");
      assert.deepEqual([status, body], [200, "hello"]);
      assert.equal(found["ratelimit-policy"], '"site";q=5;w=60, "route";q=2;w=1');
      assert.equal(found["ratelimit"], '"site";r=3;t=2, "route";r=1;t=2');
      assert.deepEqual([found["x-ratelimit-limit"], found["x-ratelimit-remaining"]], ["2", "1"]);
      assert.equal(found["retry-after"], undefined);
    });

    test("a route without a limit has the headers of the application's", async () => {
      for (const path of ["/unlimited", "/undefined"]) {
        const { status, headers: found } = await get(path);
        assert.deepEqual([status, found["ratelimit"], found["x-ratelimit-limit"]], [200, '"site";r=3;t=2', "5"], path);
      }
    });

    test("a denial is 429 with Retry-After and a problem that names the limit", async () => {
      const { status, headers: found, body } = await get("/denied");
      assert.deepEqual([status, found["retry-after"], found["x-ratelimit-remaining"]], [429, "2", "0"]);
      assert.equal(found["ratelimit"], '"site";r=3;t=2, "route";r=0;t=2');
      assert.match(found["content-type"] ?? "", /^application\/problem\+json/);
      const expected: Problem = {
        type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        status: 429,
        "violated-policies": ["route"],
      };
      assert.deepEqual(JSON.parse(body), expected);
    });

    test("a denial without an answer of Redis, and a call that had no turn, are 503", async () => {
      for (const path of ["/unreached", "/busy"]) {
        const { status, headers: found, body } = await get(path);
        assert.deepEqual([status, found["retry-after"], found["ratelimit"]], [503, undefined, '"site";r=3;t=2'], path);
        assert.match(found["content-type"] ?? "", /^application\/problem\+json/);
        assert.match(body, /"type":"https:\/\/iana.org\/assignments\/http-problem-types#temporary-reduced-capacity"/);
      }
    });

    test("another error is the framework's", async () => {
      assert.equal((await get("/broken")).status, 500);
    });
  });
}

test("a middleware that asks twice has one item", async () => {
  let remaining = 5;
  const limit = ofExpress(() => ({ ...allowed, remaining: (remaining -= 1) }), { names: "a" });
  const app = express();
  app.use(limit);
  app.get("/", limit, (_, response) => void response.send("hello"));
  const { port, close } = await listening(createServer(app));
  const answer = await fetch(`http://127.0.0.1:${port}/`);
  assert.equal(answer.headers.get("ratelimit"), '"a";r=3;t=2');
  close();
});

test("a program can answer denials by itself", async () => {
  const app = fastify();
  const options = {
    denied: (_: unknown, response: { code(status: number): { send(body: string): unknown } }) =>
      response.code(418).send("no"),
  };
  await app.register(ofFastify, { check: ({ url }) => route(url), ...options });
  app.get("/:path", () => "hello");
  for (const [path, retryAfter] of [
    ["/denied", "2"],
    ["/busy", undefined],
  ] as const) {
    const answer = await app.inject(path);
    assert.deepEqual([answer.statusCode, answer.body, answer.headers["retry-after"]], [418, "no", retryAfter]);
  }
  await app.close();
});

test("unknown options are a TypeError", async () => {
  assert.throws(
    () => new RateLimitGuard(site, { limit: 5 } as never),
    /^TypeError: RateLimitGuard has no option "limit"/,
  );
  assert.throws(() => rateLimitHook("throttle" as never), /^TypeError: rateLimitHook takes a function/);
  await assert.rejects(
    async () => fastify().register(ofFastify, { check: site, max: 5 } as never),
    /^TypeError: rateLimitHook has no option "max"/,
  );
});
