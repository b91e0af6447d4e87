/**
 * Middleware for Express, and for other frameworks with requests, responses and `next`.
 *
 * @module express
 */

import type { Reply } from "../replies.js";
import { PROBLEM_TYPE } from "./headers.js";
import type { LimitsOf, RequestLimiter, StyleOptions } from "./middleware.js";
import { nodeAsker } from "./node.js";

export type { LimitsOf, RequestLimiter, RequestLimits, StyleOptions } from "./middleware.js";

/** The members of a response that the middleware uses. */
export interface ResponseLike {
  /** The status, which is set to 429 or 503 if the request is denied. */
  statusCode: number;
  /** Sets a header. */
  setHeader(name: string, value: string): unknown;
  /** Ends the response to a denied request. */
  end(body: string): unknown;
}

/** Options of rateLimit. */
export interface MiddlewareOptions<Request, Res> extends StyleOptions<Request> {
  /**
   * Sends the response to a denied request, instead of a 429 or a 503. A promise is awaited, and an error is passed to
   * `next`. If the limiter threw Busy, the reply is that of a denial without Redis: `reachable` is false.
   */
  denied?: ((request: Request, response: Res, reply: Reply) => unknown) | undefined;
}

/**
 * Asks the limits of each request, which `limits` returns, and reports them in headers. What a clause reserves is held until
 * the response was sent. A denied request is answered 429, or 503 if no limiter could decide or it threw Busy, with problem
 * details as JSON. Other errors are passed to `next`. Several limits on one request, such as one of the application and one of
 * a route, share one set of headers.
 *
 *     app.use(rateLimit(limiter, (request) => clause.throttle(`web:${clientAddress(request)}`, RATE, { name: "web" })));
 */
export function rateLimit<Request, Res extends ResponseLike>(
  limiter: RequestLimiter,
  limits: LimitsOf<[Request]>,
  options: MiddlewareOptions<Request, Res> = {},
): (request: Request, response: Res, next: (error?: unknown) => void) => Promise<void> {
  const ask = nodeAsker("rateLimit", limiter, limits, options);
  return async (request, response, next) => {
    try {
      const denial = await ask(response, request);
      if (denial !== undefined) {
        if (options.denied !== undefined) return void (await options.denied(request, response, denial.reply));
        response.statusCode = denial.problem.status;
        response.setHeader("Content-Type", PROBLEM_TYPE);
        return void response.end(JSON.stringify(denial.problem));
      }
    } catch (error) {
      return next(error);
    }
    // Outside of the block above, which would call `next` again with an error that it throws.
    next();
  };
}
