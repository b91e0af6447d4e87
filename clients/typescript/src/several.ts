/** The calls of several limits: asking, charging and settling them. This file does no I/O. */

import { releaseOf, renew } from "./calls.js";
import { checkFlag, checkOptions, checkSignal, checkText, integer, quote, toMilliseconds } from "./check.js";
import {
  groupsOf,
  withElse,
  withOwnId,
  policiesOf,
  namesIn,
  undoChoices,
  type Clause,
  type Clauses,
} from "./clauses.js";
import type { Key, Command, Call } from "./command.js";
import type { Integer, Word } from "./limits.js";
import {
  ALL_OPTIONS,
  blockWords,
  checkCallOptions,
  LOOK_ALL_OPTIONS,
  SEVERAL_OPTIONS,
  type AllOptions,
  type CallOptions,
  type RenewOptions,
} from "./options.js";
import { readReply, readAll, readArray, unreached, readIsFound, type AllReply } from "./replies.js";

const allUnreached = (allow: boolean): AllReply => ({
  ...unreached(allow),
  ...{ clause: 0, answers: [], paid: [], denied: [], names: [] },
});

/** The options of the methods that ask several limits. */
const OPTIONS = { all: ALL_OPTIONS, allRo: LOOK_ALL_OPTIONS, reserve: SEVERAL_OPTIONS, acquire: SEVERAL_OPTIONS };

/** Returns the call of a method that asks several limits. Those that reserve throw a RangeError unless a limit does. */
export function severalCall(method: keyof typeof OPTIONS, clauses: Clauses, options: AllOptions): Call<AllReply> {
  checkOptions(method, options, OPTIONS[method]);
  checkFlag("force", options.force);
  checkSignal(options.signal);
  const isTaking = method !== "allRo";
  const groups = groupsOf(method, clauses).map((group) => (isTaking ? group.map(withOwnId) : group));
  const limits = groups.flat();
  if ((method === "reserve" || method === "acquire") && !limits.some(({ reserves }) => reserves)) {
    throw new RangeError("several limits to reserve must have at least one of clause.acquire that takes something");
  }
  if (options.force) return forceAll(clauses, limits, options);
  const { signal, block, limits: hash } = options;
  if (block !== undefined && (limits.length > groups.length || limits.some(({ bans }) => bans))) {
    throw new RangeError("block must not be used with groups, or with clauses that have a ban");
  }
  const keys = limits.map(({ key }) => key);
  const optionWords = blockWords(options);
  if (hash !== undefined) {
    checkText("key of limits", hash);
    keys.push(hash);
    optionWords.unshift("LIMITS");
  }
  const undo = (reply: AllReply | undefined, isCancelled: boolean): Command[] => {
    if (reply?.allowed === false) return [];
    if (reply !== undefined && isCancelled) return undoChoices(groups, reply.answers);
    return limits.flatMap(({ key, ownId }) => releaseOf(key, ownId));
  };
  return {
    key: keys[0] ?? "",
    words: [
      isTaking ? "RL.ALL" : "RL.ALL_RO",
      String(keys.length),
      ...keys,
      ...groups.flatMap(withElse),
      ...optionWords,
      "MS",
    ],
    blockMs: block === undefined ? undefined : toMilliseconds("block", block),
    signal,
    undo,
    read: (reply) => {
      const answer = readAll(reply, limits.length);
      return { ...answer, ...namesIn(groups, answer, isTaking) };
    },
    unreached: allUnreached,
    policies: policiesOf(limits),
  };
}

/** Counts each limit by RL.THROTTLE or RL.WINDOW with FORCE, in one transaction. */
function forceAll(clauses: Clauses, limits: Clause[], { signal, force: _, ...options }: AllOptions): Call<AllReply> {
  if (Object.values(options).some((value) => value !== undefined)) {
    throw new RangeError("force must not be used with block, by, weight and limits");
  }
  if (clauses.some((member) => Array.isArray(member)) || !limits.every(({ isPlain }) => isPlain)) {
    throw new RangeError("force must be used with rates and windows without options and groups");
  }
  for (const { name, takes = 0 } of limits) {
    if (takes < 0) throw new RangeError(`the quantity of ${quote(name)} must be at least 0 with force, not ${takes}`);
  }
  const read = (replies: unknown[]): AllReply => {
    const answers = withoutErrors(limits, replies).map(readReply);
    // As in RL.ALL, the limit with the least left in proportion to its quantity decides. A quantity of 0 comes last.
    const ratios = answers.map(({ remaining }, index) => {
      const takes = Number(limits[index]?.takes);
      return takes > 0 ? Math.floor(remaining / takes) : Infinity;
    });
    const deciding = ratios.indexOf(Math.min(...ratios));
    const paid = limits.filter(({ takes = 0 }) => takes > 0).map(({ name }) => name);
    const names = limits.map(({ name }) => name);
    return { ...(answers[deciding] ?? unreached(true)), clause: deciding + 1, answers, paid, denied: [], names };
  };
  const commands = limits.map(({ key, words: [kind, ...rest] }) => [`RL.${String(kind)}`, key, ...rest, "FORCE", "MS"]);
  const call = transaction(limits, commands, read);
  return { ...call, signal, unreached: () => allUnreached(true), policies: policiesOf(limits) };
}

/** Returns the call of a transaction. `read` takes the list of replies, even for a single command. */
function transaction<T>(limits: readonly { key: Key }[], commands: Word[][], read: (replies: unknown[]) => T): Call<T> {
  const call = { key: limits[0]?.key ?? "", words: commands[0] ?? [] };
  if (commands.length === 1) return { ...call, read: (reply) => read([reply]) };
  return { ...call, transaction: commands, read: (replies) => read(readArray(replies)) };
}

/** Returns the replies. If there are errors, throws the first, with the texts of all and the names of their limits. */
function withoutErrors(limits: readonly { name: string }[], replies: readonly unknown[]): readonly unknown[] {
  const failed = replies.flatMap((reply, index) =>
    reply instanceof Error ? [{ reply, name: limits[index]?.name }] : [],
  );
  const [first] = failed;
  if (first === undefined) return replies;
  // The text still begins with the error code.
  first.reply.message = failed.map(({ reply, name }) => `${reply.message} (limit ${name})`).join("; ");
  throw first.reply;
}

/** The reservation of one of several limits. */
export interface Reserved {
  /** The name of the limit. */
  name: string;
  key: Key;
  id: string;
  isSemaphore: boolean;
  isPolicy: boolean;
}

/**
 * Returns a transaction with commands for each reservation. The result has the names of the limits whose lease had ended.
 */
function forEach(
  reserved: readonly Reserved[],
  signal: AbortSignal | undefined,
  commandsOf: (reservation: Reserved) => Word[][],
): Call<string[]> {
  const commands = reserved.map(commandsOf);
  const read = (replies: unknown[]): string[] => {
    let next = 0;
    const outcomes = commands.map(({ length }) => {
      const outcome = replies.slice(next, (next += length));
      // A policy that is a semaphore cannot be applied, and is released by the command that follows.
      return outcome.at(-1) === 1 ? 1 : outcome[0];
    });
    const held = withoutErrors(reserved, outcomes);
    return reserved.filter((_, index) => !readIsFound(held[index])).map(({ name }) => name);
  };
  return { ...transaction(reserved, commands.flat(), read), signal };
}

/** The quantities that were really used, by the names of the limits. */
export type Costs = Readonly<Record<string, Integer>>;

/** RL.APPLY for each reservation, with its cost if `costs` has one; RL.RELEASE for a semaphore. */
export function applyAll(
  reserved: readonly Reserved[],
  costs: ReadonlyMap<string, Integer>,
  options: CallOptions,
): Call<string[]> {
  return forEach(reserved, checkCallOptions("apply", options), ({ name, key, id, isSemaphore, isPolicy }) => {
    const applyWords = ["RL.APPLY", key, id];
    const cost = costs.get(name);
    if (cost !== undefined) return [[...applyWords, integer("quantity", cost)]];
    if (isSemaphore) return [["RL.RELEASE", key, id]];
    // Only the server knows whether a policy is a semaphore. If it is not, RL.RELEASE has nothing left to release.
    return isPolicy ? [applyWords, ["RL.RELEASE", key, id]] : [applyWords];
  });
}

/** RL.RELEASE for each reservation. */
export function releaseAll(reserved: readonly Reserved[], options: CallOptions): Call<string[]> {
  return forEach(reserved, checkCallOptions("release", options), ({ key, id }) => [["RL.RELEASE", key, id]]);
}

/** RL.RENEW for each reservation. */
export function renewAll(reserved: readonly Reserved[], options: RenewOptions): Call<string[]> {
  return forEach(reserved, options.signal, ({ key, id }) => [renew(key, id, options).words]);
}
