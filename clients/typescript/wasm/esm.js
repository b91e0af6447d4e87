/** Becomes engine-file.js of the ES modules. */

export const FILE = new URL("../engine.wasm", import.meta.url);

export function engineBytes() {
  if (FILE.protocol !== "file:") {
    return fetch(FILE).then((answer) => {
      if (!answer.ok) throw new Error(`${FILE} could not be fetched: ${answer.status}`);
      return answer.arrayBuffer();
    });
  }
  // No import of it: a browser has none.
  const files = globalThis.process?.getBuiltinModule?.("node:fs");
  if (files !== undefined) return files.readFileSync(FILE);
  return import("node:fs/promises").then(({ readFile }) => readFile(FILE));
}
