/** A reservation while its work is done. */

import type { CallOptions, Key, RenewOptions } from "./calls.js";
import { throwIfAborted } from "./errors.js";
import type { Limits } from "./limiter.js";
import type { Integer } from "./limits.js";
import type { Reply } from "./replies.js";

/** What settles a reservation. */
export type Settles = Pick<Limits, "apply" | "release" | "renew">;

/** A reservation while its work is done, see Limiter.acquire. */
export class Reservation {
  readonly #limiter: Settles;
  readonly #key: Key;
  #settled = false;

  constructor(
    limiter: Settles,
    key: Key,
    /** The answer to RL.ACQUIRE. */
    readonly reply: Reply,
  ) {
    this.#limiter = limiter;
    this.#key = key;
  }

  /** Null if nothing is reserved: of quantity 0, by a policy's SHADOW, or while Redis cannot be reached. */
  get id(): string | null {
    return this.reply.id;
  }

  /** Whether it was applied or released already. */
  get settled(): boolean {
    return this.#settled;
  }

  /** Settles now: counts the reservation, or what was really used; false if it had lapsed. */
  async apply(quantity?: Integer, options: CallOptions = {}): Promise<boolean> {
    throwIfAborted(options.signal);
    this.#settled = true;
    return this.id === null || this.#limiter.apply(this.#key, this.id, quantity, options);
  }

  /** Settles now: gives the reservation back; false if it had lapsed. */
  async release(options: CallOptions = {}): Promise<boolean> {
    throwIfAborted(options.signal);
    this.#settled = true;
    return this.id === null || (await this.#limiter.release(this.#key, this.id, options)) === 1;
  }

  /** Restarts the lease; false if it has lapsed. */
  async renew(options: RenewOptions = {}): Promise<boolean> {
    return this.id === null || this.#limiter.renew(this.#key, this.id, options);
  }
}
