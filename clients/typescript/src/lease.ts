/** What a lease is: its terms, its clocks, and the numbers of clients/spec/numbers.json, which all clients share. */

import type { Call, Key } from "./calls.js";
import { checkOptions, checkText, integer, leastPeriodMs, shown, toMilliseconds } from "./check.js";
import { checkWindow, isSemaphore, type Duration, type Integer, type Policy, type Window } from "./limits.js";
import type { Reply } from "./replies.js";
import type { Attempt } from "./transport.js";

/** Options of Limiter.local. */
export interface LocalOptions {
  /** How long a batch may be spent in the process, from 20 ms on. Default "100ms". */
  lease?: Duration | undefined;
  /** How much is kept in reserve for others. Default 0. */
  leave?: Integer | undefined;
}

/** How leases reach the server. */
export interface Port {
  /** Whether a call would be answered without the network. */
  isAway(): boolean;
  /** `attempt` tells afterwards whether the call was sent. */
  ask<T>(call: Call<T>, attempt?: Attempt): Promise<T>;
  /** Whether an error of settling is hidden: the user chose an answer for when Redis cannot be reached. */
  isForgiven(error: unknown): boolean;
  /** The answer to a take that the server did not answer; throws what is not about the connection. */
  fallback(quantity: number, error: unknown): Reply | Promise<Reply>;
}

/** The clocks, in milliseconds. A test has its own. */
export interface Clock {
  /** Never goes back, and may stand still while the machine sleeps. */
  monotonic(): number;
  wall(): number;
  /** Calls back after this time, and keeps no program running unless it `isAwaited`. The returned function cancels it. */
  after(ms: number, callback: () => void, isAwaited?: boolean): () => void;
}

export const SYSTEM_CLOCK: Clock = {
  monotonic: () => performance.now(),
  wall: () => Date.now(),
  after: (ms, callback, isAwaited = false) => {
    const timer = setTimeout(callback, ms);
    if (!isAwaited) timer.unref();
    return () => clearTimeout(timer);
  },
};

/** The shortest lease: below it too little would be left of it, as it is given up early. */
export const LEAST_LEASE_MS = 20;
/** The part of the lease at its end that is not used, and its least length: clocks differ in speed. */
export const MARGIN = 0.1;
export const LEAST_MARGIN_MS = 2;
/** The longest that a denial is remembered: others may give back before its retry_after. */
export const DENIAL_MS = 100;
/** The pause before what was not answered is settled again. */
export const RETRY_MS = 100;
/**
 * A reservation whose answer was lost is given back at once, and again this long after its lease, as the command may have
 * been carried out in between.
 */
export const LOST_MS = 1000;
/**
 * The next batch is fetched this many round trips plus this many milliseconds before it is needed, and at most this part of
 * a lease before.
 */
export const AHEAD_ROUND_TRIPS = 2;
export const AHEAD_MS = 2;
export const AHEAD_MOST = 0.25;
/**
 * How much is asked for: what is `expected` to be spent within half a lease, and at least what is `needed`. It is no more
 * than the limit, nor than twice the even part of each of the `reservations` in the key. Before the first answer (`limit` is
 * null) nobody knows how many there are: then it is what is needed.
 */
export function batchSize(expected: number, needed: number, limit: number | null, reservations: number): number {
  if (limit === null) return Math.max(1, needed);
  const most = Math.floor((2 * limit) / Math.max(1, reservations));
  return Math.max(1, needed, Math.min(Math.ceil(expected), most, limit));
}

/** What is leased, and for how long. */
export interface Terms {
  readonly key: Key;
  readonly window: Window | Policy;
  readonly leave: Integer;
  /** The window's limit, and the most that a take may be. Null of a policy. */
  readonly limit: number | null;
  readonly most: number | null;
  readonly leaseMs: number;
  /** How long a batch may be spent, from before it was asked for. */
  readonly usableMs: number;
  /** How long after it was asked for a reservation cannot have ended by itself. */
  readonly heldMs: number;
}

/**
 * How long a window counts an event at least, in milliseconds; 0 for a policy, and for a window of the calendar, which may
 * end at any moment.
 */
function countedMs(window: Window | Policy): number {
  if (typeof window === "string") return 0;
  if (window.fixed && window.start?.toLowerCase() !== "first") return 0;
  return Number(leastPeriodMs(window.period) ?? 0n);
}

function checkLease(lease: Duration): number {
  const ms = toMilliseconds("lease", lease);
  if (ms < LEAST_LEASE_MS) throw new RangeError(`lease must be from ${LEAST_LEASE_MS} ms on, not ${shown(lease)}`);
  return ms;
}

/** TypeError or RangeError for what is no window, or no lease of one. */
export function termsOf(key: Key, window: Window | Policy, options: LocalOptions): Terms {
  checkText("key", key);
  checkWindow("local", window);
  checkOptions("local", options, ["lease", "leave"]);
  const { lease = "100ms", leave = 0 } = options;
  integer("leave", leave);
  if (isSemaphore(window)) throw new RangeError("local takes a window with a period; 0 is a semaphore");
  const leaseMs = checkLease(lease);
  const usableMs = leaseMs - Math.max(leaseMs * MARGIN, LEAST_MARGIN_MS);
  const heldMs = leaseMs + countedMs(window);
  if (typeof window === "string") return { key, window, leave, limit: null, most: null, leaseMs, usableMs, heldMs };
  const limit = Number(integer("limit", window.limit));
  const most = Number(BigInt(window.limit) - BigInt(leave));
  return { key, window, leave, limit, most, leaseMs, usableMs, heldMs };
}
