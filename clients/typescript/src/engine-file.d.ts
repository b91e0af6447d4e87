/**
 * The file engine.wasm next to the compiled modules. wasm/ has the JavaScript, as each kind of module finds files
 * differently.
 */

/** Where it is. */
export const FILE: string | URL;

/** Its bytes: at once where files can be read so, else a promise of them. */
export function engineBytes(): Uint8Array | Promise<ArrayBuffer | Uint8Array>;
