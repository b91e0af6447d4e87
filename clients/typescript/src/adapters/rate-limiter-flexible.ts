/**
 * A limiter for the package rate-limiter-flexible.
 *
 * @module rate-limiter-flexible
 */

import {
  RateLimiterRedis,
  RateLimiterRes,
  type IRateLimiterStoreOptions,
  type RateLimiterStoreAbstract,
} from "rate-limiter-flexible";

import { BEYOND, clear, counting, countOf, limiterOf, type ClientOrLimits } from "./counting.js";
import { codeOf } from "../errors.js";
import type { Limits } from "../limiter.js";
import type { Reply } from "../replies.js";

export type { ClientOrLimits } from "./counting.js";

/** Options of RateLimiterRatelimit: those of RateLimiterStoreAbstract. */
export interface RateLimiterRatelimitOptions extends IRateLimiterStoreOptions {
  /** A client of node-redis or ioredis, or a Limiter. */
  storeClient: ClientOrLimits;
}

/** The state of a key, as the store returns it. */
interface Stored {
  consumed: number;
  /** The time until the window or block ends; -1 if it has no end. */
  msBeforeNext: number;
}

// The base class of the package's own stores. Its types have it, but it is not exported.
const StoreAbstract = Object.getPrototypeOf(RateLimiterRedis) as typeof RateLimiterStoreAbstract;

/**
 * The number of units in a point. A reward gives back one unit less than a point, because a window without units ends, and
 * the next point would start a new one. A window has room for MAX_POINTS. 4,096 rewards in one window leave a whole point
 * counted.
 */
const POINT = 2 ** 12;
/** The longest lease of the server: a year. */
const LONGEST_LEASE_MS = 365 * 86_400_000;
/**
 * A reservation that leaves fewer units than this blocks its key. The difference is the number of points that were consumed.
 * A block without an end leaves fewer than half of them.
 */
const BLOCKED = 2 ** 40;
const BLOCKED_FOREVER = BLOCKED / 2;
/** The most points that are stored; more are stored as this many. */
const MAX_POINTS = BLOCKED_FOREVER - 1;
/** RateLimiterRedis stores strings under its keys, so that a key of the same name would have the wrong type. */
const PREFIX = "ratelimit:";
/** The id of the reservation that replaces a count. */
const WRITTEN = "written";

// The texts are those of RateLimiterRedis.
function wholePoints(points: unknown): number {
  if (typeof points === "string") {
    if (/^[1-9]\d*$/.test(points)) return Number(points);
    throw new Error("Consuming string different than integer values is not supported by this package");
  }
  if (Number.isSafeInteger(points)) return points as number;
  throw new Error("Consuming decimal number of points is not supported by this package");
}

/**
 * A limiter of rate-limiter-flexible on a server with redis-ratelimit, instead of RateLimiterRedis. Consuming points is one
 * RL.WINDOW, in a window that starts with its first points. Unions, queues, insurance and blocks in memory are those of the
 * package, and work as with its stores.
 *
 *     new RateLimiterRatelimit({ storeClient: client, points: 5, duration: 1 });
 */
export class RateLimiterRatelimit extends StoreAbstract {
  readonly #limiter: Limits;

  constructor(options: RateLimiterRatelimitOptions) {
    super(options);
    if ((options.storeClient as unknown) === undefined) throw new Error("storeClient is not set");
    this.#limiter = limiterOf(options.storeClient);
  }

  /** Called by the package. Adds points to the count, or with `isSet` replaces the count. */
  protected async _upsert(rlKey: string, points: unknown, msDuration: number, isSet = false): Promise<Stored> {
    const quantity = wholePoints(points);
    if (isSet) return this.#write(rlKey, quantity, msDuration);
    // In a blocked key less remains, so nothing is counted.
    const leave = quantity > 0 ? BLOCKED : 0;
    const capped = Math.min(Math.max(quantity, -MAX_POINTS), MAX_POINTS);
    const units = capped * POINT + (quantity < 0 ? 1 : 0);
    const reply = await this.#limiter.window(PREFIX + rlKey, counting(msDuration), { quantity: units, leave });
    return storedFrom(reply, quantity, msDuration);
  }

  /** Called by the package. Returns what is counted, or null if that is nothing. Counts nothing. */
  protected async _get(rlKey: string): Promise<Stored | null> {
    const reply = await this.#limiter.windowRo(PREFIX + rlKey, counting(this.msDuration), { leave: BLOCKED });
    const stored = storedFrom(reply, 0, this.msDuration);
    return stored.consumed === 0 ? null : stored;
  }

  /** Called by the package. Resets the count. Returns false if there was none. */
  protected async _delete(rlKey: string): Promise<boolean> {
    const [stored] = await Promise.all([this._get(rlKey), ...this.#clear(rlKey)]);
    return stored !== null;
  }

  /** Called by the package. Converts a result of the store into one of the package. */
  protected _getRateLimiterRes(_rlKey: string, changedPoints: number | string, stored: Stored): RateLimiterRes {
    const { consumed, msBeforeNext } = stored;
    const isFirst = consumed === Number(changedPoints);
    return new RateLimiterRes(Math.max(this.points - consumed, 0), msBeforeNext, consumed, isFirst);
  }

  /** Takes back what is counted, and releases what #write reserved. */
  #clear(rlKey: string): Promise<unknown>[] {
    const key = PREFIX + rlKey;
    return [clear(this.#limiter, key), this.#limiter.release(key, WRITTEN)];
  }

  /**
   * Replaces the count. With the limiter's own duration it is counted in a window (FORCE). Another duration would not be
   * that of later calls, so it is reserved with a lease of that length.
   */
  async #write(rlKey: string, points: number, msDuration: number): Promise<Stored> {
    if (points < 0) throw new RangeError(`points must be at least 0, not ${points}`);
    const key = PREFIX + rlKey;
    const window = counting(msDuration);
    const units = Math.min(points, MAX_POINTS) * POINT;
    const writes = this.#clear(rlKey);
    if (points > 0 && msDuration === this.msDuration) {
      writes.push(this.#limiter.window(key, window, { quantity: units, force: true }));
    } else if (points > 0) {
      const lease = msDuration > 0 ? Math.min(Math.ceil(msDuration), LONGEST_LEASE_MS) : LONGEST_LEASE_MS;
      const quantity = points > this.points ? BEYOND - leftWhenBlocked(points, msDuration) : units;
      // The limit is doubled, so that what others count meanwhile does not deny it.
      const write = this.#limiter.reserve(key, { ...window, limit: 2 * BEYOND }, { quantity, lease, id: WRITTEN });
      writes.push(write.catch(ignoreDuplicate));
    }
    await Promise.all(writes);
    return { consumed: points, msBeforeNext: msDuration > 0 ? msDuration : -1 };
  }
}

/** Another process has written at the same time. One of both counts. */
function ignoreDuplicate(error: unknown): void {
  if (codeOf(error) !== "DUPLICATE") throw error;
}

/** Returns the quantity that a block leaves. */
function leftWhenBlocked(consumed: number, msDuration: number): number {
  return (msDuration > 0 ? BLOCKED : BLOCKED_FOREVER) - 1 - Math.min(consumed, MAX_POINTS);
}

/** Returns the state of a key from a reply. The count of a blocked key is what blocked it and the points of this call. */
function storedFrom(reply: Reply, quantity: number, msDuration: number): Stored {
  if (!reply.reachable || reply.remaining >= BLOCKED) {
    const consumed = Math.floor(countOf(reply, quantity * POINT) / POINT);
    // If the points are denied because the window has no room for them, the server has not counted them.
    const missing = reply.allowed ? 0 : Math.max(quantity, 0);
    return { consumed: consumed + missing, msBeforeNext: msDuration > 0 ? reply.resetAfterMs : -1 };
  }
  const isForever = reply.remaining < BLOCKED_FOREVER;
  const consumed = (isForever ? BLOCKED_FOREVER : BLOCKED) - 1 - reply.remaining + Math.max(quantity, 0);
  return { consumed, msBeforeNext: isForever ? -1 : (reply.retryAfterMs ?? reply.resetAfterMs) };
}

export default RateLimiterRatelimit;
