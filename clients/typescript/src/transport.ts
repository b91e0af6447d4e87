/** How calls are sent to a server or a cluster, whatever the client library. */

import type { Command, Key } from "./command.js";
import { Closed, Unreachable } from "./errors.js";
import type { Word } from "./limits.js";

/** The state of one call, shared between its caller and the transport that sends it. */
export interface Attempt {
  /** True if the caller has its result already. Then nothing more may be sent. */
  over: boolean;
  /** Called by the caller when it sets `over`. */
  abandon?: (() => void) | undefined;
  /** True if the call was given to a connection, so that the server may have executed it. Undefined if that is unknown. */
  isSent?: boolean;
  /** Ends the use of the connection on which the call was sent. The next call opens another one. */
  retire?: (() => void) | undefined;
}

/** A property of a transport that stands for a client. */
export const IS_TRANSPORT = Symbol.for("redis-ratelimit-client.transport");

/** Sends calls to a server or a cluster. */
export interface Transport {
  /** The name of the server in errors. */
  readonly name: string;
  send(command: Command, attempt: Attempt): Promise<unknown>;
  /** Returns the reply if it is available without waiting, else undefined. */
  atOnce?(command: Command): unknown;
  /** Returns the node of a cluster that has a key. Each node has its own breaker. */
  nodeOf?(key: Key | undefined): string;
  /** Sends a call to each node of a cluster that takes writes. */
  sendToAll?(command: Command, attempt: Attempt): Promise<unknown[]>;
  /** Closes the connections that it opened. */
  close?(): void;
}

/** The longest delay of setTimeout. */
export const MAX_TIMEOUT_MS = 2 ** 31 - 1;
/** The longest that a timer goes on because it fired late. */
const MAX_MORE_MS = 20;

/** Calls `act` after the replies that have arrived are read. Browsers have no setImmediate. */
export function afterReplies(act: () => void): void {
  if (typeof setImmediate === "function") setImmediate(act);
  else setTimeout(act, 0);
}

/** Lets the program end before a timer fires. A browser's timers are numbers, and keep nothing running. */
export const unref = (timer: unknown): void => (timer as { unref?: () => void }).unref?.();

/** A timer that can be stopped. */
interface StoppableTimer {
  stop(): void;
  /** Lets the program end before the timer fires. */
  unref(): void;
}

/**
 * Calls `expire` after `ms` milliseconds, with how late the timer was. After the program was busy, timers fire before replies
 * that have arrived are read, and a call may have only just been written. So it waits for as long again as it was late, up
 * to MAX_MORE_MS.
 */
export function startTimer(ms: number, expire: (lateMs: number) => void): StoppableTimer {
  if (ms > MAX_TIMEOUT_MS) return { stop: () => {}, unref: () => {} };
  const due = performance.now() + ms;
  let isStopped = false;
  let isAwaited = true;
  let timer: ReturnType<typeof setTimeout>;
  const start = (act: () => void, delay: number) => {
    timer = setTimeout(act, delay);
    if (!isAwaited) unref(timer);
  };
  start(() => {
    const firstMs = performance.now() - due;
    const moreMs = Math.min(firstMs, MAX_MORE_MS);
    start(() => {
      const lateMs = Math.max(firstMs, performance.now() - due - moreMs);
      afterReplies(() => {
        if (!isStopped) expire(lateMs);
      });
    }, moreMs);
  }, ms);
  return {
    stop: () => {
      isStopped = true;
      clearTimeout(timer);
    },
    unref: () => {
      isAwaited = false;
      unref(timer);
    },
  };
}

/** Resolves as `work` does. After `ms` milliseconds it rejects with the error that `late` creates. */
export async function within<T>(ms: number, work: Promise<T>, late: () => Error): Promise<T> {
  let timer: StoppableTimer | undefined;
  const timeout = new Promise<never>((_, reject) => {
    timer = startTimer(ms, () => reject(late()));
  });
  try {
    return await Promise.race([work, timeout]);
  } finally {
    timer?.stop();
  }
}

/**
 * Sends the words of a call, or its transaction, of which it returns the reply of EXEC. All is sent in this turn of the event
 * loop, so that no other commands come between. `isAsking` is for a slot that is being moved to the node.
 */
export async function sendCommands(
  { words, transaction }: Command,
  send: (words: Word[]) => Promise<unknown>,
  isAsking = false,
): Promise<unknown> {
  if (transaction === undefined && !isAsking) return send(words);
  const commands = transaction === undefined ? [words] : [["MULTI"], ...transaction, ["EXEC"]];
  const replies = await Promise.allSettled((isAsking ? [["ASKING"], ...commands] : commands).map(send));
  // The error of a command that was refused before EXEC says why nothing was executed; the error of EXEC does not.
  const refused = replies.find((reply) => reply.status === "rejected");
  if (refused !== undefined) throw refused.reason;
  return (replies.at(-1) as PromiseFulfilledResult<unknown>).value;
}

/** Returns the error of a call that was given up. Nobody waits for it any more. */
export const givenUp = (): Unreachable => new Unreachable("the call was given up before it was answered");

/** Returns the error of a call that was connecting or waiting when the limiter was closed. */
export const limiterClosed = (): Closed => new Closed("the limiter was closed");
