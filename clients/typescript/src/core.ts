/**
 * Sends calls within the deadline, and decides what they return when Redis cannot be reached.
 *
 * The way of a call, as that of limiter.throttle(): Core.send gets its name and arguments. CALLS (calls.ts) makes the words
 * and the reader of the reply, by words.ts and replies.ts, without I/O. #sendWithinDeadline gives them to the transport of
 * the client: Connections.send, by way of Cluster.send in a cluster. It writes them to a copy of the application's client
 * (node-redis.ts, ioredis.ts), and the reply comes back the same way.
 */

import { Breaker, PROBE_MS } from "./breaker.js";
import { CALLS, type CallName, type Result } from "./calls.js";
import { checkOptions, lengthMs, notOneOf, quote } from "./check.js";
import { transportFor, type Client } from "./clients.js";
import type { Call, Command, Key } from "./command.js";
import {
  Busy,
  codeOf,
  DeadlinePassed,
  Duplicate,
  isErrorReply,
  isServerFull,
  isUnreachable,
  MissingModule,
  isNotServing,
  throwIfAborted,
  UnknownPolicy,
} from "./errors.js";
import { publish } from "./events.js";
import type { Fallback, Limits } from "./limiter.js";
import type { Duration } from "./limits.js";
import { afterReplies, givenUp, limiterClosed, MAX_TIMEOUT_MS, startTimer, within } from "./transport.js";
import type { Attempt, Transport } from "./transport.js";

/** Options of a Limiter. */
export interface LimiterOptions {
  /**
   * The result of calls while Redis cannot be reached: "raise" throws the error, "allow" and "deny" decide without Redis,
   * and another limiter decides in its place. Error replies are always thrown, and so are the errors of calls that settle,
   * list or inspect keys. Default "raise".
   */
  unreachable?: "raise" | "allow" | "deny" | Fallback | undefined;
  /**
   * The longest that a call takes, as milliseconds or a text with a unit such as "250ms": waiting for a connection,
   * connecting, sending and answering. A call with block has that much more. A limiter in `unreachable` is asked after that.
   * Default: 1 second.
   */
  deadline?: Duration | undefined;
}

/** The deadline of a limiter that gets none. */
export const DEFAULT_DEADLINE_MS = 1000;

/** A method of MemoryLimiter. It returns whether a reservation was made there, so that it must be settled there. */
export const HOLDS = Symbol.for("redis-ratelimit-client.holds");

/** The first part of the deadline. An answer to another call within it does not show that the server still answers. */
const EARLY = 0.2;
/** The program is too busy to read replies if a call's timer is this late, and later than 1/LATE_PART of the deadline. */
const LATE_MS = 40;
const LATE_PART = 8;
/** A server that has not answered for this many deadlines is silent, even if the program was busy. */
const SILENT_DEADLINES = 10;

/**
 * The pause before a reservation whose call waited is released a second time: the server may grant it between the first
 * release and the end of the connection.
 */
export const SECOND_RELEASE_MS = 50;

/** The methods of calls that have another name. */
const METHODS: Partial<Record<CallName, keyof Limits>> = { reserveAll: "reserve", acquireAll: "reserve" };

/** A result, and the fallback if it is from there. */
export interface Answer<T> {
  value: T;
  fallback: Limits | undefined;
}

function checkUnreachable(value: unknown): void {
  const isObject = typeof value === "object" && value !== null;
  if (isObject && typeof (value as { throttle?: unknown }).throttle === "function") return;
  if (value === "raise" || value === "allow" || value === "deny") return;
  throw notOneOf("unreachable", `"raise", "allow", "deny" or an object with a limiter's methods`, value);
}

/** Returns the milliseconds of a deadline, after checking it. */
function deadlineMs(value: unknown): number {
  const length = typeof value === "string" ? lengthMs(value) : null;
  const ms = length === null ? value : Number(length);
  if (typeof ms !== "number") {
    const hint = 'a text has a unit, as in "250ms"';
    throw new TypeError(`deadline must be a number of milliseconds, not ${quote(value)}: ${hint}`);
  }
  // One below 1 is a number of seconds by mistake, with which no call would be answered in time.
  if (!(ms >= 1 && ms <= MAX_TIMEOUT_MS)) {
    throw new RangeError(`deadline must be from 1 to ${MAX_TIMEOUT_MS} milliseconds, not ${ms}`);
  }
  return ms;
}

/** The part of a limiter that sends calls. */
export class Core {
  readonly #transport: Transport;
  readonly #breakers = new Map<string, Breaker>();
  readonly #unreachable: "raise" | "allow" | "deny" | Fallback;
  /** Undefined for a MemoryLimiter, which always answers. Its clock may stand still. */
  readonly #deadline: number | undefined;
  /** The errors of calls that were never sent, or that a server refused because it cannot serve calls now. */
  readonly #unsent = new WeakSet<object>();
  #isClosed = false;

  constructor(client: Client, options: LimiterOptions) {
    checkOptions("Limiter", options, ["unreachable", "deadline"]);
    const { unreachable = "raise" } = options;
    checkUnreachable(unreachable);
    const deadline = deadlineMs(options.deadline ?? DEFAULT_DEADLINE_MS);
    this.#transport = transportFor(client, deadline);
    this.#unreachable = unreachable;
    this.#deadline = this.#transport.atOnce === undefined ? deadline : undefined;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Closes the connections. The calls under way and later ones throw Closed. */
  close(): void {
    this.#isClosed = true;
    this.#transport.close?.();
  }

  /** Returns whether an error of settling is ignored: Redis cannot be reached, and `unreachable` is not "raise". */
  isForgiven(error: unknown): boolean {
    return this.#unreachable !== "raise" && isUnreachable(error);
  }

  /** Returns whether an error is that of a call that no server executed, so that it may be sent again. */
  isUnsent(error: unknown): boolean {
    return this.#unsent.has(error as object);
  }

  /** Returns the reply to the call of this name. */
  async send<Name extends CallName>(name: Name, ...args: Parameters<(typeof CALLS)[Name]>): Promise<Result<Name>> {
    return (await this.answer(name, ...args)).value;
  }

  /** Does the same, and also returns the fallback if the reply is from there. */
  async answer<Name extends CallName>(
    name: Name,
    ...args: Parameters<(typeof CALLS)[Name]>
  ): Promise<Answer<Result<Name>>> {
    const makeCall = CALLS[name] as unknown as (...given: typeof args) => Call<Result<Name>>;
    const call = makeCall(...args);
    try {
      return { value: await this.ask(call), fallback: undefined };
    } catch (error) {
      // The reason of a signal may look like an outage: AbortSignal.timeout() has a TimeoutError.
      throwIfAborted(call.signal);
      const { value, fallback } = this.answerWithoutServer(name, args, call, error);
      return { value: await value, fallback };
    }
  }

  /** Returns the server's reply; no fallback is asked. Afterwards `attempt` shows whether the call was sent. */
  ask<T>(call: Call<T>, attempt: Attempt = { over: false }): T | Promise<T> {
    throwIfAborted(call.signal);
    if (this.#isClosed) throw limiterClosed();
    const reply = this.#transport.atOnce?.(call);
    if (reply !== undefined) return call.read(reply);
    return this.#sendWithinDeadline(call, attempt).then(call.read, (error: unknown) => {
      if (isUnreachable(error) && (attempt.isSent === false || isNotServing(error))) this.#unsent.add(error);
      throw error;
    });
  }

  /**
   * Gives back what a call took that nobody waits for. The reply is undefined if it was lost. If this fails, what was taken
   * counts until its period or lease ends.
   */
  async #undo<T>(call: Call<T>, isCancelled: boolean, reply?: unknown): Promise<void> {
    let result: T | undefined;
    try {
      if (reply !== undefined) result = call.read(reply);
    } catch {
      // A reply that cannot be read is as good as lost.
    }
    const commands = call.undo?.(result, isCancelled) ?? [];
    const isRepeated = result === undefined && call.blockMs !== undefined && commands.length > 0;
    for (const pauseMs of isRepeated ? [0, SECOND_RELEASE_MS] : [0]) {
      if (pauseMs > 0) await new Promise((done) => setTimeout(done, pauseMs));
      // An async function, as `ask` throws if the limiter was closed.
      for (const command of commands) await (async () => this.ask({ ...command, read: Number }))().catch(() => 0);
    }
  }

  /** Returns the limiter that made a reservation while Redis could not be reached, if it can tell. */
  holderOf(key: Key, id: string): Limits | undefined {
    const fallback = this.#unreachable as Limits | string;
    if (typeof fallback !== "object" || !(HOLDS in fallback)) return undefined;
    return (fallback[HOLDS] as (key: Key, id: string) => boolean)(key, id) ? fallback : undefined;
  }

  /**
   * Returns what `unreachable` decides after an error. Throws the error if it does not mean that Redis cannot be reached.
   */
  answerWithoutServer<T>(name: CallName, args: unknown[], call: Call<T>, error: unknown): Answer<T | Promise<T>> {
    if (!isUnreachable(error)) throw this.#clearerError(call, error);
    const unreachable = this.#unreachable;
    if (call.unreached === undefined || unreachable === "raise") throw error;
    publish("unreachable", () => ({ command: String(call.words[0]), key: call.key, error }));
    if (typeof unreachable === "object") {
      const methods = unreachable as unknown as Record<string, ((...args: unknown[]) => Promise<T>) | undefined>;
      const method = methods[METHODS[name] ?? name];
      if (method === undefined) throw error;
      return { value: markUnreachable(method.apply(unreachable, [...args])), fallback: unreachable as Limits };
    }
    return { value: call.unreached(unreachable === "allow"), fallback: undefined };
  }

  /** Returns the error to throw: a clearer one for a full server, an id in use, and an unknown command or policy. */
  #clearerError(call: Pick<Call<unknown>, "words" | "policies">, error: unknown): unknown {
    if (isServerFull(error) && !(error instanceof Busy)) return new Busy(error.message, { cause: error });
    if (!isErrorReply(error)) return error;
    const { message } = error;
    if (codeOf(error) === "DUPLICATE") return new Duplicate(message, { cause: error });
    // Its code is ERR, as that of many other errors.
    if (/unknown command/i.test(message) && String(call.words[0]).startsWith("RL.")) {
      const reason = `${this.#transport.name} has no redis-ratelimit, or one that does not know ${String(call.words[0])}`;
      return new MissingModule(`${reason}: ${message}`, { cause: error });
    }
    // A server that takes only policies also refuses calls without one.
    const isUnknownPolicy = codeOf(error) === "NOPOLICY" && (call.policies ?? []).length > 0;
    return isUnknownPolicy ? new UnknownPolicy(message, { cause: error }) : error;
  }

  #breakerFor(key: Key | undefined): Breaker {
    const node = this.#transport.nodeOf?.(key) ?? "";
    let breaker = this.#breakers.get(node);
    if (breaker === undefined) {
      breaker = new Breaker(this.#transport.name);
      this.#breakers.set(node, breaker);
    }
    return breaker;
  }

  async #send(call: Command, attempt: Attempt): Promise<unknown> {
    const transport = this.#transport;
    if (!call.isForAll) return transport.send(call, attempt);
    return transport.sendToAll?.(call, attempt) ?? [await transport.send(call, attempt)];
  }

  /** Sends a PING to the node that has a key. */
  #ping(key: Key | undefined): Promise<unknown> {
    const attempt: Attempt = { over: false };
    const answer = this.#transport.send({ key, words: ["PING"] }, attempt);
    return within(Math.max(PROBE_MS, this.#deadline ?? 0), answer, () => {
      attempt.over = true;
      attempt.abandon?.();
      attempt.retire?.();
      return new DeadlinePassed(`no answer to a PING within ${PROBE_MS} ms`);
    });
  }

  async #probeAndSend(breaker: Breaker, call: Command, attempt: Attempt): Promise<unknown> {
    attempt.isSent = false;
    await breaker.probe(() => this.#ping(call.key));
    if (attempt.over) throw givenUp();
    // Now the transport knows.
    delete attempt.isSent;
    return this.#send(call, attempt);
  }

  /** Returns the server's reply within the deadline. */
  #sendWithinDeadline<T>(call: Call<T>, attempt: Attempt): Promise<unknown> {
    const breaker = this.#breakerFor(call.key);
    const refusal = breaker.refusal();
    if (refusal !== undefined) {
      attempt.isSent = false;
      return Promise.reject(refusal);
    }
    const began = performance.now();
    const reply = breaker.isOpen ? this.#probeAndSend(breaker, call, attempt) : this.#send(call, attempt);
    // BLOCK 0 waits without a limit.
    const withinMs =
      this.#deadline === undefined || call.blockMs === 0 ? Infinity : this.#deadline + (call.blockMs ?? 0);
    return new Promise((resolve, reject) => {
      const { signal } = call;
      let isAborted = false;
      const abort = () => {
        if (attempt.over) return;
        // The timer still records that the server is silent, unless the reply comes first.
        timer.unref();
        isAborted = attempt.over = true;
        reject(signal?.reason);
        // If the reply has arrived already, it is read before the connection is closed.
        if (call.blockMs === undefined) attempt.abandon?.();
        else afterReplies(() => attempt.abandon?.());
      };
      const timer = startTimer(withinMs, (lateMs) => {
        attempt.over = true;
        attempt.abandon?.();
        signal?.removeEventListener("abort", abort);
        reject(this.#deadlineError(attempt, breaker, began, withinMs, lateMs));
      });
      const stop = () => {
        timer.stop();
        signal?.removeEventListener("abort", abort);
      };
      signal?.addEventListener("abort", abort);
      reply.then(
        (answer) => {
          stop();
          breaker.recordReply(performance.now());
          if (attempt.over) void this.#undo(call, isAborted, answer);
          else resolve(answer);
        },
        (error: unknown) => {
          stop();
          const isReply = isErrorReply(error);
          if (attempt.isSent && !isReply) void this.#undo(call, isAborted);
          if (attempt.over) return;
          // A master that became a replica: the next connection finds the new one.
          if (codeOf(error) === "READONLY") attempt.retire?.();
          if (isReply) breaker.recordReply(performance.now(), !isNotServing(error));
          else if (this.#isClosed) return reject(limiterClosed());
          else if (isUnreachable(error)) breaker.recordFailure(began, performance.now(), error);
          reject(error);
        },
      );
    });
  }

  /** Returns the error of a call whose deadline has passed, and whose timer was late. */
  #deadlineError(attempt: Attempt, breaker: Breaker, began: number, withinMs: number, lateMs: number): Error {
    const { name } = this.#transport;
    if (this.#isClosed) return limiterClosed();
    const deadline = this.#deadline ?? 0;
    // The server may have answered while the call waited (BLOCK), and hang now.
    const since = began + withinMs - deadline;
    if (breaker.lastServed > since + deadline * EARLY) {
      return new Busy(`${name} answers, but did not answer this call within ${withinMs} ms`);
    }
    const now = performance.now();
    const isLate = lateMs >= LATE_MS && lateMs * LATE_PART >= deadline;
    if (isLate && breaker.silentMs(now) < SILENT_DEADLINES * (deadline + lateMs)) {
      return new Busy(`this program was busy, and read no reply of ${name} within ${Math.round(now - began)} ms`);
    }
    if (breaker.silentMs(now) >= now - since) attempt.retire?.();
    const error = new DeadlinePassed(`${name} did not answer within ${withinMs} ms`);
    breaker.recordFailure(since, now, error);
    return error;
  }
}

/** Returns a copy of the reply of a fallback, with `reachable: false`. A spread would leave out what is not enumerable. */
async function markUnreachable<T>(answer: T | Promise<T>): Promise<T> {
  const fields = Object.getOwnPropertyDescriptors((await answer) as object);
  const reachable = { value: false, enumerable: true, configurable: true, writable: true };
  return Object.defineProperties({}, { ...fields, reachable }) as T;
}
