/** What the limiter is given: which client it is, and how a call goes through it. */

import { PROBE_MS } from "./breaker.js";
import type { Call, Key } from "./calls.js";
import { shown } from "./check.js";
import { Connections, type Attempt, type IoredisClient, type NodeRedisClient } from "./connections.js";
import { isErrorReply, servesNobody, Unreachable } from "./errors.js";
import type { Word } from "./limits.js";
import { slotOf } from "./slot.js";

/** A client, cluster client, sentinel client or pool of node-redis. */
export interface NodeRedis {
  /** Sends a command. The arguments differ between clients, pools, sentinels and clusters. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  sendCommand(...args: any[]): Promise<any>;
}

/** A client or cluster client of ioredis. */
export interface Ioredis {
  /** Sends a command. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  call(command: string, ...args: any[]): Promise<any>;
}

/** What a limiter sends its calls through. */
export type Client = NodeRedis | Ioredis;

/** Where an object that stands for a client has a transport of its own. */
export const OWN_TRANSPORT = Symbol("transport");

/** How calls go to a server or a cluster. */
export interface Transport {
  /** The server in errors. */
  readonly name: string;
  /** What went wrong last with a connection. */
  readonly trouble: unknown;
  /** The node that has a key; each node has a breaker of its own. */
  nodeOf(key: Key | undefined): string;
  send(call: Call<unknown>, attempt: Attempt): Promise<unknown>;
  /** The reply where nobody needs to be waited for, else undefined. */
  atOnce?(call: Call<unknown>): unknown;
  /** Resolves once the node of a key answers. */
  probe(key: Key | undefined): Promise<void>;
  /** A call that began at `began` (performance.now) had no answer in time. */
  silent(key: Key | undefined, began: number): void;
  /** Sends a call to each node that takes writes. */
  sendToAll(call: Call<unknown>, attempt: Attempt): Promise<unknown[]>;
  close(): void;
}

const isFunction = (given: unknown): boolean => typeof given === "function";

/** The transport for a client; TypeError if it is none. */
export function transportFor(client: Client, deadline: number | undefined): Transport {
  const given = client as unknown as Record<string, unknown>;
  const isObject = typeof given === "object" && given !== null;
  if (isObject && OWN_TRANSPORT in given) return given[OWN_TRANSPORT] as Transport;
  if (isObject && isFunction(given["call"])) {
    if (given["isCluster"] === true) return new IoredisCluster(client as unknown as IoredisClusterClient, deadline);
    return isFunction(given["duplicate"]) ? single(client as unknown as IoredisClient, deadline) : new AsGiven(client);
  }
  if (isObject && isFunction(given["sendCommand"])) {
    if ("nodeByAddress" in given) return new NodeRedisCluster(client as unknown as NodeRedisClusterClient);
    if ("getSentinelNode" in given) return new NodeRedisSentinel(client as NodeRedis);
    if (isFunction(given["execute"])) return pool(client as unknown as NodeRedisPool, deadline);
    return isFunction(given["duplicate"])
      ? single(client as unknown as NodeRedisClient, deadline)
      : new AsGiven(client);
  }
  const hint =
    typeof given === "string" ? ": make a client of the URL, by createClient({ url }) or new Redis(url)" : "";
  throw new TypeError(`the client must be one of node-redis or ioredis, not ${shown(client)}${hint}`);
}

/** Closes what the limiter opened when the client is closed that it was given. */
function closeWith(client: object, close: () => void): void {
  const { on } = client as { on?: (event: string, listener: () => void) => unknown };
  on?.call(client, "end", close);
}

/** Where a client connects to. */
function addressOf(options: Record<string, unknown> | undefined): string {
  const at = (options?.["socket"] ?? options ?? {}) as { host?: string; port?: number; path?: string };
  if (options?.["sentinels"]) return `the master ${String(options["name"])} of the sentinels`;
  return at.path ?? `${at.host ?? "localhost"}:${at.port ?? 6379}`;
}

/** Connections of the limiter's own to a single server. */
class OwnConnections implements Transport {
  readonly #connections: Connections;
  readonly #options: () => Record<string, unknown> | undefined;

  constructor(connections: Connections, options: () => Record<string, unknown> | undefined) {
    this.#connections = connections;
    this.#options = options;
  }

  get name(): string {
    return addressOf(this.#options());
  }

  get trouble(): unknown {
    return this.#connections.trouble;
  }

  nodeOf(): string {
    return "";
  }

  send(call: Call<unknown>, attempt: Attempt): Promise<unknown> {
    return this.#connections.send(call, attempt);
  }

  probe(): Promise<void> {
    return this.#connections.probe();
  }

  silent(_: Key | undefined, began: number): void {
    this.#connections.silent(began);
  }

  async sendToAll(call: Call<unknown>, attempt: Attempt): Promise<unknown[]> {
    return [await this.send(call, attempt)];
  }

  close(): void {
    this.#connections.close();
  }
}

function single(client: NodeRedisClient | IoredisClient, deadline: number | undefined): Transport {
  const connections = new Connections(() => Promise.resolve(client), deadline);
  closeWith(client, () => connections.close());
  return new OwnConnections(connections, () => client.options);
}

interface NodeRedisPool {
  readonly isOpen: boolean;
  execute<T>(use: (client: NodeRedisClient) => T): Promise<T>;
}

/** One of a pool's clients tells the settings of its connections, and when the pool is closed. */
function pool(given: NodeRedisPool, deadline: number | undefined): Transport {
  let member: NodeRedisClient | undefined;
  const source = async (): Promise<NodeRedisClient> => {
    if (member === undefined) {
      const { client } = await given.execute((each) => ({ client: each }));
      member = client;
      client.on("end", () => setImmediate(watch));
    }
    return member;
  };
  const connections = new Connections(source, deadline);
  // A pool closes clients also when it has more than it needs.
  const watch = () => {
    member = undefined;
    if (given.isOpen) source().catch(() => {});
    else connections.close();
  };
  return new OwnConnections(connections, () => member?.options);
}

const gone = (): Unreachable => new Unreachable("the connection came too late");

/** A call through a client that the limiter does not open by itself. */
abstract class Shared<Given> implements Transport {
  protected readonly client: Given;
  trouble: unknown = undefined;

  constructor(client: Given) {
    this.client = client;
  }

  abstract readonly name: string;

  nodeOf(_: Key | undefined): string {
    return "";
  }

  abstract send(call: Call<unknown>, attempt: Attempt): Promise<unknown>;

  async probe(key: Key | undefined): Promise<void> {
    const attempt: Attempt = { over: false };
    const timer = setTimeout(() => {
      attempt.over = true;
      attempt.abandon?.();
    }, PROBE_MS);
    const words: Word[] = key === undefined ? ["PING"] : ["EXISTS", key];
    try {
      const late = new Promise<never>((_, reject) => setTimeout(() => reject(gone()), PROBE_MS).unref());
      await Promise.race([this.send({ key, words, readonly: false, read: Number }, attempt), late]);
    } catch (error) {
      if (!isErrorReply(error) || servesNobody(error)) throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  silent(_key: Key | undefined, _began: number): void {
    // Its connections are the client's.
  }

  async sendToAll(call: Call<unknown>, attempt: Attempt): Promise<unknown[]> {
    return [await this.send(call, attempt)];
  }

  close(): void {
    // Nothing was opened.
  }
}

/** A client of a kind that is not known: it is used as it is. */
class AsGiven extends Shared<Client> {
  readonly name = "the server";

  send({ words }: Call<unknown>): Promise<unknown> {
    if (!("call" in this.client)) return this.client.sendCommand(words);
    const [command, ...rest] = words;
    return this.client.call(String(command), ...rest);
  }
}

/** A signal that takes what node-redis has not sent yet out of its queue. */
function signalOf(attempt: Attempt): AbortSignal {
  const controller = new AbortController();
  attempt.abandon = () => controller.abort();
  return controller.signal;
}

class NodeRedisSentinel extends Shared<NodeRedis> {
  readonly name = "the master of the sentinels";

  send({ words, readonly }: Call<unknown>, attempt: Attempt): Promise<unknown> {
    const signal = signalOf(attempt);
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

interface NodeRedisClusterClient extends NodeRedis {
  readonly slots: readonly ({ master: { address: string } } | undefined)[];
  readonly masters: readonly object[];
  nodeClient(node: object): Promise<NodeRedis>;
  duplicate(): NodeRedisClusterClient;
  connect(): Promise<unknown>;
  destroy(): unknown;
  on(event: string, listener: () => void): unknown;
}

/** Cluster clients for calls that wait, as such a call holds up whatever comes after it on its connection. */
abstract class SharedCluster<Given extends object> extends Shared<Given> {
  readonly name = "the cluster";
  #idle: Given[] = [];
  #closed = 0;

  protected abstract open(): Promise<Given>;
  protected abstract hangUp(client: Given): void;
  protected abstract ask(client: Given, call: Call<unknown>, attempt: Attempt): Promise<unknown>;

  protected async sendWaiting(call: Call<unknown>, attempt: Attempt): Promise<unknown> {
    const closed = this.#closed;
    const client = this.#idle.pop() ?? (await this.open());
    if (attempt.over) {
      this.hangUp(client);
      throw gone();
    }
    attempt.abandon = () => this.hangUp(client);
    let isWhole = false;
    try {
      const reply = await this.ask(client, call, { over: false });
      isWhole = true;
      return reply;
    } catch (error) {
      isWhole = isErrorReply(error);
      throw error;
    } finally {
      attempt.abandon = undefined;
      if (isWhole && !attempt.over && closed === this.#closed && this.#idle.length < 16) this.#idle.push(client);
      else this.hangUp(client);
    }
  }

  override close(): void {
    this.#closed += 1;
    for (const client of this.#idle.splice(0)) this.hangUp(client);
  }
}

class NodeRedisCluster extends SharedCluster<NodeRedisClusterClient> {
  constructor(client: NodeRedisClusterClient) {
    super(client);
    closeWith(client, () => this.close());
  }

  override nodeOf(key: Key | undefined): string {
    return key === undefined ? "" : (this.client.slots?.[slotOf(key)]?.master.address ?? "");
  }

  send(call: Call<unknown>, attempt: Attempt): Promise<unknown> {
    if (call.blockMs !== undefined && isFunction(this.client.duplicate)) return this.sendWaiting(call, attempt);
    return this.ask(this.client, call, attempt);
  }

  protected ask(
    client: NodeRedisClusterClient,
    { key, readonly, words }: Call<unknown>,
    attempt: Attempt,
  ): Promise<unknown> {
    return client.sendCommand(key, readonly, words, { abortSignal: signalOf(attempt) });
  }

  override async sendToAll({ words }: Call<unknown>): Promise<unknown[]> {
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

interface IoredisClusterClient extends Ioredis {
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
class IoredisCluster extends SharedCluster<IoredisClusterClient> {
  readonly #connectTimeout: number;
  #own: IoredisClusterClient | undefined;
  /** When each node last answered. */
  readonly #answers = new Map<string, number>();

  constructor(client: IoredisClusterClient, deadline: number | undefined) {
    super(client);
    this.#connectTimeout = Math.max(1000, deadline ?? 5000);
    closeWith(client, () => this.close());
  }

  override nodeOf(key: Key | undefined): string {
    return key === undefined ? "" : (this.#own?.slots?.[slotOf(key)]?.[0] ?? "");
  }

  async send(call: Call<unknown>, attempt: Attempt): Promise<unknown> {
    if (call.blockMs !== undefined) return this.sendWaiting(call, attempt);
    return this.ask(await this.#ready(attempt), call);
  }

  protected async ask(client: IoredisClusterClient, { key, words }: Call<unknown>): Promise<unknown> {
    const [command, ...rest] = words;
    const node = key === undefined ? undefined : nodeAt(client, client.slots?.[slotOf(key)]?.[0]);
    let reply: unknown;
    try {
      reply = await (node ?? client).call(String(command), ...rest);
    } catch (error) {
      // A slot that moved: the client finds the node, and learns where it is.
      if (node === undefined || !isErrorReply(error) || !/^(MOVED|ASK) /.test(error.message)) throw error;
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

  override async sendToAll({ words }: Call<unknown>, attempt: Attempt): Promise<unknown[]> {
    const own = await this.#ready(attempt);
    const [command, ...rest] = words;
    return Promise.all(own.nodes("master").map((node) => node.call(String(command), ...rest)));
  }

  /** Nothing is given to a client that is not ready, as it would be sent whenever it becomes ready. */
  async #ready(attempt: Attempt): Promise<IoredisClusterClient> {
    while (!attempt.over) {
      if (this.#own === undefined || this.#own.status === "end") {
        this.#own = this.#duplicate();
        this.#own.connect().catch((error: unknown) => (this.trouble = error));
      }
      if (this.#own.status === "ready") return this.#own;
      await new Promise((done) => setTimeout(done, 5));
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
    own.on("error", (error) => (this.trouble = error));
    own.on("node error", (error) => (this.trouble = error));
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
