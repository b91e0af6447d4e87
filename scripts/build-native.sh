#!/usr/bin/env bash
# Builds the engine of the Python client's MemoryLimiter for this machine and puts it beside the client's sources, where the
# tests import it from. A package is built by pip or maturin instead, see clients/python/build_backend.py.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/clients/native
cargo build --quiet --locked --release --manifest-path clients/python/native/Cargo.toml --target-dir "$target"
made=clients/python/src/redis_ratelimit/_engine.abi3.so
# In one step: a program that has the old one loaded keeps it.
if ! cmp -s "$target/release/lib_engine.so" $made; then
    cp "$target/release/lib_engine.so" $made.new
    mv $made.new $made
fi
