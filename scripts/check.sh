#!/usr/bin/env bash
# Installs the tools, and runs the lints, the checks of dependencies and packages, and the tests. `make check` runs this, and
# so does CI. Ends with a list of what it had to leave out, and with STRICT=1 fails if there is anything.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "${CARGO_TARGET_DIR:-target}"
SKIPPED=$(realpath "${CARGO_TARGET_DIR:-target}")/skipped
export SKIPPED
: >"$SKIPPED"

make tools lint
scripts/install-tools.sh cargo cargo-deny cc libclang python3 redis-server
scripts/check-crates.sh
cargo deny --locked check bans licenses sources
if timeout 120 cargo deny --locked fetch db >/dev/null 2>&1; then
    cargo deny --locked check advisories
else
    scripts/skip.sh advisories "their database could not be fetched: make advisories"
fi
scripts/check-option.sh
make test
REDIS_SERVER=$(scripts/find-server.sh)
export REDIS_SERVER
scripts/test-metrics.sh --if-possible
scripts/check-package.sh --if-possible
servers=(valkey-9.1)
# `make test` has used it already if it is installed.
"$REDIS_SERVER" --version | grep -q 'Redis server v=7[.]0[.]' || servers+=(redis-7.0)
RATELIMIT_FLOOD_SECONDS=${RATELIMIT_FLOOD_SECONDS:-5} scripts/test-servers.sh --if-possible "${servers[@]}"
scripts/skip.sh --list
