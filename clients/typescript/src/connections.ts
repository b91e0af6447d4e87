/**
 * Connections of the limiter's own to one server, or to the master that sentinels name. They are made by the client's
 * duplicate() with settings that are public options of the client library. A connection that breaks is thrown away and
 * another is opened, so nothing is ever sent twice, and nothing that was given up is sent later.
 */

import type { Command, Key } from "./calls.js";
import { Busy, codeOf, isErrorReply, isRefused, isServerFull, isUnreachable, Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import {
  attemptMsOf,
  gone,
  MOST_SPARE,
  sleep,
  transaction,
  within,
  type Attempt,
  type Transport,
} from "./transport.js";

/** So many calls are under way on a connection at most. Others wait, and are not sent if they are given up. */
const MOST_UNDER_WAY = 256;
/** The pause before another attempt to connect. */
const RETRY_MS = 20;

/** A client of either library that connects once. */
export interface OneTimeClient {
  connect(): Promise<unknown>;
  send(words: Word[]): Promise<unknown>;
  isReady(): boolean;
  close(): void;
  /** What an error event said. */
  lastError: unknown;
}

/** Creates the limiter's own clients. */
export interface Source {
  /** A client with the settings of the one that the limiter was given, which is not connected yet. */
  makeClient(connectTimeout: number): Promise<OneTimeClient>;
  /** Those settings, as far as they are known. */
  settings(): Record<string, unknown> | undefined;
}

/** The address that a client connects to. */
function addressOf(options: Record<string, unknown> | undefined): string {
  const at = (options?.["socket"] ?? options ?? {}) as { host?: string; port?: number; path?: string };
  if (options?.["sentinels"]) return `the master ${String(options["name"])} of the sentinels`;
  return at.path ?? `${at.host ?? "localhost"}:${at.port ?? 6379}`;
}

/** Returns the duration of a PING in milliseconds; 0 if the reply is an error. Throws if there is no reply. */
async function roundTripOf(client: OneTimeClient): Promise<number> {
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

/** What is sent of a command. */
type Sent = Pick<Command, "words" | "more">;

/** An open connection. It is never opened again. */
class Connection {
  readonly #client: OneTimeClient;
  /** How long a PING took when it was opened. */
  readonly roundTripMs: number;
  #lastAnswer = performance.now();
  #underWay = 0;
  #isFresh = false;
  #isClosed = false;
  #isReplica = false;
  #check: Promise<boolean> | undefined;
  #queue: (() => void)[] = [];

  private constructor(client: OneTimeClient, roundTripMs: number) {
    this.#client = client;
    this.roundTripMs = roundTripMs;
    this.#answered();
  }

  /** Connects, and asks the server whether it serves. */
  static async open(client: OneTimeClient, withinMs: number): Promise<Connection> {
    const connected = client.connect();
    let refusal: unknown;
    // Sent with the first bytes, so that what the server says when it hangs up at once is the answer to it.
    const asked = roundTripOf(client).catch((error: unknown) => {
      refusal = error;
      throw error;
    });
    try {
      const late = () => new Unreachable(`no connection within ${withinMs} ms`);
      const [roundTripMs] = await within(withinMs, Promise.all([asked, connected]), late);
      return new Connection(client, roundTripMs);
    } catch (error) {
      asked.catch(() => {});
      connected.catch(() => {});
      // What the server said is worth more than that the connection was closed, and may come a moment later.
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

  /**
   * Whether it may have been closed unnoticed: Node reports that some turns of the event loop later. It is not idle with
   * calls under way, nor in the turn in which it answered.
   */
  get isIdle(): boolean {
    return this.#underWay === 0 && !this.#isFresh;
  }

  /** Whether the server answers on it. One that the server closed while it was idle does not. */
  answers(withinMs: number): Promise<boolean> {
    this.#check ??= this.#ask(withinMs).finally(() => (this.#check = undefined));
    return this.#check;
  }

  async #ask(withinMs: number): Promise<boolean> {
    const timer = setTimeout(() => this.close(), withinMs);
    try {
      await roundTripOf(this.#client);
    } catch (error) {
      if (isErrorReply(error)) throw error;
      return false;
    } finally {
      clearTimeout(timer);
    }
    this.#answered();
    return true;
  }

  #answered(): void {
    this.#lastAnswer = performance.now();
    if (this.#isFresh) return;
    this.#isFresh = true;
    setImmediate(() => (this.#isFresh = false));
  }

  /** Sends a call, once there is room for it. */
  send(call: Sent, attempt: Attempt): Promise<unknown> {
    if (this.#underWay < MOST_UNDER_WAY) return this.#send(call, attempt);
    return new Promise((resolve, reject) => {
      this.#queue.push(() => {
        if (attempt.over) this.#next();
        else this.#send(call, attempt).then(resolve, reject);
      });
    });
  }

  #send({ words, more }: Sent, attempt: Attempt): Promise<unknown> {
    attempt.isSent = true;
    this.#underWay += 1;
    const reply =
      more === undefined ? this.#client.send(words) : transaction([words, ...more], (each) => this.#client.send(each));
    reply.then(this.#heard, this.#failed);
    return reply;
  }

  readonly #heard = (): void => {
    this.#answered();
    this.#underWay -= 1;
    this.#next();
  };

  readonly #failed = (error: unknown): void => {
    if (isErrorReply(error)) {
      this.#answered();
      // A master that became a replica: the next connection asks the sentinels again. Other errors may follow on this one.
      this.#isReplica ||= codeOf(error) === "READONLY";
    }
    this.#underWay -= 1;
    this.#next();
  };

  #next(): void {
    this.#queue.shift()?.();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#client.close();
    // What still waits for room fails with the connection.
    for (const each of this.#queue.splice(0)) each();
  }
}

/** The limiter's own connections to a single server: one for all calls that do not wait, and one for each that does. */
export class Connections implements Transport {
  readonly #source: Source;
  readonly #deadline: number | undefined;
  /** How long an attempt to connect, or a PING, may take. */
  readonly #attemptMs: number;
  /** How many times it was closed. */
  #closed = 0;
  #current: Connection | undefined;
  #opening: Promise<Connection> | undefined;
  #spare: Connection[] = [];
  /** What went wrong when a connection was opened last. */
  lastError: unknown = undefined;

  constructor(source: Source, deadline: number | undefined) {
    this.#source = source;
    this.#deadline = deadline;
    this.#attemptMs = attemptMsOf(deadline);
  }

  get name(): string {
    return addressOf(this.#source.settings());
  }

  nodeOf(): string {
    return "";
  }

  async sendToAll(call: Command, attempt: Attempt): Promise<unknown[]> {
    return [await this.send(call, attempt)];
  }

  send(call: Command, attempt: Attempt): Promise<unknown> {
    if (call.blockMs !== undefined) return this.#sendWaiting(call, attempt);
    const connection = this.#current;
    if (connection?.isReady && !connection.isIdle) return connection.send(call, attempt);
    return this.#serving(attempt).then((found) => found.send(call, attempt));
  }

  /** Opens another connection and resolves once the server answers on it. */
  async probe(): Promise<void> {
    const before = this.#current;
    await this.#reopen();
    if (before !== undefined) this.#retire(before);
  }

  /** A call that began at `began` had no answer in time. Its connection is not used again if it was silent all the time. */
  silent(_: Key | undefined, began: number): void {
    if (this.#current !== undefined && this.#current.lastAnswer < began) this.#retire(this.#current);
  }

  /** Closes them. The next call opens one again. */
  close(): void {
    this.#closed += 1;
    this.#current?.close();
    this.#current = undefined;
    for (const connection of this.#spare.splice(0)) connection.close();
  }

  /** No call is sent on a connection any more. */
  #retire(connection: Connection): void {
    if (this.#current === connection) this.#current = undefined;
    if (connection.underWay === 0) connection.close();
    // The calls that are still under way on it have their time.
    else setTimeout(() => connection.close(), this.#attemptMs).unref();
  }

  /** A new connection for all calls that do not wait. It is opened once, however many want it. */
  #reopen(): Promise<Connection> {
    this.#opening ??= this.#open().then(
      (connection) => {
        this.#opening = undefined;
        this.#current = connection;
        return connection;
      },
      async (error: unknown) => {
        // One pause for all that wait for it.
        if (this.#mayPass(error)) await sleep(RETRY_MS);
        this.#opening = undefined;
        throw error;
      },
    );
    return this.#opening;
  }

  /** Whether another attempt may go better, as long as the caller waits. If no server is there it need not wait. */
  #mayPass(error: unknown): boolean {
    if (this.#deadline === undefined || isRefused(error) || isErrorReply(error)) return false;
    return isUnreachable(error) || error instanceof Busy;
  }

  /** A new connection; `lastError` is why there is none. */
  async #open(): Promise<Connection> {
    const closed = this.#closed;
    const withinMs = this.#attemptMs;
    try {
      const connection = await Connection.open(await this.#source.makeClient(withinMs), withinMs);
      this.lastError = undefined;
      if (closed === this.#closed) return connection;
      connection.close();
      throw new Error("the limiter was closed");
    } catch (error) {
      const full = isServerFull(error);
      this.lastError = full
        ? new Busy(`the server has no more connections to give: ${error.message}`, { cause: error })
        : error;
      throw this.lastError;
    }
  }

  /** A new connection. Before an error that may pass is thrown there is a pause, as another attempt follows. */
  async #openOrPause(): Promise<Connection> {
    try {
      return await this.#open();
    } catch (error) {
      if (this.#mayPass(error)) await sleep(RETRY_MS);
      throw error;
    }
  }

  /** Tries until it has a connection on which the server answers, or the call is cancelled. */
  async #patiently(attempt: Attempt, take: () => Promise<Connection | undefined>): Promise<Connection> {
    for (;;) {
      try {
        const connection = await take();
        if (connection !== undefined) {
          if (attempt.over) throw gone();
          return connection;
        }
      } catch (error) {
        if (attempt.over || !this.#mayPass(error)) throw error;
      }
    }
  }

  /** The connection for all calls that do not wait, on which the server answers. */
  #serving(attempt: Attempt): Promise<Connection> {
    return this.#patiently(attempt, async () => {
      const connection = this.#current;
      if (connection === undefined) return this.#reopen();
      if (connection.isReady && (!connection.isIdle || (await this.#stillThere(connection)))) return connection;
      this.#retire(connection);
      return undefined;
    });
  }

  /** Returns whether an idle connection is still open. */
  async #stillThere(connection: Connection): Promise<boolean> {
    // Far away a PING would take what the call has.
    const isNear = this.#deadline === undefined || connection.roundTripMs * 8 < this.#deadline;
    if (isNear) return connection.answers(this.#attemptMs);
    // What has arrived from the network is read in one turn of the event loop, and acted on in the next.
    for (let turn = 0; turn < 3; turn += 1) await new Promise(setImmediate);
    return connection.isReady;
  }

  /** Sends a call that waits, on a connection of its own. */
  async #sendWaiting(call: Command, attempt: Attempt): Promise<unknown> {
    const connection = await this.#patiently(attempt, async () => {
      const spare = this.#spare.pop();
      const found = spare ?? (await this.#openOrPause());
      const serves = spare === undefined || (spare.isReady && (await spare.answers(this.#attemptMs)));
      if (serves && !attempt.over) return found;
      found.close();
      return serves ? Promise.reject(gone()) : undefined;
    });
    const closed = this.#closed;
    // A call that is given up hangs up: then it takes nothing.
    attempt.abandon = () => connection.close();
    try {
      return await connection.send(call, attempt);
    } finally {
      attempt.abandon = undefined;
      const isWanted = closed === this.#closed && !attempt.over && this.#spare.length < MOST_SPARE;
      if (isWanted && connection.isReady) this.#spare.push(connection);
      else connection.close();
    }
  }
}
