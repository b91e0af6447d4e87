/** The errors of this library, and which errors of a client library mean that Redis cannot be reached. */

import { isDecided, retryAfterOf, SHORT_WAIT_MS, UnexpectedReply, unreached, type Reply } from "./replies.js";
import type { Clause } from "./several.js";

/** An error with the fields of those of the package http-errors, which frameworks send if a route throws it. */
abstract class HttpError extends Error {
  abstract readonly reply: Reply;

  /** The status of the HTTP response. */
  get status(): 429 | 503 {
    return isDecided(this.reply) ? 429 : 503;
  }

  /** The same. */
  get statusCode(): 429 | 503 {
    return this.status;
  }

  /** The headers of the HTTP response: Retry-After. Nest does not send them. */
  get headers(): Record<string, string> {
    return retryAfterOf(this.reply);
  }

  /** True if the message may be shown to the client. */
  get expose(): boolean {
    return this.status === 429;
  }
}

/** Thrown if a reservation is denied. */
export class Denied extends HttpError {
  constructor(
    /** The reply, which says why, and when to try again. */
    readonly reply: Reply,
    /** The limits that were asked, for headers. */
    readonly limits: readonly Clause[] = [],
  ) {
    // Without the names of the limits, which may be keys.
    super(reply.retryAfterMs === null ? "denied" : `denied: try again after ${reply.retryAfterMs} ms`);
  }
}

/** Thrown if the lease ended before the work did, so that there was no reservation left to settle. */
export class Lapsed extends Error {}

/**
 * Thrown if Redis cannot be reached, unless the client library has an error for it: {@link isUnreachable} knows both.
 * `cause` is the last error of the connection, if there is one.
 */
export class Unreachable extends Error {}

/** Thrown if Redis does not answer within the limiter's deadline. */
export class DeadlinePassed extends Unreachable {}

/**
 * Thrown if the server answers, but did not get to this call within the deadline: too many calls are under way, or the
 * server accepts no more connections. Also thrown if this program was too busy to read the reply. `unreachable` does not
 * apply, so that an overload is not let through.
 */
export class Busy extends HttpError {
  /** A denial that no limiter decided, to be tried again in a second. */
  get reply(): Reply {
    return unreached(false, { retryAfterMs: SHORT_WAIT_MS });
  }
}

/** Thrown if the server does not know a command: it has no redis-ratelimit, or one that is too old. */
export class MissingModule extends Error {}

/** Thrown if the server has no policy with the name in a call. */
export class UnknownPolicy extends Error {}

/**
 * Thrown if the id of a reservation is already held or waiting, as after a retry of a call that has reserved. It is an error
 * reply: {@link codeOf} returns DUPLICATE, and `cause` is the client library's error.
 */
export class Duplicate extends Error {}

/** Thrown by the calls of a limiter or a local limit that was closed, and by calls under way when the limiter was closed. */
export class Closed extends Error {}

const ERRORS = {
  Busy,
  Closed,
  DeadlinePassed,
  Denied,
  Duplicate,
  Lapsed,
  MissingModule,
  UnexpectedReply,
  UnknownPolicy,
  Unreachable,
};
// Names are set here, because a minifier renames classes. An error's stack begins with the name of its prototype.
for (const [name, { prototype }] of Object.entries(ERRORS)) {
  Object.defineProperty(prototype, "name", { value: name, configurable: true, writable: true });
}

/** Throws the reason of a signal that is aborted. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw signal.reason;
}

const words = (text: string): Set<string> => new Set(text.trim().split(/\s+/));
const CODES = words(`
  ECONNREFUSED ENOENT ECONNRESET ECONNABORTED ETIMEDOUT EPIPE ENOTFOUND EAI_AGAIN
  EHOSTUNREACH ENETUNREACH EHOSTDOWN ENETDOWN
`);
/** Those of this library, of node-redis and of ioredis. */
const CLASSES = words(`
  Unreachable DeadlinePassed
  AbortError ClientClosedError ClientOfflineError CommandTimeoutDuringMaintenanceError ConnectionTimeoutError
  DisconnectsClientError ReconnectStrategyError RootNodesUnavailableError SocketClosedUnexpectedlyError
  SocketTimeoutDuringMaintenanceError SocketTimeoutError TimeoutError
  ClusterAllFailedError MaxRetriesPerRequestError
`);
// The libraries throw these as plain errors.
const TEXTS = new RegExp(
  "^(Connection is closed\\.|Command timed out|Stream isn't writeable|Cluster isn't ready|Cluster is |None of startup nodes" +
    "|None of the sentinels|All sentinels are unreachable|no valid master node|Socket timeout|connect ETIMEDOUT)",
);
// The server loads its data; it has lost its master; a slot has no node; only some of a call's keys have moved with their
// slot.
const NOT_SERVING = ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"];
// Its code is ERR, as that of many other errors.
const NO_MORE_CONNECTIONS = /max number of clients reached/i;

function classNames(error: Error): string[] {
  const names = [error.name];
  for (let at: object | null = error; at !== null; at = Object.getPrototypeOf(at) as object | null) {
    names.push(at.constructor.name);
  }
  return names;
}

const isReplyClass = (name: string): boolean => name === "ErrorReply" || name === "ReplyError";

/** Returns whether an error is a reply of the server. */
export function isErrorReply(error: unknown): error is Error {
  return error instanceof Error && (error instanceof Duplicate || classNames(error).some(isReplyClass));
}

/** Returns the code of an error reply, which is its first word, such as "WRONGTYPE"; undefined for other errors. */
export function codeOf(error: unknown): string | undefined {
  return isErrorReply(error) ? error.message.split(" ", 1)[0] : undefined;
}

/** Returns whether the server refused a connection because it already has maxclients. */
export function isServerFull(error: unknown): error is Error {
  return error instanceof Error && NO_MORE_CONNECTIONS.test(error.message);
}

/** Returns whether an error reply says that the server cannot serve calls now. */
export function isNotServing(error: unknown): boolean {
  return NOT_SERVING.includes(codeOf(error) ?? "");
}

/**
 * Returns whether an error means that Redis cannot be reached: Unreachable, DeadlinePassed, an error of the connection such
 * as ECONNREFUSED, or an error reply such as LOADING. Other error replies are due to the program or the setup.
 */
export function isUnreachable(error: unknown): error is Error {
  // The reasons of signals have the names AbortError and TimeoutError too.
  if (!(error instanceof Error) || error instanceof DOMException) return false;
  const { message } = error;
  if (NO_MORE_CONNECTIONS.test(message)) return false;
  const names = classNames(error);
  if (names.some(isReplyClass)) return isNotServing(error);
  // All clients of a pool of node-redis are in use. The server is there, and an overload must not be let through.
  if (message.startsWith("Timeout waiting for a client")) return false;
  const { code } = error as { code?: unknown };
  if (typeof code === "string" && CODES.has(code)) return true;
  return TEXTS.test(message) || names.some((name) => CLASSES.has(name));
}
