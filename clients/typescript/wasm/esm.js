/** The file engine-file.js of the ES modules. */

export const FILE = new URL("../engine.wasm", import.meta.url);

function read({ existsSync, readFileSync }) {
  if (existsSync(FILE)) return readFileSync(FILE);
  throw new Error(`${FILE} is missing: this package was built without its engine, which needs Rust`);
}

export function engineBytes() {
  if (FILE.protocol !== "file:") {
    return fetch(FILE).then((response) => {
      if (!response.ok) throw new Error(`${FILE} could not be fetched: ${response.status}`);
      return response.arrayBuffer();
    });
  }
  // Not imported at the top, as browsers have no such module.
  const files = globalThis.process?.getBuiltinModule?.("node:fs");
  return files === undefined ? import("node:fs").then(read) : read(files);
}
