// Calls a language model within what its provider allows all callers together: 60 requests and 10000 tokens a minute, 4
// calls at a time. What a call costs is known only afterwards, so it reserves the most it can cost and then settles for what
// it did cost. A call that fails costs nothing, and if a process dies its tokens and its slot are free again when its lease
// ends. Without Redis or without the module no call is made: a budget that is not enforced is spent soon.
//
//     npm install redis
//     LLM_URL=http://localhost:11434/v1 LLM_MODEL=llama3.2 node examples/llm_caller.mjs "Why is the sky blue?"
//
// LLM_URL is any API in the style of OpenAI's (LLM_KEY if it wants one). REDIS_URL (redis://127.0.0.1:6379) may be set.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { createClient } from "redis";

// What is in braces places all of them on one node of a cluster.
const [REQUESTS, TOKENS, CALLS] = ["{llm}:requests", "{llm}:tokens", "{llm}:calls"];
const ANSWER_TOKENS = 1000;
const LEASE_MS = 120_000; // longer than a call to the model may take
const PATIENCE_MS = 60_000;

const redis = createClient({ url: process.env.REDIS_URL });
redis.on("error", (error) => console.error(`redis: ${error.message}`));
const send = (line) => redis.sendCommand(line.split(" "));

/** Takes from all three limits, or from none. */
async function reserve(id, most) {
  const settled = `LEASE ${LEASE_MS} ID ${id}`;
  const clauses = `WINDOW 60 1min ACQUIRE 10000 1min ${most} ${settled} ACQUIRE 4 0 1 ${settled}`;
  const end = Date.now() + PATIENCE_MS;
  while (true) {
    const [limited, , , retryAfter] = await send(`RL.ALL 3 ${REQUESTS} ${TOKENS} ${CALLS} ${clauses} MS`);
    if (!limited) return;
    if (retryAfter < 0) throw new Error("the prompt is too long for the budget");
    if (Date.now() > end) throw new Error(`the budget is used up, try again in ${Math.ceil(retryAfter / 1000)} s`);
    // Others may give back before they have to, so it does not sleep for long.
    await sleep(Math.min(retryAfter, 500));
  }
}

async function ask(prompt) {
  const id = randomUUID();
  const most = Math.ceil(prompt.length / 2) + ANSWER_TOKENS;
  await reserve(id, most);
  let used = 0; // what a call that fails costs; 0 gives everything back
  try {
    const { text, tokens } = await complete(prompt);
    used = tokens;
    return `${text}\n(${used} tokens of ${most} reserved)`;
  } finally {
    const settling = [send(`RL.APPLY ${TOKENS} ${id} ${used}`), send(`RL.RELEASE ${CALLS} ${id}`)];
    if (!used) settling.push(send(`RL.WINDOW ${REQUESTS} 60 1min -1`));
    const [applied] = await Promise.all(settling);
    if (!applied && used) console.error(`the lease of ${id} had ended: ${used} tokens are not counted`);
  }
}

async function complete(prompt) {
  const response = await fetch(`${process.env.LLM_URL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${process.env.LLM_KEY ?? ""}` },
    body: JSON.stringify({
      model: process.env.LLM_MODEL,
      max_tokens: ANSWER_TOKENS,
      messages: [{ role: "user", content: prompt }],
    }),
    signal: AbortSignal.timeout(LEASE_MS - 10_000),
  });
  if (!response.ok) throw new Error(`the model answered ${response.status}`);
  const { choices, usage } = await response.json();
  return { text: choices[0].message.content, tokens: usage.total_tokens };
}

await redis.connect();
try {
  for (const prompt of process.argv.slice(2)) console.log(await ask(prompt));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  redis.destroy();
}
