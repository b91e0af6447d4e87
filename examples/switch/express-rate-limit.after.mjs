// npm ci --prefix clients/typescript && npm pack ./clients/typescript
// npm install express express-rate-limit redis ./redis-ratelimit-client-*.tgz &&
//     node examples/switch/express-rate-limit.after.mjs

import express from "express";
import { rateLimit } from "express-rate-limit";
import { RatelimitStore } from "redis-ratelimit-client/express-rate-limit";
import { createClient } from "redis";

const client = createClient({ url: process.env.REDIS_URL });
await client.connect();

const limit = rateLimit({
  windowMs: 60_000,
  limit: 3,
  standardHeaders: "draft-8",
  store: new RatelimitStore(client),
});

const app = express();
app.get("/", limit, (_request, response) => response.send("hello\n"));
app.listen(process.env.PORT ?? 3000, "127.0.0.1");
