/** The errors of this library, and which errors of a client library mean that Redis cannot be reached. */

import type { Reply } from "./replies.js";

/** A reservation was denied. `reply` says why, and when to try again. */
export class Denied extends Error {
  /** The name of the class. */
  override readonly name: string = "Denied";

  constructor(
    /** The denial. */
    readonly reply: Reply,
  ) {
    super(`denied: ${JSON.stringify(reply)}`);
  }
}

/** The lease ended before the work did, so there was no reservation left to settle. */
export class Lapsed extends Error {
  /** The name of the class. */
  override readonly name: string = "Lapsed";
}

/** Redis cannot be reached. `cause` is the last error of the connection, if any is known. */
export class Unreachable extends Error {
  /** The name of the class. */
  override readonly name: string = "Unreachable";
}

/** Redis did not answer within the limiter's deadline. */
export class DeadlinePassed extends Unreachable {
  /** The name of the class. */
  override readonly name: string = "DeadlinePassed";
}

/**
 * The server answers, but this call had no turn within the deadline: too many calls are under way, or the server accepts no
 * more connections. `unreachable` does not apply, so that no flood is let through. The answer to a request is 503.
 */
export class Busy extends Error {
  /** The name of the class. */
  override readonly name: string = "Busy";
  /** For Express, which sends the status of an error. */
  readonly status = 503;
}

/** The server does not know a command: it has no redis-ratelimit, or one that is too old. */
export class MissingModule extends Error {
  /** The name of the class. */
  override readonly name: string = "MissingModule";
}

/** The server has no policy of the name that a call gives. */
export class UnknownPolicy extends Error {
  /** The name of the class. */
  override readonly name: string = "UnknownPolicy";
}

/** Throws the reason of a signal that has given the call up. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw signal.reason;
}

const REFUSALS = ["ECONNREFUSED", "ENOENT"];
const CODES = new Set([
  ...[...REFUSALS, "ECONNRESET", "ECONNABORTED", "ETIMEDOUT", "EPIPE", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH"],
  ...["ENETUNREACH", "EHOSTDOWN", "ENETDOWN"],
]);
const CLASSES = new Set([
  "Unreachable",
  "DeadlinePassed",
  // node-redis
  "AbortError",
  "ClientClosedError",
  "ClientOfflineError",
  "CommandTimeoutDuringMaintenanceError",
  "ConnectionTimeoutError",
  "DisconnectsClientError",
  "ReconnectStrategyError",
  "RootNodesUnavailableError",
  "SocketClosedUnexpectedlyError",
  "SocketTimeoutDuringMaintenanceError",
  "SocketTimeoutError",
  "TimeoutError",
  // ioredis
  "ClusterAllFailedError",
  "MaxRetriesPerRequestError",
]);
// The libraries have no classes for these.
const TEXTS = new RegExp(
  "^(Connection is closed\\.|Command timed out|Stream isn't writeable|Cluster isn't ready|Cluster is |None of startup nodes" +
    "|None of the sentinels|All sentinels are unreachable|no valid master node|Socket timeout|connect ETIMEDOUT)",
);
// The server answers, but no call can be served: it loads its data, or lost its master, or a slot's, or only some of a
// call's keys have moved with their slot.
const NOBODY_SERVED = ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"];
// The code is ERR, and the libraries have no class for it.
const NO_MORE_CONNECTIONS = /max number of clients reached/i;

function classNames(error: Error): string[] {
  const names = [error.name];
  for (let at: object | null = error; at !== null; at = Object.getPrototypeOf(at) as object | null) {
    names.push(at.constructor.name);
  }
  return names;
}

const isReplyClass = (name: string): boolean => name === "ErrorReply" || name === "ReplyError";

/** Whether the server answered with an error. */
export function isErrorReply(error: unknown): error is Error {
  return error instanceof Error && classNames(error).some(isReplyClass);
}

/** The code of an error reply, which is its first word. Undefined for other errors. */
export function codeOf(error: unknown): string | undefined {
  return isErrorReply(error) ? error.message.split(" ", 1)[0] : undefined;
}

/** Whether the server refuses the connection because it has as many as its maxclients. */
export function isServerFull(error: unknown): error is Error {
  return error instanceof Error && NO_MORE_CONNECTIONS.test(error.message);
}

/**
 * Whether a connection was refused: nothing listens on the port or path, at any address of the host. Where a network is down,
 * or a server accepts and hangs up, the next attempt may be served.
 */
export function isRefused(error: unknown): boolean {
  if (error instanceof AggregateError) return error.errors.length > 0 && error.errors.every(isRefused);
  const { code } = (error ?? {}) as { code?: unknown };
  return typeof code === "string" && REFUSALS.includes(code);
}

/** Whether the server answers, but cannot serve any call now. */
export function servesNobody(error: unknown): boolean {
  return NOBODY_SERVED.includes(codeOf(error) ?? "");
}

/** Whether an error means that Redis cannot be reached. Any other error reply is a mistake in the program or setup. */
export function isUnreachable(error: unknown): error is Error {
  if (!(error instanceof Error)) return false;
  const { message } = error;
  if (NO_MORE_CONNECTIONS.test(message)) return false;
  const names = classNames(error);
  if (names.some(isReplyClass)) return servesNobody(error);
  // A pool of node-redis has no client to give: the server is there, and a flood must not be let through.
  if (message.startsWith("Timeout waiting for a client")) return false;
  const { code } = error as { code?: unknown };
  if (typeof code === "string" && CODES.has(code)) return true;
  return TEXTS.test(message) || names.some((name) => CLASSES.has(name));
}
