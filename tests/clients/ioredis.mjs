// Runs every case and every way to wait with ioredis: ioredis.mjs PORT_WITH_HELD_CLOCK PORT
import { Redis } from "ioredis";
import { everyCase, waiting } from "./cases.mjs";

async function connect(port, protocol) {
  const client = new Redis(port, "127.0.0.1", { protocol });
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
let cases;
for (const protocol of [2, 3]) {
  const client = await connect(held, protocol);
  cases = await everyCase(client, protocol);
  client.close();
  await waiting(() => connect(port, protocol));
}
console.log(`${cases} cases with ioredis`);
