/** The calls of a limiter: the words of each command, and how its reply is read. This file does no I/O. */

import { checkFlag, checkOptions, checkSignal, checkText, duration, integer, quote, toMilliseconds } from "./check.js";
import {
  checkRate,
  checkWindow,
  isSemaphore,
  limitOptions,
  limitWords,
  type Duration,
  type Integer,
  type Limit,
  type Policy,
  type Rate,
  type Window,
  type Word,
} from "./limits.js";
import { randomName } from "./random.js";
import {
  readReply,
  readAll,
  readArray,
  readCount,
  readHeld,
  readInfo,
  readPolicies,
  readTop,
  unreached,
  readGranted,
  readId,
  readIdAndGranted,
  readIsFound,
  readWait,
  type AllReply,
  type Held,
  type Info,
  type PolicyCounts,
  type Reply,
  type TopKey,
} from "./replies.js";

/** The key of a limit. */
export type Key = string | Buffer;

/** A command to send. */
export interface Command {
  /** The first key; undefined if the command has none. */
  key: Key | undefined;
  words: Word[];
  readonly: boolean;
  /** The longest time that the command waits on the server; 0 waits without limit. */
  blockMs?: number | undefined;
  /**
   * Several commands that are executed as one transaction, with `words` as the first. Their keys are in the same slot. The
   * reply is the list of their replies, with error replies.
   */
  transaction?: Word[][] | undefined;
}

/** A command with a function that reads its reply. */
export interface Call<T> extends Command {
  read: (reply: unknown) => T;
  /** Returns the result while Redis cannot be reached. Without it, an error is thrown then. */
  unreached?: (allow: boolean) => T;
  /** Merges the results of several nodes. If it is present, the call is sent to all nodes of a cluster. */
  merge?: (results: T[]) => T;
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

/** Options of every call. */
export interface CallOptions {
  /**
   * Cancels the call, which rejects with the reason of the signal. The call is not sent any more, or leaves the line in
   * which it waits (`block`). What is granted too late is given back.
   */
  signal?: AbortSignal | undefined;
}

/** Options of the calls that take nothing, such as Limiter.throttleRo. */
export interface LookOptions extends CallOptions {
  /** Default 1. */
  quantity?: Integer | undefined;
  /** The quantity that must remain for others. Default 0. */
  leave?: Integer | undefined;
}

/** Options of Limiter.throttle. */
export interface ThrottleOptions extends LookOptions {
  /** Takes as much of the quantity as is available. */
  atmost?: boolean | undefined;
  /** Counts the quantity even if that exceeds the limit. */
  force?: boolean | undefined;
  /** The longest time to wait until the call is allowed; 0 waits without limit. Default: the call does not wait. */
  block?: Duration | undefined;
  /** Books what becomes available within this time. The reply has `waitMs`. */
  ahead?: Duration | undefined;
  /** Closes the key for this time if the call is denied. */
  ban?: Duration | undefined;
}

/** Options of Limiter.window. */
export interface WindowOptions extends LookOptions {
  /** Takes as much of the quantity as is available. */
  atmost?: boolean | undefined;
  /** Counts the quantity even if that exceeds the limit. */
  force?: boolean | undefined;
  /** Counts the call even if it is denied. */
  countDenied?: boolean | undefined;
  /** Closes the key for this time if the call is denied. */
  ban?: Duration | undefined;
  /** The longest time to wait until the call is allowed; 0 waits without limit. Default: the call does not wait. */
  block?: Duration | undefined;
}

/** Options of Limiter.reserve. */
export interface ReserveOptions extends LookOptions {
  /** Reserves as much of the quantity as is available. The reply has `granted` and `reservations`. */
  atmost?: boolean | undefined;
  /**
   * The length of the lease, which ends unless the reservation is settled or renewed. Default: the server's ratelimit.lease.
   */
  lease?: Duration | undefined;
  /** Counts the reservation if its lease ends before it is settled. Not with a semaphore. */
  countLapsed?: boolean | undefined;
  /** The id of the reservation, 1 to 64 bytes. Default: one that the server makes. */
  id?: string | undefined;
  /** The longest time to wait until the call is allowed; 0 waits without limit. Default: the call does not wait. */
  block?: Duration | undefined;
}

/** Options of every clause. */
export interface ClauseOptions extends Omit<LookOptions, "signal"> {
  /** The name of the limit in replies, errors and costs. Default: its key. */
  name?: string | undefined;
  /** Denies the call if there is not enough, but takes nothing. */
  check?: boolean | undefined;
  /** Never denies the call. The reply says whether it would have. */
  shadow?: boolean | undefined;
}

/** One of several limits, created by clause.throttle, clause.window or clause.acquire. */
export interface Clause {
  /** The key of the limit. */
  key: Key;
  /** The name of the limit in replies, errors and costs. */
  name: string;
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

/** Options of Limiter.all. */
export interface AllOptions extends CallOptions {
  /**
   * Counts what was used in one step, even if that exceeds a limit. All clauses must be rates and windows without options,
   * and not in groups.
   */
  force?: boolean | undefined;
}

/** Options of Limiter.renew. */
export interface RenewOptions extends CallOptions {
  /** The new length of the lease. Default: its present length. */
  lease?: Duration | undefined;
}

/** Options of Limiter.top. */
export interface TopOptions extends CallOptions {
  /** The maximum number of keys, from 1. Default 10. */
  count?: number | undefined;
  /** Forgets all denials after the reply. */
  reset?: boolean | undefined;
}

/** Returns the names of the options in `T`. It does not compile if a name is missing, or is not in `T`. */
const namesOf = <T>(options: Record<keyof T, true>): readonly string[] => Object.keys(options);

const LOOK = { quantity: true, leave: true, signal: true } satisfies Record<keyof LookOptions, true>;
const LOOK_OPTIONS = namesOf<LookOptions>(LOOK);
const THROTTLE_OPTIONS = namesOf<ThrottleOptions>({
  ...LOOK,
  atmost: true,
  force: true,
  block: true,
  ahead: true,
  ban: true,
});
const WINDOW_OPTIONS = namesOf<WindowOptions>({
  ...LOOK,
  atmost: true,
  force: true,
  countDenied: true,
  block: true,
  ban: true,
});
export const RESERVE_OPTIONS = namesOf<ReserveOptions>({
  ...LOOK,
  atmost: true,
  lease: true,
  countLapsed: true,
  id: true,
  block: true,
});
const CLAUSE_OPTIONS = namesOf<ClauseOptions>({ name: true, quantity: true, leave: true, check: true, shadow: true });
const RENEW_OPTIONS = namesOf<RenewOptions>({ lease: true, signal: true });
const TOP_OPTIONS = namesOf<TopOptions>({ count: true, reset: true, signal: true });

type Options = Omit<ThrottleOptions & WindowOptions & ReserveOptions & ClauseOptions, "quantity" | "name">;

/** Checks the options of a method that has only those of every call, and returns the signal. */
export function checkCallOptions(method: string, options: CallOptions): AbortSignal | undefined {
  checkOptions(method, options, ["signal"]);
  checkSignal(options.signal);
  return options.signal;
}

const releaseOf = (key: Key, id: string | null | undefined): Command[] =>
  typeof id === "string" ? [{ key, words: ["RL.RELEASE", key, id], readonly: false }] : [];

/**
 * Returns the command that gives back what RL.THROTTLE or RL.WINDOW took. What FORCE counted was used, so it stays. So does
 * what AHEAD booked: later bookings do not move, and the next call would get the same turn as one of them.
 */
function giveBack(command: string, key: Key, limit: Limit, quantity: Integer, options: Options): Command[] {
  if (quantity <= 0 || options.force || options.ahead !== undefined) return [];
  return [{ key, words: [command, key, ...limitCallWords(limit, -quantity, {})], readonly: false }];
}

/** Returns the words of a limit, a quantity and options, without MS. */
export function limitCallWords(limit: Limit, quantity: Integer, options: Options): Word[] {
  const words: Word[] = [...limitWords(limit), integer("quantity", quantity), ...limitOptions(limit)];
  const flag = (word: string, name: string, value: boolean | undefined) => {
    checkFlag(name, value);
    if (value) words.push(word);
  };
  const time = (word: string, name: string, value: Duration | undefined, minMs: number) => {
    if (value !== undefined) words.push(word, duration(name, value, minMs));
  };
  if (options.leave !== undefined && integer("leave", options.leave) !== "0") {
    words.push("LEAVE", String(options.leave));
  }
  time("LEASE", "lease", options.lease, 1);
  flag("COUNTLAPSED", "countLapsed", options.countLapsed);
  if (options.id !== undefined) {
    checkText("id", options.id);
    words.push("ID", options.id);
  }
  flag("ATMOST", "atmost", options.atmost);
  flag("FORCE", "force", options.force);
  flag("COUNTDENIED", "countDenied", options.countDenied);
  flag("CHECK", "check", options.check);
  flag("SHADOW", "shadow", options.shadow);
  time("BAN", "ban", options.ban, 1);
  time("AHEAD", "ahead", options.ahead, 1);
  time("BLOCK", "block", options.block, 0);
  return words;
}

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
    words,
    undo,
    shadow: options.shadow,
    takes,
    isPlain: kind !== "ACQUIRE" && words.length === limitCallWords(limit, quantity, {}).length + 1,
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

const policyOf = (limit: Limit): string[] => (typeof limit === "string" ? [limit] : []);

/** Returns whether a call is allowed while Redis cannot be reached. What Redis never denies is always allowed. */
const isAllowed = (
  allow: boolean,
  { quantity = 1, force }: { quantity?: Integer | undefined; force?: boolean | undefined },
): boolean => allow || force === true || quantity <= 0;

function limitCall(
  command: string,
  key: Key,
  limit: Limit,
  allOptions: Options & { quantity?: Integer | undefined },
): Call<Reply> {
  checkText("key", key);
  const { quantity = 1, ...options } = allOptions;
  const { signal } = options;
  checkSignal(signal);
  const call: Call<Reply> = {
    key,
    words: [command, key, ...limitCallWords(limit, quantity, options), "MS"],
    readonly: command.endsWith("_RO"),
    read: readReply,
    unreached: (allow) => unreached(isAllowed(allow, allOptions)),
    blockMs: options.block === undefined ? undefined : toMilliseconds("block", options.block),
    policies: policyOf(limit),
    signal,
  };
  if (call.readonly || signal === undefined) return call;
  const undo = (answer: Reply | undefined, isCancelled: boolean) =>
    isCancelled && answer?.allowed ? giveBack(command, key, limit, answer.granted ?? quantity, options) : [];
  return { ...call, undo };
}

function withAtmost(
  call: Call<Reply>,
  { atmost, quantity = 1 }: Pick<ThrottleOptions, "atmost" | "quantity">,
  read = readGranted,
): Call<Reply> {
  if (!atmost) return call;
  const granted = (allow: boolean) =>
    unreached(isAllowed(allow, { quantity }), { granted: allow ? Number(quantity) : 0 });
  return { ...call, read, unreached: granted };
}

export function throttle(key: Key, rate: Rate | Policy, options: ThrottleOptions): Call<Reply> {
  checkRate("throttle", rate);
  checkOptions("throttle", options, THROTTLE_OPTIONS);
  const call = withAtmost(limitCall("RL.THROTTLE", key, rate, options), options);
  if (options.ahead === undefined || options.atmost) return call;
  const booked = (allow: boolean) => {
    const isBooked = isAllowed(allow, options);
    return unreached(isBooked, { waitMs: isBooked ? 0 : null });
  };
  return { ...call, read: readWait, unreached: booked };
}

export function window(key: Key, limit: Window | Policy, options: WindowOptions): Call<Reply> {
  checkWindow("window", limit);
  checkOptions("window", options, WINDOW_OPTIONS);
  return withAtmost(limitCall("RL.WINDOW", key, limit, options), options);
}

export function reserve(key: Key, limit: Window | Policy, options: ReserveOptions, hasDeadline = false): Call<Reply> {
  checkWindow("reserve", limit);
  checkOptions("reserve", options, RESERVE_OPTIONS);
  // With an id of our own, a reservation whose reply is lost can be released.
  const needsId = options.id === undefined && (hasDeadline || options.signal !== undefined);
  const ownId = needsId ? randomName() : undefined;
  const id = options.id ?? ownId;
  const undo = (answer: Reply | undefined, isCancelled: boolean): Command[] => {
    // Another reservation may have the caller's id, and the lost reply may have been DUPLICATE.
    if (answer === undefined) return releaseOf(key, ownId);
    return isCancelled || ownId !== undefined ? releaseOf(key, answer.id) : [];
  };
  const call = { ...limitCall("RL.ACQUIRE", key, limit, { ...options, id }), read: readId, undo };
  return withAtmost(call, options, readIdAndGranted);
}

export function throttleRo(key: Key, rate: Rate | Policy, options: LookOptions): Call<Reply> {
  checkRate("throttleRo", rate);
  checkOptions("throttleRo", options, LOOK_OPTIONS);
  return limitCall("RL.THROTTLE_RO", key, rate, options);
}

export function windowRo(key: Key, limit: Window | Policy, options: LookOptions): Call<Reply> {
  checkWindow("windowRo", limit);
  checkOptions("windowRo", options, LOOK_OPTIONS);
  return limitCall("RL.WINDOW_RO", key, limit, options);
}

export function acquireRo(key: Key, limit: Window | Policy, options: LookOptions): Call<Reply> {
  checkWindow("acquireRo", limit);
  checkOptions("acquireRo", options, LOOK_OPTIONS);
  return { ...limitCall("RL.ACQUIRE_RO", key, limit, options), read: readId };
}

function checkClause(method: string, value: unknown): void {
  const { key, words } = (typeof value === "object" && value !== null ? value : {}) as Partial<Clause>;
  if (key === undefined || !Array.isArray(words)) {
    throw new TypeError(
      `${method} takes clauses made by clause.throttle, clause.window and clause.acquire, not ${quote(value)}`,
    );
  }
}

/** Checks clauses, and returns them in groups. `method` is named in errors. */
function groupsOf(method: string, clauses: Clauses): Group[] {
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

const withElse = (group: Group): Word[] => group.flatMap(({ words }, at) => (at === 0 ? words : ["ELSE", ...words]));

/** Adds an id to a clause that reserves, so that a reservation whose reply is lost can be released. */
function withOwnId(clause: Clause): Clause {
  if (!clause.reserves || clause.id !== undefined) return clause;
  const ownId = randomName();
  return { ...clause, ownId, words: [...clause.words, "ID", ownId] };
}

// The limit is the second word of a clause.
const policiesOf = (clauses: readonly Clause[]): string[] =>
  clauses.map(({ words }) => String(words[1])).filter((word) => word.startsWith("@"));

const allUnreached = (allow: boolean): AllReply => ({ ...unreached(allow), clause: 0, answers: [], paid: [] });

function allCall(
  method: "all" | "allRo" | "reserve" | "acquire",
  clauses: Clauses,
  options: CallOptions,
  hasDeadline = false,
): Call<AllReply> {
  const signal = checkCallOptions(method, options);
  const isTaking = method !== "allRo";
  const command = isTaking ? "RL.ALL" : "RL.ALL_RO";
  const needsIds = isTaking && (hasDeadline || signal !== undefined);
  const groups = groupsOf(method, clauses).map((group) => (needsIds ? group.map(withOwnId) : group));
  const limits = groups.flat();
  const keys = limits.map(({ key }) => key);
  const undo = (reply: AllReply | undefined, isCancelled: boolean): Command[] => {
    if (reply?.allowed === false) return [];
    if (reply !== undefined && isCancelled) return undoChoices(groups, reply.answers);
    return limits.flatMap(({ key, ownId }) => releaseOf(key, ownId));
  };
  return {
    key: keys[0] ?? "",
    words: [command, String(limits.length), ...keys, ...groups.flatMap(withElse), "MS"],
    readonly: !isTaking,
    signal,
    undo,
    read: (reply) => {
      const answer = readAll(reply, limits.length);
      return { ...answer, paid: answer.allowed ? limitsThatTook(groups, answer.answers, isTaking) : [] };
    },
    unreached: allUnreached,
    policies: policiesOf(limits),
  };
}

export function all(clauses: Clauses, { force, ...options }: AllOptions, hasDeadline = false): Call<AllReply> {
  checkFlag("force", force);
  return force ? forceAll(clauses, options) : allCall("all", clauses, options, hasDeadline);
}

export const allRo = (clauses: Clauses, options: CallOptions) => allCall("allRo", clauses, options);

/** Returns the call of RL.ALL. Throws a RangeError unless at least one limit reserves. */
export function reserveSeveral(
  method: "reserve" | "acquire",
  clauses: Clauses,
  options: CallOptions,
  hasDeadline: boolean,
): Call<AllReply> {
  if (!groupsOf(method, clauses).some((group) => group.some(({ reserves }) => reserves))) {
    throw new RangeError("several limits to reserve must have at least one of clause.acquire that takes something");
  }
  return allCall(method, clauses, options, hasDeadline);
}

/** Counts each limit by RL.THROTTLE or RL.WINDOW with FORCE, in one transaction. */
function forceAll(clauses: Clauses, options: CallOptions): Call<AllReply> {
  const signal = checkCallOptions("all", options);
  const limits = groupsOf("all", clauses).flat();
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
    return { ...(answers[deciding] ?? unreached(true)), clause: deciding + 1, answers, paid };
  };
  const commands = limits.map(({ key, words: [kind, ...rest] }) => [`RL.${String(kind)}`, key, ...rest, "FORCE", "MS"]);
  const call = transaction(limits, commands, read);
  return { ...call, signal, unreached: () => allUnreached(true), policies: policiesOf(limits) };
}

/** Returns the call of a transaction. `read` takes the list of replies, even for a single command. */
function transaction<T>(limits: readonly { key: Key }[], commands: Word[][], read: (replies: unknown[]) => T): Call<T> {
  const call = { key: limits[0]?.key ?? "", words: commands[0] ?? [], readonly: false };
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

/** Returns the clause that each group chose, and its reply. */
function choicesOf(groups: readonly Group[], answers: readonly Reply[]): [Clause, Reply][] {
  let next = 0;
  return groups.flatMap((group) => {
    const groupAnswers = answers.slice(next, (next += group.length));
    const chosen = groupAnswers.findIndex(({ limited }, index) => limited === 0 || group[index]?.shadow);
    const [choice, answer] = [group[chosen], groupAnswers[chosen]];
    return choice === undefined || answer === undefined ? [] : [[choice, answer] as [Clause, Reply]];
  });
}

/**
 * Returns the names of the limits that took: the choices, but not those that only check, or were allowed only by `shadow`.
 */
function limitsThatTook(groups: readonly Group[], answers: readonly Reply[], isTaking: boolean): string[] {
  return choicesOf(groups, answers)
    .filter(([{ takes = 0, reserves }, { limited, id }]) => {
      const hasNoReservation = isTaking && reserves && id === null;
      return limited === 0 && takes > 0 && !hasNoReservation;
    })
    .map(([{ name }]) => name);
}

/** Returns the commands that give back what the choice of each group took. */
function undoChoices(groups: readonly Group[], answers: readonly Reply[]): Command[] {
  return choicesOf(groups, answers).flatMap(([clause, answer]) => clause.undo?.(answer) ?? []);
}

function keyAndIds(key: Key, ids: readonly string[]): Word[] {
  checkText("key", key);
  for (const id of ids) checkText("id", id);
  return [key, ...ids];
}

export function apply(key: Key, id: string, quantity: Integer | undefined, options: CallOptions): Call<boolean> {
  const signal = checkCallOptions("apply", options);
  const words = [
    "RL.APPLY",
    ...keyAndIds(key, [id]),
    ...(quantity === undefined ? [] : [integer("quantity", quantity)]),
  ];
  return { key, words, readonly: false, read: readIsFound, signal };
}

export function release(key: Key, ids: readonly string[], options: CallOptions): Call<number> {
  const signal = checkCallOptions("release", options);
  return { key, words: ["RL.RELEASE", ...keyAndIds(key, ids)], readonly: false, read: readCount, signal };
}

/** Checks the options of a renewal, and returns their words. */
export function renewWords(options: RenewOptions): Word[] {
  checkOptions("renew", options, RENEW_OPTIONS);
  checkSignal(options.signal);
  return options.lease === undefined ? [] : ["LEASE", duration("lease", options.lease, 1)];
}

export function renew(key: Key, id: string, options: RenewOptions): Call<boolean> {
  const optionWords = renewWords(options);
  const words = ["RL.RENEW", ...keyAndIds(key, [id]), ...optionWords];
  return { key, words, readonly: false, read: readIsFound, signal: options.signal };
}

export function held(key: Key, options: CallOptions): Call<Held[]> {
  const signal = checkCallOptions("held", options);
  return { key, words: ["RL.HELD", ...keyAndIds(key, [])], readonly: true, read: readHeld, signal };
}

export function info(key: Key, options: CallOptions): Call<Info | null> {
  const signal = checkCallOptions("info", options);
  return { key, words: ["RL.INFO", ...keyAndIds(key, [])], readonly: true, read: readInfo, signal };
}

export function reset(key: Key, options: CallOptions): Call<boolean> {
  const signal = checkCallOptions("reset", options);
  return { key, words: ["DEL", ...keyAndIds(key, [])], readonly: false, read: readIsFound, signal };
}

export function top(options: TopOptions): Call<TopKey[]> {
  checkOptions("top", options, TOP_OPTIONS);
  checkSignal(options.signal);
  checkFlag("reset", options.reset);
  const words = ["RL.TOP"];
  if (options.count !== undefined) words.push("COUNT", integer("count", options.count));
  if (options.reset) words.push("RESET");
  const merge = (nodes: TopKey[][]): TopKey[] =>
    nodes
      .flat()
      .sort((one, other) => other.denials - one.denials)
      .slice(0, Number(options.count ?? 10));
  return { key: undefined, words, readonly: true, read: readTop, merge, signal: options.signal };
}

/** Adds up the policies of several nodes. Policies with the same name and different definitions are not added. */
function sumOfPolicies(nodes: PolicyCounts[][]): PolicyCounts[] {
  const sums = new Map<string, PolicyCounts>();
  for (const policy of nodes.flat()) {
    const nameAndDefinition = `${policy.name} ${policy.definition}`;
    const sum = sums.get(nameAndDefinition);
    if (sum === undefined) {
      sums.set(nameAndDefinition, { ...policy });
    } else {
      sum.allowed += policy.allowed;
      sum.denied += policy.denied;
      sum.shadowDenied += policy.shadowDenied;
    }
  }
  return [...sums.values()];
}

export function policies(options: CallOptions): Call<PolicyCounts[]> {
  const signal = checkCallOptions("policies", options);
  return { key: undefined, words: ["RL.POLICIES"], readonly: true, read: readPolicies, merge: sumOfPolicies, signal };
}
