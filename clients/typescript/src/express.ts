/** Middleware for Express, and for whatever else has requests, responses and next. */

import { headers, type HeaderOptions } from "./headers.js";
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

/**
 * Asks `check` before each request, and tells the client how it stands. `check` answers a reply of the limiter, or null
 * for a request without a limit.
 *
 *     app.use(rateLimit((request) => limiter.throttle(`web:${request.ip}`, RATE), { limits: RATE }));
 */
export function rateLimit<Request, Res extends Response>(
  check: (request: Request) => Promise<Reply | null> | Reply | null,
  options: MiddlewareOptions<Request, Res> = {},
): (request: Request, response: Res, next: (error?: unknown) => void) => Promise<void> {
  return async (request, response, next) => {
    let reply: Reply | null;
    try {
      reply = await check(request);
      for (const [name, value] of Object.entries(reply === null ? {} : headers(reply, options))) {
        response.setHeader(name, value);
      }
    } catch (error) {
      next(error);
      return;
    }
    if (reply === null || reply.allowed) {
      next();
    } else if (options.denied !== undefined) {
      options.denied(request, response, reply);
    } else {
      response.statusCode = reply.reachable ? 429 : 503;
      response.setHeader("Content-Type", "text/plain; charset=utf-8");
      response.end(reply.reachable ? "Too many requests\n" : "Try again later\n");
    }
  };
}
