/** What the middleware for frameworks on Node has in common. */

import { finished } from "node:stream";

import type { Problem } from "./headers.js";
import { asker, isRefusal, type Denial } from "./middleware.js";

/** Returns the body of a refusal. */
export const bodyOf = (refused: Problem): string => JSON.stringify(refused);

/** Waits until a response was sent. Rejects if what was reserved should be taken back. */
function sent(response: NodeJS.WritableStream & { statusCode: number }): Promise<void> {
  return new Promise((resolve, reject) => {
    // A client that hangs up early does not get back what it took.
    finished(response, () => (isRefusal(response.statusCode) ? reject(new Error("refused")) : resolve()));
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
