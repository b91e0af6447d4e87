/**
 * A plugin for Fastify, and a hook for single routes.
 *
 * @module fastify
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";

import type { Reply } from "../replies.js";
import { PROBLEM_TYPE } from "./headers.js";
import type { LimitsOf, RequestLimiter, StyleOptions } from "./middleware.js";
import { nodeAsker } from "./node.js";

export type { LimitsOf, RequestLimiter, RequestLimits, StyleOptions } from "./middleware.js";

/** Options of rateLimitHook. */
export interface FastifyHookOptions extends StyleOptions<FastifyRequest> {
  /**
   * Sends the response to a denied request, instead of a 429 or a 503. If the limiter threw Busy, the reply is that of a
   * denial without Redis: `reachable` is false.
   */
  denied?: ((request: FastifyRequest, response: FastifyReply, reply: Reply) => unknown) | undefined;
}

/** Options of the plugin. */
export interface FastifyRateLimitOptions extends FastifyHookOptions {
  /** The limiter that is asked. */
  limiter: RequestLimiter;
  /** Returns the limits of a request. */
  limits: LimitsOf<[FastifyRequest]>;
}

/**
 * Returns an `onRequest` or `preHandler` hook for single routes. With the plugin it shares one set of headers for each
 * request.
 *
 *     const limits = (request) => clause.window(`search:${clientAddress(request)}`, SEARCH);
 *     app.get("/search", { onRequest: rateLimitHook(limiter, limits) }, search);
 */
export function rateLimitHook(
  limiter: RequestLimiter,
  limits: LimitsOf<[FastifyRequest]>,
  options: FastifyHookOptions = {},
): (request: FastifyRequest, response: FastifyReply) => Promise<unknown> {
  const ask = nodeAsker("rateLimitHook", limiter, limits, options);
  return async (request, response) => {
    const denial = await ask(response, request);
    if (denial === undefined) return undefined;
    if (options.denied !== undefined) await options.denied(request, response, denial.reply);
    else response.code(denial.problem.status).type(PROBLEM_TYPE).send(JSON.stringify(denial.problem));
    return response;
  };
}

/**
 * The plugin: asks the limits of each request of the instance that it is registered on, and reports them in headers. What a
 * clause reserves is held until the response was sent. A denied request is answered 429, or 503 if no limiter could decide or
 * it threw Busy, with problem details.
 *
 *     const limits = (request) => clause.throttle(`web:${clientAddress(request)}`, RATE);
 *     await app.register(rateLimit, { limiter, limits });
 */
export function rateLimit(
  instance: FastifyInstance,
  { limiter, limits, ...options }: FastifyRateLimitOptions,
  done: (error?: Error) => void,
): void {
  // Fastify adds these to the options of every plugin.
  const { prefix: _, logLevel: __, logSerializers: ___, ...hookOptions } = options as Record<string, unknown>;
  try {
    instance.addHook("onRequest", rateLimitHook(limiter, limits, hookOptions));
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
