/** What a limiter needs of ioredis: copies of clients, also of those that find their server by sentinels, and of clusters. */

import { type Directory } from "./cluster.js";
import { keepError, type Connections, type Copy } from "./connections.js";
import { isErrorReply, isNotServing, Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import { within } from "./transport.js";

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
  readonly options: Record<string, unknown>;
  connect(): Promise<unknown>;
  disconnect(): void;
  duplicate(overrides: object): IoredisClient;
  on(event: string, listener: (error: unknown) => void): unknown;
}

/** The settings of every copy: nothing is sent twice, and no time limit but the limiter's own applies. */
const NEVER_AGAIN = {
  autoResendUnfulfilledCommands: false,
  commandTimeout: undefined,
  socketTimeout: undefined,
  keyPrefix: "",
};

export function copyIoredis(client: IoredisClient, connectTimeout: number): Copy {
  const duplicate = client.duplicate({
    ...NEVER_AGAIN,
    connectTimeout,
    lazyConnect: true,
    retryStrategy: () => null,
    sentinelRetryStrategy: () => null,
    reconnectOnError: null,
    maxRetriesPerRequest: null,
    enableOfflineQueue: true,
    enableAutoPipelining: false,
    // The limiter sends a PING itself. With sentinels, the client checks whether it has found the master.
    enableReadyCheck: Boolean(client.options["sentinels"]),
    maxLoadingRetryTime: 200,
    blockingTimeout: undefined,
    disableClientInfo: true,
    readOnly: false,
  });
  return keepError(duplicate, {
    connect: () => duplicate.connect(),
    send: (words) => callWith(duplicate, words),
    isReady: () => duplicate.status === "ready",
    close: () => duplicate.disconnect(),
  });
}

/** The members of a cluster client that are used here. */
export interface IoredisClusterClient extends Ioredis {
  readonly status: string;
  readonly options: { redisOptions?: object | undefined };
  readonly slots?: readonly (readonly string[] | undefined)[];
  connect(): Promise<unknown>;
  disconnect(): void;
  duplicate(nodes: unknown[], overrides: object): IoredisClusterClient;
  nodes(role: "all" | "master"): IoredisClient[];
  on(event: string, listener: (error: unknown) => void): unknown;
}

const addressOf = ({ options }: IoredisClient): string => `${String(options["host"])}:${String(options["port"])}`;

/**
 * Returns what a cluster client knows of its nodes. It is asked through a copy, because the application's own client may not
 * be connected. `connectionsTo` is called with the client of a node.
 */
export function directoryOfIoredis(
  client: IoredisClusterClient,
  connectTimeout: number,
  connectionsTo: (node: IoredisClient) => Connections,
): Directory {
  let copy: IoredisClusterClient | undefined;
  let connecting: Promise<void> | undefined;

  async function connect(): Promise<void> {
    const duplicate = client.duplicate([], {
      lazyConnect: true,
      clusterRetryStrategy: () => null,
      retryDelayOnFailover: 0,
      retryDelayOnClusterDown: 0,
      enableOfflineQueue: true,
      enableAutoPipelining: false,
      scaleReads: "master",
      keyPrefix: "",
      redisOptions: { ...client.options.redisOptions, ...NEVER_AGAIN, connectTimeout },
    });
    copy = duplicate;
    let lastNodeError: unknown;
    duplicate.on("error", (error) => {
      ({ lastNodeError } = (error ?? {}) as { lastNodeError?: unknown });
    });
    try {
      const late = () => new Unreachable(`no connection to the cluster within ${connectTimeout} ms`);
      await within(connectTimeout, duplicate.connect(), late);
    } catch (error) {
      duplicate.disconnect();
      // Such as WRONGPASS or NOPERM.
      throw isErrorReply(lastNodeError) && !isNotServing(lastNodeError) ? lastNodeError : error;
    }
  }

  return {
    async ready() {
      if (copy?.status === "ready") return;
      connecting ??= connect().finally(() => (connecting = undefined));
      await connecting;
    },
    addressOf: (slot) => copy?.slots?.[slot]?.[0],
    masters: () => (copy?.nodes("master") ?? []).map(addressOf),
    connect: (address) => {
      const node = copy?.nodes("all").find((each) => addressOf(each) === address);
      return Promise.resolve(node && connectionsTo(node));
    },
    // Any command that has a key. The copy sends it to some node, which redirects it.
    refresh: (key) => (copy === undefined ? Promise.resolve() : copy.call("RL.HELD", key)),
    close: () => {
      copy?.disconnect();
      copy = undefined;
    },
  };
}
