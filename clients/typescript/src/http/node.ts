/** What the middleware for frameworks on Node has in common. */

import type { ServerResponse } from "node:http";
import { finished } from "node:stream";

import { asker, isRefusal, type Denial } from "./middleware.js";

/** The longest time for which what a request reserved is held after its client has hung up, in milliseconds. */
const ABANDONED_MS = 60_000;

/** Waits until a response was sent. Rejects if what was reserved should be taken back. */
function sent(response: ServerResponse): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = () => (isRefusal(response.statusCode) ? reject(new Error("refused")) : resolve());
    finished(response, () => {
      if (response.writableEnded) return settle();
      // The client has hung up. Its handler may go on, and then ends the response although nobody reads it.
      const timer = setTimeout(settle, ABANDONED_MS).unref();
      const end = response.end.bind(response) as (...args: unknown[]) => ServerResponse;
      response.end = (...args: unknown[]) => {
        clearTimeout(timer);
        settle();
        return end(...args);
      };
    });
  });
}

/** Does what `asker` does, with the headers set on a response of Node or Fastify. */
export function nodeAsker<Request, Args extends unknown[]>(
  ...given: Parameters<typeof asker<Request, Args>>
): (response: object, request: Request, ...args: Args) => Promise<Denial | undefined> {
  const ask = asker(...given);
  return (response, ...args) => {
    const { raw = response } = response as { raw?: object };
    return ask(response, () => sent(raw as Parameters<typeof sent>[0]), ...args);
  };
}
