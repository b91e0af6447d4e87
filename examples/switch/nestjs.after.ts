// npm install @nestjs/common @nestjs/core @nestjs/platform-express @nestjs/throttler redis-ratelimit-client ioredis
// npx tsc examples/switch/nestjs.after.ts && node examples/switch/nestjs.after.js

import "reflect-metadata";

import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { RatelimitThrottlerStorage } from "redis-ratelimit-client/nestjs";
import { Redis } from "ioredis";

const client = new Redis(process.env["REDIS_URL"] ?? "redis://127.0.0.1:6379");

@Controller()
class Hello {
  @Get()
  hello(): string {
    return "hello\n";
  }
}

@Module({
  imports: [
    ThrottlerModule.forRoot({
      throttlers: [{ ttl: 60_000, limit: 3 }],
      storage: new RatelimitThrottlerStorage(client),
    }),
  ],
  controllers: [Hello],
  providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
})
class App {}

const app = await NestFactory.create(App, { logger: ["error"] });
await app.listen(process.env["PORT"] ?? 3000, "127.0.0.1");
