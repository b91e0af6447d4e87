/** A command to send, and a call, which also says how the reply is read. */

import type { Word } from "./limits.js";

/** The key of a limit. */
export type Key = string | Buffer;

/** A command to send. */
export interface Command {
  /** The first key; undefined if the command has none. */
  key: Key | undefined;
  words: Word[];
  /** The longest time that the command waits on the server; 0 waits without limit. */
  blockMs?: number | undefined;
  /**
   * Several commands that are executed as one transaction, with `words` as the first. Their keys are in the same slot. The
   * reply is the list of their replies, with error replies.
   */
  transaction?: Word[][] | undefined;
  /** Sends the command to all nodes of a cluster. The reply is the list of their replies. */
  isForAll?: boolean;
}

/** A command with a function that reads its reply. */
export interface Call<T> extends Command {
  read: (reply: unknown) => T;
  /** Returns the result while Redis cannot be reached. Without it, an error is thrown then. */
  unreached?: (allow: boolean) => T;
  /** The policies in the call. */
  policies?: string[];
  /** Cancels the call. */
  signal?: AbortSignal | undefined;
  /**
   * Returns the commands that give back what was granted to a caller that no longer waits. The result is undefined if the
   * reply was lost: then only reservations are given back whose ids nobody else knows. The same holds for a call that was
   * not cancelled, but whose deadline passed.
   */
  undo?: (result: T | undefined, isCancelled: boolean) => Command[];
}
