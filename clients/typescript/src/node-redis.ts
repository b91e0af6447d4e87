/** What is known of node-redis: its clients, pools, sentinels and clusters. */

import type { Command, Key } from "./calls.js";
import { Connections, type OneTimeClient, type Source } from "./connections.js";
import type { Word } from "./limits.js";
import { slotOf } from "./slot.js";
import {
  ClientTransport,
  closeWith,
  ClusterTransport,
  type Attempt,
  type Transact,
  type Transport,
} from "./transport.js";

/** A client, cluster client, sentinel client or pool of node-redis. */
export interface NodeRedis {
  /** Sends a command. The arguments differ between clients, pools, sentinels and clusters. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  sendCommand(...args: any[]): Promise<any>;
}

/** A single client of node-redis, as far as it is used here. */
export interface NodeRedisClient {
  readonly isReady: boolean;
  readonly options?: Record<string, unknown> | undefined;
  connect(): Promise<unknown>;
  destroy(): void;
  duplicate(overrides: object): NodeRedisClient;
  on(event: string, listener: (error: unknown) => void): unknown;
  sendCommand(words: Word[]): Promise<unknown>;
}

function oneTimeNodeRedis(client: NodeRedisClient, connectTimeout: number): OneTimeClient {
  const socket = { ...(client.options?.["socket"] as object | undefined), connectTimeout };
  const own = client.duplicate({
    socket: { ...socket, reconnectStrategy: false, socketTimeout: undefined },
    commandOptions: undefined,
    commandsQueueMaxLength: undefined,
    disableOfflineQueue: false,
    // Its answer would swallow the error of a server that has no more connections to give.
    disableClientInfo: true,
    pingInterval: undefined,
    clientSideCache: undefined,
    emitInvalidate: undefined,
  });
  const oneTime: OneTimeClient = {
    connect: () => own.connect(),
    send: (words) => own.sendCommand(words),
    isReady: () => own.isReady,
    close: () => {
      try {
        own.destroy();
      } catch {
        // It is closed already.
      }
    },
    lastError: undefined,
  };
  own.on("error", (error) => (oneTime.lastError = error));
  return oneTime;
}

/** One client. */
export function singleNodeRedis(client: NodeRedisClient, deadline: number | undefined): Transport {
  const source: Source = {
    makeClient: (connectTimeout) => Promise.resolve(oneTimeNodeRedis(client, connectTimeout)),
    settings: () => client.options,
  };
  const connections = new Connections(source, deadline);
  closeWith(client, () => connections.close());
  return connections;
}

/** A pool, as far as it is used here. */
export interface NodeRedisPool {
  readonly isOpen: boolean;
  execute<T>(use: (client: NodeRedisClient) => T): Promise<T>;
}

/** A pool. One of its clients knows the settings of its connections, and when it is closed. */
export function poolOfNodeRedis(pool: NodeRedisPool, deadline: number | undefined): Transport {
  let member: NodeRedisClient | undefined;
  const findMember = async (): Promise<NodeRedisClient> => {
    if (member === undefined) {
      const { client } = await pool.execute((each) => ({ client: each }));
      member = client;
      client.on("end", () => setImmediate(lookAgain));
    }
    return member;
  };
  const source: Source = {
    makeClient: async (connectTimeout) => oneTimeNodeRedis(await findMember(), connectTimeout),
    settings: () => member?.options,
  };
  const connections = new Connections(source, deadline);
  // A pool closes clients also when it has more than it needs.
  const lookAgain = () => {
    member = undefined;
    if (pool.isOpen) findMember().catch(() => {});
    else connections.close();
  };
  return connections;
}

/** A signal that takes what node-redis has not sent yet out of its queue. */
function signalOf(attempt: Attempt): AbortSignal {
  const controller = new AbortController();
  attempt.abandon = () => controller.abort();
  return controller.signal;
}

/** Sends commands as a transaction. Returns the list of their replies, error replies among them. */
function scriptOf(commands: Word[][]): Word[] {
  const script =
    "local at, replies = 1, {} while ARGV[at] do local last = at + tonumber(ARGV[at])" +
    " replies[#replies + 1] = redis.pcall(unpack(ARGV, at + 1, last)) at = last + 1 end return replies";
  const keys = commands.map(([, key = ""]) => key);
  const words = commands.flatMap((each) => [String(each.length), ...each]);
  return ["EVAL", script, String(keys.length), ...keys, ...words];
}

/** The master that sentinels name. The client finds it. */
export class NodeRedisSentinel extends ClientTransport<NodeRedis> {
  readonly name = "the master of the sentinels";

  send({ words: first, readonly, more }: Command, attempt: Attempt): Promise<unknown> {
    // Which of its connections a command takes is the client's own choice, so that MULTI and EXEC may part.
    const words = more === undefined ? first : scriptOf([first, ...more]);
    const signal = signalOf(attempt);
    attempt.isSent = true;
    let isSent = false;
    // The client sends a call again whose connection was lost. It reads the options each time: the second time it finds
    // that the call is aborted.
    const options = {
      get abortSignal(): AbortSignal {
        if (isSent) return AbortSignal.abort();
        isSent = true;
        return signal;
      },
    };
    return this.client.sendCommand(readonly, words, options);
  }
}

/** The client of a node of a cluster, as far as it is used here. */
interface NodeRedisNode extends NodeRedis {
  readonly isReady: boolean;
  multi(): NodeRedisMulti;
}

interface NodeRedisMulti {
  addCommand(words: Word[]): unknown;
  exec(): Promise<unknown>;
}

/** A cluster client, as far as it is used here. */
export interface NodeRedisClusterClient extends NodeRedis {
  readonly slots: readonly ({ master: { address: string } } | undefined)[];
  readonly masters: readonly object[];
  readonly nodeByAddress: ReadonlyMap<string, object>;
  nodeClient(node: object): Promise<NodeRedisNode>;
  duplicate(): NodeRedisClusterClient;
  connect(): Promise<unknown>;
  destroy(): unknown;
  on(event: string, listener: () => void): unknown;
}

/** A cluster. */
export class NodeRedisCluster extends ClusterTransport<NodeRedisClusterClient> {
  constructor(client: NodeRedisClusterClient) {
    super(client);
    closeWith(client, () => this.close());
  }

  override nodeOf(key: Key | undefined): string {
    return key === undefined ? "" : (this.client.slots?.[slotOf(key)]?.master.address ?? "");
  }

  send(call: Command, attempt: Attempt): Promise<unknown> {
    if (call.blockMs !== undefined && typeof this.client.duplicate === "function")
      return this.sendWaiting(call, attempt);
    return call.more === undefined ? this.ask(this.client, call, attempt) : this.transact(this.client, call, attempt);
  }

  protected override async nodeAt(
    client: NodeRedisClusterClient,
    address: string,
    attempt: Attempt,
  ): Promise<Transact | undefined> {
    const found = client.nodeByAddress.get(address);
    if (found === undefined) return undefined;
    const node = await client.nodeClient(found);
    // What is given to a node that is not connected is sent whenever it is.
    if (!node.isReady) await node.sendCommand(["PING"], { abortSignal: signalOf(attempt) });
    return async (commands, isAsking) => {
      // By its own transactions, as it sends nothing of one whose connection was lost in the middle.
      const multi = node.multi();
      for (const words of commands) multi.addCommand(words);
      const asked = isAsking ? node.sendCommand(["ASKING"]) : undefined;
      try {
        const [replies] = await Promise.all([multi.exec(), asked]);
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

  override async sendToAll({ words }: Command): Promise<unknown[]> {
    const nodes: NodeRedis[] = await Promise.all(this.client.masters.map((node) => this.client.nodeClient(node)));
    return Promise.all(nodes.map((node) => node.sendCommand(words)));
  }

  protected async open(): Promise<NodeRedisClusterClient> {
    const client = this.client.duplicate();
    client.on("error", () => {});
    await client.connect();
    return client;
  }

  protected hangUp(client: NodeRedisClusterClient): void {
    try {
      client.destroy();
    } catch {
      // It is closed already.
    }
  }
}
