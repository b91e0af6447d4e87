/**
 * The windows of the adapters. The stores that they replace count every hit, allowed or not, and leave the decision to their
 * caller. So an adapter counts in a window whose limit is never reached, and computes the count from what remains. A window
 * starts with its first hit (FIXED FROM first), like a counter of INCR with EXPIRE.
 */

import { checkOptions, quote } from "../check.js";
import type { Client } from "../clients.js";
import { Unreachable } from "../errors.js";
import { Limiter, type Limits } from "../limiter.js";
import type { Window } from "../limits.js";
import type { Reply } from "../replies.js";

/** A client of node-redis or ioredis, or a limiter, or an object with a limiter's methods. */
export type ClientOrLimits = Client | Limits;

/** The limiter of each client. Programs make many stores with one client, and each limiter opens a connection. */
const limiters = new WeakMap<Client, Limiter>();

/** Returns the limiter to ask. If it is made from a client, it throws while Redis cannot be reached, as the stores do. */
export function limiterOf(clientOrLimits: ClientOrLimits): Limits {
  if (typeof (clientOrLimits as Partial<Limits> | undefined)?.throttle === "function") return clientOrLimits as Limits;
  const client = clientOrLimits as Client;
  let limiter = typeof client === "object" && client !== null ? limiters.get(client) : undefined;
  if (limiter === undefined) {
    limiter = new Limiter(client);
    limiters.set(client, limiter);
  }
  return limiter;
}

/** Returns the prefix in the options of a store. */
export function prefixOf(store: string, options: { prefix?: string | undefined }, usual: string): string {
  checkOptions(store, options, ["prefix"]);
  const { prefix = usual } = options;
  if (typeof prefix !== "string") throw new TypeError(`prefix must be a string, not ${quote(prefix)}`);
  return prefix;
}

/** A limit that is never reached. Twice this number is still exact in a double. */
export const BEYOND = 2 ** 51;

/** The longest period of the server, 100 years, for windows without an end. */
export const NEVER = "36525d";

/** Returns a window that only counts. With a period of 0 it never ends. */
export function counting(periodMs: number): Window {
  return { limit: BEYOND, period: periodMs > 0 ? `${Math.ceil(periodMs)}ms` : NEVER, fixed: true, start: "first" };
}

/** Returns the count of a window. If Redis could not be reached and the call was allowed, it is the quantity of the call. */
export function countOf(reply: Reply, quantity: number): number {
  if (reply.reachable) return reply.limit - reply.remaining;
  if (!reply.allowed) throw new Unreachable("Redis cannot be reached, and the limiter denies then");
  return quantity;
}

/** Takes back all that a window has counted, so that its key is gone. Unlike DEL, it needs no right to delete keys. */
export async function clear(limiter: Limits, key: string): Promise<void> {
  const reply = await limiter.window(key, counting(0), { quantity: -BEYOND });
  if (!reply.reachable) throw new Unreachable("Redis cannot be reached");
}
