/** Transports for ioredis: clients, also those that find their server by sentinels, and clusters. */

import type { Command, Key } from "./command.js";
import { connectionsLike, type OneTimeClient } from "./connections.js";
import { codeOf, isErrorReply, isNotServing, isServerFull } from "./errors.js";
import type { Word } from "./limits.js";
import { slotOf } from "./slot.js";
import {
  ClusterTransport,
  givenUp,
  limiterClosed,
  sendTransaction,
  sleep,
  type Attempt,
  type Transact,
  type Transport,
} from "./transport.js";

/** The pause between two checks whether a cluster client is ready. */
const POLL_MS = 5;

/** A client or cluster client of ioredis. */
export interface Ioredis {
  /** Sends a command. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  call(command: string, ...args: any[]): Promise<any>;
}

/** Sends the words of a command through a client. */
export function callWith(client: Ioredis, [command, ...rest]: readonly Word[]): Promise<unknown> {
  return client.call(String(command), ...rest);
}

/** The members of a single client of ioredis that are used here. */
export interface IoredisClient extends Ioredis {
  readonly status: string;
  readonly stream?: { cork?(): void; uncork?(): void } | undefined;
  readonly options: Record<string, unknown>;
  connect(): Promise<unknown>;
  disconnect(): void;
  duplicate(overrides: object): IoredisClient;
  on(event: string, listener: (error: unknown) => void): unknown;
}

/**
 * Returns a function to call before each command. The commands of one turn of the event loop are then written together:
 * ioredis writes each by itself, and each write wakes the server.
 */
function corkOf(client: IoredisClient): () => void {
  let isCorked = false;
  return () => {
    const { stream } = client;
    if (isCorked || stream?.cork === undefined) return;
    isCorked = true;
    stream.cork();
    process.nextTick(() => {
      isCorked = false;
      stream.uncork?.();
    });
  };
}

function oneTimeIoredis(client: IoredisClient, connectTimeout: number): OneTimeClient {
  const duplicate = client.duplicate({
    connectTimeout,
    lazyConnect: true,
    retryStrategy: () => null,
    sentinelRetryStrategy: () => null,
    reconnectOnError: null,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: null,
    enableOfflineQueue: true,
    enableAutoPipelining: false,
    // The limiter sends a PING itself. With sentinels, the client checks whether it has found the master.
    enableReadyCheck: Boolean(client.options["sentinels"]),
    maxLoadingRetryTime: 200,
    commandTimeout: undefined,
    socketTimeout: undefined,
    blockingTimeout: undefined,
    disableClientInfo: true,
    keyPrefix: "",
  });
  const cork = corkOf(duplicate);
  const oneTime: OneTimeClient = {
    connect: () => duplicate.connect(),
    send: (words) => {
      cork();
      return callWith(duplicate, words);
    },
    isReady: () => duplicate.status === "ready",
    close: () => duplicate.disconnect(),
    lastError: undefined,
  };
  duplicate.on("error", (error) => (oneTime.lastError = error));
  return oneTime;
}

/** Returns the transport for a single client. */
export const singleIoredis = (client: IoredisClient, deadline: number | undefined): Transport =>
  connectionsLike(client, oneTimeIoredis, deadline);

/** The members of a cluster client that are used here. */
export interface IoredisClusterClient extends Ioredis {
  readonly status: string;
  readonly options: { redisOptions?: object | undefined };
  readonly slots?: readonly (readonly string[] | undefined)[];
  connect(): Promise<unknown>;
  disconnect(): void;
  duplicate(nodes: unknown[], overrides: object): IoredisClusterClient;
  nodes(role: "all" | "master"): IoredisNode[];
  on(event: string, listener: (error: unknown) => void): unknown;
}

interface IoredisNode extends Ioredis {
  readonly status: string;
  readonly options: { readonly host?: string; readonly port?: number };
  disconnect(): void;
}

/** Returns the node of a cluster client at an address. */
function nodeAt(client: IoredisClusterClient, address: string | undefined): IoredisNode | undefined {
  return client.nodes("all").find(({ options }) => `${options.host}:${options.port}` === address);
}

/**
 * Returns the node of a cluster client that has a key. Calls go to their node, as the client does not know the keys of RL.*
 * commands: it would send them to any node to be redirected, and a node that does not answer would hold up all calls.
 */
function nodeFor(client: IoredisClusterClient, key: Key | undefined): IoredisNode | undefined {
  return key === undefined ? undefined : nodeAt(client, client.slots?.[slotOf(key)]?.[0]);
}

/** Returns the error reply, such as WRONGPASS, because of which a cluster client connected to no node. */
function refusalOf(error: unknown): Error | undefined {
  const { lastNodeError } = (error ?? {}) as { lastNodeError?: unknown };
  // These may pass before the deadline.
  const mayPass = isNotServing(lastNodeError) || isServerFull(lastNodeError);
  return isErrorReply(lastNodeError) && !mayPass ? lastNodeError : undefined;
}

/**
 * Sends calls through a duplicate of a cluster client of ioredis. The application's own client would send a call again if
 * the connection is lost.
 */
export class IoredisCluster extends ClusterTransport<IoredisClusterClient> {
  #duplicate: IoredisClusterClient | undefined;
  /** The time of the last answer of each node. */
  readonly #lastAnswers = new WeakMap<IoredisNode, number>();

  nodeOf(key: Key | undefined): string {
    return key === undefined ? "" : (this.#duplicate?.slots?.[slotOf(key)]?.[0] ?? "");
  }

  hasNode(node: string): boolean {
    return node === "" || this.#duplicate === undefined || nodeAt(this.#duplicate, node) !== undefined;
  }

  async send(command: Command, attempt: Attempt): Promise<unknown> {
    const { key = "", blockMs, transaction } = command;
    if (blockMs !== undefined) {
      // A client that no node lets in fails like one whose nodes are away.
      return this.sendBlocking(command, attempt).catch((error: unknown) => {
        throw (!attempt.isSent && refusalOf(this.lastError)) || error;
      });
    }
    const client = await this.#ready(attempt);
    if (transaction === undefined) return this.ask(client, command, attempt);
    const replies = await this.transact(client, key, transaction, attempt);
    this.#noteAnswer(client, key);
    return replies;
  }

  protected override async nodeAt(
    client: IoredisClusterClient,
    address: string,
    attempt: Attempt,
  ): Promise<Transact | undefined> {
    const node = nodeAt(client, address);
    // A node that is not connected yet would keep the transaction, and send it even if the caller has given up.
    if (node !== undefined && node.status !== "ready" && !attempt.over) await node.call("PING");
    if (node === undefined) return undefined;
    return (commands, isAsking) => sendTransaction(commands, (words) => callWith(node, words), isAsking);
  }

  protected async ask(client: IoredisClusterClient, { key, words }: Command, attempt: Attempt): Promise<unknown> {
    attempt.isSent = true;
    const node = nodeFor(client, key);
    let reply: unknown;
    try {
      reply = await callWith(node ?? client, words);
    } catch (error) {
      // The slot has moved: the client finds its node, and remembers it.
      if (node === undefined || !["MOVED", "ASK"].includes(codeOf(error) ?? "")) throw error;
      if (attempt.over) throw givenUp();
      reply = await callWith(client, words);
    }
    this.#noteAnswer(client, key);
    return reply;
  }

  #noteAnswer(client: IoredisClusterClient, key: Key | undefined): void {
    const node = nodeFor(client, key);
    if (node !== undefined) this.#lastAnswers.set(node, performance.now());
  }

  recordSilence(key: Key | undefined, began: number): void {
    const node = this.#duplicate && nodeFor(this.#duplicate, key);
    if (node !== undefined && (this.#lastAnswers.get(node) ?? 0) < began) node.disconnect();
  }

  async sendToAll({ words }: Command, attempt: Attempt): Promise<unknown[]> {
    const client = await this.#ready(attempt);
    return Promise.all(client.nodes("master").map((node) => callWith(node, words)));
  }

  /**
   * Returns the duplicate when it is connected. It would keep calls until then, and send them even if their callers have
   * given up.
   */
  async #ready(attempt: Attempt): Promise<IoredisClusterClient> {
    const connectBy = performance.now() + this.connectTimeout;
    const { timesClosed } = this;
    while (!attempt.over) {
      if (timesClosed !== this.timesClosed) throw limiterClosed();
      if (this.#duplicate === undefined || this.#duplicate.status === "end") {
        this.#duplicate = this.makeDuplicate();
        this.#duplicate.connect().catch((error: unknown) => (this.lastError = error));
      }
      if (this.#duplicate.status === "ready") return this.#duplicate;
      const refusal = refusalOf(this.lastError);
      if (refusal !== undefined) throw refusal;
      if (performance.now() >= connectBy) throw this.connectError();
      await sleep(POLL_MS);
    }
    throw givenUp();
  }

  protected makeDuplicate(): IoredisClusterClient {
    const duplicate = this.client.duplicate([], {
      lazyConnect: true,
      clusterRetryStrategy: () => 100,
      // A call is not sent again if its connection is lost.
      retryDelayOnFailover: 0,
      retryDelayOnClusterDown: 0,
      enableOfflineQueue: true,
      enableAutoPipelining: false,
      keyPrefix: "",
      redisOptions: {
        ...this.client.options.redisOptions,
        autoResendUnfulfilledCommands: false,
        connectTimeout: this.connectTimeout,
        commandTimeout: undefined,
        socketTimeout: undefined,
        keyPrefix: "",
      },
    });
    duplicate.on("ready", () => (this.lastError = undefined));
    duplicate.on("error", (error) => (this.lastError = error));
    duplicate.on("node error", (error) => (this.lastError = error));
    return duplicate;
  }

  protected hangUp(client: IoredisClusterClient): void {
    client.disconnect();
  }

  override close(): void {
    super.close();
    this.#duplicate?.disconnect();
    this.#duplicate = undefined;
  }
}
