/** Chooses the transport for the client that a limiter is given. */

import { quote } from "./check.js";
import type { Command } from "./command.js";
import {
  callWith,
  IoredisCluster,
  singleIoredis,
  type Ioredis,
  type IoredisClient,
  type IoredisClusterClient,
} from "./ioredis.js";
import {
  NodeRedisCluster,
  NodeRedisSentinel,
  poolOfNodeRedis,
  singleNodeRedis,
  type NodeRedis,
  type NodeRedisClient,
  type NodeRedisClusterClient,
  type NodeRedisPool,
} from "./node-redis.js";
import { ClientTransport, OWN_TRANSPORT, sendCommands, type Transport } from "./transport.js";

export type { Ioredis } from "./ioredis.js";
export type { NodeRedis } from "./node-redis.js";

/** A client, cluster client, sentinel client or pool of node-redis or ioredis. */
export type Client = NodeRedis | Ioredis;

const isFunction = (value: unknown): boolean => typeof value === "function";

/** Returns the transport for a client. Throws a TypeError for anything else. */
export function transportFor(client: Client, deadline: number | undefined): Transport {
  const members = client as unknown as Record<string, unknown>;
  const isObject = typeof members === "object" && members !== null;
  if (isObject && OWN_TRANSPORT in members) return members[OWN_TRANSPORT] as Transport;
  if (isObject && isFunction(members["call"])) {
    if (members["isCluster"] === true) return new IoredisCluster(client as unknown as IoredisClusterClient, deadline);
    return isFunction(members["duplicate"])
      ? singleIoredis(client as unknown as IoredisClient, deadline)
      : new UnknownClient(client);
  }
  if (isObject && isFunction(members["sendCommand"])) {
    if ("nodeByAddress" in members) return new NodeRedisCluster(client as unknown as NodeRedisClusterClient, deadline);
    if ("getSentinelNode" in members) return new NodeRedisSentinel(client as NodeRedis);
    if (isFunction(members["execute"])) return poolOfNodeRedis(client as unknown as NodeRedisPool, deadline);
    return isFunction(members["duplicate"])
      ? singleNodeRedis(client as unknown as NodeRedisClient, deadline)
      : new UnknownClient(client);
  }
  const hint =
    typeof members === "string" ? ": make a client of the URL, by createClient({ url }) or new Redis(url)" : "";
  throw new TypeError(`the client must be one of node-redis or ioredis, not ${quote(client)}${hint}`);
}

/** Sends calls through a client of an unknown kind, which cannot be duplicated. */
class UnknownClient extends ClientTransport<Client> {
  readonly name = "the server";

  send(command: Command): Promise<unknown> {
    const { client } = this;
    return sendCommands(command, (words) => ("call" in client ? callWith(client, words) : client.sendCommand(words)));
  }
}
