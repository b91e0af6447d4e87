/**
 * The file engine.wasm next to the compiled modules. The JavaScript is in wasm/, as ES modules and CommonJS find files
 * differently.
 */

/** The path or URL of the file. */
export const FILE: string | URL;

/** Returns the bytes of the file; a promise where files cannot be read synchronously. */
export function engineBytes(): Uint8Array | Promise<ArrayBuffer | Uint8Array>;
