/**
 * Checks of arguments, before anything is sent. A wrong type and an unknown option are a TypeError; a wrong value, and
 * arguments that exclude each other, are a RangeError.
 */

import type { Period } from "./limits.js";

/** Returns a value as it is shown in errors. */
export function quote(value: unknown): string {
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "function") return "a function";
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}

/** Throws a TypeError unless `value` is an object with no other fields than `allowed`. */
export function checkOptions(owner: string, value: unknown, allowed: readonly string[]): void {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new TypeError(`the options of ${owner} must be an object, not ${quote(value)}`);
  }
  for (const name of Object.keys(value)) {
    if (!allowed.includes(name)) {
      throw new TypeError(`${owner} has no option ${quote(name)}; it has ${allowed.join(", ")}`);
    }
  }
}

/** Returns a key or an id. Throws a TypeError unless it is a string or bytes. */
export function text(name: string, value: unknown): string | Buffer {
  if (typeof value === "string" || value instanceof Uint8Array) return value as string | Buffer;
  throw new TypeError(`the ${name} must be a string or a Buffer, not ${quote(value)}`);
}

/** Throws a TypeError unless `value` is true, false or undefined. */
export function checkFlag(name: string, value: unknown): void {
  if (value !== undefined && typeof value !== "boolean") {
    throw new TypeError(`${name} must be true or false, not ${quote(value)}`);
  }
}

/** Returns the error for a value that is not one of a few strings, or of another type. */
export function notOneOf(name: string, allowed: string, value: unknown): Error {
  const kind = typeof value === "string" ? RangeError : TypeError;
  return new kind(`${name} must be ${allowed}, not ${quote(value)}`);
}

/** Throws a TypeError unless `value` is an AbortSignal or undefined. It may be one of another realm. */
export function checkSignal(value: unknown): void {
  if (value === undefined) return;
  const { aborted, addEventListener } = (value ?? {}) as Partial<AbortSignal>;
  if (typeof aborted === "boolean" && typeof addEventListener === "function") return;
  throw new TypeError(`signal must be an AbortSignal, not ${quote(value)}`);
}

/** Returns the word for a whole number. Throws a TypeError for other types, and a RangeError for other numbers. */
export function integer(name: string, value: unknown): string {
  if (typeof value === "bigint") return String(value);
  if (typeof value !== "number") throw new TypeError(`${name} must be a number or a bigint, not ${quote(value)}`);
  if (!Number.isSafeInteger(value))
    throw new RangeError(`${name} must be a whole number, and a bigint beyond 2^53, not ${value}`);
  return String(value);
}

/** The milliseconds of each unit of time. */
const UNIT_MS = new Map([
  ["ms", 1],
  ["s", 1000],
  ["min", 60_000],
  ["h", 3_600_000],
  ["d", 86_400_000],
  ["w", 604_800_000],
]);
/** The same with months and years, which differ in length: the shortest. */
const MIN_UNIT_MS = new Map([...UNIT_MS, ["mo", 28 * 86_400_000], ["y", 365 * 86_400_000]]);

/** Returns the milliseconds of a number with a unit, or without one in `defaultUnit`, if given; null for other texts. */
export function lengthMs(text: string, units: ReadonlyMap<string, number> = UNIT_MS, defaultUnit = ""): bigint | null {
  const [, count, unit] = /^(\d+)([a-z]*)$/i.exec(text) ?? [];
  const unitMs = units.get(unit?.toLowerCase() || defaultUnit);
  return count === undefined || unitMs === undefined ? null : BigInt(count) * BigInt(unitMs);
}

/**
 * Returns the word for a period: 0, or a number with a unit, which the server checks. A bare number is a RangeError: to the
 * server it is seconds, but in this language durations are usually milliseconds.
 */
export function periodWord(period: unknown): string {
  if (typeof period !== "string" && typeof period !== "number" && typeof period !== "bigint") {
    throw new TypeError(`period must be a string such as "10s", not ${quote(period)}`);
  }
  const word = String(period);
  if (word === "0" || /^\d+[a-z]+$/i.test(word)) return word;
  if (/^\d+$/.test(word)) throw new RangeError(`period must have a unit: write "${word}s", not ${quote(period)}`);
  const units = "with one of the units ms, s, min, h, d, w, mo and y";
  throw new RangeError(`period must be a string such as "10s", ${units}, not ${quote(period)}`);
}

/** Returns the milliseconds of a period; null for 0, months and years, which differ in length, and unknown units. */
export const periodMs = (period: Period): bigint | null => lengthMs(periodWord(period));

/** Returns the shortest length of a period in milliseconds; null for 0 and unknown units. */
export const minPeriodMs = (period: Period): bigint | null => lengthMs(periodWord(period), MIN_UNIT_MS);

/** Returns the milliseconds of a number, or of a number with a unit such as "5s". */
export function toMilliseconds(name: string, value: unknown): number {
  if (typeof value !== "string") return Number(integer(name, value));
  const ms = lengthMs(value, UNIT_MS, "ms");
  if (ms === null) {
    throw new RangeError(`${name} must be milliseconds, or a number with ms, s, min, h, d or w, not ${quote(value)}`);
  }
  return Number(ms);
}

/** Returns the word for a duration. Throws a RangeError if it is shorter than `minMs` milliseconds. */
export function duration(name: string, value: unknown, minMs: number): string {
  if (toMilliseconds(name, value) < minMs) {
    throw new RangeError(`${name} must be at least ${minMs} ms, not ${String(value)}`);
  }
  return String(value);
}
