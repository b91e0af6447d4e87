/** The limiter: a method for each command. */

import * as calls from "./calls.js";
import type {
  AllOptions,
  Call,
  CallOptions,
  Clause,
  Clauses,
  Key,
  LookOptions,
  RenewOptions,
  ReserveOptions,
  ThrottleOptions,
  TopOptions,
  WindowOptions,
} from "./calls.js";
import { checkOptions, quote } from "./check.js";
import type { Client } from "./clients.js";
import { Core, type LimiterOptions } from "./core.js";
import { codeOf, Denied, Lapsed, throwIfAborted } from "./errors.js";
import { isSemaphore, type Integer, type Policy, type Rate, type Window } from "./limits.js";
import type { LocalOptions } from "./leases.js";
import { Local, type Timer } from "./local.js";
import {
  keepReservation,
  type AllReply,
  type Held,
  type Info,
  type PolicyCounts,
  type Reply,
  type TopKey,
} from "./replies.js";
import { Reservation } from "./reservation.js";

/** The methods that ask a server, or an object that answers in its place. */
export type Limits = Pick<
  Limiter,
  | "throttle"
  | "throttleRo"
  | "window"
  | "windowRo"
  | "reserve"
  | "acquireRo"
  | "apply"
  | "release"
  | "renew"
  | "held"
  | "all"
  | "allRo"
  | "reset"
  | "info"
  | "top"
  | "policies"
>;

/** Options of Limiter.acquire. */
export interface AcquireOptions extends ReserveOptions {
  /** What is done with the reservation when the work succeeds. Default: "release" for a semaphore, else "apply". */
  settle?: "apply" | "release" | undefined;
}

/** What is done while a reservation is held. */
export type Work<T> = (reservation: Reservation) => T | PromiseLike<T>;

type AcquireOne<T> = [key: Key, window: Window | Policy, options: AcquireOptions, work: Work<T>];
type AcquireSeveral<T> = [clauses: Clauses, options?: CallOptions | undefined, work?: Work<T>];
type ReserveOne = [key: Key, window: Window | Policy, options?: ReserveOptions | undefined];
type ReserveSeveral = [clauses: Clauses, options?: CallOptions | undefined];

/** Whether arguments begin with clauses instead of a key. */
function isForSeveral<One extends [Key, ...unknown[]], Several extends [Clauses, ...unknown[]]>(
  args: One | Several,
): args is Several {
  return Array.isArray(args[0]);
}

/** Asks limits of a server with redis-ratelimit, through a client of node-redis or ioredis. */
export class Limiter {
  readonly #core: Core;
  readonly #locals = new Set<Local>();
  /** The clocks of leases, if they are not the system's. */
  readonly #timer: Timer | undefined;

  constructor(client: Client, options?: LimiterOptions);
  /** @internal */
  constructor(client: Client, options: LimiterOptions, timer: Timer | undefined);
  constructor(client: Client, options: LimiterOptions = {}, timer?: Timer) {
    this.#core = new Core(client, options);
    this.#timer = timer;
  }

  /**
   * Closes the connections that the limiter opened. They are closed with the client as well. What a local limit holds counts
   * as spent unless that was closed before.
   */
  close(): void {
    for (const local of this.#locals) local.drop();
    this.#locals.clear();
    this.#core.close();
  }

  /** RL.THROTTLE: a steady rate with bursts. A negative quantity gives back. */
  throttle(key: Key, rate: Rate | Policy, options: ThrottleOptions = {}): Promise<Reply> {
    return this.#core.send("throttle", [key, rate, options], calls.throttle);
  }

  /** RL.THROTTLE_RO: what throttle would answer now. */
  throttleRo(key: Key, rate: Rate | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#core.send("throttleRo", [key, rate, options], calls.throttleRo);
  }

  /** RL.WINDOW: at most this many in any period. A negative quantity gives back the oldest. */
  window(key: Key, window: Window | Policy, options: WindowOptions = {}): Promise<Reply> {
    return this.#core.send("window", [key, window, options], calls.window);
  }

  /** RL.WINDOW_RO: what window would answer now. */
  windowRo(key: Key, window: Window | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#core.send("windowRo", [key, window, options], calls.windowRo);
  }

  /**
   * RL.ACQUIRE: reserves, does the work and settles. Throws Denied if it cannot be reserved. Work that fails gives the
   * reservation back; else it is applied, or given back if it is a semaphore's. Throws Lapsed if the lease ended before the
   * work; an error of the work itself comes first. A `signal` ends the wait for the reservation. To stop the work as well, let
   * it watch the signal and throw.
   */
  acquire<T>(key: Key, window: Window | Policy, options: AcquireOptions, work: Work<T>): Promise<T>;
  /**
   * RL.ALL: reserves several limits, does the work and settles them as one step. While the work runs their leases are renewed.
   * Work that fails gives all reservations back; else what was set is applied, and semaphores are given back.
   */
  acquire<T>(clauses: Clauses, options: CallOptions, work: Work<T>): Promise<T>;
  /** The same for `await using`, or to be settled by hand. Until then the leases are renewed. */
  acquire(clauses: Clauses, options?: CallOptions): Promise<Reservation>;
  acquire<T>(...args: AcquireOne<T> | AcquireSeveral<T>): Promise<T | Reservation> {
    return isForSeveral<AcquireOne<T>, AcquireSeveral<T>>(args)
      ? this.#acquireSeveral(...args)
      : this.#acquireOne(...args);
  }

  async #acquireSeveral<T>(clauses: Clauses, options: CallOptions = {}, work?: Work<T>): Promise<T | Reservation> {
    if (work !== undefined && typeof work !== "function") {
      throw new TypeError(`acquire of several limits takes the work as a function, not ${quote(work)}`);
    }
    const reply = await this.#askSeveral("reserve", clauses, options, calls.reserveSeveral);
    const { reservation } = reply;
    if (reservation === undefined) throw new Denied(reply);
    reservation.renewWhileWorkRuns();
    if (work === undefined) return reservation;
    return this.#work(reservation, options.signal, work, () => this.#settle(reservation, "apply", false));
  }

  async #acquireOne<T>(key: Key, window: Window | Policy, options: AcquireOptions, work: Work<T>): Promise<T> {
    if (typeof work !== "function") throw new TypeError(`acquire takes the work as a function, not ${quote(work)}`);
    checkOptions("acquire", options, [...calls.RESERVE_OPTIONS, "settle"]);
    const { settle, ...reserve } = options;
    if (settle !== undefined && settle !== "apply" && settle !== "release") {
      throw new TypeError(`settle must be "apply" or "release", not ${quote(settle)}`);
    }
    const { value: reply, by = this } = await this.#core.answer("reserve", [key, window, reserve], calls.reserve);
    if (!reply.allowed) throw new Denied(reply);
    const reservation = new Reservation(by, [calls.clause.acquire(key, window)], reply);
    // Only the server knows what a policy is.
    const isUnsure = settle === undefined && typeof window === "string";
    const how = settle ?? (isSemaphore(window) ? "release" : "apply");
    const end = () => this.#settle(reservation, how, isUnsure && !reservation.isSet);
    return this.#work(reservation, reserve.signal, work, end);
  }

  /** Does the work, and gives back what was reserved if it fails. `end` settles otherwise. */
  async #work<T>(
    reservation: Reservation,
    signal: AbortSignal | undefined,
    work: Work<T>,
    end: () => Promise<void>,
  ): Promise<T> {
    let result: T;
    try {
      throwIfAborted(signal);
      result = await work(reservation);
    } catch (error) {
      // The work's own error says more than that of giving back, and the lease ends by itself.
      if (!reservation.settled) await reservation.release().catch(() => false);
      throw error;
    }
    if (!reservation.settled) await end();
    return result;
  }

  /** Settles after work that succeeded. Where one `isUnsure` how, what turns out to be a semaphore is given back. */
  async #settle(reservation: Reservation, how: "apply" | "release", isUnsure: boolean): Promise<void> {
    let lapsed: string[];
    try {
      lapsed = await reservation.settle(how);
    } catch (error) {
      if (isUnsure && codeOf(error) === "ERR") {
        // An RL.APPLY without a quantity has no mistake that is an ERR, but to name a semaphore's reservation.
        await this.#settle(reservation, "release", false);
        return;
      }
      if (this.#core.isForgiven(error)) return;
      throw error;
    }
    if (lapsed.length === 0) return;
    const { id } = reservation;
    const what = id === null ? `what was reserved of ${lapsed.map(quote).join(", ")}` : `the reservation ${id}`;
    throw new Lapsed(`${what} had lapsed when its work was done`);
  }

  /** Asks several limits as one, and gives the reply what settles them. */
  async #askSeveral(
    name: "all" | "reserve",
    clauses: Clauses,
    options: AllOptions,
    make: (clauses: Clauses, options: AllOptions) => Call<AllReply>,
  ): Promise<AllReply> {
    const { value: reply, by = this } = await this.#core.answer(name, [clauses, options], make);
    const limits: Clause[] = clauses.flat();
    const reserves = options.force !== true && limits.some((limit) => limit.reserves);
    if (reserves && reply.allowed) {
      const settleAll = (call: Call<string[]>) => this.#core.send(undefined, [], () => call);
      keepReservation(reply, new Reservation(by, limits, reply, settleAll));
    }
    return reply;
  }

  /** RL.ACQUIRE: reserves, for the caller to settle with apply or release. */
  reserve(key: Key, window: Window | Policy, options?: ReserveOptions): Promise<Reply>;
  /** RL.ALL: reserves several limits, for the caller to settle with the `reservation` of the reply. */
  reserve(clauses: Clauses, options?: CallOptions): Promise<AllReply>;
  reserve(...args: ReserveOne | ReserveSeveral): Promise<Reply | AllReply> {
    return isForSeveral<ReserveOne, ReserveSeveral>(args) ? this.#reserveSeveral(...args) : this.#reserveOne(...args);
  }

  #reserveOne(key: Key, window: Window | Policy, options: ReserveOptions = {}): Promise<Reply> {
    return this.#core.send("reserve", [key, window, options], calls.reserve);
  }

  #reserveSeveral(clauses: Clauses, options: CallOptions = {}): Promise<AllReply> {
    return this.#askSeveral("reserve", clauses, options, calls.reserveSeveral);
  }

  /** RL.ACQUIRE_RO: what acquire would find now. */
  acquireRo(key: Key, window: Window | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#core.send("acquireRo", [key, window, options], calls.acquireRo);
  }

  /**
   * A limit whose takes are decided in the process: a batch is reserved on the server, spent here while its lease lasts, and
   * settled with what was spent. Over all processes no period has more than the limit, whatever dies.
   */
  local(key: Key, window: Window | Policy, options: LocalOptions = {}): Local {
    const local = new Local(
      {
        ask: (call, attempt) => this.#core.ask(call, attempt),
        isForgiven: (error) => this.#core.isForgiven(error),
        closed: (closed) => this.#locals.delete(closed),
        fallback: (quantity, error) => {
          const given = [key, window, { quantity, leave: options.leave }] as const;
          return this.#core.fallback<Reply>("window", [...given], calls.window(...given), error).value;
        },
      },
      key,
      window,
      options,
      this.#timer,
    );
    this.#locals.add(local);
    return local;
  }

  /** RL.APPLY: counts a reservation, or what was really used; false if it is not held. */
  apply(key: Key, id: string, quantity?: Integer, options: CallOptions = {}): Promise<boolean> {
    const own = this.#core.ownReservations(key, [id]);
    if (own !== undefined) return own.by.apply(key, id, quantity, options);
    return this.#core.send("apply", [key, id, quantity, options], calls.apply);
  }

  /** RL.RELEASE: gives reservations back, and answers how many were held. Options may follow the ids. */
  release(key: Key, ...ids: string[] | [...ids: string[], options: CallOptions]): Promise<number> {
    const last = ids.at(-1);
    const options = typeof last === "object" && !(last instanceof Uint8Array) ? last : {};
    const own = (options === last ? ids.slice(0, -1) : ids) as string[];
    return this.#release(key, own, options);
  }

  #release(key: Key, ids: string[], options: CallOptions): Promise<number> {
    const own = this.#core.ownReservations(key, ids);
    if (own !== undefined) return this.#releaseOwn(own, key, ids, options);
    return this.#core.send("release", [key, ids, options], calls.release);
  }

  /** RL.RENEW: restarts the lease; false if the reservation is not held. */
  renew(key: Key, id: string, options: RenewOptions = {}): Promise<boolean> {
    const own = this.#core.ownReservations(key, [id]);
    if (own !== undefined) return own.by.renew(key, id, options);
    return this.#core.send("renew", [key, id, options], calls.renew);
  }

  async #releaseOwn(
    { by, own }: { by: Limits; own: string[] },
    key: Key,
    ids: string[],
    options: CallOptions,
  ): Promise<number> {
    const others = ids.filter((id) => !own.includes(id));
    const released = await by.release(key, ...own, options);
    return released + (others.length > 0 ? await this.#release(key, others, options) : 0);
  }

  /** RL.HELD: the live reservations, oldest first. */
  held(key: Key, options: CallOptions = {}): Promise<Held[]> {
    return this.#core.send("held", [key, options], calls.held);
  }

  /**
   * RL.ALL: several limits, all or nothing. The reply's `paid` has the names of the limits that took, and its `reservation`
   * settles all that was reserved.
   */
  all(clauses: Clauses, options: AllOptions = {}): Promise<AllReply> {
    return this.#askSeveral("all", clauses, options, calls.all);
  }

  /** RL.ALL_RO: what all would answer now. */
  allRo(clauses: Clauses, options: CallOptions = {}): Promise<AllReply> {
    return this.#core.send("allRo", [clauses, options], calls.allRo);
  }

  /** DEL: the limit is as new; false if nothing was counted under the key. */
  reset(key: Key, options: CallOptions = {}): Promise<boolean> {
    return this.#core.send("reset", [key, options], calls.reset);
  }

  /** RL.INFO: the state of a key, for a person who asks why it is limited; null if the key does not exist. */
  info(key: Key, options: CallOptions = {}): Promise<Info | null> {
    return this.#core.send("info", [key, options], calls.info);
  }

  /** RL.TOP: the keys that were denied most in the last 10 to 20 minutes, most first. A cluster is asked node by node. */
  top(options: TopOptions = {}): Promise<TopKey[]> {
    return this.#core.send("top", [options], calls.top);
  }

  /** RL.POLICIES: the policies, and what became of the calls that named them. A cluster's nodes are added up. */
  policies(options: CallOptions = {}): Promise<PolicyCounts[]> {
    return this.#core.send("policies", [options], calls.policies);
  }
}
