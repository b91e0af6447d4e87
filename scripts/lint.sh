#!/usr/bin/env bash
# Checks what each commit must pass besides its tests, and changes nothing. `make lint` runs this, and so does `make check`.
# It skips, with a message, the linters of the client libraries if `make tools` could not install them.
set -euo pipefail
cd "$(dirname "$0")/.."

set -x
scripts/check-commits.sh
cargo fmt --all --check
for folder in fuzz clients/python/native tests/clients/rust examples/rust; do
    cargo fmt --check --manifest-path $folder/Cargo.toml
done
cargo clippy --locked --workspace --all-targets -- -D warnings
cargo clippy --locked --package redis-ratelimit-client --no-default-features -- -D warnings
cargo clippy --locked --package redis-ratelimit-client --all-features --all-targets -- -D warnings
cargo clippy --locked --manifest-path fuzz/Cargo.toml -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --workspace --document-private-items
scripts/check-layers.sh
shellcheck scripts/*.sh scripts/hooks/* packaging/tests/*.sh .ci/run
scripts/lint-python.sh --if-possible
scripts/lint-typescript.sh --if-possible
