/**
 * The leases of one key: the batches that a process has reserved of a limit, how it spends them, and how it settles them.
 * This file does no I/O and sets no timers, see local.ts.
 *
 * A batch is a reservation with COUNTLAPSED. The server holds it until it is settled, and counts all of it if its lease ends
 * first. So it can be spent without the server while the lease lasts. Whatever a process has not settled when it dies counts
 * as spent, so no period ever has more than the limit.
 *
 *     reserve        spend, without the server        settle
 *     |--------------------------------------|---|
 *     ACQUIRE 20     take take take .. take    ^   APPLY 17
 *                                              the margin: the lease ends on the server, not here
 *
 * The states of a batch:
 *
 *     requested ---granted---> held ---spent, ended or idle---> settling ---answered---> gone
 *         |                                                      |    ^
 *         | no reply                                    no reply |    | after RETRY_MS
 *         v                                                      +----+
 *       lost ---released twice---> gone
 *
 * - Requested: RL.ACQUIRE is in the round that is under way.
 * - Held: it is in #batches, oldest first, and take() spends it.
 * - Settling: it is in #settling, or in the round that is under way. RL.APPLY counts what was spent; RL.RELEASE is sent if
 *   that is nothing. If the reply is 0 although the reservation cannot have ended, the server has lost the reservation, and
 *   RL.WINDOW with FORCE counts what was spent.
 * - Lost: it is in #lost. The server may have executed the RL.ACQUIRE, or may still do so. So RL.RELEASE is sent now, and
 *   again LOST_MS after the end of the lease.
 *
 * Invariants: a unit is spent only if the clock, read first, says that the lease lasts. A batch leaves #batches before it is
 * settled, so nothing more is spent of it. Each RL.APPLY of a batch has the same quantity.
 */

import type { Key } from "./command.js";
import { checkOptions, checkText, integer, minPeriodMs, quote, toMilliseconds } from "./check.js";
import { Closed, codeOf, DeadlinePassed } from "./errors.js";
import {
  checkWindow,
  isSemaphore,
  type Duration,
  type Integer,
  type Policy,
  type Window,
  type Word,
} from "./limits.js";
import { limitCallWords } from "./options.js";
import { randomName } from "./random.js";
import { readCount, readId, readIdAndGranted, readReply, replyWith, type Reply } from "./replies.js";

/** Options of Limiter.local. */
export interface LocalOptions {
  /** The length of the lease in which the process may spend a batch, at least 20 ms. Default "100ms". */
  lease?: Duration | undefined;
  /** The quantity that must remain for others. Default 0. */
  leave?: Integer | undefined;
}

/** Clocks, in milliseconds. Tests have their own. */
export interface Clock {
  /** Never goes back. It may stand still while the machine sleeps. */
  monotonic(): number;
  /** The time of day, which may be set. */
  wall(): number;
}

/** The shortest lease. Of a shorter one too little would be left, as a lease is given up early. */
export const MIN_LEASE_MS = 20;
/** The longest time that a denial is remembered: others may give something back before retry_after. */
export const DENIAL_MS = 100;
/** The pause before settling again after no reply. */
export const RETRY_MS = 100;
/**
 * A reservation whose reply was lost is released at once, and again this long after its lease, as the server may have
 * executed RL.ACQUIRE after the first RL.RELEASE.
 */
export const LOST_MS = 1000;
/** The part at the end of a lease that is not used, as clocks differ in speed, and its shortest length. */
export const MARGIN = 0.1;
export const MIN_MARGIN_MS = 2;
/** The next batch is fetched this many round trips plus AHEAD_MS before it is needed, but at most MAX_AHEAD of a lease. */
export const AHEAD_ROUND_TRIPS = 2;
export const AHEAD_MS = 2;
export const MAX_AHEAD = 0.25;
/** After this many batches in a row that arrived after their lease, the calls that wait are answered without the server. */
export const MAX_LATE = 3;

/**
 * Returns the quantity to reserve: what is `expected` to be spent within half a lease, and at least what is `needed`. It is
 * at most the limit, and twice the limit divided by the number of `reservations` in the key. Before the first reply, when
 * `limit` is undefined, it is what is needed.
 */
export function batchSize(expected: number, needed: number, limit: number | undefined, reservations: number): number {
  if (limit === undefined) return Math.max(1, needed);
  const fairShare = Math.floor((2 * limit) / Math.max(1, reservations));
  return Math.max(1, needed, Math.min(Math.ceil(expected), fairShare, limit));
}

/** A reservation that is held or settled. */
interface Batch {
  readonly kind: "batch";
  /** Null if nothing is reserved, because the SHADOW of a policy lets everything pass. */
  readonly id: string | null;
  readonly granted: number;
  left: number;
  /** The time at which the process stops spending it, by the monotonic and by the wall clock. */
  readonly until: number;
  readonly wallUntil: number;
  /** The next batch is fetched when no more than this is left. */
  low: number;
  /** True if its settlement was sent before and got no reply. */
  tried: boolean;
}

/** A reservation whose reply was lost. */
interface LostReservation {
  readonly kind: "lost";
  readonly id: string;
  /** The time of the second release; undefined before the first. */
  readonly againAt?: number;
}

/** A reservation to make. */
interface Request {
  readonly kind: "request";
  readonly id: string;
  readonly quantity: number;
  /** The part of the quantity that a call waits for. */
  readonly needed: number;
  /** Reserves the whole quantity or nothing. A denial then says when the whole quantity is available. */
  readonly exactly: boolean;
}

/** The quantity that was spent of a reservation that the server has lost. */
interface ForcedCount {
  readonly kind: "force";
  readonly quantity: number;
}

type Item = LostReservation | Batch | ForcedCount | Request;

/** Commands to send together, one for each item. */
export interface Round {
  readonly sentAt: number;
  readonly wallSentAt: number;
  readonly items: readonly Item[];
  readonly commands: readonly Word[][];
}

/** The quantity that is asked for in each millisecond, as a moving average over a lease. */
class Demand {
  readonly #leaseMs: number;
  rate = 0;
  #updatedAt: number;
  /** The quantity since the last update. */
  asked = 0;
  /** The time of the last take. */
  askedAt = -Infinity;

  constructor(leaseMs: number, now: number) {
    this.#leaseMs = leaseMs;
    this.#updatedAt = now;
  }

  update(now: number): void {
    // The clock of a test may go back.
    const passed = Math.max(0, now - this.#updatedAt);
    const weight = Math.exp(-passed / this.#leaseMs);
    this.rate = this.rate * weight + (passed > 0 ? (this.asked * (1 - weight)) / passed : this.asked / this.#leaseMs);
    this.asked = 0;
    this.#updatedAt = now;
  }
}

/** A denial that is remembered. */
interface Denial {
  readonly reply: Reply;
  /** The quantity beyond what is held that was denied. */
  readonly short: number;
  readonly at: number;
  readonly until: number;
}

const spentOf = ({ granted, left }: Batch): number => granted - left;

/** Reads the reply to the command of an item. Throws if it is not one of redis-ratelimit. */
function readReplyTo(item: Item, reply: unknown): Error | Reply | number {
  if (reply instanceof Error) return reply;
  if (item.kind === "request") return item.exactly ? readId(reply) : readIdAndGranted(reply);
  return item.kind === "force" ? readReply(reply) : readCount(reply);
}

/** Returns whether a batch must not be spent any more. By the wall clock, a newer batch may end before an older one. */
const hasEnded = ({ until, wallUntil }: Batch, now: number, wall: number): boolean => now >= until || wall >= wallUntil;

/**
 * Returns the shortest time that a window counts an event; 0 for a policy, and for a window of the calendar, which may end
 * at any time.
 */
function countedMs(window: Window | Policy): number {
  if (typeof window === "string") return 0;
  if (window.fixed && window.start?.toLowerCase() !== "first") return 0;
  return Number(minPeriodMs(window.period) ?? 0n);
}

/**
 * The leases of one key.
 *
 * A caller tries take(). If that returns undefined, it calls want(), and tries again after the next round. The caller that
 * does the I/O sends what nextRound() returns and reports the outcome by receive() or fail(), until nextRound() returns
 * undefined. Then it waits until nextAt(), or until wake() is called.
 */
export class Leases {
  readonly key: Key;
  readonly window: Window | Policy;
  readonly leaseMs: number;
  /** The time after its request in which a reservation cannot have ended by itself: it is held, or counted as lapsed. */
  readonly heldMs: number;
  readonly #leave: Integer;
  readonly #clock: Clock;
  /** Called when nextRound() has something to send. */
  readonly #wake: () => void;
  /** The part of a lease in which a batch is spent. */
  readonly #spendableMs: number;
  /** The start of the ids of its reservations. */
  readonly #prefix = randomName();
  #requests = 0;
  #batches: Batch[] = [];
  #settling: Batch[] = [];
  #lost: LostReservation[] = [];
  #forced: ForcedCount[] = [];
  /** The largest quantity for which a call waits. */
  #wanted = 0;
  /** The quantity that a call still lacks after the server granted a part. */
  #short = 0;
  #closing = false;
  /** True if the policy turned out to be a semaphore, as only the server knows. Then nothing more is reserved. */
  #isSemaphore = false;
  /** The number of rounds that failed. */
  failures = 0;
  /** The error of the last round. */
  error: unknown;
  /**
   * The last error reply because of which a settlement was given up after close(). What it was to settle counts when its
   * lease ends.
   */
  refused: Error | undefined;
  #underWay = false;
  #retryAt = -Infinity;
  readonly #demand: Demand;
  #roundTripMs = 1;
  /** True if the server granted less than the last request. Then nothing is fetched ahead. */
  #isFull = false;
  /** The number of batches in a row that arrived after their lease. */
  #late = 0;
  #denial: Denial | undefined;
  // From the server's last reply.
  #limit: number | undefined;
  #reservations = 1;
  /** The quantity that is available in addition to what is held. */
  #remaining = 0;
  #resetMs = 0;
  /** Until then the limit of a policy is taken from the server's reply. Later it may have been changed. */
  #limitUntil = -Infinity;

  /** Throws a TypeError or RangeError if `window` or `options` are wrong. */
  constructor(key: Key, window: Window | Policy, options: LocalOptions, clock: Clock, wake: () => void) {
    checkText("key", key);
    checkWindow("local", window);
    checkOptions("local", options, ["lease", "leave"]);
    const { lease = "100ms", leave = 0 } = options;
    integer("leave", leave);
    if (leave < 0) throw new RangeError(`leave must be at least 0, not ${leave}`);
    if (isSemaphore(window)) throw new RangeError("local takes a window with a period; 0 is a semaphore");
    const leaseMs = toMilliseconds("lease", lease);
    if (leaseMs < MIN_LEASE_MS) {
      throw new RangeError(`lease must be at least ${MIN_LEASE_MS} ms, not ${quote(lease)}`);
    }
    [this.key, this.window, this.#leave, this.leaseMs] = [key, window, leave, leaseMs];
    [this.#clock, this.#wake] = [clock, wake];
    this.heldMs = leaseMs + countedMs(window);
    this.#spendableMs = leaseMs - Math.max(leaseMs * MARGIN, MIN_MARGIN_MS);
    this.#demand = new Demand(leaseMs, clock.monotonic());
    // Throws now if the window or an option cannot be put into a command.
    this.#command({ kind: "request", id: this.#prefix, quantity: 1, needed: 1, exactly: false });
  }

  // Spending.

  /**
   * Decides. Returns undefined if the server must be asked. The quantity counts as demand, unless it `isCounted` already
   * because want() was called for it.
   */
  take(quantity: number, isCounted = false): Reply | undefined {
    const now = this.#clock.monotonic();
    const demand = this.#demand;
    demand.askedAt = now;
    const batch = this.#batches[0];
    if (batch !== undefined && quantity <= batch.left && now < batch.until && this.#clock.wall() < batch.wallUntil) {
      if (!isCounted) demand.asked += quantity;
      const left = (batch.left -= quantity);
      if (left <= batch.low) this.#refill(batch);
      return replyWith(0, this.#limit ?? 0, this.#remaining + left, null, this.#resetMs);
    }
    const reply = this.#takeSlowly(quantity, now);
    if (reply !== undefined && !isCounted) this.#count(quantity, now);
    return reply;
  }

  /** Settles a batch that is spent, and requests the next one. */
  #refill(batch: Batch): void {
    if (batch.left === 0) {
      this.#batches.shift();
      this.#settle(batch);
    }
    this.#wake();
  }

  #refuseSemaphore(): void {
    if (!this.#isSemaphore) return;
    throw new RangeError(`local takes a window with a period; ${quote(this.window)} is a semaphore`);
  }

  #takeSlowly(quantity: number, now: number): Reply | undefined {
    this.#refuseSemaphore();
    if (this.#dropEnded(now)) this.#wake();
    const left = this.#left();
    if (quantity <= left) {
      for (let rest = quantity; rest > 0;) {
        const batch = this.#batches[0] as Batch;
        const taken = Math.min(rest, batch.left);
        batch.left -= taken;
        rest -= taken;
        if (batch.left <= batch.low) this.#refill(batch);
      }
      return replyWith(0, this.#limit ?? 0, this.#remaining + left - quantity, null, this.#resetMs);
    }
    if (this.#isTooMuch(quantity, now)) {
      const limit = typeof this.window === "string" ? (this.#limit ?? 0) : Number(this.window.limit);
      return replyWith(1, limit, this.#remaining + left, null, this.#resetMs);
    }
    const denial = this.#denial;
    if (denial === undefined || now >= denial.until || quantity - left < denial.short) return undefined;
    return this.#denied(denial, quantity, left, now);
  }

  /** Returns the reply to a take by a remembered denial, while `left` is held. */
  #denied({ reply, at }: Denial, quantity: number, left: number, now: number): Reply {
    const passedMs = Math.floor(now - at);
    let retryMs = reply.retryAfterMs;
    if (retryMs !== null) {
      retryMs = quantity + Number(this.#leave) > reply.limit ? null : Math.max(1, retryMs - passedMs);
    }
    return replyWith(reply.limited, reply.limit, left, retryMs, Math.max(0, reply.resetAfterMs - passedMs));
  }

  #left(): number {
    return this.#batches.reduce((sum, { left }) => sum + left, 0);
  }

  /** Returns whether a take can never be allowed. */
  #isTooMuch(quantity: number, now: number): boolean {
    let limit = now < this.#limitUntil ? this.#limit : undefined;
    if (typeof this.window !== "string") limit = Number(this.window.limit);
    return limit !== undefined && quantity + Number(this.#leave) > limit;
  }

  #count(quantity: number, now: number): void {
    // Calls that can never be allowed do not make batches larger.
    if (!this.#isTooMuch(quantity, now)) this.#demand.asked += quantity;
  }

  /** Stops spending the batches that have ended. Returns whether there were any. */
  #dropEnded(now: number): boolean {
    if (this.#batches.length === 0) return false;
    const wall = this.#clock.wall();
    const ended = this.#batches.filter((batch) => hasEnded(batch, now, wall));
    if (ended.length === 0) return false;
    this.#batches = this.#batches.filter((batch) => !ended.includes(batch));
    for (const batch of ended) this.#settle(batch);
    return true;
  }

  #settle(batch: Batch): void {
    if (batch.id !== null) this.#settling.push(batch);
  }

  /** Requests what a take needs. The caller tries the take again after the next round. */
  want(quantity: number, isCounted = false): void {
    if (this.#closing) throw new Closed("the local limit was closed");
    this.#refuseSemaphore();
    if (!isCounted) this.#count(quantity, this.#clock.monotonic());
    this.#wanted = Math.max(this.#wanted, quantity);
    this.#wake();
  }

  /** Settles what is held, and requests nothing more. */
  close(): void {
    this.#closing = true;
    if (this.isSettled) return;
    this.#retryAt = -Infinity;
    this.#endRound();
    this.#wake();
  }

  /** True if nothing is held or being settled. */
  get isSettled(): boolean {
    const unsettled = [this.#batches, this.#settling, this.#lost, this.#forced];
    return !this.#underWay && unsettled.every(({ length }) => length === 0);
  }

  // Rounds.

  #aheadMs(): number {
    return Math.min(AHEAD_ROUND_TRIPS * this.#roundTripMs + AHEAD_MS, this.leaseMs * MAX_AHEAD);
  }

  /** Returns what is to be sent now; undefined if there is nothing. */
  nextRound(): Round | undefined {
    const now = this.#clock.monotonic();
    const wall = this.#clock.wall();
    this.#demand.update(now);
    this.#dropEnded(now);
    const isIdle = now - this.#demand.askedAt >= this.leaseMs;
    if (this.#closing || (isIdle && this.#wanted === 0)) {
      for (const batch of this.#batches.splice(0)) this.#settle(batch);
    }
    const request = this.#nextRequest(now, isIdle);
    const items: Item[] = [];
    if (request !== undefined || now >= this.#retryAt) {
      const isDue = ({ againAt }: LostReservation) => this.#closing || againAt === undefined || now >= againAt;
      items.push(...this.#lost.filter(isDue), ...this.#settling, ...this.#forced);
    }
    if (request !== undefined) items.push(request);
    if (items.length === 0) {
      this.#endRound();
      return undefined;
    }
    this.#settling = [];
    this.#forced = [];
    this.#lost = this.#lost.filter((lost) => !items.includes(lost));
    this.#wanted = 0;
    this.#underWay = true;
    const commands = items.map((item) => this.#command(item));
    return { sentAt: now, wallSentAt: wall, items, commands };
  }

  #command(item: Item): Word[] {
    const { key, window } = this;
    if (item.kind === "lost") return ["RL.RELEASE", key, item.id];
    if (item.kind === "batch") {
      const [id, spent] = [item.id as string, spentOf(item)];
      return spent > 0 ? ["RL.APPLY", key, id, `${spent}`] : ["RL.RELEASE", key, id];
    }
    const { quantity } = item;
    if (item.kind === "force") return ["RL.WINDOW", key, ...limitCallWords(window, quantity, { force: true }), "MS"];
    const options = { leave: this.#leave, lease: this.leaseMs, id: item.id, atmost: !item.exactly };
    return ["RL.ACQUIRE", key, ...limitCallWords(window, quantity, options), "COUNTLAPSED", "MS"];
  }

  #endRound(): void {
    // The calls that wait have what they need by now, or will not get it.
    if (this.#wanted > 0) [this.#wanted, this.error] = [0, undefined];
  }

  #nextRequest(now: number, isIdle: boolean): Request | undefined {
    if (this.#closing || this.#isSemaphore) return undefined;
    const left = this.#left();
    if (this.#wanted <= left) return this.#isNeededSoon(left, now, isIdle) ? this.#request(0) : undefined;
    if (this.#limit !== undefined && this.#wanted + Number(this.#leave) > this.#limit) {
      // It is the limit of a policy, which may be higher by now.
      return this.#request(this.#wanted, true);
    }
    const isRest = this.#short > 0;
    this.#short = 0;
    return this.#request(this.#wanted - left, isRest);
  }

  /** Returns whether to fetch the next batch while the last one is being spent. */
  #isNeededSoon(left: number, now: number, isIdle: boolean): boolean {
    const deniedUntil = this.#denial?.until ?? -Infinity;
    if (isIdle || this.#expected() < 1 || this.#isFull || now < Math.max(deniedUntil, this.#retryAt)) return false;
    const end = this.#batches.reduce((latest, { until }) => Math.max(latest, until), now);
    return left <= this.#low() || end - now <= this.#aheadMs();
  }

  /** Returns the quantity that is expected to be spent until the next batch arrives. */
  #low(): number {
    return Math.floor(this.#demand.rate * this.#aheadMs());
  }

  /** Returns the quantity that is expected to be asked for within half a lease. */
  #expected(): number {
    return (this.#demand.rate * this.leaseMs) / 2;
  }

  #request(needed: number, exactly = false): Request {
    this.#requests += 1;
    const quantity = exactly ? needed : batchSize(this.#expected(), needed, this.#limit, this.#reservations);
    return { kind: "request", id: `${this.#prefix}-${this.#requests}`, quantity, needed, exactly };
  }

  /** Returns when nextRound() should be called next if wake() is not called before; undefined if it need not. */
  nextAt(): number | undefined {
    const now = this.#clock.monotonic();
    const times = this.#lost.map(({ againAt }) => againAt ?? this.#retryAt);
    if (this.#settling.length + this.#forced.length > 0) times.push(Math.max(now, this.#retryAt));
    if (this.#batches.length > 0) {
      // A batch may end earlier by the wall clock. take() reads that clock, so nothing more is spent then.
      const ends = this.#batches.map(({ until }) => until);
      const soon = Math.max(...ends) - this.#aheadMs();
      times.push(Math.min(...ends), this.#demand.askedAt + this.leaseMs, ...(soon > now ? [soon] : []));
    }
    return times.length === 0 ? undefined : Math.min(...times);
  }

  // The outcome of a round.

  /** Reads the replies to a round, error replies among them. If one cannot be read, all of them count as lost. */
  receive(round: Round, replies: readonly unknown[]): void {
    let results: (Error | Reply | number)[];
    try {
      results = round.items.map((item, at) => readReplyTo(item, replies[at]));
    } catch (error) {
      this.fail(round, error, true);
      return;
    }
    const now = this.#clock.monotonic();
    this.#roundTripMs += (now - round.sentAt - this.#roundTripMs) / 8;
    this.error = undefined;
    round.items.forEach((item, at) => {
      const result = results[at];
      if (result instanceof Error) {
        this.error = result;
        if (item.kind === "batch") this.#keepRefused(item, result, now);
        else if (this.#closing && item.kind !== "request") this.refused = result;
      } else if (item.kind === "lost") {
        if (result === 0 && item.againAt === undefined) {
          this.#lost.push({ kind: "lost", id: item.id, againAt: now + this.leaseMs + LOST_MS });
        }
      } else if (item.kind === "batch") {
        const quantity = spentOf(item);
        if (result === 0 && quantity > 0 && !item.tried && this.#isHeld(item, now)) {
          this.#forced.push({ kind: "force", quantity });
        }
      } else if (item.kind === "request") {
        this.#read(round, item, result as Reply, now);
      }
    });
    if (this.#isSemaphore) {
      // Reservations of a semaphore can only be released.
      for (const { id } of [...this.#batches.splice(0), ...this.#settling.splice(0)]) {
        if (id !== null) this.#lost.push({ kind: "lost", id });
      }
    }
    this.#underWay = false;
  }

  /** Returns whether the reservation of a batch cannot have ended by itself. */
  #isHeld({ until, wallUntil }: Batch, now: number): boolean {
    const afterSpendingMs = this.heldMs - this.#spendableMs;
    return now < until + afterSpendingMs && this.#clock.wall() < wallUntil + afterSpendingMs;
  }

  /** Decides about a batch that could not be settled because of an error reply. */
  #keepRefused(batch: Batch, error: Error, now: number): void {
    if (typeof this.window === "string" && codeOf(error) === "ERR") {
      // A correct RL.APPLY replies ERR only if the reservation is a semaphore's.
      this.#isSemaphore = true;
      this.#settling.push(batch);
    } else if (spentOf(batch) === 0) {
      this.#lost.push({ kind: "lost", id: batch.id as string });
    } else if (this.#closing) {
      this.refused = error;
    } else if (this.#isHeld(batch, now)) {
      // Such as READONLY of a server that became a replica. What was spent is settled later, or counted when the lease ends.
      this.#settling.push(batch);
      this.#retryAt = now + RETRY_MS;
    }
  }

  /** Reads the reply to a request. */
  #read(round: Round, request: Request, reply: Reply, now: number): void {
    const granted = request.exactly ? (reply.allowed ? request.quantity : 0) : (reply.granted ?? 0);
    this.#limit = reply.limit;
    this.#limitUntil = now + DENIAL_MS;
    if (!request.exactly) this.#reservations = Math.max(1, reply.reservations ?? 0);
    this.#remaining = reply.remaining;
    this.#resetMs = reply.resetAfterMs;
    this.#isFull = granted < request.quantity;
    // The next request of a call that needs more is for all of the rest.
    this.#short = granted > 0 ? Math.max(0, request.needed - granted) : 0;
    if (!reply.allowed) {
      // With ATMOST, even 1 was denied.
      const short = request.exactly ? request.quantity : 1;
      this.#denial = { reply, short, at: now, until: now + Math.min(DENIAL_MS, reply.retryAfterMs ?? DENIAL_MS) };
    } else if (granted > 0) {
      this.#hold(round, request, reply, granted, now);
    }
  }

  #hold(round: Round, request: Request, reply: Reply, granted: number, now: number): void {
    const batch: Batch = {
      kind: "batch",
      id: reply.id === null ? null : request.id,
      granted,
      left: granted,
      until: round.sentAt + this.#spendableMs,
      wallUntil: round.wallSentAt + this.#spendableMs,
      low: this.#isFull ? 0 : Math.min(granted - 1, this.#low()),
      tried: false,
    };
    this.#denial = undefined;
    this.#late = hasEnded(batch, now, this.#clock.wall()) ? this.#late + 1 : 0;
    if (this.#late === MAX_LATE) {
      this.#late = 0;
      this.error = new DeadlinePassed(`no batch arrived within its lease of ${this.leaseMs} ms`);
    }
    if (this.#isTooMuch(request.needed, now)) {
      // It was for a call that can never be allowed.
      this.#settle(batch);
      return;
    }
    for (const older of this.#batches) older.low = 0;
    this.#batches.push(batch);
  }

  /** Records that a round got no replies. `isSent` is whether the server may have executed it. */
  fail(round: Round, error: unknown, isSent: boolean): void {
    this.error = error;
    this.#retryAt = this.#clock.monotonic() + RETRY_MS;
    for (const item of round.items) {
      if (item.kind === "batch") {
        item.tried ||= isSent;
        this.#settling.push(item);
      } else if (item.kind === "lost") {
        this.#lost.push(item);
      } else if (item.kind === "force") {
        // If it was sent, it may have been counted.
        if (!isSent) this.#forced.push(item);
      } else if (isSent) {
        this.#lost.push({ kind: "lost", id: item.id });
      }
    }
    this.failures += 1;
    this.#underWay = false;
  }
}
