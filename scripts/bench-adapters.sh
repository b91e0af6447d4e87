#!/usr/bin/env bash
# Compares the stores of clients/typescript with those that they replace: see benches/adapters/adapters.mjs.
# `make bench-adapters` runs this.
#
#   scripts/bench-adapters.sh [--quick] [--write PAGE]
#
# Needs target/release/libredis_ratelimit.so, and a server in REDIS_SERVER or on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath "${CARGO_TARGET_DIR:-target}")
clients=$target/clients
arguments=()
for argument in "$@"; do
    if [ -e "$argument" ]; then argument=$(realpath "$argument"); fi
    arguments+=("$argument")
done

scripts/install-clients.sh --node-only
own=$clients/typescript
rm -rf "$own/src" "$own/wasm" "$own/dist"
cp -r clients/typescript/{src,wasm,package.json,tsconfig*.json} "$own/"
(cd "$own" && npm run --silent build)

bench=$clients/bench
mkdir -p "$bench"
if ! cmp -s benches/adapters/package-lock.json "$bench/node_modules/installed.json"; then
    cp benches/adapters/package.json benches/adapters/package-lock.json "$bench/"
    npm ci --prefix "$bench" --ignore-scripts --no-audit --no-fund --loglevel error
    cp benches/adapters/package-lock.json "$bench/node_modules/installed.json"
fi
cp benches/adapters/adapters.mjs "$bench/"
CLIENT=$own/dist/esm RATELIMIT_SO=$target/release/libredis_ratelimit.so node "$bench/adapters.mjs" "${arguments[@]}"
