/**
 * Middleware for the Request and Response of the Fetch API, as in Hono, Next.js, Bun and Deno.
 *
 * @module fetch
 */

import type { Reply } from "../replies.js";
import { PROBLEM_TYPE, type Problem } from "./headers.js";
import {
  addReply,
  asker,
  headersOn,
  isRefusal,
  type LimitsOf,
  type RequestLimiter,
  type StyleOptions,
} from "./middleware.js";

export type { LimitsOf, RequestLimiter, RequestLimits, StyleOptions } from "./middleware.js";

/** Options of rateLimit. */
export interface FetchOptions<Req> extends StyleOptions<Req> {
  /**
   * Returns the response to a denied request, instead of a 429 or a 503. If the limiter threw Busy, the reply is that of a
   * denial without Redis: `reachable` is false.
   */
  denied?: ((request: Req, reply: Reply) => Response | Promise<Response>) | undefined;
}

/**
 * Returns a function that asks the limits of a request, which `limits` returns, and calls `handle` if they allow it. The limits
 * are reported in the headers of the response. What a clause reserves is held until the body was read. A denied request is
 * answered 429, or 503 if no limiter could decide or it threw Busy, with problem details as JSON, and so is one whose handler
 * throws Denied or Busy. Other errors are thrown.
 * Several limits on one request, one within the other, share one set of headers.
 *
 *     const limited = rateLimit(limiter, (request) => clause.throttle(`web:${clientAddress(request, { proxies: 1 })}`, RATE));
 *     export const GET = (request) => limited(request, () => new Response("hello"));
 */
export function rateLimit<Req extends Request>(
  limiter: RequestLimiter,
  limits: LimitsOf<[Req]>,
  options: FetchOptions<Req> = {},
): (request: Req, handle: (request: Req) => Response | Promise<Response>) => Promise<Response> {
  const ask = asker<Req, []>("rateLimit", limiter, limits, options);
  return async (request, handle) => {
    let end: ((isRefused: boolean) => void) | undefined;
    const untilEnd = () =>
      new Promise<void>((resolve, reject) => {
        end = (isRefused) => (isRefused ? reject(new Error("refused")) : resolve());
      });
    const denial = await ask(request, untilEnd, request);
    try {
      let response: Response;
      if (denial === undefined) response = await handle(request);
      else if (options.denied !== undefined) response = await options.denied(request, denial.reply);
      else response = refusal(denial.problem);
      return withHeaders(end === undefined ? response : whenRead(response, end), headersOn(request));
    } catch (error) {
      end?.(true);
      const problem = error instanceof Error ? addReply(request, error) : undefined;
      if (problem === undefined) throw error;
      return withHeaders(refusal(problem), headersOn(request));
    }
  };
}

const refusal = (body: Problem): Response =>
  new Response(JSON.stringify(body), { status: body.status, headers: { "Content-Type": PROBLEM_TYPE } });

/** Returns the response, and calls `end` when its body was read or given up. */
function whenRead(response: Response, end: (isRefused: boolean) => void): Response {
  const done = () => end(isRefusal(response.status));
  if (response.body === null) {
    done();
    return response;
  }
  const { readable, writable } = new TransformStream<Uint8Array, Uint8Array>();
  response.body.pipeTo(writable).then(done, done);
  return new Response(readable, response);
}

/** Sets headers on a response, or on a copy of one whose headers are immutable, as that of `fetch`. */
function withHeaders(response: Response, fields: Record<string, string>): Response {
  try {
    for (const [name, value] of Object.entries(fields)) response.headers.set(name, value);
    return response;
  } catch {
    return withHeaders(new Response(response.body, response), fields);
  }
}
