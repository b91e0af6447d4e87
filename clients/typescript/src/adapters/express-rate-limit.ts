/**
 * A store for the package express-rate-limit.
 *
 * @module express-rate-limit
 */

import { quote } from "../check.js";
import { clear, counting, countOf, limiterOf, prefixOf, type ClientOrLimits } from "./counting.js";
import type { Limits } from "../limiter.js";
import type { Window } from "../limits.js";
import type { Reply } from "../replies.js";

export type { ClientOrLimits } from "./counting.js";

/** Options of the store. */
export interface RatelimitStoreOptions {
  /** The prefix of the keys in Redis. Default "erl:". */
  prefix?: string | undefined;
}

/** The hits of a key, and the end of its window. */
export interface HitCount {
  /** The number of hits in the window so far. */
  totalHits: number;
  /** The end of the window, by the clock of this process. */
  resetTime: Date | undefined;
}

/**
 * The quantity of a hit. When a hit is taken back, 1 of it stays, because a window without events ends and the next hit
 * would start a new one. A window has room for 67 million hits, half of which may be taken back.
 */
const HIT = 2 ** 25;

/**
 * A `Store` of express-rate-limit on a server with redis-ratelimit. Each hit is one RL.WINDOW, which counts in a window that
 * starts with its first hit.
 *
 *     rateLimit({ windowMs: 60_000, limit: 100, store: new RatelimitStore(client) });
 */
export class RatelimitStore {
  /** False, as other processes count in the same keys. */
  readonly localKeys = false;
  /** The prefix of the keys in Redis. */
  readonly prefix: string;
  readonly #limiter: Limits;
  #window: Window | undefined;

  /** `client` is one of node-redis or ioredis, or a Limiter. */
  constructor(client: ClientOrLimits, options: RatelimitStoreOptions = {}) {
    this.prefix = prefixOf("RatelimitStore", options, "erl:");
    this.#limiter = limiterOf(client);
  }

  /** Called by express-rate-limit with its options. The store needs the length of the window. */
  init(options: { windowMs: number }): void {
    const { windowMs } = options;
    if (!(Number.isFinite(windowMs) && windowMs > 0)) {
      throw new RangeError(`windowMs must be milliseconds above 0, not ${quote(windowMs)}`);
    }
    this.#window = counting(windowMs);
  }

  /** Returns the hits of a key; undefined if there are none. Counts nothing. */
  async get(key: string): Promise<HitCount | undefined> {
    const hits = this.#hitCount(await this.#limiter.windowRo(this.#key(key), this.#initializedWindow()), 0);
    return hits.totalHits === 0 ? undefined : hits;
  }

  /** Counts a hit. */
  async increment(key: string): Promise<HitCount> {
    const reply = await this.#limiter.window(this.#key(key), this.#initializedWindow(), { quantity: HIT });
    return this.#hitCount(reply, HIT);
  }

  /** Takes a hit back, never below 0. The end of the window stays. */
  async decrement(key: string): Promise<void> {
    await this.#limiter.window(this.#key(key), this.#initializedWindow(), { quantity: 1 - HIT });
  }

  /** Resets the hits of a key. */
  async resetKey(key: string): Promise<void> {
    await clear(this.#limiter, this.#key(key));
  }

  #hitCount(reply: Reply, quantity: number): HitCount {
    return {
      totalHits: Math.floor(countOf(reply, quantity) / HIT),
      resetTime: new Date(Date.now() + reply.resetAfterMs),
    };
  }

  #key(key: string): string {
    return this.prefix + key;
  }

  #initializedWindow(): Window {
    if (this.#window === undefined) {
      throw new Error("the store was not initialized: rateLimit() calls init with windowMs");
    }
    return this.#window;
  }
}

export default RatelimitStore;
