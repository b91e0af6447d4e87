/** What the commands answer, with names. */

/** The answer to a call that asks a limit. */
export interface Reply {
  /** Whether limited is 0. */
  allowed: boolean;
  /** 0 allowed, 1 denied; from acquire also 2: denied only because others hold, or wait for, what they may give back. */
  limited: 0 | 1 | 2;
  /** The most that can be had at once. */
  limit: number;
  /** What could still be had now, after this call. */
  remaining: number;
  /** The wait after which the same call is allowed if nobody else takes anything. Null if it was allowed, or never can be. */
  retryAfterMs: number | null;
  /** The wait until the key is as good as new. */
  resetAfterMs: number;
  /** What was taken, with atmost. */
  granted: number | null;
  /** The id of the reservation, from acquire and reserve; null if nothing was reserved. */
  id: string | null;
  /** The wait after which the caller may go on, with ahead; null if denied. */
  waitMs: number | null;
  /** False if Redis could not be reached and this answer was chosen instead of one of its own. */
  reachable: boolean;
}

/** The answer to all: that of the clause that decides, and each clause's own. */
export interface AllReply extends Reply {
  /** The number of the clause that decides, from 1; 0 if Redis could not be reached. */
  clause: number;
  /** Each clause's own answer, in their order; empty if Redis could not be reached. */
  answers: Reply[];
}

/** A live reservation. */
export interface Held {
  id: string;
  quantity: number;
  leftMs: number;
}

/** A reservation was denied. `reply` says why, and when to try again. */
export class Denied extends Error {
  override readonly name = "Denied";

  constructor(readonly reply: Reply) {
    super(`denied: ${JSON.stringify(reply)}`);
  }
}

/** The lease ended before the work did, so there was no reservation left to settle. */
export class Lapsed extends Error {
  override readonly name = "Lapsed";
}

const orNull = (ms: unknown): number | null => (Number(ms) < 0 ? null : Number(ms));
const text = (id: unknown): string | null => (id === null || id === undefined ? null : String(id));

export function five(reply: unknown): Reply {
  const [limited, limit, remaining, retryAfter, resetAfter] = reply as unknown[];
  return {
    allowed: Number(limited) === 0,
    limited: Number(limited) as Reply["limited"],
    limit: Number(limit),
    remaining: Number(remaining),
    retryAfterMs: orNull(retryAfter),
    resetAfterMs: Number(resetAfter),
    granted: null,
    id: null,
    waitMs: null,
    reachable: true,
  };
}

const sixth = (reply: unknown): unknown => (reply as unknown[])[5];

export const withGranted = (reply: unknown): Reply => ({ ...five(reply), granted: Number(sixth(reply)) });
export const withWait = (reply: unknown): Reply => ({ ...five(reply), waitMs: orNull(sixth(reply)) });
export const withId = (reply: unknown): Reply => ({ ...five(reply), id: text(sixth(reply)) });

export function ofAll(reply: unknown): AllReply {
  const answers = (reply as unknown[])[6] as unknown[];
  // Only a clause of ACQUIRE answers a sixth element, its id.
  return { ...five(reply), clause: Number(sixth(reply)), answers: answers.map(withId) };
}

export function ofHeld(reply: unknown): Held[] {
  return (reply as unknown[][]).map(([id, quantity, left]) => ({
    id: String(id),
    quantity: Number(quantity),
    leftMs: Number(left),
  }));
}

/** The answer that was chosen for when Redis cannot be reached. */
export function unreached(allowed: boolean, more: Partial<Reply> = {}): Reply {
  return {
    allowed,
    limited: allowed ? 0 : 1,
    limit: 0,
    remaining: 0,
    retryAfterMs: null,
    resetAfterMs: 0,
    granted: null,
    id: null,
    waitMs: null,
    reachable: false,
    ...more,
  };
}
