/** Limits, and how they are written in a command. */

import { checkFlag, checkOptions, integer, isPeriod, quote } from "./check.js";

/** One word of a command. */
export type Word = string | Buffer;

/** Whole numbers beyond 2^53 are given as bigint. */
export type Integer = number | bigint;

/** Seconds, or a number with a unit: "500ms", "10s", "5min", "2h", "1d", "1w", "1mo", "1y". */
export type Period = number | string;

/** Milliseconds, or a number with a unit: "500ms", "10s", "5min", "2h", "1d", "1w". */
export type Duration = number | string;

/** The name of a policy of the server, such as "@free". */
export type Policy = `@${string}`;

/** `count` for each `period` in the long run, and up to `burst` + 1 at once. RL.THROTTLE takes it. */
export interface Rate {
  /** One less than what is available at once. */
  burst: Integer;
  /** How many come back in a period, from 1. */
  count: Integer;
  /** The period. */
  period: Period;
}

/** At most `limit` in any `period`. RL.WINDOW and RL.ACQUIRE take it. */
export interface Window {
  /** The most that a period allows; 0 allows nothing. */
  limit: Integer;
  /** The period. 0 has no window and is a semaphore: at most `limit` held at one time. */
  period: Period;
  /** The number of entries that the window keeps at most. */
  buckets?: number | undefined;
  /** Uses fixed windows of the calendar instead of a sliding one. */
  fixed?: boolean | undefined;
  /**
   * Where fixed windows start: "15@09:00" in a month, "sun" in a week, "04-06" in a year, "2026-11-02" with any period, or
   * "first", with the first call that is counted.
   */
  start?: string | undefined;
  /** The time zone of fixed windows: "Asia/Shanghai" or "+08:00". */
  tz?: string | undefined;
  /** What is counted, such as "tokens". It is for HTTP headers and is not sent to the server. */
  unit?: string | undefined;
}

/** A rate, a window, or the name of a policy. */
export type Limit = Rate | Window | Policy;

/** Options of Rate.per. */
export interface RateOptions {
  /** How many are available at once, at least 1; by default the number before the slash. */
  capacity?: Integer | undefined;
}

/** Options of Window.per. */
export type PerWindowOptions = Omit<Window, "limit" | "period">;

const UNITS: Record<string, string> = {
  ...{ ms: "ms", millisecond: "ms", milliseconds: "ms", s: "s", sec: "s", second: "s", seconds: "s" },
  ...{ min: "min", minute: "min", minutes: "min", h: "h", hour: "h", hours: "h", d: "d", day: "d", days: "d" },
  ...{ w: "w", week: "w", weeks: "w", mo: "mo", month: "mo", months: "mo", y: "y", year: "y", years: "y" },
};

/** Parses a limit as people write it: "30/min", "5/10s", "100 per hour". */
function spoken(text: unknown): [bigint, string] {
  const wrong = (why: string) => `a limit is written as "30/min", "5/10s" or "100 per hour", not ${quote(text)}${why}`;
  if (typeof text !== "string") throw new TypeError(wrong(""));
  const [, count, number = "1", word = ""] = /^\s*(\d+)\s*(?:\/|\bper\b)\s*(\d+)?\s*([a-z]+)\s*$/i.exec(text) ?? [];
  if (count === undefined) throw new RangeError(wrong(""));
  if (word.toLowerCase() === "m") throw new RangeError(wrong(": m is min or mo"));
  const unit = UNITS[word.toLowerCase()];
  if (unit === undefined) throw new RangeError(wrong(": the unit is one of ms, s, min, h, d, w, mo, y"));
  if (BigInt(number) === 0n) throw new RangeError(wrong(": the period must be above 0"));
  return [BigInt(count), `${BigInt(number)}${unit}`];
}

const plain = (count: bigint): Integer => (count <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(count) : count);

/** Makes rates. */
export const Rate = {
  /** `Rate.per("30/min", { capacity: 10 })`: 30 a minute in the long run, and up to 10 at once. */
  per(text: string, options: RateOptions = {}): Rate {
    checkOptions("Rate.per", options, ["capacity"]);
    const [count, period] = spoken(text);
    if (/(mo|y)$/.test(period)) {
      throw new RangeError(`a rate has no period in months or years, which differ in length, such as ${quote(text)}`);
    }
    const capacity = BigInt(integer("capacity", options.capacity ?? count));
    if (count < 1n) throw new RangeError(`the number of a rate must be from 1 on, not ${quote(text)}`);
    if (capacity < 1n) throw new RangeError(`capacity must be from 1 on, not ${capacity}`);
    return { burst: plain(capacity - 1n), count: plain(count), period };
  },
};

/** Makes windows. */
export const Window = {
  /** `Window.per("5/min")`: at most 5 in any minute. */
  per(text: string, options: PerWindowOptions = {}): Window {
    checkOptions("Window.per", options, ["buckets", "fixed", "start", "tz", "unit"]);
    const [limit, period] = spoken(text);
    return { limit: plain(limit), period, ...options };
  },
};

/** At most `limit` held at one time. */
export function semaphore(limit: Integer): Window {
  return { limit, period: 0 };
}

const RATE_FIELDS = ["burst", "count", "period"];
const WINDOW_FIELDS = ["limit", "period", "buckets", "fixed", "start", "tz", "unit"];

function isOfFields(given: object, needed: readonly string[], allowed: readonly string[]): boolean {
  return needed.every((name) => name in given) && Object.keys(given).every((name) => allowed.includes(name));
}

const isRate = (given: object): given is Rate => isOfFields(given, RATE_FIELDS, RATE_FIELDS);
const isWindow = (given: object): given is Window => isOfFields(given, ["limit", "period"], WINDOW_FIELDS);

function checkPolicy(given: string, maker: "Rate.per" | "Window.per"): void {
  if (given.startsWith("@")) return;
  if (/^\s*\d/.test(given)) throw new TypeError(`a limit in words must be made by ${maker}(${quote(given)})`);
  throw new TypeError(`the policy ${quote(given)} must begin with @`);
}

/** Throws a TypeError unless `given` is a rate or a policy. `what` is the method. */
export function checkRate(what: string, given: unknown): void {
  if (typeof given === "string") checkPolicy(given, "Rate.per");
  else if (typeof given !== "object" || given === null || !isRate(given)) {
    const kind = typeof given === "object" && given !== null && isWindow(given) ? "the window " : "";
    throw new TypeError(`${what} takes a rate { burst, count, period } or "@policy", not ${kind}${quote(given)}`);
  }
}

/** Throws a TypeError unless `given` is a window or a policy. `what` is the method. */
export function checkWindow(what: string, given: unknown): void {
  if (typeof given === "string") checkPolicy(given, "Window.per");
  else if (typeof given !== "object" || given === null || !isWindow(given)) {
    const kind = typeof given === "object" && given !== null && isRate(given) ? "the rate " : "";
    throw new TypeError(
      `${what} takes a window { limit, period, buckets?, fixed?, start?, tz?, unit? } or "@policy", not ${kind}${quote(given)}`,
    );
  }
}

function periodWord(period: Period): string {
  if (isPeriod(period)) return period;
  if (typeof period === "string") {
    const units = '"10s", with one of the units ms, s, min, h, d, w, mo and y';
    throw new RangeError(`period must be seconds, or a text such as ${units}, not ${quote(period)}`);
  }
  return integer("period", period);
}

/** What stands in the limit's place. */
export function limitWords(limit: Limit): string[] {
  if (typeof limit === "string") return [limit];
  if ("burst" in limit) return [integer("burst", limit.burst), integer("count", limit.count), periodWord(limit.period)];
  return [integer("limit", limit.limit), periodWord(limit.period)];
}

/** A unit is not sent. It stands in HTTP headers. */
function checkUnit(unit: unknown): void {
  if (unit === undefined) return;
  if (typeof unit !== "string") throw new TypeError(`unit must be a text such as "tokens", not ${quote(unit)}`);
  if (!/^[ -~]+$/.test(unit)) throw new RangeError(`unit must be printable ASCII such as "tokens", not ${quote(unit)}`);
}

/** What the limit adds to the options. */
export function limitOptions(limit: Limit): string[] {
  if (typeof limit === "string" || "burst" in limit) return [];
  const { buckets, fixed, start, tz } = limit;
  checkUnit(limit.unit);
  checkFlag("fixed", fixed);
  for (const [name, value] of Object.entries({ start, tz })) {
    if (value === undefined) continue;
    if (typeof value !== "string") throw new TypeError(`${name} must be a string, not ${quote(value)}`);
    if (!fixed) throw new TypeError(`${name} must be used with fixed`);
  }
  if (buckets !== undefined && fixed) throw new TypeError("buckets and fixed must not be used together");
  const words = buckets === undefined ? [] : ["BUCKETS", integer("buckets", buckets)];
  if (fixed) words.push("FIXED");
  if (start !== undefined) words.push("FROM", start);
  if (tz !== undefined) words.push("TZ", tz);
  return words;
}

/** Whether a reservation can only be released. What a policy is, only the server knows. */
export function isSemaphore(window: Window | Policy): boolean {
  return typeof window !== "string" && String(window.period) === "0";
}
