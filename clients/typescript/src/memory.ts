/** A limiter without a server. The engine of the server's module decides in the process. */

import { checkOptions, checkText, isPeriod, quote } from "./check.js";
import type { NodeRedis } from "./clients.js";
import type { Command, Key } from "./command.js";
import { Engine, engineModule, ReplyError, Ticket } from "./engine.js";
import { HOLDS } from "./core.js";
import { Limiter } from "./limiter.js";
import type { Policy, Rate, Window, Word } from "./limits.js";
import { SYSTEM_TIMER, type Timer } from "./local.js";
import type { ThrottleOptions, WindowOptions } from "./options.js";
import { readReply, type Reply } from "./replies.js";
import { givenUp, limiterClosed, OWN_TRANSPORT, type Attempt, type Transport } from "./transport.js";

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

function checkClock(clock: unknown): void {
  if (clock === undefined || typeof clock === "function") return;
  throw new TypeError(`clock must be a function that returns milliseconds, as Date.now does, not ${quote(clock)}`);
}

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
  readonly name = "the memory of this process";
  readonly clock: () => number;
  readonly #engine: Engine;
  /** The calls that wait, by their tickets. */
  readonly #waiting = new Map<number, Waiter>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #timerAt = Infinity;
  #isClosed = false;
  /** True if the clock is the system's. */
  readonly #isReal: boolean;
  /** The last time of the clock, in microseconds. */
  #lastUs = 0;

  constructor(options: MemoryLimiterOptions) {
    this.clock = options.clock ?? Date.now;
    this.#isReal = options.clock === undefined;
    this.#engine = new Engine(engineModule(), options.share ?? 1);
    for (const [name, value] of settingsOf(options)) {
      const reply = this.#engine.call(["CONFIG", "SET", name, value], this.#now());
      if (reply instanceof ReplyError) throw new RangeError(reply.message.replace(/^ERR /, ""));
    }
  }

  #now(): number {
    const now: unknown = this.clock();
    if (typeof now !== "number" || !(now >= 0 && now < Infinity)) {
      throw new RangeError(`clock must return milliseconds since 1970, not ${quote(now)}`);
    }
    return (this.#lastUs = Math.round(now * 1000));
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Returns the reply; undefined if the call may wait. */
  atOnce({ words, blockMs, transaction }: Pick<Command, "words" | "blockMs" | "transaction">): unknown {
    if (blockMs !== undefined) return undefined;
    if (transaction !== undefined) return this.#callEach(transaction);
    const reply = this.#engine.call(words, this.#now());
    if (this.#waiting.size > 0) this.#resolveEnded();
    if (reply instanceof ReplyError) throw reply;
    return reply;
  }

  /** Executes commands that do not wait. Returns their replies, with error replies. */
  #callEach(commands: Word[][]): unknown[] {
    const now = this.#now();
    const replies = commands.map((words) => this.#engine.call(words, now));
    if (this.#waiting.size > 0) this.#resolveEnded();
    return replies;
  }

  async send({ words, transaction }: Command, attempt: Attempt): Promise<unknown> {
    const engine = this.#engine;
    if (transaction !== undefined) return this.#callEach(transaction);
    const reply = engine.call(words, this.#now());
    if (reply instanceof Ticket) {
      return new Promise((resolve, reject) => {
        this.#waiting.set(reply.number, { resolve, reject });
        attempt.abandon = () => {
          this.#ring();
          if (!this.#waiting.delete(reply.number)) return;
          engine.withdraw(reply.number, this.#now());
          this.#ring();
          reject(givenUp());
        };
        this.#resolveEnded();
      });
    }
    if (this.#waiting.size > 0) this.#resolveEnded();
    if (reply instanceof ReplyError) throw reply;
    return reply;
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
      const left = nextMs < 0 ? MAX_WAIT_MS : Math.min(Math.max(0, nextMs - this.clock()), MAX_WAIT_MS);
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

  /** Returns whether a reservation is held here. */
  holds(key: Key, id: string): boolean {
    const reply = this.#engine.call(["RL.HELD", key], this.#now());
    return Array.isArray(reply) && reply.some((held) => (held as unknown[])[0] === id);
  }

  close(): void {
    this.#isClosed = true;
    this.#endWaits(limiterClosed());
  }
}

/** A stand-in for a client. */
class MemoryClient implements NodeRedis {
  readonly [OWN_TRANSPORT]: MemoryTransport;

  constructor(options: MemoryLimiterOptions) {
    checkOptions("MemoryLimiter", options, ["clock", "share", "policies", "settings"]);
    checkClock(options.clock);
    const { share = 1 } = options;
    if (typeof share !== "number") throw new TypeError(`share must be a number, as 1 / 4, not ${quote(share)}`);
    if (!(share > 0 && share <= 1)) throw new RangeError(`share must be above 0 and at most 1, not ${share}`);
    this[OWN_TRANSPORT] = new MemoryTransport(options);
  }

  sendCommand(words: Word[]): Promise<unknown> {
    return this[OWN_TRANSPORT].send({ key: undefined, words }, { over: false });
  }
}

/**
 * Returns the words of `throttle` without options, for the usual types of a rate; undefined for others. It is a fast path.
 */
function plainRate(key: Key, rate: Rate | Policy): Word[] | undefined {
  if (typeof key !== "string" || typeof rate !== "object" || rate === null) return undefined;
  let fields = 0;
  for (const _ in rate) fields += 1;
  const { burst, count, period } = rate;
  if (fields !== 3 || typeof period === "undefined") return undefined;
  if (!Number.isSafeInteger(burst) || !Number.isSafeInteger(count)) return undefined;
  if (isPeriod(period)) return ["RL.THROTTLE", key, `${burst}`, `${count}`, period, "1", "MS"];
  return Number.isSafeInteger(period)
    ? ["RL.THROTTLE", key, `${burst}`, `${count}`, `${period}`, "1", "MS"]
    : undefined;
}

/** Does the same for `window` with sliding windows without buckets. */
function plainWindow(key: Key, window: Window | Policy): Word[] | undefined {
  if (typeof key !== "string" || typeof window !== "object" || window === null) return undefined;
  let fields = 0;
  for (const _ in window) fields += 1;
  const { limit, period } = window;
  if (fields !== 2 || !Number.isSafeInteger(limit)) return undefined;
  if (isPeriod(period)) return ["RL.WINDOW", key, `${limit}`, period, "1", "MS"];
  return Number.isSafeInteger(period) ? ["RL.WINDOW", key, `${limit}`, `${period}`, "1", "MS"] : undefined;
}

/**
 * A limiter without a server, with the methods and replies of {@link Limiter}. In a test, the `clock` can be set. As the
 * `unreachable` of a Limiter it decides while Redis cannot be reached: each process then has the limit, or a `share` of it,
 * to itself.
 */
export class MemoryLimiter extends Limiter {
  readonly #memory: MemoryTransport;

  constructor(options: MemoryLimiterOptions = {}) {
    const client = new MemoryClient(options);
    const transport = client[OWN_TRANSPORT];
    const { clock } = options;
    const timer: Timer | undefined = clock && { ...SYSTEM_TIMER, monotonic: clock, wall: clock };
    super(client, {}, timer);
    this.#memory = transport;
  }

  override throttle(key: Key, rate: Rate | Policy, options?: ThrottleOptions): Promise<Reply> {
    const words = options === undefined && !this.#memory.isClosed ? plainRate(key, rate) : undefined;
    return words === undefined ? super.throttle(key, rate, options) : this.#decide(words);
  }

  override window(key: Key, window: Window | Policy, options?: WindowOptions): Promise<Reply> {
    const words = options === undefined && !this.#memory.isClosed ? plainWindow(key, window) : undefined;
    return words === undefined ? super.window(key, window, options) : this.#decide(words);
  }

  // It is async so that errors are rejections, as with the other methods.
  // eslint-disable-next-line @typescript-eslint/require-await
  async #decide(words: Word[]): Promise<Reply> {
    return readReply(this.#memory.atOnce({ words, blockMs: undefined }));
  }

  /**
   * Sets a limit in a hash of limits, as HSET does on a server, for the option `limits` of {@link Limiter.all}:
   * `define("limits", "rpm", "WINDOW 500 1min")`. Without a definition, removes it, as HDEL does.
   */
  define(limits: Key, name: string, definition?: string): void {
    checkText("key of limits", limits);
    const field = name.replace(/^@/, "");
    const words = definition === undefined ? ["HDEL", limits, field] : ["HSET", limits, field, definition];
    this.#memory.atOnce({ words, blockMs: undefined });
  }

  /** Returns whether a reservation is held here. */
  [HOLDS](key: Key, id: string): boolean {
    return this.#memory.holds(key, id);
  }
}
