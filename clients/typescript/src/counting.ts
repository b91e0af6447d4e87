/**
 * What the adapters have in common. The stores that they replace count every hit, allowed or not, and leave the decision to
 * their caller. So they count in a window that is never full: its limit is beyond what can be counted, and what is counted
 * is what is missing of it. A window starts with its first hit (FIXED FROM first), as INCR with EXPIRE.
 */

import type { Client } from "./clients.js";
import { Unreachable } from "./errors.js";
import { Limiter, type Limits } from "./limiter.js";
import type { Window } from "./limits.js";
import type { Reply } from "./replies.js";

/** A client of node-redis or ioredis, or a limiter, or an object with a limiter's methods. */
export type ClientOrLimits = Client | Limits;

/** One for each client, as programs make many stores with one client, and a limiter opens a connection. */
const limiters = new WeakMap<Client, Limiter>();

/** The limiter to ask. One that is made here throws while Redis cannot be reached: the adapter's user decides then. */
export function limiterOf(given: ClientOrLimits): Limits {
  if (typeof (given as Partial<Limits> | undefined)?.throttle === "function") return given as Limits;
  const client = given as Client;
  let limiter = typeof given === "object" && given !== null ? limiters.get(client) : undefined;
  if (limiter === undefined) {
    limiter = new Limiter(client);
    limiters.set(client, limiter);
  }
  return limiter;
}

/** Beyond all counts. Twice of it is still a whole number in a double. */
export const BEYOND = 2 ** 51;

/** The longest period of the server: 100 years. It stands for "never". */
export const NEVER = "36525d";

/** A window that counts. 0 ms is without end. */
export function counting(periodMs: number): Window {
  return { limit: BEYOND, period: periodMs > 0 ? `${Math.ceil(periodMs)}ms` : NEVER, fixed: true, start: "first" };
}

/** How much is counted. An answer that was chosen because Redis could not be reached counts what was asked for. */
export function countOf(reply: Reply, quantity: number): number {
  if (reply.reachable) return reply.limit - reply.remaining;
  if (!reply.allowed) throw new Unreachable("Redis cannot be reached, and the limiter denies then");
  return quantity;
}
