#!/usr/bin/env bash
# Builds the module and the Rust client with the oldest Rust that Cargo.toml states (rust-version), and loads the module in a
# server.
#
#   scripts/check-minimum-rust.sh
#
# `make minimum-rust` and CI, on each push, run this. rustup fetches that compiler. The build goes to target/minimum-rust.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    printf '%s\n' "$@" >&2
    exit 1
}

scripts/install-tools.sh cc libclang redis-server
# The first of its patch releases.
version=$(sed -n 's/^rust-version = "\(.*\)"$/\1.0/p' Cargo.toml)
command -v rustup >/dev/null || die "rustup is missing, which fetches Rust $version: https://rustup.rs"
rustup toolchain install "$version" --profile minimal
found=$(rustup run "$version" rustc --version)
[[ $found == "rustc $version "* ]] || die "Rust $version is wanted, and this is $found."

target=$(mkdir -p "${CARGO_TARGET_DIR:-target}/minimum-rust" && cd "${CARGO_TARGET_DIR:-target}/minimum-rust" && pwd)
CARGO_TARGET_DIR=$target rustup run "$version" cargo build --locked --lib
CARGO_TARGET_DIR=$target rustup run "$version" cargo check --locked --package redis-ratelimit-client
RATELIMIT_SO=$target/debug/libredis_ratelimit.so REDIS_SERVER=$(scripts/find-server.sh) cargo test --test server reservations::
echo "$found builds the module and the Rust client."
