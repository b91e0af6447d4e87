/** The options of calls and clauses, and their words in a command. */

import { checkFlag, checkOptions, checkSignal, checkText, duration, integer } from "./check.js";
import { limitOptions, limitWords, type Duration, type Integer, type Limit, type Word } from "./limits.js";

/** Options of every call. */
export interface CallOptions {
  /**
   * Cancels the call, which rejects with the reason of the signal. The call is not sent any more, or leaves the line in
   * which it waits (`block`). What is granted too late is given back.
   */
  signal?: AbortSignal | undefined;
}

/** Options of the calls that take nothing, such as Limiter.throttleRo. */
export interface LookOptions extends CallOptions {
  /** Default 1. */
  quantity?: Integer | undefined;
  /** The quantity that must remain for others. Default 0. */
  leave?: Integer | undefined;
}

/** Options of Limiter.throttle. */
export interface ThrottleOptions extends LookOptions {
  /** Takes as much of the quantity as is available. The reply has `granted`, and `reservations` if it was reserved. */
  atmost?: boolean | undefined;
  /** Counts the quantity even if that exceeds the limit. */
  force?: boolean | undefined;
  /** The longest time to wait until the call is allowed; 0 waits without limit. Default: the call does not wait. */
  block?: Duration | undefined;
  /** Books what becomes available within this time. The reply has `waitMs`. */
  ahead?: Duration | undefined;
  /** Closes the key for this time if the call is denied. */
  ban?: Duration | undefined;
}

/** Options of Limiter.window. */
export interface WindowOptions extends Omit<ThrottleOptions, "ahead"> {
  /** Counts the call even if it is denied. */
  countDenied?: boolean | undefined;
}

/** Options of Limiter.reserve. */
export interface ReserveOptions extends Omit<ThrottleOptions, "force" | "ahead" | "ban"> {
  /**
   * The length of the lease, which ends unless the reservation is settled or renewed. Default: the server's ratelimit.lease.
   */
  lease?: Duration | undefined;
  /** Counts the reservation if its lease ends before it is settled. Not with a semaphore. */
  countLapsed?: boolean | undefined;
  /** The id of the reservation, 1 to 64 bytes. Default: a random one. */
  id?: string | undefined;
}

/** Options of every clause. */
export interface ClauseOptions extends Omit<LookOptions, "signal"> {
  /** The name of the limit in replies, errors and costs. Default: its key. */
  name?: string | undefined;
  /** Denies the call if there is not enough, but takes nothing. */
  check?: boolean | undefined;
  /** Never denies the call. The reply says whether it would have. */
  shadow?: boolean | undefined;
}

/** Options of Limiter.all. */
export interface AllOptions extends CallOptions {
  /**
   * Counts what was used in one step, even if that exceeds a limit. All clauses must be rates and windows without options,
   * and not in groups.
   */
  force?: boolean | undefined;
}

/** Options of Limiter.renew. */
export interface RenewOptions extends CallOptions {
  /** The new length of the lease. Default: its present length. */
  lease?: Duration | undefined;
}

/** Options of Limiter.top. */
export interface TopOptions extends CallOptions {
  /** The maximum number of keys, from 1. Default 10. */
  count?: number | undefined;
  /** Forgets all denials after the reply. */
  reset?: boolean | undefined;
}

/** Returns the names of the options in `T`. It does not compile if a name is missing, or is not in `T`. */
const namesOf = <T>(options: Record<keyof T, true>): readonly string[] => Object.keys(options);

const LOOK = { quantity: true, leave: true, signal: true } as const;
const TAKE = { ...LOOK, atmost: true, block: true } as const;
export const LOOK_OPTIONS = namesOf<LookOptions>(LOOK);
export const THROTTLE_OPTIONS = namesOf<ThrottleOptions>({ ...TAKE, force: true, ahead: true, ban: true });
export const WINDOW_OPTIONS = namesOf<WindowOptions>({ ...TAKE, force: true, countDenied: true, ban: true });
export const RESERVE_OPTIONS = namesOf<ReserveOptions>({ ...TAKE, lease: true, countLapsed: true, id: true });
export const CLAUSE_OPTIONS = namesOf<ClauseOptions>({
  name: true,
  quantity: true,
  leave: true,
  check: true,
  shadow: true,
});
export const RENEW_OPTIONS = namesOf<RenewOptions>({ lease: true, signal: true });
export const TOP_OPTIONS = namesOf<TopOptions>({ count: true, reset: true, signal: true });

export type Options = Omit<ThrottleOptions & WindowOptions & ReserveOptions & ClauseOptions, "quantity" | "name">;

/** Checks the options of a method that has only those of every call, and returns the signal. */
export function checkCallOptions(method: string, options: CallOptions): AbortSignal | undefined {
  checkOptions(method, options, ["signal"]);
  checkSignal(options.signal);
  return options.signal;
}

/** Returns the words of a limit, a quantity and options, without MS. */
export function limitCallWords(limit: Limit, quantity: Integer, options: Options): Word[] {
  const words: Word[] = [...limitWords(limit), integer("quantity", quantity), ...limitOptions(limit)];
  const flag = (word: string, name: string, value: boolean | undefined) => {
    checkFlag(name, value);
    if (value) words.push(word);
  };
  const time = (word: string, name: string, value: Duration | undefined, minMs: number) => {
    if (value !== undefined) words.push(word, duration(name, value, minMs));
  };
  if (options.leave !== undefined && integer("leave", options.leave) !== "0") {
    words.push("LEAVE", String(options.leave));
  }
  time("LEASE", "lease", options.lease, 1);
  flag("COUNTLAPSED", "countLapsed", options.countLapsed);
  if (options.id !== undefined) {
    checkText("id", options.id);
    words.push("ID", options.id);
  }
  flag("ATMOST", "atmost", options.atmost);
  flag("FORCE", "force", options.force);
  flag("COUNTDENIED", "countDenied", options.countDenied);
  flag("CHECK", "check", options.check);
  flag("SHADOW", "shadow", options.shadow);
  time("BAN", "ban", options.ban, 1);
  time("AHEAD", "ahead", options.ahead, 1);
  time("BLOCK", "block", options.block, 0);
  return words;
}
