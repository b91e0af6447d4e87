/** Puts what the compiler does not make beside what it made: node wasm/assemble.mjs dist | build */

import { copyFileSync, existsSync, writeFileSync } from "node:fs";

const copies = {
  dist: [
    ["wasm/engine.wasm", "dist/engine.wasm"],
    ["wasm/esm.js", "dist/esm/engine-file.js"],
    ["wasm/cjs.js", "dist/cjs/engine-file.js"],
  ],
  build: [
    ["wasm/engine.wasm", "build/engine.wasm"],
    ["wasm/esm.js", "build/src/engine-file.js"],
  ],
};

const folder = process.argv[2];
for (const [from, to] of copies[folder]) copyFileSync(from, to);
if (existsSync("dist/cjs")) writeFileSync("dist/cjs/package.json", JSON.stringify({ type: "commonjs" }));
