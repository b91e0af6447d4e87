/** Packages as the application has them. */

import { createRequire } from "node:module";
import { dirname, join, sep } from "node:path";

import { FILE } from "./engine-file.js";

/**
 * A package whose classes the application looks for by instanceof. Where this package is linked into the application, as
 * `npm install` of a folder does, Node finds the copy that this package is developed with, which is `own`. Its classes are
 * others, so the application's copy is taken instead.
 */
export function ofApplication<T>(name: string, own: T): T {
  const here = createRequire(FILE);
  try {
    const manifest = here.resolve("../package.json");
    const { name: found } = here(manifest) as { name?: unknown };
    const isLinked = here.resolve(name).startsWith(join(dirname(manifest), "node_modules") + sep);
    if (found !== "redis-ratelimit-client" || !isLinked) return own;
  } catch {
    // Such as in a bundle.
    return own;
  }
  for (const from of [process.argv[1], join(process.cwd(), "index.js")]) {
    try {
      if (from !== undefined) return createRequire(from)(name) as T;
    } catch {
      // It is not found from there.
    }
  }
  return own;
}
