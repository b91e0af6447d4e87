/** A limit that is decided in the process: sends what its leases ask for, and answers the calls that wait. See leases.ts. */

import { checkCallOptions, type Call, type CallOptions, type Key } from "./calls.js";
import { quote } from "./check.js";
import { isErrorReply, servesNobody, throwIfAborted } from "./errors.js";
import { Leases, type Clock, type LocalOptions, type Plan } from "./leases.js";
import type { Policy, Window } from "./limits.js";
import type { Reply } from "./replies.js";
import type { Attempt } from "./transport.js";

/** How often close() tries to settle. */
const TRIES = 3;

/** How a Local reaches the server, and reports that it was closed. */
export interface Port {
  /** `attempt` shows afterwards whether the call was sent. */
  ask<T>(call: Call<T>, attempt: Attempt): Promise<T>;
  /** Returns whether an error of settling is hidden, as `unreachable` says what to do while Redis cannot be reached. */
  isForgiven(error: unknown): boolean;
  /** The answer to a take that the server did not answer; throws what is not about the connection. */
  fallback(quantity: number, error: unknown): Reply | Promise<Reply>;
  closed(local: Local): void;
}

/** The clocks with a timer. A test has its own. */
export interface Timer extends Clock {
  /** Calls back after this time, and keeps no program running unless it `isAwaited`. The returned function cancels it. */
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

/** A take that waits for the server. */
interface Waiter {
  quantity: number;
  resolve: (reply: Reply | Promise<Reply>) => void;
  reject: (error: unknown) => void;
}

/** A limit whose takes are decided in the process, see Limiter.local. */
export class Local {
  readonly #port: Port;
  readonly #timer: Timer;
  readonly #leases: Leases;
  /** They are answered in their order. */
  #waiters: Waiter[] = [];
  /** Whether plans are made and sent. */
  #isBusy = false;
  /** Called when a plan has its outcome, or there is none. */
  #rounds: (() => void)[] = [];
  #cancelTimer: (() => void) | undefined;
  #closing: Promise<void> | undefined;
  #isStopped = false;

  constructor(port: Port, key: Key, window: Window | Policy, options: LocalOptions = {}, timer: Timer = SYSTEM_TIMER) {
    this.#port = port;
    this.#timer = timer;
    this.#leases = new Leases(key, window, options, timer, () => this.#wake());
  }

  /**
   * Decides at once, without the server; undefined if it must be asked, which is begun. `limit`, `remaining` and
   * `resetAfterMs` are from the server's last reply, and before that the window's limit and 0.
   */
  tryTake(quantity = 1): Reply | undefined {
    this.#check(quantity);
    const reply = this.#leases.take(quantity);
    // It is demand when it is decided: until then the caller may try any number of times.
    if (reply === undefined) this.#leases.want(quantity, true);
    return reply;
  }

  /** Decides in the process if it can, else asks the server. */
  async take(quantity = 1, options: CallOptions = {}): Promise<Reply> {
    const signal = checkCallOptions("take", options);
    this.#check(quantity);
    throwIfAborted(signal);
    const reply = this.#leases.take(quantity);
    if (reply !== undefined) return reply;
    this.#leases.want(quantity);
    return new Promise((resolve, reject) => {
      const waiter: Waiter = { quantity, resolve, reject };
      this.#waiters.push(waiter);
      if (signal !== undefined) this.#leaveOn(signal, waiter);
    });
  }

  /** A signal ends the wait of a take. What was fetched for it is there for others, and given back when its lease ends. */
  #leaveOn(signal: AbortSignal, waiter: Waiter): void {
    const { resolve, reject } = waiter;
    const leave = () => {
      this.#waiters = this.#waiters.filter((each) => each !== waiter);
      reject(signal.reason);
    };
    const stayed = () => signal.removeEventListener("abort", leave);
    waiter.resolve = (reply) => (stayed(), resolve(reply));
    waiter.reject = (error) => (stayed(), reject(error));
    signal.addEventListener("abort", leave);
  }

  /**
   * Settles what is held, and resolves when the server has answered. Rejects if it does not, unless `unreachable` says what
   * is answered then: what was held counts when its lease ends.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const leases = this.#leases;
    while (this.#waiters.length > 0) await this.#round();
    leases.close();
    const last = leases.failures + TRIES;
    while (!leases.isSettled && leases.failures < last && !this.#isStopped) await this.#round();
    if (this.#isStopped) return;
    this.#stop();
    this.#port.closed(this);
    const { error } = leases;
    if (!leases.isSettled && error !== undefined && !this.#port.isForgiven(error)) throw error;
  }

  #round(): Promise<void> {
    return new Promise((resolve) => this.#rounds.push(resolve));
  }

  /** Forgets what is held, as the connections are closed: it counts as spent. */
  drop(): void {
    this.#closing ??= Promise.resolve();
    this.#stop();
  }

  #stop(): void {
    this.#isStopped = true;
    this.#cancelTimer?.();
    this.#endRound();
  }

  #check(quantity: number): void {
    if (!Number.isSafeInteger(quantity) || quantity < 1) {
      throw new RangeError(`quantity must be a whole number from 1 on, not ${quote(quantity)}`);
    }
    if (this.#closing !== undefined) throw new Error("the local limit was closed");
  }

  /** Sends at the end of this turn, so that what is asked for in one turn is sent together. */
  #wake(): void {
    if (this.#isBusy || this.#isStopped) return;
    this.#isBusy = true;
    queueMicrotask(() => void this.#work());
  }

  async #work(): Promise<void> {
    this.#cancelTimer?.();
    let plan: Plan | undefined;
    do {
      plan = this.#isStopped ? undefined : this.#leases.plan();
      if (plan !== undefined) await this.#exchange(plan);
      this.#isBusy = plan !== undefined;
      this.#serve();
      this.#endRound();
    } while (plan !== undefined);
    const at = this.#leases.nextAt();
    if (at === undefined || this.#isBusy || this.#isStopped) return;
    const ms = Math.max(1, Math.ceil(at - this.#timer.monotonic()));
    this.#cancelTimer = this.#timer.after(ms, () => this.#wake(), this.#closing !== undefined);
  }

  /** Sends a plan, and reports its outcome. */
  async #exchange(plan: Plan): Promise<void> {
    const leases = this.#leases;
    const attempts = plan.commands.map((): Attempt => ({ over: false }));
    const read = (reply: unknown) => reply;
    let lost: { error: unknown } | undefined;
    const asked = plan.commands.map((words, at) =>
      this.#port.ask({ key: leases.key, words, readonly: false, read }, attempts[at] as Attempt).catch((error) => {
        if (!isErrorReply(error) || servesNobody(error)) lost = { error };
        return error as unknown;
      }),
    );
    const answers = await Promise.all(asked);
    if (lost === undefined) leases.receive(plan, answers);
    else
      leases.fail(
        plan,
        lost.error,
        attempts.some(({ isSent }) => isSent),
      );
  }

  /** Answers the calls that wait, and asks again for the first that cannot be answered. */
  #serve(): void {
    const leases = this.#leases;
    for (let first = this.#waiters[0]; first !== undefined; first = this.#waiters[0]) {
      try {
        const reply = leases.take(first.quantity, true);
        if (reply !== undefined) first.resolve(reply);
        else if (leases.error !== undefined) first.resolve(this.#port.fallback(first.quantity, leases.error));
        else if (this.#isStopped) throw new Error("the local limit was closed");
        else return leases.want(first.quantity, true);
      } catch (error) {
        first.reject(error);
      }
      this.#waiters.shift();
    }
  }

  #endRound(): void {
    for (const resolve of this.#rounds.splice(0)) resolve();
  }
}
