// npm ci --prefix clients/typescript && npm pack ./clients/typescript
// npm install @nestjs/common @nestjs/core @nestjs/platform-express @nestjs/throttler ioredis \
//     typescript @types/node ./redis-ratelimit-client-*.tgz
// npx tsc --module nodenext --target es2022 --skipLibCheck --experimentalDecorators --emitDecoratorMetadata \
//     examples/switch/nestjs.after.mts && node examples/switch/nestjs.after.mjs

import "reflect-metadata";

import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { clientAddress, type RequestWithAddress } from "redis-ratelimit-client";
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
      getTracker: (request) => clientAddress(request as RequestWithAddress),
    }),
  ],
  controllers: [Hello],
  providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
})
class App {}

const app = await NestFactory.create(App, { logger: ["error"] });
await app.listen(process.env["PORT"] ?? 3000, "127.0.0.1");
