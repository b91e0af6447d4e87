/** The engine of the server's module, as WebAssembly. */

import base64 from "./engine-base64.js";
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

/** The result of `call` for a reply that is not an array of integers. For an array it is the length. */
const JSON_REPLY = -1;

/** The ticket of a call that waits. */
export class Ticket {
  constructor(readonly number: number) {}
}

/** An error reply, with the name that the client libraries give to theirs. */
export class ReplyError extends Error {
  override readonly name = "ReplyError";
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

let compiled: WebAssembly.Module | undefined;

/** Returns the engine, which is compiled once. */
export function engineModule(): WebAssembly.Module {
  if (base64 === "") throw new Error("this package was built without its engine, which needs Rust: see its README.md");
  return (compiled ??= new WebAssembly.Module(
    typeof Buffer === "function"
      ? Buffer.from(base64, "base64")
      : Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)),
  ));
}

/** Replaces the errors in a JSON reply by ReplyErrors. */
function revive(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(revive);
  if (typeof value === "object" && value !== null) return new ReplyError((value as { error: string }).error);
  return value;
}

/** An instance of the WebAssembly module, and its memory. */
export class Instance<T> {
  readonly exports: Exports & T;
  /** A view of the memory, like #numbers. When the memory grows, the view has no length any more. */
  #bytes: Uint8Array;
  #numbers: Float64Array;
  /** The offset of the input in the memory, and its length. */
  #input = 0;
  #inputLength = 0;

  constructor(module: WebAssembly.Module) {
    this.exports = new WebAssembly.Instance(module, {}).exports as unknown as Exports & T;
    this.#bytes = new Uint8Array(this.exports.memory.buffer);
    this.#numbers = new Float64Array(this.exports.memory.buffer);
  }

  /** The memory as numbers. */
  get numbers(): Float64Array {
    this.#refreshViews();
    return this.#numbers;
  }

  #refreshViews(): void {
    if (this.#bytes.length > 0) return;
    const { buffer } = this.exports.memory;
    this.#bytes = new Uint8Array(buffer);
    this.#numbers = new Float64Array(buffer);
  }

  /** Reads the output, which is JSON. */
  json(): unknown {
    this.#refreshViews();
    const begin = this.exports.output();
    return JSON.parse(decoder.decode(this.#bytes.subarray(begin, begin + this.exports.output_len())));
  }

  /** Writes words to the input, each with its length in front. Returns the number of bytes. */
  write(words: readonly Word[]): number {
    let maxLength = 0;
    // A UTF-16 code unit becomes at most three bytes.
    for (const word of words) maxLength += 4 + (typeof word === "string" ? 3 * word.length : word.byteLength);
    if (maxLength > this.#inputLength) {
      this.#inputLength = Math.max(maxLength, 1024);
      this.#input = this.exports.input(this.#inputLength);
    }
    this.#refreshViews();
    const bytes = this.#bytes;
    let end = this.#input;
    for (const word of words) {
      const begin = end;
      end += 4;
      let length: number;
      if (typeof word === "string") {
        length = word.length;
        for (let index = 0; index < length; index += 1) {
          const code = word.charCodeAt(index);
          if (code >= 0x80) {
            length = encoder.encodeInto(word, bytes.subarray(end, end + 3 * word.length)).written;
            break;
          }
          bytes[end + index] = code;
        }
      } else {
        bytes.set(word, end);
        length = word.byteLength;
      }
      bytes[begin] = length;
      bytes[begin + 1] = length >> 8;
      bytes[begin + 2] = length >> 16;
      bytes[begin + 3] = length >> 24;
      end += length;
    }
    return end - this.#input;
  }
}

/** A server in memory. Times are Unix microseconds. */
export class Engine {
  readonly #instance: Instance<object>;

  constructor(module: WebAssembly.Module, share: number) {
    this.#instance = new Instance(module);
    const [high = 0, low = 0] = randomNumbers(2);
    const seed = BigInt(high) * 2n ** 32n + BigInt(low);
    if (!this.#instance.exports.start(seed, share)) {
      throw new RangeError(`share must be above 0 (from 1/10000) and at most 1, not ${share}`);
    }
  }

  /**
   * Executes a command. Returns its reply as client libraries do, an error reply as a ReplyError, or a Ticket if it waits.
   */
  call(words: readonly Word[], nowUs: number): unknown {
    const instance = this.#instance;
    const { exports } = instance;
    const length = exports.call(instance.write(words), nowUs);
    if (length === JSON_REPLY) return revive(instance.json());
    const begin = exports.numbers() / 8;
    const { numbers } = instance;
    if (length < 0) return new Ticket(numbers[begin] as number);
    const reply = new Array<number>(length);
    for (let index = 0; index < length; index += 1) reply[index] = numbers[begin + index] as number;
    return reply;
  }

  /** Returns the tickets of the calls whose wait is over, with their replies. */
  takeEnded(nowUs: number): [number, unknown][] {
    if (this.#instance.exports.take_ended(nowUs) === 0) return [];
    return revive(this.#instance.json()) as [number, unknown][];
  }

  /** Returns when to call takeEnded next; below 0 while no call waits. */
  nextUs(): number {
    return this.#instance.exports.next_us();
  }

  /** Ends the wait of a call that was cancelled. */
  withdraw(ticket: number, nowUs: number): void {
    this.#instance.exports.withdraw(ticket, nowUs);
  }
}
