// Asks a model through the AI SDK, within limits that all programs share. A middleware reserves what a request may cost at
// most, and settles with the usage that the provider reports. While others hold all there is, the SDK waits and tries again.
//
//     npm ci --prefix clients/typescript && npm pack ./clients/typescript
//     npm install ai @ai-sdk/openai-compatible redis ./redis-ratelimit-client-*.tgz
//     LLM_URL=http://localhost:11434/v1 MODEL=llama3.2 node examples/ai_sdk.mts "How long is it until noon?"
// It needs Node 24. LLM_KEY, REDIS_URL and STREAM=no may be set.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, stepCountIs, streamText, tool, wrapLanguageModel } from "ai";
import type { LanguageModelMiddleware } from "ai";
import { createClient } from "redis";
import { clause, Denied, Limiter, semaphore, Window } from "redis-ratelimit-client";

const { LLM_URL = "", LLM_KEY, MODEL = "", REDIS_URL, STREAM } = process.env;
// Asks no model while Redis does not answer.
const limiter = new Limiter(createClient({ url: REDIS_URL }), { unreachable: "raise", deadline: 5000 });
const estimate = (it: unknown) => Math.ceil(JSON.stringify(it).length / 2); // hardly any text has more tokens
const total = (usage: any): number => usage.inputTokens.total + usage.outputTokens.total; // NaN if it is not reported

function reserve(most: number) {
  const tokens = clause.acquire("{ai-sdk}:tokens", Window.per("10000/min"), { name: "tokens", quantity: most });
  const requests = clause.acquire("{ai-sdk}:requests", Window.per("60/min"));
  return limiter.acquire([requests, tokens, clause.acquire("{ai-sdk}:calls", semaphore(4))]).catch((error: unknown) => {
    if (!(error instanceof Denied)) throw error;
    const wait = error.reply.retryAfterMs; // null if the request can never be allowed
    const why =
      wait === null
        ? { message: "the prompt is too long for the limit", isRetryable: false }
        : { message: "the limits are used up", isRetryable: true, responseHeaders: { "retry-after-ms": `${wait}` } };
    throw new APICallError({ url: LLM_URL, requestBodyValues: {}, ...why });
  });
}

const limited: LanguageModelMiddleware = {
  async wrapGenerate({ doGenerate, params: { prompt, tools, maxOutputTokens = 1000 } }) {
    await using reservation = await reserve(estimate([prompt, tools]) + maxOutputTokens);
    const result = await doGenerate(); // an error gives everything back
    reservation.set(total(result.usage) ? { tokens: total(result.usage) } : {});
    return result;
  },
  async wrapStream({ doStream, params: { prompt, tools, maxOutputTokens = 1000 } }) {
    let used = estimate([prompt, tools]);
    const reservation = await reserve(used + maxOutputTokens);
    const result = await doStream().then(undefined, (error) => reservation.release().then(() => Promise.reject(error)));
    const transform: Transformer["transform"] = (part, stream) => {
      if (part.type === "text-delta") used += estimate(part.delta);
      if (part.type === "finish") used = total(part.usage) || used;
      reservation.set({ tokens: used });
      stream.enqueue(part);
    };
    const end = () => reservation[Symbol.asyncDispose](); // applies what was set last
    const settling = new TransformStream({ transform, ...{ flush: end, cancel: end } });
    return { ...result, stream: result.stream.pipeThrough(settling) };
  },
};
const fail = ({ error }: { error: unknown }) => void Promise.reject(error); // streamText would only print it
const llm = createOpenAICompatible({ name: "llm", baseURL: LLM_URL, apiKey: LLM_KEY, includeUsage: true })(MODEL);
const clock = tool({ inputSchema: jsonSchema({ type: "object" }), execute: () => new Date().toString() });
const model = wrapLanguageModel({ model: llm, middleware: limited });
const call = { model, prompt: process.argv[2] ?? "", maxOutputTokens: 1000, tools: { clock }, stopWhen: stepCountIs(5) };
if (STREAM === "no") console.log((await generateText(call)).text);
else for await (const text of streamText({ ...call, onError: fail }).textStream) process.stdout.write(text);
limiter.close();
