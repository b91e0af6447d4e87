#!/usr/bin/env bash
# Checks what each commit must pass besides its tests, and changes nothing. `make lint` runs this, and so does `make check`.
# It skips, with a message, the linters of the client libraries if `make tools` could not install them.
set -euo pipefail
cd "$(dirname "$0")/.."

# Fails if src/redis uses a part of the module that is above it, or if a function of the server's API is called in another way
# than by its list, which is checked when the module is loaded.
check_redis_folder() {
    if grep -rnE '\bcrate::' src/redis --include='*.rs' | grep -v 'crate::redis\b'; then return 1; fi
    if grep -rn 'raw::RedisModule_' src --include='*.rs' | grep -vE '^src/redis/(api|fake)\.rs:'; then return 1; fi
}

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
check_redis_folder
shellcheck scripts/*.sh scripts/hooks/* packaging/tests/*.sh .ci/run
scripts/lint-python.sh --if-possible
scripts/lint-typescript.sh --if-possible
