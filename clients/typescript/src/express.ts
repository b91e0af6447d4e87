/** Middleware for Express, and for whatever else has requests, responses and next. */

import { checkOptions } from "./check.js";
import { Busy } from "./errors.js";
import { HEADER_OPTIONS, headers, type HeaderOptions } from "./headers.js";
import type { Reply } from "./replies.js";

interface Response {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(body: string): unknown;
}

export interface MiddlewareOptions<Request, Res> extends HeaderOptions {
  /** Answers a denied request instead of a plain 429, or 503 where Redis could not be reached. */
  denied?: ((request: Request, response: Res, reply: Reply) => void) | undefined;
}

function refuse(response: Response, status: number, text: string): void {
  response.statusCode = status;
  response.setHeader("Content-Type", "text/plain; charset=utf-8");
  response.end(text);
}

/**
 * Asks `check` before each request, and tells the client how it stands. `check` answers a reply of the limiter, or null
 * for a request without a limit. Busy is answered 503; other errors are passed on.
 *
 *     app.use(rateLimit((request) => limiter.throttle(`web:${request.ip}`, RATE), { limits: RATE }));
 */
export function rateLimit<Request, Res extends Response>(
  check: (request: Request) => Promise<Reply | null> | Reply | null,
  options: MiddlewareOptions<Request, Res> = {},
): (request: Request, response: Res, next: (error?: unknown) => void) => Promise<void> {
  if (typeof check !== "function") throw new TypeError("rateLimit takes a function that asks the limiter");
  checkOptions("rateLimit", options, [...HEADER_OPTIONS, "denied"]);
  const { denied, ...shown } = options;
  return async (request, response, next) => {
    let reply: Reply | null;
    try {
      reply = await check(request);
      for (const [name, value] of Object.entries(reply === null ? {} : headers(reply, shown))) {
        response.setHeader(name, value);
      }
    } catch (error) {
      if (error instanceof Busy) refuse(response, error.status, "Try again later\n");
      else next(error);
      return;
    }
    if (reply === null || reply.allowed) next();
    else if (denied !== undefined) denied(request, response, reply);
    else if (reply.reachable) refuse(response, 429, "Too many requests\n");
    else refuse(response, 503, "Try again later\n");
  };
}
