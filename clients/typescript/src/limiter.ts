import * as calls from "./calls.js";
import type { Call, Clause, Key, LookOptions, ReserveOptions, ThrottleOptions, WindowOptions } from "./calls.js";
import { DeadlineError, hangUp, Lines, outOfReach, send, type Client } from "./clients.js";
import { isSemaphore, type Integer, type Policy, type Rate, type Window } from "./limits.js";
import { Denied, Lapsed, type AllReply, type Held, type Reply } from "./replies.js";

export interface LimiterOptions {
  /** What a call answers while Redis cannot be reached. Error replies are always thrown. Default "raise". */
  unreachable?: "raise" | "allow" | "deny" | undefined;
  /** The longest that a call takes, in milliseconds; a call with block takes that much longer. Default: no end. */
  deadline?: number | undefined;
}

export interface AcquireOptions extends ReserveOptions {
  /** What is done with the reservation when the work succeeds. Default: "release" for a semaphore, else "apply". */
  settle?: "apply" | "release" | undefined;
}

/** Asks limits of a server with redis-ratelimit, through a client of node-redis or ioredis. */
export class Limiter {
  readonly #client: Client;
  readonly #lines: Lines;
  readonly #unreachable: "raise" | "allow" | "deny";
  readonly #deadline: number | undefined;

  constructor(client: Client, { unreachable = "raise", deadline }: LimiterOptions = {}) {
    this.#client = client;
    this.#lines = new Lines(client);
    this.#unreachable = unreachable;
    this.#deadline = deadline;
  }

  /** Closes the connections that the limiter opened for calls that wait. */
  close(): void {
    this.#lines.close();
  }

  /** RL.THROTTLE: a steady rate with bursts. A negative quantity gives back. */
  throttle(key: Key, rate: Rate | Policy, options: ThrottleOptions = {}): Promise<Reply> {
    return this.#send(() => calls.throttle(key, rate, options));
  }

  /** RL.THROTTLE_RO: what throttle would answer now. */
  throttleRo(key: Key, rate: Rate | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#send(() => calls.look("RL.THROTTLE_RO", key, rate, options));
  }

  /** RL.WINDOW: at most so many in any period. A negative quantity gives back the oldest. */
  window(key: Key, window: Window | Policy, options: WindowOptions = {}): Promise<Reply> {
    return this.#send(() => calls.window(key, window, options));
  }

  /** RL.WINDOW_RO: what window would answer now. */
  windowRo(key: Key, window: Window | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#send(() => calls.look("RL.WINDOW_RO", key, window, options));
  }

  /**
   * RL.ACQUIRE: reserves, does the work and settles. Throws Denied if it cannot be reserved. Work that fails gives the
   * reservation back; else it is applied, or given back if it is a semaphore's. A policy that is a semaphore needs
   * settle: "release". Throws Lapsed if the lease ended before the work.
   */
  async acquire<T>(
    key: Key,
    window: Window | Policy,
    { settle, ...options }: AcquireOptions,
    work: (reservation: Reservation) => T | PromiseLike<T>,
  ): Promise<T> {
    const reply = await this.reserve(key, window, options);
    if (!reply.allowed) throw new Denied(reply);
    const reservation = new Reservation(this, key, reply);
    let result: T;
    try {
      result = await work(reservation);
    } catch (error) {
      // The work's own error says more than that of giving back, and the lease ends by itself.
      if (!reservation.settled) await reservation.release().catch(() => false);
      throw error;
    }
    if (!reservation.settled) await this.#settle(reservation, settle ?? (isSemaphore(window) ? "release" : "apply"));
    return result;
  }

  async #settle(reservation: Reservation, how: "apply" | "release"): Promise<void> {
    let held: boolean;
    try {
      held = await reservation[how]();
    } catch (error) {
      if (this.#unreachable !== "raise" && outOfReach(error)) return;
      throw error;
    }
    if (!held) throw new Lapsed(`the reservation ${reservation.id} had lapsed when its work was done`);
  }

  /** RL.ACQUIRE: reserves, for the caller to settle with apply or release. */
  reserve(key: Key, window: Window | Policy, options: ReserveOptions = {}): Promise<Reply> {
    return this.#send(() => calls.reserve(key, window, options));
  }

  /** RL.ACQUIRE_RO: what acquire would find now. */
  acquireRo(key: Key, window: Window | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#send(() => calls.look("RL.ACQUIRE_RO", key, window, options));
  }

  /** RL.APPLY: counts a reservation, or what was really used; false if it is not held. */
  apply(key: Key, id: string, quantity?: Integer): Promise<boolean> {
    return this.#send(() => calls.apply(key, id, quantity));
  }

  /** RL.RELEASE: gives reservations back, and answers how many were held. */
  release(key: Key, ...ids: string[]): Promise<number> {
    return this.#send(() => calls.release(key, ids));
  }

  /** RL.RENEW: starts the lease anew; false if the reservation is not held. */
  renew(key: Key, id: string, { lease }: { lease?: number | undefined } = {}): Promise<boolean> {
    return this.#send(() => calls.renew(key, id, lease));
  }

  /** RL.HELD: the live reservations, oldest first. */
  held(key: Key): Promise<Held[]> {
    return this.#send(() => calls.held(key));
  }

  /** RL.ALL: several limits, all or nothing. */
  all(clauses: readonly Clause[]): Promise<AllReply> {
    return this.#send(() => calls.every("RL.ALL", clauses));
  }

  /** RL.ALL_RO: what all would answer now. */
  allRo(clauses: readonly Clause[]): Promise<AllReply> {
    return this.#send(() => calls.every("RL.ALL_RO", clauses));
  }

  async #send<T>(make: () => Call<T>): Promise<T> {
    const call = make();
    try {
      return call.read(await this.#exchange(call));
    } catch (error) {
      if (call.unreached === undefined || this.#unreachable === "raise" || !outOfReach(error)) throw error;
      return call.unreached(this.#unreachable === "allow");
    }
  }

  async #exchange<T>({ key, words, readonly, blockMs }: Call<T>): Promise<unknown> {
    const waits = blockMs !== undefined && this.#lines.needed;
    const deadline = this.#deadline === undefined || blockMs === 0 ? undefined : this.#deadline + (blockMs ?? 0);
    const giveUp = new AbortController();
    const reply = waits
      ? this.#wait(giveUp.signal, (line) => send(line, key, words, readonly))
      : send(this.#client, key, words, readonly, deadline === undefined ? undefined : giveUp.signal);
    if (deadline === undefined) return reply;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        reject(new DeadlineError(`no reply within ${deadline} ms`));
        giveUp.abort();
      }, deadline);
    });
    // What comes after the deadline is nobody's.
    reply.catch(() => {});
    return Promise.race([reply, late]).finally(() => clearTimeout(timer));
  }

  async #wait(signal: AbortSignal, ask: (line: Client) => Promise<unknown>): Promise<unknown> {
    const line = await this.#lines.take();
    const abort = () => hangUp(line);
    if (signal.aborted) {
      abort();
      throw new DeadlineError("the connection came too late");
    }
    signal.addEventListener("abort", abort, { once: true });
    try {
      const reply = await ask(line);
      this.#lines.giveBack(line);
      return reply;
    } catch (error) {
      hangUp(line);
      throw error;
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }
}

/** A reservation while its work is done, see Limiter.acquire. */
export class Reservation {
  readonly #limiter: Limiter;
  readonly #key: Key;
  #settled = false;

  constructor(
    limiter: Limiter,
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
  async apply(quantity?: Integer): Promise<boolean> {
    this.#settled = true;
    return this.id === null || this.#limiter.apply(this.#key, this.id, quantity);
  }

  /** Settles now: gives the reservation back; false if it had lapsed. */
  async release(): Promise<boolean> {
    this.#settled = true;
    return this.id === null || (await this.#limiter.release(this.#key, this.id)) === 1;
  }

  /** Starts the lease anew; false if it has lapsed. */
  async renew(options: { lease?: number | undefined } = {}): Promise<boolean> {
    return this.id === null || this.#limiter.renew(this.#key, this.id, options);
  }
}
