// Runs every case and every way to wait with ioredis, which has RESP2 alone: ioredis.mjs PORT_WITH_HELD_CLOCK PORT
import { Redis } from "ioredis";
import { everyCase, waiting } from "./cases.mjs";

async function connect(port) {
  const client = new Redis(port, "127.0.0.1");
  client.on("error", () => {});
  return {
    call: ([name, ...rest]) => client.call(name, ...rest).catch((error) => error),
    transaction: async (calls) => {
      const multi = client.multi();
      for (const [name, ...rest] of calls) multi.call(name, ...rest);
      return (await multi.exec()).map(([error, reply]) => error ?? reply);
    },
    close: () => client.disconnect(),
  };
}

const [held, port] = process.argv.slice(2);
const client = await connect(held);
const cases = await everyCase(client, 2);
client.close();
await waiting(() => connect(port));
console.log(`${cases} cases with ioredis`);
