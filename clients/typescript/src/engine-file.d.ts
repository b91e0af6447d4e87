/** The file engine.wasm beside the compiled modules. wasm/ has the JavaScript: what finds a file differs between kinds of modules. */

/** Where it is. */
export const FILE: string | URL;

/** Its bytes: at once where files can be read so, else a promise of them. */
export function engineBytes(): Uint8Array | Promise<ArrayBuffer | Uint8Array>;
