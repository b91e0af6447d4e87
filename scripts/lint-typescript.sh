#!/usr/bin/env bash
# Checks clients/typescript with eslint and prettier, as scripts/install-clients.sh installed them.
#
#   scripts/lint-typescript.sh [--if-possible | --fix]
#
# --if-possible says that it is left out instead of failing where they are not installed. --fix formats the files.
set -euo pipefail
cd "$(dirname "$0")/.."

own=clients/typescript
clients=${CARGO_TARGET_DIR:-target}/clients
lint=$clients/lint
if ! [ -e "$lint/node_modules/installed.json" ] || ! [ -e "$clients/typescript/node_modules/installed.json" ]; then
    echo "skipped: eslint and prettier are not installed in $lint: scripts/install-clients.sh" >&2
    [ "${1:-}" = --if-possible ]
    exit
fi

prettier=("$lint/node_modules/.bin/prettier" --config "$own/lint/prettier.json")
if [ "${1:-}" = --fix ]; then
    "${prettier[@]}" --write --log-level warn "$own/src" "$own/test" "$own/lint/eslint.config.mjs"
else
    "${prettier[@]}" --check "$own/src" "$own/test" "$own/lint/eslint.config.mjs"
fi

# eslint asks the compiler, which looks for packages in the folders above a source file: it is given a copy.
rm -rf "$clients/typescript/src" "$clients/typescript/test"
cp -r "$own/src" "$own/test" "$own"/tsconfig*.json "$own/package.json" "$clients/typescript/"
cp "$own/lint/eslint.config.mjs" "$lint/"
cd "$clients/typescript"
../lint/node_modules/.bin/eslint --config ../lint/eslint.config.mjs --max-warnings 0 src test
