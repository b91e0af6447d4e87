/** Decides whether to ask a server, by whether it answered before. */

import { Unreachable } from "./errors.js";

/** The number of failures in a row that open the breaker: one may be due to a connection, three are not. */
export const FAILURES = 3;
/**
 * The number of calls in a row that do not count as failures because the program was too busy to read an answer. A
 * connection is opened in several turns of the event loop, in each of which the program may be busy.
 */
export const LATE_CALLS = 10;
/** The pause between two probes. A server that is back decides again after this pause and one probe at the latest. */
export const PAUSE_MS = 200;
/** The longest time that a probe waits for an answer. For a single server it is the deadline, if that is longer. */
export const PROBE_MS = 1000;

/**
 * The state of a server. It is closed while the server answers: all calls are sent. After FAILURES calls in a row without an
 * answer it is open: no call is sent, and one probe at a time checks whether the server is back. Any answer closes it, also
 * an error reply.
 *
 * Calls fail together when their connection breaks, so calls that were under way at the same time count as one failure: a
 * call counts only if it began after the last failure that was counted. A call does not count either if the server answered
 * another one meanwhile, or if the program was too busy to read an answer, up to LATE_CALLS in a row. Times are those of
 * performance.now().
 */
export class Breaker {
  readonly #probe: () => Promise<void>;
  #failures = 0;
  #lastFailure = -Infinity;
  #lateCalls = 0;
  #lastLate = -Infinity;
  #lastAnswer = -Infinity;
  #lastServed = -Infinity;
  #lastError: unknown = undefined;
  #pause: NodeJS.Timeout | undefined;
  #probing = false;
  #open = false;

  /** `probe` resolves when the server has answered. */
  constructor(probe: () => Promise<void>) {
    this.#probe = probe;
  }

  get isOpen(): boolean {
    return this.#open;
  }

  /** The time of the server's last answer, except error replies that say that a call cannot be served now. */
  get lastServed(): number {
    return this.#lastServed;
  }

  /** Returns the error of a call that is not sent. `name` is that of the server. */
  refusal(name = "the server"): Unreachable {
    const error = this.#lastError;
    return new Unreachable(`${name} does not answer: ${error instanceof Error ? error.message : String(error)}`, {
      cause: error,
    });
  }

  /** Records an answer of the server. `isServed` is false for an error reply that says that a call cannot be served now. */
  recordReply(now: number, isServed = true): void {
    this.#lastAnswer = now;
    if (isServed) this.#lastServed = now;
    this.#failures = 0;
    this.#lateCalls = 0;
    if (this.#open) this.#close();
  }

  /** Records that a call that began at `began` got no answer until `now`. */
  recordFailure(began: number, now: number, error: unknown): void {
    this.#lastError = error;
    if (this.#open || began < this.#lastFailure || began <= this.#lastAnswer) return;
    this.#lastFailure = now;
    this.#failures += 1;
    if (this.#failures < FAILURES) return;
    this.#open = true;
    this.#sendProbe();
  }

  /**
   * Returns whether a call that began at `began` and got no answer until `now` is no failure, as the program was busy. It is
   * one if too many such calls came before: the server may be silent as well.
   */
  forgivesLate(began: number, now: number): boolean {
    if (began >= this.#lastLate) {
      this.#lateCalls += 1;
      this.#lastLate = now;
    }
    return this.#lateCalls <= LATE_CALLS;
  }

  /** Closes the breaker and stops probing. */
  reset(): void {
    this.#failures = 0;
    this.#close();
  }

  #close(): void {
    this.#open = false;
    clearTimeout(this.#pause);
    this.#pause = undefined;
  }

  #sendProbe(): void {
    if (this.#probing) return;
    this.#probing = true;
    this.#probe().then(
      () => {
        this.#probing = false;
        this.recordReply(performance.now(), false);
      },
      (error: unknown) => {
        this.#probing = false;
        if (!this.#open) return;
        this.#lastError = error;
        // It must not keep the program running.
        this.#pause = setTimeout(() => this.#sendProbe(), PAUSE_MS).unref();
      },
    );
  }
}
