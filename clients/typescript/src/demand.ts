/** How much is asked for in the process: a moving average. */

/** How many leases the moving average of the demand covers. */
const DEMAND_LEASES = 1;

/** Times are those of the monotonic clock, in milliseconds. */
export class Demand {
  readonly #averagedMs: number;
  /** Units asked for since it was measured. */
  #asked = 0;
  #measuredAt: number;
  #lastAsked = -Infinity;
  /** Units asked for in a millisecond, when it was measured last. */
  #perMs = 0;

  constructor(leaseMs: number, now: number) {
    this.#averagedMs = DEMAND_LEASES * leaseMs;
    this.#measuredAt = now;
  }

  /** Somebody asked, whether it counts or not. */
  touch(now: number): void {
    this.#lastAsked = now;
  }

  add(quantity: number): void {
    this.#asked += quantity;
  }

  /** Since when nobody has asked. */
  get lastAsked(): number {
    return this.#lastAsked;
  }

  /** Brings the average up to date. */
  measure(now: number): void {
    const passed = now - this.#measuredAt;
    const kept = Math.exp(-passed / this.#averagedMs);
    const recent = passed > 0 ? (this.#asked / passed) * (1 - kept) : this.#asked / this.#averagedMs;
    this.#perMs = this.#perMs * kept + recent;
    this.#asked = 0;
    this.#measuredAt = now;
  }

  /** What is expected within this time. */
  within(ms: number): number {
    return this.#perMs * ms;
  }
}
