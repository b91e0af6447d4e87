/** HTTP headers and problem details of replies, as in draft-ietf-httpapi-ratelimit-headers. */

import { checkFlag, checkOptions, notOneOf, periodMs, quote } from "../check.js";
import type { Denied } from "../errors.js";
import type { Limit } from "../limits.js";
import {
  clausesOf,
  hasDenied,
  inSeconds,
  isDecided,
  retryAfterOf,
  waitMs,
  type AllReply,
  type Reply,
} from "../replies.js";

/** Options of headers. */
export interface HeaderOptions {
  /**
   * The limits that were asked. They give each item its quota, window and unit, and a policy gives it a name. Default: those
   * of the clauses, which a reply to several limits knows.
   */
  limits?: Limit | readonly (Limit | undefined)[] | undefined;
  /** The names of the items. A name that occurs twice gets a number: "web", "web-2". Default: those given to the clauses. */
  names?: string | readonly (string | undefined)[] | undefined;
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

export const STYLE_OPTIONS = ["pk", "standard", "version", "xRateLimit"];
const HEADER_OPTIONS = ["limits", "names", ...STYLE_OPTIONS];

/** The largest integer in a structured field, RFC 9651. */
const MAX_INTEGER = 999_999_999_999_999n;
const SECOND_MS = 1000n;

const capped = (value: number | bigint): bigint => (BigInt(value) > MAX_INTEGER ? MAX_INTEGER : BigInt(value));
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
  const bytes = typeof pk === "string" ? new TextEncoder().encode(pk) : pk;
  return `;pk=:${btoa(String.fromCharCode(...bytes))}:`;
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
  /** True if the item is shown. Otherwise it only has a name. */
  standard: boolean;
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

function checkedLimit(limit: unknown): Limit | undefined {
  const isPolicy = typeof limit === "string" && limit.startsWith("@");
  const isOther = typeof limit === "object" && limit !== null && "period" in limit;
  if (limit === undefined || isPolicy || isOther) return limit as Limit | undefined;
  throw notOneOf("each of limits", 'a rate, a window or "@policy"', limit);
}

/** Returns the items of all replies. No two have the same name. */
function itemsOf(replies: readonly ReplyWithOptions[]): Item[] {
  const taken = new Set<string>();
  return replies.flatMap(({ reply, limits, names, pk, standard = true }) => {
    const answers = "answers" in reply ? reply.answers : [reply];
    const clauses = clausesOf(reply);
    return answers.map((answer, index): Item => {
      const clause = clauses[index];
      const limit = checkedLimit([limits].flat()[index]) ?? clause?.limit;
      const defaultName = answers.length === 1 ? "default" : `limit-${index + 1}`;
      // Not the name in the reply, which may be a key.
      const wanted =
        [names].flat()[index] ?? clause?.options.name ?? (typeof limit === "string" ? limit.slice(1) : defaultName);
      let name = wanted;
      for (let count = 2; taken.has(name); count += 1) name = `${wanted}-${count}`;
      taken.add(name);
      const key = Array.isArray(pk) ? (pk as PartitionKey[])[index] : (pk as PartitionKey);
      return { name, limit, reply: answer, pk: key, hasDenied: hasDenied(reply, index), standard };
    });
  });
}

/** A reply, several replies for one request with their options, or what a limiter threw instead: Denied or Busy. */
export type Answer = Reply | AllReply | readonly ReplyWithOptions[] | Error;

/** Returns the reply of Denied; for Busy, that of a denial that no limiter decided. Throws any other error. */
export function replyOf(error: Error): ReplyWithOptions {
  // It may be of another copy of this package, or of one whose classes were renamed by a minifier.
  if (error.name !== "Busy" && error.name !== "Denied") throw error;
  const { reply, limits = [] } = error as Pick<Denied, "reply"> & Partial<Denied>;
  return { reply, limits: limits.map(({ limit }) => limit), names: limits.map(({ options }) => options.name) };
}

/** Returns the replies after checking their options. */
function repliesIn(method: string, answer: Answer, options: HeaderOptions): readonly ReplyWithOptions[] {
  checkOptions(method, options, HEADER_OPTIONS);
  const isList = Array.isArray(answer);
  const one = answer instanceof Error ? replyOf(answer) : { reply: answer as Reply };
  const replies = isList ? (answer as readonly ReplyWithOptions[]) : [{ ...one, ...options }];
  for (const { reply: _, ...given } of replies) {
    checkOptions(method, given, HEADER_OPTIONS);
    checkFlag("standard", given.standard);
    checkFlag("xRateLimit", given.xRateLimit);
    if (given.version !== undefined && given.version !== 10) {
      throw new RangeError(`version must be 10, the draft that this package knows, not ${quote(given.version)}`);
    }
  }
  return replies;
}

/** Returns the reply that denies for the longest time; if none denies, the one with the least left. */
function tightest(replies: readonly ReplyWithOptions[]): Reply | undefined {
  const all = replies.map(({ reply }) => reply);
  const denials = all.filter(({ allowed }) => !allowed).sort((one, other) => waitMs(other) - waitMs(one));
  return denials[0] ?? all.sort((one, other) => one.remaining - other.remaining)[0];
}

/**
 * Returns the headers for a reply, or one set of headers for all limits of a request, such as those of a middleware and of a
 * route. RateLimit and RateLimit-Policy have an item for each limit. X-RateLimit-* are of the tightest limit: the one that
 * denies for the longest time, or else the one with the least left. Retry-After is set if the request is denied and can be
 * allowed later, and for Busy. Replies that no limiter decided are left out. Throws errors other than Denied and Busy.
 */
export function headers(answer: Answer, options: HeaderOptions = {}): Record<string, string> {
  const replies = repliesIn("headers", answer, options);
  const decided = replies.filter(({ reply }) => isDecided(reply));
  const fields: Record<string, string> = {};
  const items = itemsOf(decided).filter(({ standard }) => standard);
  if (items.length > 0) {
    fields["RateLimit-Policy"] = items.map(policyItem).join(", ");
    fields["RateLimit"] = items.map(limitItem).join(", ");
  }
  const shown = tightest(decided.filter(({ xRateLimit }) => xRateLimit ?? true));
  if (shown !== undefined) {
    fields["X-RateLimit-Limit"] = String(shown.limit);
    fields["X-RateLimit-Remaining"] = String(shown.remaining);
    fields["X-RateLimit-Reset"] = String(inSeconds(shown.resetAfterMs));
  }
  const deciding = tightest(replies.filter((each) => isDecided(each.reply) || each.reply.retryAfterMs !== null));
  return deciding === undefined || deciding.allowed ? fields : { ...fields, ...retryAfterOf(deciding) };
}

/**
 * Returns the problem details of a denied request, with its status: 429 `quota-exceeded`, or 503
 * `temporary-reduced-capacity` if a denial is one that no limiter decided, and for Busy. Throws errors other than Denied and
 * Busy.
 */
export function problem(answer: Answer, options: HeaderOptions = {}): Problem {
  const replies = repliesIn("problem", answer, options);
  const denials = replies.filter(({ reply }) => !reply.allowed);
  const isQuota = denials.length > 0 && denials.every(({ reply }) => isDecided(reply));
  const items = isQuota ? itemsOf(replies.filter(({ reply }) => isDecided(reply))) : [];
  return {
    type: `https://iana.org/assignments/http-problem-types#${isQuota ? "quota-exceeded" : "temporary-reduced-capacity"}`,
    title: isQuota
      ? "Request cannot be satisfied as assigned quota has been exceeded"
      : "Request cannot be satisfied due to temporary server capacity constraints",
    status: isQuota ? 429 : 503,
    "violated-policies": items.filter((item) => item.hasDenied).map(({ name }) => name),
  };
}

/** A response of an upstream, its headers as those of the Fetch API or of Node, or the text of Retry-After. */
export type RetryAfterSource = object | string | null | undefined;

/** The longest ban of the server. */
const MAX_BAN_MS = 31_557_600_000;
// The three forms of a date in RFC 9110. The second one, with a year of two digits, and the last one are obsolete.
const DATE = /^[A-Z][a-z]+, (\d\d)[ -]([A-Z][a-z]{2})[ -](\d{4}|\d\d) (\d\d:\d\d:\d\d) GMT$/;
const OLD_DATE = /^[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d:\d\d:\d\d) (\d{4})$/;

function retryAfterText(source: RetryAfterSource): unknown {
  if (typeof source !== "object" || source === null) return source;
  const { headers: fields = source } = source as { headers?: object };
  if ("get" in fields && typeof fields.get === "function") return (fields as Headers).get("retry-after");
  const [, value] = Object.entries(fields).find(([name]) => name.toLowerCase() === "retry-after") ?? [];
  return [value].flat()[0];
}

/** Returns the Unix time of a date in milliseconds; NaN for other texts. */
function dateMs(text: string, now: number): number {
  const [, month, day, time, year] = OLD_DATE.exec(text) ?? [];
  const [, ...given] = DATE.exec(text) ?? ["", day, month, year, time];
  let years = Number(given[2]);
  if (given[2]?.length === 2) {
    const thisYear = new Date(now).getUTCFullYear();
    years += thisYear - (thisYear % 100);
    // A year that seems to be more than 50 years ahead is one of the past.
    if (years > thisYear + 50) years -= 100;
  }
  const ms = Date.parse(`${given[0]} ${given[1]} ${years} ${given[3]} GMT`);
  // The 31st of February would be in March.
  return new Date(ms).getUTCDate() === Number(given[0]) ? ms : NaN;
}

/**
 * Returns how long a response of an upstream asks to wait by Retry-After, in milliseconds, at most the longest ban: a year of
 * 365.25 days. Undefined if there is nothing to wait for: without the header, with a text that is neither seconds nor a date,
 * and once its time has passed. `now` is the Unix time in milliseconds.
 *
 *     await limiter.close("upstream", RATE, retryAfter(response) ?? "30s");
 */
export function retryAfter(source: RetryAfterSource, now: number = Date.now()): number | undefined {
  const given = retryAfterText(source);
  if (typeof given !== "string") return undefined;
  const text = given.trim();
  const ms = /^\d+$/.test(text) ? Number(text) * 1000 : Math.ceil(dateMs(text, now) - now);
  return ms > 0 ? Math.min(ms, MAX_BAN_MS) : undefined;
}
