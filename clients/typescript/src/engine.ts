/** The engine of the server's module as WebAssembly: words in, a reply out. An instance is one server in memory. */

import { engineBytes } from "./engine-file.js";
import type { Word } from "./limits.js";
import { randomNumbers } from "./random.js";

interface Exports {
  memory: WebAssembly.Memory;
  start(seed: bigint, share: number): number;
  input(length: number): number;
  numbers(): number;
  output(): number;
  output_len(): number;
  call(length: number, nowUs: number): number;
  take_ended(nowUs: number): number;
  next_us(): number;
  withdraw(ticket: number, nowUs: number): void;
}

/** What `call` returns for a reply that is not an array of integers. For an array it returns the length. */
const JSON_REPLY = -1;

/** A call that waits. */
export class Ticket {
  constructor(readonly number: number) {}
}

/** An error reply. Its name is that of the client libraries. */
export class ReplyError extends Error {
  override readonly name = "ReplyError";
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

let compiled: WebAssembly.Module | Promise<WebAssembly.Module> | undefined;

/** The engine, compiled once: synchronously if its file can be read so. */
export function engineModule(): WebAssembly.Module | Promise<WebAssembly.Module> {
  if (compiled !== undefined) return compiled;
  const bytes = engineBytes();
  if (!(bytes instanceof Promise)) return (compiled = new WebAssembly.Module(bytes as BufferSource));
  const later = bytes.then(async (each) => (compiled = await WebAssembly.compile(each as BufferSource)));
  // What failed is tried again.
  later.catch(() => (compiled = undefined));
  return (compiled = later);
}

function seed(): bigint {
  const [high = 0, low = 0] = randomNumbers(2);
  return BigInt(high) * 2n ** 32n + BigInt(low);
}

/** Makes an Error of an error of the engine, also in an array of replies. */
function revive(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(revive);
  if (typeof value === "object" && value !== null) return new ReplyError((value as { error: string }).error);
  return value;
}

export class Engine {
  readonly #exports: Exports;
  /** The engine's memory, which moves when it grows. */
  #bytes: Uint8Array;
  #numbers: Float64Array;
  #input = 0;
  #room = 0;

  constructor(module: WebAssembly.Module, share: number) {
    this.#exports = new WebAssembly.Instance(module, {}).exports as unknown as Exports;
    if (!this.#exports.start(seed(), share)) {
      throw new RangeError(`share must be above 0 (from 1/10000) and at most 1, not ${share}`);
    }
    this.#bytes = new Uint8Array(this.#exports.memory.buffer);
    this.#numbers = new Float64Array(this.#exports.memory.buffer);
  }

  /** The reply as client libraries give it, an error reply as a ReplyError; or a Ticket. The time is Unix microseconds. */
  call(words: readonly Word[], nowUs: number): unknown {
    const exports = this.#exports;
    const length = exports.call(this.#put(words), nowUs);
    if (length === JSON_REPLY) return revive(this.#json());
    this.#look();
    const at = exports.numbers() / 8;
    const numbers = this.#numbers;
    if (length < 0) return new Ticket(numbers[at] as number);
    const reply = new Array<number>(length);
    for (let each = 0; each < length; each += 1) reply[each] = numbers[at + each] as number;
    return reply;
  }

  /** The waits that are over: tickets and replies. */
  takeEnded(nowUs: number): [number, unknown][] {
    if (this.#exports.take_ended(nowUs) === 0) return [];
    return revive(this.#json()) as [number, unknown][];
  }

  /** When takeEnded should be asked next; below 0 while no call waits. */
  nextUs(): number {
    return this.#exports.next_us();
  }

  /** Ends the wait of a call that was cancelled. */
  withdraw(ticket: number, nowUs: number): void {
    this.#exports.withdraw(ticket, nowUs);
  }

  #look(): void {
    // What was seen of the memory has no length any more once that has moved.
    if (this.#bytes.length > 0) return;
    const { buffer } = this.#exports.memory;
    this.#bytes = new Uint8Array(buffer);
    this.#numbers = new Float64Array(buffer);
  }

  #json(): unknown {
    this.#look();
    const at = this.#exports.output();
    return JSON.parse(decoder.decode(this.#bytes.subarray(at, at + this.#exports.output_len())));
  }

  /** Writes the words for the engine to read, each after its length. Returns their total length. */
  #put(words: readonly Word[]): number {
    let room = 0;
    // A letter of a string has three bytes at most.
    for (const word of words) room += 4 + (typeof word === "string" ? 3 * word.length : word.byteLength);
    if (room > this.#room) {
      this.#room = Math.max(room, 1024);
      this.#input = this.#exports.input(this.#room);
    }
    this.#look();
    const bytes = this.#bytes;
    const begin = this.#input;
    let at = begin;
    for (const word of words) {
      const head = at;
      at += 4;
      let length: number;
      if (typeof word === "string") {
        length = word.length;
        for (let each = 0; each < length; each += 1) {
          const code = word.charCodeAt(each);
          if (code >= 0x80) {
            length = encoder.encodeInto(word, bytes.subarray(at, at + 3 * word.length)).written;
            break;
          }
          bytes[at + each] = code;
        }
      } else {
        bytes.set(word, at);
        length = word.byteLength;
      }
      bytes[head] = length;
      bytes[head + 1] = length >> 8;
      bytes[head + 2] = length >> 16;
      bytes[head + 3] = length >> 24;
      at += length;
    }
    return at - begin;
  }
}
