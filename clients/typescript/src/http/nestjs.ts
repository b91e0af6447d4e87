/**
 * A guard and a decorator for NestJS, and a storage for @nestjs/throttler.
 *
 * @module nestjs
 */

import { HttpException, UseGuards, type CanActivate, type ExecutionContext } from "@nestjs/common";

import { checkMiddleware, PROBLEM_TYPE, askLimit, type CheckResult } from "./middleware.js";
import type { HeaderOptions, Problem } from "./headers.js";

export type { CheckResult } from "./middleware.js";
export type { ClientOrLimits } from "../adapters/counting.js";
export { RatelimitThrottlerStorage } from "../adapters/throttler-storage.js";
export type { ThrottlerRecord, ThrottlerStorageOptions } from "../adapters/throttler-storage.js";

/** Asks the limiter. Returns its reply, or null or undefined for a request without a limit. */
export type GuardCheck<Request> = (request: Request, context: ExecutionContext) => Promise<CheckResult> | CheckResult;

/** Thrown for a denied request: 429, or 503 if Redis could not be reached or the limiter threw Busy. */
export class RateLimitException extends HttpException {
  constructor(
    /** The body of the response. */
    readonly problem: Problem,
  ) {
    super({ ...problem }, problem.status);
  }
}

interface HttpResponse {
  /** In Fastify, the response of Node. */
  raw?: object;
  header?: (name: string, value: string) => unknown;
  setHeader?: (name: string, value: string) => unknown;
}

function setHeader(response: HttpResponse, name: string, value: string): void {
  if (typeof response.header === "function") response.header(name, value);
  else response.setHeader?.(name, value);
}

/**
 * A guard that asks `check` before each HTTP request, and reports the limits in headers. It throws a RateLimitException,
 * whose body has the problem details as JSON. In contexts without an HTTP response no headers are set.
 *
 *     const ask = (request: Request) => limiter.throttle(`web:${clientAddress(request)}`, RATE);
 *     app.useGlobalGuards(new RateLimitGuard(ask, { limits: RATE }));
 */
export class RateLimitGuard<Request = never> implements CanActivate {
  readonly #check: GuardCheck<Request>;
  readonly #options: HeaderOptions;

  constructor(check: GuardCheck<Request>, options: HeaderOptions = {}) {
    checkMiddleware("RateLimitGuard", check, options);
    this.#check = check;
    this.#options = options;
  }

  /** Called by Nest. */
  async canActivate(context: ExecutionContext): Promise<boolean> {
    const http = context.switchToHttp();
    const isHttp = context.getType() === "http";
    const response: HttpResponse = isHttp ? http.getResponse<HttpResponse>() : {};
    const ask = () => this.#check(http.getRequest<Request>(), context);
    const { denial, headers } = await askLimit(response.raw ?? response, ask, this.#options);
    for (const [name, value] of Object.entries(headers)) setHeader(response, name, value);
    if (denial === undefined) return true;
    setHeader(response, "Content-Type", PROBLEM_TYPE);
    throw new RateLimitException(denial.problem);
  }
}

/**
 * Returns a decorator that limits a controller or one of its methods.
 *
 *     const ask = (request: Request) => limiter.window(`search:${clientAddress(request)}`, SEARCH);
 *     @RateLimit(ask, { limits: SEARCH, names: "search" })
 */
export function RateLimit<Request = never>(
  check: GuardCheck<Request>,
  options: HeaderOptions = {},
): MethodDecorator & ClassDecorator {
  return UseGuards(new RateLimitGuard(check, options));
}
