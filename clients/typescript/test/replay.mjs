/**
 * Repeats recorded calls on the engine in WebAssembly, and compares the replies. Each line of the file has a time in Unix
 * microseconds, the words of a call and the server's reply. It needs only Node:
 *
 *     node replay.mjs FILE
 */

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

const file = new URL("../wasm/engine.wasm", import.meta.url);
const { exports } = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(file)), {});
exports.start(1n, 1);

function call(words, nowUs) {
  const parts = words.flatMap((word) => {
    const bytes = Buffer.from(word);
    const head = Buffer.alloc(4);
    head.writeUInt32LE(bytes.length);
    return [head, bytes];
  });
  const sent = Buffer.concat(parts);
  const at = exports.input(sent.length);
  sent.copy(Buffer.from(exports.memory.buffer), at);
  const told = exports.call(sent.length, nowUs);
  if (told >= 0) return [...new Float64Array(exports.memory.buffer, exports.numbers(), told)];
  if (told === -1) {
    return JSON.parse(Buffer.from(exports.memory.buffer, exports.output(), exports.output_len()).toString());
  }
  throw new Error(`${words.join(" ")} waits`);
}

const lines = readFileSync(process.argv[2], "utf8").trimEnd().split("\n");
let differences = 0;
lines.forEach((line, number) => {
  const [nowUs, words, expected] = JSON.parse(line);
  const found = call(words, nowUs);
  if (isDeepStrictEqual(found, expected)) return;
  differences += 1;
  if (differences > 10) return;
  console.log(`call ${number + 1} at ${nowUs}: ${words.join(" ")}`);
  console.log(`  server  ${JSON.stringify(expected)}\n  process ${JSON.stringify(found)}`);
});
console.log(`JavaScript: ${lines.length} calls, ${differences} differences`);
process.exit(differences > 0 ? 1 : 0);
