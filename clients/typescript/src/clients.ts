/** One way to send a call through every client, and which errors mean that Redis cannot be reached. */

import type { Key } from "./calls.js";
import type { Word } from "./limits.js";

/** A client, cluster client or pool of node-redis. */
export interface NodeRedis {
  // The arguments differ between clients, pools, sentinels and clusters, see `send`.
  sendCommand(...args: any[]): Promise<any>;
}

/** A client or cluster client of ioredis. */
export interface Ioredis {
  call(command: string, ...args: any[]): Promise<any>;
}

export type Client = NodeRedis | Ioredis;

interface Kind {
  isIoredis: boolean;
  isCluster: boolean;
  isSentinel: boolean;
}

function kindOf(client: Client): Kind {
  const isIoredis = "call" in client && typeof client.call === "function";
  if (!isIoredis && !("sendCommand" in client)) throw new TypeError("the client must be one of node-redis or ioredis");
  return {
    isIoredis,
    isCluster: isIoredis ? (client as { isCluster?: unknown }).isCluster === true : "nodeByAddress" in client,
    isSentinel: !isIoredis && "getSentinelNode" in client,
  };
}

/** Sends a command. What the client has not sent yet when `signal` is aborted, it does not send, where it can. */
export function send(client: Client, key: Key, words: Word[], readonly: boolean, signal?: AbortSignal): Promise<unknown> {
  const { isIoredis, isCluster, isSentinel } = kindOf(client);
  if (isIoredis) {
    const [name, ...rest] = words;
    return (client as Ioredis).call(String(name), ...rest);
  }
  const { sendCommand } = client as NodeRedis;
  const options = signal === undefined ? [] : [{ abortSignal: signal }];
  if (isCluster) return sendCommand.call(client, key, readonly, words, ...options);
  if (isSentinel) return sendCommand.call(client, readonly, words, ...options);
  return sendCommand.call(client, words, ...options);
}

interface Duplicable {
  duplicate(...overrides: unknown[]): Client & Line;
  options?: Record<string, unknown>;
}

interface Line {
  on(event: "error", listener: () => void): unknown;
  connect(): Promise<unknown>;
  destroy?(): unknown;
  disconnect(): unknown;
}

/**
 * Connections for calls that wait, as such a call holds up whatever comes after it on its connection. They are opened as
 * they are needed, with the settings of the client, and used again. A pool and a sentinel client have connections enough.
 */
export class Lines {
  readonly #client: Client;
  #idle: (Client & Line)[] = [];
  #closed = false;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Whether calls that wait need connections of their own. */
  get needed(): boolean {
    return typeof (this.#client as Partial<Duplicable>).duplicate === "function" && !("execute" in this.#client);
  }

  async take(): Promise<Client & Line> {
    const idle = this.#idle.pop();
    if (idle !== undefined) return idle;
    const { isIoredis, isCluster } = kindOf(this.#client);
    const source = this.#client as unknown as Duplicable;
    let line: Client & Line;
    if (isCluster) {
      line = source.duplicate();
    } else if (isIoredis) {
      // A line that breaks is thrown away, and a call is never sent twice.
      const once = { retryStrategy: () => null, maxRetriesPerRequest: 0, autoResendUnfulfilledCommands: false };
      line = source.duplicate({ ...once, lazyConnect: true, commandTimeout: undefined, socketTimeout: undefined });
    } else {
      const socket = { ...(source.options?.["socket"] as object | undefined), reconnectStrategy: false, socketTimeout: undefined };
      line = source.duplicate({ socket, commandOptions: undefined, disableOfflineQueue: false });
    }
    line.on("error", () => {});
    try {
      // A cluster client of ioredis connects by itself unless it was told not to.
      if (!(isIoredis && isCluster)) await line.connect();
    } catch (error) {
      hangUp(line);
      throw error;
    }
    return line;
  }

  /** Takes a line back for the next call. */
  giveBack(line: Client & Line): void {
    const broken = (line as { isOpen?: unknown }).isOpen === false || (line as { status?: unknown }).status === "end";
    if (this.#closed || broken || this.#idle.length >= 16) hangUp(line);
    else this.#idle.push(line);
  }

  close(): void {
    this.#closed = true;
    for (const line of this.#idle.splice(0)) hangUp(line);
  }
}

/** Closes a connection at once. A call that still waits on it leaves its line and takes nothing. */
export function hangUp(line: Line): void {
  try {
    const closing = line.destroy === undefined ? line.disconnect() : line.destroy();
    if (closing instanceof Promise) closing.catch(() => {});
  } catch {
    // It is closed already.
  }
}

/** Redis did not answer within the limiter's deadline. */
export class DeadlineError extends Error {
  override readonly name = "DeadlineError";
}

const CODES = new Set(
  "ECONNREFUSED ECONNRESET ECONNABORTED ETIMEDOUT EPIPE ENOTFOUND EAI_AGAIN EHOSTUNREACH ENETUNREACH EHOSTDOWN ENETDOWN ENOENT".split(" "),
);
const CLASSES = new Set([
  "DeadlineError",
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
// ioredis has no classes for these.
const TEXTS =
  /^(Connection is closed\.|Command timed out|Stream isn't writeable|Cluster isn't ready|Cluster is disconnect|None of startup nodes|Socket timeout|connect ETIMEDOUT)/;
// The server answers, but nobody can be served: it loads its data, or lost its master, or a slot's, or only some of a
// call's keys have moved with their slot.
const NOBODY_SERVED = /^(LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN) /;

function classNames(error: object): string[] {
  const names = [];
  for (let at = Object.getPrototypeOf(error); at !== null; at = Object.getPrototypeOf(at)) {
    names.push(String(at.constructor?.name), String(at.name));
  }
  return names;
}

/** Whether an error means that Redis cannot be reached. Any other error reply is a mistake in the program or setup. */
export function outOfReach(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const names = [error.name, ...classNames(error)];
  if (names.includes("ErrorReply") || names.includes("ReplyError")) return NOBODY_SERVED.test(error.message);
  // A pool of node-redis has no client to give: the server is there, and a flood must not be let through.
  if (error.message.startsWith("Timeout waiting for a client")) return false;
  const code = (error as { code?: unknown }).code;
  return (typeof code === "string" && CODES.has(code)) || names.some((name) => CLASSES.has(name)) || TEXTS.test(error.message);
}
