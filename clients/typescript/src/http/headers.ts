/** HTTP headers and problem details of replies, as in draft-ietf-httpapi-ratelimit-headers. */

import { checkFlag, checkOptions, notOneOf, periodMs, quote } from "../check.js";
import type { Limit } from "../limits.js";
import type { AllReply, Reply } from "../replies.js";

/** Options of headers. */
export interface HeaderOptions {
  /** The limits that were asked. They give each item its quota, window and unit, and a policy gives it a name. */
  limits?: Limit | readonly (Limit | undefined)[] | undefined;
  /** The names of the items. A name that occurs twice gets a number: "web", "web-2". */
  names?: string | readonly string[] | undefined;
  /** The partition key of each limit, such as the tenant that it is counted by, or one for all. Clients can read it. */
  pk?: PartitionKey | readonly (PartitionKey | undefined)[] | undefined;
  /** Sets RateLimit and RateLimit-Policy. Default true. */
  standard?: boolean | undefined;
  /** The version of the draft for these two. Only 10, the default, is known. */
  version?: 10 | undefined;
  /** Sets X-RateLimit-Limit, -Remaining and -Reset, the last in seconds from now. Default true. */
  xRateLimit?: boolean | undefined;
}

/** A partition key: bytes, or a text, which is encoded as UTF-8. */
export type PartitionKey = string | Uint8Array;

/** A reply with the options of its headers. */
export interface ReplyWithOptions extends HeaderOptions {
  /** The reply of the limiter. */
  reply: Reply | AllReply;
}

/** The body of the response to a denied request: problem details of RFC 9457. */
export interface Problem {
  /** The URI of the type of problem. */
  type: string;
  /** The type of problem in words. */
  title: string;
  /** The status of the response. */
  status: 429 | 503;
  /** The names of the limits that denied; empty with 503. */
  "violated-policies": string[];
}

/** The media type of a problem. */
export const PROBLEM_TYPE = "application/problem+json";

export const HEADER_OPTIONS = ["limits", "names", "pk", "standard", "version", "xRateLimit"];

/** The largest integer in a structured field, RFC 9651. */
const MAX_INTEGER = 999_999_999_999_999n;
const SECOND_MS = 1000n;

const capped = (value: number | bigint): bigint => (BigInt(value) > MAX_INTEGER ? MAX_INTEGER : BigInt(value));
const inSeconds = (ms: number): number => Math.max(0, Math.ceil(ms / 1000));
const divideUp = (dividend: bigint, divisor: bigint): bigint => (dividend + divisor - 1n) / divisor;

/** Returns the quota, and the window in whole seconds. Their quotient is never below the true rate. */
function quotaOf(limit: Limit | undefined, reply: Reply): { quota: bigint; windowSeconds?: bigint } {
  const quota = BigInt(reply.limit);
  if (limit === undefined || typeof limit === "string") return { quota };
  const ms = periodMs(limit.period);
  if (!ms) return { quota };
  if (!("burst" in limit)) return ms % SECOND_MS === 0n ? { quota, windowSeconds: ms / SECOND_MS } : { quota };
  // The time in which the whole bucket fills, rounded up. A bucket of 1 that gets 3 in a second is full after a third of
  // one: a quota of 1 in a second would be too low.
  const count = BigInt(limit.count);
  const windowSeconds = divideUp((BigInt(limit.burst) + 1n) * ms, count * SECOND_MS);
  const added = divideUp(count * windowSeconds * SECOND_MS, ms);
  return { quota: added > quota ? added : quota, windowSeconds };
}

/** Returns the milliseconds until more is available, as far as the reply says. */
function untilMore(limit: Limit | undefined, reply: Reply): number {
  const { retryAfterMs, resetAfterMs } = reply;
  const isRate = typeof limit === "object" && "burst" in limit;
  const isBanned = retryAfterMs !== null && reply.remaining === 0 && retryAfterMs >= resetAfterMs;
  const ms = isRate ? periodMs(limit.period) : null;
  if (!isRate || ms === null || isBanned) return retryAfterMs ?? resetAfterMs;
  // The bucket is full after reset_after, and one less in each interval before. If the call was denied for more than one,
  // some is available before retry_after.
  const missing = Math.max(0, reply.limit - reply.remaining - 1);
  const exact = resetAfterMs - (missing * Number(ms)) / Number(limit.count);
  // Both times are rounded up, so either may be a millisecond too long.
  return Math.min(Math.max(exact, reply.remaining < reply.limit ? 1 : 0), retryAfterMs ?? Infinity);
}

function quoted(field: string, text: unknown): string {
  if (typeof text !== "string") throw new TypeError(`the ${field} must be a string, not ${quote(text)}`);
  if (!/^[ -~]*$/.test(text)) throw new RangeError(`the ${field} ${quote(text)} must be printable ASCII`);
  return `"${text.replace(/[\\"]/g, "\\$&")}"`;
}

function partitionParameter(pk: PartitionKey | undefined): string {
  if (pk === undefined) return "";
  if (typeof pk !== "string" && !(pk instanceof Uint8Array)) {
    throw new TypeError(`pk must be a string or bytes, not ${quote(pk)}`);
  }
  return `;pk=:${Buffer.from(pk as string).toString("base64")}:`;
}

function unitParameter(limit: Limit | undefined): string {
  if (limit === undefined || typeof limit === "string" || "burst" in limit) return "";
  if (limit.unit !== undefined) return `;qu=${quoted("unit", limit.unit)}`;
  return String(limit.period) === "0" ? ';qu="concurrent-requests"' : "";
}

/** One limit in RateLimit and in RateLimit-Policy. */
interface Item {
  name: string;
  limit: Limit | undefined;
  reply: Reply;
  pk: PartitionKey | undefined;
  /** True if this limit denied the call. */
  hasDenied: boolean;
}

/**
 * Returns whether the limit of an answer denied the call. Another one that is in shadow, or in a group whose other limit had
 * room, may have a denial as its answer.
 */
function hasDenied(reply: Reply | AllReply, index: number): boolean {
  if (!("answers" in reply)) return !reply.allowed;
  // A reply that the program made itself need not have the names.
  const { names, denied } = reply as Partial<AllReply>;
  if (names === undefined) return !reply.allowed && reply.answers[index]?.allowed === false;
  return denied?.includes(names[index] as string) === true;
}

/** Returns an item of RateLimit-Policy. */
function policyItem({ name, limit, reply, pk }: Item): string {
  const { quota, windowSeconds } = quotaOf(limit, reply);
  const window = windowSeconds === undefined ? "" : `;w=${capped(windowSeconds)}`;
  return `${quoted("name", name)};q=${capped(quota)}${unitParameter(limit)}${window}${partitionParameter(pk)}`;
}

/** Returns an item of RateLimit. */
function limitItem({ name, limit, reply, pk }: Item): string {
  const wait = inSeconds(untilMore(limit, reply));
  const reset = wait === 0 ? "" : `;t=${capped(wait)}`;
  return `${quoted("name", name)};r=${capped(reply.remaining)}${reset}${partitionParameter(pk)}`;
}

function toArray<T>(values: T | readonly T[] | undefined): readonly T[] {
  return values === undefined ? [] : Array.isArray(values) ? (values as readonly T[]) : [values as T];
}

function checkLimit(limit: unknown): void {
  if (limit === undefined || (typeof limit === "string" && limit.startsWith("@"))) return;
  if (typeof limit === "object" && limit !== null && "period" in limit) return;
  throw notOneOf("each of limits", 'a rate, a window or "@policy"', limit);
}

function itemsOf({ reply, ...options }: ReplyWithOptions): Item[] {
  const limits = toArray<Limit | undefined>(options.limits);
  limits.forEach(checkLimit);
  const names = toArray(options.names);
  const keys = toArray<PartitionKey | undefined>(options.pk);
  const answers = "answers" in reply ? reply.answers : [reply];
  return answers.map((answer, index) => {
    const limit = limits[index];
    const defaultName = answers.length === 1 ? "default" : `limit-${index + 1}`;
    const name = names[index] ?? (typeof limit === "string" ? limit.slice(1) : defaultName);
    const pk = Array.isArray(options.pk) ? keys[index] : keys[0];
    return { name, limit, reply: answer, pk, hasDenied: hasDenied(reply, index) };
  });
}

/** Returns the items of each reply. No two items have the same name. */
function uniqueItems(replies: readonly ReplyWithOptions[]): Item[][] {
  const taken = new Set<string>();
  return replies.map((reply) =>
    itemsOf(reply).map((item) => {
      let name = item.name;
      for (let count = 2; taken.has(name); count += 1) name = `${item.name}-${count}`;
      taken.add(name);
      return { ...item, name };
    }),
  );
}

/** Checks the options of replies. Returns the replies that are from a server, as the others say nothing about limits. */
function checkReplies(method: string, replies: readonly ReplyWithOptions[]): readonly ReplyWithOptions[] {
  for (const { reply: _, ...options } of replies) {
    checkOptions(method, options, HEADER_OPTIONS);
    checkFlag("standard", options.standard);
    checkFlag("xRateLimit", options.xRateLimit);
    if (options.version !== undefined && options.version !== 10) {
      throw new RangeError(`version must be 10, the draft that this package knows, not ${quote(options.version)}`);
    }
  }
  return replies.filter(({ reply }) => reply.reachable);
}

/** The longest wait for what others hold. */
const HELD_WAIT_MS = 1000;

/**
 * Returns how long a denied client should wait; Infinity if waiting does not help. That is at most a second if only others
 * hold what is missing: they may give it back at any time.
 */
function waitMs(reply: Reply | AllReply): number {
  const wait = reply.retryAfterMs ?? Infinity;
  if (reply.limited === 2) return Math.min(wait, HELD_WAIT_MS);
  const answers = "answers" in reply ? reply.answers : [];
  const waits = answers.filter((_, index) => hasDenied(reply, index)).map(waitMs);
  // An answer without a wait may be that of a group whose other limit can be waited for.
  return waits.length > 0 ? Math.min(wait, Math.max(...waits)) : wait;
}

/** Returns the reply that denies for the longest time; if none denies, the one with the least left. */
function tightest(repliesWithOptions: readonly ReplyWithOptions[]): Reply | undefined {
  const replies = repliesWithOptions.map(({ reply }) => reply);
  const denials = replies.filter(({ allowed }) => !allowed);
  const [first, ...others] = denials.length > 0 ? denials : replies;
  const isTighter = (one: Reply, other: Reply): boolean =>
    denials.length > 0 ? waitMs(one) > waitMs(other) : one.remaining < other.remaining;
  return others.reduce<Reply | undefined>((best, reply) => (best && isTighter(reply, best) ? reply : best), first);
}

/**
 * Returns one set of headers for all limits of a request, such as those of a middleware and of a route. RateLimit and
 * RateLimit-Policy have an item for each limit. X-RateLimit-* are of the tightest limit: the one that denies for the longest
 * time, or else the one with the least left. Retry-After is set if the request is denied and can be allowed later. Replies
 * without a server are left out.
 */
export function mergedHeaders(replies: readonly ReplyWithOptions[]): Record<string, string> {
  const reached = checkReplies("mergedHeaders", replies);
  const fields: Record<string, string> = {};
  const items = uniqueItems(reached).flatMap((group, index) => ((reached[index]?.standard ?? true) ? group : []));
  if (items.length > 0) {
    fields["RateLimit-Policy"] = items.map(policyItem).join(", ");
    fields["RateLimit"] = items.map(limitItem).join(", ");
  }
  const shown = tightest(reached.filter(({ xRateLimit }) => xRateLimit ?? true));
  if (shown !== undefined) {
    fields["X-RateLimit-Limit"] = String(shown.limit);
    fields["X-RateLimit-Remaining"] = String(shown.remaining);
    fields["X-RateLimit-Reset"] = String(inSeconds(shown.resetAfterMs));
  }
  const deciding = tightest(reached);
  if (deciding !== undefined && !deciding.allowed && deciding.retryAfterMs !== null) {
    fields["Retry-After"] = String(inSeconds(waitMs(deciding)));
  }
  return fields;
}

/**
 * Returns the headers for a reply; none if Redis could not be reached. RateLimit and RateLimit-Policy have an item for each
 * limit. X-RateLimit-* are of the limit that decides. Retry-After is set if the call was denied and can be allowed later.
 */
export function headers(reply: Reply | AllReply, options: HeaderOptions = {}): Record<string, string> {
  checkOptions("headers", options, HEADER_OPTIONS);
  return mergedHeaders([{ reply, ...options }]);
}

const PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#";

/** The problem if the server did not get to a call, or could not be reached. */
export const REDUCED_CAPACITY: Problem = {
  type: `${PROBLEM_TYPES}temporary-reduced-capacity`,
  title: "Request cannot be satisfied due to temporary server capacity constraints",
  status: 503,
  "violated-policies": [],
};

/**
 * Returns the problem details of a denied request, with its status: 429 `quota-exceeded`, or 503
 * `temporary-reduced-capacity` if Redis could not be reached. Several replies for one request are given as to mergedHeaders.
 */
export function problem(denied: Reply | AllReply | readonly ReplyWithOptions[], options: HeaderOptions = {}): Problem {
  const replies = Array.isArray(denied)
    ? (denied as readonly ReplyWithOptions[])
    : [{ reply: denied as Reply, ...options }];
  const reached = checkReplies("problem", replies);
  if (reached.every(({ reply }) => reply.allowed)) return REDUCED_CAPACITY;
  const denying = uniqueItems(reached)
    .flat()
    .filter((item) => item.hasDenied);
  return {
    type: `${PROBLEM_TYPES}quota-exceeded`,
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    status: 429,
    "violated-policies": denying.map(({ name }) => name),
  };
}
