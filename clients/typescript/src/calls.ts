/** The calls of a limiter: the words of each command, and how its reply is read. This file does no I/O. */

import { checkFlag, duration, integer, quote, text, toMilliseconds } from "./check.js";
import type { Call, Command, Key } from "./command.js";
import type { Duration, Integer, Limit, Word } from "./limits.js";
import type * as Options from "./options.js";
import { randomName } from "./random.js";
import * as replies from "./replies.js";
import { unreached, type PolicyCounts, type Reply, type TopKey } from "./replies.js";
import { applyAll, policiesOf, releaseAll, renewAll, severalCall, type Clauses } from "./several.js";
import * as words from "./words.js";

const LOOK = ["quantity", "leave", "signal"];
const TAKE = [...LOOK, "block", "by", "weight", "atmost"];
export const RESERVE_OPTIONS = [...TAKE, ...words.OWN_OPTIONS.ACQUIRE];

/** The methods that ask one limit: the command, the check of the limit, and the options. */
const LIMIT_METHODS = {
  throttle: ["RL.THROTTLE", words.checkRate, [...TAKE, "force", "ahead", ...words.OWN_OPTIONS.THROTTLE]],
  throttleRo: ["RL.THROTTLE_RO", words.checkRate, LOOK],
  window: ["RL.WINDOW", words.checkWindow, [...TAKE, "force", ...words.OWN_OPTIONS.WINDOW]],
  windowRo: ["RL.WINDOW_RO", words.checkWindow, LOOK],
  reserve: ["RL.ACQUIRE", words.checkWindowOrSemaphore, RESERVE_OPTIONS],
  acquireRo: ["RL.ACQUIRE_RO", words.checkWindowOrSemaphore, LOOK],
} as const;

/** The options of a method that asks one limit. */
export type LimitOptions = words.WordOptions & Pick<Options.LookOptions, "quantity" | "signal">;

/** Returns the maker of the calls of a method that asks one limit. */
const asking =
  (method: keyof typeof LIMIT_METHODS) =>
  (key: Key, limit: Limit, options: LimitOptions): Call<Reply> => {
    const [command, checkLimit, optionNames] = LIMIT_METHODS[method];
    checkLimit(method, limit);
    words.checkCallOptions(method, options, optionNames);
    text("key", key);
    const { quantity = 1, signal, atmost, ahead, block } = options;
    const isBooking = ahead !== undefined && !atmost;
    const call: Call<Reply> = {
      key,
      words: [command, key, ...words.limitCallWords(limit, quantity, options), "MS"],
      read: replies.readReply,
      unreached: (allow) => {
        // What Redis never denies is always allowed. A negative quantity of RL.ACQUIRE is an error there.
        const isAllowed =
          allow || options.force === true || (quantity <= 0 && !(command === "RL.ACQUIRE" && quantity < 0));
        return unreached(isAllowed, {
          ...(atmost && { granted: isAllowed ? Number(quantity) : 0 }),
          ...(isBooking && { waitMs: isAllowed ? 0 : null }),
        });
      },
      blockMs: block === undefined ? undefined : toMilliseconds("block", block),
      policies: policiesOf(limit),
      signal,
    };
    if (atmost) call.read = replies.readGranted;
    else if (isBooking) call.read = replies.readWait;
    else if (method === "acquireRo") call.read = replies.readId;
    if (signal !== undefined && !command.endsWith("_RO")) {
      call.undo = (answer, isCancelled) =>
        isCancelled && answer?.allowed ? words.giveBack(command, key, limit, answer.granted ?? quantity, options) : [];
    }
    return call;
  };

const askToReserve = asking("reserve");

/** Returns the call of `reserve`, which can be given back. */
function reserve(key: Key, limit: Limit, options: Options.ReserveOptions): Call<Reply> {
  words.checkCallOptions("reserve", options, RESERVE_OPTIONS);
  // With an id of our own, a reservation whose reply is lost can be released.
  const ownId = options.id === undefined ? randomName() : undefined;
  const call = askToReserve(key, limit, { ...options, id: options.id ?? ownId });
  call.read = options.atmost ? replies.readIdAndGranted : replies.readId;
  call.undo = (answer, isCancelled): Command[] => {
    // Another reservation may have the caller's id, and the lost reply may have been DUPLICATE.
    if (answer === undefined) return words.releaseOf(key, ownId);
    return isCancelled || ownId !== undefined ? words.releaseOf(key, answer.id) : [];
  };
  return call;
}

/** Returns the method that closes a key, and its options. Only the program knows the kind of a policy. */
export function closing(
  limit: Limit,
  ban: Duration,
  options: Options.CloseOptions,
): ["throttle" | "window", LimitOptions] {
  words.checkCallOptions("close", options, ["kind", "signal"]);
  const { kind, signal } = options;
  duration("the time of close", ban, 1);
  const isRate = typeof limit === "object" && limit !== null && "burst" in limit;
  const method = typeof limit === "string" ? kind : isRate ? "throttle" : "window";
  if (words.isSemaphore(limit)) throw new RangeError("close takes a rate or a window; a semaphore cannot be closed");
  if ((method !== "throttle" && method !== "window") || (kind ?? method) !== method) {
    throw new RangeError(`kind must be "throttle" or "window" as the limit ${quote(limit)} is, not ${quote(kind)}`);
  }
  return [method, { quantity: 0, force: true, ban, signal }];
}

/** Returns the call of a command with a key and ids. */
function keyed<T>(
  command: string,
  key: Key,
  ids: readonly string[],
  read: Call<T>["read"],
  { signal }: Options.CallOptions,
  more: Word[] = [],
): Call<T> {
  text("key", key);
  for (const id of ids) text("id", id);
  return { key, words: [command, key, ...ids, ...more], read, signal };
}

/** Returns the maker of the calls of a method that takes a key. */
const ofKey =
  <T>(method: string, command: string, read: Call<T>["read"]) =>
  (key: Key, options: Options.CallOptions): Call<T> => {
    words.checkCallOptions(method, options);
    return keyed(command, key, [], read, options);
  };

/** Adds up the policies of several nodes. Policies with the same name and different definitions are not added. */
function sumOfPolicies(nodes: PolicyCounts[][]): PolicyCounts[] {
  const sums = new Map<string, PolicyCounts>();
  for (const policy of nodes.flat()) {
    const nameAndDefinition = `${policy.name} ${policy.definition}`;
    const sum = sums.get(nameAndDefinition) ?? { ...policy, allowed: 0, denied: 0, shadowDenied: 0 };
    sum.allowed += policy.allowed;
    sum.denied += policy.denied;
    sum.shadowDenied += policy.shadowDenied;
    sums.set(nameAndDefinition, sum);
  }
  return [...sums.values()];
}

/** The makers of all calls, by the names of the methods. */
export const CALLS = {
  throttle: asking("throttle"),
  throttleRo: asking("throttleRo"),
  window: asking("window"),
  windowRo: asking("windowRo"),
  reserve,
  acquireRo: asking("acquireRo"),
  apply(key: Key, id: string, quantity: Integer | undefined, options: Options.CallOptions): Call<boolean> {
    words.checkCallOptions("apply", options);
    const more = quantity === undefined ? [] : [integer("quantity", quantity)];
    return keyed("RL.APPLY", key, [id], replies.readIsFound, options, more);
  },
  release(key: Key, ids: readonly string[], options: Options.CallOptions): Call<number> {
    words.checkCallOptions("release", options);
    return keyed("RL.RELEASE", key, ids, replies.readCount, options);
  },
  renew(key: Key, id: string, options: Options.RenewOptions): Call<boolean> {
    return keyed("RL.RENEW", key, [id], replies.readIsFound, options, words.renewWords(options));
  },
  held: ofKey("held", "RL.HELD", replies.readHeld),
  info: ofKey("info", "RL.INFO", replies.readInfo),
  reset: ofKey("reset", "DEL", replies.readIsFound),
  all: (clauses: Clauses, options: Options.AllOptions) => severalCall("all", clauses, options),
  allRo: (clauses: Clauses, options: Options.LookAllOptions) => severalCall("allRo", clauses, options),
  reserveAll: (clauses: Clauses, options: Options.SeveralOptions) => severalCall("reserve", clauses, options),
  acquireAll: (clauses: Clauses, options: Options.SeveralOptions) => severalCall("acquire", clauses, options),
  applyAll,
  releaseAll,
  renewAll,
  top(options: Options.TopOptions): Call<TopKey[]> {
    words.checkCallOptions("top", options, ["count", "reset", "signal"]);
    const { count, reset, signal } = options;
    checkFlag("reset", reset);
    const optionWords = [
      ...(count === undefined ? [] : ["COUNT", integer("count", count)]),
      ...(reset ? ["RESET"] : []),
    ];
    const read = (nodes: unknown): TopKey[] => {
      const keys = replies.readArray(nodes).flatMap(replies.readTop);
      return keys.sort((one, other) => other.denials - one.denials).slice(0, Number(count ?? 10));
    };
    return { key: undefined, words: ["RL.TOP", ...optionWords], isForAll: true, read, signal };
  },
  policies(options: Options.CallOptions): Call<PolicyCounts[]> {
    words.checkCallOptions("policies", options);
    const read = (nodes: unknown) => sumOfPolicies(replies.readArray(nodes).map(replies.readPolicies));
    return { key: undefined, words: ["RL.POLICIES"], isForAll: true, read, signal: options.signal };
  },
};

/** The name of a maker of calls. */
export type CallName = keyof typeof CALLS;
/** The result of a call. */
export type Result<Name extends CallName> = ReturnType<(typeof CALLS)[Name]> extends Call<infer T> ? T : never;
