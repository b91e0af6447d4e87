/** Checks of what plain JavaScript may pass: what TypeScript would refuse is a TypeError before anything is sent. */

/** Returns a value as errors quote it. */
export function quote(value: unknown): string {
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "function") return "a function";
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}

/** Throws a TypeError unless `given` is an object that has no fields but `allowed`. */
export function checkOptions(what: string, given: unknown, allowed: readonly string[]): void {
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw new TypeError(`the options of ${what} must be an object, not ${quote(given)}`);
  }
  for (const name of Object.keys(given)) {
    if (!allowed.includes(name)) {
      throw new TypeError(`${what} has no option ${quote(name)}; it has ${allowed.join(", ")}`);
    }
  }
}

/** Throws a TypeError unless `given` is a key or an id: a string or bytes. */
export function checkText(what: string, given: unknown): void {
  if (typeof given !== "string" && !(given instanceof Uint8Array)) {
    throw new TypeError(`the ${what} must be a string or a Buffer, not ${quote(given)}`);
  }
}

/** Throws a TypeError unless `given` is true, false or undefined. */
export function checkFlag(what: string, given: unknown): void {
  if (given !== undefined && typeof given !== "boolean") {
    throw new TypeError(`${what} must be true or false, not ${quote(given)}`);
  }
}

/** Throws a TypeError unless `given` is an AbortSignal, perhaps of another library or realm, or undefined. */
export function checkSignal(given: unknown): void {
  if (given === undefined) return;
  const { aborted, addEventListener } = (given ?? {}) as Partial<AbortSignal>;
  if (typeof aborted === "boolean" && typeof addEventListener === "function") return;
  throw new TypeError(`signal must be an AbortSignal, not ${quote(given)}`);
}

/** Returns a whole number as it is sent. Throws a TypeError for other types, and a RangeError for other numbers. */
export function integer(what: string, value: unknown): string {
  if (typeof value === "bigint") return String(value);
  if (typeof value !== "number") throw new TypeError(`${what} must be a number or a bigint, not ${quote(value)}`);
  if (!Number.isSafeInteger(value))
    throw new RangeError(`${what} must be a whole number, and a bigint beyond 2^53, not ${value}`);
  return String(value);
}

/** The units of a length of time, in milliseconds. */
const UNIT_MS = new Map([
  ["ms", 1],
  ["s", 1000],
  ["min", 60_000],
  ["h", 3_600_000],
  ["d", 86_400_000],
  ["w", 604_800_000],
]);
/** Months and years have no fixed length: these are the shortest. */
const LEAST_UNIT_MS = new Map([...UNIT_MS, ["mo", 28 * 86_400_000], ["y", 365 * 86_400_000]]);

/** Returns the milliseconds of a number with one of the units, by default `plain`; null for any other text. */
function lengthMs(text: string, units: ReadonlyMap<string, number>, plain: string): bigint | null {
  const [, count, unit] = /^(\d+)([a-z]*)$/i.exec(text) ?? [];
  const unitMs = units.get(unit?.toLowerCase() || plain);
  return count === undefined || unitMs === undefined ? null : BigInt(count) * BigInt(unitMs);
}

/** Returns whether a text is a number, or a number with a unit. The server checks the unit. */
export const isPeriod = (text: unknown): text is string => typeof text === "string" && /^\d+[a-z]*$/i.test(text);

/** Returns the milliseconds of a period; null for months and years, which have no fixed length, and for other texts. */
export const periodMs = (period: number | string): bigint | null => lengthMs(String(period), UNIT_MS, "s");

/** Returns the milliseconds that a period has at least; null for what is not a period. */
export const leastPeriodMs = (period: number | string): bigint | null => lengthMs(String(period), LEAST_UNIT_MS, "s");

/** Returns the milliseconds of a number, or of a number with a unit such as "5s". */
export function toMilliseconds(what: string, value: unknown): number {
  if (typeof value !== "string") return Number(integer(what, value));
  const ms = lengthMs(value, UNIT_MS, "ms");
  if (ms === null) {
    throw new RangeError(`${what} must be milliseconds, or a number with ms, s, min, h, d or w, not ${quote(value)}`);
  }
  return Number(ms);
}

/** Returns a length of time of at least `least` milliseconds as it is sent. */
export function duration(what: string, value: unknown, least: number): string {
  if (toMilliseconds(what, value) < least) {
    throw new RangeError(`${what} must be milliseconds from ${least} on, not ${String(value)}`);
  }
  return String(value);
}
