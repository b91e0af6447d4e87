/** What a limiter needs of node-redis: copies of clients and of the clients of a pool, and the nodes of clusters. */

import { type Directory } from "./cluster.js";
import { closeWith, Connections, keepError, type Copy } from "./connections.js";
import { PROBE_MS } from "./breaker.js";
import { Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import type { Transport } from "./transport.js";

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

export function copyNodeRedis(client: NodeRedisClient, connectTimeout: number): Copy {
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
    readonly: false,
  });
  return keepError(duplicate, {
    connect: () => duplicate.connect(),
    send: (words) => duplicate.sendCommand(words),
    isReady: () => duplicate.isReady,
    close: () => {
      try {
        duplicate.destroy();
      } catch {
        // It is closed already.
      }
    },
  });
}

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
export function poolOfNodeRedis(pool: NodeRedisPool, deadline: number): Transport {
  let member: NodeRedisClient | undefined;
  const findMember = async (): Promise<NodeRedisClient> => {
    if (member === undefined) {
      checkOpen(pool, "pool");
      ({ member } = await pool.execute((free) => ({ member: free })));
      closeWith(member, () => setImmediate(lookAgain));
    }
    return member;
  };
  const makeCopy = async (connectTimeout: number) => copyNodeRedis(await findMember(), connectTimeout);
  const connections = new Connections(makeCopy, () => member?.options, deadline);
  // A pool also closes clients that it does not need.
  const lookAgain = () => {
    member = undefined;
    if (pool.isOpen) findMember().catch(() => {});
    else connections.close();
  };
  return connections;
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

/** Returns the transport for a sentinel client, which finds the master and has no settings to copy. */
export const sentinelOfNodeRedis = (client: NodeRedis & Openable): Transport => ({
  name: "the master of the sentinels",
  async send({ words, transaction }, attempt): Promise<unknown> {
    checkOpen(client, "sentinel client");
    const controller = new AbortController();
    // It removes the call from the queue of the client, as long as it is not sent.
    attempt.abandon = () => controller.abort();
    attempt.isSent = true;
    let isSent = false;
    // If the connection is lost, the client sends the call again. It reads the options each time, and the second time they
    // say that the call is aborted.
    const options = {
      get abortSignal(): AbortSignal {
        if (isSent) return AbortSignal.abort();
        isSent = true;
        return controller.signal;
      },
    };
    // A script instead of MULTI and EXEC, which the client might send on different connections.
    const sent: unknown = await client.sendCommand(
      false,
      transaction === undefined ? words : scriptOf(transaction),
      options,
    );
    return sent;
  },
});

/** The members of a node of a cluster client that are used here. */
interface Shard {
  readonly address: string;
  readonly client?: NodeRedisClient | undefined;
}

/** The members of a cluster client that are used here. */
export interface NodeRedisClusterClient extends NodeRedis, Openable {
  readonly slots: readonly ({ master: Shard } | undefined)[];
  readonly masters: readonly Shard[];
  readonly nodeByAddress: ReadonlyMap<string, Shard>;
  nodeClient(node: Shard): Promise<NodeRedisClient>;
}

/** Returns what a cluster client knows of its nodes. `connectionsTo` is called with the client of a node. */
export function directoryOfNodeRedis(
  client: NodeRedisClusterClient,
  connectionsTo: (node: NodeRedisClient) => Connections,
): Directory {
  return {
    // eslint-disable-next-line @typescript-eslint/require-await
    async ready() {
      checkOpen(client, "cluster client");
      if (client.masters.length === 0) throw new Unreachable("the cluster client is still connecting");
    },
    addressOf: (slot) => client.slots[slot]?.master.address,
    masters: () => client.masters.map(({ address }) => address),
    async connect(address) {
      const node = client.nodeByAddress.get(address);
      if (node === undefined) return undefined;
      const nodeClient = node.client ?? (await client.nodeClient(node));
      const connections = connectionsTo(nodeClient);
      closeWith(nodeClient, () => connections.close());
      return connections;
    },
    // Any command that has a key. Sent to another node, it is redirected, and the client asks for all nodes again.
    refresh: (key, isGone) => {
      const abortSignal = AbortSignal.timeout(PROBE_MS);
      return client.sendCommand(isGone ? undefined : key, false, ["RL.HELD", key], { abortSignal });
    },
    close: () => {},
  };
}
