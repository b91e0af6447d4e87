/**
 * The leases of one key: the batches that a process has reserved of a limit, how it spends them, and how it settles them.
 * crates/leases decides, which is part of the engine. This file gives it what it needs, and does no I/O, see local.ts.
 */

import type { Key } from "./command.js";
import { checkOptions, checkText, integer, minPeriodMs, quote, toMilliseconds } from "./check.js";
import { engineModule, Instance } from "./engine.js";
import { Closed, codeOf, DeadlinePassed, isErrorReply, UnexpectedReply } from "./errors.js";
import {
  checkWindow,
  isSemaphore,
  limitOptions,
  limitWords,
  type Duration,
  type Integer,
  type Policy,
  type Window,
  type Word,
} from "./limits.js";
import { randomName } from "./random.js";
import { readCount, readId, readIdAndGranted, readReply, replyWith, type Reply } from "./replies.js";

/** Options of Limiter.local. */
export interface LocalOptions {
  /** The length of the lease in which the process may spend a batch, at least 20 ms. Default "100ms". */
  lease?: Duration | undefined;
  /** The quantity that must remain for others. Default 0. */
  leave?: Integer | undefined;
}

/** Clocks, in milliseconds. Tests have their own. */
export interface Clock {
  /** Never goes back. It may stand still while the machine sleeps. */
  monotonic(): number;
  /** The time of day, which may be set. */
  wall(): number;
}

/** The shortest lease. Of a shorter one too little would be left, as a lease is given up early. */
export const MIN_LEASE_MS = 20;
/** An export for leases, see clients/typescript/native/src/leases.rs. */
type LeaseCall = (handle: number, a: number, b: number, monotonic: number, wall: number) => number;
type LeaseMethod =
  | "take"
  | "want"
  | "rounds"
  | "next_round"
  | "receive"
  | "fail"
  | "error"
  | "unsettled"
  | "next_at"
  | "close"
  | "is_settled";
interface LeaseExports extends Record<`lease_${LeaseMethod}`, LeaseCall> {
  lease_open(length: number, monotonic: number, wall: number): number;
  lease_free(handle: number): void;
  lease_taken(): number;
}

/** The results of `lease_take` that are no decision: the server must be asked, the policy is a semaphore. */
const ASK = 3;
const SEMAPHORE = 4;
/** Added to the result of `lease_take` if there may be something to send. */
const DUE = 8;
/** The results of `lease_error` that are no number of an error reply: there is none, or batches arrived late. */
const NO_ERROR = -1;
const LATE_BATCHES = -2;
/** The result of `lease_want` after close(). */
const CLOSED = -1;
/** The handle of leases that were freed. */
const FREED = -1;

/**
 * Returns the shortest time that a window counts an event; 0 for a policy, and for a window of the calendar, which may end
 * at any time.
 */
export function countedMs(window: Window | Policy): number {
  if (typeof window === "string") return 0;
  if (window.fixed && window.start?.toLowerCase() !== "first") return 0;
  return Number(minPeriodMs(window.period) ?? 0n);
}

/** The limit that is leased. */
export interface Terms {
  readonly key: Key;
  readonly window: Window | Policy;
  readonly leaseMs: number;
  readonly leave: Integer;
}

/** Returns the terms of leases. Throws a TypeError or RangeError if an argument is wrong. */
export function checkTerms(key: Key, window: Window | Policy, options: LocalOptions): Terms {
  checkText("key", key);
  checkWindow("local", window);
  checkOptions("local", options, ["lease", "leave"]);
  const { lease = "100ms", leave = 0 } = options;
  integer("leave", leave);
  if (leave < 0) throw new RangeError(`leave must be at least 0, not ${leave}`);
  if (isSemaphore(window)) throw new RangeError("local takes a window with a period; 0 is a semaphore");
  const leaseMs = toMilliseconds("lease", lease);
  if (leaseMs < MIN_LEASE_MS) {
    throw new RangeError(`lease must be at least ${MIN_LEASE_MS} ms, not ${quote(lease)}`);
  }
  // Throws if the window cannot be put into a command.
  limitWords(window);
  limitOptions(window);
  return { key, window, leaseMs, leave };
}

/** Reads the reply to a command of leases. Throws if it is not one of redis-ratelimit. */
export function readLeaseReply(words: readonly Word[], reply: unknown): Reply | number {
  if (words[0] === "RL.WINDOW") return readReply(reply);
  if (words[0] !== "RL.ACQUIRE") return readCount(reply);
  return words.includes("ATMOST") ? readIdAndGranted(reply) : readId(reply);
}

/** Returns the word for a reply that `lease_receive` reads. */
function replyWord(reply: Reply | number | Error): string {
  if (reply instanceof Error) return `-${codeOf(reply) ?? ""}`;
  if (typeof reply === "number") return `:${reply}`;
  const { limited, limit, remaining, retryAfterMs, resetAfterMs, id, granted, reservations } = reply;
  const numbers = [limited, limit, remaining, retryAfterMs ?? -1, resetAfterMs];
  return [...numbers, id === null ? "nil" : "id", granted ?? 0, reservations ?? 0].join(" ");
}

/** All leases are in one instance of the engine. */
let shared: Instance<LeaseExports> | undefined;

/** Returns the instance. */
export const leaseInstance = (): Instance<LeaseExports> => (shared ??= new Instance(engineModule()));

/**
 * The leases of one key.
 *
 * A caller tries take(). If that returns undefined, it calls want(), and tries again when `rounds` has reached the number
 * that is returned. The caller that does the I/O sends what nextRound() returns and reports the outcome by receive() or
 * fail(), until nextRound() returns undefined. Then it waits until nextAt(), or until wake() is called.
 */
export class Leases {
  readonly #instance: Instance<LeaseExports>;
  readonly #terms: Terms;
  readonly #clock: Clock;
  /** Called when nextRound() may have something to send. */
  readonly #wake: () => void;
  #handle: number;
  /** The numbers of the last decision, in the memory of the engine. */
  #taken: Float64Array;
  /** The errors whose numbers the engine may return. */
  #errors: unknown[] = [];
  #isClosing = false;

  constructor(instance: Instance<LeaseExports>, terms: Terms, clock: Clock, wake: () => void) {
    [this.#instance, this.#terms, this.#clock, this.#wake] = [instance, terms, clock, wake];
    const { window, leaseMs, leave } = terms;
    const limit = typeof window === "string" ? "" : String(window.limit);
    const numbers = [limit, String(countedMs(window)), String(leaseMs), String(leave)];
    const words = [randomName(), ...numbers, ...limitWords(window), ...limitOptions(window)];
    this.#handle = instance.exports.lease_open(instance.write(words), clock.monotonic(), clock.wall());
    this.#taken = this.#viewTaken();
  }

  #call(method: LeaseMethod, a = 0, b = 0): number {
    const { exports } = this.#instance;
    return exports[`lease_${method}`](this.#handle, a, b, this.#clock.monotonic(), this.#clock.wall());
  }

  #viewTaken(): Float64Array {
    const begin = this.#instance.exports.lease_taken() / 8;
    return (this.#taken = this.#instance.numbers.subarray(begin, begin + 4));
  }

  /** Forgets all. Afterwards nothing is decided and nothing sent. */
  free(): void {
    if (this.#handle !== FREED) this.#instance.exports.lease_free(this.#handle);
    this.#handle = FREED;
  }

  /**
   * Decides. Returns undefined if the server must be asked. The quantity counts as demand, unless it `isCounted` already
   * because want() was called for it.
   */
  take(quantity: number, isCounted = false): Reply | undefined {
    const { exports } = this.#instance;
    const monotonic = this.#clock.monotonic();
    const wall = this.#clock.wall();
    let outcome = exports.lease_take(this.#handle, quantity, isCounted ? 1 : 0, monotonic, wall);
    if (outcome >= DUE) {
      outcome -= DUE;
      this.#wake();
    }
    if (outcome >= ASK) return outcome === SEMAPHORE ? this.#refuseSemaphore() : undefined;
    // A view of memory that has grown since has no length.
    const taken = this.#taken.length > 0 ? this.#taken : this.#viewTaken();
    const [limit, remaining, retryMs, resetMs] = [taken[0]!, taken[1]!, taken[2]!, taken[3]!];
    return replyWith(outcome as Reply["limited"], limit, remaining, retryMs < 0 ? null : retryMs, resetMs);
  }

  #refuseSemaphore(): never {
    throw new RangeError(`local takes a window with a period; ${quote(this.#terms.window)} is a semaphore`);
  }

  /** Requests what a take needs. Returns the number of rounds after which the caller tries it again. */
  want(quantity: number, isCounted = false): number {
    const awaited = this.#call("want", quantity, Number(isCounted));
    if (awaited === CLOSED) throw new Closed("the local limit was closed");
    if (awaited < 0) this.#refuseSemaphore();
    this.#wake();
    return awaited;
  }

  /** The number of rounds that are over. */
  get rounds(): number {
    return this.#call("rounds");
  }

  /** Returns the commands to send now; undefined if there are none. */
  nextRound(): Word[][] | undefined {
    if (this.#call("next_round") === 0) return undefined;
    const commands = this.#instance.json() as Word[][];
    for (const words of commands) words[1] = this.#terms.key;
    return commands;
  }

  /** Returns when nextRound() should be called next if wake() is not called before; undefined if it need not. */
  nextAt(): number | undefined {
    const at = this.#call("next_at");
    return at === Infinity ? undefined : at;
  }

  /** Keeps errors, and returns the number of the first one. */
  #keep(errors: readonly unknown[]): number {
    // The leases keep only their last error, and after close() also the last one of a settlement.
    if (!this.#isClosing) this.#errors = [];
    return this.#errors.push(...errors) - errors.length;
  }

  /** Reads the replies to a round, error replies among them. */
  receive(replies: readonly (Reply | number | Error)[]): void {
    const first = replies.some(isErrorReply) ? this.#keep(replies) : 0;
    this.#call("receive", this.#instance.write(replies.map(replyWord)), first);
  }

  /** Records that the round got no replies. `isSent` is whether the server may have executed it. */
  fail(error: unknown, isSent: boolean): void {
    this.#call("fail", this.#keep([error]), Number(isSent));
  }

  #error(number: number): unknown {
    if (number >= 0) return this.#errors[number];
    if (number === NO_ERROR) return undefined;
    if (number !== LATE_BATCHES) return new UnexpectedReply("the server's reply is not one of redis-ratelimit");
    return new DeadlinePassed(`no batch arrived within its lease of ${this.#terms.leaseMs} ms`);
  }

  /** Returns the error of a round, or of a later one; undefined if there is none. */
  errorSince(round: number): unknown {
    return this.#error(this.#call("error", round));
  }

  /** Settles what is held, and requests nothing more. */
  close(): void {
    this.#isClosing = true;
    this.#call("close");
    this.#wake();
  }

  /** True after close() if nothing is held any more, or the leases have given up settling. */
  get isSettled(): boolean {
    return this.#call("is_settled") !== 0;
  }

  /** Returns why not everything was settled; undefined if it was. */
  unsettled(): unknown {
    return this.#error(this.#call("unsettled"));
  }
}
