/** Becomes engine-file.js of the CommonJS modules. */

const { readFileSync } = require("node:fs");
const { join } = require("node:path");

exports.engineBytes = () => readFileSync(join(__dirname, "..", "engine.wasm"));
