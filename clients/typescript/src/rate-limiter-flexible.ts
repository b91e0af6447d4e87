/**
 * A limiter for the package rate-limiter-flexible.
 *
 * @module rate-limiter-flexible
 */

import * as flexible from "rate-limiter-flexible";
import type { IRateLimiterStoreOptions, RateLimiterRes, RateLimiterStoreAbstract } from "rate-limiter-flexible";

import { ofApplication } from "./application.js";
import { BEYOND, counting, countOf, limiterOf, type ClientOrLimits } from "./counting.js";
import type { Limits } from "./limiter.js";
import type { Reply } from "./replies.js";

export type { ClientOrLimits } from "./counting.js";

/** Options of the limiter: those of RateLimiterStoreAbstract. */
export interface RateLimiterRatelimitOptions extends IRateLimiterStoreOptions {
  /** A client of node-redis or ioredis, or a Limiter. */
  storeClient: ClientOrLimits;
}

/** The state of a key, as the store returns it. */
interface Stored {
  consumed: number;
  /** -1 is never. */
  msBeforeNext: number;
}

const { RateLimiterRedis, RateLimiterRes: Res } = ofApplication("rate-limiter-flexible", flexible);
// The base class of the package's own stores. Its types have it, but it is not exported.
const StoreAbstract = Object.getPrototypeOf(RateLimiterRedis) as typeof RateLimiterStoreAbstract;

/**
 * The units that a point counts as. A reward gives back one unit less than a point, because a window without any units ends
 * and the next point would start a new one. A window has room for MOST_POINTS. 4,096 rewards in one window leave a whole
 * point counted.
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
const MOST_POINTS = BLOCKED_FOREVER - 1;
/** RateLimiterRedis stores strings under its keys, so that a key of the same name would have the wrong type. */
const PREFIX = "ratelimit:";

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
    // A blocked key leaves too little, so nothing is counted in it.
    const leave = quantity > 0 ? BLOCKED : 0;
    const most = Math.min(Math.max(quantity, -MOST_POINTS), MOST_POINTS);
    const counted = most * POINT + (quantity < 0 ? 1 : 0);
    const reply = await this.#limiter.window(PREFIX + rlKey, counting(msDuration), { quantity: counted, leave });
    return stored(reply, quantity, msDuration);
  }

  /** Called by the package: what is counted, or null. Nothing is counted by it. */
  protected async _get(rlKey: string): Promise<Stored | null> {
    const reply = await this.#limiter.windowRo(PREFIX + rlKey, counting(this.msDuration), { leave: BLOCKED });
    const found = stored(reply, 0, this.msDuration);
    return found.consumed === 0 ? null : found;
  }

  /** Called by the package: forgets what is counted; false if there was nothing. */
  protected _delete(rlKey: string): Promise<boolean> {
    return this.#limiter.reset(PREFIX + rlKey);
  }

  /** Called by the package: an answer of the store in its own terms. */
  protected _getRateLimiterRes(_rlKey: string, changedPoints: number | string, stored: Stored): RateLimiterRes {
    const { consumed, msBeforeNext } = stored;
    const isFirst = consumed === Number(changedPoints);
    return new Res(Math.max(this.points - consumed, 0), msBeforeNext, consumed, isFirst);
  }

  /**
   * Writes what is counted, whatever it was. A window of the limiter's own duration is written as counted (FORCE). Another
   * duration than the one that later calls name can only be a reservation's, which ends by its own lease.
   */
  async #write(rlKey: string, points: number, msDuration: number): Promise<Stored> {
    if (points < 0) throw new RangeError(`points from 0 on can be written, not ${points}`);
    const key = PREFIX + rlKey;
    const window = counting(msDuration);
    const most = Math.min(points, MOST_POINTS);
    const written: Promise<unknown>[] = [this.#limiter.reset(key)];
    if (points > 0 && msDuration === this.msDuration) {
      written.push(this.#limiter.window(key, window, { quantity: most * POINT, force: true }));
    } else if (points > 0) {
      const lease = msDuration > 0 ? Math.min(Math.ceil(msDuration), LONGEST_LEASE_MS) : LONGEST_LEASE_MS;
      const quantity = points > this.points ? BEYOND - leftWhenBlocked(points, msDuration) : most * POINT;
      // Twice the limit, so that what others count in between does not deny it.
      written.push(this.#limiter.reserve(key, { ...window, limit: 2 * BEYOND }, { quantity, lease }));
    }
    await Promise.all(written);
    return { consumed: points, msBeforeNext: msDuration > 0 ? msDuration : -1 };
  }
}

/** How much a block leaves. */
function leftWhenBlocked(consumed: number, msDuration: number): number {
  return (msDuration > 0 ? BLOCKED : BLOCKED_FOREVER) - 1 - Math.min(consumed, MOST_POINTS);
}

/** An answer of the server as what is counted. A blocked key counts what blocked it, and what is asked for now. */
function stored(reply: Reply, quantity: number, msDuration: number): Stored {
  if (!reply.reachable || reply.remaining >= BLOCKED) {
    const consumed = Math.floor(countOf(reply, quantity * POINT) / POINT);
    // Points for which there is no room are denied by the server. Its answer does not count them.
    const missing = reply.allowed ? 0 : Math.max(quantity, 0);
    return { consumed: consumed + missing, msBeforeNext: msDuration > 0 ? reply.resetAfterMs : -1 };
  }
  const isForever = reply.remaining < BLOCKED_FOREVER;
  const consumed = (isForever ? BLOCKED_FOREVER : BLOCKED) - 1 - reply.remaining + Math.max(quantity, 0);
  return { consumed, msBeforeNext: isForever ? -1 : (reply.retryAfterMs ?? reply.resetAfterMs) };
}

export default RateLimiterRatelimit;
