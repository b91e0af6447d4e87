/** Builds the words of each command, reads its reply, and decides when Redis cannot be reached. Does no I/O. */

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
  readHeld,
  readInfo,
  readPolicies,
  readTop,
  unreached,
  readGranted,
  readId,
  readIdAndGranted,
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

/** A command as it is sent. */
export interface Command {
  /** Undefined if the command has no key. */
  key: Key | undefined;
  words: Word[];
  readonly: boolean;
  /** How long the command may wait on the server; 0 is without end. */
  blockMs?: number | undefined;
  /**
   * Several commands that are executed as one transaction, with `words` as the first. Their keys are in the same slot. The
   * reply is the list of their replies, with error replies.
   */
  transaction?: Word[][] | undefined;
}

/** A command, and how its reply is read. */
export interface Call<T> extends Command {
  read: (reply: unknown) => T;
  /** Returns the reply if Redis cannot be reached, given whether to allow. */
  unreached?: (allow: boolean) => T;
  /** Makes one answer of those of all nodes of a cluster, which are asked then. */
  merge?: (answers: T[]) => T;
  /** The policies that it names. */
  policies?: string[];
  /** Gives the call up. */
  signal?: AbortSignal | undefined;
  /**
   * The commands that give back what the server granted to a caller that no longer waits for it. The answer is undefined if
   * the connection was closed before it came.
   */
  undo?: (answer: T | undefined) => Command[];
}

/** Options of every call. */
export interface CallOptions {
  /**
   * Cancels the call, which rejects with the reason of the signal. A call that has not been sent is not sent, one that waits
   * (`block`) leaves the line, and what is granted too late is given back.
   */
  signal?: AbortSignal | undefined;
}

/** Options of the calls that take nothing, such as Limiter.throttleRo. */
export interface LookOptions extends CallOptions {
  /** Default 1. */
  quantity?: Integer | undefined;
  /** How much is kept in reserve for others. */
  leave?: Integer | undefined;
}

/** Options of Limiter.throttle. */
export interface ThrottleOptions extends LookOptions {
  /** Takes as much of the quantity as is available. */
  atmost?: boolean | undefined;
  /** Counts the quantity even if that exceeds the limit. */
  force?: boolean | undefined;
  /** How long the call may wait to be allowed; 0 is without end. */
  block?: Duration | undefined;
  /** Books what becomes available within this time; the reply has the wait. */
  ahead?: Duration | undefined;
  /** How long the key is closed if the call is denied. */
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
  /** How long the key is closed if the call is denied. */
  ban?: Duration | undefined;
  /** How long the call may wait to be allowed; 0 is without end. */
  block?: Duration | undefined;
}

/** Options of Limiter.reserve. */
export interface ReserveOptions extends LookOptions {
  /** Reserves as much of the quantity as is available; the reply has `granted` and `reservations`. */
  atmost?: boolean | undefined;
  /** How long the reservation is held unless it is settled or renewed. */
  lease?: Duration | undefined;
  /** A reservation that is not settled counts when its lease ends. Not with a semaphore. */
  countLapsed?: boolean | undefined;
  /** 1 to 64 bytes; without it the server makes one. */
  id?: string | undefined;
  /** How long the call may wait to be allowed; 0 is without end. */
  block?: Duration | undefined;
}

/** Options of every clause. */
export interface ClauseOptions extends Omit<LookOptions, "signal"> {
  /** The name of the limit in replies, errors and costs. Default: its key. */
  name?: string | undefined;
  /** Must be allowed, takes nothing. */
  check?: boolean | undefined;
  /** Decided and reported, but never denies the call. */
  shadow?: boolean | undefined;
}

/** One limit of all, made by clause.throttle, clause.window or clause.acquire. */
export interface Clause {
  /** Its key. */
  key: Key;
  /** The name of the limit in replies, errors and costs. */
  name: string;
  /** Its words in the command. */
  words: Word[];
  /** @internal The commands that give back what it took. */
  undo?: (answer: Reply) => Command[];
  /** @internal Whether it never denies, and so is the choice of its group if none before it is. */
  shadow?: boolean | undefined;
  /** @internal The quantity that it takes; 0 if it only checks. */
  takes?: Integer | undefined;
  /** @internal Whether it has no options of its own. */
  isPlain?: boolean | undefined;
  /** @internal Whether it makes a reservation, which is settled when the work is done. */
  reserves?: boolean | undefined;
  /** @internal Whether its reservation can only be released. Only the server knows this about a policy. */
  isSemaphore?: boolean | undefined;
  /** @internal The lease of its reservation, if it is not the server's default. */
  leaseMs?: number | undefined;
  /** @internal The id of its reservation, if the caller chose it. */
  id?: string | undefined;
}

/** Clauses of which the first that would be allowed takes: "the plan's quota, else credits". */
export type Group = readonly Clause[];

/** The limits of all: a clause by itself is a group of one. */
export type Clauses = readonly (Clause | Group)[];

/** Options of Limiter.all. */
export interface AllOptions extends CallOptions {
  /**
   * Counts what was used, in one step, even if that exceeds a limit. All clauses must then be rates and windows, without
   * options and groups.
   */
  force?: boolean | undefined;
}

/** Options of Limiter.renew. */
export interface RenewOptions extends CallOptions {
  /** The length of the lease from now on. Default: as long as it was. */
  lease?: Duration | undefined;
}

/** Options of Limiter.top. */
export interface TopOptions extends CallOptions {
  /** How many keys, from 1. Default 10. */
  count?: number | undefined;
  /** Forgets them after the answer. */
  reset?: boolean | undefined;
}

const LOOK_OPTIONS = ["quantity", "leave", "signal"];
const THROTTLE_OPTIONS = [...LOOK_OPTIONS, "atmost", "force", "block", "ahead", "ban"];
const WINDOW_OPTIONS = [...LOOK_OPTIONS, "atmost", "force", "countDenied", "block", "ban"];
export const RESERVE_OPTIONS = [...LOOK_OPTIONS, "atmost", "lease", "countLapsed", "id", "block"];
const CLAUSE_OPTIONS = ["name", "quantity", "leave", "check", "shadow"];

type Options = Omit<ThrottleOptions & WindowOptions & ReserveOptions & ClauseOptions, "quantity" | "name">;

/** The options of a method that has no others. */
export function checkCallOptions(method: string, options: CallOptions): AbortSignal | undefined {
  checkOptions(method, options, ["signal"]);
  checkSignal(options.signal);
  return options.signal;
}

const releaseOf = (key: Key, id: string | null | undefined): Command[] =>
  typeof id === "string" ? [{ key, words: ["RL.RELEASE", key, id], readonly: false }] : [];

/** Gives back what RL.THROTTLE or RL.WINDOW took. FORCE counts what was used already, and that stays. */
function giveBack(command: string, key: Key, limit: Limit, quantity: Integer, options: Options): Command[] {
  if (quantity <= 0 || options.force) return [];
  return [{ key, words: [command, key, ...limitCallWords(limit, -quantity, {})], readonly: false }];
}

/** The limit, the quantity and the options, MS apart. Only the options that were asked for are sent. */
export function limitCallWords(limit: Limit, quantity: Integer, options: Options): Word[] {
  const words: Word[] = [...limitWords(limit), integer("quantity", quantity), ...limitOptions(limit)];
  const flag = (word: string, name: string, given: boolean | undefined) => {
    checkFlag(name, given);
    if (given) words.push(word);
  };
  const time = (word: string, name: string, given: Duration | undefined, least: number) => {
    if (given !== undefined) words.push(word, duration(name, given, least));
  };
  if (options.leave !== undefined && integer("leave", options.leave) !== "0")
    words.push("LEAVE", String(options.leave));
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

function clauseOf(
  kind: string,
  name: string,
  key: Key,
  limit: Limit,
  given: ClauseOptions,
  allowed: readonly string[],
): Clause {
  checkText("key", key);
  checkOptions(name, given, allowed);
  const { name: called, quantity = 1, ...options }: ClauseOptions & Options = given;
  if (called !== undefined && typeof called !== "string") {
    throw new TypeError(`name must be a string, not ${quote(called)}`);
  }
  const words = [kind, ...limitCallWords(limit, quantity, options)];
  const undo = ({ limited, id }: Reply): Command[] => {
    if (kind === "ACQUIRE") return releaseOf(key, id);
    return limited === 0 && !options.check ? giveBack(`RL.${kind}`, key, limit, quantity, options) : [];
  };
  const takes = options.check ? 0 : quantity;
  return {
    key,
    name: called ?? String(key),
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

/** The limits of all, one for each key. */
export const clause = {
  /** A clause of RL.THROTTLE. */
  throttle(key: Key, rate: Rate | Policy, options: ClauseOptions & Pick<ThrottleOptions, "ban"> = {}): Clause {
    checkRate("clause.throttle", rate);
    return clauseOf("THROTTLE", "clause.throttle", key, rate, options, [...CLAUSE_OPTIONS, "ban"]);
  },
  /** A clause of RL.WINDOW. */
  window(
    key: Key,
    window: Window | Policy,
    options: ClauseOptions & Pick<WindowOptions, "countDenied" | "ban"> = {},
  ): Clause {
    checkWindow("clause.window", window);
    return clauseOf("WINDOW", "clause.window", key, window, options, [...CLAUSE_OPTIONS, "countDenied", "ban"]);
  },
  /** A clause of RL.ACQUIRE. */
  acquire(
    key: Key,
    window: Window | Policy,
    options: ClauseOptions & Pick<ReserveOptions, "lease" | "countLapsed" | "id"> = {},
  ): Clause {
    checkWindow("clause.acquire", window);
    return clauseOf("ACQUIRE", "clause.acquire", key, window, options, [
      ...CLAUSE_OPTIONS,
      "lease",
      "countLapsed",
      "id",
    ]);
  },
};

const policyOf = (limit: Limit): string[] => (typeof limit === "string" ? [limit] : []);

/** What is answered while Redis cannot be reached: what Redis would never deny is not denied then either. */
const isAllowed = (
  allow: boolean,
  { quantity = 1, force }: { quantity?: Integer | undefined; force?: boolean | undefined },
): boolean => allow || force === true || quantity <= 0;

function limitCall(
  command: string,
  key: Key,
  limit: Limit,
  given: Options & { quantity?: Integer | undefined },
): Call<Reply> {
  checkText("key", key);
  checkSignal(given.signal);
  const { quantity = 1, ...options } = given;
  const call: Call<Reply> = {
    key,
    words: [command, key, ...limitCallWords(limit, quantity, options), "MS"],
    readonly: command.endsWith("_RO"),
    read: readReply,
    unreached: (allow) => unreached(isAllowed(allow, given)),
    blockMs: options.block === undefined ? undefined : toMilliseconds("block", options.block),
    policies: policyOf(limit),
    signal: given.signal,
  };
  if (call.readonly || call.signal === undefined) return call;
  const undo = (answer: Reply | undefined) =>
    answer?.allowed ? giveBack(command, key, limit, answer.granted ?? quantity, options) : [];
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

export function reserve(key: Key, limit: Window | Policy, options: ReserveOptions): Call<Reply> {
  checkWindow("reserve", limit);
  checkOptions("reserve", options, RESERVE_OPTIONS);
  // Without an id of its own, a reservation whose reply is lost could not be released.
  const { signal, id = signal && randomName() } = options;
  const undo = (answer: Reply | undefined) => releaseOf(key, answer === undefined ? id : answer.id);
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

function checkClause(given: unknown): void {
  const { key, words } = (typeof given === "object" && given !== null ? given : {}) as Partial<Clause>;
  if (key === undefined || !Array.isArray(words)) {
    throw new TypeError(
      `all takes clauses made by clause.throttle, clause.window and clause.acquire, not ${quote(given)}`,
    );
  }
}

function notClauses(given: unknown): never {
  throw new TypeError(`all takes an array of clauses, not ${quote(given)}`);
}

/** A clause by itself is a group of one. */
function groupOf(given: Clause | Group): Group {
  if (!Array.isArray(given)) return [given as Clause];
  if (given.length === 0) throw new RangeError("a group must have at least one clause");
  return given as Group;
}

/** Checks the clauses of all, and returns their groups. */
function groupsOf(given: Clauses): Group[] {
  const groups = Array.isArray(given) ? (given as Clauses).map(groupOf) : notClauses(given);
  if (groups.length === 0) throw new RangeError("there must be at least one clause");
  const clauses = groups.flat();
  clauses.forEach(checkClause);
  const names = new Set<string>();
  for (const { name } of clauses) {
    if (names.has(name)) throw new RangeError(`two limits must not have the same name, which is ${quote(name)}`);
    names.add(name);
  }
  return groups;
}

const withElse = (group: Group): Word[] => group.flatMap(({ words }, at) => (at === 0 ? words : ["ELSE", ...words]));

/** Adds an id to a clause that reserves. Without one, a reservation whose reply is lost could not be released. */
function withOwnId(clause: Clause): Clause {
  if (!clause.reserves || clause.id !== undefined) return clause;
  const id = randomName();
  return { ...clause, id, words: [...clause.words, "ID", id] };
}

// The limit is the second word of a clause.
const policiesOf = (clauses: readonly Clause[]): string[] =>
  clauses.map(({ words }) => String(words[1])).filter((word) => word.startsWith("@"));

const allUnreached = (allow: boolean): AllReply => ({ ...unreached(allow), clause: 0, answers: [], paid: [] });

function allCall(method: "all" | "allRo", given: Clauses, options: CallOptions): Call<AllReply> {
  const signal = checkCallOptions(method, options);
  const command = method === "all" ? "RL.ALL" : "RL.ALL_RO";
  const isTaking = method === "all";
  const groups = groupsOf(given).map((group) => (isTaking && signal ? group.map(withOwnId) : group));
  const clauses = groups.flat();
  const keys = clauses.map((each) => each.key);
  const undo = (answer: AllReply | undefined): Command[] => {
    if (answer?.allowed) return takenOf(groups, answer.answers);
    return answer === undefined ? clauses.flatMap(({ key, id }) => releaseOf(key, id)) : [];
  };
  return {
    key: keys[0] ?? "",
    words: [command, String(clauses.length), ...keys, ...groups.flatMap(withElse), "MS"],
    readonly: !isTaking,
    signal,
    undo,
    read: (reply) => {
      const answer = readAll(reply);
      return { ...answer, paid: answer.allowed ? limitsThatTook(groups, answer.answers, isTaking) : [] };
    },
    unreached: allUnreached,
    policies: policiesOf(clauses),
  };
}

export function all(clauses: Clauses, { force, ...options }: AllOptions): Call<AllReply> {
  checkFlag("force", force);
  return force ? forceAll(clauses, options) : allCall("all", clauses, options);
}

export const allRo = (clauses: Clauses, options: CallOptions) => allCall("allRo", clauses, options);

/** Returns the call of RL.ALL. Throws a TypeError unless at least one limit reserves. */
export function reserveSeveral(clauses: Clauses, options: CallOptions): Call<AllReply> {
  if (!groupsOf(clauses).some((group) => group.some(({ reserves }) => reserves))) {
    throw new TypeError("several limits to reserve must have at least one of clause.acquire that takes something");
  }
  return allCall("all", clauses, options);
}

/** Counts each limit by RL.THROTTLE or RL.WINDOW with FORCE, in one transaction. */
function forceAll(given: Clauses, options: CallOptions): Call<AllReply> {
  const signal = checkCallOptions("all", options);
  const clauses = groupsOf(given).flat();
  if (given.some((each) => Array.isArray(each)) || !clauses.every(({ isPlain }) => isPlain)) {
    throw new RangeError("force must be used with rates and windows without options and groups");
  }
  for (const { name, takes = 0 } of clauses) {
    if (takes < 0) throw new RangeError(`the quantity of ${quote(name)} must be at least 0 with force, not ${takes}`);
  }
  const read = (replies: unknown[]): AllReply => {
    const answers = withoutErrors(clauses, replies).map(readReply);
    // Chosen as RL.ALL does: the limit with the least left in proportion to its quantity. A quantity of 0 comes last.
    const ratios = answers.map(({ remaining }, at) => {
      const takes = Number(clauses[at]?.takes);
      return takes > 0 ? Math.floor(remaining / takes) : Infinity;
    });
    const at = ratios.indexOf(Math.min(...ratios));
    const paid = clauses.filter(({ takes = 0 }) => takes > 0).map(({ name }) => name);
    return { ...(answers[at] ?? unreached(true)), clause: at + 1, answers, paid };
  };
  const commands = clauses.map(({ key, words: [kind, ...rest] }) => [
    `RL.${String(kind)}`,
    key,
    ...rest,
    "FORCE",
    "MS",
  ]);
  const call = transaction(clauses, commands, read);
  return { ...call, signal, unreached: () => allUnreached(true), policies: policiesOf(clauses) };
}

/** Returns the call of a transaction. `read` takes the list of replies, even for a single command. */
function transaction<T>(limits: readonly { key: Key }[], commands: Word[][], read: (replies: unknown[]) => T): Call<T> {
  const call = { key: limits[0]?.key ?? "", words: commands[0] ?? [], readonly: false };
  if (commands.length === 1) return { ...call, read: (reply) => read([reply]) };
  return { ...call, transaction: commands, read: (replies) => read(replies as unknown[]) };
}

/** Returns the replies. Throws the first error, with all errors and the names of their limits in its text. */
function withoutErrors(limits: readonly { name: string }[], replies: readonly unknown[]): readonly unknown[] {
  const failed = replies.flatMap((reply, at) => (reply instanceof Error ? [{ reply, name: limits[at]?.name }] : []));
  const [first] = failed;
  if (first === undefined) return replies;
  // The text still begins with the error code.
  first.reply.message = failed.map(({ reply, name }) => `${reply.message} (limit ${name})`).join("; ");
  throw first.reply;
}

/** A reservation of one limit, and the limit's name. */
export interface Reserved {
  name: string;
  key: Key;
  id: string;
  isSemaphore: boolean;
  isPolicy: boolean;
}

/** Returns the call that sends commands for each reservation in one transaction, and reads the names of those that ended. */
function forEach(
  reserved: readonly Reserved[],
  signal: AbortSignal | undefined,
  commandsOf: (each: Reserved) => Word[][],
): Call<string[]> {
  const commands = reserved.map(commandsOf);
  const read = (replies: unknown[]): string[] => {
    let next = 0;
    const outcomes = commands.map(({ length }) => {
      const own = replies.slice(next, (next += length));
      // A policy that turned out to be a semaphore is not applied, but released by the command that follows.
      return own.at(-1) === 1 ? 1 : own[0];
    });
    const held = withoutErrors(reserved, outcomes);
    return reserved.filter((_, at) => Number(held[at]) !== 1).map(({ name }) => name);
  };
  return { ...transaction(reserved, commands.flat(), read), signal };
}

/** What was really used, by the names of the limits. */
export type Costs = Readonly<Record<string, Integer>>;

/** RL.APPLY for each reservation, with the true cost of those that are named; RL.RELEASE for a semaphore's. */
export function applyAll(reserved: readonly Reserved[], costs: Costs, options: CallOptions): Call<string[]> {
  return forEach(reserved, checkCallOptions("apply", options), ({ name, key, id, isSemaphore, isPolicy }) => {
    const applied = ["RL.APPLY", key, id];
    const cost = costs[name];
    if (cost !== undefined) return [[...applied, integer("quantity", cost)]];
    if (isSemaphore) return [["RL.RELEASE", key, id]];
    // Only the server knows what a policy is. If it is a window, RL.RELEASE finds nothing left to release.
    return isPolicy ? [applied, ["RL.RELEASE", key, id]] : [applied];
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
    const own = answers.slice(next, (next += group.length));
    const at = own.findIndex(({ limited }, each) => limited === 0 || group[each]?.shadow);
    const [choice, answer] = [group[at], own[at]];
    return choice === undefined || answer === undefined ? [] : [[choice, answer] as [Clause, Reply]];
  });
}

/** Returns the names of the limits that took: choices, unless they only check or only their shadow allowed them. */
function limitsThatTook(groups: readonly Group[], answers: readonly Reply[], isTaking: boolean): string[] {
  return choicesOf(groups, answers)
    .filter(([{ takes = 0, reserves }, { limited, id }]) => {
      const isMissing = isTaking && reserves && id === null;
      return limited === 0 && takes > 0 && !isMissing;
    })
    .map(([{ name }]) => name);
}

/** Returns the commands that give back what each group's choice took. */
function takenOf(groups: readonly Group[], answers: readonly Reply[]): Command[] {
  return choicesOf(groups, answers).flatMap(([clause, answer]) => clause.undo?.(answer) ?? []);
}

const toBoolean = (reply: unknown): boolean => Number(reply) === 1;

function settling(key: Key, ids: readonly string[]): Word[] {
  checkText("key", key);
  for (const id of ids) checkText("id", id);
  return [key, ...ids];
}

export function apply(key: Key, id: string, quantity: Integer | undefined, options: CallOptions): Call<boolean> {
  const signal = checkCallOptions("apply", options);
  const words = [
    "RL.APPLY",
    ...settling(key, [id]),
    ...(quantity === undefined ? [] : [integer("quantity", quantity)]),
  ];
  return { key, words, readonly: false, read: toBoolean, signal };
}

export function release(key: Key, ids: readonly string[], options: CallOptions): Call<number> {
  const signal = checkCallOptions("release", options);
  return { key, words: ["RL.RELEASE", ...settling(key, ids)], readonly: false, read: Number, signal };
}

export function renew(key: Key, id: string, options: RenewOptions): Call<boolean> {
  checkOptions("renew", options, ["lease", "signal"]);
  checkSignal(options.signal);
  const lease = options.lease === undefined ? [] : ["LEASE", duration("lease", options.lease, 1)];
  const words = ["RL.RENEW", ...settling(key, [id]), ...lease];
  return { key, words, readonly: false, read: toBoolean, signal: options.signal };
}

export function held(key: Key, options: CallOptions): Call<Held[]> {
  const signal = checkCallOptions("held", options);
  return { key, words: ["RL.HELD", ...settling(key, [])], readonly: true, read: readHeld, signal };
}

export function info(key: Key, options: CallOptions): Call<Info | null> {
  const signal = checkCallOptions("info", options);
  return { key, words: ["RL.INFO", ...settling(key, [])], readonly: true, read: readInfo, signal };
}

export function reset(key: Key, options: CallOptions): Call<boolean> {
  const signal = checkCallOptions("reset", options);
  return { key, words: ["DEL", ...settling(key, [])], readonly: false, read: toBoolean, signal };
}

export function top(options: TopOptions): Call<TopKey[]> {
  checkOptions("top", options, ["count", "reset", "signal"]);
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

/** Merges the policies of several nodes. Policies with the same name and different definitions stay apart. */
function sumOfPolicies(nodes: PolicyCounts[][]): PolicyCounts[] {
  const sums = new Map<string, PolicyCounts>();
  for (const each of nodes.flat()) {
    const policy = `${each.name} ${each.definition}`;
    const sum = sums.get(policy);
    if (sum === undefined) {
      sums.set(policy, { ...each });
    } else {
      sum.allowed += each.allowed;
      sum.denied += each.denied;
      sum.shadowDenied += each.shadowDenied;
    }
  }
  return [...sums.values()];
}

export function policies(options: CallOptions): Call<PolicyCounts[]> {
  const signal = checkCallOptions("policies", options);
  return { key: undefined, words: ["RL.POLICIES"], readonly: true, read: readPolicies, merge: sumOfPolicies, signal };
}
