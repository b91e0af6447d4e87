/**
 * A typed client of redis-ratelimit.
 *
 * @module redis-ratelimit-client
 */

export { clientAddress } from "./http/address.js";
export type { AddressOptions, RequestWithAddress } from "./http/address.js";
export { clause } from "./several.js";
export type { Clause, Clauses, Costs, Group } from "./several.js";
export type { Key } from "./command.js";
export type * from "./options.js";
export type { Client, Ioredis, NodeRedis } from "./clients.js";
export {
  Busy,
  Closed,
  codeOf,
  DeadlinePassed,
  Denied,
  Duplicate,
  isUnreachable,
  Lapsed,
  MissingModule,
  UnknownPolicy,
  Unreachable,
} from "./errors.js";
export { headers, problem, PROBLEM_TYPE, retryAfter } from "./http/headers.js";
export type {
  Answer,
  HeaderOptions,
  PartitionKey,
  Problem,
  ReplyWithOptions,
  RetryAfterSource,
} from "./http/headers.js";
export { addReply, repliesOf } from "./http/middleware.js";
export type { LimiterOptions } from "./core.js";
export { Limiter } from "./limiter.js";
export type { AcquireOptions, Fallback, Limits, Work } from "./limiter.js";
export type { Reservation } from "./reservation.js";
export * from "./limits.js";
export type { Local, LocalOptions } from "./local.js";
export { MemoryLimiter } from "./memory.js";
export type { MemoryLimiterOptions } from "./memory.js";
export { UnexpectedReply } from "./replies.js";
export type { AllReply, Held, Info, PolicyCounts, Reply, TopKey } from "./replies.js";
