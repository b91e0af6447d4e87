/** Finds the application's copy of a package. */

import { createRequire } from "node:module";
import { dirname, join, sep } from "node:path";

import { FILE } from "./engine-file.js";

/**
 * Returns the application's copy of a package whose classes it compares by instanceof. If this package is linked into the
 * application, as by `npm install` of a folder, an import finds another copy, the one that this package is developed with.
 * That copy is `imported`.
 */
export function ofApplication<T>(name: string, imported: T): T {
  const here = createRequire(FILE);
  try {
    const manifest = here.resolve("../package.json");
    const { name: nameHere } = here(manifest) as { name?: unknown };
    const isLinked = here.resolve(name).startsWith(join(dirname(manifest), "node_modules") + sep);
    if (nameHere !== "redis-ratelimit-client" || !isLinked) return imported;
  } catch {
    // In a bundle, for example.
    return imported;
  }
  for (const path of [process.argv[1], join(process.cwd(), "index.js")]) {
    try {
      if (path !== undefined) return createRequire(path)(name) as T;
    } catch {
      // The package is not found from there.
    }
  }
  return imported;
}
