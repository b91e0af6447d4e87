/** A typed client of redis-ratelimit. */

export { clause } from "./calls.js";
export type { Clause, Key, LookOptions, ReserveOptions, ThrottleOptions, WindowOptions } from "./calls.js";
export { DeadlineError } from "./clients.js";
export type { Client, Ioredis, NodeRedis } from "./clients.js";
export { rateLimit } from "./express.js";
export type { MiddlewareOptions } from "./express.js";
export { headers } from "./headers.js";
export type { HeaderOptions } from "./headers.js";
export { Limiter, Reservation } from "./limiter.js";
export type { AcquireOptions, LimiterOptions } from "./limiter.js";
export { semaphore } from "./limits.js";
export type { Integer, Limit, Period, Policy, Rate, Window } from "./limits.js";
export { Denied, Lapsed } from "./replies.js";
export type { AllReply, Held, Reply } from "./replies.js";
