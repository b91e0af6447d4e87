/** The limiter, with a method for each command. */

import { closing, RESERVE_OPTIONS } from "./calls.js";
import { checkOptions, notOneOf, quote } from "./check.js";
import type { Client } from "./clients.js";
import type { Key } from "./command.js";
import { Core, type LimiterOptions } from "./core.js";
import { Denied, throwIfAborted } from "./errors.js";
import type { Duration, Integer, Limit, Policy, Rate, Window } from "./limits.js";
import { Local, type LocalOptions, type Timer } from "./local.js";
import type * as Options from "./options.js";
import { addHidden } from "./replies.js";
import type { AllReply, Held, Info, PolicyCounts, Reply, TopKey } from "./replies.js";
import { Reservation } from "./reservation.js";
import { clause, type Clauses } from "./several.js";
import { isSemaphore } from "./words.js";

/** The methods of a limiter that send calls. An object with them can be the fallback of another limiter. */
export type Limits = Omit<Limiter, "close" | "acquire" | "local">;

/**
 * A limiter that decides for another one while Redis cannot be reached, or an object with some of its methods. A call of a
 * method that it lacks throws the error of Redis. If it reserves, it must also have apply, release and renew.
 */
export type Fallback = Pick<Limits, "throttle"> & Partial<Limits>;

/** Options of Limiter.acquire. */
export interface AcquireOptions extends Options.ReserveOptions {
  /**
   * The method that settles the reservation when the work succeeds. Default: "release" for a semaphore, which cannot be
   * applied, else "apply".
   */
  settle?: "apply" | "release" | undefined;
}

/** Runs while a reservation is held. */
export type Work<T> = (reservation: Reservation) => T | PromiseLike<T>;

const isClauses = (target: Key | Clauses): target is Clauses => Array.isArray(target);

/** Splits what follows the limits: the options, which may be left out, and the work, without which the caller settles. */
function optionsAndWork<Given extends object>(given: readonly unknown[]): [Partial<Given>, Work<unknown> | undefined] {
  const [options = {}, work] = typeof given[0] === "function" ? [{}, given[0]] : given;
  // The work is undefined if there is none, and also by mistake.
  if ((work !== undefined || given.length > 1) && typeof work !== "function") {
    throw new TypeError(`acquire takes the work as a function, not ${quote(work)}`);
  }
  return [options as Partial<Given>, work as Work<unknown> | undefined];
}

/**
 * Asks limits on a server with redis-ratelimit, through a client of node-redis or ioredis.
 *
 * Before anything is sent, a method throws a TypeError for an argument of a wrong type and for an unknown option, and a
 * RangeError for a value that cannot be read. The server checks the rest, such as a limit below 0. Each method that sends
 * something may throw an error reply of the server, Duplicate, MissingModule, UnknownPolicy, UnexpectedReply, Busy, and the
 * reason of its `signal`. If Redis cannot be reached, `unreachable` decides; it does not apply to methods that settle, list or
 * inspect, which throw the error.
 */
export class Limiter {
  readonly #core: Core;
  readonly #locals = new Set<Local>();
  /** The clocks and the timer of leases; undefined for those of the system. */
  readonly #timer: Timer | undefined;

  constructor(client: Client, options?: LimiterOptions);
  /** @internal */
  constructor(client: Client, options: LimiterOptions, timer: Timer | undefined);
  constructor(client: Client, options: LimiterOptions = {}, timer?: Timer) {
    this.#core = new Core(client, options);
    this.#timer = timer;
  }

  /**
   * Closes the connections that the limiter opened. Closing the client does so too. Later calls throw Closed, also those
   * that settle, and no lease is renewed any more. What a local limit holds counts as spent unless the local limit was
   * closed before.
   */
  close(): void;
  /**
   * RL.THROTTLE or RL.WINDOW with FORCE and BAN: closes a key for this time, whatever is counted, so that all callers stay
   * away, also those who wait: for a caller whom an upstream sent away, see {@link retryAfter}. A ban that ends later stays
   * as it is. If `reachable` of the reply is false, the key is closed at most in the limiter in `unreachable`, so usually for
   * this process only.
   */
  close(key: Key, limit: Limit, ban: Duration, options?: Options.CloseOptions): Promise<Reply>;
  close(...given: unknown[]): unknown {
    if (given.length > 0) return this.#closeKey(...(given as [Key, Limit, Duration, Options.CloseOptions?]));
    for (const local of this.#locals) local.drop();
    this.#locals.clear();
    return this.#core.close();
  }

  async #closeKey(key: Key, limit: Limit, ban: Duration, options: Options.CloseOptions = {}): Promise<Reply> {
    const [method, ownOptions] = closing(limit, ban, options);
    return this.#core.send(method, key, limit, ownOptions);
  }

  /** RL.THROTTLE: a steady rate with bursts. A negative quantity gives back. */
  throttle(key: Key, rate: Rate | Policy, options: Options.ThrottleOptions = {}): Promise<Reply> {
    return this.#core.send("throttle", key, rate, options);
  }

  /** RL.THROTTLE_RO: what throttle would return now. */
  throttleRo(key: Key, rate: Rate | Policy, options: Options.LookOptions = {}): Promise<Reply> {
    return this.#core.send("throttleRo", key, rate, options);
  }

  /** RL.WINDOW: at most this many in any period. A negative quantity gives back the oldest. */
  window(key: Key, window: Window | Policy, options: Options.WindowOptions = {}): Promise<Reply> {
    return this.#core.send("window", key, window, options);
  }

  /** RL.WINDOW_RO: what window would return now. */
  windowRo(key: Key, window: Window | Policy, options: Options.LookOptions = {}): Promise<Reply> {
    return this.#core.send("windowRo", key, window, options);
  }

  /**
   * RL.ACQUIRE: reserves, does the work and settles. Throws Denied if the reservation is denied. If the work fails, the
   * reservation is released; otherwise it is applied, or released if it is a semaphore's. Throws Lapsed if the lease ended
   * before the work did, unless the work itself threw. The lease is renewed while the work runs. A `signal` ends the wait for
   * the reservation. To stop the work as well, let it watch the signal and throw.
   */
  acquire<T>(key: Key, window: Window | Policy, options: AcquireOptions, work: Work<T>): Promise<T>;
  acquire<T>(key: Key, window: Window | Policy, work: Work<T>): Promise<T>;
  /**
   * RL.ACQUIRE: reserves, for `await using`, or to be settled by hand. The lease is renewed until then, or until the program
   * drops the reservation.
   */
  acquire(key: Key, window: Window | Policy, options?: Options.ReserveOptions): Promise<Reservation>;
  /**
   * RL.ALL: reserves several limits, does the work and settles them in one step. While the work runs, their leases are
   * renewed. If the work fails, all reservations are released. Otherwise all are applied, with what was set or else with
   * what was reserved, and semaphores are released.
   */
  acquire<T>(clauses: Clauses, options: Options.SeveralOptions, work: Work<T>): Promise<T>;
  acquire<T>(clauses: Clauses, work: Work<T>): Promise<T>;
  /**
   * RL.ALL: reserves several limits, for `await using`, or to be settled by hand. Their leases are renewed until then, or
   * until the program drops the reservation.
   */
  acquire(clauses: Clauses, options?: Options.SeveralOptions): Promise<Reservation>;
  acquire(target: Key | Clauses, ...rest: readonly unknown[]): Promise<unknown> {
    return isClauses(target) ? this.#acquireSeveral(target, rest) : this.#acquireOne(target, rest);
  }

  async #acquireSeveral(clauses: Clauses, rest: readonly unknown[]): Promise<unknown> {
    const [options, work] = optionsAndWork<Options.SeveralOptions>(rest);
    const reply = await this.#askSeveral("acquireAll", clauses, options);
    const { reservation } = reply;
    if (reservation === undefined) throw new Denied(reply, clauses.flat());
    return this.#run(work, reservation, options.signal, "apply", false);
  }

  async #acquireOne(key: Key, [limit, ...rest]: readonly unknown[]): Promise<unknown> {
    const window = limit as Window | Policy;
    const [options, work] = optionsAndWork<AcquireOptions>(rest);
    checkOptions("acquire", options, work === undefined ? RESERVE_OPTIONS : [...RESERVE_OPTIONS, "settle"]);
    const { settle, ...reserve } = options;
    if (settle !== undefined && settle !== "apply" && settle !== "release") {
      throw notOneOf("settle", '"apply" or "release"', settle);
    }
    // The server would refuse to apply it, but only after the work.
    if (settle === "apply" && isSemaphore(window)) throw notOneOf("settle", '"release" for a semaphore', settle);
    const { value: reply, fallback } = await this.#core.answer("reserve", key, window, reserve);
    const limits = [clause.acquire(key, window, { lease: reserve.lease })];
    if (!reply.allowed) throw new Denied(reply, limits);
    const reservation = new Reservation(fallback ?? this, limits, reply, this.#core);
    const method = settle ?? (isSemaphore(window) ? "release" : "apply");
    // Only the server knows whether a policy is a semaphore.
    return this.#run(work, reservation, reserve.signal, method, settle === undefined && typeof window === "string");
  }

  /** Runs the work. If it fails, releases what was reserved. Otherwise settles it. Without work, returns the reservation. */
  async #run(
    work: Work<unknown> | undefined,
    reservation: Reservation,
    signal: AbortSignal | undefined,
    method: "apply" | "release",
    mayBeSemaphore: boolean,
  ): Promise<unknown> {
    reservation.renewWhileWorkRuns();
    if (work === undefined) return reservation;
    let result: unknown;
    try {
      throwIfAborted(signal);
      result = await work(reservation);
    } catch (error) {
      await reservation.abandon();
      throw error;
    }
    await reservation.finish(method, mayBeSemaphore);
    return result;
  }

  /** Asks several limits by RL.ALL, and adds the clauses and the reservation to the reply. */
  async #askSeveral(
    name: "all" | "allRo" | "reserveAll" | "acquireAll",
    clauses: Clauses,
    options: Options.AllOptions = {},
  ): Promise<AllReply> {
    const { value: reply, fallback } = await this.#core.answer(name, clauses, options);
    const limits = clauses.flat();
    const isReserved = name !== "allRo" && reply.allowed && limits.some(({ reserves }) => reserves);
    const reservation = isReserved ? new Reservation(fallback ?? this, limits, reply, this.#core) : undefined;
    addHidden(reply, limits, reservation);
    return reply;
  }

  /** RL.ACQUIRE: reserves, for the caller to settle with apply or release. */
  reserve(key: Key, window: Window | Policy, options?: Options.ReserveOptions): Promise<Reply>;
  /** RL.ALL: reserves several limits, for the caller to settle with the `reservation` of the reply. */
  reserve(clauses: Clauses, options?: Options.SeveralOptions): Promise<AllReply>;
  reserve(
    target: Key | Clauses,
    windowOrOptions?: Window | Policy | Options.SeveralOptions,
    options: Options.ReserveOptions = {},
  ): Promise<Reply | AllReply> {
    if (isClauses(target)) return this.#askSeveral("reserveAll", target, windowOrOptions as Options.SeveralOptions);
    return this.#core.send("reserve", target, windowOrOptions as Window | Policy, options);
  }

  /** RL.ACQUIRE_RO: what reserve would return now, without an id. */
  acquireRo(key: Key, window: Window | Policy, options: Options.LookOptions = {}): Promise<Reply> {
    return this.#core.send("acquireRo", key, window, options);
  }

  /**
   * Returns a limit that is decided in the process: a batch is reserved on the server, spent here while its lease lasts, and
   * settled with what was spent. All processes together never spend more than the limit, even if some of them die. Throws a
   * RangeError for a window with the period 0, and for a lease shorter than 20 ms.
   */
  local(key: Key, window: Window | Policy, options: LocalOptions = {}): Local {
    const local = new Local(this.#core, key, window, options, this.#timer, (closed) => this.#locals.delete(closed));
    this.#locals.add(local);
    return local;
  }

  /** RL.APPLY: counts a reservation, or what was really used. Returns false if the reservation is not held. */
  apply(key: Key, id: string, quantity?: Integer, options: Options.CallOptions = {}): Promise<boolean> {
    const holder = this.#core.holderOf(key, id);
    return holder?.apply(key, id, quantity, options) ?? this.#core.send("apply", key, id, quantity, options);
  }

  /** RL.RELEASE: gives reservations back. Returns how many were held. Options may follow the ids. */
  async release(key: Key, ...ids: string[] | [...ids: string[], options: Options.CallOptions]): Promise<number> {
    const last = ids.at(-1);
    const options = typeof last === "object" && !(last instanceof Uint8Array) ? last : {};
    const given = (options === last ? ids.slice(0, -1) : ids) as string[];
    const here: string[] = [];
    let released = 0;
    for (const id of given) {
      const holder = this.#core.holderOf(key, id);
      if (holder === undefined) here.push(id);
      else released += await holder.release(key, id, options);
    }
    if (here.length === 0 && given.length > 0) return released;
    return released + (await this.#core.send("release", key, here, options));
  }

  /** RL.RENEW: restarts the lease. Returns false if the reservation is not held. */
  renew(key: Key, id: string, options: Options.RenewOptions = {}): Promise<boolean> {
    const holder = this.#core.holderOf(key, id);
    return holder?.renew(key, id, options) ?? this.#core.send("renew", key, id, options);
  }

  /** RL.HELD: returns the live reservations, oldest first. */
  held(key: Key, options: Options.CallOptions = {}): Promise<Held[]> {
    return this.#core.send("held", key, options);
  }

  /**
   * RL.ALL: several limits, all or nothing. The reply's `paid` names the limits that took, and its `reservation` settles all
   * that was reserved.
   */
  all(clauses: Clauses, options: Options.AllOptions = {}): Promise<AllReply> {
    return this.#askSeveral("all", clauses, options);
  }

  /** RL.ALL_RO: what all would return now. */
  allRo(clauses: Clauses, options: Options.LookAllOptions = {}): Promise<AllReply> {
    return this.#askSeveral("allRo", clauses, options);
  }

  /** DEL: resets the limit of a key. Returns false if nothing was stored. */
  reset(key: Key, options: Options.CallOptions = {}): Promise<boolean> {
    return this.#core.send("reset", key, options);
  }

  /** RL.INFO: returns the state of a key, which shows why it is limited; null if the key does not exist. */
  info(key: Key, options: Options.CallOptions = {}): Promise<Info | null> {
    return this.#core.send("info", key, options);
  }

  /**
   * RL.TOP: returns the keys with the most denials in the last 10 to 20 minutes, most first. Asks all nodes of a cluster.
   */
  top(options: Options.TopOptions = {}): Promise<TopKey[]> {
    return this.#core.send("top", options);
  }

  /** RL.POLICIES: returns the policies, with how many calls each allowed and denied. Adds up the nodes of a cluster. */
  policies(options: Options.CallOptions = {}): Promise<PolicyCounts[]> {
    return this.#core.send("policies", options);
  }
}
