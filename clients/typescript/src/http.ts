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
export type Checked = Reply | AllReply | null;

/** How a request stands after a limit was asked. */
export interface Standing {
  /** The answer; null without a limit, and for a call that had no turn. */
  reply: Reply | AllReply | null;
  /** One set for all limits of the request so far. */
  headers: Record<string, string>;
  /** What the request is refused with, if it is. */
  problem: Problem | undefined;
}

// Another copy of this package, such as that of require beside that of import, adds to the same list.
const TOLD = Symbol.for("redis-ratelimit-client.told");

/** An answer, and which middleware asked. */
interface MiddlewareReply extends ReplyWithOptions {
  by: object;
}

/** What the limits of a request have answered so far. It lies on its response. */
function toldOn(response: object): MiddlewareReply[] {
  const holder = response as { [TOLD]?: MiddlewareReply[] };
  holder[TOLD] ??= [];
  return holder[TOLD];
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
  check: () => Promise<Checked> | Checked,
  options: HeaderOptions,
): Promise<Standing> {
  const told = toldOn(response);
  let reply: Checked;
  try {
    reply = await check();
  } catch (error) {
    if (!(error instanceof Error) || error.name !== Busy.name) throw error;
    return { reply: null, headers: {}, problem: REDUCED_CAPACITY };
  }
  if (reply === null) return { reply, headers: {}, problem: undefined };
  const now = { reply, ...options, by: options };
  // One that is asked a second time, as it stands on the application and on a route, tells how it stands now.
  const before = told.findIndex(({ by }) => by === options);
  if (before < 0) told.push(now);
  else told[before] = now;
  const shown = told.map(({ by: _, ...each }) => each);
  return { reply, headers: mergedHeaders(shown), problem: reply.allowed ? undefined : refusal(reply, shown) };
}

/** All limits that denied are told, also one whose denial a program let pass. */
function refusal(reply: Reply | AllReply, shown: readonly ReplyWithOptions[]): Problem {
  return reply.reachable ? problem(shown) : REDUCED_CAPACITY;
}

/** The body of a refusal. */
export const bodyOf = (given: Problem): string => JSON.stringify(given);
export { PROBLEM_TYPE };
