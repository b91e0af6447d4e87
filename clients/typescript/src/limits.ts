/** Limits, as a program writes them. */

import { checkOptions, integer, quote } from "./check.js";

/** One word of a command. */
export type Word = string | Buffer;

/** A whole number. Beyond 2^53 it must be a bigint. */
export type Integer = number | bigint;

/**
 * A text with a unit: "500ms", "10s", "5min", "2h", "1d", "1w", "1mo", "1y". A bare number is a RangeError, except for 0 or
 * "0", which is that of a semaphore.
 */
export type Period = string | 0;

/** Milliseconds, or a text with a unit: "500ms", "10s", "5min", "2h", "1d", "1w". */
export type Duration = number | string;

/** The name of a policy of the server, such as "@free". */
export type Policy = `@${string}`;

/** At most `count` in each `period` in the long run, and up to `burst` + 1 at once. For RL.THROTTLE. */
export interface Rate {
  /** One less than the quantity that is available at once. */
  burst: Integer;
  /** The quantity that is added in each period, from 1. */
  count: Integer;
  /** The period, not in months or years. */
  period: Period;
}

/** At most `limit` in any `period`. For RL.WINDOW and RL.ACQUIRE. */
export interface Window {
  /** The largest quantity in a period; 0 allows nothing. */
  limit: Integer;
  /** The period. With 0 it is a semaphore: at most `limit` are held at the same time. */
  period: Period;
  /** The maximum number of entries that the key keeps. Without it the window is exact. */
  buckets?: number | undefined;
  /** Uses the windows of the calendar instead of a sliding window. */
  fixed?: boolean | undefined;
  /**
   * The start of fixed windows: "15@09:00" in a month, "sun" in a week, "04-06" in a year, "2026-11-02" for any period, or
   * "first" for the first call that is counted.
   */
  start?: string | undefined;
  /** The time zone of fixed windows, such as "Asia/Shanghai" or "+08:00". */
  tz?: string | undefined;
  /** The unit of the limit, such as "tokens", for HTTP headers. It is not sent to the server. */
  unit?: string | undefined;
}

/** A rate, a window, or the name of a policy. */
export type Limit = Rate | Window | Policy;

/** Options of Rate.per. */
export interface RateOptions {
  /** The quantity that is available at once, at least 1. Default: the number before the slash. */
  capacity?: Integer | undefined;
}

/** Options of Window.per. */
export type PerWindowOptions = Omit<Window, "limit" | "period">;

const UNITS = new Map(
  Object.entries({
    ...{ ms: "ms", millisecond: "ms", milliseconds: "ms", s: "s", sec: "s", second: "s", seconds: "s" },
    ...{ min: "min", minute: "min", minutes: "min", h: "h", hour: "h", hours: "h", d: "d", day: "d", days: "d" },
    ...{ w: "w", week: "w", weeks: "w", mo: "mo", month: "mo", months: "mo", y: "y", year: "y", years: "y" },
  }),
);

/** Parses a limit in words: "30/min", "5/10s", "100 per hour". Returns the number and the period. */
function parseWords(text: unknown): [bigint, string] {
  const wrong = (why: string) => `a limit is written as "30/min", "5/10s" or "100 per hour", not ${quote(text)}${why}`;
  if (typeof text !== "string") throw new TypeError(wrong(""));
  const [, count, number = "1", word = ""] = /^\s*(\d+)\s*(?:\/|\bper\b)\s*(\d+)?\s*([a-z]+)\s*$/i.exec(text) ?? [];
  if (count === undefined) throw new RangeError(wrong(""));
  if (word.toLowerCase() === "m") throw new RangeError(wrong(": m is min or mo"));
  const unit = UNITS.get(word.toLowerCase());
  if (unit === undefined) throw new RangeError(wrong(": the unit is one of ms, s, min, h, d, w, mo, y"));
  if (BigInt(number) === 0n) throw new RangeError(wrong(": the period must be above 0"));
  return [BigInt(count), `${BigInt(number)}${unit}`];
}

const plain = (count: bigint): Integer => (count <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(count) : count);

/** Creates rates. */
export const Rate = {
  /** `Rate.per("30/min", { capacity: 10 })`: 30 a minute in the long run, and up to 10 at once. */
  per(text: string, options: RateOptions = {}): Rate {
    checkOptions("Rate.per", options, ["capacity"]);
    const [count, period] = parseWords(text);
    if (/(mo|y)$/.test(period)) {
      throw new RangeError(`a rate has no period in months or years, which differ in length, such as ${quote(text)}`);
    }
    const capacity = BigInt(integer("capacity", options.capacity ?? count));
    if (count < 1n) throw new RangeError(`the number of a rate must be at least 1, not ${quote(text)}`);
    if (capacity < 1n) throw new RangeError(`capacity must be at least 1, not ${capacity}`);
    return { burst: plain(capacity - 1n), count: plain(count), period };
  },
};

/** Creates windows. */
export const Window = {
  /** `Window.per("5/min")`: at most 5 in any minute. */
  per(text: string, options: PerWindowOptions = {}): Window {
    checkOptions("Window.per", options, ["buckets", "fixed", "start", "tz", "unit"]);
    const [limit, period] = parseWords(text);
    return { limit: plain(limit), period, ...options };
  },
};

/** Returns the window of a semaphore: at most `limit` are held at the same time. */
export function semaphore(limit: Integer): Window {
  return { limit, period: 0 };
}
