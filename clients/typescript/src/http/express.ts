/**
 * Middleware for Express, and for other frameworks with requests, responses and `next`.
 *
 * @module express
 */

import { checkMiddleware, bodyOf, PROBLEM_TYPE, askLimit, type CheckResult } from "./middleware.js";
import type { HeaderOptions } from "./headers.js";
import type { Reply } from "../replies.js";

export type { CheckResult } from "./middleware.js";

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
export interface MiddlewareOptions<Request, Res> extends HeaderOptions {
  /**
   * Sends the response to a denied request, instead of a 429 or a 503. A promise is awaited, and an error is passed to
   * `next`. If the limiter threw Busy, the reply is that of a denial without Redis: `reachable` is false.
   */
  denied?: ((request: Request, response: Res, reply: Reply) => unknown) | undefined;
}

/**
 * Calls `check` before each request, and reports the limits in headers. `check` returns a reply of the limiter, or null or
 * undefined for a request without a limit. A denied request is answered 429, or 503 if Redis could not be reached or the
 * limiter threw Busy, with problem details as JSON. Other errors are passed to `next`. Several limits on one request, such
 * as one of the application and one of a route, share one set of headers.
 *
 *     app.use(rateLimit((request) => limiter.throttle(`web:${clientAddress(request)}`, RATE), { limits: RATE }));
 */
export function rateLimit<Request, Res extends ResponseLike>(
  check: (request: Request) => Promise<CheckResult> | CheckResult,
  options: MiddlewareOptions<Request, Res> = {},
): (request: Request, response: Res, next: (error?: unknown) => void) => Promise<void> {
  checkMiddleware("rateLimit", check, options, ["denied"]);
  const { denied, ...headerOptions } = options;
  return async (request, response, next) => {
    try {
      const { denial, headers } = await askLimit(response, () => check(request), headerOptions);
      for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
      if (denial !== undefined) {
        if (denied !== undefined) {
          await denied(request, response, denial.reply);
          return;
        }
        response.statusCode = denial.problem.status;
        response.setHeader("Content-Type", PROBLEM_TYPE);
        response.end(bodyOf(denial.problem));
        return;
      }
    } catch (error) {
      next(error);
      return;
    }
    // Outside of the block above, which would call `next` again with an error that it throws.
    next();
  };
}
