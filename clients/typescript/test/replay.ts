/**
 * Repeats recorded calls on the engine in WebAssembly, and compares the replies. Each line of the file has a time in Unix
 * microseconds, the words of a call and the server's reply: node build/test/replay.js FILE
 */

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

import { Engine, engineModule, ReplyError } from "../src/engine.js";

const engine = new Engine(engineModule(), 1);
const lines = readFileSync(process.argv[2]!, "utf8").trimEnd().split("\n");
let differences = 0;
for (const [number, line] of lines.entries()) {
  const [nowUs, words, expected] = JSON.parse(line) as [number, string[], unknown];
  const reply = engine.call(words, nowUs);
  const found: unknown = reply instanceof ReplyError ? { error: reply.message } : reply;
  if (isDeepStrictEqual(found, expected)) continue;
  differences += 1;
  if (differences > 10) continue;
  console.log(`call ${number + 1} at ${nowUs}: ${words.join(" ")}`);
  console.log(`  server  ${JSON.stringify(expected)}\n  process ${JSON.stringify(found)}`);
}
console.log(`JavaScript: ${lines.length} calls, ${differences} differences`);
process.exit(differences > 0 ? 1 : 0);
