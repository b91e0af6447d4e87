/** HTTP headers that tell a client how it stands. */

import { checkOptions } from "./check.js";
import type { Limit, Period } from "./limits.js";
import type { AllReply, Reply } from "./replies.js";

export interface HeaderOptions {
  /** The limits that were asked, for the window of the policy. A policy's name names its item. */
  limits?: Limit | readonly (Limit | undefined)[] | undefined;
  /** The names of the items. */
  names?: string | readonly string[] | undefined;
  /** RateLimit and RateLimit-Policy, as in draft-ietf-httpapi-ratelimit-headers-10. Default true. */
  standard?: boolean | undefined;
  /** X-RateLimit-Limit, -Remaining and -Reset, the last in seconds from now. Default true. */
  xRateLimit?: boolean | undefined;
}

export const HEADER_OPTIONS = ["limits", "names", "standard", "xRateLimit"];

const UNITS: Record<string, bigint> = {
  ms: 1n,
  s: 1000n,
  "": 1000n,
  min: 60_000n,
  h: 3_600_000n,
  d: 86_400_000n,
  w: 604_800_000n,
};
// The largest integer of RFC 9651.
const MOST = 999_999_999_999_999;

const seconds = (ms: number): number => Math.max(0, Math.ceil(ms / 1000));

/** Undefined for months and years, which have no fixed length. */
function periodMs(period: Period): bigint | undefined {
  const [, count, unit] = /^(\d+)([a-z]*)$/.exec(String(period).toLowerCase()) ?? [];
  const ms = unit === undefined ? undefined : UNITS[unit];
  return count === undefined || ms === undefined ? undefined : BigInt(count) * ms;
}

/** The time in which the whole quota comes back. */
function windowSeconds(limit: Limit | undefined): bigint | undefined {
  if (limit === undefined || typeof limit === "string") return undefined;
  const ms = periodMs(limit.period);
  if (!ms) return undefined;
  if ("burst" in limit) {
    const parts = BigInt(limit.count) * 1000n;
    return ((BigInt(limit.burst) + 1n) * ms + parts - 1n) / parts;
  }
  // The draft's windows are whole seconds.
  return ms % 1000n === 0n ? ms / 1000n : undefined;
}

function quoted(text: string): string {
  if (!/^[ -~]*$/.test(text)) throw new TypeError(`the name ${JSON.stringify(text)} must be printable ASCII`);
  return `"${text.replace(/[\\"]/g, "\\$&")}"`;
}

function policy(name: string, limit: Limit | undefined, reply: Reply): string {
  const isSemaphore = limit !== undefined && typeof limit !== "string" && String(limit.period) === "0";
  const window = windowSeconds(limit);
  const unit = isSemaphore ? ';qu="concurrent-requests"' : "";
  return `${quoted(name)};q=${Math.min(reply.limit, MOST)}${unit}${window === undefined ? "" : `;w=${window}`}`;
}

function serviceLimit(name: string, reply: Reply): string {
  const wait = seconds(reply.retryAfterMs ?? reply.resetAfterMs);
  return `${quoted(name)};r=${Math.min(reply.remaining, MOST)}${wait === 0 ? "" : `;t=${wait}`}`;
}

function list<T>(given: T | readonly T[] | undefined): readonly T[] {
  return given === undefined ? [] : Array.isArray(given) ? (given as readonly T[]) : [given as T];
}

/**
 * The headers for an answer; none if Redis could not be reached. RateLimit and RateLimit-Policy have one item for each
 * limit, X-RateLimit-* are of the limit that decides. Retry-After comes with a denial that has an end.
 */
export function headers(reply: Reply | AllReply, options: HeaderOptions = {}): Record<string, string> {
  checkOptions("headers", options, HEADER_OPTIONS);
  if (!reply.reachable) return {};
  const found: Record<string, string> = {};
  if (options.standard ?? true) {
    const limits = list<Limit | undefined>(options.limits);
    const names = list(options.names);
    const answers = "answers" in reply ? reply.answers : [reply];
    const nameAt = (at: number): string => {
      const limit = limits[at];
      return (
        names[at] ?? (typeof limit === "string" ? limit.slice(1) : answers.length === 1 ? "default" : `limit-${at + 1}`)
      );
    };
    found["RateLimit-Policy"] = answers.map((answer, at) => policy(nameAt(at), limits[at], answer)).join(", ");
    found["RateLimit"] = answers.map((answer, at) => serviceLimit(nameAt(at), answer)).join(", ");
  }
  if (options.xRateLimit ?? true) {
    found["X-RateLimit-Limit"] = String(reply.limit);
    found["X-RateLimit-Remaining"] = String(reply.remaining);
    found["X-RateLimit-Reset"] = String(seconds(reply.resetAfterMs));
  }
  if (!reply.allowed && reply.retryAfterMs !== null) found["Retry-After"] = String(seconds(reply.retryAfterMs));
  return found;
}
