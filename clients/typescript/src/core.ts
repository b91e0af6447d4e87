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
  throwIfAborted,
  UnknownPolicy,
} from "./errors.js";
import type { Limits } from "./limiter.js";
import { keepReservation, type AllReply } from "./replies.js";
import type { Attempt, Transport } from "./transport.js";

/** Options of a Limiter. */
export interface LimiterOptions {
  /**
   * What a call answers while Redis cannot be reached: throws the error, is allowed, is denied, or is answered by another
   * object with the same methods. Error replies are always thrown, and so is what calls end with that settle, list or look
   * into keys. Default "raise".
   */
  unreachable?: "raise" | "allow" | "deny" | Limits | undefined;
  /**
   * The longest that a call takes, in milliseconds: waiting for a connection, connecting, sending and answering. A call with
   * block has that much more. Default: no end.
   */
  deadline?: number | undefined;
}

/** The method of a limiter in the server's place that says whether it made a reservation, which it then settles too. */
export const HOLDS = Symbol.for("redis-ratelimit-client.holds");

/** What a timer can wait at most. */
const LONGEST_MS = 2 ** 31 - 1;
/** An answer within this part of a call's time does not show that the server still answers at its end. */
const EARLY = 0.2;

/** An answer, and the object that gave it in the server's place, if one did. */
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

/** A limiter without its methods. */
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

  /** Whether an error of settling is hidden: the user chose an answer for when Redis cannot be reached. */
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

  /** The answer of the server alone. `attempt` shows afterwards whether the call was sent. */
  async ask<T>(call: Call<T>, attempt: Attempt = { over: false }): Promise<T> {
    throwIfAborted(call.signal);
    const atOnce = this.#transport.atOnce?.(call);
    if (atOnce !== undefined) return call.merge === undefined ? call.read(atOnce) : call.merge([call.read(atOnce)]);
    const reply = await this.#exchange(call, attempt);
    return call.merge === undefined ? call.read(reply) : call.merge((reply as unknown[]).map(call.read));
  }

  /** Gives back what a call took whose caller is gone. What Redis does not answer ends with its period or lease. */
  async #undo<T>(call: Call<T>, answer: T | undefined): Promise<void> {
    for (const command of call.undo?.(answer) ?? []) await this.ask({ ...command, read: Number }).catch(() => 0);
  }

  /** Those of the reservations that a MemoryLimiter made while Redis could not be reached, and which it settles. */
  ownReservations(key: Key, ids: readonly string[]): { by: Limits; own: string[] } | undefined {
    const unreachable = this.#unreachable;
    if (typeof unreachable !== "object" || !(HOLDS in unreachable)) return undefined;
    const own = ids.filter((id) => (unreachable[HOLDS] as (key: Key, id: string) => boolean)(key, id));
    return own.length > 0 ? { by: unreachable, own } : undefined;
  }

  /** What `unreachable` says in the place of an answer. Throws errors that do not mean that Redis cannot be reached. */
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

  /** An error reply with what the server cannot know. */
  #explained(call: Pick<Call<unknown>, "words" | "policies">, error: unknown): unknown {
    if (isServerFull(error) && !(error instanceof Busy)) return new Busy(error.message, { cause: error });
    if (!isErrorReply(error)) return error;
    const { message } = error;
    // Redis has no code of its own for this.
    if (/unknown command/i.test(message) && String(call.words[0]).startsWith("RL.")) {
      const what = `${this.#transport.name} has no redis-ratelimit, or one that does not know ${String(call.words[0])}`;
      return new MissingModule(`${what}: ${message}`, { cause: error });
    }
    // A call without a policy is refused where the server takes only policies.
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

  /** The server's reply within the deadline; those of all nodes to a call whose answers are merged. */
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
          if (isUnreachable(error)) breaker.failed(began, performance.now(), error);
          else if (isErrorReply(error)) breaker.answered(performance.now());
          reject(error);
        },
      );
    });
  }

  /** The error of a call whose time is over. */
  #expired(key: Key | undefined, breaker: Breaker, began: number, withinMs: number): Error {
    const { lastError } = this.#transport;
    if (breaker.lastAnswer > began + withinMs * EARLY) {
      return new Busy(`no reply within ${withinMs} ms, as many calls are under way; the server answers others`);
    }
    if (lastError instanceof Busy) return lastError;
    this.#transport.silent(key, began);
    const error = new DeadlinePassed(`no reply within ${withinMs} ms`, { cause: lastError });
    breaker.failed(began, performance.now(), error);
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

/** What is answered in the server's place says so. */
async function marked<T>(answer: T | Promise<T>): Promise<T> {
  const given = await answer;
  const reply = { ...given, reachable: false };
  // What was reserved there is settled there.
  const { reservation } = given as Partial<AllReply>;
  if (reservation !== undefined) keepReservation(reply as unknown as AllReply, reservation);
  return reply;
}
