/**
 * Leases: takes that are decided in the process. A batch of the limit is reserved (RL.ACQUIRE ATMOST COUNTLAPSED) and spent
 * here while its lease lasts. What was spent of it is counted with RL.APPLY. What a process does not settle before it dies
 * the server counts as spent, so that no period ever has more than the limit, whatever dies.
 *
 *     reserve        spend, without the server        settle
 *     |--------------------------------------|---|
 *     ACQUIRE 20     take take take .. take    ^   APPLY 17
 *                                              the margin: the lease ends on the server, not here
 *
 * Invariants: a unit is spent only if the clock, read first, says that the lease lasts; a batch is taken out of the list
 * before it is settled, so nothing is spent of it afterwards; an APPLY is sent with the same units each time.
 */

import { countSpent, leaseBatch, settleBatch, type Batch, type Call, type Key } from "./calls.js";
import { checkOptions, checkText, integer, shown, toMilliseconds } from "./check.js";
import { DeadlinePassed, isErrorReply } from "./errors.js";
import { checkWindow, isSemaphore, type Duration, type Integer, type Policy, type Window } from "./limits.js";
import { randomName } from "./random.js";
import type { Reply } from "./replies.js";

/** Options of Limiter.local. */
export interface LocalOptions {
  /** How long a batch may be spent in the process, from 20 ms on. Default "100ms". */
  lease?: Duration | undefined;
  /** How much is kept in reserve for others. Default 0. */
  leave?: Integer | undefined;
}

/** How a Local reaches the server. */
export interface Port {
  /** Whether a call would be answered without the network. */
  isAway(): boolean;
  ask<T>(call: Call<T>): Promise<T>;
  /** The answer to a take that the server did not answer; throws what is not about the connection. */
  fallback(quantity: number, error: unknown): Reply | Promise<Reply>;
  closed(local: Local): void;
}

/** The clocks, in milliseconds. A test has its own. */
export interface Clock {
  /** Never goes back, and may stand still while the machine sleeps. */
  monotonic(): number;
  wall(): number;
  /** Calls back after so long, and keeps no program running; the answer calls it off. */
  after(ms: number, callback: () => void): () => void;
}

const CLOCK: Clock = {
  monotonic: () => performance.now(),
  wall: () => Date.now(),
  after: (ms, callback) => {
    const timer = setTimeout(callback, ms).unref();
    return () => clearTimeout(timer);
  },
};

/** The shortest lease: below it too little would be left of it, as it is given up early. */
export const LEAST_LEASE_MS = 20;
/** The part of the lease at its end that is not used, and its least length: clocks differ in speed. */
export const MARGIN = 0.1;
export const LEAST_MARGIN_MS = 2;
/** The longest that a denial is remembered: others may give back before its retry_after. */
export const DENIAL_MS = 100;
/** The pause before what was not answered is settled again. */
export const RETRY_MS = 100;
/**
 * A reservation whose answer was lost is given back at once, and once more so long after its lease: the command may have been
 * carried out after the first time.
 */
export const LOST_MS = 1000;
/** The next batch is fetched so many round trips and so long before it is needed, and at most that part of a lease before. */
export const AHEAD_ROUND_TRIPS = 2;
export const AHEAD_MS = 2;
export const AHEAD_MOST = 0.25;
/** Demand is a moving average over so many leases. */
const DEMAND_LEASES = 1;
/** So many batches wait to be settled at most. An outage leaves a few. */
const MOST_UNSETTLED = 1000;
/** So often in a row a batch may arrive when its lease is over. */
const MOST_LATE = 3;

/**
 * How much is asked for: what is `expected` to be spent within half a lease, and at least what is `needed`. It is no more than
 * the limit, nor than twice the even part of each of the `reservations` in the key. Before the first answer (`limit` is null)
 * nobody knows how many there are: then it is what is needed.
 */
export function batchSize(expected: number, needed: number, limit: number | null, reservations: number): number {
  if (limit === null) return Math.max(1, needed);
  const most = Math.floor((2 * limit) / Math.max(1, reservations));
  return Math.max(1, needed, Math.min(Math.ceil(expected), most, limit));
}

/** A reserved batch while it is spent. */
interface HeldBatch {
  /** Null if the server reserved nothing: a policy's SHADOW. */
  id: string | null;
  left: number;
  spent: number;
  /** When it was asked for, by both clocks. */
  began: number;
  beganWall: number;
  /** It may be spent before both. */
  end: number;
  endWall: number;
}

/** What is to be settled. 0 units are released. */
interface Unsettled {
  id: string;
  units: number;
  began: number;
  beganWall: number;
  /** The server may have it already, as an answer was lost. */
  mayBeSettled: boolean;
  /** How often it is released again if it is not held: its RL.ACQUIRE may arrive late. */
  again: number;
  notBefore: number;
  isUnderWay: boolean;
}

interface Waiter {
  quantity: number;
  resolve: (reply: Reply | Promise<Reply>) => void;
  reject: (error: unknown) => void;
  late: number;
}

/** A denial while it is remembered. */
interface Denial {
  limited: Reply["limited"];
  /** How much beyond what is held was denied. */
  needed: number;
  until: number;
  /** When to try again; null if it can never be. */
  retryAt: number | null;
}

/** The length of a sliding window, or 0 if it is not known here. */
function slidingMs(window: Window | Policy): number {
  if (typeof window === "string" || window.fixed) return 0;
  const { period } = window;
  if (typeof period === "number") return period * 1000;
  if (/^\d+$/.test(period)) return Number(period) * 1000;
  return /^\d+(ms|s|min|h|d|w)$/i.test(period) ? toMilliseconds("period", period) : 0;
}

function checkLease(lease: Duration): number {
  const ms = toMilliseconds("lease", lease);
  if (ms < LEAST_LEASE_MS) throw new RangeError(`lease must be from ${LEAST_LEASE_MS} ms on, not ${shown(lease)}`);
  return ms;
}

/** A limit whose takes are decided in the process, see Limiter.local. */
export class Local {
  readonly #port: Port;
  readonly #key: Key;
  readonly #window: Window | Policy;
  readonly #clock: Clock;
  readonly #leaseMs: number;
  readonly #leave: Integer;
  /** How long a batch may be spent, from before it was asked for. */
  readonly #usableMs: number;
  /** For so long after it was asked for, a reservation cannot have ended by itself. */
  readonly #heldMs: number;
  readonly #name = randomName();
  #count = 0;

  /** Oldest first. */
  #held: HeldBatch[] = [];
  #unsettled: Unsettled[] = [];
  #waiters: Waiter[] = [];
  #denial: Denial | undefined;
  #fetching: Promise<void> | undefined;
  #settling = new Set<Promise<void>>();
  #closing: Promise<void> | undefined;
  #broken: Error | undefined;
  #cancelTimer: (() => void) | undefined;
  #timerAt = Infinity;

  /** Units asked for since the demand was measured. */
  #asked = 0;
  #lastAsked = -Infinity;
  #measured: number;
  /** Units asked for in a millisecond. */
  #demand = 0;
  #roundTripMs = 1;
  /** After a call that was not answered nothing is fetched ahead for a while. */
  #failedAt = -Infinity;
  /** The next batch is fetched when so much or less is held. */
  #low = 0;

  /** As the server last told. */
  #limit: number | null = null;
  #remaining = 0;
  #resetAt = 0;
  #reservations = 1;

  constructor(port: Port, key: Key, window: Window | Policy, options: LocalOptions = {}, clock: Clock = CLOCK) {
    checkText("key", key);
    checkWindow("local", window);
    checkOptions("local", options, ["lease", "leave"]);
    const { lease = "100ms", leave = 0 } = options;
    integer("leave", leave);
    if (isSemaphore(window)) throw new RangeError("local takes a window with a period; 0 is a semaphore");
    this.#leaseMs = checkLease(lease);
    this.#usableMs = this.#leaseMs - Math.max(this.#leaseMs * MARGIN, LEAST_MARGIN_MS);
    this.#heldMs = this.#leaseMs + slidingMs(window);
    [this.#port, this.#key, this.#window, this.#leave, this.#clock] = [port, key, window, leave, clock];
    this.#measured = clock.monotonic();
    // What the server would refuse is refused now.
    leaseBatch(key, window, 1, { leave, leaseMs: this.#leaseMs, id: this.#name, atmost: true });
  }

  /**
   * Decides at once, without the server; undefined if it must be asked, which is begun. `limit`, `remaining` and
   * `resetAfterMs` are as the server last told.
   */
  tryTake(quantity = 1): Reply | undefined {
    this.#check(quantity);
    const reply = this.#decide(quantity);
    if (reply === undefined) this.#fetch(quantity);
    else this.#asked += quantity;
    return reply;
  }

  /** Decides in the process if it can, else asks the server. */
  async take(quantity = 1): Promise<Reply> {
    this.#check(quantity);
    this.#asked += quantity;
    const reply = this.#decide(quantity);
    if (reply !== undefined) return reply;
    return new Promise((resolve, reject) => {
      this.#waiters.push({ quantity, resolve, reject, late: 0 });
      this.#fetch(quantity);
    });
  }

  /** Settles what is held, and resolves when the server has answered or cannot be reached. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  /** Forgets what is held, as the connections are closed: it counts as spent. */
  drop(): void {
    this.#closing ??= Promise.resolve();
    this.#cancelTimer?.();
    this.#held = [];
    this.#unsettled = [];
  }

  #check(quantity: number): void {
    if (!Number.isSafeInteger(quantity) || quantity < 1) {
      throw new RangeError(`quantity must be a whole number from 1 on, not ${shown(quantity)}`);
    }
    if (this.#closing !== undefined) throw new Error("the local limit was closed");
    if (this.#broken !== undefined) throw this.#broken;
  }

  /** The clocks come first: a unit is spent at their reading. */
  #decide(quantity: number): Reply | undefined {
    const now = this.#clock.monotonic();
    const wall = this.#clock.wall();
    this.#lastAsked = now;
    let left = 0;
    let hasEnded = false;
    for (const batch of this.#held) {
      if (now < batch.end && wall < batch.endWall) left += batch.left;
      else hasEnded = true;
    }
    if (hasEnded) this.#settleEnded(now, wall);
    if (left >= quantity) {
      this.#spend(quantity);
      left -= quantity;
      if (left <= this.#low) this.#refill(now);
      return this.#reply(0, left, null, now);
    }
    const denial = this.#denial;
    if (denial === undefined || now >= denial.until || quantity - left < denial.needed) return undefined;
    const retryAfter = denial.retryAt === null ? null : Math.max(1, Math.ceil(denial.retryAt - now));
    return this.#reply(denial.limited, left, retryAfter, now);
  }

  #reply(limited: Reply["limited"], left: number, retryAfterMs: number | null, now: number): Reply {
    return {
      allowed: limited === 0,
      limited,
      limit: this.#limit ?? 0,
      remaining: this.#remaining + left,
      retryAfterMs,
      resetAfterMs: Math.max(0, Math.ceil(this.#resetAt - now)),
      granted: null,
      reservations: null,
      id: null,
      waitMs: null,
      reachable: true,
    };
  }

  /** Spends so much of what is held, the oldest first. */
  #spend(quantity: number): void {
    let wanted = quantity;
    let isSpent = false;
    for (const batch of this.#held) {
      const taken = Math.min(wanted, batch.left);
      batch.left -= taken;
      batch.spent += taken;
      wanted -= taken;
      isSpent ||= batch.left === 0;
      if (wanted === 0) break;
    }
    if (!isSpent) return;
    this.#settleWhere((batch) => batch.left === 0);
    // Sent at the end of this turn, together with the next batch if one is fetched.
    queueMicrotask(() => this.#flush());
  }

  #settleWhere(isOver: (batch: HeldBatch) => boolean): void {
    const over = this.#held.filter(isOver);
    this.#held = this.#held.filter((batch) => !isOver(batch));
    for (const { id, spent, began, beganWall } of over) {
      if (id !== null) this.#toSettle({ id, units: spent, began, beganWall, again: 0 });
    }
  }

  #settleEnded(now: number, wall: number): void {
    this.#settleWhere((batch) => now >= batch.end || wall >= batch.endWall);
    queueMicrotask(() => this.#flush());
  }

  #toSettle(given: Pick<Unsettled, "id" | "units" | "began" | "beganWall" | "again">): void {
    if (this.#unsettled.length >= MOST_UNSETTLED) this.#unsettled.shift();
    this.#unsettled.push({ ...given, mayBeSettled: false, notBefore: 0, isUnderWay: false });
  }

  /** Fetches the next batch while the old one is spent, if it is expected to be spent as well. */
  #refill(now: number): void {
    if (this.#fetching !== undefined || this.#closing !== undefined) return;
    if (now < this.#failedAt + RETRY_MS || (this.#denial !== undefined && now < this.#denial.until)) return;
    this.#measure(now);
    if (now - this.#lastAsked < this.#leaseMs && this.#expected() >= 1 && !this.#port.isAway()) this.#fetch(1);
  }

  /** Brings the moving average up to date. */
  #measure(now: number): void {
    const passed = now - this.#measured;
    const averagedMs = DEMAND_LEASES * this.#leaseMs;
    const kept = Math.exp(-passed / averagedMs);
    const recent = passed > 0 ? (this.#asked / passed) * (1 - kept) : this.#asked / averagedMs;
    this.#demand = this.#demand * kept + recent;
    this.#asked = 0;
    this.#measured = now;
    const aheadMs = Math.min(AHEAD_ROUND_TRIPS * this.#roundTripMs + AHEAD_MS, this.#leaseMs * AHEAD_MOST);
    this.#low = Math.floor(this.#demand * aheadMs);
  }

  /** What is expected to be asked for within half a lease. */
  #expected(): number {
    return (this.#demand * this.#leaseMs) / 2;
  }

  /**
   * What is expected within half a lease, whoever waits: those who pile up while the server stalls are served batch by batch,
   * as a batch for all of them would take what others need.
   */
  #batchSize(needed: number): number {
    return batchSize(this.#expected(), needed, this.#limit, this.#reservations);
  }

  /** Asks for a batch unless one is asked for already. `exactly` no less than what is needed. */
  #fetch(quantity: number, exactly = false): void {
    if (this.#fetching !== undefined) return;
    const began = this.#clock.monotonic();
    const beganWall = this.#clock.wall();
    this.#measure(began);
    const needed = Math.max(1, quantity - this.#left(began, beganWall));
    const asked = exactly ? needed : this.#batchSize(needed);
    const id = `${this.#name}-${(this.#count += 1)}`;
    const isSent = !this.#port.isAway();
    this.#flush();
    const given = { leave: this.#leave, leaseMs: this.#leaseMs, id, atmost: !exactly };
    this.#fetching = this.#port.ask(leaseBatch(this.#key, this.#window, asked, given)).then(
      (batch) => {
        this.#fetching = undefined;
        this.#received(batch, { began, beganWall, asked, needed: exactly ? needed : 1 });
      },
      (error: unknown) => {
        this.#fetching = undefined;
        // Its answer was lost, so it may be reserved.
        if (isSent && !isErrorReply(error)) this.#toSettle({ id, units: 0, began, beganWall, again: 1 });
        this.#arm();
        for (const { quantity: each, resolve, reject } of this.#waiters.splice(0)) {
          try {
            resolve(this.#port.fallback(each, error));
          } catch (thrown) {
            reject(thrown);
          }
        }
      },
    );
  }

  #left(now: number, wall: number): number {
    return this.#held.reduce((sum, { left, end, endWall }) => (now < end && wall < endWall ? sum + left : sum), 0);
  }

  #received(
    { reply, granted, reservations }: Batch,
    call: { began: number; beganWall: number; asked: number; needed: number },
  ): void {
    const now = this.#clock.monotonic();
    const { began, beganWall } = call;
    this.#roundTripMs += (now - began - this.#roundTripMs) / 8;
    [this.#limit, this.#remaining, this.#resetAt] = [reply.limit, reply.remaining, now + reply.resetAfterMs];
    this.#reservations = reservations ?? this.#reservations;
    const units = granted ?? call.asked;
    const end = began + this.#usableMs;
    const isLate = now >= end;
    if (reply.allowed) {
      this.#denial = undefined;
      const batch = { id: reply.id, left: units, spent: 0, began, beganWall, end, endWall: beganWall + this.#usableMs };
      this.#held.push(batch);
      if (isLate) this.#settleEnded(now, this.#clock.wall());
    } else {
      const retryAt = reply.retryAfterMs === null ? null : now + reply.retryAfterMs;
      const until = now + Math.min(reply.retryAfterMs ?? DENIAL_MS, DENIAL_MS);
      this.#denial = { limited: reply.limited, needed: call.needed, until, retryAt };
    }
    this.#arm();
    this.#serve(reply.allowed && units < call.asked, isLate && reply.allowed);
  }

  /** Answers those who wait, and asks again for the first that cannot be answered. */
  #serve(isPartial: boolean, isLate: boolean): void {
    for (let first = this.#waiters.shift(); first !== undefined; first = this.#waiters.shift()) {
      const reply = this.#decide(first.quantity);
      if (reply !== undefined) {
        first.resolve(reply);
        continue;
      }
      first.late = isLate ? first.late + 1 : 0;
      if (first.late < MOST_LATE) {
        const needed = first.quantity - this.#left(this.#clock.monotonic(), this.#clock.wall());
        this.#waiters.unshift(first);
        // What is missing was not to be had: a call for all of it tells the wait.
        this.#fetch(first.quantity, isPartial && needed > 1);
        return;
      }
      const error = new DeadlinePassed(`no batch arrived within its lease of ${this.#leaseMs} ms`);
      const { quantity, resolve, reject } = first;
      try {
        resolve(this.#port.fallback(quantity, error));
      } catch (thrown) {
        reject(thrown);
      }
    }
  }

  /** One timer: for the end of the oldest batch, and for what is to be settled again. */
  #arm(): void {
    if (this.#closing !== undefined) return;
    const now = this.#clock.monotonic();
    let due = Infinity;
    for (const { end } of this.#held) due = Math.min(due, end);
    for (const { isUnderWay, notBefore } of this.#unsettled) if (!isUnderWay) due = Math.min(due, notBefore);
    if (due >= this.#timerAt) return;
    this.#cancelTimer?.();
    this.#timerAt = due;
    this.#cancelTimer = this.#clock.after(Math.max(1, Math.ceil(due - now)), () => {
      this.#timerAt = Infinity;
      this.#onTimer();
    });
  }

  #onTimer(): void {
    const now = this.#clock.monotonic();
    const wall = this.#clock.wall();
    this.#settleWhere((batch) => now >= batch.end || wall >= batch.endWall);
    if (this.#left(now, wall) <= this.#low) this.#refill(now);
    this.#flush();
    this.#arm();
  }

  /** Sends what is to be settled and is not under way. */
  #flush(): void {
    const now = this.#clock.monotonic();
    for (const each of this.#unsettled) {
      if (each.isUnderWay || now < each.notBefore) continue;
      if (this.#port.isAway()) {
        each.notBefore = now + RETRY_MS;
        continue;
      }
      each.isUnderWay = true;
      const settled = this.#settle(each).finally(() => this.#settling.delete(settled));
      this.#settling.add(settled);
    }
    this.#arm();
  }

  async #settle(each: Unsettled): Promise<void> {
    const { id, units, began, beganWall } = each;
    try {
      const isHeld = await this.#port.ask(settleBatch(this.#key, id, units));
      const now = this.#clock.monotonic();
      if (!isHeld && each.again > 0) {
        each.again -= 1;
        [each.isUnderWay, each.notBefore] = [false, now + this.#leaseMs + LOST_MS];
        this.#arm();
        return;
      }
      const passed = Math.max(now - began, this.#clock.wall() - beganWall);
      this.#settled(each);
      // The key was deleted, evicted or lost. What was spent counts all the same.
      if (!isHeld && units > 0 && !each.mayBeSettled && passed < this.#heldMs) {
        await this.#port.ask(countSpent(this.#key, this.#window, units)).catch(() => {});
      }
    } catch (error) {
      const now = this.#clock.monotonic();
      if (isErrorReply(error) && !/^(LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN) /.test(error.message)) {
        this.#settled(each);
        if (error.message.includes("semaphore")) this.#refuse(id, each);
        return;
      }
      [each.isUnderWay, each.mayBeSettled, each.notBefore] = [false, true, now + RETRY_MS];
      // A reservation that has ended by itself needs no settling.
      if (this.#heldMs > this.#leaseMs && now - began > this.#heldMs) this.#settled(each);
      this.#arm();
    }
  }

  #settled(each: Unsettled): void {
    this.#unsettled = this.#unsettled.filter((other) => other !== each);
  }

  /** Only the server knows what a policy is. */
  #refuse(id: string, { began, beganWall }: Unsettled): void {
    this.#broken = new RangeError(`local takes a window with a period; ${shown(this.#window)} is a semaphore`);
    this.#toSettle({ id, units: 0, began, beganWall, again: 0 });
    this.#flush();
  }

  async #close(): Promise<void> {
    this.#cancelTimer?.();
    while (this.#fetching !== undefined) await this.#fetching;
    this.#settleWhere(() => true);
    for (const each of this.#unsettled) each.notBefore = 0;
    this.#flush();
    await Promise.allSettled(this.#settling);
    this.#port.closed(this);
  }
}
