/** What is known of ioredis: its clients, also by sentinels, and its clusters. */

import type { Command, Key } from "./calls.js";
import { Connections, type OneTimeClient, type Source } from "./connections.js";
import { codeOf } from "./errors.js";
import type { Word } from "./limits.js";
import { slotOf } from "./slot.js";
import {
  attemptMsOf,
  closeWith,
  ClusterTransport,
  gone,
  sleep,
  transaction,
  type Attempt,
  type Transact,
  type Transport,
} from "./transport.js";

/** How often a call that waits for a cluster client checks whether it is ready. */
const POLL_MS = 5;

/** A client or cluster client of ioredis. */
export interface Ioredis {
  /** Sends a command. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  call(command: string, ...args: any[]): Promise<any>;
}

/** A single client of ioredis, as far as it is used here. */
export interface IoredisClient {
  readonly status: string;
  readonly stream?: { cork?(): void; uncork?(): void } | undefined;
  readonly options: Record<string, unknown>;
  call(command: string, ...rest: Word[]): Promise<unknown>;
  connect(): Promise<unknown>;
  disconnect(): void;
  duplicate(overrides: object): IoredisClient;
  on(event: string, listener: (error: unknown) => void): unknown;
}

/** ioredis writes each command by itself, and each write wakes the server: those of one turn are written together. */
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
  const own = client.duplicate({
    connectTimeout,
    lazyConnect: true,
    retryStrategy: () => null,
    sentinelRetryStrategy: () => null,
    reconnectOnError: null,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: null,
    enableOfflineQueue: true,
    enableAutoPipelining: false,
    // The limiter asks by itself whether the server serves. By sentinels the client looks whether it found the master.
    enableReadyCheck: Boolean(client.options["sentinels"]),
    maxLoadingRetryTime: 200,
    commandTimeout: undefined,
    socketTimeout: undefined,
    blockingTimeout: undefined,
    disableClientInfo: true,
    keyPrefix: "",
  });
  const cork = corkOf(own);
  const oneTime: OneTimeClient = {
    connect: () => own.connect(),
    send: ([command, ...rest]) => {
      cork();
      return own.call(String(command), ...rest);
    },
    isReady: () => own.status === "ready",
    close: () => own.disconnect(),
    lastError: undefined,
  };
  own.on("error", (error) => (oneTime.lastError = error));
  return oneTime;
}

/** One client, also by sentinels. */
export function singleIoredis(client: IoredisClient, deadline: number | undefined): Transport {
  const source: Source = {
    makeClient: (connectTimeout) => Promise.resolve(oneTimeIoredis(client, connectTimeout)),
    settings: () => client.options,
  };
  const connections = new Connections(source, deadline);
  closeWith(client, () => connections.close());
  return connections;
}

/** A cluster client, as far as it is used here. */
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

/**
 * The node of a cluster client at an address. The client does not know the keys of RL.* commands, and would ask any node for
 * the way: one that does not answer would hold up the calls of all others.
 */
function nodeAt(client: IoredisClusterClient, address: string | undefined): IoredisNode | undefined {
  return client.nodes("all").find(({ options }) => `${options.host}:${options.port}` === address);
}

/**
 * A cluster client of ioredis, made by duplicate() of the one that is given, as that one sends a call again whose connection
 * was lost.
 */
export class IoredisCluster extends ClusterTransport<IoredisClusterClient> {
  readonly #connectTimeout: number;
  #own: IoredisClusterClient | undefined;
  /** When each node last answered. */
  readonly #answers = new Map<string, number>();

  constructor(client: IoredisClusterClient, deadline: number | undefined) {
    super(client);
    this.#connectTimeout = attemptMsOf(deadline);
    closeWith(client, () => this.close());
  }

  override nodeOf(key: Key | undefined): string {
    return key === undefined ? "" : (this.#own?.slots?.[slotOf(key)]?.[0] ?? "");
  }

  async send(call: Command, attempt: Attempt): Promise<unknown> {
    if (call.blockMs !== undefined) return this.sendWaiting(call, attempt);
    const own = await this.#ready(attempt);
    if (call.more === undefined) return this.ask(own, call, attempt);
    const replies = await this.transact(own, call, attempt);
    this.#answers.set(this.nodeOf(call.key), performance.now());
    return replies;
  }

  protected override async nodeAt(
    client: IoredisClusterClient,
    address: string,
    attempt: Attempt,
  ): Promise<Transact | undefined> {
    const node = nodeAt(client, address);
    // What is given to a node that is not connected is sent whenever it is.
    if (node !== undefined && node.status !== "ready" && !attempt.over) await node.call("PING");
    if (node === undefined) return undefined;
    return (commands, isAsking) =>
      transaction(commands, ([command, ...rest]) => node.call(String(command), ...rest), isAsking);
  }

  protected async ask(client: IoredisClusterClient, { key, words }: Command, attempt: Attempt): Promise<unknown> {
    attempt.isSent = true;
    const [command, ...rest] = words;
    const node = key === undefined ? undefined : nodeAt(client, client.slots?.[slotOf(key)]?.[0]);
    let reply: unknown;
    try {
      reply = await (node ?? client).call(String(command), ...rest);
    } catch (error) {
      // A slot that moved: the client finds its node, and remembers it.
      if (node === undefined || !["MOVED", "ASK"].includes(codeOf(error) ?? "")) throw error;
      reply = await client.call(String(command), ...rest);
    }
    this.#answers.set(this.nodeOf(key), performance.now());
    return reply;
  }

  override silent(key: Key | undefined, began: number): void {
    const address = this.nodeOf(key);
    if ((this.#answers.get(address) ?? 0) >= began) return;
    if (this.#own !== undefined) nodeAt(this.#own, address)?.disconnect();
  }

  override async sendToAll({ words }: Command, attempt: Attempt): Promise<unknown[]> {
    const own = await this.#ready(attempt);
    const [command, ...rest] = words;
    return Promise.all(own.nodes("master").map((node) => node.call(String(command), ...rest)));
  }

  /** Nothing is given to a client that is not ready, as it would be sent whenever it becomes ready. */
  async #ready(attempt: Attempt): Promise<IoredisClusterClient> {
    while (!attempt.over) {
      if (this.#own === undefined || this.#own.status === "end") {
        this.#own = this.#duplicate();
        this.#own.connect().catch((error: unknown) => (this.lastError = error));
      }
      if (this.#own.status === "ready") return this.#own;
      await sleep(POLL_MS);
    }
    throw gone();
  }

  #duplicate(): IoredisClusterClient {
    const own = this.client.duplicate([], {
      lazyConnect: true,
      clusterRetryStrategy: () => 100,
      // A call whose connection was lost is not sent again.
      retryDelayOnFailover: 0,
      retryDelayOnClusterDown: 0,
      enableOfflineQueue: true,
      enableAutoPipelining: false,
      keyPrefix: "",
      redisOptions: {
        ...this.client.options.redisOptions,
        autoResendUnfulfilledCommands: false,
        connectTimeout: this.#connectTimeout,
        commandTimeout: undefined,
        socketTimeout: undefined,
        keyPrefix: "",
      },
    });
    own.on("error", (error) => (this.lastError = error));
    own.on("node error", (error) => (this.lastError = error));
    return own;
  }

  protected async open(): Promise<IoredisClusterClient> {
    const client = this.#duplicate();
    await client.connect();
    return client;
  }

  protected hangUp(client: IoredisClusterClient): void {
    client.disconnect();
  }

  override close(): void {
    super.close();
    this.#own?.disconnect();
    this.#own = undefined;
  }
}
