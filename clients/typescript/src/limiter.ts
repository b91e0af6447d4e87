/** The limiter: a method for each command, and what it answers when Redis does not. */

import { Breaker } from "./breaker.js";
import * as calls from "./calls.js";
import type {
  Call,
  Clause,
  Group,
  Key,
  LookOptions,
  RenewOptions,
  ReserveOptions,
  ThrottleOptions,
  TopOptions,
  WindowOptions,
} from "./calls.js";
import { checkOptions, shown } from "./check.js";
import { transportFor, type Client } from "./clients.js";
import {
  Busy,
  DeadlinePassed,
  Denied,
  isErrorReply,
  isServerFull,
  isUnreachable,
  Lapsed,
  MissingModule,
  UnknownPolicy,
} from "./errors.js";
import { isSemaphore, type Integer, type Policy, type Rate, type Window } from "./limits.js";
import type { Clock, LocalOptions } from "./lease.js";
import { Local } from "./local.js";
import type { AllReply, Held, Info, PolicyCounts, Reply, TopKey } from "./replies.js";
import type { Attempt, Transport } from "./transport.js";

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

/** Options of a Limiter. */
export interface LimiterOptions {
  /**
   * What a call answers while Redis cannot be reached: throws the error, is allowed, is denied, or is answered by another
   * object with the same methods. Error replies are always thrown. Default "raise".
   */
  unreachable?: "raise" | "allow" | "deny" | Limits | undefined;
  /**
   * The longest that a call takes, in milliseconds: waiting for a connection, connecting, sending and answering. A call with
   * block has that much more. Default: no end.
   */
  deadline?: number | undefined;
}

/** Options of Limiter.acquire. */
export interface AcquireOptions extends ReserveOptions {
  /** What is done with the reservation when the work succeeds. Default: "release" for a semaphore, else "apply". */
  settle?: "apply" | "release" | undefined;
}

/** Where an object tells which reservations were made with it: it settles them then, also when the server is back. */
export const HOLDS = Symbol("holds");

/** What a timer can wait at most. */
const LONGEST_MS = 2 ** 31 - 1;
/** An answer within this part of a call's time does not show that the server still answers at its end. */
const EARLY = 0.2;

function checkUnreachable(given: unknown): void {
  const isObject = typeof given === "object" && given !== null;
  if (isObject && typeof (given as { throttle?: unknown }).throttle === "function") return;
  if (given === "raise" || given === "allow" || given === "deny") return;
  throw new TypeError(
    `unreachable must be "raise", "allow", "deny" or an object with a limiter's methods, not ${shown(given)}`,
  );
}

function checkDeadline(given: unknown): void {
  if (given === undefined) return;
  if (typeof given !== "number") throw new TypeError(`deadline must be a number of milliseconds, not ${shown(given)}`);
  if (!(given > 0 && given <= LONGEST_MS)) {
    throw new RangeError(`deadline must be milliseconds above 0 and up to ${LONGEST_MS}, not ${given}`);
  }
}

/** Asks limits of a server with redis-ratelimit, through a client of node-redis or ioredis. */
export class Limiter {
  readonly #transport: Transport;
  readonly #breakers = new Map<string, Breaker>();
  readonly #unreachable: "raise" | "allow" | "deny" | Limits;
  readonly #deadline: number | undefined;
  readonly #locals = new Set<Local>();
  /** The clock of leases, if it is not the system's. */
  readonly #clock: Clock | undefined;

  constructor(client: Client, options?: LimiterOptions);
  /** @internal */
  constructor(client: Client, options: LimiterOptions, clock: Clock | undefined);
  constructor(client: Client, options: LimiterOptions = {}, clock?: Clock) {
    checkOptions("Limiter", options, ["unreachable", "deadline"]);
    const { unreachable = "raise", deadline } = options;
    checkUnreachable(unreachable);
    checkDeadline(deadline);
    this.#transport = transportFor(client, deadline);
    this.#unreachable = unreachable;
    this.#deadline = deadline;
    this.#clock = clock;
  }

  /**
   * Closes the connections that the limiter opened. They are closed with the client as well. What a local limit holds counts
   * as spent unless that was closed before.
   */
  close(): void {
    for (const local of this.#locals) local.drop();
    this.#locals.clear();
    for (const breaker of this.#breakers.values()) breaker.reset();
    this.#transport.close();
  }

  /** RL.THROTTLE: a steady rate with bursts. A negative quantity gives back. */
  throttle(key: Key, rate: Rate | Policy, options: ThrottleOptions = {}): Promise<Reply> {
    return this.#send("throttle", [key, rate, options], calls.throttle);
  }

  /** RL.THROTTLE_RO: what throttle would answer now. */
  throttleRo(key: Key, rate: Rate | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#send("throttleRo", [key, rate, options], calls.throttleRo);
  }

  /** RL.WINDOW: at most so many in any period. A negative quantity gives back the oldest. */
  window(key: Key, window: Window | Policy, options: WindowOptions = {}): Promise<Reply> {
    return this.#send("window", [key, window, options], calls.window);
  }

  /** RL.WINDOW_RO: what window would answer now. */
  windowRo(key: Key, window: Window | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#send("windowRo", [key, window, options], calls.windowRo);
  }

  /**
   * RL.ACQUIRE: reserves, does the work and settles. Throws Denied if it cannot be reserved. Work that fails gives the
   * reservation back; else it is applied, or given back if it is a semaphore's. Throws Lapsed if the lease ended before the
   * work; an error of the work itself comes first.
   */
  async acquire<T>(
    key: Key,
    window: Window | Policy,
    options: AcquireOptions,
    work: (reservation: Reservation) => T | PromiseLike<T>,
  ): Promise<T> {
    if (typeof work !== "function") throw new TypeError(`acquire takes the work as a function, not ${shown(work)}`);
    checkOptions("acquire", options, [...calls.RESERVE, "settle"]);
    const { settle, ...reserve } = options;
    if (settle !== undefined && settle !== "apply" && settle !== "release") {
      throw new TypeError(`settle must be "apply" or "release", not ${shown(settle)}`);
    }
    const { value: reply, by } = await this.#answer("reserve", [key, window, reserve], calls.reserve);
    if (!reply.allowed) throw new Denied(reply);
    const reservation = new Reservation(by, key, reply);
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
      if (how === "apply" && isErrorReply(error) && error.message.includes("semaphore")) {
        // The policy turned out to be a semaphore.
        await this.#settle(reservation, "release");
        return;
      }
      if (this.#unreachable !== "raise" && isUnreachable(error)) return;
      throw error;
    }
    if (!held) throw new Lapsed(`the reservation ${reservation.id} had lapsed when its work was done`);
  }

  /** RL.ACQUIRE: reserves, for the caller to settle with apply or release. */
  reserve(key: Key, window: Window | Policy, options: ReserveOptions = {}): Promise<Reply> {
    return this.#send("reserve", [key, window, options], calls.reserve);
  }

  /** RL.ACQUIRE_RO: what acquire would find now. */
  acquireRo(key: Key, window: Window | Policy, options: LookOptions = {}): Promise<Reply> {
    return this.#send("acquireRo", [key, window, options], calls.acquireRo);
  }

  /**
   * A limit whose takes are decided in the process: a batch is reserved on the server, spent here while its lease lasts, and
   * settled with what was spent. Over all processes no period has more than the limit, whatever dies.
   */
  local(key: Key, window: Window | Policy, options: LocalOptions = {}): Local {
    const local = new Local(
      {
        isAway: () => this.#breakerFor(key).isOpen,
        ask: (call) => this.#ask(call),
        closed: (closed) => this.#locals.delete(closed),
        fallback: (quantity, error) => {
          const given = [key, window, { quantity, leave: options.leave }] as const;
          return this.#fallback<Reply>("window", [...given], calls.window(...given), error).value;
        },
      },
      key,
      window,
      options,
      this.#clock,
    );
    this.#locals.add(local);
    return local;
  }

  /** One call, answered by the server alone. */
  async #ask<T>(call: Call<T>): Promise<T> {
    const reply = await this.#exchange(call);
    if (call.merge === undefined) return call.read(reply);
    return call.merge((reply as unknown[]).map((each) => call.read(each)));
  }

  /** RL.APPLY: counts a reservation, or what was really used; false if it is not held. */
  apply(key: Key, id: string, quantity?: Integer): Promise<boolean> {
    const own = this.#reservedWith(key, id);
    if (own !== undefined) return own.apply(key, id, quantity);
    return this.#send("apply", [key, id, quantity], calls.apply);
  }

  /** RL.RELEASE: gives reservations back, and answers how many were held. */
  release(key: Key, ...ids: string[]): Promise<number> {
    const own = ids.filter((id) => this.#reservedWith(key, id) !== undefined);
    if (own.length > 0) return this.#releaseOwn(key, own, ids);
    return this.#send("release", [key, ...ids] as [Key, ...string[]], (of, ...each: string[]) =>
      calls.release(of, each),
    );
  }

  /** RL.RENEW: starts the lease anew; false if the reservation is not held. */
  renew(key: Key, id: string, options: RenewOptions = {}): Promise<boolean> {
    const own = this.#reservedWith(key, id);
    if (own !== undefined) return own.renew(key, id, options);
    return this.#send("renew", [key, id, options], calls.renew);
  }

  /** The MemoryLimiter with which a reservation was made while Redis could not be reached. */
  #reservedWith(key: Key, id: string): Limits | undefined {
    const unreachable = this.#unreachable;
    if (typeof unreachable !== "object" || !(HOLDS in unreachable)) return undefined;
    return (unreachable[HOLDS] as (key: Key, id: string) => boolean)(key, id) ? unreachable : undefined;
  }

  async #releaseOwn(key: Key, own: string[], ids: string[]): Promise<number> {
    const others = ids.filter((id) => !own.includes(id));
    const released = await (this.#unreachable as Limits).release(key, ...own);
    return released + (others.length > 0 ? await this.release(key, ...others) : 0);
  }

  /** RL.HELD: the live reservations, oldest first. */
  held(key: Key): Promise<Held[]> {
    return this.#send("held", [key], calls.held);
  }

  /** RL.ALL: several limits, all or nothing. */
  all(clauses: readonly (Clause | Group)[]): Promise<AllReply> {
    return this.#send("all", [clauses], (each) => calls.every("RL.ALL", each));
  }

  /** RL.ALL_RO: what all would answer now. */
  allRo(clauses: readonly (Clause | Group)[]): Promise<AllReply> {
    return this.#send("allRo", [clauses], (each) => calls.every("RL.ALL_RO", each));
  }

  /** DEL: the limit is as new; false if nothing was counted under the key. */
  reset(key: Key): Promise<boolean> {
    return this.#send("reset", [key], calls.reset);
  }

  /** RL.INFO: what lies under a key, for a person who asks why it is limited; null if there is nothing. */
  info(key: Key): Promise<Info | null> {
    return this.#send("info", [key], calls.info);
  }

  /** RL.TOP: the keys that were denied most in the last 10 to 20 minutes, most first. A cluster is asked node by node. */
  top(options: TopOptions = {}): Promise<TopKey[]> {
    return this.#send("top", [options], calls.top);
  }

  /** RL.POLICIES: the policies, and what became of the calls that named them. A cluster's nodes are added up. */
  policies(): Promise<PolicyCounts[]> {
    return this.#send("policies", [], calls.policies);
  }

  /** One call, answered by the server or as `unreachable` says. */
  async #send<Given extends unknown[], T>(
    name: keyof Limits,
    given: Given,
    make: (...given: Given) => Call<T>,
  ): Promise<T> {
    const call = make(...given);
    try {
      const reply = this.#transport.atOnce?.(call);
      if (reply !== undefined) return call.merge?.([call.read(reply)]) ?? call.read(reply);
      return await this.#ask(call);
    } catch (error) {
      return this.#fallback<T>(name, given, call, error).value;
    }
  }

  /** The same, and what settles what was reserved: the server, or whoever answered in its place. */
  async #answer<Given extends unknown[], T>(
    name: keyof Limits,
    given: Given,
    make: (...given: Given) => Call<T>,
  ): Promise<{ value: T; by: Settles }> {
    const call = make(...given);
    try {
      return { value: await this.#ask(call), by: this };
    } catch (error) {
      const { value, by } = this.#fallback<T>(name, given, call, error);
      return { value: await value, by };
    }
  }

  /** What `unreachable` says in the place of an answer. Throws errors that do not mean that Redis cannot be reached. */
  #fallback<T>(
    name: keyof Limits,
    given: unknown[],
    call: Call<T>,
    error: unknown,
  ): { value: T | Promise<T>; by: Settles } {
    if (!isUnreachable(error)) throw this.#explained(call, error);
    const unreachable = this.#unreachable;
    if (typeof unreachable === "object") {
      const method = unreachable[name] as ((...given: unknown[]) => Promise<T>) | undefined;
      if (method === undefined) throw error;
      const answer = method.apply(unreachable, given);
      return { value: HOLDS in unreachable ? marked(answer) : answer, by: unreachable };
    }
    if (call.unreached === undefined || unreachable === "raise") throw error;
    return { value: call.unreached(unreachable === "allow"), by: this };
  }

  /** An error reply with what the server cannot know. */
  #explained(call: Pick<Call<unknown>, "words" | "policies">, error: unknown): unknown {
    if (isServerFull(error) && !(error instanceof Busy)) return new Busy(error.message, { cause: error });
    if (!isErrorReply(error)) return error;
    const { message } = error;
    if (/unknown command/i.test(message) && String(call.words[0]).startsWith("RL.")) {
      const what = `${this.#transport.name} has no redis-ratelimit, or one that does not know ${String(call.words[0])}`;
      return new MissingModule(`${what}: ${message}`, { cause: error });
    }
    if (message.startsWith("NOPOLICY no policy")) {
      const names = (call.policies ?? []).map((policy) => policy.slice(1));
      const isNamed = names.some((name) => message.includes(` ${name}`));
      const text = isNamed ? message : `${message}: ${names.map((name) => `@${name}`).join(", ")}`;
      return new UnknownPolicy(text, { cause: error });
    }
    return error;
  }

  #breakerFor(key: Key | undefined): Breaker {
    const node = this.#transport.nodeOf(key);
    let breaker = this.#breakers.get(node);
    if (breaker === undefined) {
      breaker = new Breaker(() => this.#transport.probe(key));
      this.#breakers.set(node, breaker);
    }
    return breaker;
  }

  /** The server's reply within the deadline; those of all nodes to a call whose answers are merged. */
  #exchange<T>(call: Call<T>): Promise<unknown> {
    const breaker = this.#breakerFor(call.key);
    if (breaker.isOpen) return Promise.reject(breaker.refusal());
    const began = performance.now();
    const attempt: Attempt = { over: false };
    const isForOne = call.merge === undefined;
    const reply = isForOne ? this.#transport.send(call, attempt) : this.#transport.sendToAll(call, attempt);
    // BLOCK 0 waits without end.
    const withinMs =
      this.#deadline === undefined || call.blockMs === 0 ? Infinity : this.#deadline + (call.blockMs ?? 0);
    return new Promise((resolve, reject) => {
      const stop = startTimer(withinMs, attempt, () => reject(this.#expired(call.key, breaker, began, withinMs)));
      reply.then(
        (answer) => {
          stop();
          breaker.answered();
          resolve(answer);
        },
        (error: unknown) => {
          stop();
          if (attempt.over) return;
          if (isUnreachable(error)) breaker.failed(began, error);
          else if (isErrorReply(error)) breaker.answered();
          reject(error);
        },
      );
    });
  }

  /** The error of a call whose time is over. */
  #expired(key: Key | undefined, breaker: Breaker, began: number, withinMs: number): Error {
    const { trouble } = this.#transport;
    if (breaker.lastAnswer > began + withinMs * EARLY) {
      return new Busy(`no reply within ${withinMs} ms, as many calls are under way; the server answers others`);
    }
    if (trouble instanceof Busy) return trouble;
    this.#transport.silent(key, began);
    const error = new DeadlinePassed(`no reply within ${withinMs} ms`, { cause: trouble });
    breaker.failed(began, error);
    return error;
  }
}

/** Gives a call up when its time is over. The function that it answers stops the timer. */
function startTimer(withinMs: number, attempt: Attempt, expire: () => void): () => void {
  if (withinMs > LONGEST_MS) return () => {};
  let isStopped = false;
  const giveUp = () => {
    if (isStopped) return;
    attempt.over = true;
    attempt.abandon?.();
    expire();
  };
  // A program that was busy for long has its timers called before it reads what has arrived: that comes first.
  const timer = setTimeout(() => setImmediate(giveUp), withinMs);
  return () => {
    isStopped = true;
    clearTimeout(timer);
  };
}

/** What a MemoryLimiter answers in the server's place says so. Other objects say by themselves what they are. */
async function marked<T>(answer: T | Promise<T>): Promise<T> {
  const given = await answer;
  const isReply = typeof given === "object" && given !== null && "reachable" in given;
  return isReply ? { ...given, reachable: false } : given;
}

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
  async renew(options: RenewOptions = {}): Promise<boolean> {
    return this.id === null || this.#limiter.renew(this.#key, this.id, options);
  }
}
