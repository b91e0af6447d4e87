/** The tables in clients/spec, which test all clients, in the terms of this client. Also doubles that several tests use. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import type { TestContext } from "node:test";

import { clause, type Clause, type Limit, type Limiter } from "../src/index.js";
import type { Period, Reply, ReplyWithOptions } from "../src/index.js";

/** The ids that this library makes. */
export const OWN_ID = / ID [\w-]{16}(?= |$)/g;

/**
 * A client of node-redis that records commands, without ids that this library made, and returns its replies in turn. A reply
 * that is an Error is thrown.
 */
export class Recorder {
  sent: string[] = [];
  /** The ids that this library made, in order. */
  ids: string[] = [];
  readonly replies: unknown[];

  constructor(...replies: unknown[]) {
    this.replies = replies;
  }

  async sendCommand(words: unknown[]): Promise<unknown> {
    const text = words.join(" ");
    this.ids.push(...(text.match(OWN_ID) ?? []).map((word) => word.slice(4)));
    this.sent.push(text.replace(OWN_ID, ""));
    const reply = this.replies.shift();
    if (reply instanceof Error) throw reply;
    return reply;
  }
}

/** Replaces setTimeout, and returns its calls. Node 18 and later versions mock timers in different ways. */
export function heldTimers(context: TestContext): { call: () => void; ms: number }[] {
  const held: { call: () => void; ms: number }[] = [];
  context.mock.method(globalThis, "setTimeout", (call: () => void, ms: number) => {
    held.push({ call, ms });
    return { unref: () => undefined };
  });
  return held;
}

/** The error of a connection to a port on which nothing listens. */
export const refused = (): Error =>
  Object.assign(new Error("connect ECONNREFUSED 127.0.0.1:1"), { code: "ECONNREFUSED" });

const load = (name: string) => JSON.parse(readFileSync(new URL(`../../../spec/${name}`, import.meta.url), "utf8"));

type LimitCase = string | { rate: [number, number, Period] } | { window: [number, Period, object] };

export interface Case {
  call: string;
  clause?: "throttle" | "window" | "acquire";
  key: string;
  limit?: LimitCase;
  quantity?: number;
  ids?: string[];
  options?: object;
  clauses?: (Case | Case[])[];
  duration?: number | string;
  words: string;
  reply: unknown;
  means: unknown;
}

export const CASES: Case[] = [...load("cases.json"), ...load("insight.json")];
export interface SpokenCase {
  say: string;
  options?: object;
  rate?: [number, number, string];
  window?: [number, string, object];
  error?: true;
}

/** Limits in words. */
export const SPOKEN: SpokenCase[] = load("spoken.json");
/** A reply with the options of its headers. */
export interface HeadersCase {
  limits?: LimitCase[];
  names?: string | string[];
  pk?: string | string[];
  reply: object;
}

/** Several limits that are reserved, and settled or charged as one. */
export interface SeveralCase {
  says: string;
  clauses: (Case | Case[])[];
  reply?: unknown;
  force?: true;
  paid: string[];
  denied?: string[];
  ids?: Record<string, string>;
  then?: "apply" | "release" | "renew";
  cost?: Record<string, number>;
  lease?: string;
  sent?: string[];
  replies?: unknown[];
  means?: unknown;
  raises?: string;
}
export const SEVERAL: SeveralCase[] = load("several.json");
/** Wrong arguments: "type" is a TypeError, "value" a RangeError. A mistake may be in a call, or in the cost of limits. */
export const MISTAKES: (Partial<Case> & {
  says: string;
  force?: true;
  cost?: Record<string, number>;
  error: "type" | "value";
})[] = load("mistakes.json");

/** Replies with their headers. */
export const HEADERS: (HeadersCase & { headers: Record<string, string> })[] = load("headers.json");
/** Several replies for one request, with its headers and the status of its refusal. */
export const HTTP: { asked: HeadersCase[]; status: number; violated?: string[]; headers: Record<string, string> }[] =
  load("http.json");

/** Addresses of peers with the header X-Forwarded-For, and the address of the client. */
export const ADDRESSES: {
  peer: string | null;
  forwarded_for?: string | null;
  proxies?: number;
  prefix?: number;
  address: string;
}[] = load("addresses.json");

/** Responses of an upstream, and the wait that their Retry-After asks for. */
export const RETRY_AFTER: {
  headers?: Record<string, string>;
  text?: string | null;
  now_ms?: number;
  wait_ms: number | null;
}[] = load("retry_after.json");

/** The numbers that all clients share, with their units. */
export const NUMBERS: {
  breaker: { failures: number; pause_ms: number; probe_ms: number };
  lease: { least_ms: number };
  renewal: { per_lease: number; default_lease_ms: number; least_ms: number };
  settling: { pauses_ms: number[] };
  held: { limit: LimitCase; lease_ms: number; held_ms: number }[];
} = load("numbers.json");

const camel = (name: string) => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());

/** Returns the value with the names of all fields in camel case. */
export function inCamelCase(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(inCamelCase);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [camel(name), inCamelCase(each)]));
}

export function limit(given: LimitCase): Limit {
  if (typeof given === "string") return given as Limit;
  if ("rate" in given) {
    const [burst, count, period] = given.rate;
    return { burst, count, period };
  }
  const [most, period, options] = given.window;
  return { limit: most, period, ...options };
}

/** Returns the reply that a case describes. */
export function replyOf(given: object): Reply {
  const reply = Object.assign({ reachable: true }, inCamelCase(given)) as Reply & { answers?: Reply[] };
  for (const each of [reply, ...(reply.answers ?? [])]) each.allowed = each.limited === 0;
  return reply;
}

/** Returns the reply of a case with the options of its headers. */
export function replyWithOptions(given: HeadersCase): ReplyWithOptions {
  const { names, pk } = given;
  return { reply: replyOf(given.reply), limits: (given.limits ?? []).map(limit), names, pk };
}

function asked(given: Case): [string, never, never] {
  const options = {
    ...(inCamelCase(given.options ?? {}) as object),
    ...("quantity" in given && { quantity: given.quantity }),
  };
  return [given.key, limit(given.limit as LimitCase) as never, options as never];
}

const clauseOf = (given: Case): Clause => clause[given.clause as "throttle"](...asked(given));
export const clausesOf = (given: Case | Case[]): Clause | Clause[] =>
  Array.isArray(given) ? given.map(clauseOf) : clauseOf(given);

/** Calls the method of a case. */
export function run(limiter: Limiter, given: Case): Promise<unknown> {
  const { key, ids = [], quantity, clauses } = given;
  const options = inCamelCase(given.options ?? {}) as object;
  if (clauses !== undefined) return limiter[camel(given.call) as "all"](clauses.map(clausesOf), options);
  switch (given.call) {
    case "apply":
      return limiter.apply(key, ids[0] as string, quantity);
    case "reset":
    case "info":
      return limiter[given.call](key);
    case "top":
      return limiter.top(options);
    case "policies":
      return limiter.policies();
    case "release":
      return limiter.release(key, ...ids);
    case "renew":
      return limiter.renew(key, ids[0] as string, options);
    case "held":
      return limiter.held(key);
    case "close":
      return limiter.close(key, limit(given.limit as LimitCase), given.duration as string, options);
    default:
      return limiter[camel(given.call) as "throttle"](...asked(given));
  }
}

/** Asserts that a result has the fields of the expected one. It may have more. */
export function means(found: unknown, expected: unknown, message: string): void {
  if (Array.isArray(expected)) {
    assert.equal((found as unknown[]).length, expected.length, message);
    expected.forEach((each, at) => means((found as unknown[])[at], each, message));
  } else if (typeof expected === "object" && expected !== null) {
    for (const [name, each] of Object.entries(expected)) {
      means((found as Record<string, unknown>)[name], each, `${message}: ${name}`);
    }
  } else {
    assert.strictEqual(found, expected, message);
  }
}

/** Returns a function that checks the class of an error, and the begin of its text. */
export const errorOf =
  (kind: typeof Error, text: string) =>
  (error: unknown): boolean =>
    error instanceof kind && error.message.startsWith(text);
