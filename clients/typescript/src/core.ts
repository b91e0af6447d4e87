/** How a call is sent, and what it is answered when Redis does not answer. */

import { Breaker } from "./breaker.js";
import type { Call, Key } from "./calls.js";
import { checkOptions, quote } from "./check.js";
import { transportFor, type Client } from "./clients.js";
import {
  Busy,
  codeOf,
  DeadlinePassed,
  isErrorReply,
  isServerFull,
  isUnreachable,
  MissingModule,
  servesNobody,
  throwIfAborted,
  UnknownPolicy,
} from "./errors.js";
import type { Limits } from "./limiter.js";
import { keepReservation, type AllReply } from "./replies.js";
import type { Attempt, Transport } from "./transport.js";

/** Options of a Limiter. */
export interface LimiterOptions {
  /**
   * What a call returns while Redis cannot be reached: "raise" throws the error, "allow" and "deny" decide without Redis, and
   * another limiter decides in its place. Error replies are always thrown, and so are the errors of calls that settle, list or
   * inspect keys. Default "raise".
   */
  unreachable?: "raise" | "allow" | "deny" | Limits | undefined;
  /**
   * The longest that a call takes, in milliseconds: waiting for a connection, connecting, sending and answering. A call with
   * block has that much more. Default: no end.
   */
  deadline?: number | undefined;
}

/** The method of a fallback that returns whether it made a reservation, which it must then settle too. */
export const HOLDS = Symbol.for("redis-ratelimit-client.holds");

/** The longest wait of a timer. */
const LONGEST_MS = 2 ** 31 - 1;
/** An answer in this first part of a call's time does not show that the server still answers at its end. */
const EARLY = 0.2;

/** A reply, and the fallback if that gave it. */
export interface Answer<T> {
  value: T;
  by: Limits | undefined;
}

function checkUnreachable(given: unknown): void {
  const isObject = typeof given === "object" && given !== null;
  if (isObject && typeof (given as { throttle?: unknown }).throttle === "function") return;
  if (given === "raise" || given === "allow" || given === "deny") return;
  throw new TypeError(
    `unreachable must be "raise", "allow", "deny" or an object with a limiter's methods, not ${quote(given)}`,
  );
}

function checkDeadline(given: unknown): void {
  if (given === undefined) return;
  if (typeof given !== "number") throw new TypeError(`deadline must be a number of milliseconds, not ${quote(given)}`);
  if (!(given > 0 && given <= LONGEST_MS)) {
    throw new RangeError(`deadline must be milliseconds above 0 and up to ${LONGEST_MS}, not ${given}`);
  }
}

/** Everything of a limiter but its methods. */
export class Core {
  readonly #transport: Transport;
  readonly #breakers = new Map<string, Breaker>();
  readonly #unreachable: "raise" | "allow" | "deny" | Limits;
  readonly #deadline: number | undefined;

  constructor(client: Client, options: LimiterOptions) {
    checkOptions("Limiter", options, ["unreachable", "deadline"]);
    const { unreachable = "raise", deadline } = options;
    checkUnreachable(unreachable);
    checkDeadline(deadline);
    this.#transport = transportFor(client, deadline);
    this.#unreachable = unreachable;
    this.#deadline = deadline;
  }

  /** Closes the connections, and forgets that servers did not answer. */
  close(): void {
    for (const breaker of this.#breakers.values()) breaker.reset();
    this.#transport.close();
  }

  /** Returns whether an error of settling is hidden, as `unreachable` says what to do while Redis cannot be reached. */
  isForgiven(error: unknown): boolean {
    return this.#unreachable !== "raise" && isUnreachable(error);
  }

  /**
   * Returns the reply to the call that `make` makes of `given`. A fallback is called by the method `name`; settling several
   * reservations has none.
   */
  async send<Given extends unknown[], T>(
    name: keyof Limits | undefined,
    given: Given,
    make: (...given: Given) => Call<T>,
  ): Promise<T> {
    return (await this.answer(name, given, make)).value;
  }

  /** Returns the reply, and the fallback if that gave it. */
  async answer<Given extends unknown[], T>(
    name: keyof Limits | undefined,
    given: Given,
    make: (...given: Given) => Call<T>,
  ): Promise<Answer<T>> {
    const call = make(...given);
    try {
      return { value: await this.ask(call), by: undefined };
    } catch (error) {
      // The reason of a signal is often one of the errors that mean that Redis cannot be reached, such as a TimeoutError.
      throwIfAborted(call.signal);
      const { value, by } = this.fallback<T>(name, given, call, error);
      return { value: await value, by };
    }
  }

  /** Returns the server's reply, without a fallback. `attempt` tells afterwards whether the call was sent. */
  async ask<T>(call: Call<T>, attempt: Attempt = { over: false }): Promise<T> {
    throwIfAborted(call.signal);
    const atOnce = this.#transport.atOnce?.(call);
    if (atOnce !== undefined) return call.merge === undefined ? call.read(atOnce) : call.merge([call.read(atOnce)]);
    const reply = await this.#exchange(call, attempt);
    return call.merge === undefined ? call.read(reply) : call.merge((reply as unknown[]).map(call.read));
  }

  /** Gives back what a cancelled call took. If Redis does not answer, it ends with its period or lease. */
  async #undo<T>(call: Call<T>, answer: T | undefined): Promise<void> {
    for (const command of call.undo?.(answer) ?? []) await this.ask({ ...command, read: Number }).catch(() => 0);
  }

  /** Returns the reservations that a MemoryLimiter made while Redis could not be reached, and that limiter. */
  ownReservations(key: Key, ids: readonly string[]): { by: Limits; own: string[] } | undefined {
    const unreachable = this.#unreachable;
    if (typeof unreachable !== "object" || !(HOLDS in unreachable)) return undefined;
    const own = ids.filter((id) => (unreachable[HOLDS] as (key: Key, id: string) => boolean)(key, id));
    return own.length > 0 ? { by: unreachable, own } : undefined;
  }

  /** Returns what `unreachable` decides. Throws an error that does not mean that Redis cannot be reached. */
  fallback<T>(name: keyof Limits | undefined, given: unknown[], call: Call<T>, error: unknown): Answer<T | Promise<T>> {
    if (!isUnreachable(error)) throw this.#explained(call, error);
    const unreachable = this.#unreachable;
    if (call.unreached === undefined || unreachable === "raise") throw error;
    if (typeof unreachable === "object") {
      const method = name && (unreachable[name] as ((...given: unknown[]) => Promise<T>) | undefined);
      if (method === undefined) throw error;
      return { value: marked(method.apply(unreachable, given)), by: unreachable };
    }
    return { value: call.unreached(unreachable === "allow"), by: undefined };
  }

  /** Returns the error to throw for an error reply: a clearer one for an unknown command or policy. */
  #explained(call: Pick<Call<unknown>, "words" | "policies">, error: unknown): unknown {
    if (isServerFull(error) && !(error instanceof Busy)) return new Busy(error.message, { cause: error });
    if (!isErrorReply(error)) return error;
    const { message } = error;
    // Redis has no code of its own for this.
    if (/unknown command/i.test(message) && String(call.words[0]).startsWith("RL.")) {
      const what = `${this.#transport.name} has no redis-ratelimit, or one that does not know ${String(call.words[0])}`;
      return new MissingModule(`${what}: ${message}`, { cause: error });
    }
    // A server that takes only policies also refuses calls without one.
    const isUnknownPolicy = codeOf(error) === "NOPOLICY" && (call.policies ?? []).length > 0;
    return isUnknownPolicy ? new UnknownPolicy(message, { cause: error }) : error;
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

  /** Returns the server's reply within the deadline; the replies of all nodes to a call that merges them. */
  #exchange<T>(call: Call<T>, attempt: Attempt): Promise<unknown> {
    const breaker = this.#breakerFor(call.key);
    if (breaker.isOpen) return Promise.reject(breaker.refusal());
    const began = performance.now();
    const isForOne = call.merge === undefined;
    const reply = isForOne ? this.#transport.send(call, attempt) : this.#transport.sendToAll(call, attempt);
    // BLOCK 0 waits without end.
    const withinMs =
      this.#deadline === undefined || call.blockMs === 0 ? Infinity : this.#deadline + (call.blockMs ?? 0);
    return new Promise((resolve, reject) => {
      const { signal } = call;
      let isAborted = false;
      const abort = () => {
        if (attempt.over) return;
        stopTimer();
        isAborted = attempt.over = true;
        reject(signal?.reason);
        // An answer that has arrived already is read before its connection is closed.
        if (call.blockMs === undefined) attempt.abandon?.();
        else setImmediate(() => attempt.abandon?.());
      };
      const stopTimer = startTimer(withinMs, attempt, () => {
        signal?.removeEventListener("abort", abort);
        reject(this.#expired(call.key, breaker, began, withinMs));
      });
      const stop = () => {
        stopTimer();
        signal?.removeEventListener("abort", abort);
      };
      signal?.addEventListener("abort", abort);
      reply.then(
        (answer) => {
          stop();
          breaker.answered(performance.now());
          if (isAborted) void this.#undo(call, isForOne ? call.read(answer) : undefined);
          else resolve(answer);
        },
        (error: unknown) => {
          stop();
          if (isAborted && attempt.isSent && !isErrorReply(error)) void this.#undo(call, undefined);
          if (attempt.over) return;
          if (isErrorReply(error)) breaker.answered(performance.now(), !servesNobody(error));
          else if (isUnreachable(error)) breaker.failed(began, performance.now(), error);
          reject(error);
        },
      );
    });
  }

  /** Returns the error of a call whose deadline has passed. */
  #expired(key: Key | undefined, breaker: Breaker, began: number, withinMs: number): Error {
    const { lastError } = this.#transport;
    if (breaker.isServing && breaker.lastAnswer > began + withinMs * EARLY) {
      return new Busy(`no reply within ${withinMs} ms, as many calls are under way; the server answers others`);
    }
    if (lastError instanceof Busy) return lastError;
    this.#transport.silent(key, began);
    const error = new DeadlinePassed(`no reply within ${withinMs} ms`, { cause: lastError });
    breaker.failed(began, performance.now(), error);
    return error;
  }
}

/** Abandons a call when its deadline passes. Returns a function that stops the timer. */
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

/** Marks the reply of a fallback with reachable: false. */
async function marked<T>(answer: T | Promise<T>): Promise<T> {
  const given = await answer;
  const reply = { ...given, reachable: false };
  // What was reserved there is settled there.
  const { reservation } = given as Partial<AllReply>;
  if (reservation !== undefined) keepReservation(reply as unknown as AllReply, reservation);
  return reply;
}
