/** A limiter without a server. The engine of the server's module decides in the process. */

import { checkOptions, quote, text } from "./check.js";
import type { Client } from "./clients.js";
import type { Command, Key } from "./command.js";
import { Engine, engineModule, ReplyError, Ticket } from "./engine.js";
import { HOLDS } from "./core.js";
import { Limiter } from "./limiter.js";
import { SYSTEM_TIMER } from "./local.js";
import { givenUp, IS_TRANSPORT, limiterClosed, type Attempt, type Transport } from "./transport.js";

/** Options of {@link MemoryLimiter}. */
export interface MemoryLimiterOptions {
  /** Returns the time in milliseconds since 1970. Default: Date.now. A test can set the time instead of sleeping. */
  clock?: (() => number) | undefined;
  /**
   * The part of each limit that this process has, above 0 and at most 1, such as 1 / 4. The quantity that is available at
   * once (the limit of a window, burst + 1 of a rate) is rounded down, but is at least 1: four processes together never
   * admit more than a limit of 4 or above. The quantity that a rate adds in a period is exactly the part. `leave` is rounded
   * up, and a limit of 0 stays 0. Default 1.
   */
  share?: number | undefined;
  /**
   * The policies, as in the setting ratelimit.policies, or as an object with a definition for each name, with or without @.
   */
  policies?: string | Readonly<Record<string, string>> | undefined;
  /** Other settings of the server by their names, such as { timezone: "Asia/Tokyo" }. */
  settings?: Readonly<Record<string, string>> | undefined;
}

/** The pause between two reads of a test's clock while a call waits. */
const POLL_MS = 3;
/** The longest pause between two reads of the system's clock, which may be set while a call waits. */
const MAX_WAIT_MS = 1000;

/** Returns the names and values for CONFIG SET. */
function settingsOf({ policies, settings = {} }: MemoryLimiterOptions): [string, string][] {
  const policiesText =
    typeof policies === "object"
      ? Object.entries(policies)
          .map(([name, definition]) => `${name.replace(/^@/, "")} ${definition}`)
          .join("; ")
      : policies;
  const allSettings = { ...settings, ...(policiesText !== undefined && { policies: policiesText }) };
  return Object.entries(allSettings).map(([name, value]) => {
    if (typeof value !== "string") throw new TypeError(`the setting ${name} must be a string, not ${quote(value)}`);
    return [`ratelimit.${name.replace(/^ratelimit\./, "")}`, value];
  });
}

interface Waiter {
  resolve: (reply: unknown) => void;
  reject: (error: unknown) => void;
}

/** Executes commands on keys in memory. */
class MemoryTransport implements Transport {
  readonly [IS_TRANSPORT] = true;
  readonly name = "the memory of this process";
  readonly #clock: () => number;
  readonly #engine: Engine;
  /** The calls that wait, by their tickets. */
  readonly #waiting = new Map<number, Waiter>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #timerAt = Infinity;
  /** True if the clock is the system's. */
  readonly #isReal: boolean;
  /** The last time of the clock, in microseconds. */
  #lastUs = 0;

  constructor(options: MemoryLimiterOptions) {
    checkOptions("MemoryLimiter", options, ["clock", "share", "policies", "settings"]);
    const { clock, share = 1 } = options;
    if (clock !== undefined && typeof clock !== "function") {
      throw new TypeError(`clock must be a function that returns milliseconds, as Date.now does, not ${quote(clock)}`);
    }
    if (typeof share !== "number") throw new TypeError(`share must be a number, as 1 / 4, not ${quote(share)}`);
    this.#clock = clock ?? Date.now;
    this.#isReal = clock === undefined;
    this.#engine = new Engine(engineModule(), share);
    for (const [name, value] of settingsOf(options)) {
      const reply = this.#engine.call(["CONFIG", "SET", name, value], this.#now());
      if (reply instanceof ReplyError) throw new RangeError(reply.message.replace(/^ERR /, ""));
    }
  }

  #now(): number {
    const now: unknown = this.#clock();
    if (typeof now !== "number" || !(now >= 0 && now < Infinity)) {
      throw new RangeError(`clock must return milliseconds since 1970, not ${quote(now)}`);
    }
    return (this.#lastUs = Math.round(now * 1000));
  }

  /** Returns the reply; undefined if the call may wait. */
  atOnce({ words, blockMs, transaction, isForAll }: Command): unknown {
    if (blockMs !== undefined) return undefined;
    const now = this.#now();
    const reply = transaction?.map((each) => this.#engine.call(each, now)) ?? this.#engine.call(words, now);
    if (this.#waiting.size > 0) this.#resolveEnded();
    if (reply instanceof ReplyError) throw reply;
    return isForAll ? [reply] : reply;
  }

  /** Executes a command that may wait. */
  async send({ words }: Command, attempt: Attempt): Promise<unknown> {
    const reply = this.#engine.call(words, this.#now());
    const waits =
      reply instanceof Ticket &&
      new Promise((resolve, reject) => {
        this.#waiting.set(reply.number, { resolve, reject });
        attempt.abandon = () => {
          this.#ring();
          if (!this.#waiting.delete(reply.number)) return;
          this.#engine.withdraw(reply.number, this.#now());
          this.#ring();
          reject(givenUp());
        };
      });
    if (this.#waiting.size > 0) this.#resolveEnded();
    if (reply instanceof ReplyError) throw reply;
    return waits ? await waits : reply;
  }

  /** Resolves the calls whose wait is over, and sets the timer for the next one. */
  #resolveEnded(): void {
    const engine = this.#engine;
    for (const [ticket, reply] of engine.takeEnded(this.#now())) {
      const waiter = this.#waiting.get(ticket);
      this.#waiting.delete(ticket);
      if (reply instanceof ReplyError) waiter?.reject(reply);
      else waiter?.resolve(reply);
    }
    const nextMs = engine.nextUs() / 1000;
    if (this.#waiting.size === 0) {
      clearTimeout(this.#timer);
      this.#timerAt = Infinity;
    } else if (nextMs !== this.#timerAt || !this.#isReal) {
      clearTimeout(this.#timer);
      this.#timerAt = nextMs;
      const left = nextMs < 0 ? MAX_WAIT_MS : Math.min(Math.max(0, nextMs - this.#clock()), MAX_WAIT_MS);
      this.#timer = setTimeout(() => this.#ring(), this.#isReal ? Math.ceil(left) : POLL_MS);
    }
  }

  #ring(): void {
    this.#timerAt = NaN;
    try {
      this.#resolveEnded();
    } catch (error) {
      // The clock of a test failed: there is no time at which the calls that wait could be decided.
      this.#endWaits(error);
    }
  }

  #endWaits(error: unknown): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const [ticket, { reject }] of waiting) {
      this.#engine.withdraw(ticket, this.#lastUs);
      reject(error);
    }
  }

  holds(key: Key, id: string): boolean {
    const reply = this.#engine.call(["RL.HELD", key], this.#now());
    return Array.isArray(reply) && reply.some((held) => (held as unknown[])[0] === id);
  }

  close(): void {
    this.#endWaits(limiterClosed());
  }
}

/**
 * A limiter without a server, with the methods and replies of {@link Limiter}. In a test, the `clock` can be set. As the
 * `unreachable` of a Limiter it decides while Redis cannot be reached: each process then has the limit, or a `share` of it,
 * to itself.
 */
export class MemoryLimiter extends Limiter {
  readonly #memory: MemoryTransport;

  constructor(options: MemoryLimiterOptions = {}) {
    const memory = new MemoryTransport(options);
    const { clock } = options;
    super(memory as unknown as Client, {}, clock && { ...SYSTEM_TIMER, monotonic: clock, wall: clock });
    this.#memory = memory;
  }

  /**
   * Sets a limit in a hash of limits, as HSET does on a server, for the option `limits` of {@link Limiter.all}:
   * `define("limits", "rpm", "WINDOW 500 1min")`. Without a definition, removes it, as HDEL does.
   */
  define(limits: Key, name: string, definition?: string): void {
    text("key of limits", limits);
    const field = name.replace(/^@/, "");
    const words = definition === undefined ? ["HDEL", limits, field] : ["HSET", limits, field, definition];
    this.#memory.atOnce({ key: limits, words });
  }

  /** Returns whether a reservation is held here. */
  [HOLDS](key: Key, id: string): boolean {
    return this.#memory.holds(key, id);
  }
}
