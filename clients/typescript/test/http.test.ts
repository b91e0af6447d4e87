/** HTTP headers and problems: the tables of clients/spec, and the middleware of each framework. No Redis is needed. */

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
import { parseList, type Item } from "structured-headers";

import { rateLimit as ofExpress } from "../src/http/express.js";
import { rateLimit as ofFastify, rateLimitHook } from "../src/http/fastify.js";
import {
  Busy,
  clientAddress,
  headers,
  mergedHeaders,
  problem,
  Window,
  type Problem,
  type Reply,
} from "../src/index.js";
import { RateLimit, RateLimitGuard } from "../src/http/nestjs.js";
import { ADDRESSES, HEADERS, HTTP, replyOf, replyWithOptions } from "./fixtures.js";

const allowed = replyOf({ limited: 0, limit: 5, remaining: 4, retryAfterMs: null, resetAfterMs: 2000 });
const denied = replyOf({ limited: 1, limit: 5, remaining: 0, retryAfterMs: 1500, resetAfterMs: 9000 });
const unreached = replyOf({ ...denied, retryAfterMs: null, reachable: false });

const isWhole = (value: unknown): value is number => Number.isInteger(value) && Number(value) >= 0;

/** Returns the items as another parser reads them, after checking their fields. */
function itemsOf(found: Record<string, string>): [Item, Item][] {
  const policies = parseList(found["RateLimit-Policy"] ?? "") as Item[];
  const limits = parseList(found["RateLimit"] ?? "") as Item[];
  assert.deepEqual(
    limits.map(([name]) => name),
    policies.map(([name]) => name),
  );
  assert.equal(new Set(policies.map(([name]) => name)).size, policies.length, "names are unique");
  return policies.map((policy, at) => {
    const limit = limits[at] as Item;
    assert.equal(typeof policy[0], "string");
    assert.ok(isWhole(policy[1].get("q")) && isWhole(limit[1].get("r")), found["RateLimit"]);
    for (const name of ["w", "t"]) {
      const value = (name === "w" ? policy : limit)[1].get(name);
      assert.ok(value === undefined || (isWhole(value) && value > 0), found["RateLimit-Policy"]);
    }
    assert.deepEqual(policy[1].get("pk"), limit[1].get("pk"));
    assert.ok(["string", "undefined"].includes(typeof policy[1].get("qu")));
    return [policy, limit];
  });
}

suite("headers", () => {
  test("each reply gives the headers of its case, and a parser of structured fields reads them", () => {
    for (const given of HEADERS) {
      const { reply, ...options } = replyWithOptions(given);
      const found = headers(reply, options);
      assert.deepEqual(found, given.headers);
      if (reply.reachable) assert.ok(itemsOf(found).length > 0);
    }
  });

  test("the limits of one request end in one set of headers and one problem", () => {
    for (const given of HTTP) {
      const replies = given.asked.map(replyWithOptions);
      const found = mergedHeaders(replies);
      assert.deepEqual(found, given.headers);
      itemsOf(found);
      if (given.status === 200) continue;
      const unreachable = replies.some(({ reply }) => !reply.allowed && !reply.reachable);
      const body = unreachable ? problem(unreached) : problem(replies);
      assert.equal(body.status, given.status);
      assert.deepEqual(body["violated-policies"], given.violated);
    }
  });

  test("units, partition keys and the version of the draft are written and checked", () => {
    const limits = Window.per("5/min", { unit: "tokens" });
    const [[policy, limit]] = itemsOf(headers(allowed, { limits, pk: "käufer", version: 10 })) as [[Item, Item]];
    assert.equal(policy[1].get("qu"), "tokens");
    for (const item of [policy, limit]) {
      assert.equal(Buffer.from(item[1].get("pk") as ArrayBuffer).toString(), "käufer");
    }
    assert.match(headers(allowed, { pk: Buffer.from([0, 255]) })["RateLimit"] ?? "", /;pk=:AP8=:$/);
    assert.throws(() => headers(allowed, { version: 9 as never }), /version must be 10/);
    assert.throws(() => headers(allowed, { pk: 5 as never }), /pk must be a string or bytes/);
    for (const wrong of [5, "free", null, { limit: 5 }]) {
      assert.throws(
        () => headers(allowed, { limits: wrong as never }),
        /each of limits must be a rate, a window or "@policy"/,
      );
    }
    assert.throws(() => headers(allowed, { limits: { limit: 5, period: 60, unit: "ä" } }), /printable ASCII/);
  });

  test("each kind can be left out", () => {
    assert.deepEqual(headers(denied, { standard: false, xRateLimit: false }), { "Retry-After": "2" });
    assert.throws(() => headers(denied, { names: "ä" }), /^RangeError: .* printable ASCII/);
    assert.throws(() => headers(denied, { names: 5 as never }), /^TypeError: the name must be a string, not 5/);
    const replies = [
      { reply: allowed, names: "a", standard: false },
      { reply: denied, names: "b", xRateLimit: false },
    ];
    assert.deepEqual(mergedHeaders(replies), {
      "RateLimit-Policy": '"b";q=5',
      RateLimit: '"b";r=0;t=2',
      "X-RateLimit-Limit": "5",
      "X-RateLimit-Remaining": "4",
      "X-RateLimit-Reset": "2",
      "Retry-After": "2",
    });
  });
});

suite("clientAddress", () => {
  test("each client has the address of its case", () => {
    for (const { peer, forwarded_for: forwardedFor, proxies, prefix: ipv6Prefix, address } of ADDRESSES) {
      const options = { proxies, ipv6Prefix };
      const what = `${peer} ${forwardedFor} ${proxies}`;
      assert.equal(clientAddress(peer ?? undefined, { forwardedFor, ...options }), address, what);
      const request = { socket: { remoteAddress: peer ?? undefined }, headers: { "x-forwarded-for": forwardedFor } };
      assert.equal(clientAddress(request, options), address, what);
    }
  });

  test("a request of the Fetch API has no connection", () => {
    const request = new Request("http://a/", { headers: { "X-Forwarded-For": "192.0.2.66, 2001:db8::1" } });
    assert.deepEqual([clientAddress(request), clientAddress(request, { proxies: 1 })], ["", "2001:db8::/64"]);
    assert.equal(clientAddress(new Request("http://a/"), { proxies: 1 }), "");
  });

  test("wrong arguments are refused", () => {
    for (const from of [null, 5])
      assert.throws(() => clientAddress(from as never), /^TypeError: clientAddress takes a/);
    const wrong: [object, RegExp][] = [
      [{ proxies: -1 }, /^RangeError: proxies must be at least 0/],
      [{ proxies: true }, /^TypeError: proxies must be a number/],
      [{ ipv6Prefix: 0 }, /^RangeError: ipv6Prefix must be from 1 to 128/],
      [{ ipv6Prefix: 129 }, /^RangeError: ipv6Prefix must be from 1 to 128/],
      [{ prefix: 64 }, /^TypeError: clientAddress has no option "prefix"/],
    ];
    for (const [options, says] of wrong) assert.throws(() => clientAddress("::1", options), says);
  });
});

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
