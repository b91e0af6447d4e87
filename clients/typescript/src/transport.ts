/** How calls go to a server or a cluster, whatever the client is. */

import { PROBE_MS } from "./breaker.js";
import type { Command, Key } from "./calls.js";
import { ReplyError } from "./engine.js";
import { codeOf, isErrorReply, Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import { slotOf } from "./slot.js";

/** What is reported to the sender of a call while it waits. */
export interface Attempt {
  /** The caller has its answer already: nothing is to be sent any more. */
  over: boolean;
  /** Called when that happens. */
  abandon?: (() => void) | undefined;
  /** Whether the server may have been asked: the call was given to a connection. */
  isSent?: boolean;
}

/** The property of a stand-in for a client that has its own transport. */
export const OWN_TRANSPORT = Symbol.for("redis-ratelimit-client.transport");

/** How calls go to a server or a cluster. */
export interface Transport {
  /** The server in errors. */
  readonly name: string;
  /** What went wrong last with a connection. */
  readonly lastError: unknown;
  /** The node that has a key; each node has a breaker of its own. */
  nodeOf(key: Key | undefined): string;
  send(call: Command, attempt: Attempt): Promise<unknown>;
  /** The reply if it is available without waiting, else undefined. */
  atOnce?(call: Command): unknown;
  /** Resolves once the node of a key answers. */
  probe(key: Key | undefined): Promise<void>;
  /** A call that began at `began` (performance.now) had no answer in time. */
  silent(key: Key | undefined, began: number): void;
  /** Sends a call to each node that takes writes. */
  sendToAll(call: Command, attempt: Attempt): Promise<unknown[]>;
  close(): void;
}

/** What work comes to. When the time is over it fails with the error that `late` makes. */
export async function within<T>(ms: number, work: Promise<T>, late: () => Error): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const over = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(late()), ms);
  });
  try {
    return await Promise.race([work, over]);
  } finally {
    clearTimeout(timer);
  }
}

/** Closes what the limiter opened when the client is closed that it was given. */
export function closeWith(client: object, close: () => void): void {
  const { on } = client as { on?: (event: string, listener: () => void) => unknown };
  on?.call(client, "end", close);
}

/** How many connections for calls that wait are kept for the next such call. */
export const MOST_SPARE = 16;
/** How long an attempt to connect may take without a deadline. */
const LONG_ATTEMPT_MS = 5000;

/** How long an attempt to connect may take: as long as a call, but at least as long as a probe. */
export const attemptMsOf = (deadline: number | undefined): number =>
  deadline === undefined ? LONG_ATTEMPT_MS : Math.max(PROBE_MS, deadline);

export const sleep = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/**
 * Sends commands as one transaction, all in this turn of the event loop, so that no others come between them. The answer is
 * the reply of EXEC.
 */
export async function transaction(
  commands: Word[][],
  send: (words: Word[]) => Promise<unknown>,
  isAsking = false,
): Promise<unknown> {
  const before = isAsking ? [["ASKING"], ["MULTI"]] : [["MULTI"]];
  const replies = await Promise.allSettled([...before, ...commands, ["EXEC"]].map(send));
  // A command that was refused before EXEC says why nothing was carried out, which EXEC does not.
  const refused = replies.find((reply) => reply.status === "rejected");
  if (refused !== undefined) throw refused.reason;
  return (replies.at(-1) as PromiseFulfilledResult<unknown>).value;
}

/** The error of a call that was given up before it could be sent. */
export const gone = (): Unreachable => new Unreachable("the connection came too late");

/** Sends calls through a client that the limiter does not open by itself. */
export abstract class ClientTransport<Given> implements Transport {
  protected readonly client: Given;
  lastError: unknown = undefined;

  constructor(client: Given) {
    this.client = client;
  }

  abstract readonly name: string;

  nodeOf(_: Key | undefined): string {
    return "";
  }

  abstract send(call: Command, attempt: Attempt): Promise<unknown>;

  async probe(key: Key | undefined): Promise<void> {
    const attempt: Attempt = { over: false };
    const words: Word[] = key === undefined ? ["PING"] : ["EXISTS", key];
    try {
      await within(PROBE_MS, this.send({ key, words, readonly: false }, attempt), () => {
        attempt.over = true;
        attempt.abandon?.();
        return gone();
      });
    } catch (error) {
      if (!isErrorReply(error)) throw error;
    }
  }

  silent(_key: Key | undefined, _began: number): void {
    // Its connections are the client's.
  }

  async sendToAll(call: Command, attempt: Attempt): Promise<unknown[]> {
    return [await this.send(call, attempt)];
  }

  close(): void {
    // Nothing was opened.
  }
}

/** The most redirections of a transaction: a cluster whose nodes disagree answers MOVED without end. */
const MOST_REDIRECTS = 5;

/** Carries a transaction out on a node of a cluster, after ASKING if its slot moves there. */
export type Transact = (commands: Word[][], isAsking: boolean) => Promise<unknown>;

/**
 * Sends calls through a cluster client. Calls that wait have others of their own, as such a call holds up whatever comes
 * after it on its connection.
 */
export abstract class ClusterTransport<Given extends object> extends ClientTransport<Given> {
  readonly name = "the cluster";
  #spare: Given[] = [];
  #closed = 0;

  protected abstract open(): Promise<Given>;
  protected abstract hangUp(client: Given): void;
  protected abstract ask(client: Given, call: Command, attempt: Attempt): Promise<unknown>;
  /** The node at an address, once it is connected; undefined if the client does not know it. */
  protected abstract nodeAt(client: Given, address: string, attempt: Attempt): Promise<Transact | undefined>;

  /** A transaction on the node that has its keys, wherever it is redirected to. */
  protected async transact(client: Given, call: Command, attempt: Attempt): Promise<unknown> {
    const { key = "", words, more = [] } = call;
    const commands = [words, ...more];
    if (new Set(commands.map(([, each = ""]) => slotOf(each))).size > 1) {
      throw new ReplyError("CROSSSLOT the keys of one step must lie in one slot");
    }
    let address = this.nodeOf(key);
    let isAsking = false;
    for (let redirects = 0; ; redirects += 1) {
      const node = await this.#known(client, address, key, attempt);
      if (attempt.over) throw gone();
      attempt.isSent = true;
      try {
        return await node(commands, isAsking);
      } catch (error) {
        const code = codeOf(error);
        // Nothing was executed if one of its commands was redirected.
        if ((code !== "MOVED" && code !== "ASK") || redirects === MOST_REDIRECTS) throw error;
        isAsking = code === "ASK";
        address = (error as Error).message.split(" ")[2] ?? "";
      }
    }
  }

  async #known(client: Given, address: string, key: Key, attempt: Attempt): Promise<Transact> {
    const node = await this.nodeAt(client, address, attempt);
    if (node !== undefined) return node;
    // The client learns of its nodes when it is redirected.
    await this.ask(client, { key, words: ["EXISTS", key], readonly: true }, attempt);
    const learned = await this.nodeAt(client, address || this.nodeOf(key), attempt);
    if (learned === undefined) throw new Unreachable(`the cluster's client does not know the node ${address}`);
    return learned;
  }

  protected async sendWaiting(call: Command, attempt: Attempt): Promise<unknown> {
    const closed = this.#closed;
    const client = this.#spare.pop() ?? (await this.open());
    if (attempt.over) {
      this.hangUp(client);
      throw gone();
    }
    attempt.abandon = () => this.hangUp(client);
    attempt.isSent = true;
    let isWhole = false;
    try {
      const reply = await this.ask(client, call, { over: false });
      isWhole = true;
      return reply;
    } catch (error) {
      isWhole = isErrorReply(error);
      throw error;
    } finally {
      attempt.abandon = undefined;
      if (isWhole && !attempt.over && closed === this.#closed && this.#spare.length < MOST_SPARE)
        this.#spare.push(client);
      else this.hangUp(client);
    }
  }

  override close(): void {
    this.#closed += 1;
    for (const client of this.#spare.splice(0)) this.hangUp(client);
  }
}
