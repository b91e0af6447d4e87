#!/usr/bin/env bash
# Checks that the crates that others depend on can be published: the engine, the commands and the Rust client. Nothing is
# uploaded.
#
#   scripts/check-crates.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# What is not committed yet is checked too.
cargo publish --dry-run --locked --allow-dirty --package redis-ratelimit-engine --package redis-ratelimit-commands \
    --package redis-ratelimit-client
