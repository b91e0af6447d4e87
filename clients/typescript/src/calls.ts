/** The calls with one limit or none: the words of each command, and how its reply is read. This file does no I/O. */

import { checkFlag, checkOptions, checkSignal, checkText, duration, integer, quote, toMilliseconds } from "./check.js";
import type { Key, Command, Call } from "./command.js";
import { checkRate, checkWindow, type Duration, type Integer, type Limit, type Word } from "./limits.js";
import {
  limitCallWords,
  checkCallOptions,
  CLOSE_OPTIONS,
  LOOK_OPTIONS,
  THROTTLE_OPTIONS,
  WINDOW_OPTIONS,
  RESERVE_OPTIONS,
  RENEW_OPTIONS,
  TOP_OPTIONS,
  type Options,
  type CallOptions,
  type CloseOptions,
  type ReserveOptions,
  type RenewOptions,
  type TopOptions,
} from "./options.js";
import { randomName } from "./random.js";
import {
  readReply,
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
  type Held,
  type Info,
  type PolicyCounts,
  type Reply,
  type TopKey,
} from "./replies.js";

export const releaseOf = (key: Key, id: string | null | undefined): Command[] =>
  typeof id === "string" ? [{ key, words: ["RL.RELEASE", key, id] }] : [];

/**
 * Returns the command that gives back what RL.THROTTLE or RL.WINDOW took. What FORCE counted was used, so it stays. So does
 * what AHEAD booked: later bookings do not move, and the next call would get the same turn as one of them.
 */
export function giveBack(command: string, key: Key, limit: Limit, quantity: Integer, options: Options): Command[] {
  if (quantity <= 0 || options.force || options.ahead !== undefined) return [];
  return [{ key, words: [command, key, ...limitCallWords(limit, -quantity, {})] }];
}

const policyOf = (limit: Limit): string[] => (typeof limit === "string" ? [limit] : []);

/** The methods that ask one limit: the command, the check of the limit, and the options. */
const LIMIT_METHODS = {
  throttle: ["RL.THROTTLE", checkRate, THROTTLE_OPTIONS],
  throttleRo: ["RL.THROTTLE_RO", checkRate, LOOK_OPTIONS],
  window: ["RL.WINDOW", checkWindow, WINDOW_OPTIONS],
  windowRo: ["RL.WINDOW_RO", checkWindow, LOOK_OPTIONS],
  reserve: ["RL.ACQUIRE", checkWindow, RESERVE_OPTIONS],
  acquireRo: ["RL.ACQUIRE_RO", checkWindow, LOOK_OPTIONS],
} as const;

/** The name of a method that asks one limit. */
export type LimitMethod = keyof typeof LIMIT_METHODS;

/** The options of a method that asks one limit. */
export type LimitOptions = Options & { quantity?: Integer | undefined };

/** Returns the call of a method that asks one limit. */
export function limitCall(method: LimitMethod, key: Key, limit: Limit, allOptions: LimitOptions): Call<Reply> {
  const [command, checkLimit, optionNames] = LIMIT_METHODS[method];
  checkLimit(method, limit);
  checkOptions(method, allOptions, optionNames);
  checkText("key", key);
  const { quantity = 1, ...options } = allOptions;
  const { signal, atmost, ahead } = options;
  checkSignal(signal);
  const isBooking = ahead !== undefined && !atmost;
  const call: Call<Reply> = {
    key,
    words: [command, key, ...limitCallWords(limit, quantity, options), "MS"],
    read: method === "acquireRo" ? readId : atmost ? readGranted : isBooking ? readWait : readReply,
    unreached: (allow) => {
      // What Redis never denies is always allowed. A negative quantity of RL.ACQUIRE is an error there.
      const isError = command === "RL.ACQUIRE" && quantity < 0;
      const isAllowed = allow || options.force === true || (quantity <= 0 && !isError);
      return unreached(isAllowed, {
        ...(atmost && { granted: isAllowed ? Number(quantity) : 0 }),
        ...(isBooking && { waitMs: isAllowed ? 0 : null }),
      });
    },
    blockMs: options.block === undefined ? undefined : toMilliseconds("block", options.block),
    policies: policyOf(limit),
    signal,
  };
  if (command.endsWith("_RO") || signal === undefined) return call;
  const undo = (answer: Reply | undefined, isCancelled: boolean) =>
    isCancelled && answer?.allowed ? giveBack(command, key, limit, answer.granted ?? quantity, options) : [];
  return { ...call, undo };
}

/** Returns the method that closes a key, and its options. Only the program knows the kind of a policy. */
export function closing(limit: Limit, ban: Duration, options: CloseOptions): ["throttle" | "window", LimitOptions] {
  checkOptions("close", options, CLOSE_OPTIONS);
  const { kind, signal } = options;
  duration("the time of close", ban, 1);
  const isRate = typeof limit === "object" && limit !== null && "burst" in limit;
  const method = typeof limit === "string" ? kind : isRate ? "throttle" : "window";
  if ((method !== "throttle" && method !== "window") || (kind ?? method) !== method) {
    throw new RangeError(`kind must be "throttle" or "window" as the limit ${quote(limit)} is, not ${quote(kind)}`);
  }
  return [method, { quantity: 0, force: true, ban, signal }];
}

/** Returns the call of `reserve`, which can be given back. */
export function reserve(key: Key, limit: Limit, options: ReserveOptions): Call<Reply> {
  checkOptions("reserve", options, RESERVE_OPTIONS);
  // With an id of our own, a reservation whose reply is lost can be released.
  const ownId = options.id === undefined ? randomName() : undefined;
  const id = options.id ?? ownId;
  const undo = (answer: Reply | undefined, isCancelled: boolean): Command[] => {
    // Another reservation may have the caller's id, and the lost reply may have been DUPLICATE.
    if (answer === undefined) return releaseOf(key, ownId);
    return isCancelled || ownId !== undefined ? releaseOf(key, answer.id) : [];
  };
  const call = limitCall("reserve", key, limit, { ...options, id });
  return { ...call, read: options.atmost ? readIdAndGranted : readId, undo };
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
  return { key, words, read: readIsFound, signal };
}

export function release(key: Key, ids: readonly string[], options: CallOptions): Call<number> {
  const signal = checkCallOptions("release", options);
  return { key, words: ["RL.RELEASE", ...keyAndIds(key, ids)], read: readCount, signal };
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
  return { key, words, read: readIsFound, signal: options.signal };
}

export function held(key: Key, options: CallOptions): Call<Held[]> {
  const signal = checkCallOptions("held", options);
  return { key, words: ["RL.HELD", ...keyAndIds(key, [])], read: readHeld, signal };
}

export function info(key: Key, options: CallOptions): Call<Info | null> {
  const signal = checkCallOptions("info", options);
  return { key, words: ["RL.INFO", ...keyAndIds(key, [])], read: readInfo, signal };
}

export function reset(key: Key, options: CallOptions): Call<boolean> {
  const signal = checkCallOptions("reset", options);
  return { key, words: ["DEL", ...keyAndIds(key, [])], read: readIsFound, signal };
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
  return { key: undefined, words, read: readTop, merge, signal: options.signal };
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
  return { key: undefined, words: ["RL.POLICIES"], read: readPolicies, merge: sumOfPolicies, signal };
}
