/** Each command as words to send, a reply to read, and an answer for when Redis cannot be reached. No I/O is done here. */

import { integer, limitOptions, limitWords, type Integer, type Limit, type Policy, type Rate, type Window, type Word } from "./limits.js";
import { five, ofAll, ofHeld, unreached, withGranted, withId, withWait, type AllReply, type Held, type Reply } from "./replies.js";

export type Key = string | Buffer;

export interface Call<T> {
  key: Key;
  words: Word[];
  readonly: boolean;
  read: (reply: unknown) => T;
  /** The answer if Redis cannot be reached: to allow (true) or to deny (false). */
  unreached?: (allow: boolean) => T;
  /** How long the server may let the call wait; 0 is without end. */
  blockMs?: number | undefined;
}

export interface LookOptions {
  /** Default 1. */
  quantity?: Integer | undefined;
  /** How much is kept in reserve for others. */
  leave?: Integer | undefined;
}

export interface ThrottleOptions extends LookOptions {
  /** Takes as much of the quantity as there is. */
  atmost?: boolean | undefined;
  /** Counts the quantity even where there is not enough. */
  force?: boolean | undefined;
  /** Waits up to so many milliseconds to be allowed; 0 is without end. */
  block?: number | undefined;
  /** Books what can be had within so many milliseconds, and tells the wait. */
  ahead?: number | undefined;
}

export interface WindowOptions extends LookOptions {
  /** Takes as much of the quantity as there is. */
  atmost?: boolean | undefined;
  /** Counts the quantity even where there is not enough. */
  force?: boolean | undefined;
  /** Counts the call even if it is denied. */
  countDenied?: boolean | undefined;
  /** Waits up to so many milliseconds to be allowed; 0 is without end. */
  block?: number | undefined;
}

export interface ReserveOptions extends LookOptions {
  /** How many milliseconds the reservation is held unless it is settled or renewed. */
  lease?: number | undefined;
  /** 1 to 64 bytes; without it the server makes one. */
  id?: string | undefined;
  /** Waits up to so many milliseconds to be allowed; 0 is without end. */
  block?: number | undefined;
}

interface ClauseOptions extends LookOptions {
  /** Must be allowed, takes nothing. */
  check?: boolean | undefined;
  /** Judged and told, but never denies the call. */
  shadow?: boolean | undefined;
}

/** One limit of all, made by clause.throttle, clause.window or clause.acquire. */
export interface Clause {
  key: Key;
  words: Word[];
}

type Options = Omit<ThrottleOptions & WindowOptions & ReserveOptions & ClauseOptions, "quantity">;

/** The limit, the quantity and the options, MS apart. Only the options that were asked for are sent. */
function asked(limit: Limit, quantity: Integer, options: Options): Word[] {
  const words: Word[] = [...limitWords(limit), integer(quantity), ...limitOptions(limit)];
  const value = (word: string, given: Integer | undefined) => {
    if (given !== undefined) words.push(word, integer(given));
  };
  const flag = (word: string, given: boolean | undefined) => {
    if (given) words.push(word);
  };
  value("LEAVE", options.leave || undefined);
  value("LEASE", options.lease);
  if (options.id !== undefined) words.push("ID", options.id);
  flag("ATMOST", options.atmost);
  flag("FORCE", options.force);
  flag("COUNTDENIED", options.countDenied);
  flag("CHECK", options.check);
  flag("SHADOW", options.shadow);
  value("AHEAD", options.ahead);
  value("BLOCK", options.block);
  return words;
}

export const clause = {
  throttle(key: Key, rate: Rate | Policy, { quantity = 1, ...options }: ClauseOptions = {}): Clause {
    return { key, words: ["THROTTLE", ...asked(rate, quantity, options)] };
  },
  window(
    key: Key,
    window: Window | Policy,
    { quantity = 1, ...options }: ClauseOptions & Pick<WindowOptions, "countDenied"> = {},
  ): Clause {
    return { key, words: ["WINDOW", ...asked(window, quantity, options)] };
  },
  acquire(
    key: Key,
    window: Window | Policy,
    { quantity = 1, ...options }: ClauseOptions & Pick<ReserveOptions, "lease" | "id"> = {},
  ): Clause {
    return { key, words: ["ACQUIRE", ...asked(window, quantity, options)] };
  },
};

function asking(command: string, key: Key, limit: Limit, given: Options & { quantity?: Integer | undefined }): Call<Reply> {
  const { quantity = 1, ...options } = given;
  return {
    key,
    words: [command, key, ...asked(limit, quantity, options), "MS"],
    readonly: command.endsWith("_RO"),
    read: five,
    // What Redis would never deny is not denied here either.
    unreached: (allow) => unreached(allow || options.force === true || quantity <= 0),
    blockMs: options.block,
  };
}

function orGranted(call: Call<Reply>, { atmost, quantity = 1 }: { atmost?: boolean | undefined; quantity?: Integer | undefined }): Call<Reply> {
  if (!atmost) return call;
  const granted = (allow: boolean) => unreached(allow || quantity <= 0, { granted: allow ? Number(quantity) : 0 });
  return { ...call, read: withGranted, unreached: granted };
}

export function throttle(key: Key, rate: Rate | Policy, options: ThrottleOptions): Call<Reply> {
  const call = orGranted(asking("RL.THROTTLE", key, rate, options), options);
  if (options.ahead === undefined || options.atmost) return call;
  return { ...call, read: withWait, unreached: (allow) => unreached(allow, { waitMs: allow ? 0 : null }) };
}

export function window(key: Key, limit: Window | Policy, options: WindowOptions): Call<Reply> {
  return orGranted(asking("RL.WINDOW", key, limit, options), options);
}

export function reserve(key: Key, limit: Window | Policy, options: ReserveOptions): Call<Reply> {
  return { ...asking("RL.ACQUIRE", key, limit, options), read: withId };
}

export function look(command: string, key: Key, limit: Limit, options: LookOptions): Call<Reply> {
  const call = asking(command, key, limit, options);
  return command === "RL.ACQUIRE_RO" ? { ...call, read: withId } : call;
}

export function every(command: string, clauses: readonly Clause[]): Call<AllReply> {
  const keys = clauses.map((each) => each.key);
  return {
    key: keys[0] ?? "",
    words: [command, String(clauses.length), ...keys, ...clauses.flatMap((each) => each.words), "MS"],
    readonly: command.endsWith("_RO"),
    read: ofAll,
    unreached: (allow) => ({ ...unreached(allow), clause: 0, answers: [] }),
  };
}

const toBoolean = (reply: unknown): boolean => Number(reply) === 1;

export function apply(key: Key, id: string, quantity: Integer | undefined): Call<boolean> {
  const words: Word[] = ["RL.APPLY", key, id, ...(quantity === undefined ? [] : [integer(quantity)])];
  return { key, words, readonly: false, read: toBoolean };
}

export function release(key: Key, ids: readonly string[]): Call<number> {
  return { key, words: ["RL.RELEASE", key, ...ids], readonly: false, read: Number };
}

export function renew(key: Key, id: string, lease: number | undefined): Call<boolean> {
  const words: Word[] = ["RL.RENEW", key, id, ...(lease === undefined ? [] : ["LEASE", integer(lease)])];
  return { key, words, readonly: false, read: toBoolean };
}

export function held(key: Key): Call<Held[]> {
  return { key, words: ["RL.HELD", key], readonly: true, read: ofHeld };
}
