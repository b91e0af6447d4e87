/**
 * A store for the package express-rate-limit.
 *
 * @module express-rate-limit
 */

import { checkOptions, quote } from "./check.js";
import { counting, countOf, limiterOf, type ClientOrLimits } from "./counting.js";
import type { Limits } from "./limiter.js";
import type { Window } from "./limits.js";
import type { Reply } from "./replies.js";

export type { ClientOrLimits } from "./counting.js";

/** Options of the store. */
export interface RatelimitStoreOptions {
  /** What the keys begin with in Redis. Default "erl:". */
  prefix?: string | undefined;
}

/** What a key has counted, and when its window ends. */
export interface HitCount {
  /** The hits of the window so far. */
  totalHits: number;
  /** The end of the window, by the clock of this process. */
  resetTime: Date | undefined;
}

/**
 * How much a hit counts. Taking a hit back leaves 1 of it, as a window that counts nothing ends, and the next hit would
 * start another. There is room for 67 million hits in a window, and half as many that are taken back.
 */
const HIT = 2 ** 25;

/**
 * A `Store` of express-rate-limit on a server with redis-ratelimit. Each hit is one RL.WINDOW, which counts in a window that
 * starts with its first hit.
 *
 *     rateLimit({ windowMs: 60_000, limit: 100, store: new RatelimitStore(client) });
 */
export class RatelimitStore {
  /** Other processes count under the same keys. */
  readonly localKeys = false;
  /** What the keys begin with in Redis. */
  readonly prefix: string;
  readonly #limiter: Limits;
  #window: Window | undefined;

  /** `client` is one of node-redis or ioredis, or a Limiter. */
  constructor(client: ClientOrLimits, options: RatelimitStoreOptions = {}) {
    checkOptions("RatelimitStore", options, ["prefix"]);
    const { prefix = "erl:" } = options;
    if (typeof prefix !== "string") throw new TypeError(`prefix must be a string, not ${quote(prefix)}`);
    this.prefix = prefix;
    this.#limiter = limiterOf(client);
  }

  /** Called by express-rate-limit with its options, of which the store needs the length of the window. */
  init(options: { windowMs: number }): void {
    const { windowMs } = options;
    if (!(Number.isFinite(windowMs) && windowMs > 0)) {
      throw new RangeError(`windowMs must be milliseconds above 0, not ${quote(windowMs)}`);
    }
    this.#window = counting(windowMs);
  }

  /** What a key has counted in its window; undefined without a hit. Nothing is counted by it. */
  async get(key: string): Promise<HitCount | undefined> {
    const found = this.#found(await this.#limiter.windowRo(this.#key(key), this.#opened()), 0);
    return found.totalHits === 0 ? undefined : found;
  }

  /** Counts a hit. */
  async increment(key: string): Promise<HitCount> {
    return this.#found(await this.#limiter.window(this.#key(key), this.#opened(), { quantity: HIT }), HIT);
  }

  /** Takes a hit back, never below 0. The window ends when it would have ended. */
  async decrement(key: string): Promise<void> {
    await this.#limiter.window(this.#key(key), this.#opened(), { quantity: 1 - HIT });
  }

  /** Forgets what a key has counted. */
  async resetKey(key: string): Promise<void> {
    await this.#limiter.reset(this.#key(key));
  }

  #found(reply: Reply, quantity: number): HitCount {
    return {
      totalHits: Math.floor(countOf(reply, quantity) / HIT),
      resetTime: new Date(Date.now() + reply.resetAfterMs),
    };
  }

  #key(key: string): string {
    return this.prefix + key;
  }

  #opened(): Window {
    if (this.#window === undefined)
      throw new Error("the store was not initialized: rateLimit() calls init with windowMs");
    return this.#window;
  }
}

export default RatelimitStore;
