// Runs every case and every way to wait with node-redis and ioredis: node.mjs PORT_WITH_HELD_CLOCK PORT
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { createClient } from "redis";

const CASES = JSON.parse(readFileSync(new URL("cases.json", import.meta.url), "utf8"));
const SCRIPT = "return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))";

const asEval = ([name, key, ...rest]) => ["EVAL", SCRIPT, "1", key, name, ...rest];

function check(mode, replies) {
  assert.equal(replies.length, CASES.length, mode);
  CASES.forEach(([call, expected], at) => {
    const reply = replies[at];
    const message = `${mode}: ${call} answered ${reply instanceof Error ? reply : JSON.stringify(reply)}`;
    if (expected?.error) assert.ok(reply instanceof Error && reply.message.includes(expected.error), message);
    else assert.deepEqual(reply, expected, message);
  });
}

/** Connects each client, whose calls return errors as values. */
const CLIENTS = {
  "node-redis": async (port, RESP) => {
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
  },
  ioredis: async (port, protocol) => {
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
  },
};

async function everyCase(client, protocol) {
  const calls = CASES.map(([call]) => call.split(" "));
  const modes = {
    plain: async () => {
      const replies = [];
      for (const words of calls) replies.push(await client.call(words));
      return replies;
    },
    // What is sent in one turn of the event loop goes out in one piece.
    pipelined: () => Promise.all(calls.map((words) => client.call(words))),
    "in a transaction": () => client.transaction(calls),
    "from a script": () => Promise.all(calls.map((words) => client.call(asEval(words)))),
  };
  for (const [mode, run] of Object.entries(modes)) {
    await client.call(["FLUSHALL"]);
    check(`RESP${protocol} ${mode}`, await run());
  }
}

/** A call that waits holds up all later calls on its connection, so each waits on one of its own. */
async function waiting(connect) {
  const r = await connect();
  const own = await connect();
  const call = (line) => r.call(line.split(" "));
  const wait = (line) => own.call(line.split(" "));
  const untilWaiting = async (count) => {
    while (!(await call("INFO ratelimit")).includes(`ratelimit_waiting:${count}\r`)) await sleep(10);
  };
  await call("FLUSHALL");

  // Granted when its turn comes.
  let begin = performance.now();
  await call("RL.THROTTLE mail 0 10 1");
  let reply = await wait("RL.THROTTLE mail 0 10 1 BLOCK 60000");
  let took = performance.now() - begin;
  assert.ok(reply[0] === 0 && took > 99, `${reply} after ${took}`);

  // Denied when its time is up.
  assert.equal((await call("RL.ACQUIRE job 1 0 ID first"))[5], "first");
  begin = performance.now();
  reply = await wait("RL.ACQUIRE job 1 0 BLOCK 200");
  took = performance.now() - begin;
  assert.ok(reply[0] === 2 && reply[5] === null && took > 199, `${reply} after ${took}`);

  // Granted as soon as somebody gives back.
  const second = wait("RL.ACQUIRE job 1 0 ID second LEASE 60000 BLOCK 60000");
  await untilWaiting(1);
  assert.equal(await call("RL.RELEASE job first"), 1);
  assert.equal((await second)[5], "second");

  // A client that hangs up takes nothing when its turn would have come.
  const third = wait("RL.ACQUIRE job 1 0 BLOCK 60000");
  await untilWaiting(1);
  own.close();
  reply = await third;
  assert.ok(reply instanceof Error, `${reply}`);
  await untilWaiting(0);
  assert.equal(await call("RL.RELEASE job second"), 1);
  assert.deepEqual(await call("RL.HELD job"), []);
  r.close();
}

const [held, port] = process.argv.slice(2);
for (const [name, connect] of Object.entries(CLIENTS)) {
  for (const protocol of [2, 3]) {
    const client = await connect(held, protocol);
    await everyCase(client, protocol);
    client.close();
    await waiting(() => connect(port, protocol));
  }
  console.log(`${CASES.length} cases with ${name}`);
}
