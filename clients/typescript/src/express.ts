/**
 * Middleware for Express, and for other frameworks with requests, responses and `next`.
 *
 * @module express
 */

import { checkMiddleware, bodyOf, PROBLEM_TYPE, askLimit, type CheckResult } from "./http.js";
import type { HeaderOptions } from "./headers.js";
import type { Reply } from "./replies.js";

export type { CheckResult } from "./http.js";

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
  /** Sends the response to a denied request, instead of a 429, or a 503 if Redis could not be reached. */
  denied?: ((request: Request, response: Res, reply: Reply) => void) | undefined;
}

/**
 * Calls `check` before each request, and reports the limits in headers. `check` returns a reply of the limiter, or null for
 * a request without a limit. A denied request is answered 429, or 503 if Redis could not be reached or the limiter threw
 * Busy, with problem details as JSON. Other errors are passed to `next`. Several limits on one request, such as one of the
 * application and one of a route, share one set of headers.
 *
 *     app.use(rateLimit((request) => limiter.throttle(`web:${request.ip}`, RATE), { limits: RATE }));
 */
export function rateLimit<Request, Res extends ResponseLike>(
  check: (request: Request) => Promise<CheckResult> | CheckResult,
  options: MiddlewareOptions<Request, Res> = {},
): (request: Request, response: Res, next: (error?: unknown) => void) => Promise<void> {
  checkMiddleware("rateLimit", check, options, ["denied"]);
  const { denied, ...headerOptions } = options;
  return async (request, response, next) => {
    let outcome;
    try {
      outcome = await askLimit(response, () => check(request), headerOptions);
      for (const [name, value] of Object.entries(outcome.headers)) response.setHeader(name, value);
    } catch (error) {
      next(error);
      return;
    }
    const { reply, problem } = outcome;
    if (problem === undefined) {
      next();
    } else if (denied !== undefined && reply !== null) {
      denied(request, response, reply);
    } else {
      response.statusCode = problem.status;
      response.setHeader("Content-Type", PROBLEM_TYPE);
      response.end(bodyOf(problem));
    }
  };
}
