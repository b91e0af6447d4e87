/** A limit that is decided in the process. It does the I/O of its leases, see leases.ts, and answers the calls that wait. */

import { quote } from "./check.js";
import type { Call, Key } from "./command.js";
import { Closed, isErrorReply, isNotServing, throwIfAborted } from "./errors.js";
import { publish } from "./events.js";
import {
  checkTerms,
  leaseInstance,
  Leases,
  readLeaseReply,
  type Clock,
  type LocalOptions,
  type Terms,
} from "./leases.js";
import type { Policy, Window, Word } from "./limits.js";
import { checkCallOptions, type CallOptions } from "./options.js";
import type { Reply } from "./replies.js";
import type { Attempt } from "./transport.js";

/** The limiter that a Local belongs to. */
export interface Owner {
  /** Returns the server's reply. Afterwards `attempt` shows whether the call was sent. */
  ask<T>(call: Call<T>, attempt: Attempt): Promise<T>;
  /** Returns whether an error of settling is ignored: Redis cannot be reached, and `unreachable` is not "raise". */
  isForgiven(error: unknown): boolean;
  /**
   * Returns what `unreachable` decides after an error. Throws the error if it does not mean that Redis cannot be reached.
   */
  answerWithoutServer(quantity: number, error: unknown): Reply | Promise<Reply>;
  /** Called when the Local was closed. */
  recordClose(local: Local): void;
}

/** Clocks and a timer. Tests have their own. */
export interface Timer extends Clock {
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
    // A browser's timers are numbers.
    if (!isAwaited) (timer as { unref?: () => void }).unref?.();
    return () => clearTimeout(timer);
  },
};

/** A call of take() that waits for the server. */
interface Waiter {
  quantity: number;
  /** The number of rounds after which it can be answered. */
  awaited: number;
  resolve: (reply: Reply | Promise<Reply>) => void;
  reject: (error: unknown) => void;
}

/** A limit whose takes are decided in the process, see Limiter.local. */
export class Local {
  readonly #owner: Owner;
  readonly #timer: Timer;
  readonly #terms: Terms;
  readonly #leases: Leases;
  /** First come, first served. */
  #waiters: Waiter[] = [];
  /** True while rounds are sent. */
  #isBusy = false;
  /** Called at the end of the round that is under way, or at once if there is nothing to send. */
  #onRoundEnd: (() => void)[] = [];
  #cancelTimer: (() => void) | undefined;
  #closing: Promise<void> | undefined;
  #isStopped = false;

  constructor(
    owner: Owner,
    key: Key,
    window: Window | Policy,
    options: LocalOptions = {},
    timer: Timer = SYSTEM_TIMER,
  ) {
    this.#owner = owner;
    this.#timer = timer;
    this.#terms = checkTerms(key, window, options);
    this.#leases = new Leases(leaseInstance(), this.#terms, timer, () => this.#wake());
  }

  /**
   * Decides at once, without the server. Returns undefined if the server must be asked, and begins to ask it. `limit`,
   * `remaining` and `resetAfterMs` of the reply are from the server's last reply, and before that the window's limit and 0.
   * Throws if the quantity is below 1 or the policy is a semaphore's, and Closed if the local limit was closed.
   */
  tryTake(quantity = 1): Reply | undefined {
    this.#check(quantity);
    const reply = this.#leases.take(quantity);
    // It counts as demand when it is decided: until then the caller may try any number of times.
    if (reply === undefined) this.#leases.want(quantity, true);
    return reply;
  }

  /**
   * Decides in the process if possible, else asks the server (RL.ACQUIRE). Throws what tryTake throws, the errors of a call
   * of the Limiter, and the reason of the signal. If Redis cannot be reached, `unreachable` decides.
   */
  async take(quantity = 1, options: CallOptions = {}): Promise<Reply> {
    const signal = checkCallOptions("take", options);
    this.#check(quantity);
    throwIfAborted(signal);
    const reply = this.#leases.take(quantity);
    if (reply !== undefined) return reply;
    const awaited = this.#leases.want(quantity);
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
   * Settles what is held, in up to three tries, each within the limiter's deadline. What the server refuses to
   * settle, or does not answer for, counts when its lease ends. Throws the error reply, and the error of a server that does
   * not answer if `unreachable` is "raise".
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const leases = this.#leases;
    const roundEnd = () => new Promise<void>((resolve) => this.#onRoundEnd.push(resolve));
    while (this.#waiters.length > 0) await roundEnd();
    leases.close();
    while (!leases.isSettled && !this.#isStopped) await roundEnd();
    if (this.#isStopped) return;
    const error = leases.unsettled();
    this.#stop();
    this.#owner.recordClose(this);
    if (error === undefined) return;
    publish("unsettled", () => ({ key: this.#terms.key, error }));
    if (!this.#owner.isForgiven(error)) throw error;
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
    if (!this.#isBusy) this.#leases.free();
  }

  #check(quantity: number): void {
    if (typeof quantity !== "number") throw new TypeError(`quantity must be a number, not ${quote(quantity)}`);
    if (!Number.isSafeInteger(quantity) || quantity < 1) {
      throw new RangeError(`quantity must be a whole number and at least 1, not ${quantity}`);
    }
    if (this.#closing !== undefined) throw new Closed("the local limit was closed");
  }

  /** Begins to send rounds when the code that runs now has finished, so that all its takes are sent together. */
  #wake(): void {
    if (this.#isBusy || this.#isStopped) return;
    this.#isBusy = true;
    queueMicrotask(() => void this.#sendRounds());
  }

  /** Sends rounds until there is nothing more to send, and sets the timer for the next one. */
  async #sendRounds(): Promise<void> {
    const leases = this.#leases;
    this.#cancelTimer?.();
    let commands: Word[][] | undefined;
    do {
      commands = this.#isStopped ? undefined : leases.nextRound();
      if (commands !== undefined) await this.#sendRound(leases, commands);
      this.#isBusy = commands !== undefined;
      this.#serve(leases);
      this.#endRound();
    } while (commands !== undefined);
    if (this.#isStopped) return leases.free();
    const at = leases.nextAt();
    if (at === undefined || this.#isBusy) return;
    const ms = Math.max(1, Math.ceil(at - this.#timer.monotonic()));
    this.#cancelTimer = this.#timer.after(ms, () => this.#wake(), this.#closing !== undefined);
  }

  /** Sends commands together, and hands the replies to the leases. */
  async #sendRound(leases: Leases, commands: readonly Word[][]): Promise<void> {
    let failure: { error: unknown } | undefined;
    let isSent = false;
    const replies = await Promise.all(
      commands.map(async (words) => {
        const attempt: Attempt = { over: false };
        const read = (reply: unknown) => readLeaseReply(words, reply);
        try {
          return await this.#owner.ask({ key: this.#terms.key, words, read }, attempt);
        } catch (error) {
          if (!isErrorReply(error) || isNotServing(error)) failure = { error };
          return error as Error;
        } finally {
          isSent ||= attempt.isSent === true;
        }
      }),
    );
    if (failure === undefined) leases.receive(replies);
    else leases.fail(failure.error, isSent);
  }

  /** Answers the calls that wait, in their order. Asks the server again for the first one that cannot be answered yet. */
  #serve(leases: Leases): void {
    for (let first = this.#waiters[0]; first !== undefined; first = this.#waiters[0]) {
      try {
        const reply = leases.take(first.quantity, true);
        const error = leases.errorSince(first.awaited);
        if (reply !== undefined) first.resolve(reply);
        else if (error !== undefined) first.resolve(this.#owner.answerWithoutServer(first.quantity, error));
        else if (this.#isStopped) throw new Closed("the local limit was closed");
        else {
          if (leases.rounds >= first.awaited) first.awaited = leases.want(first.quantity, true);
          return;
        }
      } catch (error) {
        first.reject(error);
      }
      this.#waiters.shift();
    }
  }

  #endRound(): void {
    for (const resolve of this.#onRoundEnd.splice(0)) resolve();
  }
}
