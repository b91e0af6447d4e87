/**
 * The part of the middleware that all frameworks share: it asks the limits of a request, and collects the replies for one set
 * of headers.
 */

import { checkOptions, quote } from "../check.js";
import type { Clause, Clauses } from "../several.js";
import type { Limiter } from "../limiter.js";
import type { AllReply, Reply } from "../replies.js";
import {
  headers,
  problem,
  replyOf,
  STYLE_OPTIONS,
  type HeaderOptions,
  type PartitionKey,
  type Problem,
  type ReplyWithOptions,
} from "./headers.js";

/** A Limiter or a MemoryLimiter. */
export type RequestLimiter = Pick<Limiter, "all" | "acquire">;

/** One limit of a request, or several as for Limiter.all; null or undefined for a request without a limit. */
export type RequestLimits = Clause | Clauses | null | undefined;

/** Returns the limits of a request, from the arguments that the framework gives. */
export type LimitsOf<Args extends unknown[]> = (...args: Args) => RequestLimits | Promise<RequestLimits>;

/** Options of the headers that a middleware sets. Limits and names are those of the clauses. */
export interface StyleOptions<Request> extends Omit<HeaderOptions, "limits" | "names" | "pk"> {
  /** The partition key of the limits, such as the tenant that they are counted by. Clients can read it. */
  pk?: PartitionKey | ((request: Request) => PartitionKey | undefined) | undefined;
}

/** A denied request. */
export interface Denial {
  /** The reply; if the limiter threw Busy, that of a denial that no limiter decided. */
  reply: Reply | AllReply;
  /** The body of the response. */
  problem: Problem;
}

/** Asks the limits of a request, and adds the reply to those on `target`. `end` settles when the response has ended. */
export type Ask<Args extends unknown[]> = (
  target: object,
  end: () => Promise<void>,
  ...args: Args
) => Promise<Denial | undefined>;

// It is shared by all copies of this package, such as that of `require` and that of `import`.
const REPLIES = Symbol.for("redis-ratelimit-client.replies");

/** The replies for a request, by what asked for them. If a middleware asks twice, its last reply counts. */
function entriesOf(target: object): Map<unknown, ReplyWithOptions> {
  // A response of Fastify, and a request of Hono, have that of Node or of the Fetch API in `raw`.
  const { raw } = target as { raw?: unknown };
  const holder = (typeof raw === "object" && raw !== null ? raw : target) as {
    [REPLIES]?: Map<unknown, ReplyWithOptions>;
  };
  return (holder[REPLIES] ??= new Map());
}

/**
 * Returns the replies for a request so far: those of its middleware, and those of addReply. `target` is as there. What a
 * middleware reserved is the `reservation` of its reply.
 */
export const repliesOf = (target: object): (Reply & Partial<Pick<AllReply, "reservation">>)[] =>
  [...entriesOf(target).values()].map(({ reply }) => reply);

/** Returns one set of headers for all replies on `target`. */
export const headersOn = (target: object): Record<string, string> => headers([...entriesOf(target).values()]);

/** The members of a response of Node, Express, Fastify or Nest that set a header. */
interface HeaderSetter {
  header?: (name: string, value: string) => unknown;
  setHeader?: (name: string, value: string) => unknown;
}

/** Adds a reply, and sets the headers again. Returns the problem if the reply is a denial. */
function add(target: object, by: unknown, entry: ReplyWithOptions): Problem | undefined {
  const entries = entriesOf(target);
  entries.set(by, entry);
  const { header, setHeader = header } = target as HeaderSetter;
  for (const [name, value] of Object.entries(headersOn(target))) setHeader?.call(target, name, value);
  // The problem names all limits that denied, even those that the program ignored.
  return entry.reply.allowed ? undefined : problem([...entries.values()]);
}

/**
 * Adds a reply to the headers of its request, next to those of the middleware: for a limit that a route asks by itself. It may
 * also be what the limiter threw instead, Denied or Busy; other errors are thrown again. `target` is the response of Node,
 * Express, Fastify or Nest, whose headers are set, or the request of the Fetch API. Returns the problem if the reply is a
 * denial.
 */
export const addReply = (
  target: object,
  reply: Reply | AllReply | Error,
  options: HeaderOptions = {},
): Problem | undefined =>
  add(target, Symbol("reply"), { ...(reply instanceof Error ? replyOf(reply) : { reply }), ...options });

/** Asks limits. Holds what they reserve until `end` settles. */
function askOrHold(limiter: RequestLimiter, clauses: Clauses, end: () => Promise<void>): Promise<AllReply> {
  if (!clauses.flat().some(({ reserves }) => reserves)) return limiter.all(clauses);
  return new Promise((resolve, reject) => {
    const untilEnd = ({ reply }: { reply: Reply }) => {
      const ended = end();
      resolve(reply as AllReply);
      return ended;
    };
    // Nobody can be told about an error after the response.
    limiter.acquire(clauses, untilEnd).catch(reject);
  });
}

/** Returns a function that asks the limits of each request. Throws a TypeError if the arguments of a middleware are wrong. */
export function asker<Request, Args extends unknown[]>(
  name: string,
  limiter: RequestLimiter,
  limits: LimitsOf<[Request, ...Args]>,
  options: StyleOptions<Request> & { denied?: unknown },
): Ask<[Request, ...Args]> {
  if (typeof (limiter as Partial<RequestLimiter> | undefined)?.all !== "function") {
    throw new TypeError(`${name} takes a limiter, not ${quote(limiter)}`);
  }
  if (typeof limits !== "function")
    throw new TypeError(`${name} takes a function that returns the limits of a request`);
  checkOptions(name, options, [...STYLE_OPTIONS, "denied"]);
  const { pk, denied: _, ...style } = options;
  const ask: Ask<[Request, ...Args]> = async (target, end, request, ...args) => {
    const given = await limits(request, ...args);
    if (given === null || given === undefined) return undefined;
    const clauses = Array.isArray(given) ? (given as Clauses) : [given as Clause];
    const reply = await askOrHold(limiter, clauses, end).catch((error: Error) => replyOf(error).reply);
    const found = add(target, ask, { reply, ...style, pk: typeof pk === "function" ? pk(request) : pk });
    return found && { reply, problem: found };
  };
  return ask;
}

/** Returns whether a response takes back what its request reserved: an error of the server, or a denial. */
export const isRefusal = (status: number): boolean => status >= 500 || status === 429;
