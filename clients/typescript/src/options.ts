/** The options of calls and clauses. */

import type { Key } from "./command.js";
import type { Duration, Integer } from "./limits.js";

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

/** Options of the calls that can wait until they are allowed. */
export interface BlockOptions {
  /** The longest time to wait until the call is allowed; 0 waits without limit. Default: the call does not wait. */
  block?: Duration | undefined;
  /**
   * Who makes the call, such as a tenant, in 1 to 64 bytes. With `block`. Those who wait on a limit take turns, however many
   * calls each of them makes. Calls without it count as those of one more caller.
   */
  by?: string | undefined;
  /** How much more than others the caller in `by` gets while all wait, from 1 to 1000. Default 1. */
  weight?: Integer | undefined;
}

/** Options of Limiter.throttle. */
export interface ThrottleOptions extends LookOptions, BlockOptions {
  /** Takes as much of the quantity as is available. The reply has `granted`, and `reservations` if it was reserved. */
  atmost?: boolean | undefined;
  /** Counts the quantity even if that exceeds the limit. */
  force?: boolean | undefined;
  /** Books what becomes available within this time. The reply has `waitMs`. */
  ahead?: Duration | undefined;
  /** Closes the key for this time if the call is denied. With `force`, closes it in any case. */
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

/** Options of Limiter.allRo. */
export interface LookAllOptions extends CallOptions {
  /**
   * The key of a hash of limits. The field `free` is the limit of clauses with the policy `"@free"`, and a policy of the
   * server is used only if there is no such field. The key is one more key of the call.
   */
  limits?: Key | undefined;
}

/** Options of Limiter.reserve and Limiter.acquire for several limits. `block` cannot be used with groups and bans. */
export interface SeveralOptions extends LookAllOptions, BlockOptions {}

/** Options of Limiter.all. */
export interface AllOptions extends SeveralOptions {
  /**
   * Counts what was used in one step, even if that exceeds a limit. All clauses must be rates and windows without options,
   * and not in groups. Not with `block` and `limits`.
   */
  force?: boolean | undefined;
}

/** Options of Limiter.close for a key. */
export interface CloseOptions extends CallOptions {
  /** The kind of a policy, of which only the server knows the limit. */
  kind?: "throttle" | "window" | undefined;
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
