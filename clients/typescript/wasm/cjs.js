/** Becomes engine-file.js of the CommonJS modules. */

const { readFileSync } = require("node:fs");
const { join } = require("node:path");

exports.FILE = join(__dirname, "..", "engine.wasm");

exports.engineBytes = () => readFileSync(exports.FILE);
