/**
 * A limit that is decided in the process. crates/leases, which is part of the engine, decides what is spent, and which batches
 * are reserved and settled, see native/src/leases.rs. This file sends the commands, and answers the calls that wait.
 */

import { CALLS } from "./calls.js";
import { checkOptions, integer, minPeriodMs, quote, text, toMilliseconds } from "./check.js";
import type { Key } from "./command.js";
import type { Core } from "./core.js";
import { engineModule, Instance } from "./engine.js";
import { Closed, codeOf, DeadlinePassed, isErrorReply, isNotServing, throwIfAborted } from "./errors.js";
import { publish } from "./events.js";
import type { Duration, Integer, Policy, Window, Word } from "./limits.js";
import type { CallOptions, WindowOptions } from "./options.js";
import { randomName } from "./random.js";
import { readCount, readId, readIdAndGranted, readReply, replyWith, UnexpectedReply, type Reply } from "./replies.js";
import { unref, type Attempt } from "./transport.js";
import { checkCallOptions, checkWindow, limitOptions, limitWords } from "./words.js";

/** Options of Limiter.local. */
export interface LocalOptions {
  /** The length of the lease in which the process may spend a batch, at least 20 ms. Default "100ms". */
  lease?: Duration | undefined;
  /** The quantity that must remain for others. Default 0. */
  leave?: Integer | undefined;
}

/** Clocks in milliseconds, and a timer. Tests have their own. */
export interface Timer {
  /** Never goes back. It may stand still while the machine sleeps. */
  monotonic(): number;
  /** The time of day, which may be set. */
  wall(): number;
  /**
   * Calls back after `ms` milliseconds. Only if it `isAwaited`, the program keeps running for it. Returns a function to
   * cancel.
   */
  after(ms: number, callback: () => void, isAwaited: boolean): () => void;
}

export const SYSTEM_TIMER: Timer = {
  monotonic: () => performance.now(),
  wall: () => Date.now(),
  after: (ms, callback, isAwaited) => {
    const timer = setTimeout(callback, ms);
    if (!isAwaited) unref(timer);
    return () => clearTimeout(timer);
  },
};

/** The shortest lease. Of a shorter one too little would be left, as a lease is given up early. */
export const MIN_LEASE_MS = 20;

type LeaseMethod =
  "take" | "want" | "next_round" | "receive" | "fail" | "error" | "unsettled" | "next_at" | "close" | "is_settled";
type LeaseExports = Record<
  `lease_${LeaseMethod}`,
  (handle: number, a: number, b: number, monotonic: number, wall: number) => number
> & {
  lease_open(length: number, monotonic: number, wall: number): number;
  lease_free(handle: number): void;
  lease_taken(): number;
};

/** The results of `lease_take` that are no decision: the server must be asked, the policy is a semaphore. */
const ASK = 3;
const SEMAPHORE = 4;
/** Added to the result of `lease_take` if there may be something to send. */
const DUE = 8;
/** The results of `lease_error` that are no number of an error: there is none, or batches arrived late. */
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

/** Returns the word for a reply that `lease_receive` reads. Throws if the reply is not one of redis-ratelimit. */
function replyWord([command, ...rest]: readonly Word[], reply: unknown): string {
  if (command !== "RL.WINDOW" && command !== "RL.ACQUIRE") return `:${readCount(reply)}`;
  const read = command === "RL.WINDOW" ? readReply : rest.includes("ATMOST") ? readIdAndGranted : readId;
  const { limited, limit, remaining, retryAfterMs, resetAfterMs, id, granted, reservations } = read(reply);
  const numbers = [limited, limit, remaining, retryAfterMs ?? -1, resetAfterMs];
  return [...numbers, id === null ? "nil" : "id", granted ?? 0, reservations ?? 0].join(" ");
}

/** All leases are in one instance of the engine. */
let shared: Instance<LeaseExports> | undefined;

/** A call of take() that waits for the server. */
interface Waiter {
  quantity: number;
  /** The number of the round that fetches what it needs. The error of an earlier one is not its. */
  awaited: number;
  resolve: (reply: Reply | Promise<Reply>) => void;
  reject: (error: unknown) => void;
}

/** A limit whose takes are decided in the process, see Limiter.local. */
export class Local {
  readonly #core: Pick<Core, "ask" | "isForgiven" | "answerWithoutServer">;
  readonly #timer: Timer;
  readonly #key: Key;
  readonly #window: Window | Policy;
  readonly #leave: Integer;
  readonly #leaseMs: number;
  readonly #onClose: (local: Local) => void;
  readonly #engine: Instance<LeaseExports>;
  #handle: number;
  /** The numbers of the last decision, in the memory of the engine. */
  #taken: Float64Array;
  /** The errors whose numbers the engine may return. */
  #errors: unknown[] = [];
  /** First come, first served. */
  #waiters: Waiter[] = [];
  /** True while rounds are sent. */
  #isBusy = false;
  /** Called at the end of the round that is under way, or at once if there is nothing to send. */
  #onRoundEnd: (() => void)[] = [];
  #cancelTimer: (() => void) | undefined;
  #closing: Promise<void> | undefined;
  /** True once takes that wait are answered, and what is held is being settled. */
  #isSettling = false;
  #isStopped = false;

  /** `onClose` is called when it was closed. */
  constructor(
    core: Pick<Core, "ask" | "isForgiven" | "answerWithoutServer">,
    key: Key,
    window: Window | Policy,
    options: LocalOptions = {},
    timer: Timer = SYSTEM_TIMER,
    onClose: (local: Local) => void = () => {},
  ) {
    text("key", key);
    checkWindow("local", window);
    checkOptions("local", options, ["lease", "leave"]);
    const { lease = "100ms", leave = 0 } = options;
    const leaveWord = integer("leave", leave);
    if (leave < 0) throw new RangeError(`leave must be at least 0, not ${leave}`);
    this.#leaseMs = toMilliseconds("lease", lease);
    if (this.#leaseMs < MIN_LEASE_MS) {
      throw new RangeError(`lease must be at least ${MIN_LEASE_MS} ms, not ${quote(lease)}`);
    }
    [this.#core, this.#timer, this.#onClose] = [core, timer, onClose];
    [this.#key, this.#window, this.#leave] = [key, window, leave];
    const limit = typeof window === "string" ? "" : String(window.limit);
    const terms = [randomName(), limit, String(countedMs(window)), String(this.#leaseMs), leaveWord];
    const words = [...terms, ...limitWords(window), ...limitOptions(window)];
    const engine = (this.#engine = shared ??= new Instance(engineModule()));
    this.#handle = engine.exports.lease_open(engine.write(words), timer.monotonic(), timer.wall());
    this.#taken = this.#viewTaken();
  }

  #call(method: LeaseMethod, a = 0, b = 0): number {
    const { exports } = this.#engine;
    return exports[`lease_${method}`](this.#handle, a, b, this.#timer.monotonic(), this.#timer.wall());
  }

  #viewTaken(): Float64Array {
    const begin = this.#engine.exports.lease_taken() / 8;
    return (this.#taken = this.#engine.numbers.subarray(begin, begin + 4));
  }

  /**
   * Decides at once, without the server. Returns undefined if the server must be asked, and begins to ask it. `limit`,
   * `remaining` and `resetAfterMs` of the reply are from the server's last reply, and before that the window's limit and 0.
   * Throws if the quantity is below 1 or the policy is a semaphore's, and Closed if the local limit was closed.
   */
  tryTake(quantity = 1): Reply | undefined {
    this.#check(quantity);
    const reply = this.#decide(quantity, false);
    // It counts as demand when it is decided: until then the caller may try any number of times.
    if (reply === undefined) this.#want(quantity, true);
    return reply;
  }

  /**
   * Decides in the process if possible, else asks the server (RL.ACQUIRE). Throws what tryTake throws, the errors of a call
   * of the Limiter, and the reason of the signal. If Redis cannot be reached, `unreachable` decides.
   */
  async take(quantity = 1, options: CallOptions = {}): Promise<Reply> {
    checkCallOptions("take", options);
    this.#check(quantity);
    const { signal } = options;
    throwIfAborted(signal);
    const reply = this.#decide(quantity, false);
    if (reply !== undefined) return reply;
    const awaited = this.#want(quantity, false);
    return new Promise((resolve, reject) => {
      const waiter: Waiter = { quantity, awaited, resolve, reject };
      this.#waiters.push(waiter);
      if (signal !== undefined) this.#leaveOn(signal, waiter);
    });
  }

  /**
   * Ends the wait when the signal fires. What is fetched for it is left to others, and is given back when its lease ends.
   */
  #leaveOn(signal: AbortSignal, waiter: Waiter): void {
    const { resolve, reject } = waiter;
    const leave = () => {
      this.#waiters = this.#waiters.filter((each) => each !== waiter);
      reject(signal.reason);
    };
    const stopListening = () => signal.removeEventListener("abort", leave);
    waiter.resolve = (reply) => (stopListening(), resolve(reply));
    waiter.reject = (error) => (stopListening(), reject(error));
    signal.addEventListener("abort", leave);
  }

  /**
   * Decides. Returns undefined if the server must be asked. The quantity counts as demand, unless it `isCounted` already
   * because #want was called for it.
   */
  #decide(quantity: number, isCounted: boolean): Reply | undefined {
    const [monotonic, wall] = [this.#timer.monotonic(), this.#timer.wall()];
    let outcome = this.#engine.exports.lease_take(this.#handle, quantity, Number(isCounted), monotonic, wall);
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

  /** Requests what a take needs. Returns the number of the round that fetches it. */
  #want(quantity: number, isCounted: boolean): number {
    const awaited = this.#call("want", quantity, Number(isCounted));
    if (awaited === CLOSED) throw new Closed("the local limit was closed");
    if (awaited < 0) this.#refuseSemaphore();
    this.#wake();
    return awaited;
  }

  #refuseSemaphore(): never {
    throw new RangeError(`local takes a window with a period; ${quote(this.#window)} is a semaphore`);
  }

  #check(quantity: number): void {
    if (typeof quantity !== "number") throw new TypeError(`quantity must be a number, not ${quote(quantity)}`);
    if (!Number.isSafeInteger(quantity) || quantity < 1) {
      throw new RangeError(`quantity must be a whole number and at least 1, not ${quantity}`);
    }
    if (this.#closing !== undefined) throw new Closed("the local limit was closed");
  }

  /**
   * Settles what is held, in up to three tries, each within the limiter's deadline. What the server refuses to
   * settle, or does not answer for, counts when its lease ends. Throws the error reply, and the error of a server that does
   * not answer if `unreachable` is "raise".
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const roundEnd = () => new Promise<void>((resolve) => this.#onRoundEnd.push(resolve));
    while (this.#waiters.length > 0) await roundEnd();
    this.#isSettling = true;
    this.#call("close");
    this.#wake();
    while (this.#call("is_settled") === 0 && !this.#isStopped) await roundEnd();
    if (this.#isStopped) return;
    const error = this.#errorOf(this.#call("unsettled"));
    this.#stop();
    this.#onClose(this);
    if (error === undefined) return;
    publish("unsettled", () => ({ key: this.#key, error }));
    if (!this.#core.isForgiven(error)) throw error;
  }

  /** Stops without settling, as the connections are closed. What is held counts as spent. */
  drop(): void {
    this.#closing ??= Promise.resolve();
    this.#stop();
  }

  #stop(): void {
    this.#isStopped = true;
    this.#cancelTimer?.();
    this.#endRound();
    if (!this.#isBusy) this.#free();
  }

  /** Forgets all. Afterwards nothing is decided and nothing sent. */
  #free(): void {
    if (this.#handle !== FREED) this.#engine.exports.lease_free(this.#handle);
    this.#handle = FREED;
  }

  /** Begins to send rounds when the code that runs now has finished, so that all its takes are sent together. */
  #wake(): void {
    if (this.#isBusy || this.#isStopped) return;
    this.#isBusy = true;
    queueMicrotask(() => void this.#sendRounds());
  }

  /** Sends rounds until there is nothing more to send, and sets the timer for the next one. */
  async #sendRounds(): Promise<void> {
    this.#cancelTimer?.();
    for (let isSending = true; isSending;) {
      isSending = !this.#isStopped && this.#call("next_round") > 0;
      if (isSending) await this.#sendRound(this.#engine.json() as Word[][]);
      this.#isBusy = isSending;
      this.#serve();
      this.#endRound();
    }
    if (this.#isStopped) return this.#free();
    const at = this.#call("next_at");
    if (at === Infinity || this.#isBusy) return;
    const ms = Math.max(1, Math.ceil(at - this.#timer.monotonic()));
    this.#cancelTimer = this.#timer.after(ms, () => this.#wake(), this.#closing !== undefined);
  }

  /** Sends commands together, and hands the replies to the leases. */
  async #sendRound(commands: readonly Word[][]): Promise<void> {
    let failure: { error: unknown } | undefined;
    let isSent = false;
    const errors: unknown[] = [];
    const replies = await Promise.all(
      commands.map(async (words, at) => {
        // The leases do not know the key.
        words[1] = this.#key;
        const attempt: Attempt = { over: false };
        try {
          const call = { key: this.#key, words, read: (reply: unknown) => replyWord(words, reply) };
          return await this.#core.ask(call, attempt);
        } catch (error) {
          if (!isErrorReply(error) || isNotServing(error)) failure = { error };
          errors[at] = error;
          return `-${codeOf(error) ?? ""}`;
        } finally {
          isSent ||= attempt.isSent === true;
        }
      }),
    );
    if (failure !== undefined) return void this.#call("fail", this.#keep([failure.error]), Number(isSent));
    const first = errors.length > 0 ? this.#keep(errors) : 0;
    this.#call("receive", this.#engine.write(replies), first);
  }

  /** Keeps errors, and returns the number of the first one. */
  #keep(errors: readonly unknown[]): number {
    // The leases keep only their last error, and while they settle also the last one of a settlement.
    if (!this.#isSettling) this.#errors = [];
    return this.#errors.push(...errors) - errors.length;
  }

  #errorOf(number: number): unknown {
    if (number >= 0) return this.#errors[number];
    if (number === NO_ERROR) return undefined;
    if (number !== LATE_BATCHES) return new UnexpectedReply("the server's reply is not one of redis-ratelimit");
    return new DeadlinePassed(`no batch arrived within its lease of ${this.#leaseMs} ms`);
  }

  /** Answers the calls that wait, in their order. Asks the server again for the first one that cannot be answered yet. */
  #serve(): void {
    for (let first = this.#waiters[0]; first !== undefined; first = this.#waiters[0]) {
      try {
        const reply = this.#decide(first.quantity, true);
        const error = this.#errorOf(this.#call("error", first.awaited));
        if (reply !== undefined) first.resolve(reply);
        else if (error !== undefined) first.resolve(this.#answerWithoutServer(first.quantity, error));
        else if (this.#isStopped) throw new Closed("the local limit was closed");
        else {
          first.awaited = this.#want(first.quantity, true);
          return;
        }
      } catch (error) {
        first.reject(error);
      }
      this.#waiters.shift();
    }
  }

  /** Returns what `unreachable` decides. Throws the error if it does not mean that Redis cannot be reached. */
  #answerWithoutServer(quantity: number, error: unknown): Reply | Promise<Reply> {
    const args: [Key, Window | Policy, WindowOptions] = [this.#key, this.#window, { quantity, leave: this.#leave }];
    return this.#core.answerWithoutServer("window", args, CALLS.window(...args), error).value;
  }

  #endRound(): void {
    for (const resolve of this.#onRoundEnd.splice(0)) resolve();
  }
}
