/** The limits of a call of several limits: clauses, groups of them, and which of a group took. */

import { releaseOf, giveBack } from "./calls.js";
import { checkOptions, checkText, quote, toMilliseconds } from "./check.js";
import type { Key, Command } from "./command.js";
import {
  checkRate,
  checkWindow,
  isSemaphore,
  type Integer,
  type Limit,
  type Policy,
  type Rate,
  type Window,
  type Word,
} from "./limits.js";
import {
  CLAUSE_OPTIONS,
  limitCallWords,
  type Options,
  type ThrottleOptions,
  type WindowOptions,
  type ReserveOptions,
  type ClauseOptions,
} from "./options.js";
import { randomName } from "./random.js";
import type { AllReply, Reply } from "./replies.js";

/** One of several limits, created by clause.throttle, clause.window or clause.acquire. */
export interface Clause {
  /** The key of the limit. */
  key: Key;
  /** The name of the limit in replies, errors and costs. */
  name: string;
  /** @internal The name that the caller gave. */
  givenName?: string | undefined;
  /** @internal The limit. */
  limit: Limit;
  /** The words in the command. */
  words: Word[];
  /** @internal Returns the commands that give back what the clause took. */
  undo?: (answer: Reply) => Command[];
  /** @internal True if the clause never denies. It is the choice of its group if no clause before it is. */
  shadow?: boolean | undefined;
  /** @internal The quantity that the clause takes; 0 if it only checks. */
  takes?: Integer | undefined;
  /** @internal True if the clause has no options. */
  isPlain?: boolean | undefined;
  /** @internal True if a denial closes the key. */
  bans?: boolean | undefined;
  /** @internal True if the clause makes a reservation, which has to be settled. */
  reserves?: boolean | undefined;
  /** @internal True if the reservation can only be released. Only the server knows this about a policy. */
  isSemaphore?: boolean | undefined;
  /** @internal The lease of the reservation, if it is not the server's default. */
  leaseMs?: number | undefined;
  /** @internal The id of the reservation, if the caller chose it. */
  id?: string | undefined;
  /** @internal The id of the reservation, if this library chose it. */
  ownId?: string | undefined;
}

/** Clauses of which only one takes: the first that would be allowed, as in "the quota of the plan, else credits". */
export type Group = readonly Clause[];

/** Several limits. A clause by itself is a group of one. */
export type Clauses = readonly (Clause | Group)[];

function makeClause(
  kind: "THROTTLE" | "WINDOW" | "ACQUIRE",
  key: Key,
  limit: Limit,
  allOptions: ClauseOptions,
  ownOptions: readonly (keyof Options)[],
): Clause {
  checkText("key", key);
  checkOptions(`clause.${kind.toLowerCase()}`, allOptions, [...CLAUSE_OPTIONS, ...ownOptions]);
  const { name, quantity = 1, ...options }: ClauseOptions & Options = allOptions;
  if (name !== undefined && typeof name !== "string") {
    throw new TypeError(`name must be a string, not ${quote(name)}`);
  }
  const words = [kind, ...limitCallWords(limit, quantity, options)];
  const undo = ({ limited, id }: Reply): Command[] => {
    if (kind === "ACQUIRE") return releaseOf(key, id);
    return limited === 0 && !options.check ? giveBack(`RL.${kind}`, key, limit, quantity, options) : [];
  };
  const takes = options.check ? 0 : quantity;
  return {
    key,
    name: name ?? String(key),
    givenName: name,
    limit,
    words,
    undo,
    shadow: options.shadow,
    takes,
    isPlain: kind !== "ACQUIRE" && words.length === limitCallWords(limit, quantity, {}).length + 1,
    bans: options.ban !== undefined,
    reserves: kind === "ACQUIRE" && takes > 0,
    isSemaphore: typeof limit === "object" && "limit" in limit && isSemaphore(limit),
    leaseMs: options.lease === undefined ? undefined : toMilliseconds("lease", options.lease),
    id: options.id,
  };
}

/** Creates the clauses of Limiter.all and of reservations of several limits, one for each key. */
export const clause = {
  /** A clause of RL.THROTTLE. */
  throttle(key: Key, rate: Rate | Policy, options: ClauseOptions & Pick<ThrottleOptions, "ban"> = {}): Clause {
    checkRate("clause.throttle", rate);
    return makeClause("THROTTLE", key, rate, options, ["ban"]);
  },
  /** A clause of RL.WINDOW. */
  window(
    key: Key,
    window: Window | Policy,
    options: ClauseOptions & Pick<WindowOptions, "countDenied" | "ban"> = {},
  ): Clause {
    checkWindow("clause.window", window);
    return makeClause("WINDOW", key, window, options, ["countDenied", "ban"]);
  },
  /** A clause of RL.ACQUIRE. */
  acquire(
    key: Key,
    window: Window | Policy,
    options: ClauseOptions & Pick<ReserveOptions, "lease" | "countLapsed" | "id"> = {},
  ): Clause {
    checkWindow("clause.acquire", window);
    return makeClause("ACQUIRE", key, window, options, ["lease", "countLapsed", "id"]);
  },
};

function checkClause(method: string, value: unknown): void {
  const { key, words } = (typeof value === "object" && value !== null ? value : {}) as Partial<Clause>;
  if (key === undefined || !Array.isArray(words)) {
    throw new TypeError(
      `${method} takes clauses made by clause.throttle, clause.window and clause.acquire, not ${quote(value)}`,
    );
  }
}

/** Checks clauses, and returns them in groups. `method` is named in errors. */
export function groupsOf(method: string, clauses: Clauses): Group[] {
  if (!Array.isArray(clauses)) throw new TypeError(`${method} takes an array of clauses, not ${quote(clauses)}`);
  const groups = (clauses as Clauses).map((member) => (Array.isArray(member) ? (member as Group) : [member as Clause]));
  if (groups.length === 0) throw new RangeError("there must be at least one clause");
  const names = new Set<string>();
  for (const group of groups) {
    if (group.length === 0) throw new RangeError("a group must have at least one clause");
    for (const member of group) {
      checkClause(method, member);
      const { name } = member;
      if (names.has(name)) throw new RangeError(`two limits must not have the same name, which is ${quote(name)}`);
      names.add(name);
    }
  }
  return groups;
}

export const withElse = (group: Group): Word[] =>
  group.flatMap(({ words }, at) => (at === 0 ? words : ["ELSE", ...words]));

/** Adds an id to a clause that reserves, so that a reservation whose reply is lost can be released. */
export function withOwnId(clause: Clause): Clause {
  if (!clause.reserves || clause.id !== undefined) return clause;
  const ownId = randomName();
  return { ...clause, ownId, words: [...clause.words, "ID", ownId] };
}

// The limit is the second word of a clause.
export const policiesOf = (clauses: readonly Clause[]): string[] =>
  clauses.map(({ words }) => String(words[1])).filter((word) => word.startsWith("@"));

/** Returns each group with the clause that it chose and its reply; without these if the group denies. */
function choicesOf(groups: readonly Group[], answers: readonly Reply[]): { group: Group; choice?: [Clause, Reply] }[] {
  let next = 0;
  return groups.map((group) => {
    const groupAnswers = answers.slice(next, (next += group.length));
    const chosen = groupAnswers.findIndex(({ limited }, index) => limited === 0 || group[index]?.shadow);
    const [clause, answer] = [group[chosen], groupAnswers[chosen]];
    return clause === undefined || answer === undefined ? { group } : { group, choice: [clause, answer] };
  });
}

const namesOf = (limits: readonly Clause[]): string[] => limits.map(({ name }) => name);

/** Returns whether a choice took something: not if it only checks, or was allowed only by `shadow`. */
function hasTaken([{ takes = 0, reserves }, { limited, id }]: [Clause, Reply], isTaking: boolean): boolean {
  const hasNoReservation = isTaking && reserves && id === null;
  return limited === 0 && takes > 0 && !hasNoReservation;
}

/** Returns the names of all limits, of those that took something, and of those that denied the call. */
export function namesIn(
  groups: readonly Group[],
  { allowed, answers }: Pick<AllReply, "allowed" | "answers">,
  isTaking: boolean,
): Pick<AllReply, "names" | "paid" | "denied"> {
  const names = namesOf(groups.flat());
  const choices = choicesOf(groups, answers);
  if (!allowed) {
    return { names, paid: [], denied: namesOf(choices.flatMap(({ group, choice }) => (choice ? [] : group))) };
  }
  const took = choices.flatMap(({ choice }) => (choice && hasTaken(choice, isTaking) ? [choice[0]] : []));
  return { names, paid: namesOf(took), denied: [] };
}

/** Returns the commands that give back what the choice of each group took. */
export function undoChoices(groups: readonly Group[], answers: readonly Reply[]): Command[] {
  return choicesOf(groups, answers).flatMap(({ choice }) => choice?.[0].undo?.(choice[1]) ?? []);
}
