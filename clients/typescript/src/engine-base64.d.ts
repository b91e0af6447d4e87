/** The engine in base64; empty if the package was built without it. wasm/build.mjs writes the module. */
declare const base64: string;
export default base64;
