// npm install express express-rate-limit rate-limit-redis redis && node examples/switch/express-rate-limit.before.mjs

import express from "express";
import { rateLimit } from "express-rate-limit";
import { RedisStore } from "rate-limit-redis";
import { createClient } from "redis";

const client = createClient({ url: process.env.REDIS_URL });
await client.connect();

const limit = rateLimit({
  windowMs: 60_000,
  limit: 3,
  standardHeaders: "draft-8",
  store: new RedisStore({ sendCommand: (...words) => client.sendCommand(words) }),
});

const app = express();
app.get("/", limit, (_request, response) => response.send("hello\n"));
app.listen(process.env.PORT ?? 3000, "127.0.0.1");
