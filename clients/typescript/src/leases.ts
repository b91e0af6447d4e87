/**
 * What a process holds of a limit, and how it spends and settles it. No I/O is done here, and no timer is set: see local.ts.
 *
 * A batch is a reservation with COUNTLAPSED: the server holds it until it is settled, or counts it when its lease ends. So it
 * may be spent bit by bit without a call, as long as the clock is read within the lease. What a process does not settle
 * before it dies counts as spent, so that no period ever has more than the limit, whatever dies.
 *
 *     reserve        spend, without the server        settle
 *     |--------------------------------------|---|
 *     ACQUIRE 20     take take take .. take    ^   APPLY 17
 *                                              the margin: the lease ends on the server, not here
 *
 * Invariants: a unit is spent only if the clock, read first, says that the lease lasts; a batch is taken out of the list
 * before it is settled, so nothing is spent of it afterwards; an APPLY is sent with the same units each time.
 */

import { limitCallWords, type Key } from "./calls.js";
import { checkOptions, checkText, integer, leastPeriodMs, quote, toMilliseconds } from "./check.js";
import { codeOf, DeadlinePassed } from "./errors.js";
import {
  checkWindow,
  isSemaphore,
  type Duration,
  type Integer,
  type Policy,
  type Window,
  type Word,
} from "./limits.js";
import { randomName } from "./random.js";
import { replyWith, readId, readIdAndGranted, type Reply } from "./replies.js";

/** Options of Limiter.local. */
export interface LocalOptions {
  /** How long a batch may be spent in the process, from 20 ms on. Default "100ms". */
  lease?: Duration | undefined;
  /** How much is kept in reserve for others. Default 0. */
  leave?: Integer | undefined;
}

/** The clocks, in milliseconds. A test has its own. */
export interface Clock {
  /** Never goes back, and may stand still while the machine sleeps. */
  monotonic(): number;
  wall(): number;
}

/** The shortest lease: below it too little would be left of it, as it is given up early. */
export const LEAST_LEASE_MS = 20;
/** The longest that a denial is remembered: others may give back before its retry_after. */
export const DENIAL_MS = 100;
/** From a settlement that got no answer to the next try. */
export const RETRY_MS = 100;
/**
 * A reservation whose answer was lost is given back at once, and again this long after its lease, as the command may have
 * been carried out in between.
 */
export const LOST_MS = 1000;
/** The part of a lease at its end that is not used, and its least length: clocks differ in speed. */
export const MARGIN = 0.1;
export const LEAST_MARGIN_MS = 2;
/**
 * The next batch is fetched this many round trips plus this many milliseconds before it is needed, and at most this part of
 * a lease before.
 */
export const AHEAD_ROUND_TRIPS = 2;
export const AHEAD_MS = 2;
export const AHEAD_MOST = 0.25;
/** A take is not answered by the server after this many batches in a row that arrived when their leases were over. */
export const MOST_LATE = 3;

/**
 * How much is asked for: what is `expected` to be spent within half a lease, and at least what is `needed`. It is no more
 * than the limit, nor than twice the even part of each of the `reservations` in the key. Before the first answer (`limit` is
 * undefined) their number is unknown, and it is only what is needed.
 */
export function batchSize(expected: number, needed: number, limit: number | undefined, reservations: number): number {
  if (limit === undefined) return Math.max(1, needed);
  const most = Math.floor((2 * limit) / Math.max(1, reservations));
  return Math.max(1, needed, Math.min(Math.ceil(expected), most, limit));
}

/** What one reservation holds. */
interface Batch {
  readonly kind: "batch";
  /** Null: nothing is reserved, as a policy's SHADOW lets everything pass. */
  readonly id: string | null;
  readonly granted: number;
  left: number;
  /** When the process stops spending it, by the monotonic and by the wall clock. */
  readonly until: number;
  readonly wallUntil: number;
  /** The next batch is fetched when this much is left. */
  low: number;
  /** Its settlement was sent and not answered. */
  tried: boolean;
}

/** A reservation that may have been made: its answer was lost. It is released twice. */
interface Lost {
  readonly kind: "lost";
  readonly id: string;
  /** When it is released the second time; undefined before the first. */
  readonly againAt?: number;
}

/** A reservation that is asked for, and how much of it a take waits for. */
interface Asked {
  readonly kind: "asked";
  readonly id: string;
  readonly quantity: number;
  readonly need: number;
  /** All of it or nothing: a denial says when all of it is available. */
  readonly exactly: boolean;
}

/** What was spent of a reservation that the server lost. */
interface Force {
  readonly kind: "force";
  readonly quantity: number;
}

type Item = Lost | Batch | Force | Asked;

/** What is sent together: a command for each item. */
export interface Plan {
  readonly sentAt: number;
  readonly wallSentAt: number;
  readonly items: readonly Item[];
  readonly commands: readonly Word[][];
}

/** How much is asked for: a moving average over a lease. */
class Demand {
  readonly #lease: number;
  /** In a millisecond. */
  rate = 0;
  #updatedAt: number;
  /** What was asked for since. */
  asked = 0;
  /** When something was last asked for. */
  askedAt = -Infinity;

  constructor(lease: number, now: number) {
    this.#lease = lease;
    this.#updatedAt = now;
  }

  /** Brings the average up to date. */
  update(now: number): void {
    // A clock that a test sets may go back.
    const passed = Math.max(0, now - this.#updatedAt);
    const kept = Math.exp(-passed / this.#lease);
    this.rate = this.rate * kept + (passed > 0 ? (this.asked * (1 - kept)) / passed : this.asked / this.#lease);
    this.asked = 0;
    this.#updatedAt = now;
  }
}

/** A denial while it is remembered. */
interface Denial {
  readonly reply: Reply;
  /** How much more than what is held was denied. */
  readonly short: number;
  readonly at: number;
  readonly until: number;
}

const spentOf = ({ granted, left }: Batch): number => granted - left;

/** A batch that was asked for later may end earlier by the wall clock. */
const hasEnded = ({ until, wallUntil }: Batch, now: number, wall: number): boolean => now >= until || wall >= wallUntil;

/** How long a window counts an event at least; 0 for a policy, and for a window of the calendar, which may end at any time. */
function countedMs(window: Window | Policy): number {
  if (typeof window === "string") return 0;
  if (window.fixed && window.start?.toLowerCase() !== "first") return 0;
  return Number(leastPeriodMs(window.period) ?? 0n);
}

/**
 * The batches of one key.
 *
 * A caller tries take(). If that returns nothing, the caller calls want(), and tries again after the next round. What does the
 * I/O sends what plan() returns and reports the outcome with receive() or fail(), until plan() returns nothing. Then it waits
 * until nextAt(), or until wake() is called.
 */
export class Leases {
  readonly key: Key;
  readonly window: Window | Policy;
  readonly leaseMs: number;
  /** How long after it was asked for a reservation cannot have ended by itself. */
  readonly heldMs: number;
  readonly #leave: Integer;
  readonly #clock: Clock;
  /** Is called when plan() has something to do. It returns at once. */
  readonly #wake: () => void;
  readonly #spendableMs: number;
  /** What the ids of its reservations begin with. */
  readonly #prefix = randomName();
  #made = 0;
  /** Oldest first. */
  #batches: Batch[] = [];
  /** To be settled. */
  #done: Batch[] = [];
  #lost: Lost[] = [];
  #forces: Force[] = [];
  /** The most that a take needs which waits for the server. */
  #wanted = 0;
  /** What a take still lacks after the server gave what it had. */
  #short = 0;
  #closing = false;
  /** The policy turned out to be a semaphore's, which only the server knows: nothing more is reserved. */
  #isSemaphore = false;
  /** Goes up with each of the plans that failed. */
  failures = 0;
  /** What went wrong with the last plan. */
  error: unknown;
  #underWay = false;
  #retryAt = -Infinity;
  readonly #demand: Demand;
  #roundTripMs = 1;
  /** Whether the server gave less than was asked for the last time: then nothing is fetched ahead. */
  #isFull = false;
  /** How many batches in a row arrived when their leases were over. */
  #late = 0;
  #denial: Denial | undefined;
  /** From the server's last reply: the limit, the reservations in the key, what is available beyond what is held. */
  #limit: number | undefined;
  /** Until then a policy's limit is believed to be what the server said, as the policy may be changed. */
  #limitUntil = -Infinity;
  #reservations = 1;
  #remaining = 0;
  #resetMs = 0;

  /** TypeError or RangeError for what is no window, or no lease of one. */
  constructor(key: Key, window: Window | Policy, options: LocalOptions, clock: Clock, wake: () => void) {
    checkText("key", key);
    checkWindow("local", window);
    checkOptions("local", options, ["lease", "leave"]);
    const { lease = "100ms", leave = 0 } = options;
    integer("leave", leave);
    if (isSemaphore(window)) throw new RangeError("local takes a window with a period; 0 is a semaphore");
    const leaseMs = toMilliseconds("lease", lease);
    if (leaseMs < LEAST_LEASE_MS) {
      throw new RangeError(`lease must be from ${LEAST_LEASE_MS} ms on, not ${quote(lease)}`);
    }
    [this.key, this.window, this.#leave, this.leaseMs] = [key, window, leave, leaseMs];
    [this.#clock, this.#wake] = [clock, wake];
    this.heldMs = leaseMs + countedMs(window);
    this.#spendableMs = leaseMs - Math.max(leaseMs * MARGIN, LEAST_MARGIN_MS);
    this.#demand = new Demand(leaseMs, clock.monotonic());
    // What no command can say is refused now.
    this.#command({ kind: "asked", id: this.#prefix, quantity: 1, need: 1, exactly: false });
  }

  // Spending.

  /** Decides; undefined if the server must be asked. What is decided counts as demand, unless want() counted it. */
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

  /** Settles a batch that is spent, and has the next one fetched. */
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
        const part = Math.min(rest, batch.left);
        batch.left -= part;
        rest -= part;
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

  /** The answer to a take while `left` is held, and a denial is remembered. */
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

  /** Whether a take can never be allowed. */
  #isTooMuch(quantity: number, now: number): boolean {
    let limit = now < this.#limitUntil ? this.#limit : undefined;
    if (typeof this.window !== "string") limit = Number(this.window.limit);
    return limit !== undefined && quantity + Number(this.#leave) > limit;
  }

  #count(quantity: number, now: number): void {
    // What can never be allowed makes no batch larger.
    if (!this.#isTooMuch(quantity, now)) this.#demand.asked += quantity;
  }

  /** Stops spending what has ended. Answers whether there was any. */
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
    if (batch.id !== null) this.#done.push(batch);
  }

  /** A take waits for the server. It tries again after the next round. */
  want(quantity: number, isCounted = false): void {
    if (this.#closing) throw new Error("the local limit was closed");
    this.#refuseSemaphore();
    if (!isCounted) this.#count(quantity, this.#clock.monotonic());
    this.#wanted = Math.max(this.#wanted, quantity);
    this.#wake();
  }

  /** What is held is to be settled, and nothing more to be asked for. */
  close(): void {
    this.#closing = true;
    if (this.isSettled) return;
    this.#retryAt = -Infinity;
    this.#endRound();
    this.#wake();
  }

  /** Whether nothing is held, and nothing under way. */
  get isSettled(): boolean {
    const kept = [this.#batches, this.#done, this.#lost, this.#forces];
    return !this.#underWay && kept.every(({ length }) => length === 0);
  }

  // Planning.

  #aheadMs(): number {
    return Math.min(AHEAD_ROUND_TRIPS * this.#roundTripMs + AHEAD_MS, this.leaseMs * AHEAD_MOST);
  }

  /** What to send now, if anything. */
  plan(): Plan | undefined {
    const now = this.#clock.monotonic();
    const wall = this.#clock.wall();
    this.#demand.update(now);
    this.#dropEnded(now);
    const isIdle = now - this.#demand.askedAt >= this.leaseMs;
    if (this.#closing || (isIdle && this.#wanted === 0)) {
      for (const batch of this.#batches.splice(0)) this.#settle(batch);
    }
    const asked = this.#nextRequest(now, isIdle);
    const items: Item[] = [];
    if (asked !== undefined || now >= this.#retryAt) {
      const isDue = ({ againAt }: Lost) => this.#closing || againAt === undefined || now >= againAt;
      items.push(...this.#lost.filter(isDue), ...this.#done, ...this.#forces);
    }
    if (asked !== undefined) items.push(asked);
    if (items.length === 0) {
      this.#endRound();
      return undefined;
    }
    this.#done = [];
    this.#forces = [];
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
    // Whoever waits has what it needs by now, or will not get it.
    if (this.#wanted > 0) [this.#wanted, this.error] = [0, undefined];
  }

  /** What to ask the server for. */
  #nextRequest(now: number, isIdle: boolean): Asked | undefined {
    if (this.#closing || this.#isSemaphore) return undefined;
    const left = this.#left();
    if (this.#wanted <= left) return this.#isNeededSoon(left, now, isIdle) ? this.#request(0) : undefined;
    if (this.#limit !== undefined && this.#wanted + Number(this.#leave) > this.#limit) {
      // Of a policy, which may have more by now.
      return this.#request(this.#wanted, true);
    }
    const isRest = this.#short > 0;
    this.#short = 0;
    return this.#request(this.#wanted - left, isRest);
  }

  /** Whether the next batch is to be fetched while the last is spent. */
  #isNeededSoon(left: number, now: number, isIdle: boolean): boolean {
    const deniedUntil = this.#denial?.until ?? -Infinity;
    if (isIdle || this.#expected() < 1 || this.#isFull || now < Math.max(deniedUntil, this.#retryAt)) return false;
    const ends = this.#batches.reduce((last, { until }) => Math.max(last, until), now);
    return left <= this.#low() || ends - now <= this.#aheadMs();
  }

  /** How much is spent until the next batch is there. */
  #low(): number {
    return Math.floor(this.#demand.rate * this.#aheadMs());
  }

  /** What is expected to be asked for within half a lease. */
  #expected(): number {
    return (this.#demand.rate * this.leaseMs) / 2;
  }

  #request(need: number, exactly = false): Asked {
    this.#made += 1;
    const quantity = exactly ? need : batchSize(this.#expected(), need, this.#limit, this.#reservations);
    return { kind: "asked", id: `${this.#prefix}-${this.#made}`, quantity, need, exactly };
  }

  /** When plan() will have something to do by itself; undefined if never. */
  nextAt(): number | undefined {
    const now = this.#clock.monotonic();
    const times = this.#lost.map(({ againAt }) => againAt ?? this.#retryAt);
    if (this.#done.length + this.#forces.length > 0) times.push(Math.max(now, this.#retryAt));
    if (this.#batches.length > 0) {
      // The wall clock may end a batch earlier. Then take() sees it, and nothing more is spent.
      const ends = this.#batches.map(({ until }) => until);
      const soon = Math.max(...ends) - this.#aheadMs();
      times.push(Math.min(...ends), this.#demand.askedAt + this.leaseMs, ...(soon > now ? [soon] : []));
    }
    return times.length === 0 ? undefined : Math.min(...times);
  }

  // The outcome of a plan.

  /** Reads the replies to a plan, error replies among them. */
  receive(plan: Plan, answers: readonly unknown[]): void {
    const now = this.#clock.monotonic();
    this.#roundTripMs += (now - plan.sentAt - this.#roundTripMs) / 8;
    this.error = undefined;
    plan.items.forEach((item, at) => {
      const answer = answers[at];
      if (answer instanceof Error) {
        this.error = answer;
        if (item.kind === "batch") this.#keepRefused(item, answer, now);
      } else if (item.kind === "lost") {
        if (Number(answer) === 0 && item.againAt === undefined) {
          this.#lost.push({ kind: "lost", id: item.id, againAt: now + this.leaseMs + LOST_MS });
        }
      } else if (item.kind === "batch") {
        const quantity = spentOf(item);
        if (Number(answer) === 0 && quantity > 0 && !item.tried && this.#isHeld(item, now)) {
          this.#forces.push({ kind: "force", quantity });
        }
      } else if (item.kind === "asked") {
        this.#read(plan, item, item.exactly ? readId(answer) : readIdAndGranted(answer), now);
      }
    });
    if (this.#isSemaphore) {
      // Only this gives them back.
      for (const { id } of [...this.#batches.splice(0), ...this.#done.splice(0)]) {
        if (id !== null) this.#lost.push({ kind: "lost", id });
      }
    }
    this.#underWay = false;
  }

  /** Whether its reservation cannot have ended by itself. */
  #isHeld({ until, wallUntil }: Batch, now: number): boolean {
    const moreMs = this.heldMs - this.#spendableMs;
    return now < until + moreMs && this.#clock.wall() < wallUntil + moreMs;
  }

  /** An error came instead of a settlement. */
  #keepRefused(batch: Batch, error: Error, now: number): void {
    if (typeof this.window === "string" && codeOf(error) === "ERR") {
      // The only ERR of an RL.APPLY that is written right: the reservation is a semaphore's.
      this.#isSemaphore = true;
      this.#done.push(batch);
    } else if (spentOf(batch) === 0) {
      this.#lost.push({ kind: "lost", id: batch.id as string });
    } else if (this.#isHeld(batch, now) && !this.#closing) {
      // Such as by a server that has just become a replica. What was spent is not given back: it is settled later, or
      // counted when the server finds its lease over.
      this.#done.push(batch);
      this.#retryAt = now + RETRY_MS;
    }
  }

  /** Reads the answer to what was asked for. */
  #read(plan: Plan, asked: Asked, reply: Reply, now: number): void {
    const granted = asked.exactly ? (reply.allowed ? asked.quantity : 0) : (reply.granted ?? 0);
    this.#limit = reply.limit;
    this.#limitUntil = now + DENIAL_MS;
    if (!asked.exactly) this.#reservations = Math.max(1, reply.reservations ?? 0);
    this.#remaining = reply.remaining;
    this.#resetMs = reply.resetAfterMs;
    this.#isFull = granted < asked.quantity;
    // A take that needs more than it got asks for all of the rest.
    this.#short = granted > 0 ? Math.max(0, asked.need - granted) : 0;
    if (!reply.allowed) {
      // If less would have been enough, even 1 was denied.
      const short = asked.exactly ? asked.quantity : 1;
      this.#denial = { reply, short, at: now, until: now + Math.min(DENIAL_MS, reply.retryAfterMs ?? DENIAL_MS) };
    } else if (granted > 0) {
      this.#hold(plan, asked, reply, granted, now);
    }
  }

  #hold(plan: Plan, asked: Asked, reply: Reply, granted: number, now: number): void {
    const batch: Batch = {
      kind: "batch",
      id: reply.id === null ? null : asked.id,
      granted,
      left: granted,
      until: plan.sentAt + this.#spendableMs,
      wallUntil: plan.wallSentAt + this.#spendableMs,
      low: this.#isFull ? 0 : Math.min(granted - 1, this.#low()),
      tried: false,
    };
    this.#denial = undefined;
    this.#late = hasEnded(batch, now, this.#clock.wall()) ? this.#late + 1 : 0;
    if (this.#late === MOST_LATE) {
      this.#late = 0;
      this.error = new DeadlinePassed(`no batch arrived within its lease of ${this.leaseMs} ms`);
    }
    if (this.#isTooMuch(asked.need, now)) {
      // It was for a take that can never be allowed.
      this.#settle(batch);
      return;
    }
    for (const each of this.#batches) each.low = 0;
    this.#batches.push(batch);
  }

  /** There was no answer. `isSent` says whether the server may have been asked. */
  fail(plan: Plan, error: unknown, isSent: boolean): void {
    this.error = error;
    this.#retryAt = this.#clock.monotonic() + RETRY_MS;
    for (const item of plan.items) {
      if (item.kind === "batch") {
        item.tried ||= isSent;
        this.#done.push(item);
      } else if (item.kind === "lost") {
        this.#lost.push(item);
      } else if (item.kind === "force") {
        // It may have been counted.
        if (!isSent) this.#forces.push(item);
      } else if (isSent) {
        this.#lost.push({ kind: "lost", id: item.id });
      }
    }
    this.failures += 1;
    this.#underWay = false;
  }
}
