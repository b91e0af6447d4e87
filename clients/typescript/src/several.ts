/** Several limits as one: their clauses, and the calls that ask, charge and settle them. This file does no I/O. */

import { checkFlag, checkOptions, integer, quote, text, toMilliseconds } from "./check.js";
import type { Call, Command, Key } from "./command.js";
import type { Duration, Integer, Limit, Policy, Rate, Window, Word } from "./limits.js";
import type * as Options from "./options.js";
import { randomName } from "./random.js";
import { readAll, readArray, readIsFound, readReply, unreached, type AllReply, type Reply } from "./replies.js";
import * as words from "./words.js";

/** One of several limits, created by clause.throttle, clause.window or clause.acquire. */
export interface Clause {
  /** The key of the limit. */
  key: Key;
  /** The name of the limit in replies, errors and costs. */
  name: string;
  /** The words in the command. */
  words: Word[];
  /** @internal The command without RL. */
  kind: "THROTTLE" | "WINDOW" | "ACQUIRE";
  /** @internal The limit. */
  limit: Limit;
  /** @internal The quantity that the clause takes; 0 if it only checks. */
  takes: Integer;
  /** @internal True if the clause makes a reservation, which has to be settled. */
  reserves: boolean;
  /** @internal The options that the caller gave. */
  options: Options.ClauseOptions & words.WordOptions;
  /** @internal The id of the reservation, if this library chose it. */
  ownId?: string | undefined;
}

/** Clauses of which only one takes: the first that would be allowed, as in "the quota of the plan, else credits". */
export type Group = readonly Clause[];

/** Several limits. A clause by itself is a group of one. */
export type Clauses = readonly (Clause | Group)[];

const LIMIT_CHECKS = {
  THROTTLE: words.checkRate,
  WINDOW: words.checkWindow,
  ACQUIRE: words.checkWindowOrSemaphore,
};
const CLAUSE_OPTIONS = ["name", "quantity", "leave", "check", "shadow"];

function makeClause(kind: Clause["kind"], key: Key, limit: Limit, options: Clause["options"]): Clause {
  const method = `clause.${kind.toLowerCase()}`;
  LIMIT_CHECKS[kind](method, limit);
  text("key", key);
  checkOptions(method, options, [...CLAUSE_OPTIONS, ...words.OWN_OPTIONS[kind]]);
  const { name = String(key), quantity = 1 } = options;
  if (typeof name !== "string") throw new TypeError(`name must be a string, not ${quote(name)}`);
  const takes = options.check ? 0 : quantity;
  const clauseWords = [kind, ...words.limitCallWords(limit, quantity, options)];
  return { key, name, words: clauseWords, kind, limit, takes, reserves: kind === "ACQUIRE" && takes > 0, options };
}

/** Creates the clauses of Limiter.all and of reservations of several limits, one for each key. */
export const clause = {
  /** A clause of RL.THROTTLE. */
  throttle: (
    key: Key,
    rate: Rate | Policy,
    options: Options.ClauseOptions & Pick<Options.ThrottleOptions, (typeof words.OWN_OPTIONS)["THROTTLE"][number]> = {},
  ): Clause => makeClause("THROTTLE", key, rate, options),
  /** A clause of RL.WINDOW. */
  window: (
    key: Key,
    window: Window | Policy,
    options: Options.ClauseOptions & Pick<Options.WindowOptions, (typeof words.OWN_OPTIONS)["WINDOW"][number]> = {},
  ): Clause => makeClause("WINDOW", key, window, options),
  /** A clause of RL.ACQUIRE. */
  acquire: (
    key: Key,
    window: Window | Policy,
    options: Options.ClauseOptions & Pick<Options.ReserveOptions, (typeof words.OWN_OPTIONS)["ACQUIRE"][number]> = {},
  ): Clause => makeClause("ACQUIRE", key, window, options),
};

/** Checks clauses, and returns them in groups. `method` is named in errors. */
function groupsOf(method: string, clauses: Clauses): Group[] {
  if (!Array.isArray(clauses)) throw new TypeError(`${method} takes an array of clauses, not ${quote(clauses)}`);
  const groups = (clauses as Clauses).map((member) => (Array.isArray(member) ? (member as Group) : [member as Clause]));
  if (groups.length === 0) throw new RangeError("there must be at least one clause");
  if (groups.some(({ length }) => length === 0)) throw new RangeError("a group must have at least one clause");
  const names = new Set<string>();
  for (const member of groups.flat()) {
    const { key, words: given, name } = (member ?? {}) as Partial<Clause>;
    if (key === undefined || name === undefined || !Array.isArray(given)) {
      const makers = "clause.throttle, clause.window and clause.acquire";
      throw new TypeError(`${method} takes clauses made by ${makers}, not ${quote(member)}`);
    }
    if (names.has(name)) throw new RangeError(`two limits must not have the same name, which is ${quote(name)}`);
    names.add(name);
  }
  return groups;
}

/** Adds an id to a clause that reserves, so that a reservation whose reply is lost can be released. */
function withOwnId(clause: Clause): Clause {
  if (!clause.reserves || clause.options.id !== undefined) return clause;
  const ownId = randomName();
  return { ...clause, ownId, words: [...clause.words, "ID", ownId] };
}

/** Returns the policies among limits. */
export const policiesOf = (...limits: Limit[]): string[] => limits.filter((limit) => typeof limit === "string");

/** Returns each group with the clause that it chose and its reply; without these if the group denies. */
function choicesOf(groups: readonly Group[], answers: readonly Reply[]): { group: Group; choice?: [Clause, Reply] }[] {
  let next = 0;
  return groups.map((group) => {
    const groupAnswers = answers.slice(next, (next += group.length));
    // A clause in shadow never denies.
    const chosen = groupAnswers.findIndex(({ limited }, at) => limited === 0 || group[at]?.options.shadow);
    const [clause, answer] = [group[chosen], groupAnswers[chosen]];
    return clause === undefined || answer === undefined ? { group } : { group, choice: [clause, answer] };
  });
}

const namesOf = (limits: readonly { name: string }[]): string[] => limits.map(({ name }) => name);

/** Returns the names of all limits, of those that took something, and of those that denied the call. */
function namesIn(
  groups: readonly Group[],
  { allowed, answers }: Pick<AllReply, "allowed" | "answers">,
  isTaking: boolean,
): Pick<AllReply, "names" | "paid" | "denied"> {
  const names = namesOf(groups.flat());
  const choices = choicesOf(groups, answers);
  if (!allowed) {
    return { names, paid: [], denied: namesOf(choices.flatMap(({ group, choice }) => (choice ? [] : group))) };
  }
  // A choice takes nothing if it only checks, or was allowed only by `shadow`.
  const took = choices.flatMap(({ choice }) => {
    if (choice === undefined) return [];
    const [clause, { limited, id }] = choice;
    return limited === 0 && clause.takes > 0 && !(isTaking && clause.reserves && id === null) ? [clause] : [];
  });
  return { names, paid: namesOf(took), denied: [] };
}

/** Returns the commands that give back what the choice of each group took. */
function undoChoices(groups: readonly Group[], answers: readonly Reply[]): Command[] {
  return choicesOf(groups, answers).flatMap(({ choice }) => {
    if (choice === undefined) return [];
    const [{ kind, key, limit, takes, options }, { limited, id }] = choice;
    if (kind === "ACQUIRE") return words.releaseOf(key, id);
    return limited === 0 ? words.giveBack(`RL.${kind}`, key, limit, takes, options) : [];
  });
}

const allUnreached = (allow: boolean): AllReply => ({
  ...unreached(allow),
  ...{ clause: 0, answers: [], paid: [], denied: [], names: [] },
});

const LOOK = ["limits", "signal"];
const SEVERAL = [...LOOK, "block", "by", "weight"];
/** The options of the methods that ask several limits. */
const OPTIONS = { all: [...SEVERAL, "force"], allRo: LOOK, reserve: SEVERAL, acquire: SEVERAL };

/** Returns the call of a method that asks several limits. Those that reserve throw a RangeError unless a limit does. */
export function severalCall(
  method: keyof typeof OPTIONS,
  clauses: Clauses,
  options: Options.AllOptions = {},
): Call<AllReply> {
  words.checkCallOptions(method, options, OPTIONS[method]);
  const { signal, force, limits: hash, ...block } = options;
  checkFlag("force", force);
  const isTaking = method !== "allRo";
  const groups = groupsOf(method, clauses).map((group) => (isTaking ? group.map(withOwnId) : group));
  const limits = groups.flat();
  if ((method === "reserve" || method === "acquire") && !limits.some(({ reserves }) => reserves)) {
    throw new RangeError("several limits to reserve must have at least one of clause.acquire that takes something");
  }
  if (force) return forceAll(clauses, limits, options);
  const isTogether = limits.length === groups.length && limits.every(({ options: { ban } }) => ban === undefined);
  if (block.block !== undefined && !isTogether) {
    throw new RangeError("block must not be used with groups, or with clauses that have a ban");
  }
  const keys = limits.map(({ key }) => key);
  if (hash !== undefined) keys.push(text("key of limits", hash));
  const clauseWords = groups.flatMap((group) =>
    group.flatMap((one, at) => (at === 0 ? one.words : ["ELSE", ...one.words])),
  );
  const optionWords = [...(hash === undefined ? [] : ["LIMITS"]), ...words.optionWords(block), "MS"];
  return {
    key: keys[0] ?? "",
    words: [isTaking ? "RL.ALL" : "RL.ALL_RO", String(keys.length), ...keys, ...clauseWords, ...optionWords],
    blockMs: block.block === undefined ? undefined : toMilliseconds("block", block.block),
    signal,
    undo: (reply, isCancelled) => {
      if (reply?.allowed === false) return [];
      if (reply !== undefined && isCancelled) return undoChoices(groups, reply.answers);
      return limits.flatMap(({ key, ownId }) => words.releaseOf(key, ownId));
    },
    read: (reply) => {
      const answer = readAll(reply, limits.length);
      return { ...answer, ...namesIn(groups, answer, isTaking) };
    },
    unreached: allUnreached,
    policies: policiesOf(...limits.map(({ limit }) => limit)),
  };
}

/** Counts each limit by RL.THROTTLE or RL.WINDOW with FORCE, in one transaction. */
function forceAll(
  clauses: Clauses,
  limits: Clause[],
  { signal, force: _, ...others }: Options.AllOptions,
): Call<AllReply> {
  if (Object.values(others).some((value) => value !== undefined)) {
    throw new RangeError("force must not be used with block, by, weight and limits");
  }
  const isPlain = ({ kind, limit, takes, words: given }: Clause) =>
    kind !== "ACQUIRE" && given.length === 1 + words.limitCallWords(limit, takes, {}).length;
  if (clauses.some((member) => Array.isArray(member)) || !limits.every(isPlain)) {
    throw new RangeError("force must be used with rates and windows without options and groups");
  }
  for (const { name, takes } of limits) {
    if (takes < 0) throw new RangeError(`the quantity of ${quote(name)} must be at least 0 with force, not ${takes}`);
  }
  const read = (replies: unknown[]): AllReply => {
    const answers = withoutErrors(limits, replies).map(readReply);
    // As in RL.ALL, the limit with the least left in proportion to its quantity decides. A quantity of 0 comes last.
    const ratios = answers.map(({ remaining }, at) => {
      const takes = Number(limits[at]?.takes);
      return takes > 0 ? Math.floor(remaining / takes) : Infinity;
    });
    const deciding = ratios.indexOf(Math.min(...ratios));
    const paid = namesOf(limits.filter(({ takes }) => takes > 0));
    const reply = answers[deciding] ?? unreached(true);
    return { ...reply, clause: deciding + 1, answers, paid, denied: [], names: namesOf(limits) };
  };
  const commands = limits.map(({ key, words: [kind, ...rest] }) => [`RL.${String(kind)}`, key, ...rest, "FORCE", "MS"]);
  const policies = policiesOf(...limits.map(({ limit }) => limit));
  return { ...transaction(limits, commands, read), signal, unreached: () => allUnreached(true), policies };
}

/** Returns the call of a transaction. `read` takes the list of replies, even for a single command. */
function transaction<T>(limits: readonly { key: Key }[], commands: Word[][], read: (replies: unknown[]) => T): Call<T> {
  const call = { key: limits[0]?.key ?? "", words: commands[0] ?? [] };
  if (commands.length === 1) return { ...call, read: (reply) => read([reply]) };
  return { ...call, transaction: commands, read: (replies) => read(readArray(replies)) };
}

/** Returns the replies. If there are errors, throws the first, with the texts of all and the names of their limits. */
function withoutErrors(limits: readonly { name: string }[], replies: readonly unknown[]): readonly unknown[] {
  const failed = replies.flatMap((reply, at) => (reply instanceof Error ? [{ reply, name: limits[at]?.name }] : []));
  const [first] = failed;
  if (first === undefined) return replies;
  // The text still begins with the error code.
  first.reply.message = failed.map(({ reply, name }) => `${reply.message} (limit ${name})`).join("; ");
  throw first.reply;
}

/** The reservation of one limit. */
export interface Reserved {
  name: string;
  key: Key;
  limit: Limit;
  id: string;
  lease: Duration | undefined;
}

/** The quantities that were really used, by the names of the limits. */
export type Costs = Readonly<Record<string, Integer>>;

/**
 * Returns a transaction with commands for each reservation. The result has the names of the limits whose lease had ended.
 */
function forEach(
  reserved: readonly Reserved[],
  { signal }: Options.CallOptions,
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
    return namesOf(reserved.filter((_, at) => !readIsFound(held[at])));
  };
  return { ...transaction(reserved, commands.flat(), read), signal };
}

/** RL.APPLY for each reservation, with its cost if `costs` has one; RL.RELEASE for a semaphore. */
export function applyAll(
  reserved: readonly Reserved[],
  costs: ReadonlyMap<string, Integer>,
  options: Options.CallOptions,
): Call<string[]> {
  words.checkCallOptions("apply", options);
  return forEach(reserved, options, ({ name, key, id, limit }) => {
    const [applied, released] = [
      ["RL.APPLY", key, id],
      ["RL.RELEASE", key, id],
    ];
    const cost = costs.get(name);
    if (cost !== undefined) return [[...applied, integer("quantity", cost)]];
    if (words.isSemaphore(limit)) return [released];
    // Only the server knows whether a policy is a semaphore. If it is not, RL.RELEASE has nothing left to release.
    return typeof limit === "string" ? [applied, released] : [applied];
  });
}

/** RL.RELEASE for each reservation. */
export function releaseAll(reserved: readonly Reserved[], options: Options.CallOptions): Call<string[]> {
  words.checkCallOptions("release", options);
  return forEach(reserved, options, ({ key, id }) => [["RL.RELEASE", key, id]]);
}

/** RL.RENEW for each reservation. */
export function renewAll(reserved: readonly Reserved[], options: Options.RenewOptions): Call<string[]> {
  const optionWords = words.renewWords(options);
  return forEach(reserved, options, ({ key, id }) => [["RL.RENEW", key, id, ...optionWords]]);
}
