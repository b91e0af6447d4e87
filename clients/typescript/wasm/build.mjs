/**
 * Writes the engine of MemoryLimiter and local limits among the compiled modules: node wasm/build.mjs dist | build
 *
 * It is a module with a text, because bundlers take any module along, and a file only if they are told. ES modules have one of
 * their own: Node takes 14 ms to import the one of CommonJS, and 2 ms for this one.
 *
 * In a checkout the engine is compiled first. That needs Rust and its target for WebAssembly, which this does not install.
 * Without them everything else works. The archive of a release has no sources of the engine, and comes with it compiled.
 */

import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";

const WASM = "wasm/engine.wasm";
const ADVICE = `The package is built without MemoryLimiter and local limits. They need Rust (https://rustup.rs) and its target for
WebAssembly (rustup target add wasm32-unknown-unknown).`;

function compile() {
  const run = (script, ...args) => spawnSync(`../../scripts/${script}`, args, { stdio: "inherit" }).status === 0;
  if (run("install-tools.sh", "--look", "cargo", "wasm32") && run("build-engine.sh", "typescript")) return;
  rmSync(WASM, { force: true });
  console.error(ADVICE);
  if (process.env.npm_command === "publish") process.exit(1);
}

const isPackage = process.argv[2] === "dist";
if (isPackage && existsSync("../../scripts/build-engine.sh")) compile();
const base64 = existsSync(WASM) ? readFileSync(WASM, "base64") : "";
writeFileSync(`${isPackage ? "dist/esm" : "build/src"}/engine-base64.js`, `export default "${base64}";\n`);
if (isPackage) {
  writeFileSync("dist/cjs/engine-base64.js", `exports.__esModule = true;\nexports.default = "${base64}";\n`);
  writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
}
