/**
 * Builds engine.wasm in a checkout. Where that fails, as without Rust, the package is built without it: everything but
 * MemoryLimiter and local limits works. The archive of a release has no sources of the engine, and comes with it.
 */

import { spawnSync } from "node:child_process";
import { existsSync, rmSync } from "node:fs";

const script = "../../scripts/build-engine.sh";
if (existsSync(script) && spawnSync(script, ["typescript"], { stdio: "inherit" }).status !== 0) {
  rmSync("wasm/engine.wasm", { force: true });
  console.error("The package is built without the engine of MemoryLimiter and local limits, which needs Rust: https://rustup.rs");
  if (process.env.npm_command === "publish") process.exit(1);
}
