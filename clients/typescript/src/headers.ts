/** HTTP headers and problems that tell a client how it stands, as draft-ietf-httpapi-ratelimit-headers says. */

import { checkFlag, checkOptions, periodMs, quote } from "./check.js";
import type { Limit } from "./limits.js";
import type { AllReply, Reply } from "./replies.js";

/** What the headers say in addition to the reply. */
export interface HeaderOptions {
  /** The limits that were asked, for the quota, the window and the unit of each item. A policy's name names its item. */
  limits?: Limit | readonly (Limit | undefined)[] | undefined;
  /** The names of the items. A name that comes twice gets a number: "web", "web-2". */
  names?: string | readonly string[] | undefined;
  /** What each limit is counted by, such as a tenant: the partition key `pk` of the items. Clients see it. */
  pk?: PartitionKey | readonly (PartitionKey | undefined)[] | undefined;
  /** RateLimit and RateLimit-Policy. Default true. */
  standard?: boolean | undefined;
  /** The version of the draft that these two follow. Today there is 10, the default. */
  version?: 10 | undefined;
  /** X-RateLimit-Limit, -Remaining and -Reset, the last in seconds from now. Default true. */
  xRateLimit?: boolean | undefined;
}

/** Bytes, or a text as UTF-8. */
export type PartitionKey = string | Uint8Array;

/** A reply, and what else its headers say. */
export interface ReplyWithOptions extends HeaderOptions {
  /** What the limiter answered. */
  reply: Reply | AllReply;
}

/** The body of a denial, as RFC 9457 says: application/problem+json. */
export interface Problem {
  /** The URI of the kind of problem. */
  type: string;
  /** The same for people. */
  title: string;
  /** The status of the response. */
  status: 429 | 503;
  /** The names of the limits that denied; none of a 503. */
  "violated-policies": string[];
}

/** The media type of a problem. */
export const PROBLEM_TYPE = "application/problem+json";

export const HEADER_OPTIONS = ["limits", "names", "pk", "standard", "version", "xRateLimit"];

// The largest integer of RFC 9651.
const MOST = 999_999_999_999_999n;
const SECOND = 1000n;

const atMost = (value: number | bigint): bigint => (BigInt(value) > MOST ? MOST : BigInt(value));
const seconds = (ms: number): number => Math.max(0, Math.ceil(ms / 1000));
const divideUp = (one: bigint, other: bigint): bigint => (one + other - 1n) / other;

/**
 * The quota, and the whole seconds in which it comes back: a client that divides them never finds less than the true rate.
 */
function quota(limit: Limit | undefined, reply: Reply): { q: bigint; w?: bigint } {
  const q = BigInt(reply.limit);
  if (limit === undefined || typeof limit === "string") return { q };
  const ms = periodMs(limit.period);
  if (!ms) return { q };
  // The draft's windows are whole seconds.
  if (!("burst" in limit)) return ms % SECOND === 0n ? { q, w: ms / SECOND } : { q };
  // The time in which the whole bucket fills. A bucket of 1 that gets 3 a second is full after a third of a second: "1 in a
  // second" would be too little.
  const count = BigInt(limit.count);
  const w = divideUp((BigInt(limit.burst) + 1n) * ms, count * SECOND);
  const within = divideUp(count * w * SECOND, ms);
  return { q: within > q ? within : q, w };
}

/** The milliseconds until more is available, as far as the reply says. */
function untilMore(limit: Limit | undefined, reply: Reply): number {
  const { retryAfterMs, resetAfterMs } = reply;
  // What was denied may have been more than one: then some is available earlier. During a ban nothing is.
  const isRate = typeof limit === "object" && "burst" in limit;
  const isBanned = retryAfterMs !== null && reply.remaining === 0 && retryAfterMs >= resetAfterMs;
  const ms = isRate ? periodMs(limit.period) : null;
  if (!isRate || ms === null || isBanned) return retryAfterMs ?? resetAfterMs;
  // The bucket is full at the end of reset_after, and one less before each interval.
  const missing = Math.max(0, reply.limit - reply.remaining - 1);
  const exact = resetAfterMs - (missing * Number(ms)) / Number(limit.count);
  // Both times are rounded up, so one may be a millisecond behind the other.
  return Math.min(Math.max(exact, reply.remaining < reply.limit ? 1 : 0), retryAfterMs ?? Infinity);
}

function quoted(what: string, text: unknown): string {
  if (typeof text !== "string" || !/^[ -~]*$/.test(text)) {
    throw new TypeError(`the ${what} ${quote(text)} must be printable ASCII`);
  }
  return `"${text.replace(/[\\"]/g, "\\$&")}"`;
}

function partition(pk: PartitionKey | undefined): string {
  if (pk === undefined) return "";
  if (typeof pk !== "string" && !(pk instanceof Uint8Array)) {
    throw new TypeError(`pk must be a string or bytes, not ${quote(pk)}`);
  }
  return `;pk=:${Buffer.from(pk as string).toString("base64")}:`;
}

/** One limit's part of the headers. */
interface Item {
  name: string;
  limit: Limit | undefined;
  reply: Reply;
  pk: PartitionKey | undefined;
}

function quotaUnit(limit: Limit | undefined): string {
  if (limit === undefined || typeof limit === "string" || "burst" in limit) return "";
  if (limit.unit !== undefined) return `;qu=${quoted("unit", limit.unit)}`;
  return String(limit.period) === "0" ? ';qu="concurrent-requests"' : "";
}

function policy({ name, limit, reply, pk }: Item): string {
  const { q, w } = quota(limit, reply);
  const window = w === undefined ? "" : `;w=${atMost(w)}`;
  return `${quoted("name", name)};q=${atMost(q)}${quotaUnit(limit)}${window}${partition(pk)}`;
}

function serviceLimit({ name, limit, reply, pk }: Item): string {
  const wait = seconds(untilMore(limit, reply));
  const reset = wait === 0 ? "" : `;t=${atMost(wait)}`;
  return `${quoted("name", name)};r=${atMost(reply.remaining)}${reset}${partition(pk)}`;
}

function list<T>(given: T | readonly T[] | undefined): readonly T[] {
  return given === undefined ? [] : Array.isArray(given) ? (given as readonly T[]) : [given as T];
}

function checkLimit(limit: unknown): void {
  if (limit === undefined || (typeof limit === "string" && limit.startsWith("@"))) return;
  if (typeof limit === "object" && limit !== null && "period" in limit) return;
  throw new TypeError(`limits are rates, windows and "@policy", not ${quote(limit)}`);
}

function itemsOf({ reply, ...options }: ReplyWithOptions): Item[] {
  const limits = list<Limit | undefined>(options.limits);
  limits.forEach(checkLimit);
  const names = list(options.names);
  const keys = list<PartitionKey | undefined>(options.pk);
  // One partition key is that of all limits.
  const keyAt = (at: number) => (Array.isArray(options.pk) ? keys[at] : keys[0]);
  const answers = "answers" in reply ? reply.answers : [reply];
  return answers.map((answer, at) => {
    const limit = limits[at];
    const made = answers.length === 1 ? "default" : `limit-${at + 1}`;
    const name = names[at] ?? (typeof limit === "string" ? limit.slice(1) : made);
    return { name, limit, reply: answer, pk: keyAt(at) };
  });
}

/** The items of all answers, no two with one name. */
function uniqueItems(replies: readonly ReplyWithOptions[]): Item[][] {
  const taken = new Set<string>();
  return replies.map((each) =>
    itemsOf(each).map((item) => {
      let name = item.name;
      for (let count = 2; taken.has(name); count += 1) name = `${item.name}-${count}`;
      taken.add(name);
      return { ...item, name };
    }),
  );
}

function checkReplies(what: string, replies: readonly ReplyWithOptions[]): readonly ReplyWithOptions[] {
  for (const { reply: _, ...options } of replies) {
    checkOptions(what, options, HEADER_OPTIONS);
    checkFlag("standard", options.standard);
    checkFlag("xRateLimit", options.xRateLimit);
    if (options.version !== undefined && options.version !== 10) {
      throw new RangeError(`version must be 10, the draft that this package knows, not ${quote(options.version)}`);
    }
  }
  return replies.filter(({ reply }) => reply.reachable);
}

/** The milliseconds until a denied call can be allowed; Infinity if it can never be. */
const waitMs = (reply: Reply): number => reply.retryAfterMs ?? Infinity;

/** Returns the reply that denies the longest; if none denies, the one with the least left. */
function tightest(given: readonly ReplyWithOptions[]): Reply | undefined {
  const replies = given.map(({ reply }) => reply);
  const denials = replies.filter(({ allowed }) => !allowed);
  const pick = (from: Reply[], isTighter: (one: Reply, other: Reply) => boolean): Reply | undefined =>
    from.reduce<Reply | undefined>(
      (best, each) => (best === undefined || isTighter(each, best) ? each : best),
      undefined,
    );
  if (denials.length > 0) return pick(denials, (one, other) => waitMs(one) > waitMs(other));
  return pick(replies, (one, other) => one.remaining < other.remaining);
}

/**
 * One set of headers for all limits of a request, such as those of a middleware and of a route: RateLimit and
 * RateLimit-Policy have an item for each limit, X-RateLimit-* are of the tightest: the one that denies the longest, else the
 * one with the least left. Retry-After comes with a denial that has an end. An answer from when Redis could not be reached
 * says nothing.
 */
export function mergedHeaders(replies: readonly ReplyWithOptions[]): Record<string, string> {
  const reached = checkReplies("mergedHeaders", replies);
  const found: Record<string, string> = {};
  const items = uniqueItems(reached).flatMap((each, at) => ((reached[at]?.standard ?? true) ? each : []));
  if (items.length > 0) {
    found["RateLimit-Policy"] = items.map(policy).join(", ");
    found["RateLimit"] = items.map(serviceLimit).join(", ");
  }
  const shownBy = tightest(reached.filter(({ xRateLimit }) => xRateLimit ?? true));
  if (shownBy !== undefined) {
    found["X-RateLimit-Limit"] = String(shownBy.limit);
    found["X-RateLimit-Remaining"] = String(shownBy.remaining);
    found["X-RateLimit-Reset"] = String(seconds(shownBy.resetAfterMs));
  }
  const decides = tightest(reached);
  if (decides !== undefined && !decides.allowed && decides.retryAfterMs !== null) {
    found["Retry-After"] = String(seconds(decides.retryAfterMs));
  }
  return found;
}

/**
 * The headers for an answer; none if Redis could not be reached. RateLimit and RateLimit-Policy have one item for each
 * limit, X-RateLimit-* are of the limit that decides. Retry-After comes with a denial that has an end.
 */
export function headers(reply: Reply | AllReply, options: HeaderOptions = {}): Record<string, string> {
  checkOptions("headers", options, HEADER_OPTIONS);
  return mergedHeaders([{ reply, ...options }]);
}

const PROBLEMS = "https://iana.org/assignments/http-problem-types#";

/** The problem of a call that had no turn, or that no server answered: 503. */
export const REDUCED_CAPACITY: Problem = {
  type: `${PROBLEMS}temporary-reduced-capacity`,
  title: "Request cannot be satisfied due to temporary server capacity constraints",
  status: 503,
  "violated-policies": [],
};

/**
 * Returns the problem details of a denied request, with its status: 429 `quota-exceeded`, or 503
 * `temporary-reduced-capacity` if Redis could not be reached. Several replies for one request are given as for
 * mergedHeaders.
 */
export function problem(denied: Reply | AllReply | readonly ReplyWithOptions[], options: HeaderOptions = {}): Problem {
  const replies = Array.isArray(denied)
    ? (denied as readonly ReplyWithOptions[])
    : [{ reply: denied as Reply, ...options }];
  const reached = checkReplies("problem", replies);
  if (reached.every(({ reply }) => reply.allowed)) return REDUCED_CAPACITY;
  const items = uniqueItems(reached).flatMap((each, at) => (reached[at]?.reply.allowed ? [] : each));
  return {
    type: `${PROBLEMS}quota-exceeded`,
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    status: 429,
    "violated-policies": items.filter(({ reply }) => !reply.allowed).map(({ name }) => name),
  };
}
