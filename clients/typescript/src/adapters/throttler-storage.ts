/** A storage for the package @nestjs/throttler. */

import { limiterOf, prefixOf, type ClientOrLimits } from "./counting.js";
import type { Limits } from "../limiter.js";
import { inSeconds, type Reply } from "../replies.js";

/** Options of the storage. */
export interface ThrottlerStorageOptions {
  /** The prefix of the keys in Redis. Default "throttler:". */
  prefix?: string | undefined;
}

/** The state of a key. Times are in seconds, rounded up. */
export interface ThrottlerRecord {
  /** The number of hits in the window so far; for a denied request, one more than the limit. */
  totalHits: number;
  /** The time until the window of the key ends. */
  timeToExpire: number;
  /** True if the request is denied. */
  isBlocked: boolean;
  /** The time until a request is allowed again; 0 if this one was. */
  timeToBlockExpire: number;
}

/**
 * A `ThrottlerStorage` of @nestjs/throttler on a server with redis-ratelimit. Each request is one RL.WINDOW, which counts in
 * a window that starts with its first hit (FIXED FROM first), and closes the key for the block duration when it denies
 * (BAN).
 *
 *     ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 10 }], storage: new RatelimitThrottlerStorage(client) })
 */
export class RatelimitThrottlerStorage {
  readonly #limiter: Limits;
  readonly #prefix: string;

  /** `client` is one of node-redis or ioredis, or a Limiter. */
  constructor(client: ClientOrLimits, options: ThrottlerStorageOptions = {}) {
    this.#prefix = prefixOf("RatelimitThrottlerStorage", options, "throttler:");
    this.#limiter = limiterOf(client);
  }

  /** Counts a request unless it is denied. `ttl` and `blockDuration` are milliseconds. */
  async increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName: string,
  ): Promise<ThrottlerRecord> {
    const wholeLimit = Math.max(0, Math.floor(limit));
    const ban = blockDuration > 0 ? Math.ceil(blockDuration) : undefined;
    const reply = await this.#limiter.window(
      `${this.#prefix}${key}:${throttlerName}`,
      { limit: wholeLimit, period: `${Math.max(1, Math.ceil(ttl))}ms`, fixed: true, start: "first" },
      { ban },
    );
    return recordOf(reply, wholeLimit, ban ?? 0);
  }
}

function recordOf(reply: Reply, limit: number, banMs: number): ThrottlerRecord {
  const timeToExpire = inSeconds(reply.resetAfterMs);
  if (reply.allowed) {
    // If Redis could not be reached, the count is not known.
    const totalHits = reply.reachable ? limit - reply.remaining : 1;
    return { totalHits, timeToExpire, isBlocked: false, timeToBlockExpire: 0 };
  }
  const timeToBlockExpire = inSeconds(reply.retryAfterMs ?? banMs);
  return { totalHits: limit + 1, timeToExpire, isBlocked: true, timeToBlockExpire };
}
