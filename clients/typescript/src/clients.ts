/** Chooses the transport for the client that a limiter is given. */

import { quote } from "./check.js";
import { Cluster } from "./cluster.js";
import { attemptMsOf, closeWith, Connections, type Copy } from "./connections.js";
import * as ioredis from "./ioredis.js";
import * as nodeRedis from "./node-redis.js";
import { IS_TRANSPORT, sendCommands, type Transport } from "./transport.js";

export type { Ioredis } from "./ioredis.js";
export type { NodeRedis } from "./node-redis.js";

/** A client, cluster client, sentinel client or pool of node-redis or ioredis. */
export type Client = nodeRedis.NodeRedis | ioredis.Ioredis;

const isFunction = (value: unknown): boolean => typeof value === "function";

/** Returns the transport for a client. Throws a TypeError for anything else. */
export function transportFor(client: Client, deadline: number): Transport {
  const members = client as unknown as Record<string, unknown>;
  const isObject = typeof members === "object" && members !== null;
  if (isObject && IS_TRANSPORT in members) return client as unknown as Transport;
  if (isObject && isFunction(members["call"])) return transportOfIoredis(client as ioredis.IoredisClient, deadline);
  if (isObject && isFunction(members["sendCommand"])) {
    return transportOfNodeRedis(client as nodeRedis.NodeRedisClient, deadline);
  }
  const hint =
    typeof members === "string" ? ": make a client of the URL, by createClient({ url }) or new Redis(url)" : "";
  throw new TypeError(`the client must be one of node-redis or ioredis, not ${quote(client)}${hint}`);
}

/** Returns a maker of connections with the settings of a client. */
const copiesBy =
  <Given extends { readonly options?: Record<string, unknown> | undefined }>(
    copy: (given: Given, connectTimeout: number) => Copy,
    deadline: number,
  ) =>
  (given: Given): Connections =>
    new Connections(
      (connectTimeout) => copy(given, connectTimeout),
      () => given.options,
      deadline,
    );

/** A client of an unknown kind, which cannot be copied, sends the calls itself. */
const sendBy = (send: (words: (string | Buffer)[]) => Promise<unknown>): Transport => ({
  name: "the server",
  send: (command) => sendCommands(command, send),
});

function transportOfIoredis(client: ioredis.IoredisClient, deadline: number): Transport {
  const copies = copiesBy(ioredis.copyIoredis, deadline);
  if (!("duplicate" in client)) return sendBy((words) => ioredis.callWith(client, words));
  const transport =
    "isCluster" in client && client.isCluster === true
      ? new Cluster(ioredis.directoryOfIoredis(client as never, attemptMsOf(deadline), copies))
      : copies(client);
  closeWith(client, () => transport.close());
  return transport;
}

function transportOfNodeRedis(client: nodeRedis.NodeRedisClient, deadline: number): Transport {
  const copies = copiesBy(nodeRedis.copyNodeRedis, deadline);
  if ("nodeByAddress" in client) return new Cluster(nodeRedis.directoryOfNodeRedis(client as never, copies));
  if ("getSentinelNode" in client) return nodeRedis.sentinelOfNodeRedis(client);
  if ("execute" in client) return nodeRedis.poolOfNodeRedis(client as never, deadline);
  if (!("duplicate" in client)) return sendBy((words) => (client as nodeRedis.NodeRedis).sendCommand(words));
  const transport = copies(client);
  closeWith(client, () => transport.close());
  return transport;
}
