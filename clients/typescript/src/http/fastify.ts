/**
 * A plugin for Fastify, and a hook for single routes.
 *
 * @module fastify
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";

import { checkMiddleware, PROBLEM_TYPE, askLimit, bodyOf, type CheckResult } from "./middleware.js";
import type { HeaderOptions } from "./headers.js";
import type { Reply } from "../replies.js";

export type { CheckResult } from "./middleware.js";

/** Options of rateLimitHook. */
export interface FastifyHookOptions extends HeaderOptions {
  /**
   * Sends the response to a denied request, instead of a 429 or a 503. If the limiter threw Busy, the reply is that of a
   * denial without Redis: `reachable` is false.
   */
  denied?: ((request: FastifyRequest, response: FastifyReply, reply: Reply) => unknown) | undefined;
}

/** Options of the plugin. */
export interface FastifyRateLimitOptions extends FastifyHookOptions {
  /** Asks the limiter. Returns its reply, or null or undefined for a request without a limit. */
  check: (request: FastifyRequest) => Promise<CheckResult> | CheckResult;
}

/**
 * Returns an `onRequest` or `preHandler` hook for single routes. With the plugin it shares one set of headers for each
 * request.
 *
 *     const ask = (request) => limiter.window(`search:${clientAddress(request)}`, SEARCH);
 *     app.get("/search", { onRequest: rateLimitHook(ask) }, search);
 */
export function rateLimitHook(
  check: (request: FastifyRequest) => Promise<CheckResult> | CheckResult,
  options: FastifyHookOptions = {},
): (request: FastifyRequest, response: FastifyReply) => Promise<unknown> {
  checkMiddleware("rateLimitHook", check, options, ["denied"]);
  const { denied, ...headerOptions } = options;
  return async (request, response) => {
    const { denial, headers } = await askLimit(response.raw, () => check(request), headerOptions);
    response.headers(headers);
    if (denial === undefined) return undefined;
    if (denied !== undefined) await denied(request, response, denial.reply);
    else response.code(denial.problem.status).type(PROBLEM_TYPE).send(bodyOf(denial.problem));
    return response;
  };
}

/**
 * The plugin: calls `check` before each request of the instance that it is registered on, and reports the limits in headers.
 * A denied request is answered 429, or 503 if Redis could not be reached or the limiter threw Busy, with problem details.
 *
 *     const check = (request) => limiter.throttle(`web:${clientAddress(request)}`, RATE);
 *     await app.register(rateLimit, { check, limits: RATE });
 */
export function rateLimit(
  instance: FastifyInstance,
  { check, ...options }: FastifyRateLimitOptions,
  done: (error?: Error) => void,
): void {
  // Fastify adds these to the options of every plugin.
  const { prefix: _, logLevel: __, logSerializers: ___, ...hookOptions } = options as Record<string, unknown>;
  try {
    instance.addHook("onRequest", rateLimitHook(check, hookOptions));
    done();
  } catch (error) {
    done(error as Error);
  }
}

// The hook applies to the instance that registers the plugin, and not to a child of it, as with fastify-plugin.
Object.assign(rateLimit, {
  [Symbol.for("skip-override")]: true,
  [Symbol.for("fastify.display-name")]: "redis-ratelimit-client",
});

export default rateLimit;
