/** A reservation that is held while work runs, or the reservations of several limits as one. */

import { integer, quote, toMilliseconds } from "./check.js";
import { codeOf, Lapsed, throwIfAborted } from "./errors.js";
import { publish } from "./events.js";
import type { Core } from "./core.js";
import type { Limits } from "./limiter.js";
import type { Integer } from "./limits.js";
import type { CallOptions, RenewOptions } from "./options.js";
import type { AllReply, Reply } from "./replies.js";
import type { Clause, Costs, Reserved } from "./several.js";
import { unref } from "./transport.js";
import { isSemaphore, renewWords } from "./words.js";

/** The methods of a limiter that settle or renew a reservation. */
export type Settler = Pick<Limits, "apply" | "release" | "renew">;

/** The number of renewals within the length of a lease. */
export const RENEWALS_PER_LEASE = 3;
/** The lease of a reservation without a lease of its own: the default of the server's setting ratelimit.lease. */
export const DEFAULT_LEASE_MS = 20_000;
/** The pauses before a settlement that could not be sent is tried again. */
export const UNSENT_PAUSES_MS = [0, 50, 250, 1000, 4000, 15_000];
/** The shortest pause between two renewals. */
export const MIN_RENEWAL_MS = 5;

/** A reservation that is held while work runs, or the reservations of several limits as one, see Limiter.acquire. */
export class Reservation {
  /** The limiter that settles a single reservation. */
  readonly #limiter: Settler;
  readonly #limits: readonly Clause[];
  /** That of the limiter that was asked, even if its fallback made the reservation. */
  readonly #core: Core;
  /** The reservation of the fallback, if several limits were reserved there. */
  readonly #fallbackReservation: Reservation | undefined;
  readonly #reserved: Reserved[];
  readonly #costs = new Map<string, Integer>();
  #isSet = false;
  #settled = false;
  /** The method that was called last, if it was not sent, or its signal fired before its reply. */
  #unanswered: "apply" | "release" | undefined;
  #leaseMs: number;
  /** The time of performance.now() at which the leases end unless they are renewed. */
  #heldUntil: number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isRenewing = false;
  #loss: Lapsed | undefined;
  #controller: AbortController | undefined;

  /** @internal */
  constructor(
    limiter: Settler,
    limits: readonly Clause[],
    /** The reply to RL.ACQUIRE or RL.ALL. */
    readonly reply: Reply | AllReply,
    core: Core,
  ) {
    this.#limiter = limiter;
    this.#limits = limits;
    this.#core = core;
    this.#fallbackReservation = "answers" in reply ? reply.reservation : undefined;
    const answers = "answers" in reply ? reply.answers : [reply];
    this.#reserved = limits.flatMap(({ name, key, limit, options: { lease } }, index) => {
      const id = answers[index]?.id;
      return typeof id === "string" ? [{ name, key, limit, id, lease }] : [];
    });
    const leases = this.#reserved.map(({ lease }) =>
      lease === undefined ? DEFAULT_LEASE_MS : toMilliseconds("lease", lease),
    );
    this.#leaseMs = leases.length > 0 ? Math.min(...leases) : DEFAULT_LEASE_MS;
    this.#heldUntil = performance.now() + this.#leaseMs;
  }

  /**
   * The id of a single reservation. Null if nothing is reserved: the quantity is 0, the SHADOW of a policy allowed the call,
   * or Redis could not be reached and no limiter decided in its place.
   */
  get id(): string | null {
    return this.reply.id;
  }

  /** The ids of all reservations, by the names of their limits. */
  get ids(): Record<string, string> {
    return Object.fromEntries(this.#reserved.map(({ name, id }) => [name, id]));
  }

  /**
   * Fires when a lease has ended, or may have ended because no renewal was answered within it. What was reserved is free for
   * others then. The reason is a Lapsed.
   */
  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.#loss !== undefined) this.#controller.abort(this.#loss);
    return this.#controller.signal;
  }

  /** True if apply or release was called. */
  get settled(): boolean {
    return this.#settled;
  }

  /**
   * Sets the quantity that was really used, to be applied when the work ends. For several limits, `cost` has the quantities
   * by the names of the limits, and the whole reservation of the others is applied. A later call replaces what an earlier
   * one set.
   */
  set(cost: Integer | Costs): void {
    const costs = typeof cost === "object" && cost !== null ? cost : this.#costOfOne(cost);
    for (const [name, quantity] of Object.entries(costs)) this.#check(name, quantity);
    for (const [name, quantity] of Object.entries(costs)) this.#costs.set(name, quantity);
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
    const limit = this.#limits.find((candidate) => candidate.name === name);
    if (limit === undefined) {
      const names = this.#limits.map((candidate) => quote(candidate.name)).join(", ");
      throw new RangeError(`there is no limit ${quote(name)}, but ${names}`);
    }
    if (!limit.reserves) {
      throw new RangeError(`the limit ${quote(name)} reserves nothing: it was counted when it was asked`);
    }
    if (isSemaphore(limit.limit))
      throw new RangeError(`the limit ${quote(name)} is a semaphore, which is only given back`);
    integer(`the cost of ${quote(name)}`, quantity);
    if (quantity < 0) throw new RangeError(`the cost of ${quote(name)} must be at least 0, not ${quantity}`);
  }

  /**
   * Counts `cost`, the quantity that was really used, or else what was reserved. For several limits, `cost` has the
   * quantities by the names of the limits; what was reserved of the others is counted, and semaphores are released. Returns
   * false if a lease had ended.
   */
  async apply(cost?: Integer | Costs, options: CallOptions = {}): Promise<boolean> {
    if (cost !== undefined) this.set(cost);
    return (await this.#settle("apply", options)).length === 0;
  }

  /** Gives back what was reserved. Returns false if a lease had ended. */
  async release(options: CallOptions = {}): Promise<boolean> {
    return (await this.#settle("release", options)).length === 0;
  }

  /** Restarts the leases. Returns false if one had ended. */
  async renew(options: RenewOptions = {}): Promise<boolean> {
    renewWords(options);
    throwIfAborted(options.signal);
    const leaseMs = options.lease === undefined ? this.#leaseMs : toMilliseconds("lease", options.lease);
    // Until the server has replied, either lease may be in force.
    this.#leaseMs = Math.min(this.#leaseMs, leaseMs);
    if (this.#isRenewing && options.lease !== undefined) this.#renewLater();
    const began = performance.now();
    const isHeld = (await this.#settleOrRenew("renew", options)).length === 0;
    this.#leaseMs = leaseMs;
    if (isHeld) this.#heldUntil = began + leaseMs;
    return isHeld;
  }

  /** Applies or releases. Returns the names of the limits whose lease had ended. */
  async #settle(method: "apply" | "release", options: CallOptions): Promise<string[]> {
    const { signal } = options;
    this.#unanswered = undefined;
    try {
      throwIfAborted(signal);
      this.#settled = true;
      this.#stopRenewing();
      return await this.#settleOrRenew(method, options);
    } catch (error) {
      if (signal?.aborted || this.#core.isUnsent(error)) this.#unanswered = method;
      throw error;
    }
  }

  /** @internal Releases after the work failed, unless the work settled. Its error is more useful than one of this. */
  async abandon(): Promise<void> {
    if (this.#settled && this.#unanswered === undefined) return;
    await this.release().catch((error: unknown) => void this.#settleLater(() => this.release(), error));
  }

  /**
   * Tries to settle again, as long as nothing was sent and the leases last, after which others may reserve by the same ids.
   * It does not keep the program running.
   */
  async #settleLater(settle: () => Promise<unknown>, firstError: unknown): Promise<void> {
    let error = firstError;
    for (const pauseMs of UNSENT_PAUSES_MS) {
      if (!this.#core.isUnsent(error) || performance.now() + pauseMs >= this.#heldUntil) break;
      await new Promise((resolve) => unref(setTimeout(resolve, pauseMs)));
      try {
        await settle();
        return;
      } catch (nextError) {
        error = nextError;
      }
    }
    publish("unsettled", () => ({ key: this.#reserved[0]?.key, error }));
  }

  /**
   * @internal Settles after the work, unless the work did. If what the work called was cancelled, that is called instead of
   * `otherwise`. Throws Lapsed if a lease had ended. If `mayBeSemaphore`, releases a reservation that cannot be applied.
   */
  async finish(otherwise: "apply" | "release", mayBeSemaphore = false): Promise<void> {
    const wasSettled = this.#settled;
    if (wasSettled && this.#unanswered === undefined) return;
    const method = this.#unanswered ?? otherwise;
    const settle = () =>
      this.#settle(method, {}).catch((error: unknown) => {
        // RL.APPLY without a quantity replies ERR only if the reservation is a semaphore's.
        if (mayBeSemaphore && !this.#isSet && codeOf(error) === "ERR") return this.#settle("release", {});
        throw error;
      });
    const lossOf = (lapsed: string[]) => {
      // A cancelled settlement may have reached the server. Then there is nothing left.
      const isLost = lapsed.length > 0 && !wasSettled;
      return isLost ? this.#lose(lapsed, "had lapsed when its work was done") : undefined;
    };
    let loss: Lapsed | undefined;
    try {
      loss = lossOf(await settle());
    } catch (error) {
      void this.#settleLater(async () => lossOf(await settle()), error);
      if (this.#core.isForgiven(error)) return;
      throw error;
    }
    if (loss !== undefined) throw loss;
  }

  /** Records that leases have ended. Returns the error. */
  #lose(lapsed: string[], when: string): Lapsed {
    const subject =
      this.id === null ? `what was reserved of ${lapsed.map(quote).join(", ")}` : `the reservation ${this.id}`;
    const loss = new Lapsed(`${subject} ${when}`);
    if (this.#loss === undefined) {
      this.#loss = loss;
      publish("lapsed", () => ({ names: lapsed, ids: this.ids }));
      this.#controller?.abort(loss);
    }
    return loss;
  }

  /** Settles or renews all reservations. Returns the names of the limits whose lease had ended. */
  async #settleOrRenew(method: keyof Settler, options: RenewOptions): Promise<string[]> {
    const reserved = this.#reserved;
    if (reserved.length === 0) return [];
    const fallback = this.#fallbackReservation;
    if (fallback !== undefined) {
      const isHeld =
        method === "apply"
          ? await fallback.apply(Object.fromEntries(this.#costs), options)
          : await fallback[method](options);
      return isHeld ? [] : Object.keys(this.ids);
    }
    const isSeveral = "answers" in this.reply;
    if (isSeveral && this.reply.reachable) {
      if (method === "apply") return this.#core.send("applyAll", reserved, this.#costs, options);
      return this.#core.send(`${method}All`, reserved, options);
    }
    const lapsed: string[] = [];
    for (const { name, key, id, limit } of reserved) {
      const limiter = this.#limiter;
      let isHeld: boolean;
      if (method === "renew") isHeld = await limiter.renew(key, id, options);
      else if (method === "apply" && !(isSeveral && isSemaphore(limit))) {
        isHeld = await limiter.apply(key, id, this.#costs.get(name), options);
      } else isHeld = (await limiter.release(key, id, options)) === 1;
      if (!isHeld) lapsed.push(name);
    }
    return lapsed;
  }

  /** @internal Renews the leases until they are settled. */
  renewWhileWorkRuns(): void {
    if (this.#reserved.length === 0) return;
    this.#isRenewing = true;
    this.#renewLater();
  }

  #stopRenewing(): void {
    this.#isRenewing = false;
    clearTimeout(this.#timer);
  }

  get #renewalMs(): number {
    return Math.max(this.#leaseMs / RENEWALS_PER_LEASE, MIN_RENEWAL_MS);
  }

  #renewLater(): void {
    clearTimeout(this.#timer);
    // The timer must not keep the process running. The work does, if it has to. Nor must it keep a reservation that nobody
    // can settle any more: its lease ends.
    const self = new WeakRef(this);
    this.#timer = setTimeout(() => {
      const reservation = self.deref();
      if (reservation !== undefined) void reservation.#renewOnce();
    }, this.#renewalMs);
    unref(this.#timer);
  }

  async #renewOnce(): Promise<void> {
    if (this.#core.isClosed) return;
    const began = performance.now();
    if (began >= this.#heldUntil) this.#lose(Object.keys(this.ids), "may have lapsed: no renewal was answered");
    // If this one fails or hangs, there is time for another one before the leases end.
    this.#renewLater();
    const leaseMs = this.#leaseMs;
    const signal = AbortSignal.timeout(Math.ceil(this.#renewalMs));
    try {
      const lapsed = await this.#settleOrRenew("renew", { signal });
      if (this.#settled) return;
      if (lapsed.length > 0) this.#lose(lapsed, "has lapsed while its work runs");
      else this.#heldUntil = began + leaseMs;
      if (lapsed.length === this.#reserved.length) this.#stopRenewing();
    } catch {
      // The next one may be answered.
    }
  }

  /**
   * Ends `await using`, which does not say whether the work failed: applies if set() was called, else releases everything.
   * Throws Lapsed if a lease had ended. Does nothing if the reservation is settled already. If apply or release was
   * cancelled, calls it again.
   */
  [Symbol.asyncDispose](): Promise<void> {
    return this.finish(this.#isSet ? "apply" : "release");
  }
}
