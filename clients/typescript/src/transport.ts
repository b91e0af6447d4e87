/** Transports: they send calls to a server or a cluster, through any of the clients. */

import { PROBE_MS } from "./breaker.js";
import type { Command, Key } from "./command.js";
import { ReplyError } from "./engine.js";
import { Closed, codeOf, isErrorReply, Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import { slotOf } from "./slot.js";

/** The state of one call, shared between its caller and the transport that sends it. */
export interface Attempt {
  /** True if the caller has its result already. Then nothing more may be sent. */
  over: boolean;
  /** Called by the caller when it sets `over`. */
  abandon?: (() => void) | undefined;
  /** True if the call was given to a connection, so that the server may have executed it. */
  isSent?: boolean;
}

/** The property of a stand-in for a client that holds its transport. */
export const OWN_TRANSPORT = Symbol.for("redis-ratelimit-client.transport");

/** Sends calls to a server or a cluster. */
export interface Transport {
  /** The name of the server in errors. */
  readonly name: string;
  /** The error of the last attempt to connect, if it failed. */
  readonly lastError?: unknown;
  send(command: Command, attempt: Attempt): Promise<unknown>;
  /** Returns the reply if it is available without waiting, else undefined. */
  atOnce?(command: Command): unknown;
  /** Resolves when the node of a key answers. */
  probe(key: Key | undefined): Promise<void>;
  /** Called if a call that began at `began`, by performance.now(), got no answer in time. */
  recordSilence?(key: Key | undefined, began: number): void;
  /** Closes the connections that it opened. */
  close?(): void;

  // Of a cluster:

  /** Returns the node that has a key. Each node has its own breaker. */
  nodeOf?(key: Key | undefined): string;
  /** Returns whether nodeOf() may still return a node. Without it, all nodes are kept. */
  hasNode?(node: string): boolean;
  /** Sends a call to each node that takes writes. */
  sendToAll?(command: Command, attempt: Attempt): Promise<unknown[]>;
}

/** The longest delay of setTimeout. */
export const MAX_TIMEOUT_MS = 2 ** 31 - 1;
/** The longest that a timer goes on because it fired late. */
const MAX_MORE_MS = 20;

/** A timer that can be stopped. */
interface StoppableTimer {
  stop(): void;
  /** Lets the program end before the timer fires. */
  unref(): void;
}

/** Calls `act` after the replies that have arrived are read. Browsers have no setImmediate. */
export function afterReplies(act: () => void): void {
  if (typeof setImmediate === "function") setImmediate(act);
  else setTimeout(act, 0);
}

/**
 * Calls `expire` after `ms` milliseconds, with how late the timer was. After the program was busy, timers fire before
 * replies that have arrived are read, and a call may have only just been written. So it waits for as long again as it was
 * late, up to MAX_MORE_MS.
 */
export function startTimer(ms: number, expire: (lateMs: number) => void): StoppableTimer {
  if (ms > MAX_TIMEOUT_MS) return { stop: () => {}, unref: () => {} };
  const due = performance.now() + ms;
  let isStopped = false;
  let keepsRunning = true;
  const start = (act: () => void, delay: number) => {
    timer = setTimeout(act, delay);
    // Browsers have no unref.
    if (!keepsRunning) (timer as { unref?: () => void }).unref?.();
  };
  let timer: ReturnType<typeof setTimeout>;
  start(() => {
    const firstMs = performance.now() - due;
    const moreMs = Math.min(firstMs, MAX_MORE_MS);
    start(() => {
      const lateMs = Math.max(firstMs, performance.now() - due - moreMs);
      afterReplies(() => {
        if (!isStopped) expire(lateMs);
      });
    }, moreMs);
  }, ms);
  return {
    stop: () => {
      isStopped = true;
      clearTimeout(timer);
    },
    unref: () => {
      keepsRunning = false;
      (timer as { unref?: () => void }).unref?.();
    },
  };
}

/** Resolves as `work` does. After `ms` milliseconds it rejects with the error that `late` creates. */
export async function within<T>(ms: number, work: Promise<T>, late: () => Error): Promise<T> {
  let timer: StoppableTimer | undefined;
  const timeout = new Promise<never>((_, reject) => {
    timer = startTimer(ms, () => reject(late()));
  });
  try {
    return await Promise.race([work, timeout]);
  } finally {
    timer?.stop();
  }
}

/** Calls `close` when the application closes its client. */
export function closeWith(client: object, close: () => void): void {
  const { on } = client as { on?: (event: string, listener: () => void) => unknown };
  on?.call(client, "end", close);
}

/** The maximum number of connections for calls with `block` that are kept while no call waits on them. */
export const MAX_SPARE = 16;
/** The longest attempt to connect without a deadline. */
const LONG_ATTEMPT_MS = 5000;

/** Returns the longest duration of an attempt to connect: that of a call, but at least that of a probe. */
export const attemptMsOf = (deadline: number | undefined): number =>
  deadline === undefined ? LONG_ATTEMPT_MS : Math.max(PROBE_MS, deadline);

export const sleep = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

type Send = (words: Word[]) => Promise<unknown>;

/**
 * Sends commands as one transaction, and returns the reply of EXEC. They are all sent in this turn of the event loop, so
 * that no others come between them.
 */
export async function sendTransaction(commands: Word[][], send: Send, isAsking = false): Promise<unknown> {
  const before = isAsking ? [["ASKING"], ["MULTI"]] : [["MULTI"]];
  const replies = await Promise.allSettled([...before, ...commands, ["EXEC"]].map(send));
  // The error of a command that was refused before EXEC says why nothing was executed; the error of EXEC does not.
  const refused = replies.find((reply) => reply.status === "rejected");
  if (refused !== undefined) throw refused.reason;
  return (replies.at(-1) as PromiseFulfilledResult<unknown>).value;
}

/** Sends the words of a call, or its transaction. */
export const sendCommands = ({ words, transaction }: Command, send: Send): Promise<unknown> =>
  transaction === undefined ? send(words) : sendTransaction(transaction, send);

/** Returns the error of a call that was given up. Only a probe shows it: others have rejected before. */
export const givenUp = (): Unreachable => new Unreachable("the call was given up before it was answered");

/** Returns the error of a call that was connecting or waiting when the limiter was closed. */
export const limiterClosed = (): Closed => new Closed("the limiter was closed");

/** Sends calls through a client whose connections the limiter does not manage. */
export abstract class ClientTransport<Given> implements Transport {
  protected readonly client: Given;
  lastError: unknown = undefined;

  constructor(client: Given) {
    this.client = client;
  }

  abstract readonly name: string;

  abstract send(command: Command, attempt: Attempt): Promise<unknown>;

  async probe(key: Key | undefined): Promise<void> {
    const attempt: Attempt = { over: false };
    const words: Word[] = key === undefined ? ["PING"] : ["EXISTS", key];
    try {
      await within(PROBE_MS, this.send({ key, words, readonly: false }, attempt), () => {
        attempt.over = true;
        attempt.abandon?.();
        return givenUp();
      });
    } catch (error) {
      if (!isErrorReply(error)) throw error;
    }
  }
}

/** The maximum number of redirections of a transaction: a cluster whose nodes disagree replies MOVED forever. */
const MAX_REDIRECTS = 5;

/** The member of a cluster client that is used here. */
interface ClusterClient {
  connect(): Promise<unknown>;
}

/** Executes a transaction on a node of a cluster, after ASKING if the slot is being moved to that node. */
export type Transact = (commands: Word[][], isAsking: boolean) => Promise<unknown>;

/**
 * Sends calls through a cluster client. A call with `block` would hold up the calls behind it on its connection, so it has a
 * duplicate of the client to itself. A few duplicates are kept for the next such call.
 */
export abstract class ClusterTransport<Given extends ClusterClient> extends ClientTransport<Given> {
  readonly name = "the cluster";
  /** The longest duration of an attempt to connect. */
  protected readonly connectTimeout: number;
  protected timesClosed = 0;
  /** The duplicates that connect for calls with `block`, or on which such calls wait. */
  readonly #inUse = new Set<Given>();
  #spare: Given[] = [];

  constructor(client: Given, deadline: number | undefined) {
    super(client);
    this.connectTimeout = attemptMsOf(deadline);
    closeWith(client, () => this.close());
  }

  abstract nodeOf(key: Key | undefined): string;
  protected abstract makeDuplicate(): Given;
  protected abstract hangUp(client: Given): void;
  /** Sends a single command through a client. */
  protected abstract ask(client: Given, command: Command, attempt: Attempt): Promise<unknown>;
  /** Returns the node at an address, connected; undefined if the client does not know the address. */
  protected abstract nodeAt(client: Given, address: string, attempt: Attempt): Promise<Transact | undefined>;

  /** Executes a transaction on the node that has its keys, and follows redirections. */
  protected async transact(client: Given, key: Key, commands: Word[][], attempt: Attempt): Promise<unknown> {
    if (new Set(commands.map(([, keyOfCommand = ""]) => slotOf(keyOfCommand))).size > 1) {
      throw new ReplyError("CROSSSLOT the keys of one step must lie in one slot");
    }
    let address = this.nodeOf(key);
    let isAsking = false;
    for (let redirects = 0; ; redirects += 1) {
      const execute = await this.#connectedNode(client, address, key, attempt);
      if (attempt.over) throw givenUp();
      attempt.isSent = true;
      try {
        return await execute(commands, isAsking);
      } catch (error) {
        const code = codeOf(error);
        // If one of the commands was redirected, none was executed.
        if ((code !== "MOVED" && code !== "ASK") || redirects === MAX_REDIRECTS) throw error;
        isAsking = code === "ASK";
        address = (error as Error).message.split(" ")[2] ?? "";
      }
    }
  }

  async #connectedNode(client: Given, address: string, key: Key, attempt: Attempt): Promise<Transact> {
    const node = await this.nodeAt(client, address, attempt);
    if (node !== undefined) return node;
    // A client that is redirected looks at the cluster again.
    await this.ask(client, { key, words: ["EXISTS", key], readonly: true }, attempt);
    const discovered = await this.nodeAt(client, address || this.nodeOf(key), attempt);
    if (discovered === undefined) throw new Unreachable(`the cluster's client does not know the node ${address}`);
    return discovered;
  }

  /** Sends a call with `block` through a duplicate of the client. */
  protected async sendBlocking(command: Command, attempt: Attempt): Promise<unknown> {
    const { timesClosed } = this;
    const isClosed = () => timesClosed !== this.timesClosed;
    const spare = this.#spare.pop();
    const client = spare ?? this.makeDuplicate();
    this.#inUse.add(client);
    attempt.abandon = () => this.hangUp(client);
    let isAnswered = false;
    try {
      if (spare === undefined) await within(this.connectTimeout, client.connect(), () => this.connectError());
      if (attempt.over || isClosed()) throw givenUp();
      attempt.isSent = true;
      const reply = await this.ask(client, command, { over: false });
      isAnswered = true;
      return reply;
    } catch (error) {
      isAnswered = attempt.isSent === true && isErrorReply(error);
      throw isClosed() && !isAnswered ? limiterClosed() : error;
    } finally {
      attempt.abandon = undefined;
      this.#inUse.delete(client);
      // A client that did not connect would try again, forever.
      if (isAnswered && !attempt.over && !isClosed() && this.#spare.length < MAX_SPARE) this.#spare.push(client);
      else this.hangUp(client);
    }
  }

  protected connectError(): Unreachable {
    return new Unreachable(`no connection within ${this.connectTimeout} ms`, { cause: this.lastError });
  }

  close(): void {
    this.timesClosed += 1;
    for (const client of [...this.#inUse, ...this.#spare.splice(0)]) this.hangUp(client);
  }
}
