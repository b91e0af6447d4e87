/** Limits, and how they are written in a command. */

/** One word of a command. */
export type Word = string | Buffer;

/** Whole numbers beyond 2^53 are given as bigint. */
export type Integer = number | bigint;

/** Seconds, or a number with a unit: "500ms", "10s", "5min", "2h", "1d", "1w", "1mo", "1y". */
export type Period = number | string;

/** The name of a policy of the server, such as "@free". */
export type Policy = `@${string}`;

/** `count` for each `period` in the long run, and up to `burst` + 1 at once. RL.THROTTLE takes it. */
export interface Rate {
  burst: Integer;
  count: Integer;
  period: Period;
}

/**
 * At most `limit` in any `period`. RL.WINDOW and RL.ACQUIRE take it. `buckets` is the number of entries that the window
 * keeps at most. `fixed` uses the windows of the calendar, in the time zone `tz` if given. The period 0 has no window and
 * is a semaphore: at most `limit` held at one time.
 */
export interface Window {
  limit: Integer;
  period: Period;
  buckets?: number | undefined;
  fixed?: boolean | undefined;
  tz?: string | undefined;
}

export type Limit = Rate | Window | Policy;

/** At most `limit` held at one time. */
export function semaphore(limit: Integer): Window {
  return { limit, period: 0 };
}

export function integer(value: Integer): string {
  if (typeof value !== "bigint" && !Number.isSafeInteger(value)) {
    throw new RangeError(`${value} must be a whole number, and a bigint beyond 2^53`);
  }
  return String(value);
}

function periodWord(period: Period): string {
  return typeof period === "number" ? integer(period) : period;
}

/** What stands in the limit's place. */
export function limitWords(limit: Limit): string[] {
  if (typeof limit === "string") {
    if (!limit.startsWith("@")) throw new TypeError(`the policy ${JSON.stringify(limit)} must begin with @`);
    return [limit];
  }
  if ("burst" in limit) return [integer(limit.burst), integer(limit.count), periodWord(limit.period)];
  return [integer(limit.limit), periodWord(limit.period)];
}

/** What the limit adds to the options. */
export function limitOptions(limit: Limit): string[] {
  if (typeof limit === "string" || "burst" in limit) return [];
  const { buckets, fixed, tz } = limit;
  if (tz !== undefined && !fixed) throw new TypeError("tz must be used with fixed");
  if (buckets !== undefined && fixed) throw new TypeError("buckets and fixed must not be used together");
  const words = buckets === undefined ? [] : ["BUCKETS", integer(buckets)];
  if (fixed) words.push("FIXED");
  if (tz !== undefined) words.push("TZ", tz);
  return words;
}

/** Whether a reservation can only be released. What a policy is, only the server knows. */
export function isSemaphore(window: Window | Policy): boolean {
  return typeof window !== "string" && String(window.period) === "0";
}
