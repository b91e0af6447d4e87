/**
 * A limiter for the package rate-limiter-flexible.
 *
 * @module rate-limiter-flexible
 */

import { RateLimiterRedis, RateLimiterRes } from "rate-limiter-flexible";
import type { IRateLimiterStoreOptions, RateLimiterStoreAbstract } from "rate-limiter-flexible";

import { shown } from "./check.js";
import { BEYOND, counting, countOf, limiterOf, type Asked } from "./counting.js";
import type { Limits } from "./limiter.js";

/** Options of the limiter: those of RateLimiterStoreAbstract. */
export interface RateLimiterRatelimitOptions extends IRateLimiterStoreOptions {
  /** A client of node-redis or ioredis, or a Limiter. */
  storeClient: Asked;
}

/** What is counted under a key, as the store answers it. */
interface Stored {
  consumed: number;
  /** -1 is never. */
  msBeforeNext: number;
}

// What the package's own stores extend. It is in its types, but not among what it exports.
const StoreAbstract = Object.getPrototypeOf(RateLimiterRedis) as typeof RateLimiterStoreAbstract;

/** The longest lease of the server: a year. */
const LONGEST_LEASE_MS = 365 * 86_400_000;
/** The keys of RateLimiterRedis are strings, so keys of the same name would be of the wrong type. */
const PREFIX = "ratelimit:";

function wholePoints(points: unknown): number {
  const number = typeof points === "string" && /^[1-9]\d*$/.test(points) ? Number(points) : points;
  if (typeof number !== "number" || !Number.isSafeInteger(number)) {
    throw new TypeError(`points must be a whole number, not ${shown(points)}`);
  }
  return number;
}

/**
 * A limiter of rate-limiter-flexible on a server with redis-ratelimit, in the place of its RateLimiterRedis. To consume is
 * one RL.WINDOW, which counts in a window that starts with its first points. Unions, queues, insurance and blocks in memory
 * are the package's own, and work as with its stores.
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

  /** Called by the package: adds points to what is counted, or with `isSet` writes what is counted. */
  protected async _upsert(rlKey: string, points: unknown, msDuration: number, isSet = false): Promise<Stored> {
    const quantity = wholePoints(points);
    if (isSet) return this.#write(rlKey, quantity, msDuration);
    const reply = await this.#limiter.window(PREFIX + rlKey, counting(msDuration), { quantity });
    if (reply.reachable && !reply.allowed) return this.#blocked(reply.retryAfterMs, quantity);
    return { consumed: countOf(reply, quantity), msBeforeNext: msDuration > 0 ? reply.resetAfterMs : -1 };
  }

  /** Called by the package: what is counted, or null. Nothing is counted by it. */
  protected async _get(rlKey: string): Promise<Stored | null> {
    const reply = await this.#limiter.windowRo(PREFIX + rlKey, counting(this.msDuration));
    if (reply.reachable && !reply.allowed) return this.#blocked(reply.retryAfterMs, 0);
    const consumed = countOf(reply, 0);
    return consumed === 0 ? null : { consumed, msBeforeNext: this.msDuration > 0 ? reply.resetAfterMs : -1 };
  }

  /** Called by the package: forgets what is counted; false if there was nothing. */
  protected _delete(rlKey: string): Promise<boolean> {
    return this.#limiter.reset(PREFIX + rlKey);
  }

  /** Called by the package: an answer of the store in its own terms. */
  protected _getRateLimiterRes(_rlKey: string, changedPoints: number | string, stored: Stored): RateLimiterRes {
    const { consumed, msBeforeNext } = stored;
    const isFirst = consumed === Number(changedPoints);
    return new RateLimiterRes(Math.max(this.points - consumed, 0), msBeforeNext, consumed, isFirst);
  }

  /**
   * Writes what is counted, whatever it was. A window of the limiter's own duration is written as counted (FORCE). Another
   * duration than the one that later calls name can only be a reservation's: it ends by its own lease. One of all that can
   * ever be had denies whatever else is counted.
   */
  async #write(rlKey: string, points: number, msDuration: number): Promise<Stored> {
    if (points < 0) throw new RangeError(`points from 0 on can be written, not ${points}`);
    const key = PREFIX + rlKey;
    const window = counting(msDuration);
    const isReset = this.#limiter.reset(key);
    if (points > 0 && msDuration === this.msDuration) {
      await Promise.all([isReset, this.#limiter.window(key, window, { quantity: points, force: true })]);
    } else if (points > 0) {
      // Twice as much could be had, so what others count in between does not deny it.
      const quantity = points > this.points ? BEYOND : points;
      const lease = msDuration > 0 ? Math.min(Math.ceil(msDuration), LONGEST_LEASE_MS) : LONGEST_LEASE_MS;
      await Promise.all([isReset, this.#limiter.reserve(key, { ...window, limit: 2 * BEYOND }, { quantity, lease })]);
    }
    await isReset;
    return { consumed: points, msBeforeNext: msDuration > 0 ? msDuration : -1 };
  }

  /** A blocked key counts what blocked it, and what is asked for now. */
  #blocked(retryAfterMs: number | null, changedPoints: number): Stored {
    const { blockOnConsumed, points } = this;
    const consumed = (blockOnConsumed > points ? blockOnConsumed : points + 1) + changedPoints;
    return { consumed, msBeforeNext: retryAfterMs ?? -1 };
  }
}

export default RateLimiterRatelimit;
