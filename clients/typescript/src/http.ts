/** What the middleware of all frameworks shares: it asks limits, collects the replies for one request, and refuses. */

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

/** The state of a request after a limit was asked. */
export interface RequestOutcome {
  /** The reply; null without a limit, and if the limiter threw Busy. */
  reply: Reply | AllReply | null;
  /** One set for all limits of the request so far. */
  headers: Record<string, string>;
  /** The problem to refuse the request with, if any. */
  problem: Problem | undefined;
}

// Another copy of this package, such as that of require next to that of import, adds to the same list.
const REPLIES = Symbol.for("redis-ratelimit-client.replies");

/** A reply, and the middleware that asked. */
interface MiddlewareReply extends ReplyWithOptions {
  by: object;
}

/** Returns the replies for a request so far. They are kept on its response. */
function repliesOn(response: object): MiddlewareReply[] {
  const holder = response as { [REPLIES]?: MiddlewareReply[] };
  holder[REPLIES] ??= [];
  return holder[REPLIES];
}

/** Throws a TypeError unless the arguments of a middleware are right. */
export function checkMiddleware(what: string, check: unknown, options: object, more: readonly string[] = []): void {
  if (typeof check !== "function") throw new TypeError(`${what} takes a function that asks the limiter`);
  checkOptions(what, options, [...HEADER_OPTIONS, ...more]);
}

/** Asks a limit for a request. All limits of the request share `response`. Busy refuses it; other errors are thrown. */
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

/** Returns the problem of a denied request. It names every limit that denied, even if the program ignored that. */
function refusal(reply: Reply | AllReply, replies: readonly ReplyWithOptions[]): Problem {
  return reply.reachable ? problem(replies) : REDUCED_CAPACITY;
}

/** Returns the body of a refusal. */
export const bodyOf = (given: Problem): string => JSON.stringify(given);
export { PROBLEM_TYPE };
