/** What the limiter is given: which client it is. */

import { quote } from "./check.js";
import type { Command } from "./calls.js";
import {
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
import type { Word } from "./limits.js";
import { ClientTransport, OWN_TRANSPORT, transaction, type Transport } from "./transport.js";

export type { Ioredis } from "./ioredis.js";
export type { NodeRedis } from "./node-redis.js";

/** What a limiter sends its calls through. */
export type Client = NodeRedis | Ioredis;

const isFunction = (given: unknown): boolean => typeof given === "function";

/** The transport for a client; TypeError if it is none. */
export function transportFor(client: Client, deadline: number | undefined): Transport {
  const given = client as unknown as Record<string, unknown>;
  const isObject = typeof given === "object" && given !== null;
  if (isObject && OWN_TRANSPORT in given) return given[OWN_TRANSPORT] as Transport;
  if (isObject && isFunction(given["call"])) {
    if (given["isCluster"] === true) return new IoredisCluster(client as unknown as IoredisClusterClient, deadline);
    return isFunction(given["duplicate"])
      ? singleIoredis(client as unknown as IoredisClient, deadline)
      : new AsGiven(client);
  }
  if (isObject && isFunction(given["sendCommand"])) {
    if ("nodeByAddress" in given) return new NodeRedisCluster(client as unknown as NodeRedisClusterClient);
    if ("getSentinelNode" in given) return new NodeRedisSentinel(client as NodeRedis);
    if (isFunction(given["execute"])) return poolOfNodeRedis(client as unknown as NodeRedisPool, deadline);
    return isFunction(given["duplicate"])
      ? singleNodeRedis(client as unknown as NodeRedisClient, deadline)
      : new AsGiven(client);
  }
  const hint =
    typeof given === "string" ? ": make a client of the URL, by createClient({ url }) or new Redis(url)" : "";
  throw new TypeError(`the client must be one of node-redis or ioredis, not ${quote(client)}${hint}`);
}

/** A client of a kind that is not known: it is used as it is. */
class AsGiven extends ClientTransport<Client> {
  readonly name = "the server";

  send({ words, more }: Command): Promise<unknown> {
    return more === undefined ? this.#send(words) : transaction([words, ...more], (each) => this.#send(each));
  }

  #send(words: Word[]): Promise<unknown> {
    if (!("call" in this.client)) return this.client.sendCommand(words);
    const [command, ...rest] = words;
    return this.client.call(String(command), ...rest);
  }
}
