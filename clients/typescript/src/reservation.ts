/** A reservation while its work is done, or the reservations of several limits as one. */

import * as calls from "./calls.js";
import type { Call, CallOptions, Clause, Costs, RenewOptions, Reserved } from "./calls.js";
import { integer, quote, toMilliseconds } from "./check.js";
import { throwIfAborted } from "./errors.js";
import type { Limits } from "./limiter.js";
import type { Integer } from "./limits.js";
import type { AllReply, Reply } from "./replies.js";

/** What settles a reservation. */
export type Settler = Pick<Limits, "apply" | "release" | "renew">;

/** How often a lease is renewed within its length, where leases are renewed. */
export const RENEWALS_PER_LEASE = 3;
/** The default of the server's setting ratelimit.lease, for reservations that were made without a lease of their own. */
export const DEFAULT_LEASE_MS = 20_000;
/** The shortest pause between two renewals. */
export const LEAST_RENEWAL_MS = 5;

/** Sends what settles the reservations of several limits as one step. */
export type SettleAll = (call: Call<string[]>) => Promise<string[]>;

/** A reservation while its work is done, or the reservations of several limits as one, see Limiter.acquire. */
export class Reservation {
  /** Settles a reservation by itself. */
  readonly #limiter: Settler;
  readonly #limits: readonly Clause[];
  /** Undefined for a single limit. */
  readonly #settleAll: SettleAll | undefined;
  /** What settles the reservations of several limits that a fallback made. */
  readonly #fallbackReservation: Reservation | undefined;
  readonly #reserved: Reserved[];
  #costs: Record<string, Integer> = {};
  #isSet = false;
  #settled = false;
  #renewalMs: number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isRenewing = false;

  /** @internal */
  constructor(
    limiter: Settler,
    limits: readonly Clause[],
    /** The reply to RL.ACQUIRE or RL.ALL. */
    readonly reply: Reply | AllReply,
    settleAll?: SettleAll,
  ) {
    this.#limiter = limiter;
    this.#limits = limits;
    this.#settleAll = settleAll;
    this.#fallbackReservation = "answers" in reply ? reply.reservation : undefined;
    const answers = "answers" in reply ? reply.answers : [reply];
    this.#reserved = limits.flatMap(({ name, key, isSemaphore = false, words }, at) => {
      const id = answers[at]?.id;
      const isPolicy = String(words[1]).startsWith("@");
      return typeof id === "string" ? [{ name, key, id, isSemaphore, isPolicy }] : [];
    });
    const leases = limits.filter(({ name }) => name in this.ids).map(({ leaseMs = DEFAULT_LEASE_MS }) => leaseMs);
    this.#renewalMs = renewalMsOf(leases.length > 0 ? Math.min(...leases) : DEFAULT_LEASE_MS);
  }

  /**
   * The id of a single reservation. Null if nothing is reserved: for a quantity of 0, by a policy's SHADOW, or while Redis
   * cannot be reached.
   */
  get id(): string | null {
    return this.reply.id;
  }

  /** The ids of all reservations, by the names of their limits. */
  get ids(): Record<string, string> {
    return Object.fromEntries(this.#reserved.map(({ name, id }) => [name, id]));
  }

  /** Whether it was applied or released already. */
  get settled(): boolean {
    return this.#settled;
  }

  /**
   * Sets what was really used, for the end of the work to apply: a quantity, or for several limits the quantities by their
   * names. A later call replaces what an earlier one set. A limit that is not named keeps what was reserved.
   */
  set(cost: Integer | Costs): void {
    const costs = typeof cost === "object" && cost !== null ? cost : this.#costOfOne(cost);
    for (const [name, quantity] of Object.entries(costs)) this.#check(name, quantity);
    this.#costs = { ...this.#costs, ...costs };
    this.#isSet = true;
  }

  #costOfOne(cost: Integer): Costs {
    const [limit, ...others] = this.#limits;
    if (limit === undefined || others.length > 0) {
      throw new TypeError(`the cost of several limits must be a quantity for each name, not ${quote(cost)}`);
    }
    return { [limit.name]: cost };
  }

  #check(name: string, quantity: Integer): void {
    const limit = this.#limits.find((each) => each.name === name);
    if (limit === undefined) {
      throw new RangeError(
        `there is no limit ${quote(name)}, but ${this.#limits.map((each) => quote(each.name)).join(", ")}`,
      );
    }
    if (!limit.reserves)
      throw new RangeError(`the limit ${quote(name)} reserves nothing: it was counted when it was asked`);
    if (limit.isSemaphore) throw new RangeError(`the limit ${quote(name)} is a semaphore, which is only given back`);
    integer(`the cost of ${quote(name)}`, quantity);
    if (quantity < 0) throw new RangeError(`the cost of ${quote(name)} must be at least 0, not ${quantity}`);
  }

  /**
   * Settles now: counts what was reserved, or `cost`, what was really used. Returns false if the lease had ended. For
   * several limits, `cost` has the quantities by their names. A limit that it does not name keeps what was reserved, and a
   * semaphore is released.
   */
  async apply(cost?: Integer | Costs, options: CallOptions = {}): Promise<boolean> {
    throwIfAborted(options.signal);
    if (cost !== undefined) this.set(cost);
    return (await this.settle("apply", options)).length === 0;
  }

  /** Settles now: releases the reservation. Returns false if the lease had ended. */
  async release(options: CallOptions = {}): Promise<boolean> {
    throwIfAborted(options.signal);
    return (await this.settle("release", options)).length === 0;
  }

  /** Restarts the lease. Returns false if it has ended. */
  async renew(options: RenewOptions = {}): Promise<boolean> {
    if (options.lease === undefined) return (await this.#lapsed("renew", options)).length === 0;
    const renewalMs = renewalMsOf(toMilliseconds("lease", options.lease));
    // Until the server has replied, either lease may be in force.
    this.#renewalMs = Math.min(this.#renewalMs, renewalMs);
    if (this.#isRenewing) this.#renewLater();
    const isHeld = (await this.#lapsed("renew", options)).length === 0;
    this.#renewalMs = renewalMs;
    return isHeld;
  }

  /** @internal Applies or releases. Returns the names of the limits whose reservation had ended. */
  settle(how: "apply" | "release", options: CallOptions = {}): Promise<string[]> {
    this.#settled = true;
    this.#stopRenewing();
    return this.#lapsed(how, options);
  }

  async #lapsed(how: "apply" | "release" | "renew", options: CallOptions & RenewOptions): Promise<string[]> {
    const reserved = this.#reserved;
    if (reserved.length === 0) return [];
    if (this.#fallbackReservation !== undefined) {
      // Reserved by the fallback, so settled there.
      const theirs = this.#fallbackReservation;
      const held = how === "apply" ? await theirs.apply(this.#costs, options) : await theirs[how](options);
      return held ? [] : Object.keys(this.ids);
    }
    if (this.#settleAll !== undefined && this.reply.reachable) {
      if (how === "apply") return this.#settleAll(calls.applyAll(reserved, this.#costs, options));
      const make = how === "release" ? calls.releaseAll : calls.renewAll;
      return this.#settleAll(make(reserved, options));
    }
    const lapsed: string[] = [];
    for (const each of reserved) if (!(await this.#isHeld(how, each, options))) lapsed.push(each.name);
    return lapsed;
  }

  async #isHeld(
    how: "apply" | "release" | "renew",
    { name, key, id, isSemaphore }: Reserved,
    options: CallOptions & RenewOptions,
  ): Promise<boolean> {
    if (how === "renew") return this.#limiter.renew(key, id, options);
    const isReleased = how === "release" || (this.#settleAll !== undefined && isSemaphore);
    if (isReleased) return (await this.#limiter.release(key, id, options)) === 1;
    return this.#limiter.apply(key, id, this.#costs[name], options);
  }

  /** @internal Whether a cost was set. */
  get isSet(): boolean {
    return this.#isSet;
  }

  /** @internal Renews the leases of several limits until they are settled. */
  renewWhileWorkRuns(): void {
    if (this.#settleAll === undefined || this.#reserved.length === 0) return;
    this.#isRenewing = true;
    this.#renewLater();
  }

  #renewLater(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#renewOnce(), this.#renewalMs);
    // The work keeps the process alive, if anything does.
    (this.#timer as { unref?: () => void }).unref?.();
  }

  async #renewOnce(): Promise<void> {
    // There is another try before the leases end.
    const lapsed = await this.#lapsed("renew", {}).catch(() => []);
    if (this.#isRenewing && lapsed.length < this.#reserved.length) this.#renewLater();
  }

  #stopRenewing(): void {
    this.#isRenewing = false;
    clearTimeout(this.#timer);
  }

  /**
   * Ends `await using`, which does not tell whether the work failed: applies what was set, or releases everything if nothing
   * was set. Does nothing if the reservation was settled already.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#settled) await (this.#isSet ? this.apply() : this.release());
  }
}

const renewalMsOf = (leaseMs: number): number => Math.max(leaseMs / RENEWALS_PER_LEASE, LEAST_RENEWAL_MS);
