#!/usr/bin/env bash
# Builds what a client decides in the process, for MemoryLimiter and local limits, and does nothing if it is up to date:
#
#   scripts/build-engine.sh python        for this machine, into the sources of the client, where its tests import it
#   scripts/build-engine.sh typescript    clients/typescript/wasm/engine.wasm, which `make playground` copies
#
# install-clients.sh, package.sh and `make playground` run this. The packages of the Python client do not use this: pip and
# maturin build them, see clients/python/build_backend.py.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install-tools.sh cargo
target=${CARGO_TARGET_DIR:-target}/clients
mkdir -p "$target"
target=$(cd "$target" && pwd)
case ${1:-} in
python)
    cargo build --quiet --locked --release --manifest-path clients/python/native/Cargo.toml --target-dir "$target/native"
    built=$target/native/release/lib_engine.so
    engine=clients/python/src/redis_ratelimit/_engine.abi3.so
    ;;
typescript)
    RUSTC=$(scripts/find-rustc.sh wasm32-unknown-unknown)
    # Debian's rustc comes without a linker for WebAssembly.
    linker=$(compgen -G "$(rustc --print sysroot)/lib/rustlib/*/bin/rust-lld") || linker=wasm-ld
    export RUSTC RUSTFLAGS='' CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$linker
    options=(--target wasm32-unknown-unknown --target-dir "$target/wasm")
    # With its source (rustup component add rust-src) the standard library is compiled too, with panics that abort without a
    # text: the file is a quarter smaller. A stable compiler allows that only with RUSTC_BOOTSTRAP.
    if [ -d "$("$RUSTC" --print sysroot)/lib/rustlib/src/rust/library" ]; then
        export RUSTC_BOOTSTRAP=1
        options+=("-Zbuild-std=std,panic_abort" -Zbuild-std-features=optimize_for_size)
        # Rust 1.85 does not know these panics.
        ! "$RUSTC" -Zunstable-options -Cpanic=immediate-abort --print sysroot >/dev/null 2>&1 ||
            RUSTFLAGS="-Zunstable-options -Cpanic=immediate-abort"
    fi
    cargo build --quiet --locked --profile wasm --package redis-ratelimit-wasm "${options[@]}"
    built=$target/wasm/wasm32-unknown-unknown/wasm/engine.wasm
    engine=clients/typescript/wasm/engine.wasm
    ;;
*)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
    ;;
esac
# Moved into place, so that a program that has loaded the old one keeps it.
if ! cmp -s "$built" $engine; then
    install -m 644 "$built" $engine.new
    mv $engine.new $engine
fi
