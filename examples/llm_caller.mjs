// Calls a language model within a budget of 10000 tokens a minute that all callers share. What a call costs is known
// only afterwards, so it reserves the most it can cost and then settles for what it did cost. A call that fails costs
// nothing, and one whose process dies gives its tokens back when its lease ends. Without Redis or without the module no
// call is made: a budget that nobody keeps is spent soon.
//
//     npm install redis
//     LLM_URL=http://localhost:11434/v1 LLM_MODEL=llama3.2 node examples/llm_caller.mjs "Why is the sky blue?"
//
// LLM_URL is any API in the style of OpenAI's (LLM_KEY if it wants one). REDIS_URL (redis://127.0.0.1:6379) may be set.

import { createClient } from "redis";

const KEY = "llm:tokens";
const BUDGET = ["10000", "1min"];
const ANSWER_TOKENS = 1000;
const LEASE_MS = 120_000; // longer than a call to the model may take
const PATIENCE_MS = 60_000;

const redis = createClient({ url: process.env.REDIS_URL });
redis.on("error", (error) => console.error(`redis: ${error.message}`));
// A call that waits holds up whatever comes after it on its connection, so waiting has one of its own. In a server with
// many callers take them from createClientPool.
const line = redis.duplicate();
line.on("error", (error) => console.error(`redis: ${error.message}`));

async function ask(prompt) {
  const most = String(Math.ceil(prompt.length / 2) + ANSWER_TOKENS);
  const options = ["LEASE", String(LEASE_MS), "BLOCK", String(PATIENCE_MS)];
  const [limited, , , retryAfter, , id] = await line.sendCommand(["RL.ACQUIRE", KEY, ...BUDGET, most, ...options]);
  if (limited) throw new Error(`the budget is used up, try again in ${retryAfter} s`);
  let used = 0; // what a call that fails costs; 0 gives everything back
  try {
    const { text, tokens } = await complete(prompt);
    used = tokens;
    return `${text}\n(${used} tokens of ${most} reserved)`;
  } finally {
    const applied = await redis.sendCommand(["RL.APPLY", KEY, id, String(used)]);
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

await Promise.all([redis.connect(), line.connect()]);
try {
  for (const prompt of process.argv.slice(2)) console.log(await ask(prompt));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  redis.destroy();
  line.destroy();
}
