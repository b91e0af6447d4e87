/** The file engine-file.js of the CommonJS modules. */

const { existsSync, readFileSync } = require("node:fs");
const { join } = require("node:path");

exports.FILE = join(__dirname, "..", "engine.wasm");

exports.engineBytes = () => {
  if (existsSync(exports.FILE)) return readFileSync(exports.FILE);
  throw new Error(`${exports.FILE} is missing: this package was built without its engine, which needs Rust`);
};
