#!/usr/bin/env bash
# Runs the tests of all clients and examples with every version of their libraries, on the server REDIS_SERVER=.
# `make test-clients` runs this, after it has built the module.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install-clients.sh --versions
for folder in tests/clients/rust examples/rust; do
    cargo clippy --locked --all-targets --manifest-path $folder/Cargo.toml \
        --target-dir "${CARGO_TARGET_DIR:-target}/clients/cargo" -- -D warnings
done
export CLIENTS=all
RATELIMIT_CALLS=${RATELIMIT_CALLS:-30000} cargo test --test programs
cargo test --locked --package redis-ratelimit-client --all-features
