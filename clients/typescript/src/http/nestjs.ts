/**
 * A guard and a decorator for NestJS, and a storage for @nestjs/throttler.
 *
 * @module nestjs
 */

import { HttpException, UseGuards, type CanActivate, type ExecutionContext } from "@nestjs/common";

import { PROBLEM_TYPE, type Problem } from "./headers.js";
import type { LimitsOf, RequestLimiter, StyleOptions } from "./middleware.js";
import { nodeAsker } from "./node.js";

export type { LimitsOf, RequestLimiter, RequestLimits, StyleOptions } from "./middleware.js";
export type { ClientOrLimits } from "../adapters/counting.js";
export { RatelimitThrottlerStorage } from "../adapters/throttler-storage.js";
export type { ThrottlerRecord, ThrottlerStorageOptions } from "../adapters/throttler-storage.js";

/** Thrown for a denied request: 429, or 503 if no limiter could decide or it threw Busy. */
export class RateLimitException extends HttpException {
  constructor(
    /** The body of the response. */
    readonly problem: Problem,
  ) {
    super({ ...problem }, problem.status);
  }
}

/** A response of Express, or of Fastify. */
interface HttpResponse {
  header?(name: string, value: string): unknown;
}

/**
 * A guard that asks the limits of each HTTP request, and reports them in headers. What a clause reserves is held until the
 * response was sent. It throws a RateLimitException, whose body has the problem details as JSON. In contexts without an HTTP
 * response no headers are set, and nothing can be reserved.
 *
 *     const limits = (request: Request) => clause.throttle(`web:${clientAddress(request)}`, RATE);
 *     app.useGlobalGuards(new RateLimitGuard(limiter, limits));
 */
export class RateLimitGuard<Request = never> implements CanActivate {
  readonly #ask: ReturnType<typeof nodeAsker<Request, [ExecutionContext]>>;

  constructor(
    limiter: RequestLimiter,
    limits: LimitsOf<[Request, ExecutionContext]>,
    options: StyleOptions<Request> = {},
  ) {
    this.#ask = nodeAsker("RateLimitGuard", limiter, limits, options);
  }

  /** Called by Nest. */
  async canActivate(context: ExecutionContext): Promise<boolean> {
    const http = context.switchToHttp();
    const response = context.getType() === "http" ? http.getResponse<HttpResponse>() : {};
    const denial = await this.#ask(response, http.getRequest<Request>(), context);
    if (denial === undefined) return true;
    response.header?.("Content-Type", PROBLEM_TYPE);
    throw new RateLimitException(denial.problem);
  }
}

/**
 * Returns a decorator that limits a controller or one of its methods.
 *
 *     const limits = (request: Request) => clause.window(`search:${clientAddress(request)}`, SEARCH, { name: "search" });
 *     @RateLimit(limiter, limits)
 */
export function RateLimit<Request = never>(
  limiter: RequestLimiter,
  limits: LimitsOf<[Request, ExecutionContext]>,
  options: StyleOptions<Request> = {},
): MethodDecorator & ClassDecorator {
  return UseGuards(new RateLimitGuard(limiter, limits, options));
}
