/** Settles what was spent of reservations, until the server has answered. */

import { countSpent, settleBatch } from "./calls.js";
import { isErrorReply, servesNobody } from "./errors.js";
import { LOST_MS, RETRY_MS, type Clock, type Port, type Terms } from "./lease.js";

/** So many batches wait to be settled at most. An outage leaves a few. */
const MOST_UNSETTLED = 1000;

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
  #unsettled: Unsettled[] = [];
  readonly #underWay = new Set<Promise<void>>();

  constructor(port: Port, terms: Terms, clock: Clock, events: SettlerEvents) {
    [this.#port, this.#terms, this.#clock, this.#events] = [port, terms, clock, events];
  }

  /** Settles a reservation with what was spent of it, at the next flush. */
  settle(reserved: Reserved, units: number): void {
    this.#add(reserved, units, 0);
  }

  /** Gives a reservation back whose answer was lost: at the next flush, and once more when it has surely arrived. */
  giveBackLost(reserved: Reserved): void {
    this.#add(reserved, 0, 1);
  }

  #add({ id, began, beganWall }: Reserved, units: number, releasesLeft: number): void {
    if (this.#unsettled.length >= MOST_UNSETTLED) this.#unsettled.shift();
    this.#unsettled.push({ id, began, beganWall, units, releasesLeft, mayBeSettled: false, dueAt: 0 });
  }

  /** When something is to be sent again; Infinity if nothing is. */
  get nextAt(): number {
    return this.#unsettled.reduce((next, { dueAt }) => Math.min(next, dueAt), Infinity);
  }

  /** Sends what is due. */
  flush(): void {
    const now = this.#clock.monotonic();
    for (const each of this.#unsettled) {
      if (now < each.dueAt) continue;
      if (this.#port.isAway()) {
        each.dueAt = now + RETRY_MS;
        continue;
      }
      each.dueAt = Infinity;
      const sent = this.#send(each).finally(() => this.#underWay.delete(sent));
      this.#underWay.add(sent);
    }
    this.#events.scheduled();
  }

  /** Sends everything, and resolves when it was answered or not. */
  async finish(): Promise<void> {
    for (const each of this.#unsettled) if (each.dueAt < Infinity) each.dueAt = 0;
    this.flush();
    await Promise.allSettled(this.#underWay);
  }

  /** Forgets everything. */
  drop(): void {
    this.#unsettled = [];
  }

  async #send(each: Unsettled): Promise<void> {
    const { id, units } = each;
    let isHeld: boolean;
    try {
      isHeld = await this.#port.ask(settleBatch(this.#terms.key, id, units));
    } catch (error) {
      this.#failed(each, error);
      return;
    }
    if (!isHeld && each.releasesLeft > 0) {
      each.releasesLeft -= 1;
      this.#sendAgain(each, this.#terms.leaseMs + LOST_MS);
      return;
    }
    this.#remove(each);
    if (!isHeld && units > 0 && !each.mayBeSettled && !this.#mayHaveEnded(each)) {
      // The key was deleted, evicted or lost. What was spent counts all the same.
      await this.#port.ask(countSpent(this.#terms.key, this.#terms.window, units)).catch(() => {});
    }
  }

  #failed(each: Unsettled, error: unknown): void {
    if (isErrorReply(error) && !servesNobody(error)) {
      this.#remove(each);
      if (!error.message.includes("semaphore")) return;
      this.settle(each, 0);
      this.#events.isSemaphore();
      this.flush();
      return;
    }
    each.mayBeSettled = true;
    // A reservation that has ended by itself needs no settling.
    const { leaseMs, heldMs } = this.#terms;
    if (heldMs > leaseMs && this.#clock.monotonic() - each.began > heldMs) this.#remove(each);
    this.#sendAgain(each, RETRY_MS);
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

  #remove(each: Unsettled): void {
    this.#unsettled = this.#unsettled.filter((other) => other !== each);
  }
}
