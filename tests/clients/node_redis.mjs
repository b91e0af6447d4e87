// Runs every case and every way to wait with node-redis: node_redis.mjs PORT_WITH_HELD_CLOCK PORT
import { createClient } from "redis";
import { everyCase, waiting } from "./cases.mjs";

async function connect(port, RESP) {
  const client = createClient({ url: `redis://127.0.0.1:${port}`, RESP });
  client.on("error", () => {});
  await client.connect();
  return {
    call: (words) => client.sendCommand(words).catch((error) => error),
    transaction: async (calls) => {
      const multi = client.multi();
      for (const words of calls) multi.addCommand(words);
      return await multi.exec().catch((error) => error.replies);
    },
    close: () => client.destroy(),
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
console.log(`${cases} cases with node-redis`);
