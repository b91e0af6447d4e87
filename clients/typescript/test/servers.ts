/** Servers and proxies that tests start, and clients of them. */

import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer, type AddressInfo, type Server as TcpServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Cluster, Redis } from "ioredis";
import { Cluster as Cluster6 } from "ioredis-6";
import { createClient, createCluster } from "redis";
import { createCluster as createCluster6 } from "redis-6";

import type { Client } from "../src/index.js";

// A cluster client of node-redis that is destroyed while it asks for the nodes creates clients of them afterwards. They would
// keep the process of a test running for ever.
after(() => {
  setTimeout(() => process.exit(), 3000).unref();
});

/** Waits until `holds`, for 20 seconds at most. */
export async function until(holds: () => Promise<boolean> | boolean, what = "it does not hold"): Promise<void> {
  for (const end = Date.now() + 20_000; !(await holds()); await sleep(5)) assert.ok(Date.now() < end, what);
}

/** Waits until this many calls wait on a server. */
export const untilWaiting = (redis: Redis, count: number): Promise<void> =>
  until(
    async () => (await redis.info("ratelimit")).includes(`ratelimit_waiting:${count}\r`),
    `not ${count} calls wait`,
  );

/** Returns the first answer of a program that begins to listen, within a minute; undefined if it ends instead. */
export async function firstAnswer(url: string, program: ChildProcess): Promise<Response | undefined> {
  for (let attempt = 0; attempt < 600 && program.exitCode === null; attempt += 1) {
    const answer = await fetch(url).catch(() => undefined);
    if (answer !== undefined) return answer;
    await sleep(100);
  }
  return undefined;
}

/** A port that nothing listens on. */
export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  const { port } = server.address() as AddressInfo;
  await new Promise((closed) => server.close(closed));
  return port;
}

/** A server with the module, of REDIS_SERVER and RATELIMIT_SO. It keeps its port and its folder when it is started again. */
export class Server {
  readonly #folder = mkdtempSync(join(tmpdir(), "ratelimit-ts-"));
  #process: ChildProcess | undefined;
  #admin: Redis | undefined;

  private constructor(readonly port: number) {}

  static async start(...settings: string[]): Promise<Server> {
    const server = new Server(await freePort());
    await server.start(...settings);
    return server;
  }

  /** Starts it without waiting for its data to be loaded. */
  launch(...settings: string[]): void {
    const program = process.env["REDIS_SERVER"] ?? "redis-server";
    const words = [
      "--port",
      `${this.port}`,
      "--bind",
      "127.0.0.1",
      "--dir",
      this.#folder,
      "--save",
      "",
      "--appendonly",
      "no",
    ];
    const module = process.env["RATELIMIT_SO"];
    if (module === undefined) throw new Error("RATELIMIT_SO must be the path of the module");
    this.#process = spawn(program, [...words, "--loadmodule", module, ...settings], { stdio: "ignore" });
  }

  async start(...settings: string[]): Promise<void> {
    this.launch(...settings);
    await this.#connectAdmin();
  }

  async #connectAdmin(): Promise<void> {
    this.#admin?.disconnect();
    this.#admin = new Redis(this.port, "127.0.0.1", { retryStrategy: () => 20, maxRetriesPerRequest: null });
    this.#admin.on("error", () => {});
    await this.#admin.ping();
  }

  /**
   * Restricts all clients to what docs/commands.md says about the user for an adapter, and to more keys. The connection for
   * the test may do everything.
   */
  async restrictTo(adapter: string, ...keys: string[]): Promise<void> {
    const page = readFileSync(join(process.env["RATELIMIT_CHECKOUT"] ?? "", "docs", "commands.md"), "utf8");
    const rowOf = (pattern: RegExp) => (pattern.exec(page) ?? assert.fail(`${adapter} is not on the page`)).slice(1);
    const cells = rowOf(new RegExp(`^\\| \\[${adapter}\\].*? \\| (.*?) \\| (.*?) \\| (.*?)\\|$`, "m"));
    const [patterns = [], commands = [], also = []] = cells.map((cell) =>
      [...cell.matchAll(/`(.*?)`/g)].map(([, text = ""]) => text),
    );
    const ofLibraries = rowOf(/^ACL SETUSER app .* \+@ratelimit (.*)$/m)
      .join()
      .split(" ");
    const rights = [...keys, ...patterns, ...commands.map((name) => `+${name.toLowerCase()}`), ...also, ...ofLibraries];
    const words = rights.join(" ").split(" ");
    await this.admin.call("ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all");
    await this.admin.call("AUTH", "admin", "admin");
    const restricted = ["ACL", "SETUSER", "default", "resetkeys", "-@all"] as const;
    // Redis 7.0 does not know CLIENT SETINFO.
    await this.admin
      .call(...restricted, ...words)
      .catch(() => this.admin.call(...restricted, ...words.filter((word) => word !== "+client|setinfo")));
    await this.admin.call("ACL", "LOG", "RESET");
  }

  /** The commands and keys that the server refused since then. */
  async refused(): Promise<unknown[]> {
    const entries = (await this.admin.call("ACL", "LOG")) as unknown[][];
    const objects = entries.map((fields) => fields[fields.indexOf("object") + 1] as string);
    return objects.filter((object) => !object.startsWith("client"));
  }

  /** A connection for the test. */
  get admin(): Redis {
    return this.#admin as Redis;
  }

  /** A sentinel that watches a master under the name "limits". */
  static async sentinelOf(master: Server, quorum: number): Promise<Server> {
    const server = new Server(await freePort());
    const config = [
      `port ${server.port}`,
      `dir ${server.#folder}`,
      `sentinel monitor limits 127.0.0.1 ${master.port} ${quorum}`,
      "sentinel down-after-milliseconds limits 1000",
      "sentinel failover-timeout limits 10000",
    ];
    const file = join(server.#folder, "sentinel.conf");
    writeFileSync(file, `${config.join("\n")}\n`);
    server.#process = spawn(process.env["REDIS_SERVER"] ?? "redis-server", [file, "--sentinel"], { stdio: "ignore" });
    await server.#connectAdmin();
    return server;
  }

  /** Starts three masters of a cluster. Returns them, and a function that finds the master of a slot. */
  static async cluster(): Promise<{ nodes: Server[]; ofSlot: (slot: number) => Server }> {
    const settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "60000"];
    settings.push("--cluster-require-full-coverage", "no");
    const nodes = [await Server.start(...settings), await Server.start(...settings), await Server.start(...settings)];
    const ofSlot = (slot: number) => nodes[Math.floor((slot * 3) / 16_384)] as Server;
    const slots = Array.from({ length: 16_384 }, (_, slot) => slot);
    for (const node of nodes) {
      await node.admin.call("CLUSTER", "ADDSLOTS", ...slots.filter((slot) => ofSlot(slot) === node));
      await node.admin.call("CLUSTER", "MEET", "127.0.0.1", nodes[0]?.port ?? 0);
    }
    const agreed = async (node: Server) => {
      const state = String(await node.admin.call("CLUSTER", "INFO"));
      return /cluster_state:ok/.test(state) && /cluster_slots_ok:16384/.test(state) && /known_nodes:3/.test(state);
    };
    for (const node of nodes) while (!(await agreed(node))) await sleep(50);
    return { nodes, ofSlot };
  }

  /** SIGKILL, as a crash would. */
  async kill(): Promise<void> {
    const ended = this.#process as ChildProcess;
    this.#process = undefined;
    if (ended.exitCode !== null || ended.signalCode !== null) return;
    ended.kill("SIGKILL");
    await once(ended, "exit");
  }

  signal(signal: "SIGSTOP" | "SIGCONT"): void {
    this.#process?.kill(signal);
  }

  async end(): Promise<void> {
    this.#admin?.disconnect();
    if (this.#process !== undefined) await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** A proxy to a server that can drop or delay packets. */
export class Proxy {
  readonly #sockets = new Set<Socket>();
  readonly #near = new Set<Socket>();
  readonly #server: TcpServer;
  /** Whether packets are dropped, in both directions. */
  dropping = false;
  /** The delay of packets from the server, in milliseconds. */
  delayMs = 0;
  /** Changes what is sent to the server. */
  change = (sent: string): string => sent;
  #far: number;

  private constructor(far: number) {
    this.#far = far;
    this.#server = createServer((near) => {
      this.#near.add(near);
      near.on("close", () => this.#near.delete(near));
      const other = connect(this.#far, "127.0.0.1");
      this.#join(
        near,
        other,
        () => 0,
        (sent) => Buffer.from(this.change(sent.toString("latin1")), "latin1"),
      );
      this.#join(other, near, () => this.delayMs);
    });
  }

  static async before(port: number): Promise<Proxy> {
    const proxy = new Proxy(port);
    await new Promise<void>((listening) => proxy.#server.listen(0, "127.0.0.1", listening));
    return proxy;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** The number of connections to the proxy. */
  get connections(): number {
    return this.#near.size;
  }

  #join(one: Socket, other: Socket, delayMs: () => number, change = (data: Buffer) => data): void {
    this.#sockets.add(one);
    let last = Promise.resolve();
    one.on("data", (data) => {
      if (this.dropping) return;
      if (delayMs() === 0) return void other.write(change(data));
      last = last.then(() => sleep(delayMs())).then(() => void other.write(data));
    });
    one.on("error", () => {});
    one.on("close", () => {
      this.#sockets.delete(one);
      if (!this.dropping) other.destroy();
    });
  }

  /** Connects to another port from now on. Closes the present connections, unless `hangUp` is false. */
  leadTo(port: number, hangUp = true): void {
    this.#far = port;
    if (hangUp) for (const socket of this.#sockets) socket.destroy();
  }

  end(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }
}

export interface Opened {
  client: Client;
  close(): unknown;
}

interface Connectable {
  on(event: "error", listener: () => void): unknown;
  connect(): Promise<unknown>;
  destroy?(): unknown;
  disconnect?(): unknown;
}

/** Connects a client of any library and version. */
export async function connected(client: Client & Connectable): Promise<Opened> {
  client.on("error", () => {});
  await client.connect();
  return { client, close: () => (client.destroy ? client.destroy() : client.disconnect?.()) };
}

/** Connects a client of a cluster with each library, and with later versions of them, by the port of a node. */
export const CLUSTERS: [string, (port: number) => Promise<Opened>][] = [
  ["node-redis", (port) => connected(createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] }))],
  ["ioredis", (port) => connected(new Cluster([{ host: "127.0.0.1", port }], { lazyConnect: true }))],
  ["node-redis 6", (port) => connected(createCluster6({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] }))],
  ["ioredis 6", (port) => connected(new Cluster6([{ host: "127.0.0.1", port }], { lazyConnect: true }))],
];

/** Creates a client of a single server with each library. */
export const SINGLE: [string, (port: number) => Opened][] = [
  [
    "node-redis",
    (port) => {
      const client = createClient({ socket: { host: "127.0.0.1", port } });
      client.on("error", () => {});
      return { client, close: () => client.isOpen && client.destroy() };
    },
  ],
  [
    "ioredis",
    (port) => {
      const client = new Redis(port, "127.0.0.1", { lazyConnect: true });
      client.on("error", () => {});
      return { client, close: () => client.disconnect() };
    },
  ],
];
