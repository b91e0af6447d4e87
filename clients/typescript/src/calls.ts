/** The calls with one limit or none: the words of each command, and how its reply is read. This file does no I/O. */

import { checkFlag, checkOptions, checkSignal, checkText, duration, integer, toMilliseconds } from "./check.js";
import type { Key, Command, Call } from "./command.js";
import {
  checkRate,
  checkWindow,
  type Integer,
  type Limit,
  type Policy,
  type Rate,
  type Window,
  type Word,
} from "./limits.js";
import {
  limitCallWords,
  checkCallOptions,
  LOOK_OPTIONS,
  THROTTLE_OPTIONS,
  WINDOW_OPTIONS,
  RESERVE_OPTIONS,
  RENEW_OPTIONS,
  TOP_OPTIONS,
  type Options,
  type CallOptions,
  type LookOptions,
  type ThrottleOptions,
  type WindowOptions,
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
  typeof id === "string" ? [{ key, words: ["RL.RELEASE", key, id], readonly: false }] : [];

/**
 * Returns the command that gives back what RL.THROTTLE or RL.WINDOW took. What FORCE counted was used, so it stays. So does
 * what AHEAD booked: later bookings do not move, and the next call would get the same turn as one of them.
 */
export function giveBack(command: string, key: Key, limit: Limit, quantity: Integer, options: Options): Command[] {
  if (quantity <= 0 || options.force || options.ahead !== undefined) return [];
  return [{ key, words: [command, key, ...limitCallWords(limit, -quantity, {})], readonly: false }];
}

const policyOf = (limit: Limit): string[] => (typeof limit === "string" ? [limit] : []);

function limitCall(
  command: string,
  key: Key,
  limit: Limit,
  allOptions: Options & { quantity?: Integer | undefined },
): Call<Reply> {
  checkText("key", key);
  const { quantity = 1, ...options } = allOptions;
  const { signal, atmost, ahead } = options;
  checkSignal(signal);
  const isBooking = ahead !== undefined && !atmost;
  const call: Call<Reply> = {
    key,
    words: [command, key, ...limitCallWords(limit, quantity, options), "MS"],
    readonly: command.endsWith("_RO"),
    read: atmost ? readGranted : isBooking ? readWait : readReply,
    unreached: (allow) => {
      // What Redis never denies is always allowed.
      const isAllowed = allow || options.force === true || quantity <= 0;
      return unreached(isAllowed, {
        ...(atmost && { granted: isAllowed ? Number(quantity) : 0 }),
        ...(isBooking && { waitMs: isAllowed ? 0 : null }),
      });
    },
    blockMs: options.block === undefined ? undefined : toMilliseconds("block", options.block),
    policies: policyOf(limit),
    signal,
  };
  if (call.readonly || signal === undefined) return call;
  const undo = (answer: Reply | undefined, isCancelled: boolean) =>
    isCancelled && answer?.allowed ? giveBack(command, key, limit, answer.granted ?? quantity, options) : [];
  return { ...call, undo };
}

export function throttle(key: Key, rate: Rate | Policy, options: ThrottleOptions): Call<Reply> {
  checkRate("throttle", rate);
  checkOptions("throttle", options, THROTTLE_OPTIONS);
  return limitCall("RL.THROTTLE", key, rate, options);
}

export function window(key: Key, limit: Window | Policy, options: WindowOptions): Call<Reply> {
  checkWindow("window", limit);
  checkOptions("window", options, WINDOW_OPTIONS);
  return limitCall("RL.WINDOW", key, limit, options);
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
  const call = limitCall("RL.ACQUIRE", key, limit, { ...options, id });
  return { ...call, read: options.atmost ? readIdAndGranted : readId, undo };
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
