/** Adds the files that the compiler does not make to its output: node wasm/assemble.mjs dist | build */

import { copyFileSync, existsSync, rmSync, writeFileSync } from "node:fs";

const copies = {
  dist: [
    ["wasm/esm.js", "dist/esm/engine-file.js"],
    ["wasm/cjs.js", "dist/cjs/engine-file.js"],
  ],
  build: [["wasm/esm.js", "build/src/engine-file.js"]],
};

const folder = process.argv[2];
for (const [from, to] of copies[folder]) copyFileSync(from, to);
rmSync(`${folder}/engine.wasm`, { force: true });
if (existsSync("wasm/engine.wasm")) copyFileSync("wasm/engine.wasm", `${folder}/engine.wasm`);
if (existsSync("dist/cjs")) writeFileSync("dist/cjs/package.json", JSON.stringify({ type: "commonjs" }));
