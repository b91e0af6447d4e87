/** HTTP headers, problems and keys of addresses: the tables of clients/spec. */

import assert from "node:assert/strict";
import { describe as suite, test } from "node:test";

import { parseList, type Item } from "structured-headers";

import {
  Busy,
  clause,
  clientAddress,
  Denied,
  headers,
  Limiter,
  MemoryLimiter,
  problem,
  retryAfter,
  semaphore,
  Window,
} from "../src/index.js";
import { ADDRESSES, HEADERS, HTTP, Recorder, refused, RETRY_AFTER, replyOf, replyWithOptions } from "./fixtures.js";

const allowed = replyOf({ limited: 0, limit: 5, remaining: 4, retryAfterMs: null, resetAfterMs: 2000 });
const denied = replyOf({ limited: 1, limit: 5, remaining: 0, retryAfterMs: 1500, resetAfterMs: 9000 });

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
  test("a reply to several limits has the limits and the names of its clauses, but not their keys", async () => {
    const limiter = new MemoryLimiter();
    const [site, jobs] = [Window.per("1/min"), semaphore(1)];
    const clauses = [clause.window("key:sk-1", site), clause.acquire("jobs", jobs, { name: "jobs" })];
    const [allowed, looked, denied] = [
      await limiter.all(clauses),
      await limiter.allRo(clauses),
      await limiter.all(clauses),
    ];
    for (const reply of [allowed, looked, denied]) {
      const policies = headers(reply)["RateLimit-Policy"];
      assert.equal(policies, '"limit-1";q=1;w=60, "jobs";q=1;qu="concurrent-requests"');
    }
    assert.deepEqual(problem(denied)["violated-policies"], ["limit-1", "jobs"]);
    assert.match(
      headers(allowed, { names: "site", limits: Window.per("2/day") })["RateLimit-Policy"]!,
      /^"site";q=1;w=86400, "jobs"/,
    );
    // A limiter in `unreachable` keeps them.
    const fallback = new Limiter(new Recorder(refused()), { unreachable: new MemoryLimiter() });
    const { RateLimit } = headers(await fallback.all(clauses));
    assert.match(RateLimit!, /^"limit-1".*"jobs"/);
  });

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
      const found = headers(replies);
      assert.deepEqual(found, given.headers);
      itemsOf(found);
      if (given.status === 200) continue;
      const body = problem(replies);
      assert.equal(body.status, given.status);
      assert.deepEqual(body["violated-policies"], given.violated);
    }
  });

  test("a denial by a limiter that decides without Redis is one as any other", () => {
    const reply = { ...denied, reachable: false };
    assert.deepEqual(headers(reply), headers(denied));
    assert.equal(problem(reply).status, 429);
    // One whose limit is 0 has answers.
    const none = { ...reply, limit: 0, retryAfterMs: null };
    assert.equal(problem(none).status, 503);
    assert.equal(problem({ ...none, clause: 1, answers: [none], paid: [], denied: ["a"], names: ["a"] }).status, 429);
  });

  test("Busy is a 503 and Denied a 429, both with Retry-After, and any other error is thrown", () => {
    const limits = [clause.acquire("key", Window.per("5/min"), { name: "web" })];
    const [busy, refused] = [new Busy("busy"), new Denied(denied, limits)];
    assert.equal(headers(refused)["RateLimit-Policy"], '"web";q=5;w=60');
    const soon = { "Retry-After": "1" };
    assert.deepEqual([headers(busy), problem(busy).status, problem(busy)["violated-policies"]], [soon, 503, []]);
    const options = { limits: Window.per("5/min"), names: "tokens" };
    assert.deepEqual(
      [headers(refused, options), problem(refused, options)],
      [headers(denied, options), problem(denied, options)],
    );
    const thrown = [busy, refused, new Denied(replyOf({ limited: 1, limit: 0, retryAfterMs: null, reachable: false }))];
    assert.deepEqual(
      thrown.map((error) => [error.status, error.statusCode, error.headers]),
      [
        [503, 503, soon],
        [429, 429, { "Retry-After": "2" }],
        [503, 503, {}],
      ],
    );
    // As a minifier renames classes.
    Object.defineProperty(Busy, "name", { value: "a" });
    assert.equal(problem(new Busy("busy")).status, 503);
    const trouble = new Error("trouble");
    for (const call of [headers, problem]) assert.throws(() => call(trouble), trouble);
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
    assert.throws(() => headers(allowed, { limits: { limit: 5, period: "60s", unit: "ä" } }), /printable ASCII/);
    assert.throws(() => headers(allowed, { limits: { limit: 5, period: 60 as never } }), /write "60s", not 60$/);
  });

  test("each kind can be left out", () => {
    assert.deepEqual(headers(denied, { standard: false, xRateLimit: false }), { "Retry-After": "2" });
    assert.throws(() => headers(denied, { names: "ä" }), /^RangeError: .* printable ASCII/);
    assert.throws(() => headers(denied, { names: 5 as never }), /^TypeError: the name must be a string, not 5/);
    const replies = [
      { reply: allowed, names: "a", standard: false },
      { reply: denied, names: "b", xRateLimit: false },
    ];
    assert.deepEqual(headers(replies), {
      "RateLimit-Policy": '"b";q=5',
      RateLimit: '"b";r=0;t=2',
      "X-RateLimit-Limit": "5",
      "X-RateLimit-Remaining": "4",
      "X-RateLimit-Reset": "2",
      "Retry-After": "2",
    });
  });
});

test("retryAfter reads the wait of each case, from a response, its headers, or the text", () => {
  for (const { headers: fields, text, now_ms: now, wait_ms: wait } of RETRY_AFTER) {
    const sources =
      fields === undefined ? [text] : [fields, { headers: fields }, new Response("", { headers: fields })];
    for (const source of sources) assert.equal(retryAfter(source, now) ?? null, wait, JSON.stringify(source));
  }
  for (const source of [undefined, {}, { "retry-after": undefined }, { "retry-after": 5 }, new Headers()]) {
    assert.equal(retryAfter(source as object), undefined);
  }
  assert.equal(retryAfter({ "retry-after": ["5", "6"] }), 5000);
  const [thisYear, year] = [Date.UTC(2026, 0), (text: string) => retryAfter(text, Date.UTC(2026, 0))];
  assert.equal(year("Friday, 02-Jan-26 00:00:00 GMT"), 86_400_000);
  assert.equal(year("Saturday, 01-Jan-77 00:00:00 GMT"), undefined, "51 years ahead is 1977");
  assert.equal(retryAfter("Thu, 01 Jan 2026 00:00:01 GMT", thisYear), 1000);
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
