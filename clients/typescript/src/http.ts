/** What the middleware of all frameworks does: asks, gathers what the limits of one request answered, and refuses. */

import { checkOptions } from "./check.js";
import { Busy } from "./errors.js";
import {
  HEADER_OPTIONS,
  mergedHeaders,
  problem,
  PROBLEM_TYPE,
  REDUCED_CAPACITY,
  type HeaderOptions,
  type Problem,
  type ReplyWithOptions,
} from "./headers.js";
import type { AllReply, Reply } from "./replies.js";

/** A reply of the limiter, or null for a request without a limit. */
export type CheckResult = Reply | AllReply | null;

/** How a request stands after a limit was asked. */
export interface RequestOutcome {
  /** The answer; null without a limit, and for a call that had no turn. */
  reply: Reply | AllReply | null;
  /** One set for all limits of the request so far. */
  headers: Record<string, string>;
  /** What the request is refused with, if it is. */
  problem: Problem | undefined;
}

// Another copy of this package, such as that of require next to that of import, adds to the same list.
const REPLIES = Symbol.for("redis-ratelimit-client.replies");

/** An answer, and which middleware asked. */
interface MiddlewareReply extends ReplyWithOptions {
  by: object;
}

/** The replies of a request's limits so far. They are kept on its response. */
function repliesOn(response: object): MiddlewareReply[] {
  const holder = response as { [REPLIES]?: MiddlewareReply[] };
  holder[REPLIES] ??= [];
  return holder[REPLIES];
}

/** TypeError unless what a middleware is made of is right. */
export function checkMiddleware(what: string, check: unknown, options: object, more: readonly string[] = []): void {
  if (typeof check !== "function") throw new TypeError(`${what} takes a function that asks the limiter`);
  checkOptions(what, options, [...HEADER_OPTIONS, ...more]);
}

/**
 * Asks a limit for a request. `response` is what all limits of the request share. Busy is a refusal; other errors are
 * thrown.
 */
export async function askLimit(
  response: object,
  check: () => Promise<CheckResult> | CheckResult,
  options: HeaderOptions,
): Promise<RequestOutcome> {
  const asked = repliesOn(response);
  let reply: CheckResult;
  try {
    reply = await check();
  } catch (error) {
    if (!(error instanceof Error) || error.name !== Busy.name) throw error;
    return { reply: null, headers: {}, problem: REDUCED_CAPACITY };
  }
  if (reply === null) return { reply, headers: {}, problem: undefined };
  const now = { reply, ...options, by: options };
  // A middleware that asks twice, for the application and for a route, counts with its last reply.
  const before = asked.findIndex(({ by }) => by === options);
  if (before < 0) asked.push(now);
  else asked[before] = now;
  const replies = asked.map(({ by: _, ...each }) => each);
  return { reply, headers: mergedHeaders(replies), problem: reply.allowed ? undefined : refusal(reply, replies) };
}

/** Names every limit that denied, even if the program let the request pass there. */
function refusal(reply: Reply | AllReply, replies: readonly ReplyWithOptions[]): Problem {
  return reply.reachable ? problem(replies) : REDUCED_CAPACITY;
}

/** The body of a refusal. */
export const bodyOf = (given: Problem): string => JSON.stringify(given);
export { PROBLEM_TYPE };
