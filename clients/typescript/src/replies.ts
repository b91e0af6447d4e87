/** The replies of the commands. */

import { quote } from "./check.js";
import type { Reservation } from "./reservation.js";
import type { Clause } from "./several.js";

/** The reply to a call that asks a limit. */
export interface Reply {
  /** True if the call was allowed, so that `limited` is 0. */
  allowed: boolean;
  /**
   * 0 if the call was allowed, 1 if it was denied. For reservations, 2 if it was denied because others hold the capacity or
   * wait for it, and may give it back.
   */
  limited: 0 | 1 | 2;
  /** The largest quantity that can be available at once. */
  limit: number;
  /** The quantity that is left after this call. */
  remaining: number;
  /** The wait after which this call would be allowed if no others take anything. Null if it was allowed, or can never be. */
  retryAfterMs: number | null;
  /** The wait until the limit is unused again. */
  resetAfterMs: number;
  /** The quantity that was taken, with `atmost`. */
  granted: number | null;
  /** The number of reservations in the key whose lease has not ended, from reserve and acquire with `atmost`. */
  reservations: number | null;
  /** The id of the reservation, from acquire and reserve; null if nothing was reserved. */
  id: string | null;
  /** The wait after which the caller may go on, with `ahead`; null if denied. */
  waitMs: number | null;
  /** False if Redis could not be reached, so that `unreachable` decided. */
  reachable: boolean;
}

/** The reply to several limits: that of the clause that decides, and those of all clauses. */
export interface AllReply extends Reply {
  /** The number of the clause that decides, from 1; 0 if Redis could not be reached. */
  clause: number;
  /** The replies of all clauses, in order; empty if Redis could not be reached. */
  answers: Reply[];
  /**
   * The names of the limits that took something, in order, at most one of each group. Empty if the call was denied, or Redis
   * could not be reached.
   */
  paid: string[];
  /**
   * The names of the limits that denied the call, in order; of a group that denied, those of all its limits. Empty if the
   * call was allowed, or Redis could not be reached. A policy that is in shadow on the server is named too, because the
   * client cannot tell.
   */
  denied: string[];
  /** The names of all limits, in the order of `answers`. */
  names: string[];
  /**
   * Settles everything that was reserved. Undefined if the call was denied, or no limit reserves. It is not enumerable, as
   * the server's reply does not have it.
   */
  readonly reservation?: Reservation | undefined;
}

/** A live reservation. */
export interface Held {
  /** Its id. */
  id: string;
  /** The quantity that it holds. */
  quantity: number;
  /** The rest of its lease; 0 if it has lapsed and counts (`countLapsed`). */
  leftMs: number;
}

/** The state of a key, see Limiter.info. Fields of the other kind are null. Durations are milliseconds. */
export interface Info {
  /** "bucket" for RL.THROTTLE, "window" for RL.WINDOW and RL.ACQUIRE. */
  kind: "bucket" | "window";
  /** Of a bucket: the time until it is full. */
  fullInMs: number | null;
  /** Of a bucket: the debt of `force` or `ahead`, as it was last written. */
  debtMs: number | null;
  /** Of a window: the number of stored events, with those that have left it but are not removed yet. */
  events: number | null;
  /** Of a window: the number of events that are denied calls. */
  denied: number | null;
  /** Of a window: the number of entries of the key. */
  entries: number | null;
  /** Of a window: the age of the oldest event; null without events. */
  oldestMs: number | null;
  /** Of a window: the age of the newest event; null without events. */
  newestMs: number | null;
  /** Of a window: the quantity that is reserved. */
  held: number | null;
  /** Of a window: the number of reservations. */
  reservations: number | null;
  /** The rest of a ban; 0 if there is none. */
  banMs: number;
  /** The number of calls that wait in the key's line. */
  waiting: number;
  /** The time until the key expires. */
  ttlMs: number;
}

/** A key that was denied often, see Limiter.top. */
export interface TopKey {
  /** The key. A long key is cut after 256 bytes. */
  key: string;
  /** Its database. */
  db: number;
  /** The number of denials, which may be up to `over` too high but never too low. */
  denials: number;
  /** The largest possible error of `denials`. */
  over: number;
}

/** A policy of the server, and the numbers of calls that it allowed and denied. */
export interface PolicyCounts {
  /** Its name, without the @. */
  name: string;
  /** The policy as it is configured, without the name. */
  definition: string;
  /** The number of calls that were allowed. */
  allowed: number;
  /** The number of calls that were denied. */
  denied: number;
  /** The number of calls that were allowed only by its SHADOW. */
  shadowDenied: number;
}

/** Thrown if a reply is not one of redis-ratelimit, such as that of a proxy. The call may have been counted. */
export class UnexpectedReply extends Error {}

/** Returns a reply that is an array. */
export function readArray(reply: unknown): unknown[] {
  if (!Array.isArray(reply)) throw new UnexpectedReply(`the server replied ${quote(reply)}, not an array`);
  return reply;
}

/** Reads an integer. A client may be set to return strings or bigints. */
function integer(value: unknown): number {
  const isText = (typeof value === "string" && value !== "") || typeof value === "bigint";
  const number = isText ? Number(value) : value;
  if (!Number.isInteger(number)) throw new UnexpectedReply(`the server replied ${quote(value)}, not an integer`);
  return number as number;
}

/** Reads milliseconds; -1 is null. */
function orNull(value: unknown): number | null {
  const ms = integer(value);
  return ms < 0 ? null : ms;
}

// Bytes are a Buffer, whose toString() decodes UTF-8.
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
  const [limited, limit, remaining, retryAfter, resetAfter] = readArray(reply);
  const kind = integer(limited) as Reply["limited"];
  return replyWith(kind, integer(limit), integer(remaining), orNull(retryAfter), integer(resetAfter));
}

const sixth = (reply: unknown): unknown => readArray(reply)[5];

export const readGranted = (reply: unknown): Reply => ({ ...readReply(reply), granted: integer(sixth(reply)) });
export const readWait = (reply: unknown): Reply => ({ ...readReply(reply), waitMs: orNull(sixth(reply)) });
export const readId = (reply: unknown): Reply => ({ ...readReply(reply), id: text(sixth(reply)) });

export function readIdAndGranted(reply: unknown): Reply {
  const [granted, reservations] = readArray(reply).slice(6);
  return { ...readId(reply), granted: integer(granted), reservations: integer(reservations) };
}

/** Reads the reply to RL.ALL with `count` clauses, without names. */
export function readAll(reply: unknown, count: number): Omit<AllReply, "paid" | "denied" | "names"> {
  // Only the reply of an ACQUIRE clause has a sixth element, its id.
  const answers = readArray(readArray(reply)[6]).map(readId);
  if (answers.length !== count)
    throw new UnexpectedReply(`the server replied for ${answers.length} clauses, not ${count}`);
  return { ...readReply(reply), clause: integer(sixth(reply)), answers };
}

/** Reads how many keys or reservations a command found. */
export const readCount = integer;
export const readIsFound = (reply: unknown): boolean => integer(reply) === 1;

export function readHeld(reply: unknown): Held[] {
  return readArray(reply).map((held) => {
    const [id, quantity, left] = readArray(held);
    return { id: String(id), quantity: integer(quantity), leftMs: integer(left) };
  });
}

/** Returns the fields of a map, which is a flat array in RESP2. */
function fields(reply: unknown): Map<string, unknown> {
  if (reply instanceof Map) return new Map([...reply].map(([name, value]) => [String(name), value]));
  if (!Array.isArray(reply)) return new Map(Object.entries(reply ?? {}));
  return new Map(reply.flatMap((name, index) => (index % 2 === 0 ? [[String(name), reply[index + 1]] as const] : [])));
}

export function readInfo(reply: unknown): Info | null {
  const found = fields(reply);
  if (found.size === 0) return null;
  // An age of -1 says that there is no event.
  const number = (name: string): number | null => (found.has(name) ? orNull(found.get(name)) : null);
  return {
    kind: String(found.get("kind")) as Info["kind"],
    fullInMs: number("full_in"),
    debtMs: number("debt"),
    events: number("events"),
    denied: number("denied"),
    entries: number("entries"),
    oldestMs: number("oldest"),
    newestMs: number("newest"),
    held: number("held"),
    reservations: number("reservations"),
    banMs: number("ban") ?? 0,
    waiting: number("waiting") ?? 0,
    ttlMs: number("ttl") ?? 0,
  };
}

export function readTop(reply: unknown): TopKey[] {
  return readArray(reply).map((entry) => {
    const [key, db, denials, over] = readArray(entry);
    return { key: String(key), db: integer(db), denials: integer(denials), over: integer(over) };
  });
}

export function readPolicies(reply: unknown): PolicyCounts[] {
  return readArray(reply).map((policy) => {
    const [name, definition, ...counts] = readArray(policy);
    const [allowed, denied, shadowDenied] = [integer(counts[0]), integer(counts[1]), integer(counts[2])];
    return { name: String(name), definition: String(definition), allowed, denied, shadowDenied };
  });
}

/** The property of a reply with the clauses that were asked. All copies of this package share it. */
const CLAUSES = Symbol.for("redis-ratelimit-client.clauses");

/**
 * Adds the clauses and the reservation to a reply, as properties that are not enumerable: comparing, spreading and printing
 * leave them out.
 */
export function addHidden(reply: AllReply, clauses: readonly Clause[], reservation: Reservation | undefined): void {
  Object.defineProperty(reply, CLAUSES, { value: clauses, configurable: true });
  Object.defineProperty(reply, "reservation", { value: reservation, configurable: true });
}

/** Returns the clauses that a reply is to, if it has them. */
export const clausesOf = (reply: object): readonly Clause[] => (reply as { [CLAUSES]?: Clause[] })[CLAUSES] ?? [];

/** Returns the reply to a call while Redis cannot be reached. */
export function unreached(allowed: boolean, fields: Partial<Reply> = {}): Reply {
  return { ...replyWith(allowed ? 0 : 1, 0, 0, null, 0), reachable: false, ...fields };
}

/** Returns whether a limiter decided: the server, or the one in `unreachable`. Otherwise the limit is 0, without answers. */
export const isDecided = (reply: Reply | AllReply): boolean =>
  reply.reachable || reply.limit > 0 || ("answers" in reply && reply.answers.length > 0);

/**
 * Returns whether the limit of an answer denied the call. Another one that is in shadow, or in a group whose other limit had
 * room, may have a denial as its answer.
 */
export function hasDenied(reply: Reply | AllReply, index: number): boolean {
  if (!("answers" in reply)) return !reply.allowed;
  // A reply that the program made itself need not have the names.
  const { names, denied } = reply as Partial<AllReply>;
  if (names === undefined) return !reply.allowed && reply.answers[index]?.allowed === false;
  return denied?.includes(names[index] as string) === true;
}

/** The longest wait for what others hold, and the one after Busy. */
export const SHORT_WAIT_MS = 1000;

/**
 * Returns how long a denied client should wait; Infinity if waiting does not help. That is at most a second if only others
 * hold what is missing: they may give it back at any time.
 */
export function waitMs(reply: Reply | AllReply): number {
  const wait = reply.retryAfterMs ?? Infinity;
  if (reply.limited === 2) return Math.min(wait, SHORT_WAIT_MS);
  const answers = "answers" in reply ? reply.answers : [];
  const waits = answers.filter((_, index) => hasDenied(reply, index)).map(waitMs);
  // An answer without a wait may be that of a group whose other limit can be waited for.
  return waits.length > 0 ? Math.min(wait, Math.max(...waits)) : wait;
}

export const inSeconds = (ms: number): number => Math.max(0, Math.ceil(ms / 1000));

/** Returns the header Retry-After of a denial that ends. */
export const retryAfterOf = (reply: Reply | AllReply): Record<string, string> =>
  reply.retryAfterMs === null ? {} : { "Retry-After": String(inSeconds(waitMs(reply))) };
