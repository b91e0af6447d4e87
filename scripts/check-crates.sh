#!/usr/bin/env bash
# Checks that the crates that others depend on can be published: the engine, the commands, the leases and the Rust client.
# Nothing is uploaded. `make check` runs this.
#
#   scripts/check-crates.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Cargo keeps what it unpacked and built of a version, and would check later changes against that.
target=${CARGO_TARGET_DIR:-target}/publish
rm -rf "$target" "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/redis-ratelimit-*

# Changes that are not committed are checked too.
cargo publish --dry-run --locked --allow-dirty --target-dir "$target" --package redis-ratelimit-engine \
    --package redis-ratelimit-commands --package redis-ratelimit-leases --package redis-ratelimit-client
