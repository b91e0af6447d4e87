/** Runs the JavaScript of docs/testing.md, with a stand-in for vitest. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const PAGE = process.env["RATELIMIT_TESTING_PAGE"];
const VITEST = `
import assert from "node:assert/strict";
const expect = (found) => ({ toBe: (expected) => assert.equal(found, expected) });
let passed = 0;
const test = async (name, body) => { await body(); passed += 1; console.log("passed " + name); };
`;

test("the tests of an application pass", (context) => {
  if (PAGE === undefined) {
    context.skip("RATELIMIT_TESTING_PAGE is not docs/testing.md");
    return;
  }
  const blocks = [...readFileSync(PAGE, "utf8").matchAll(/^```js\n(.*?)^```$/gms)].map(([, text]) => text ?? "");
  assert.equal(blocks.length, 1, "each block has a test here");
  const folder = new URL("../readme/", import.meta.url);
  mkdirSync(folder, { recursive: true });
  const file = fileURLToPath(new URL("testing.mjs", folder));
  writeFileSync(file, (blocks[0] ?? "").replace(/^import .* from "vitest";$/m, VITEST));
  assert.match(execFileSync(process.execPath, [file], { encoding: "utf8" }), /^passed a user is greeted/);
});
