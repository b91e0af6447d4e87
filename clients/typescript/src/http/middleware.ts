/** The part of the middleware that all frameworks share. It asks limits, and collects the replies for one request. */

import { checkOptions } from "../check.js";
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
import { unreached, type AllReply, type Reply } from "../replies.js";

/** A reply of the limiter, or null or undefined for a request without a limit. */
export type CheckResult = Reply | AllReply | null | undefined;

/** The state of a request after a limit was asked. */
export interface RequestOutcome {
  /** The headers for all limits that were asked for the request so far. */
  headers: Record<string, string>;
  /** Undefined if the request is allowed. The problem is the body of the response. */
  denial: { reply: Reply | AllReply; problem: Problem } | undefined;
}

// It is shared by all copies of this package, such as that of `require` and that of `import`.
const REPLIES = Symbol.for("redis-ratelimit-client.replies");

/** A reply with the middleware that asked, which is known by its options. */
interface MiddlewareReply extends ReplyWithOptions {
  middleware: HeaderOptions;
}

/** Returns the list of replies for a request, which is kept on its response. */
function repliesOn(response: object): MiddlewareReply[] {
  const holder = response as { [REPLIES]?: MiddlewareReply[] };
  holder[REPLIES] ??= [];
  return holder[REPLIES];
}

/** Throws a TypeError if the arguments of a middleware are wrong. `ownOptions` are those that are not about headers. */
export function checkMiddleware(
  name: string,
  check: unknown,
  options: object,
  ownOptions: readonly string[] = [],
): void {
  if (typeof check !== "function") throw new TypeError(`${name} takes a function that asks the limiter`);
  checkOptions(name, options, [...HEADER_OPTIONS, ...ownOptions]);
}

/** Asks a limit for the request with this `response`. If the limiter throws Busy, the request is refused. */
export async function askLimit(
  response: object,
  check: () => Promise<CheckResult> | CheckResult,
  options: HeaderOptions,
): Promise<RequestOutcome> {
  const entries = repliesOn(response);
  let reply: CheckResult;
  try {
    reply = await check();
  } catch (error) {
    // It may be of another copy of this package, or of one whose classes were renamed by a minifier.
    if (!(error instanceof Error) || error.name !== "Busy") throw error;
    return { headers: {}, denial: { reply: unreached(false), problem: REDUCED_CAPACITY } };
  }
  if (reply === null || reply === undefined) return { headers: {}, denial: undefined };
  const entry = { reply, ...options, middleware: options };
  // If a middleware asks twice, for the application and for a route, its last reply counts.
  const previous = entries.findIndex(({ middleware }) => middleware === options);
  if (previous < 0) entries.push(entry);
  else entries[previous] = entry;
  const replies = entries.map(({ middleware: _, ...replyWithOptions }) => replyWithOptions);
  const headers = mergedHeaders(replies);
  if (reply.allowed) return { headers, denial: undefined };
  // The problem names all limits that denied, even those that the program ignored.
  return { headers, denial: { reply, problem: reply.reachable ? problem(replies) : REDUCED_CAPACITY } };
}

/** Returns the body of a refusal. */
export const bodyOf = (refused: Problem): string => JSON.stringify(refused);
export { PROBLEM_TYPE };
