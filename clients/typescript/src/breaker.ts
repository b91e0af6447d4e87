/** Decides whether to ask a server, by whether it answered before. Times are those of performance.now(). */

import { isErrorReply, isUnreachable, Unreachable } from "./errors.js";
import { publish } from "./events.js";

/** The number of failures in a row that open the breaker: one may be due to a connection, three are not. */
export const FAILURES = 3;
/** The pause between two probes. A server that is back decides again after this pause and one probe at the latest. */
export const PAUSE_MS = 200;
/** The longest time that a probe waits for an answer, unless the deadline is longer. */
export const PROBE_MS = 1000;

/**
 * The state of a server. It is closed while the server answers: all calls are sent. After FAILURES calls in a row without an
 * answer it is open: no call is sent, but every PAUSE_MS one call first checks whether the server is back. Any answer closes
 * it, also an error reply.
 *
 * Calls fail together when their connection breaks, so calls that were under way at the same time count as one failure: a
 * call counts only if it began after the last failure that was counted, and after the server's last answer.
 */
export class Breaker {
  readonly #name: string;
  readonly #since = performance.now();
  #failures = 0;
  #lastFailure = -Infinity;
  #lastError: unknown = undefined;
  #isProbing = false;
  #nextProbe = -Infinity;
  /** The time of the server's last answer. */
  #lastAnswer = -Infinity;
  /** The same, without error replies that say that a call cannot be served now. */
  lastServed = -Infinity;

  /** `name` is that of the server. */
  constructor(name: string) {
    this.#name = name;
  }

  get isOpen(): boolean {
    return this.#failures >= FAILURES;
  }

  /** Returns why a call must not be sent; undefined if it may be sent, or if it must probe the server first. */
  refusal(): Unreachable | undefined {
    return this.isOpen && (this.#isProbing || performance.now() < this.#nextProbe) ? this.#error() : undefined;
  }

  #error(): Unreachable {
    const error = this.#lastError;
    const reason = error instanceof Error ? error.message : String(error);
    return new Unreachable(`${this.#name} does not answer: ${reason}`, { cause: error });
  }

  /** Checks whether the server is back. `ping` resolves when it has answered. Throws if it is not back. */
  async probe(ping: () => Promise<unknown>): Promise<void> {
    this.#isProbing = true;
    try {
      await ping();
    } catch (error) {
      // Any other error is an answer, such as WRONGPASS. The call that probes gets it too.
      if (isUnreachable(error) && !isErrorReply(error)) {
        this.#lastError = error;
        throw this.#error();
      }
    } finally {
      this.#isProbing = false;
      this.#nextProbe = performance.now() + PAUSE_MS;
    }
    this.recordReply(performance.now(), false);
  }

  /** Returns how long the server has not answered, for a breaker that was made by then. */
  silentMs(now: number): number {
    return now - Math.max(this.#lastAnswer, this.#since);
  }

  /** Records an answer of the server. `isServed` is false for an error reply that says that a call cannot be served now. */
  recordReply(now: number, isServed = true): void {
    this.#lastAnswer = now;
    if (isServed) this.lastServed = now;
    if (this.isOpen) publish("breaker", () => ({ server: this.#name, isOpen: false, error: undefined }));
    this.#failures = 0;
  }

  /** Records that a call that began at `began` got no answer until `now`. */
  recordFailure(began: number, now: number, error: unknown): void {
    if (this.isOpen || began < this.#lastFailure || began <= this.#lastAnswer) return;
    this.#lastError = error;
    this.#lastFailure = now;
    this.#failures += 1;
    if (this.isOpen) publish("breaker", () => ({ server: this.#name, isOpen: true, error }));
  }
}
