#!/usr/bin/env bash
# Checks clients/typescript with eslint, prettier and typedoc, which `make tools` installs. `make lint` and `make reference`
# run this. typedoc checks that each exported name has a doc comment. prettier checks docs/playground too.
#
#   scripts/lint-typescript.sh [--if-possible | --fix | --reference]
#
# --if-possible skips the check, with a message, if they are not installed. --fix formats the files. --reference writes the
# reference of the client to target/clients/reference, and checks nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

own=clients/typescript
clients=${CARGO_TARGET_DIR:-target}/clients
lint=$clients/lint
if ! [ -e "$lint/node_modules/installed.json" ] || ! [ -e "$clients/typescript/node_modules/installed.json" ]; then
    scripts/skip.sh "lints and format of clients/typescript" "no eslint, prettier and typedoc in $lint: make tools"
    [ "${1:-}" = --if-possible ]
    exit
fi

clients=$(realpath "$clients")
formatted=("$own/src" "$own/test" "$own/lint/eslint.config.mjs" docs/playground/playground.js tests/clients/playground.mjs)
prettier=("$lint/node_modules/.bin/prettier" --config "$own/lint/prettier.json")
if [ "${1:-}" = --fix ]; then
    "${prettier[@]}" --write --log-level warn "${formatted[@]}"
elif [ "${1:-}" != --reference ]; then
    "${prettier[@]}" --check "${formatted[@]}"
fi

# eslint and typedoc ask the compiler, which looks for packages in the folders above a source file: it is given a copy.
rm -rf "$clients/typescript/src" "$clients/typescript/test"
cp -r "$own/src" "$own/test" "$own"/tsconfig*.json "$own/package.json" "$clients/typescript/"
cp "$own/lint/eslint.config.mjs" "$own/lint/typedoc.json" "$lint/"
cd "$clients/typescript"
typedoc=(../lint/node_modules/.bin/typedoc --options ../lint/typedoc.json --logLevel Warn)
if [ "${1:-}" = --reference ]; then
    "${typedoc[@]}" --out "$clients/reference"
    echo "$clients/reference/index.html"
    exit
fi
../lint/node_modules/.bin/eslint --config ../lint/eslint.config.mjs --max-warnings 0 src test
"${typedoc[@]}" --emit none
