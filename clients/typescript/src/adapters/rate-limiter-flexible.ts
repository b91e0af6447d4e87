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
  isBlocked?: boolean;
}

// The base class of the package's own stores. Its types have it, but it is not exported.
const StoreAbstract = Object.getPrototypeOf(RateLimiterRedis) as typeof RateLimiterStoreAbstract;

/**
 * The number of units in a point. A reward gives back one unit less than a point, because a window without units ends, and
 * the next point would start a new one. A window has room for MAX_POINTS. 4,096 rewards in one window leave a whole point
 * counted.
 */
const POINT = 2 ** 12;
/** The most points that are stored; more are stored as this many. */
const MAX_POINTS = BEYOND / POINT - 1;
/** The longest ban and lease of the server, which stand for times without an end. */
const FOREVER_MS = 31_557_600_000;
/** A ban or lease of which more is left is one without an end. */
const ENDLESS_MS = 300 * 86_400_000;
/** Marks the options of _upsert if it is called for a block. */
const BLOCK = Symbol("block");
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

  /** Called by the package. Blocks a key. */
  protected _block(rlKey: string, points: number, msDuration: number, options = {}): Promise<RateLimiterRes> {
    const { _block } = StoreAbstract.prototype as unknown as { _block(...given: unknown[]): Promise<RateLimiterRes> };
    return _block.call(this, rlKey, points, msDuration, { ...options, [BLOCK]: true });
  }

  /** Called by the package. Adds points to the count, or with `isSet` replaces the count or blocks the key. */
  protected async _upsert(
    rlKey: string,
    points: unknown,
    msDuration: number,
    isSet = false,
    options = {},
  ): Promise<Stored> {
    const quantity = wholePoints(points);
    if (isSet) {
      await (BLOCK in options ? this.#close(rlKey, msDuration) : this.#write(rlKey, quantity, msDuration));
      return { consumed: quantity, msBeforeNext: msDuration > 0 ? msDuration : -1 };
    }
    // More points than there is room for, even in an empty window, are denied.
    const capped = Math.min(Math.max(quantity, -MAX_POINTS), MAX_POINTS + 2);
    const units = capped * POINT + (quantity < 0 ? 1 : 0);
    const reply = await this.#limiter.window(PREFIX + rlKey, counting(msDuration), { quantity: units });
    return this.#storedFrom(reply, quantity, msDuration);
  }

  /** Called by the package. Returns what is counted, or null if that is nothing. Counts nothing. */
  protected async _get(rlKey: string): Promise<Stored | null> {
    const reply = await this.#limiter.windowRo(PREFIX + rlKey, counting(this.msDuration));
    const stored = this.#storedFrom(reply, 0, this.msDuration);
    return stored.consumed === 0 ? null : stored;
  }

  /** Called by the package. Resets the count. Returns false if there was none. */
  protected async _delete(rlKey: string): Promise<boolean> {
    const [stored] = await Promise.all([this._get(rlKey), ...this.#clear(rlKey)]);
    // Only DEL ends a ban.
    if (stored?.isBlocked) await this.#limiter.reset(PREFIX + rlKey);
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

  /** Closes a key (FORCE BAN), and takes back what is counted, so that the next points start a new window. */
  async #close(rlKey: string, msDuration: number): Promise<void> {
    const options = { quantity: 0, force: true, ban: lengthOf(msDuration) };
    const ban = this.#limiter.window(PREFIX + rlKey, counting(this.msDuration), options);
    await Promise.all([ban, ...this.#clear(rlKey)]);
  }

  /**
   * Replaces the count. With the limiter's own duration it is counted in a window (FORCE). Another duration would not be
   * that of later calls, so it is reserved with a lease of that length.
   */
  async #write(rlKey: string, points: number, msDuration: number): Promise<void> {
    if (points < 0) throw new RangeError(`points must be at least 0, not ${points}`);
    await this._delete(rlKey);
    if (points === 0) return;
    const key = PREFIX + rlKey;
    const window = counting(msDuration);
    const quantity = Math.min(points, MAX_POINTS) * POINT;
    if (msDuration === this.msDuration) {
      await this.#limiter.window(key, window, { quantity, force: true });
      return;
    }
    const options = { quantity, lease: lengthOf(msDuration), id: WRITTEN };
    // The limit is doubled, so that what others count meanwhile does not deny it.
    const write = this.#limiter.reserve(key, { ...window, limit: 2 * BEYOND }, options);
    await write.catch((error: unknown) => {
      // Another process has written at the same time. One of both counts.
      if (codeOf(error) !== "DUPLICATE") throw error;
    });
  }

  /** Returns the state of a key from a reply to a call with this many points. */
  #storedFrom(reply: Reply, points: number, msDuration: number): Stored {
    const added = Math.max(points, 0);
    // Only a ban leaves nothing of the window. The points that blocked the key are not stored.
    const isBlocked = reply.reachable && reply.remaining === 0;
    // If the points are denied because the window has no room for them, the server has not counted them.
    const consumed = isBlocked
      ? Math.max(this.points + 1, this.blockOnConsumed || 0) + added
      : Math.floor(countOf(reply, points * POINT) / POINT) + (reply.allowed ? 0 : added);
    const leftMs = (isBlocked ? reply.retryAfterMs : null) ?? reply.resetAfterMs;
    const isEndless = (msDuration <= 0 && !isBlocked) || leftMs > Math.max(msDuration, ENDLESS_MS);
    return { consumed, msBeforeNext: isEndless ? -1 : leftMs, isBlocked };
  }
}

/** Returns the length of a ban or lease. With a duration of 0 it has no end. */
function lengthOf(msDuration: number): number {
  return msDuration > 0 ? Math.min(Math.ceil(msDuration), FOREVER_MS) : FOREVER_MS;
}

export default RateLimiterRatelimit;
