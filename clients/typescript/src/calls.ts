/** Each command as words to send, a reply to read, and an answer for when Redis cannot be reached. No I/O is done here. */

import { checkFlag, checkOptions, checkText, duration, integer, shown, toMilliseconds } from "./check.js";
import {
  checkRate,
  checkWindow,
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
import {
  five,
  ofAll,
  ofHeld,
  ofInfo,
  ofPolicies,
  ofTop,
  unreached,
  withGranted,
  withId,
  withIdAndGranted,
  withWait,
  type AllReply,
  type Held,
  type Info,
  type PolicyCounts,
  type Reply,
  type TopKey,
} from "./replies.js";

/** The key of a limit. */
export type Key = string | Buffer;

/** What is sent. */
export interface Command {
  /** Undefined where the command is about no key. */
  key: Key | undefined;
  words: Word[];
  readonly: boolean;
  /** How long the server may let the command wait; 0 is without end. */
  blockMs?: number | undefined;
}

/** A command, and what is made of its reply. */
export interface Call<T> extends Command {
  read: (reply: unknown) => T;
  /** The answer if Redis cannot be reached: to allow (true) or to deny (false). */
  unreached?: (allow: boolean) => T;
  /** Makes one answer of those of all nodes of a cluster, which are asked then. */
  merge?: (answers: T[]) => T;
  /** The policies that it names. */
  policies?: string[];
}

/** What is looked at. */
export interface LookOptions {
  /** Default 1. */
  quantity?: Integer | undefined;
  /** How much is kept in reserve for others. */
  leave?: Integer | undefined;
}

/** Options of Limiter.throttle. */
export interface ThrottleOptions extends LookOptions {
  /** Takes as much of the quantity as there is. */
  atmost?: boolean | undefined;
  /** Counts the quantity even where there is not enough. */
  force?: boolean | undefined;
  /** Waits up to so long to be allowed; 0 is without end. */
  block?: Duration | undefined;
  /** Books what can be had within so long, and tells the wait. */
  ahead?: Duration | undefined;
  /** Closes the key for so long when the call is denied. */
  ban?: Duration | undefined;
}

/** Options of Limiter.window. */
export interface WindowOptions extends LookOptions {
  /** Takes as much of the quantity as there is. */
  atmost?: boolean | undefined;
  /** Counts the quantity even where there is not enough. */
  force?: boolean | undefined;
  /** Counts the call even if it is denied. */
  countDenied?: boolean | undefined;
  /** Closes the key for so long when the call is denied. */
  ban?: Duration | undefined;
  /** Waits up to so long to be allowed; 0 is without end. */
  block?: Duration | undefined;
}

/** Options of Limiter.reserve. */
export interface ReserveOptions extends LookOptions {
  /** Reserves as much of the quantity as can be had; the answer has `granted` and `reservations`. */
  atmost?: boolean | undefined;
  /** How long the reservation is held unless it is settled or renewed. */
  lease?: Duration | undefined;
  /** A reservation that nobody settles counts when its lease ends. Not with a semaphore. */
  countLapsed?: boolean | undefined;
  /** 1 to 64 bytes; without it the server makes one. */
  id?: string | undefined;
  /** Waits up to so long to be allowed; 0 is without end. */
  block?: Duration | undefined;
}

/** Options of every clause. */
export interface ClauseOptions extends LookOptions {
  /** Must be allowed, takes nothing. */
  check?: boolean | undefined;
  /** Judged and told, but never denies the call. */
  shadow?: boolean | undefined;
}

/** One limit of all, made by clause.throttle, clause.window or clause.acquire. */
export interface Clause {
  /** Its key. */
  key: Key;
  /** What is sent of it. */
  words: Word[];
}

/** Clauses of which the first takes that would be allowed: "the plan's quota, else credits". */
export type Group = readonly Clause[];

/** Options of Limiter.renew. */
export interface RenewOptions {
  /** The length of the lease from now on. Default: as long as it was. */
  lease?: Duration | undefined;
}

/** Options of Limiter.top. */
export interface TopOptions {
  /** How many keys, from 1. Default 10. */
  count?: number | undefined;
  /** Forgets them after the answer. */
  reset?: boolean | undefined;
}

const LOOK_OPTIONS = ["quantity", "leave"];
const THROTTLE_OPTIONS = [...LOOK_OPTIONS, "atmost", "force", "block", "ahead", "ban"];
const WINDOW_OPTIONS = [...LOOK_OPTIONS, "atmost", "force", "countDenied", "block", "ban"];
export const RESERVE_OPTIONS = [...LOOK_OPTIONS, "atmost", "lease", "countLapsed", "id", "block"];
const CLAUSE_OPTIONS = [...LOOK_OPTIONS, "check", "shadow"];

type Options = Omit<ThrottleOptions & WindowOptions & ReserveOptions & ClauseOptions, "quantity">;

/** The limit, the quantity and the options, MS apart. Only the options that were asked for are sent. */
function limitCallWords(limit: Limit, quantity: Integer, options: Options): Word[] {
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
  const { quantity = 1, ...options } = given;
  return { key, words: [kind, ...limitCallWords(limit, quantity, options)] };
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
  const { quantity = 1, ...options } = given;
  return {
    key,
    words: [command, key, ...limitCallWords(limit, quantity, options), "MS"],
    readonly: command.endsWith("_RO"),
    read: five,
    unreached: (allow) => unreached(isAllowed(allow, given)),
    blockMs: options.block === undefined ? undefined : toMilliseconds("block", options.block),
    policies: policyOf(limit),
  };
}

function withAtmost(
  call: Call<Reply>,
  { atmost, quantity = 1 }: Pick<ThrottleOptions, "atmost" | "quantity">,
  read = withGranted,
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
  return { ...call, read: withWait, unreached: booked };
}

export function window(key: Key, limit: Window | Policy, options: WindowOptions): Call<Reply> {
  checkWindow("window", limit);
  checkOptions("window", options, WINDOW_OPTIONS);
  return withAtmost(limitCall("RL.WINDOW", key, limit, options), options);
}

export function reserve(key: Key, limit: Window | Policy, options: ReserveOptions): Call<Reply> {
  checkWindow("reserve", limit);
  checkOptions("reserve", options, RESERVE_OPTIONS);
  const call = { ...limitCall("RL.ACQUIRE", key, limit, options), read: withId };
  return withAtmost(call, options, withIdAndGranted);
}

/** The answer to a batch, see local.ts. */
export interface Batch {
  reply: Reply;
  /** Null without atmost: all or nothing. */
  granted: number | null;
  /** How many reservations whose lease runs the key holds. */
  reservations: number | null;
}

/** RL.ACQUIRE COUNTLAPSED: a batch that counts as spent unless it is settled. */
export function leaseBatch(
  key: Key,
  limit: Window | Policy,
  quantity: number,
  given: { leave: Integer; leaseMs: number; id: string; atmost: boolean },
): Call<Batch> {
  const { leave, leaseMs, id, atmost } = given;
  const words = [...limitCallWords(limit, quantity, { leave, lease: leaseMs, id, atmost }), "COUNTLAPSED", "MS"];
  const read = (reply: unknown): Batch => {
    const [granted, reservations] = (reply as unknown[]).slice(6);
    const number = (value: unknown): number | null => (value === undefined ? null : Number(value));
    return { reply: withId(reply), granted: number(granted), reservations: number(reservations) };
  };
  return { key, words: ["RL.ACQUIRE", key, ...words], readonly: false, read, policies: policyOf(limit) };
}

/** RL.APPLY of what was spent, or RL.RELEASE; false if it is not held. */
export function settleBatch(key: Key, id: string, units: number): Call<boolean> {
  const words = units === 0 ? ["RL.RELEASE", key, id] : ["RL.APPLY", key, id, String(units)];
  return { key, words, readonly: false, read: toBoolean };
}

/** RL.WINDOW FORCE: counts what was spent although it is not held any more. */
export function countSpent(key: Key, limit: Window | Policy, quantity: number): Call<Reply> {
  return limitCall("RL.WINDOW", key, limit, { quantity, force: true });
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
  return { ...limitCall("RL.ACQUIRE_RO", key, limit, options), read: withId };
}

function checkClause(given: unknown): void {
  const { key, words } = (typeof given === "object" && given !== null ? given : {}) as Partial<Clause>;
  if (key === undefined || !Array.isArray(words)) {
    throw new TypeError(
      `all takes clauses made by clause.throttle, clause.window and clause.acquire, not ${shown(given)}`,
    );
  }
}

function notClauses(given: unknown): never {
  throw new TypeError(`all takes an array of clauses, not ${shown(given)}`);
}

/** A clause by itself is a group of one. */
function groupOf(given: Clause | Group): Group {
  if (!Array.isArray(given)) return [given as Clause];
  if (given.length === 0) throw new TypeError("a group of all has no clauses; it takes one or more");
  return given as Group;
}

const withElse = (group: Group): Word[] => group.flatMap(({ words }, at) => (at === 0 ? words : ["ELSE", ...words]));

export function every(command: string, given: readonly (Clause | Group)[]): Call<AllReply> {
  const groups = Array.isArray(given) ? (given as readonly (Clause | Group)[]).map(groupOf) : notClauses(given);
  const clauses = groups.flat();
  clauses.forEach(checkClause);
  const keys = clauses.map((each) => each.key);
  return {
    key: keys[0] ?? "",
    words: [command, String(clauses.length), ...keys, ...groups.flatMap(withElse), "MS"],
    readonly: command.endsWith("_RO"),
    read: ofAll,
    unreached: (allow) => ({ ...unreached(allow), clause: 0, answers: [] }),
    // The limit is the second word of a clause.
    policies: clauses.map(({ words }) => String(words[1])).filter((word) => word.startsWith("@")),
  };
}

const toBoolean = (reply: unknown): boolean => Number(reply) === 1;

function settling(key: Key, ids: readonly string[]): Word[] {
  checkText("key", key);
  for (const id of ids) checkText("id", id);
  return [key, ...ids];
}

export function apply(key: Key, id: string, quantity: Integer | undefined): Call<boolean> {
  const words = [
    "RL.APPLY",
    ...settling(key, [id]),
    ...(quantity === undefined ? [] : [integer("quantity", quantity)]),
  ];
  return { key, words, readonly: false, read: toBoolean };
}

export function release(key: Key, ids: readonly string[]): Call<number> {
  return { key, words: ["RL.RELEASE", ...settling(key, ids)], readonly: false, read: Number };
}

export function renew(key: Key, id: string, options: RenewOptions): Call<boolean> {
  checkOptions("renew", options, ["lease"]);
  const lease = options.lease === undefined ? [] : ["LEASE", duration("lease", options.lease, 1)];
  return { key, words: ["RL.RENEW", ...settling(key, [id]), ...lease], readonly: false, read: toBoolean };
}

export function held(key: Key): Call<Held[]> {
  return { key, words: ["RL.HELD", ...settling(key, [])], readonly: true, read: ofHeld };
}

export function info(key: Key): Call<Info | null> {
  return { key, words: ["RL.INFO", ...settling(key, [])], readonly: true, read: ofInfo };
}

export function reset(key: Key): Call<boolean> {
  return { key, words: ["DEL", ...settling(key, [])], readonly: false, read: toBoolean };
}

export function top(options: TopOptions): Call<TopKey[]> {
  checkOptions("top", options, ["count", "reset"]);
  checkFlag("reset", options.reset);
  const words = ["RL.TOP"];
  if (options.count !== undefined) words.push("COUNT", integer("count", options.count));
  if (options.reset) words.push("RESET");
  const merge = (nodes: TopKey[][]): TopKey[] =>
    nodes
      .flat()
      .sort((one, other) => other.denials - one.denials)
      .slice(0, Number(options.count ?? 10));
  return { key: undefined, words, readonly: true, read: ofTop, merge };
}

/** Policies of several nodes as one list. Those of one name that are not the same stay apart. */
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

export function policies(): Call<PolicyCounts[]> {
  return { key: undefined, words: ["RL.POLICIES"], readonly: true, read: ofPolicies, merge: sumOfPolicies };
}
