// npm ci --prefix clients/typescript && npm pack ./clients/typescript
// npm install ioredis rate-limiter-flexible ./redis-ratelimit-client-*.tgz &&
//     node examples/switch/rate-limiter-flexible.after.mjs

import { createServer } from "node:http";

import { Redis } from "ioredis";
import { clientAddress } from "redis-ratelimit-client";
import { RateLimiterRatelimit } from "redis-ratelimit-client/rate-limiter-flexible";

const client = new Redis(process.env.REDIS_URL ?? "redis://127.0.0.1:6379");
const limiter = new RateLimiterRatelimit({ storeClient: client, points: 3, duration: 60, blockDuration: 120 });

const server = createServer(async (request, response) => {
  try {
    await limiter.consume(clientAddress(request));
    response.end("hello\n");
  } catch (denied) {
    if (denied instanceof Error) throw denied;
    response.writeHead(429, { "Retry-After": Math.ceil(denied.msBeforeNext / 1000) }).end("slow down\n");
  }
});
server.listen(process.env.PORT ?? 3000, "127.0.0.1");
