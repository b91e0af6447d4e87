/**
 * The limiter's own connections to one server, or to the master that sentinels name.
 *
 * They are made by the client's duplicate(), with settings that are public options of its library. Each is opened only once.
 * When it breaks it is dropped and another one is opened, so no call is sent twice, and none is sent after its caller has
 * stopped waiting.
 *
 *     opening ---> ready <---> idle
 *                    |           |
 *                    +-----------+---> retired ---> closed
 *
 * - Opening: it connects and waits for the reply to a PING. All callers wait for the same attempt.
 * - Ready: it answers. Calls are sent at once, up to MAX_UNDER_WAY at the same time.
 * - Idle: no call is under way, so the server may have closed it unnoticed. That is checked before the next call is sent.
 * - Retired: no more calls are sent on it. It is closed after the calls under way have had their time. A connection is
 *   retired if it was silent for a whole deadline, if it is closed or its server became a replica, or if a probe has opened
 *   another.
 *
 * A call with `block` would hold up the calls behind it, so it has a connection to itself. A few of these are kept.
 */

import type { Command, Key } from "./command.js";
import { Busy, codeOf, isErrorReply, isRefused, isServerFull, isUnreachable, Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import {
  attemptMsOf,
  closeWith,
  givenUp,
  limiterClosed,
  MAX_SPARE,
  sendCommands,
  sleep,
  startTimer,
  within,
  type Attempt,
  type Transport,
} from "./transport.js";

/** The maximum number of calls under way on a connection. Others wait, and are not sent if their callers give up. */
const MAX_UNDER_WAY = 256;
/** The pause before the next attempt to connect. */
const RETRY_MS = 20;

/** A client of either library that connects once. */
export interface OneTimeClient {
  connect(): Promise<unknown>;
  send(words: Word[]): Promise<unknown>;
  isReady(): boolean;
  close(): void;
  /** The error of the last error event. */
  lastError: unknown;
}

/** Creates the limiter's own clients. */
export interface ClientSource {
  /** Creates a client with the settings of the application's client. It is not connected yet. */
  makeClient(connectTimeout: number): Promise<OneTimeClient>;
  /** Returns the settings of the application's client, if they are known. */
  settings(): Record<string, unknown> | undefined;
}

/** Returns the address that a client connects to, for errors. */
function addressOf(options: Record<string, unknown> | undefined): string {
  if (options === undefined) return "the server";
  const socket = (options["socket"] ?? options) as { host?: string; port?: number; path?: string };
  if (options["sentinels"]) return `the master ${String(options["name"])} of the sentinels`;
  return socket.path ?? `${socket.host ?? "localhost"}:${socket.port ?? 6379}`;
}

/** Returns the duration of a PING in milliseconds; 0 if the reply is an error. Throws if there is no reply. */
async function ping(client: OneTimeClient): Promise<number> {
  const began = performance.now();
  try {
    await client.send(["PING"]);
    return performance.now() - began;
  } catch (error) {
    // Such as NOPERM or LOADING: the calls that follow are answered too. A full server hangs up.
    if (isErrorReply(error) && !isServerFull(error)) return 0;
    throw error;
  }
}

/** An open connection. It is never opened again. */
class Connection {
  readonly #client: OneTimeClient;
  /** The duration of the PING that was sent when the connection was opened. */
  readonly roundTripMs: number;
  #lastAnswer = performance.now();
  #hasAnsweredThisTurn = false;
  #underWay = 0;
  /** The calls that wait until fewer are under way. */
  #queue: { attempt: Attempt; send: () => void }[] = [];
  #idleCheck: Promise<boolean> | undefined;
  #isClosed = false;
  #isReplica = false;

  private constructor(client: OneTimeClient, roundTripMs: number) {
    this.#client = client;
    this.roundTripMs = roundTripMs;
    this.#noteAnswer();
  }

  /** Connects, and waits until the server answers a PING. */
  static async open(client: OneTimeClient, withinMs: number): Promise<Connection> {
    const connected = client.connect();
    let refusal: unknown;
    // Sent with the first bytes, so that a server that hangs up at once can say why in its reply.
    const pinged = ping(client).catch((error: unknown) => {
      refusal = error;
      throw error;
    });
    try {
      const late = () => new Unreachable(`no connection within ${withinMs} ms`);
      const [roundTripMs] = await within(withinMs, Promise.all([pinged, connected]), late);
      // ioredis 5 connects although the server refused AUTH or SELECT, and only an event has the reply.
      if (isErrorReply(client.lastError)) throw client.lastError;
      return new Connection(client, roundTripMs);
    } catch (error) {
      pinged.catch(() => {});
      connected.catch(() => {});
      // The reply of the server says more than the end of the connection, and may arrive a moment later.
      await new Promise(setImmediate);
      client.close();
      const { lastError } = client;
      throw [refusal, error, lastError].find((each) => isErrorReply(each) || isServerFull(each)) ?? lastError ?? error;
    }
  }

  get isReady(): boolean {
    return !this.#isReplica && this.#client.isReady();
  }

  get lastAnswer(): number {
    return this.#lastAnswer;
  }

  get underWay(): number {
    return this.#underWay;
  }

  /** True if the server may have closed it unnoticed: Node reports that some turns of the event loop later. */
  get isIdle(): boolean {
    return this.#underWay === 0 && !this.#hasAnsweredThisTurn;
  }

  /** Sends a PING on an idle connection. Returns false if the server has closed the connection. */
  checkIdle(withinMs: number): Promise<boolean> {
    this.#idleCheck ??= this.#ping(withinMs).finally(() => (this.#idleCheck = undefined));
    return this.#idleCheck;
  }

  async #ping(withinMs: number): Promise<boolean> {
    const timer = startTimer(withinMs, () => this.close());
    try {
      await ping(this.#client);
    } catch (error) {
      if (isErrorReply(error)) throw error;
      return false;
    } finally {
      timer.stop();
    }
    this.#noteAnswer();
    return true;
  }

  #noteAnswer(): void {
    this.#lastAnswer = performance.now();
    if (this.#hasAnsweredThisTurn) return;
    this.#hasAnsweredThisTurn = true;
    setImmediate(() => (this.#hasAnsweredThisTurn = false));
  }

  /** Sends a call, as soon as fewer than MAX_UNDER_WAY are under way. */
  send(command: Command, attempt: Attempt): Promise<unknown> {
    if (attempt.over) return Promise.reject(givenUp());
    if (this.#underWay < MAX_UNDER_WAY) return this.#send(command, attempt);
    return new Promise((resolve, reject) => {
      this.#queue.push({ attempt, send: () => void this.#send(command, attempt).then(resolve, reject) });
    });
  }

  #send(command: Command, attempt: Attempt): Promise<unknown> {
    attempt.isSent = true;
    this.#underWay += 1;
    const reply = sendCommands(command, (words) => this.#client.send(words));
    reply.then(this.#onReply, this.#onError);
    return reply;
  }

  readonly #onReply = (): void => {
    this.#noteAnswer();
    this.#underWay -= 1;
    this.#sendNext();
  };

  readonly #onError = (error: unknown): void => {
    if (isErrorReply(error)) {
      this.#noteAnswer();
      // The next connection asks the sentinels for the master again. Other replies may still follow on this one.
      this.#isReplica ||= codeOf(error) === "READONLY";
    }
    this.#underWay -= 1;
    this.#sendNext();
  };

  #sendNext(): void {
    let next = this.#queue.shift();
    while (next?.attempt.over) next = this.#queue.shift();
    next?.send();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#client.close();
    // Sent on a closed connection, these calls fail.
    for (const { attempt, send } of this.#queue.splice(0)) if (!attempt.over) send();
  }
}

/** The limiter's own connections to a single server: a shared one, and one for each call with `block`. */
export class Connections implements Transport {
  readonly #source: ClientSource;
  readonly #deadline: number | undefined;
  /** The longest duration of an attempt to connect, and of a PING. */
  readonly #attemptMs: number;
  #timesClosed = 0;
  /** The connection for all calls without `block`. */
  #shared: Connection | undefined;
  #opening: Promise<Connection> | undefined;
  readonly #connecting = new Set<OneTimeClient>();
  /** Connections on which calls with `block` wait. */
  readonly #inUse = new Set<Connection>();
  /** Connections for calls with `block` on which no call waits. */
  #spare: Connection[] = [];
  /** The error of the last attempt to connect; undefined if it succeeded. */
  lastError: unknown = undefined;

  constructor(source: ClientSource, deadline: number | undefined) {
    this.#source = source;
    this.#deadline = deadline;
    this.#attemptMs = attemptMsOf(deadline);
  }

  get name(): string {
    return addressOf(this.#source.settings());
  }

  send(command: Command, attempt: Attempt): Promise<unknown> {
    const reply = this.#sendOnce(command, attempt);
    if (!this.#source.settings()?.["sentinels"]) return reply;
    return reply.catch((error: unknown) => {
      // The master became a replica, and did not execute the call. The sentinels are asked for the new one.
      if (codeOf(error) !== "READONLY" || attempt.over) throw error;
      return this.#sendOnce(command, attempt);
    });
  }

  #sendOnce(command: Command, attempt: Attempt): Promise<unknown> {
    if (command.blockMs !== undefined) return this.#sendBlocking(command, attempt);
    const shared = this.#shared;
    if (shared?.isReady && !shared.isIdle) return shared.send(command, attempt);
    return this.#readyShared(attempt).then((connection) => connection.send(command, attempt));
  }

  /** Opens another shared connection. Resolves when the server has answered on it. */
  async probe(): Promise<void> {
    const previous = this.#shared;
    await this.#openShared();
    if (previous !== undefined) this.#retire(previous);
  }

  /** Retires the shared connection if it has been silent since `began`, when a call began that got no answer in time. */
  recordSilence(_: Key | undefined, began: number): void {
    if (this.#shared !== undefined && this.#shared.lastAnswer < began) this.#retire(this.#shared);
  }

  /** Closes the connections. The next call opens one again. */
  close(): void {
    this.#timesClosed += 1;
    this.#shared?.close();
    this.#shared = undefined;
    for (const client of this.#connecting) client.close();
    for (const connection of [...this.#inUse, ...this.#spare.splice(0)]) connection.close();
  }

  #retire(connection: Connection): void {
    if (this.#shared === connection) this.#shared = undefined;
    if (connection.underWay === 0) connection.close();
    else setTimeout(() => connection.close(), this.#attemptMs).unref();
  }

  #openShared(): Promise<Connection> {
    this.#opening ??= this.#open()
      .then((connection) => (this.#shared = connection))
      .finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  /** Opens a connection. After an error that may pass there is a pause, as the callers then try again. */
  async #open(): Promise<Connection> {
    const timesClosed = this.#timesClosed;
    let client: OneTimeClient | undefined;
    try {
      client = await this.#source.makeClient(this.#attemptMs);
      this.#connecting.add(client);
      const connection = await Connection.open(client, this.#attemptMs);
      this.lastError = undefined;
      if (timesClosed === this.#timesClosed) return connection;
      connection.close();
      throw limiterClosed();
    } catch (cause) {
      const error = isServerFull(cause)
        ? new Busy(`the server has no more connections to give: ${cause.message}`, { cause })
        : cause;
      this.lastError = error;
      if (this.#mayPass(error)) await sleep(RETRY_MS);
      throw error;
    } finally {
      if (client !== undefined) this.#connecting.delete(client);
    }
  }

  /** Returns whether another attempt may succeed before the deadline. It is not made if no server is there. */
  #mayPass(error: unknown): boolean {
    if (this.#deadline === undefined || isRefused(error) || isErrorReply(error)) return false;
    return isUnreachable(error) || error instanceof Busy;
  }

  /** Calls `find` until it returns a connection, fails for good, or fails when the call was given up. */
  async #retry(attempt: Attempt, find: () => Promise<Connection | undefined>): Promise<Connection> {
    const timesClosed = this.#timesClosed;
    for (;;) {
      if (timesClosed !== this.#timesClosed) throw limiterClosed();
      try {
        const connection = await find();
        if (connection !== undefined) return connection;
      } catch (error) {
        if (attempt.over || !this.#mayPass(error)) throw error;
      }
    }
  }

  /** Returns the shared connection when the server answers on it. */
  #readyShared(attempt: Attempt): Promise<Connection> {
    return this.#retry(attempt, async () => {
      const shared = this.#shared;
      if (shared === undefined) return this.#openShared();
      if (shared.isReady && (!shared.isIdle || (await this.#isStillOpen(shared)))) return shared;
      this.#retire(shared);
      return undefined;
    });
  }

  async #isStillOpen(idle: Connection): Promise<boolean> {
    // If the server is far away, a PING would take too much of the call's time.
    const isNear = this.#deadline === undefined || idle.roundTripMs * 8 < this.#deadline;
    if (isNear) return idle.checkIdle(this.#attemptMs);
    // The event loop reads what has arrived in one turn, and acts on it in the next.
    for (let turn = 0; turn < 3; turn += 1) await new Promise(setImmediate);
    return idle.isReady;
  }

  /** Sends a call with `block` on a connection of its own. */
  async #sendBlocking(command: Command, attempt: Attempt): Promise<unknown> {
    const timesClosed = this.#timesClosed;
    const isClosed = () => timesClosed !== this.#timesClosed;
    const connection = await this.#retry(attempt, async () => {
      const spare = this.#spare.pop();
      if (spare === undefined) return this.#open();
      if (spare.isReady && (await spare.checkIdle(this.#attemptMs))) return spare;
      spare.close();
      return undefined;
    });
    this.#inUse.add(connection);
    // The server takes nothing for a call whose connection is closed while it waits.
    attempt.abandon = () => connection.close();
    try {
      if (isClosed()) throw limiterClosed();
      return await connection.send(command, attempt);
    } catch (error) {
      throw isClosed() && !isErrorReply(error) ? limiterClosed() : error;
    } finally {
      attempt.abandon = undefined;
      this.#inUse.delete(connection);
      const isWanted = !isClosed() && !attempt.over && this.#spare.length < MAX_SPARE;
      if (isWanted && connection.isReady) this.#spare.push(connection);
      else connection.close();
    }
  }
}

/** Returns connections with the settings of a client, which are closed with it. */
export function connectionsLike<Given extends { readonly options?: Record<string, unknown> | undefined }>(
  client: Given,
  makeClient: (client: Given, connectTimeout: number) => OneTimeClient,
  deadline: number | undefined,
): Connections {
  const source: ClientSource = {
    makeClient: (connectTimeout) => Promise.resolve(makeClient(client, connectTimeout)),
    settings: () => client.options ?? {},
  };
  const connections = new Connections(source, deadline);
  closeWith(client, () => connections.close());
  return connections;
}
