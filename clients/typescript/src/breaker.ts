/** Remembers whether a server answers, so that calls need not wait for one that does not. */

import { Unreachable } from "./errors.js";

/** So many calls must fail one after the other before further ones are answered at once. */
export const FAILURES = 3;
/** The pause between two probes. A server that is back decides again within this and the length of a probe. */
export const PAUSE_MS = 200;
/** The longest that a probe waits for its answer. With a longer deadline a single server has as long as that. */
export const PROBE_MS = 1000;

/**
 * Closed while the server answers. Open after three calls in a row that it did not answer: then a call is answered at once,
 * without the network, while one probe at a time looks whether the server is back.
 *
 * Calls that fail at the same time count as one, as a connection that breaks takes all calls on it along. Three failures in
 * a row are three calls each of which began after the one before it had failed. A call during which the server answered
 * another counts nothing. Times are those of performance.now().
 */
export class Breaker {
  readonly #probe: () => Promise<void>;
  #failures = 0;
  #lastFailure = -Infinity;
  #lastAnswer = -Infinity;
  #isServing = true;
  #lastError: unknown = undefined;
  #pause: NodeJS.Timeout | undefined;
  #probing = false;
  #open = false;

  /** `probe` resolves once the server answers. */
  constructor(probe: () => Promise<void>) {
    this.#probe = probe;
  }

  get isOpen(): boolean {
    return this.#open;
  }

  /** When the server last answered, by performance.now(). */
  get lastAnswer(): number {
    return this.#lastAnswer;
  }

  /** Whether the last answer was from a server that serves calls, and not an error reply such as LOADING. */
  get isServing(): boolean {
    return this.#isServing;
  }

  /** The error of a call that is answered at once. */
  refusal(): Unreachable {
    return new Unreachable("Redis did not answer the calls before this one", { cause: this.#lastError });
  }

  /** The server answered. An error reply is an answer too, even if it says that no call can be served now. */
  answered(now: number, isServing = true): void {
    this.#lastAnswer = now;
    this.#isServing = isServing;
    this.#failures = 0;
    if (this.#open) this.#close();
  }

  /** A call that began at `began` was not answered until `now`. */
  failed(began: number, now: number, error: unknown): void {
    this.#lastError = error;
    if (this.#open || began < this.#lastFailure || began <= this.#lastAnswer) return;
    this.#lastFailure = now;
    this.#failures += 1;
    if (this.#failures < FAILURES) return;
    this.#open = true;
    this.#look();
  }

  /** Stops probing. The next call is sent. */
  reset(): void {
    this.#failures = 0;
    this.#close();
  }

  #close(): void {
    this.#open = false;
    clearTimeout(this.#pause);
    this.#pause = undefined;
  }

  #look(): void {
    if (this.#probing) return;
    this.#probing = true;
    this.#probe().then(
      () => {
        this.#probing = false;
        this.answered(performance.now());
      },
      (error: unknown) => {
        this.#probing = false;
        if (!this.#open) return;
        this.#lastError = error;
        // The pause alone does not keep a program running.
        this.#pause = setTimeout(() => this.#look(), PAUSE_MS).unref();
      },
    );
  }
}
