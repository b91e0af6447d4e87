/**
 * The limiter's own connections to one server, or to the master that sentinels name: copies of the application's client,
 * made by the duplicate() of its library. Each copy connects once, when a call needs it. When it breaks it is dropped, and
 * the next call makes another one, so no call is sent twice, and none is sent after its caller has stopped waiting.
 *
 * All calls share one connection. A call with `block` would hold up the calls behind it, so it has a connection to itself; a
 * few of these are kept for the next such call.
 */

import { PROBE_MS } from "./breaker.js";
import type { Command } from "./command.js";
import { Busy, codeOf, isErrorReply, isServerFull, Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import { givenUp, limiterClosed, sendCommands, within, type Attempt, type Transport } from "./transport.js";

/** The maximum number of connections for calls with `block` that are kept while no call waits on them. */
const MAX_SPARE = 16;

/** A copy of the application's client, which connects once. */
export interface Copy {
  connect(): Promise<unknown>;
  send(words: Word[]): Promise<unknown>;
  isReady(): boolean;
  close(): void;
  /** The error of the last error event. */
  lastError: unknown;
}

/** Returns a copy that keeps the error of the last error event of its client. */
export function keepError(
  client: { on(event: string, listener: (error: unknown) => void): unknown },
  members: Omit<Copy, "lastError">,
): Copy {
  const copy: Copy = { ...members, lastError: undefined };
  client.on("error", (error) => (copy.lastError = error));
  return copy;
}

/** Returns the longest duration of an attempt to connect: that of a call, but at least that of a probe. */
export const attemptMsOf = (deadline: number): number => Math.max(PROBE_MS, deadline);

/** Connects, and waits until the server answers a PING. */
async function connect(copy: Copy, withinMs: number): Promise<void> {
  const connected = copy.connect();
  let refusal: unknown;
  // Sent with the first bytes, so that a server that hangs up at once can say why in its reply.
  const pinged = copy.send(["PING"]).catch((error: unknown) => {
    // Such as NOPERM or LOADING: the calls that follow are answered too. A full server hangs up.
    if (isErrorReply(error) && !isServerFull(error)) return;
    refusal = error;
    throw error;
  });
  pinged.catch(() => {});
  connected.catch(() => {});
  const late = () => new Unreachable(`no connection within ${withinMs} ms`);
  try {
    await within(withinMs, Promise.all([pinged, connected]), late);
    // ioredis 5 connects although the server refused AUTH or SELECT, and only an event has the reply.
    if (isErrorReply(copy.lastError)) throw copy.lastError;
  } catch (error) {
    // The reply of the server says more than the end of the connection, and may arrive a moment later.
    await new Promise(setImmediate);
    const { lastError } = copy;
    throw [refusal, error, lastError].find((each) => isErrorReply(each) || isServerFull(each)) ?? lastError ?? error;
  }
}

/** The limiter's own connections to a single server. */
export class Connections implements Transport {
  /** Creates a copy, which is not connected yet. */
  readonly #makeCopy: (connectTimeout: number) => Copy | Promise<Copy>;
  /** Returns the settings of the application's client, if they are known. */
  readonly #settings: () => Record<string, unknown> | undefined;
  /** The longest duration of an attempt to connect. */
  readonly #attemptMs: number;
  /** All copies that are not closed. */
  readonly #copies = new Set<Copy>();
  #timesClosed = 0;
  /** The connection for all calls without `block`. */
  #shared: Copy | undefined;
  #opening: Promise<Copy> | undefined;
  /** Connections for calls with `block` on which no call waits. */
  #spare: Copy[] = [];

  constructor(
    makeCopy: (connectTimeout: number) => Copy | Promise<Copy>,
    settings: () => Record<string, unknown> | undefined,
    deadline: number,
  ) {
    [this.#makeCopy, this.#settings, this.#attemptMs] = [makeCopy, settings, attemptMsOf(deadline)];
  }

  get name(): string {
    const options = this.#settings();
    if (options === undefined) return "the server";
    const socket = (options["socket"] ?? options) as { host?: string; port?: number; path?: string };
    if (options["sentinels"]) return `the master ${String(options["name"])} of the sentinels`;
    return socket.path ?? `${socket.host ?? "localhost"}:${socket.port ?? 6379}`;
  }

  async send(command: Command, attempt: Attempt, isAsking = false): Promise<unknown> {
    try {
      return await this.#sendOnce(command, attempt, isAsking);
    } catch (error) {
      // The master became a replica, and did not execute the call. The sentinels are asked for the new one.
      const mayMove = codeOf(error) === "READONLY" && !attempt.over && this.#settings()?.["sentinels"];
      if (!mayMove) throw error;
      attempt.retire?.();
      return this.#sendOnce(command, attempt, isAsking);
    }
  }

  async #sendOnce(command: Command, attempt: Attempt, isAsking: boolean): Promise<unknown> {
    const isBlocking = command.blockMs !== undefined;
    attempt.isSent = false;
    const shared = this.#shared?.isReady() ? this.#shared : undefined;
    const copy = isBlocking ? await this.#takeSpare() : (shared ?? (await this.#openShared()));
    // The server takes nothing for a call whose connection is closed while it waits.
    if (isBlocking) attempt.abandon = () => this.#close(copy);
    attempt.retire = () => this.#retire(copy);
    try {
      if (attempt.over) throw givenUp();
      attempt.isSent = true;
      return await sendCommands(command, copy.send, isAsking);
    } finally {
      if (isBlocking) {
        attempt.abandon = undefined;
        const isKept = !attempt.over && copy.isReady() && this.#copies.has(copy) && this.#spare.length < MAX_SPARE;
        if (isKept) this.#spare.push(copy);
        else this.#close(copy);
      }
    }
  }

  /** Returns a connection for a call with `block`. */
  async #takeSpare(): Promise<Copy> {
    let copy = this.#spare.pop();
    for (; copy !== undefined && !copy.isReady(); copy = this.#spare.pop()) this.#close(copy);
    return copy ?? this.#open();
  }

  #openShared(): Promise<Copy> {
    this.#opening ??= (async () => {
      if (this.#shared !== undefined) this.#close(this.#shared);
      return (this.#shared = await this.#open());
    })().finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  async #open(): Promise<Copy> {
    const timesClosed = this.#timesClosed;
    const copy = await this.#makeCopy(this.#attemptMs);
    this.#copies.add(copy);
    try {
      if (timesClosed === this.#timesClosed) await connect(copy, this.#attemptMs);
      if (timesClosed !== this.#timesClosed) throw limiterClosed();
      return copy;
    } catch (cause) {
      this.#close(copy);
      if (!isServerFull(cause)) throw cause;
      throw new Busy(`the server has no more connections to give: ${cause.message}`, { cause });
    }
  }

  #close(copy: Copy): void {
    if (this.#shared === copy) this.#shared = undefined;
    if (this.#copies.delete(copy)) copy.close();
  }

  /**
   * Sends no more calls on a connection, whose server was silent or became a replica, and on those that wait for a call. It is
   * closed when the calls under way have had their time.
   */
  #retire(copy: Copy): void {
    for (const spare of this.#spare.splice(0)) this.#close(spare);
    if (this.#shared !== copy) return;
    this.#shared = undefined;
    setTimeout(() => this.#close(copy), this.#attemptMs).unref();
  }

  /** Closes the connections. The next call opens one again. */
  close(): void {
    this.#timesClosed += 1;
    this.#spare = [];
    for (const copy of [...this.#copies]) this.#close(copy);
  }
}

/** Calls `close` when the application closes its client. */
export function closeWith(client: object, close: () => void): void {
  const { on } = client as { on?: (event: string, listener: () => void) => unknown };
  on?.call(client, "end", close);
}
