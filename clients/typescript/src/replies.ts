/** The replies of the commands. */

import type { Reservation } from "./reservation.js";

/** The reply to a call that asks a limit. */
export interface Reply {
  /** Whether limited is 0. */
  allowed: boolean;
  /**
   * 0: allowed. 1: denied. 2, where reservations are asked for: denied because others hold the capacity or wait for it, and
   * may return it.
   */
  limited: 0 | 1 | 2;
  /** The most that is available at once. */
  limit: number;
  /** How much is left after this call. */
  remaining: number;
  /** The wait after which this call would be allowed if no other takes anything. Null if it was allowed, or never can be. */
  retryAfterMs: number | null;
  /** The wait until the limit is unused again. */
  resetAfterMs: number;
  /** What was taken, with atmost. */
  granted: number | null;
  /** How many reservations of the key have a lease that runs, from reserve and acquire with atmost. */
  reservations: number | null;
  /** The id of the reservation, from acquire and reserve; null if nothing was reserved. */
  id: string | null;
  /** The wait after which the caller may go on, with ahead; null if denied. */
  waitMs: number | null;
  /** False if Redis could not be reached, so that `unreachable` decided. */
  reachable: boolean;
}

/** The reply to all: that of the clause that decides, and each clause's own. */
export interface AllReply extends Reply {
  /** The number of the clause that decides, from 1; 0 if Redis could not be reached. */
  clause: number;
  /** Each clause's own reply, in order; empty if Redis could not be reached. */
  answers: Reply[];
  /**
   * The names of the limits that took, in order, at most one of each group. Empty if the call was denied, or Redis could not
   * be reached.
   */
  paid: string[];
  /**
   * Settles all that was reserved; undefined if the call was denied, or no limit reserves. Not enumerable, as it is not part
   * of the reply.
   */
  readonly reservation?: Reservation | undefined;
}

/** A live reservation. */
export interface Held {
  /** Its id. */
  id: string;
  /** How much it holds. */
  quantity: number;
  /** What is left of its lease; 0 of one that has lapsed and counts. */
  leftMs: number;
}

/** The state of a key, see Limiter.info. Fields of the other kind are null. Durations are milliseconds. */
export interface Info {
  /** A bucket of RL.THROTTLE, or a window of RL.WINDOW and RL.ACQUIRE. */
  kind: "bucket" | "window";
  /** A bucket: until it is full. */
  fullInMs: number | null;
  /** A bucket: the debt that force or ahead wrote, as it was last written. */
  debtMs: number | null;
  /** A window: the events that are stored, with those that have left it but are not removed yet. */
  events: number | null;
  /** A window: how many of the events are denied calls. */
  denied: number | null;
  /** A window: the entries of the key. */
  entries: number | null;
  /** A window: the age of the oldest event; null without events. */
  oldestMs: number | null;
  /** A window: the age of the newest event; null without events. */
  newestMs: number | null;
  /** A window: how much is reserved. */
  held: number | null;
  /** A window: in how many reservations. */
  reservations: number | null;
  /** What is left of a ban. */
  banMs: number;
  /** How many calls wait in the key's line. */
  waiting: number;
  /** Until the key expires. */
  ttlMs: number;
}

/** A key that was denied often, see Limiter.top. */
export interface TopKey {
  /** The key; of a long one its first 256 bytes. */
  key: string;
  /** Its database. */
  db: number;
  /** At most `over` too many, and never too few. */
  denials: number;
  /** By how many `denials` may be too many. */
  over: number;
}

/** A policy of the server, and how many calls it allowed and denied. */
export interface PolicyCounts {
  /** Its name, without the @. */
  name: string;
  /** The policy as it is configured, without the name. */
  definition: string;
  /** Calls that were allowed. */
  allowed: number;
  /** Calls that were denied. */
  denied: number;
  /** Calls that its SHADOW let pass. */
  shadowDenied: number;
}

const orNull = (ms: unknown): number | null => (Number(ms) < 0 ? null : Number(ms));
// In Node, bytes are a Buffer.
const text = (id: unknown): string | null => (typeof id === "string" || id instanceof Uint8Array ? String(id) : null);

/** Returns a reply with the fields that every command has. */
export const replyWith = (
  limited: Reply["limited"],
  limit: number,
  remaining: number,
  retryAfterMs: number | null,
  resetAfterMs: number,
): Reply => ({
  allowed: limited === 0,
  limited,
  limit,
  remaining,
  retryAfterMs,
  resetAfterMs,
  granted: null,
  reservations: null,
  id: null,
  waitMs: null,
  reachable: true,
});

export function readReply(reply: unknown): Reply {
  const [limited, limit, remaining, retryAfter, resetAfter] = reply as unknown[];
  const kind = Number(limited) as Reply["limited"];
  return replyWith(kind, Number(limit), Number(remaining), orNull(retryAfter), Number(resetAfter));
}

const sixth = (reply: unknown): unknown => (reply as unknown[])[5];

export const readGranted = (reply: unknown): Reply => ({ ...readReply(reply), granted: Number(sixth(reply)) });
export const readWait = (reply: unknown): Reply => ({ ...readReply(reply), waitMs: orNull(sixth(reply)) });
export const readId = (reply: unknown): Reply => ({ ...readReply(reply), id: text(sixth(reply)) });

export function readIdAndGranted(reply: unknown): Reply {
  const [granted, reservations] = (reply as unknown[]).slice(6);
  return { ...readId(reply), granted: Number(granted), reservations: Number(reservations) };
}

export function readAll(reply: unknown): AllReply {
  const answers = (reply as unknown[])[6] as unknown[];
  // Only the reply of an ACQUIRE clause has a sixth element, its id.
  return { ...readReply(reply), clause: Number(sixth(reply)), answers: answers.map(readId), paid: [] };
}

export function readHeld(reply: unknown): Held[] {
  return (reply as unknown[][]).map(([id, quantity, left]) => ({
    id: String(id),
    quantity: Number(quantity),
    leftMs: Number(left),
  }));
}

/** Returns the fields of a map, which is a flat array in RESP2. */
function fields(reply: unknown): Map<string, unknown> {
  if (reply instanceof Map) return new Map([...reply].map(([name, value]) => [String(name), value]));
  if (!Array.isArray(reply)) return new Map(Object.entries(reply ?? {}));
  return new Map(reply.flatMap((name, at) => (at % 2 === 0 ? [[String(name), reply[at + 1]] as const] : [])));
}

export function readInfo(reply: unknown): Info | null {
  const found = fields(reply);
  if (found.size === 0) return null;
  const number = (name: string): number | null => (found.has(name) ? Number(found.get(name)) : null);
  const age = (name: string): number | null => (found.has(name) ? orNull(found.get(name)) : null);
  return {
    kind: String(found.get("kind")) as Info["kind"],
    fullInMs: number("full_in"),
    debtMs: number("debt"),
    events: number("events"),
    denied: number("denied"),
    entries: number("entries"),
    oldestMs: age("oldest"),
    newestMs: age("newest"),
    held: number("held"),
    reservations: number("reservations"),
    banMs: number("ban") ?? 0,
    waiting: number("waiting") ?? 0,
    ttlMs: number("ttl") ?? 0,
  };
}

export function readTop(reply: unknown): TopKey[] {
  return (reply as unknown[][]).map(([key, db, denials, over]) => ({
    key: String(key),
    db: Number(db),
    denials: Number(denials),
    over: Number(over),
  }));
}

export function readPolicies(reply: unknown): PolicyCounts[] {
  return (reply as unknown[][]).map(([name, definition, allowed, denied, shadowDenied]) => ({
    name: String(name),
    definition: String(definition),
    allowed: Number(allowed),
    denied: Number(denied),
    shadowDenied: Number(shadowDenied),
  }));
}

/** Not enumerable: a reply is compared, spread and written without it. */
export function keepReservation(reply: AllReply, reservation: Reservation | undefined): void {
  Object.defineProperty(reply, "reservation", { value: reservation, configurable: true });
}

/** Returns the reply to a call while Redis cannot be reached. */
export function unreached(allowed: boolean, more: Partial<Reply> = {}): Reply {
  return { ...replyWith(allowed ? 0 : 1, 0, 0, null, 0), reachable: false, ...more };
}
