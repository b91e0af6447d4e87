/** The words of limits and options in commands, after checking them. */

import { checkFlag, checkOptions, checkSignal, duration, integer, periodWord, quote, text } from "./check.js";
import type { Key, Command } from "./command.js";
import type { Integer, Limit, Window, Word } from "./limits.js";
import type { CallOptions, ClauseOptions, ReserveOptions, ThrottleOptions, WindowOptions } from "./options.js";

const RATE_FIELDS = ["burst", "count", "period"];
const WINDOW_FIELDS = ["limit", "period", "buckets", "fixed", "start", "tz", "unit"];

function hasFields(value: unknown, required: readonly string[], allowed: readonly string[]): boolean {
  if (typeof value !== "object" || value === null) return false;
  for (const name in value) if (!allowed.includes(name)) return false;
  return required.every((name) => name in value);
}

const isRate = (value: unknown): boolean => hasFields(value, RATE_FIELDS, RATE_FIELDS);
const isWindow = (value: unknown): boolean => hasFields(value, ["limit", "period"], WINDOW_FIELDS);

/** Throws a TypeError for a limit of another kind, and a RangeError for a policy without @. */
export type LimitCheck = (method: string, limit: unknown) => void;

function makeCheck(isOwn: (value: unknown) => boolean, parser: string, kind: string, otherKind: string): LimitCheck {
  return (method, limit) => {
    if (typeof limit !== "string") {
      if (isOwn(limit)) return;
      const other = isRate(limit) || isWindow(limit) ? `the ${otherKind} ` : "";
      throw new TypeError(`${method} takes a ${kind} or "@policy", not ${other}${quote(limit)}`);
    }
    if (limit.startsWith("@")) return;
    if (/^\s*\d/.test(limit)) throw new RangeError(`a limit in words must be made by ${parser}(${quote(limit)})`);
    throw new RangeError(`the policy ${quote(limit)} must begin with @`);
  };
}

export const checkRate = makeCheck(isRate, "Rate.per", "rate { burst, count, period }", "window");
const FIELDS = "{ limit, period, buckets?, fixed?, start?, tz?, unit? }";
export const checkWindowOrSemaphore = makeCheck(isWindow, "Window.per", `window ${FIELDS}`, "rate");
export const checkWindow: LimitCheck = (method, limit) => {
  checkWindowOrSemaphore(method, limit);
  if (isSemaphore(limit as Limit)) throw new RangeError(`${method} takes a window with a period; 0 is a semaphore`);
};

/** Returns whether a window is a semaphore; false for a policy, of which only the server knows. */
export const isSemaphore = (window: Limit): boolean =>
  String((window as Partial<Window> | null | undefined)?.period) === "0";

/** Returns the words of a limit that come before the quantity. */
export function limitWords(limit: Limit): string[] {
  if (typeof limit === "string") return [limit];
  const period = periodWord(limit.period);
  return "burst" in limit
    ? [integer("burst", limit.burst), integer("count", limit.count), period]
    : [integer("limit", limit.limit), period];
}

/** Returns the words of a limit that are among the options. */
export function limitOptions(limit: Limit): string[] {
  // Most windows have only a limit and a period.
  if (typeof limit === "string" || "burst" in limit || Object.keys(limit).length === 2) return [];
  const { buckets, fixed, start, tz, unit } = limit;
  for (const [name, value] of Object.entries({ start, tz, unit })) {
    if (value === undefined) continue;
    if (typeof value !== "string") throw new TypeError(`${name} must be a string, not ${quote(value)}`);
    if (name !== "unit" && !fixed) throw new RangeError(`${name} must be used with fixed`);
  }
  if (unit !== undefined && !/^[ -~]+$/.test(unit)) {
    throw new RangeError(`unit must be printable ASCII such as "tokens", not ${quote(unit)}`);
  }
  checkFlag("fixed", fixed);
  if (tz !== undefined && start?.toLowerCase() === "first") {
    throw new RangeError('tz and start "first" must not be used together');
  }
  if (buckets !== undefined && fixed) throw new RangeError("buckets and fixed must not be used together");
  const words = buckets === undefined ? [] : ["BUCKETS", integer("buckets", buckets)];
  if (fixed) words.push("FIXED");
  if (start !== undefined) words.push("FROM", start);
  if (tz !== undefined) words.push("TZ", tz);
  return words;
}

/** The options that become words of a command. */
export type WordOptions = Omit<
  ThrottleOptions & WindowOptions & ReserveOptions & ClauseOptions,
  "quantity" | "name" | "signal"
>;

/** The options of calls and clauses of one kind that those of another kind do not have. */
export const OWN_OPTIONS = {
  THROTTLE: ["ban"],
  WINDOW: ["countDenied", "ban"],
  ACQUIRE: ["lease", "countLapsed", "id"],
} as const;

const atLeast = (minMs: number) => (name: string, value: unknown) => duration(name, value, minMs);

function callerWord(name: string, value: unknown): string {
  if (typeof value !== "string") throw new TypeError(`${name} must be a string, not ${quote(value)}`);
  const { length } = new TextEncoder().encode(value);
  if (length < 1 || length > 64) throw new RangeError(`${name} must have 1 to 64 bytes, not ${length}`);
  return value;
}

function weightWord(name: string, value: unknown): string {
  const word = integer(name, value);
  if (Number(word) < 1 || Number(word) > 1000) throw new RangeError(`${name} must be from 1 to 1000, not ${word}`);
  return word;
}

/** In the order of a command: the name of an option, its word, and what checks its value. Without that it is a flag. */
const ROWS: readonly [keyof WordOptions, string, ((name: string, value: unknown) => Word)?][] = [
  ["leave", "LEAVE", integer],
  ["lease", "LEASE", atLeast(1)],
  ["countLapsed", "COUNTLAPSED"],
  ["id", "ID", text],
  ["atmost", "ATMOST"],
  ["force", "FORCE"],
  ["countDenied", "COUNTDENIED"],
  ["check", "CHECK"],
  ["shadow", "SHADOW"],
  ["ban", "BAN", atLeast(1)],
  ["ahead", "AHEAD", atLeast(1)],
  ["block", "BLOCK", atLeast(0)],
  ["by", "BY", callerWord],
  ["weight", "WEIGHT", weightWord],
];

/** Returns the words of options. */
export function optionWords(options: WordOptions): Word[] {
  const words: Word[] = [];
  if (Object.keys(options).length === 0) return words;
  for (const [name, word, toWord] of ROWS) {
    const value = options[name];
    if (value === undefined) continue;
    if (toWord === undefined) {
      checkFlag(name, value);
      if (value) words.push(word);
    } else {
      const valueWord = toWord(name, value);
      // LEAVE 0 is the default.
      if (name !== "leave" || valueWord !== "0") words.push(word, valueWord);
    }
  }
  if (options.by !== undefined && options.block === undefined) throw new RangeError("by must be used with block");
  if (options.weight !== undefined && options.by === undefined) throw new RangeError("weight must be used with by");
  return words;
}

/** Returns the words of a limit, a quantity and options, without MS. */
export const limitCallWords = (limit: Limit, quantity: Integer, options: WordOptions): Word[] => [
  ...limitWords(limit),
  integer("quantity", quantity),
  ...limitOptions(limit),
  ...optionWords(options),
];

/** Checks the options of a method, and their signal. */
export function checkCallOptions(method: string, options: CallOptions, names: readonly string[] = ["signal"]): void {
  checkOptions(method, options, names);
  checkSignal(options.signal);
}

/** Checks the options of a renewal, and returns their words. */
export function renewWords(options: Pick<ReserveOptions, "lease" | "signal">): Word[] {
  checkCallOptions("renew", options, ["lease", "signal"]);
  return optionWords({ lease: options.lease });
}

/** Returns the command that gives a reservation back, if there is one. */
export const releaseOf = (key: Key, id: string | null | undefined): Command[] =>
  typeof id === "string" ? [{ key, words: ["RL.RELEASE", key, id] }] : [];

/**
 * Returns the command that gives back what RL.THROTTLE or RL.WINDOW took. What FORCE counted was used, so it stays. So does
 * what AHEAD booked: later bookings do not move, and the next call would get the same turn as one of them.
 */
export function giveBack(command: string, key: Key, limit: Limit, quantity: Integer, options: WordOptions): Command[] {
  if (quantity <= 0 || options.force || options.ahead !== undefined) return [];
  return [{ key, words: [command, key, ...limitCallWords(limit, -quantity, {})] }];
}
