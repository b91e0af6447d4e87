/** Transports for node-redis: clients, pools, sentinels and clusters. */

import type { Command, Key } from "./command.js";
import { Connections, connectionsLike, type ClientSource, type OneTimeClient } from "./connections.js";
import { Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import { slotOf } from "./slot.js";
import { ClientTransport, ClusterTransport, type Attempt, type Transact, type Transport } from "./transport.js";

/** A client, cluster client, sentinel client or pool of node-redis. */
export interface NodeRedis {
  /** Sends a command. The arguments differ between clients, pools, sentinels and clusters. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  sendCommand(...args: any[]): Promise<any>;
}

/** The members of a single client that are used here. */
export interface NodeRedisClient {
  readonly isReady: boolean;
  readonly options?: Record<string, unknown> | undefined;
  connect(): Promise<unknown>;
  destroy(): void;
  duplicate(overrides: object): NodeRedisClient;
  on(event: string, listener: (error: unknown) => void): unknown;
  sendCommand(words: Word[]): Promise<unknown>;
}

/** Closes a client, which throws if it is closed already. */
function destroy(client: { destroy(): unknown }): void {
  try {
    client.destroy();
  } catch {
    // It is closed.
  }
}

function oneTimeNodeRedis(client: NodeRedisClient, connectTimeout: number): OneTimeClient {
  const socket = { ...(client.options?.["socket"] as object | undefined), connectTimeout };
  const duplicate = client.duplicate({
    socket: { ...socket, reconnectStrategy: false, socketTimeout: undefined },
    commandOptions: undefined,
    commandsQueueMaxLength: undefined,
    disableOfflineQueue: false,
    // Its reply would hide the error of a server that accepts no more connections.
    disableClientInfo: true,
    pingInterval: undefined,
    clientSideCache: undefined,
    emitInvalidate: undefined,
  });
  const oneTime: OneTimeClient = {
    connect: () => duplicate.connect(),
    send: (words) => duplicate.sendCommand(words),
    isReady: () => duplicate.isReady,
    close: () => destroy(duplicate),
    lastError: undefined,
  };
  duplicate.on("error", (error) => (oneTime.lastError = error));
  return oneTime;
}

/** Returns the transport for a single client. */
export const singleNodeRedis = (client: NodeRedisClient, deadline: number | undefined): Transport =>
  connectionsLike(client, oneTimeNodeRedis, deadline);

/** A client that only the application can connect. */
interface Openable {
  /** A stand-in for a client may lack it. */
  readonly isOpen?: boolean;
}

/** Throws unless connect() was called. `unreachable` does not apply: waiting would not help. */
function checkOpen(client: Openable, kind: string): void {
  if (client.isOpen !== false) return;
  throw new Error(`connect the ${kind} of node-redis before it is used: await its connect()`);
}

/** The members of a pool that are used here. */
export interface NodeRedisPool extends Openable {
  execute<T>(use: (client: NodeRedisClient) => T): Promise<T>;
}

/** Returns the transport for a pool. One of its clients has the settings, and reports that the pool is closed. */
export function poolOfNodeRedis(pool: NodeRedisPool, deadline: number | undefined): Transport {
  let member: NodeRedisClient | undefined;
  const findMember = async (): Promise<NodeRedisClient> => {
    if (member === undefined) {
      checkOpen(pool, "pool");
      const { client } = await pool.execute((free) => ({ client: free }));
      member = client;
      client.on("end", () => setImmediate(lookAgain));
    }
    return member;
  };
  const source: ClientSource = {
    makeClient: async (connectTimeout) => oneTimeNodeRedis(await findMember(), connectTimeout),
    settings: () => member?.options,
  };
  const connections = new Connections(source, deadline);
  // A pool also closes clients that it does not need.
  const lookAgain = () => {
    member = undefined;
    if (pool.isOpen) findMember().catch(() => {});
    else connections.close();
  };
  return connections;
}

/** Returns a signal that removes a call from the queue of node-redis, as long as it is not sent. */
function signalOf(attempt: Attempt): AbortSignal {
  const controller = new AbortController();
  attempt.abandon = () => controller.abort();
  return controller.signal;
}

/** Returns a call of EVAL that executes commands at once. Its reply is the list of their replies, with error replies. */
function scriptOf(commands: Word[][]): Word[] {
  const script =
    "local at, replies = 1, {} while ARGV[at] do local last = at + tonumber(ARGV[at])" +
    " replies[#replies + 1] = redis.pcall(unpack(ARGV, at + 1, last)) at = last + 1 end return replies";
  const keys = commands.map(([, key = ""]) => key);
  const words = commands.flatMap((command) => [String(command.length), ...command]);
  return ["EVAL", script, String(keys.length), ...keys, ...words];
}

/** Sends calls through a sentinel client, which finds the master. */
export class NodeRedisSentinel extends ClientTransport<NodeRedis & Openable> {
  readonly name = "the master of the sentinels";

  async send({ words, readonly, transaction }: Command, attempt: Attempt): Promise<unknown> {
    checkOpen(this.client, "sentinel client");
    const signal = signalOf(attempt);
    attempt.isSent = true;
    let isSent = false;
    // If the connection is lost, the client sends the call again. It reads the options each time, and the second time they
    // say that the call is aborted.
    const options = {
      get abortSignal(): AbortSignal {
        if (isSent) return AbortSignal.abort();
        isSent = true;
        return signal;
      },
    };
    // A script instead of MULTI and EXEC, which the client might send on different connections.
    return this.client.sendCommand(readonly, transaction === undefined ? words : scriptOf(transaction), options);
  }
}

/** The members of the client of a cluster's node that are used here. */
interface NodeRedisNode extends NodeRedis {
  readonly isReady: boolean;
  multi(): NodeRedisMulti;
}

interface NodeRedisMulti {
  addCommand(words: Word[]): unknown;
  exec(): Promise<unknown>;
}

/** The members of a cluster client that are used here. */
export interface NodeRedisClusterClient extends NodeRedis, Openable {
  readonly slots: readonly ({ master: { address: string } } | undefined)[];
  readonly masters: readonly object[];
  readonly nodeByAddress: ReadonlyMap<string, object>;
  nodeClient(node: object): Promise<NodeRedisNode>;
  duplicate(): NodeRedisClusterClient;
  connect(): Promise<unknown>;
  destroy(): unknown;
  on(event: string, listener: () => void): unknown;
}

/** Sends calls through a cluster client. */
export class NodeRedisCluster extends ClusterTransport<NodeRedisClusterClient> {
  nodeOf(key: Key | undefined): string {
    return key === undefined ? "" : (this.client.slots?.[slotOf(key)]?.master.address ?? "");
  }

  hasNode(node: string): boolean {
    return node === "" || this.client.nodeByAddress.has(node);
  }

  async send(command: Command, attempt: Attempt): Promise<unknown> {
    const { key = "", blockMs, transaction } = command;
    // It goes to a duplicate, which is connected here.
    if (blockMs !== undefined && typeof this.client.duplicate === "function") {
      return this.sendBlocking(command, attempt);
    }
    checkOpen(this.client, "cluster client");
    this.#checkHasNodes();
    return transaction === undefined
      ? this.ask(this.client, command, attempt)
      : this.transact(this.client, key, transaction, attempt);
  }

  /** Throws while the client is connecting. It would fail itself with a TypeError. */
  #checkHasNodes(): void {
    if (this.client.masters?.length === 0) throw new Unreachable("the cluster client is still connecting");
  }

  protected override async nodeAt(
    client: NodeRedisClusterClient,
    address: string,
    attempt: Attempt,
  ): Promise<Transact | undefined> {
    const nodeInfo = client.nodeByAddress.get(address);
    if (nodeInfo === undefined) return undefined;
    const node = await client.nodeClient(nodeInfo);
    // A client that is not connected yet would keep the transaction, and send it even if the caller has given up.
    if (!node.isReady) await node.sendCommand(["PING"], { abortSignal: signalOf(attempt) });
    return async (commands, isAsking) => {
      // The library's transactions: if the connection is lost in the middle of one, nothing of it is sent again.
      const multi = node.multi();
      for (const words of commands) multi.addCommand(words);
      const asking = isAsking ? node.sendCommand(["ASKING"]) : undefined;
      try {
        const [replies] = await Promise.all([multi.exec(), asking]);
        return replies;
      } catch (error) {
        const { replies } = error as { replies?: unknown };
        if (Array.isArray(replies)) return replies as unknown[];
        throw error;
      }
    };
  }

  protected ask(client: NodeRedisClusterClient, { key, readonly, words }: Command, attempt: Attempt): Promise<unknown> {
    attempt.isSent = true;
    return client.sendCommand(key, readonly, words, { abortSignal: signalOf(attempt) });
  }

  async sendToAll({ words }: Command): Promise<unknown[]> {
    checkOpen(this.client, "cluster client");
    this.#checkHasNodes();
    const nodes: NodeRedis[] = await Promise.all(this.client.masters.map((node) => this.client.nodeClient(node)));
    return Promise.all(nodes.map((node) => node.sendCommand(words)));
  }

  protected makeDuplicate(): NodeRedisClusterClient {
    const client = this.client.duplicate();
    client.on("error", () => {});
    return client;
  }

  protected hangUp(client: NodeRedisClusterClient): void {
    destroy(client);
  }
}
