/**
 * Calls to a cluster. The table of slots and nodes is that of the application's cluster client. Each node has connections of
 * the limiter's own, as a single server has: a node that does not answer holds up no calls of other nodes.
 *
 * The cluster clients cannot send the calls themselves, because only connections of our own can be replaced when a server
 * hangs, and closed to end the wait of a call with `block`. With retries off, node-redis 5 does not open the lost connection
 * of a node again, and with retries on it keeps calls while a node is down and sends them when it is back, after their
 * deadlines. ioredis 5 opens a connection again, but keeps one that hangs. So calls are sent by the table, and redirections
 * are followed here.
 */

import type { Command, Key } from "./command.js";
import type { Connections } from "./connections.js";
import { ReplyError } from "./engine.js";
import { codeOf, isUnreachable, Unreachable } from "./errors.js";
import { givenUp, type Attempt, type Transport } from "./transport.js";

/** The maximum number of redirections of a call: a cluster whose nodes disagree replies MOVED forever. */
const MAX_REDIRECTS = 5;
const SLOTS = 16_384;

/** Returns the CRC16 (XMODEM). */
function crc16(bytes: Uint8Array): number {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit += 1) crc = ((crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
  }
  return crc;
}

/** Returns the slot of a key. In a key with a hash tag, such as `{user:1}:day`, only the tag counts. */
export function slotOf(key: Key): number {
  const bytes = Buffer.from(key as string);
  const open = bytes.indexOf("{");
  const close = open < 0 ? -1 : bytes.indexOf("}", open + 1);
  return crc16(close > open + 1 ? bytes.subarray(open + 1, close) : bytes) % SLOTS;
}

/** What a cluster client knows of its nodes, by their addresses. */
export interface Directory {
  /** Resolves when the client knows the nodes. */
  ready(): Promise<void>;
  /** Returns the address of the node that has a slot. */
  addressOf(slot: number): string | undefined;
  masters(): string[];
  /** Returns connections to a node; undefined if the client does not know it. */
  connect(address: string): Promise<Connections | undefined>;
  /** Looks for the node that has a key. `isGone` is whether the node that had it cannot be asked. */
  refresh(key: Key, isGone: boolean): Promise<unknown>;
  close(): void;
}

/** Sends each call to the node that has its key. */
export class Cluster implements Transport {
  readonly name = "the cluster";
  readonly #directory: Directory;
  readonly #nodes = new Map<string, Connections>();

  constructor(directory: Directory) {
    this.#directory = directory;
  }

  nodeOf(key: Key | undefined): string {
    return key === undefined ? "" : (this.#directory.addressOf(slotOf(key)) ?? "");
  }

  async send(command: Command, attempt: Attempt): Promise<unknown> {
    const { key = "", transaction = [] } = command;
    if (new Set(transaction.map(([, keyOfCommand = ""]) => slotOf(keyOfCommand))).size > 1) {
      throw new ReplyError("CROSSSLOT the keys of one step must lie in one slot");
    }
    await this.#directory.ready();
    let address = this.nodeOf(key);
    let isAsking = false;
    for (let redirects = 0; ; redirects += 1) {
      if (attempt.over) throw givenUp();
      const node = await this.#nodeAt(address, key);
      try {
        return await node.send(command, attempt, isAsking);
      } catch (error) {
        const code = codeOf(error);
        // A redirected call was not executed, and neither was a transaction if one of its commands was redirected.
        isAsking = code === "ASK";
        if (isAsking) address = (error as Error).message.split(" ")[2] ?? "";
        else {
          // The slot may also have moved because its node is gone.
          const isGone = code === undefined && isUnreachable(error);
          const refreshed =
            code === "MOVED" || isGone ? this.#directory.refresh(key, isGone).catch(() => {}) : undefined;
          if (code !== "MOVED") throw error;
          await refreshed;
          address = this.nodeOf(key);
        }
        if (redirects === MAX_REDIRECTS) throw error;
      }
    }
  }

  async #nodeAt(address: string, key: Key): Promise<Connections> {
    const known = this.#nodes.get(address);
    if (known !== undefined) return known;
    let at = address;
    let node = await this.#directory.connect(at);
    if (node === undefined) {
      await this.#directory.refresh(key, true).catch(() => {});
      at ||= this.nodeOf(key);
      node = await this.#directory.connect(at);
    }
    if (node === undefined) throw new Unreachable(`the cluster's client does not know the node ${at}`);
    // Another call may have been faster.
    const first = this.#nodes.get(at) ?? node;
    this.#nodes.set(at, first);
    return first;
  }

  async sendToAll(command: Command, attempt: Attempt): Promise<unknown[]> {
    await this.#directory.ready();
    const nodes = await Promise.all(this.#directory.masters().map((address) => this.#nodeAt(address, "")));
    return Promise.all(nodes.map((node) => node.send(command, attempt)));
  }

  close(): void {
    for (const node of this.#nodes.values()) node.close();
    this.#directory.close();
  }
}
