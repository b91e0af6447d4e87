/** Chooses the transport for the client that a limiter is given. */

import { quote } from "./check.js";
import { Cluster } from "./cluster.js";
import type { Command } from "./command.js";
import { attemptMsOf, closeWith, Connections, type Copy } from "./connections.js";
import {
  callWith,
  copyIoredis,
  directoryOfIoredis,
  type Ioredis,
  type IoredisClient,
  type IoredisClusterClient,
} from "./ioredis.js";
import {
  copyNodeRedis,
  directoryOfNodeRedis,
  NodeRedisSentinel,
  poolOfNodeRedis,
  type NodeRedis,
  type NodeRedisClient,
  type NodeRedisClusterClient,
  type NodeRedisPool,
} from "./node-redis.js";
import { IS_TRANSPORT, sendCommands, type Transport } from "./transport.js";

export type { Ioredis } from "./ioredis.js";
export type { NodeRedis } from "./node-redis.js";

/** A client, cluster client, sentinel client or pool of node-redis or ioredis. */
export type Client = NodeRedis | Ioredis;

const isFunction = (value: unknown): boolean => typeof value === "function";

/** Returns the transport for a client. Throws a TypeError for anything else. */
export function transportFor(client: Client, deadline: number): Transport {
  const members = client as unknown as Record<string, unknown>;
  const isObject = typeof members === "object" && members !== null;
  if (isObject && IS_TRANSPORT in members) return client as unknown as Transport;
  const isIoredis = isObject && isFunction(members["call"]);
  if (!isIoredis && !(isObject && isFunction(members["sendCommand"]))) {
    const hint =
      typeof members === "string" ? ": make a client of the URL, by createClient({ url }) or new Redis(url)" : "";
    throw new TypeError(`the client must be one of node-redis or ioredis, not ${quote(client)}${hint}`);
  }

  /** Returns connections with the settings of a client. */
  function copies<Given extends { readonly options?: Record<string, unknown> | undefined }>(
    given: Given,
    copy: (given: Given, connectTimeout: number) => Copy,
  ): Connections {
    const makeCopy = (connectTimeout: number) => copy(given, connectTimeout);
    return new Connections({ makeCopy, settings: () => given.options ?? {} }, deadline);
  }

  const copiesOfIoredis = (given: IoredisClient) => copies(given, copyIoredis);
  const copiesOfNodeRedis = (given: NodeRedisClient) => copies(given, copyNodeRedis);
  let transport: Transport;
  if (isIoredis && members["isCluster"] === true) {
    const cluster = client as unknown as IoredisClusterClient;
    transport = new Cluster(directoryOfIoredis(cluster, attemptMsOf(deadline), copiesOfIoredis));
  } else if (!isIoredis && "nodeByAddress" in members) {
    return new Cluster(directoryOfNodeRedis(client as unknown as NodeRedisClusterClient, copiesOfNodeRedis));
  } else if (!isIoredis && "getSentinelNode" in members) {
    return new NodeRedisSentinel(client as NodeRedis);
  } else if (!isIoredis && isFunction(members["execute"])) {
    return poolOfNodeRedis(client as unknown as NodeRedisPool, deadline);
  } else if (isFunction(members["duplicate"])) {
    transport = isIoredis
      ? copiesOfIoredis(client as unknown as IoredisClient)
      : copiesOfNodeRedis(client as unknown as NodeRedisClient);
  } else {
    return new UnknownClient(client);
  }
  closeWith(client, () => transport.close?.());
  return transport;
}

/** Sends calls through a client of an unknown kind, which cannot be copied. */
class UnknownClient implements Transport {
  readonly name = "the server";

  constructor(readonly client: Client) {}

  send(command: Command): Promise<unknown> {
    const { client } = this;
    return sendCommands(command, (words) => ("call" in client ? callWith(client, words) : client.sendCommand(words)));
  }
}
