/** Settles what was spent of reservations, until the server has answered. */

import { countSpent, settleBatch } from "./calls.js";
import { codeOf, isErrorReply, servesNobody } from "./errors.js";
import { LOST_MS, RETRY_MS, type Clock, type Port, type Terms } from "./lease.js";
import type { Attempt } from "./transport.js";

/** How often it tries to settle everything at the end. */
const TRIES = 3;

/** A reservation, and when it was asked for, by both clocks. */
export interface Reserved {
  readonly id: string;
  readonly began: number;
  readonly beganWall: number;
}

/** What is to be settled. */
interface Unsettled extends Reserved {
  /** What was spent; 0 units are released. */
  readonly units: number;
  /** What was spent is counted by force, as the reservation is gone. */
  readonly isForced: boolean;
  /** How often it is released again if it is not held: its RL.ACQUIRE may arrive late. */
  releasesLeft: number;
  /** The server may have it already, as an answer was lost. */
  mayBeSettled: boolean;
  /** When it is sent next; Infinity while it is under way. */
  dueAt: number;
}

/** What a settler tells. */
export interface SettlerEvents {
  /** What is due next may have changed. */
  scheduled(): void;
  /** The policy turned out to be a semaphore's: only a release settles its reservations. */
  isSemaphore(): void;
}

export class Settler {
  readonly #port: Port;
  readonly #terms: Terms;
  readonly #clock: Clock;
  readonly #events: SettlerEvents;
  readonly #unsettled = new Set<Unsettled>();
  readonly #underWay = new Set<Promise<void>>();
  #isFinishing = false;
  /** Why something is not settled yet. */
  #trouble: unknown;

  constructor(port: Port, terms: Terms, clock: Clock, events: SettlerEvents) {
    [this.#port, this.#terms, this.#clock, this.#events] = [port, terms, clock, events];
  }

  /** Settles a reservation with what was spent of it, at the next flush. */
  settle(reserved: Reserved, units: number): void {
    this.#add(reserved, units, { isForced: false, releasesLeft: 0 });
  }

  /** Gives a reservation back whose answer was lost: at the next flush, and once more when it has surely arrived. */
  giveBackLost(reserved: Reserved): void {
    this.#add(reserved, 0, { isForced: false, releasesLeft: 1 });
  }

  #add({ id, began, beganWall }: Reserved, units: number, how: Pick<Unsettled, "isForced" | "releasesLeft">): void {
    this.#unsettled.add({ id, began, beganWall, units, ...how, mayBeSettled: false, dueAt: 0 });
  }

  /** When something is to be sent again; Infinity if nothing is. */
  get nextAt(): number {
    let next = Infinity;
    for (const { dueAt } of this.#unsettled) next = Math.min(next, dueAt);
    return next;
  }

  /** Sends what is due. */
  flush(): void {
    const now = this.#clock.monotonic();
    for (const each of [...this.#unsettled]) {
      if (now < each.dueAt) continue;
      if (this.#port.isAway() && !this.#isFinishing) {
        each.dueAt = now + RETRY_MS;
        continue;
      }
      each.dueAt = Infinity;
      const sent = this.#send(each).finally(() => this.#underWay.delete(sent));
      this.#underWay.add(sent);
    }
    this.#events.scheduled();
  }

  /** Sends everything, a few times if need be. Answers why something is not settled; undefined if nothing is left. */
  async finish(): Promise<unknown> {
    this.#isFinishing = true;
    for (let tries = 1; ; tries += 1) {
      for (const each of this.#unsettled) if (each.dueAt < Infinity) each.dueAt = 0;
      this.flush();
      while (this.#underWay.size > 0) await Promise.allSettled(this.#underWay);
      if (this.#unsettled.size === 0) return undefined;
      if (tries === TRIES) return this.#trouble;
      await new Promise<void>((go) => this.#clock.after(RETRY_MS, go, true));
    }
  }

  /** Forgets everything. */
  drop(): void {
    this.#unsettled.clear();
  }

  async #send(each: Unsettled): Promise<void> {
    const { key, window, leaseMs } = this.#terms;
    const { id, units, isForced } = each;
    const attempt: Attempt = { over: false };
    let isDone: boolean;
    try {
      if (isForced) isDone = (await this.#port.ask(countSpent(key, window, units), attempt)).allowed;
      else isDone = await this.#port.ask(settleBatch(key, id, units), attempt);
    } catch (error) {
      if (this.#unsettled.has(each)) this.#failed(each, error, attempt.isSent === true);
      return;
    }
    // It may have been dropped.
    if (!this.#unsettled.has(each)) return;
    if (!isDone && each.releasesLeft > 0) {
      each.releasesLeft -= 1;
      this.#sendAgain(each, leaseMs + LOST_MS);
      return;
    }
    this.#unsettled.delete(each);
    if (!isDone && !isForced && units > 0 && !each.mayBeSettled && !this.#mayHaveEnded(each)) {
      // The key was deleted, evicted or lost. What was spent counts all the same.
      this.#add(each, units, { isForced: true, releasesLeft: 0 });
      this.flush();
    }
  }

  #failed(each: Unsettled, error: unknown, isSent: boolean): void {
    this.#trouble = error;
    if (isErrorReply(error) && !servesNobody(error)) this.#refused(each, error);
    // What was sent may have been counted.
    else if (each.isForced && isSent) this.#unsettled.delete(each);
    else {
      each.mayBeSettled ||= isSent;
      this.#sendAgain(each, RETRY_MS);
    }
  }

  /** An error reply came instead of a settlement. */
  #refused(each: Unsettled, error: Error): void {
    const mayBeSemaphore = typeof this.#terms.window === "string" && codeOf(error) === "ERR";
    if (mayBeSemaphore && !each.isForced && each.units > 0) {
      // The only ERR of an RL.APPLY that is written right: a semaphore's reservation is given back by a release alone.
      this.#unsettled.delete(each);
      this.settle(each, 0);
      this.#events.isSemaphore();
      this.flush();
    } else if (each.isForced || each.units === 0 || this.#isFinishing || this.#mayHaveEnded(each)) {
      this.#unsettled.delete(each);
    } else {
      // Such as by a server that has just become a replica.
      this.#sendAgain(each, RETRY_MS);
    }
  }

  #sendAgain(each: Unsettled, inMs: number): void {
    each.dueAt = this.#clock.monotonic() + inMs;
    this.#events.scheduled();
  }

  /** Whether the reservation may have ended by itself. */
  #mayHaveEnded({ began, beganWall }: Reserved): boolean {
    const passed = Math.max(this.#clock.monotonic() - began, this.#clock.wall() - beganWall);
    return passed >= this.#terms.heldMs;
  }
}
