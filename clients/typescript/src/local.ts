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

import { checkCallOptions, leaseBatch, type Batch, type CallOptions, type Key } from "./calls.js";
import { shown } from "./check.js";
import { Demand } from "./demand.js";
import { DeadlinePassed, isErrorReply, throwIfAborted } from "./errors.js";
import {
  AHEAD_MOST,
  AHEAD_MS,
  AHEAD_ROUND_TRIPS,
  batchSize,
  DENIAL_MS,
  RETRY_MS,
  SYSTEM_CLOCK,
  termsOf,
  type Clock,
  type LocalOptions,
  type Port,
  type Terms,
} from "./lease.js";
import type { Policy, Window } from "./limits.js";
import { randomName } from "./random.js";
import type { Reply } from "./replies.js";
import { Settler } from "./settler.js";
import type { Attempt } from "./transport.js";

/** How many batches in a row may arrive when their leases are over. */
const MOST_LATE = 3;

/** How a Local reaches the server, and reports that it was closed. */
export interface LocalPort extends Port {
  closed(local: Local): void;
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

/** A batch that is asked for, and when, by both clocks. */
interface Asked {
  readonly id: string;
  /** What is to be taken of it and of what is held. */
  readonly quantity: number;
  readonly units: number;
  /** How much of it is missing; with `exactly` all of it or nothing. */
  readonly needed: number;
  readonly exactly: boolean;
  readonly began: number;
  readonly beganWall: number;
}

/** A take that waits for the server. */
interface Waiter {
  quantity: number;
  resolve: (reply: Reply | Promise<Reply>) => void;
  reject: (error: unknown) => void;
  /** How many batches in a row came when their leases were over. */
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

/** A limit whose takes are decided in the process, see Limiter.local. */
export class Local {
  readonly #port: LocalPort;
  readonly #terms: Terms;
  readonly #clock: Clock;
  readonly #settler: Settler;
  readonly #demand: Demand;
  /** What the ids of its reservations begin with. */
  readonly #name = randomName();
  #count = 0;

  /** Oldest first. */
  #held: HeldBatch[] = [];
  #waiters: Waiter[] = [];
  #denial: Denial | undefined;
  #fetching: Promise<void> | undefined;
  #closing: Promise<void> | undefined;
  #broken: Error | undefined;
  #cancelTimer: (() => void) | undefined;
  #timerAt = Infinity;

  #roundTripMs = 1;
  /** After a call that was not answered nothing is fetched ahead for a while. */
  #failedAt = -Infinity;
  /** The next batch is fetched when this much or less is held. */
  #low = 0;

  /** More than this can never be allowed. A policy may be changed, so of a policy it is known for a while only. */
  #most: number;
  #mostUntil: number;
  /** From the server's last reply. */
  #limit: number | null = null;
  #remaining = 0;
  #resetAt = 0;
  #reservations = 1;

  constructor(
    port: LocalPort,
    key: Key,
    window: Window | Policy,
    options: LocalOptions = {},
    clock: Clock = SYSTEM_CLOCK,
  ) {
    this.#port = port;
    this.#terms = termsOf(key, window, options);
    this.#clock = clock;
    this.#most = this.#terms.most ?? Infinity;
    this.#mostUntil = this.#terms.most === null ? -Infinity : Infinity;
    this.#demand = new Demand(this.#terms.leaseMs, clock.monotonic());
    this.#settler = new Settler(port, this.#terms, clock, {
      scheduled: () => this.#arm(),
      isSemaphore: () => this.#break(),
    });
    // What the server would refuse is refused now.
    const { leave, leaseMs } = this.#terms;
    leaseBatch(key, window, 1, { leave, leaseMs, id: this.#name, atmost: true });
  }

  /**
   * Decides at once, without the server; undefined if it must be asked, which is begun. `limit`, `remaining` and
   * `resetAfterMs` are from the server's last reply, and before that the window's limit and 0.
   */
  tryTake(quantity = 1): Reply | undefined {
    this.#check(quantity);
    const reply = this.#decide(quantity);
    if (reply === undefined) this.#fetch(quantity);
    else this.#countDemand(quantity);
    return reply;
  }

  /** Decides in the process if it can, else asks the server. */
  async take(quantity = 1, options: CallOptions = {}): Promise<Reply> {
    const signal = checkCallOptions("take", options);
    this.#check(quantity);
    throwIfAborted(signal);
    this.#countDemand(quantity);
    const reply = this.#decide(quantity);
    if (reply !== undefined) return reply;
    return new Promise((resolve, reject) => {
      const waiter: Waiter = { quantity, resolve, reject, late: 0 };
      this.#waiters.push(waiter);
      if (signal !== undefined) this.#leaveOn(signal, waiter);
      this.#fetch(quantity);
    });
  }

  /** A signal ends the wait of a take. What was fetched for it is there for others, and given back when its lease ends. */
  #leaveOn(signal: AbortSignal, waiter: Waiter): void {
    const { resolve, reject } = waiter;
    const leave = () => {
      this.#waiters = this.#waiters.filter((each) => each !== waiter);
      reject(signal.reason);
    };
    const stayed = () => signal.removeEventListener("abort", leave);
    waiter.resolve = (reply) => (stayed(), resolve(reply));
    waiter.reject = (error) => (stayed(), reject(error));
    signal.addEventListener("abort", leave);
  }

  /**
   * Settles what is held, and resolves when the server has answered. Rejects if it does not, unless `unreachable` says what
   * is answered then: what was held counts when its lease ends.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#cancelTimer?.();
    while (this.#fetching !== undefined) await this.#fetching;
    this.#settleWhere(() => true);
    const trouble = await this.#settler.finish();
    this.#port.closed(this);
    if (trouble !== undefined && !this.#port.isForgiven(trouble)) throw trouble;
  }

  /** Forgets what is held, as the connections are closed: it counts as spent. */
  drop(): void {
    this.#closing ??= Promise.resolve();
    this.#cancelTimer?.();
    this.#held = [];
    this.#settler.drop();
  }

  #check(quantity: number): void {
    if (!Number.isSafeInteger(quantity) || quantity < 1) {
      throw new RangeError(`quantity must be a whole number from 1 on, not ${shown(quantity)}`);
    }
    if (this.#closing !== undefined) throw new Error("the local limit was closed");
    if (this.#broken !== undefined) throw this.#broken;
  }

  /** What can never be allowed makes no batch larger. */
  #countDemand(quantity: number): void {
    if (quantity <= this.#most) this.#demand.add(quantity);
  }

  /** The clocks come first: a unit is spent at their reading. */
  #decide(quantity: number): Reply | undefined {
    const now = this.#clock.monotonic();
    const wall = this.#clock.wall();
    this.#demand.touch(now);
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
    if (quantity > this.#most && now < this.#mostUntil) return this.#reply(1, left, null, now);
    const denial = this.#denial;
    if (denial === undefined || now >= denial.until || quantity - left < denial.needed) return undefined;
    const retryAfter = denial.retryAt === null ? null : Math.max(1, Math.ceil(denial.retryAt - now));
    return this.#reply(denial.limited, left, retryAfter, now);
  }

  #reply(limited: Reply["limited"], left: number, retryAfterMs: number | null, now: number): Reply {
    return {
      allowed: limited === 0,
      limited,
      limit: this.#limit ?? this.#terms.limit ?? 0,
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

  /** Spends what is held, the oldest first. */
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
    if (isSpent) this.#settleSoon((batch) => batch.left === 0);
  }

  /** What is left of the batches that last. */
  #left(now: number, wall: number): number {
    return this.#held.reduce((sum, { left, end, endWall }) => (now < end && wall < endWall ? sum + left : sum), 0);
  }

  #settleEnded(now: number, wall: number): void {
    this.#settleSoon((batch) => now >= batch.end || wall >= batch.endWall);
  }

  /** Settles at the end of this turn, together with the next batch if one is fetched. */
  #settleSoon(isOver: (batch: HeldBatch) => boolean): void {
    this.#settleWhere(isOver);
    queueMicrotask(() => this.#settler.flush());
  }

  #settleWhere(isOver: (batch: HeldBatch) => boolean): void {
    const over = this.#held.filter(isOver);
    this.#held = this.#held.filter((batch) => !isOver(batch));
    for (const { id, spent, began, beganWall } of over) {
      if (id !== null) this.#settler.settle({ id, began, beganWall }, spent);
    }
  }

  /** Fetches the next batch while the old one is spent, if it is expected to be spent as well. */
  #refill(now: number): void {
    if (this.#fetching !== undefined || this.#closing !== undefined) return;
    if (now < this.#failedAt + RETRY_MS || (this.#denial !== undefined && now < this.#denial.until)) return;
    this.#measure(now);
    const isAsked = now - this.#demand.lastAsked < this.#terms.leaseMs;
    if (isAsked && this.#expected() >= 1 && !this.#port.isAway()) this.#fetch(1);
  }

  #measure(now: number): void {
    this.#demand.measure(now);
    const aheadMs = Math.min(AHEAD_ROUND_TRIPS * this.#roundTripMs + AHEAD_MS, this.#terms.leaseMs * AHEAD_MOST);
    this.#low = Math.floor(this.#demand.within(aheadMs));
  }

  /**
   * What is expected within half a lease, whoever waits: those who pile up while the server stalls are served batch by batch,
   * as a batch for all of them would take what others need.
   */
  #expected(): number {
    return this.#demand.within(this.#terms.leaseMs / 2);
  }

  /** Asks for a batch unless one is asked for already. `isAll`: no less than what is needed. */
  #fetch(quantity: number, isAll = false): void {
    if (this.#fetching !== undefined) return;
    const began = this.#clock.monotonic();
    const beganWall = this.#clock.wall();
    this.#measure(began);
    // Of what was too much for a policy nothing less is reserved.
    const isTooMuch = quantity > this.#most;
    const exactly = isAll || isTooMuch;
    const needed = isTooMuch ? quantity : Math.max(1, quantity - this.#left(began, beganWall));
    const units = exactly ? needed : batchSize(this.#expected(), needed, this.#limit, this.#reservations);
    const id = `${this.#name}-${(this.#count += 1)}`;
    const asked: Asked = { id, quantity, units, needed, exactly, began, beganWall };
    const attempt: Attempt = { over: false };
    this.#settler.flush();
    const { key, window, leave, leaseMs } = this.#terms;
    this.#fetching = this.#port
      .ask(leaseBatch(key, window, units, { leave, leaseMs, id: asked.id, atmost: !exactly }), attempt)
      .then(
        (batch) => {
          this.#fetching = undefined;
          this.#received(batch, asked);
        },
        (error: unknown) => {
          this.#fetching = undefined;
          this.#lost(asked, attempt.isSent === true, error);
        },
      );
  }

  /** There was no batch. Who waits is answered in the server's place. */
  #lost(asked: Asked, isSent: boolean, error: unknown): void {
    if (!isErrorReply(error)) {
      this.#failedAt = this.#clock.monotonic();
      // Its answer was lost, so it may be reserved.
      if (isSent) this.#settler.giveBackLost(asked);
    }
    this.#arm();
    for (const waiter of this.#waiters.splice(0)) this.#answerInstead(waiter, error);
  }

  #answerInstead({ quantity, resolve, reject }: Waiter, error: unknown): void {
    try {
      resolve(this.#port.fallback(quantity, error));
    } catch (thrown) {
      reject(thrown);
    }
  }

  #received({ reply, granted, reservations }: Batch, asked: Asked): void {
    const { quantity, units, needed, exactly, began, beganWall } = asked;
    const now = this.#clock.monotonic();
    this.#roundTripMs += (now - began - this.#roundTripMs) / 8;
    [this.#limit, this.#remaining, this.#resetAt] = [reply.limit, reply.remaining, now + reply.resetAfterMs];
    this.#reservations = reservations ?? this.#reservations;
    if (this.#terms.most === null) {
      this.#most = reply.limit - Number(this.#terms.leave);
      this.#mostUntil = now + DENIAL_MS;
    }
    const isTooMuch = quantity > this.#most;
    const left = granted ?? units;
    const { usableMs } = this.#terms;
    const [end, endWall] = [began + usableMs, beganWall + usableMs];
    const isLate = now >= end;
    if (reply.allowed) {
      this.#denial = undefined;
      this.#held.push({ id: reply.id, left, spent: 0, began, beganWall, end, endWall });
      if (isLate) this.#settleEnded(now, this.#clock.wall());
    } else if (!(exactly && isTooMuch)) {
      const retryAt = reply.retryAfterMs === null ? null : now + reply.retryAfterMs;
      const until = now + Math.min(reply.retryAfterMs ?? DENIAL_MS, DENIAL_MS);
      // Where less would have done, even one was denied.
      this.#denial = { limited: reply.limited, needed: exactly ? needed : 1, until, retryAt };
    }
    this.#arm();
    this.#serve(reply.allowed && left < units, isLate && reply.allowed);
    // It was for a take that can never be allowed.
    if (isTooMuch && this.#waiters.length === 0) this.#settleSoon(() => true);
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
        // The rest was not available: a call for all of it returns the wait.
        this.#fetch(first.quantity, isPartial && needed > 1);
        return;
      }
      const late = `no batch arrived within its lease of ${this.#terms.leaseMs} ms`;
      this.#answerInstead(first, new DeadlinePassed(late));
    }
  }

  /** One timer: for the end of the oldest batch, and for what is to be settled again. */
  #arm(): void {
    if (this.#closing !== undefined) return;
    const now = this.#clock.monotonic();
    const due = this.#held.reduce((next, { end }) => Math.min(next, end), this.#settler.nextAt);
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
    this.#settler.flush();
    this.#arm();
  }

  /** Only the server knows what a policy is. */
  #break(): void {
    this.#broken = new RangeError(`local takes a window with a period; ${shown(this.#terms.window)} is a semaphore`);
  }
}
