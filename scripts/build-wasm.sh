#!/usr/bin/env bash
# Builds clients/typescript/wasm/engine.wasm, the engine of MemoryLimiter in JavaScript, which is committed: whoever
# installs the package needs no Rust.
#
#   scripts/build-wasm.sh             builds it, and notes what it was built from
#   scripts/build-wasm.sh --look      fails, and says so, if what it is built from has changed since; builds nothing
#   scripts/build-wasm.sh --compare   builds it anew below target/ and compares it byte for byte
#
# The compiler is Debian's of trixie, unpacked into target/wasm and not installed, so that the bytes are the same on each
# machine: rustup cannot add the target everywhere. The standard library is compiled with it, so that a panic, which the
# engine never has, brings no texts along: a quarter of the size. That asks for flags which only RUSTC_BOOTSTRAP allows.
#
# cargo mixes the paths of sources into the names of symbols, by which the linker orders functions. So sources and compiler
# are built by links that have the same path on each machine: two builds at a time wait for each other.
set -euo pipefail
cd "$(dirname "$0")/.."

native=clients/typescript/native
made=clients/typescript/wasm/engine.wasm
noted=clients/typescript/wasm/built-from.sha256

sources() {
    git ls-files -z --cached --others --exclude-standard -- "$native" crates/commands crates/engine Cargo.toml |
        LC_ALL=C sort -z | xargs -0 sha256sum
}

case ${1:-} in
--look)
    if ! sources | cmp -s - "$noted"; then
        echo "$made is older than what it is built from: scripts/build-wasm.sh" >&2
        sources | diff "$noted" - | sed -n 's/^[<>] [0-9a-f]*  /  /p' | sort -u >&2 || true
        exit 1
    fi
    exit
    ;;
--compare | "") ;;
*)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
    ;;
esac

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/wasm
mkdir -p "$target"
root=$target/rust
if ! [ -x "$root/rustc" ]; then
    echo "Fetching a rustc for WebAssembly from Debian." >&2
    own=$(dpkg --print-architecture)
    SUITE=trixie scripts/package-unpack.sh "$root" \
        "rustc:$own" "libstd-rust-1.85:$own+" "libstd-rust-dev:$own" rust-src:all "lld-19:$own+"
fi

fixed=/tmp/redis-ratelimit-wasm
mkdir -p $fixed
if ! [ -O $fixed ]; then
    echo "$fixed belongs to another user, who could change what is built there: remove it first" >&2
    exit 1
fi
exec 9>$fixed/lock
flock 9
ln -sfn "$PWD" $fixed/ratelimit
ln -sfn "$root" $fixed/rust

# By its own loader, as the host's C library may be older.
usr=$fixed/rust/usr
loader=$(find "$usr/" -name 'ld-linux*.so*' | head -n 1)
libraries=$(dirname "$(find "$usr/lib" -maxdepth 2 -name 'librustc_driver-*.so' | head -n 1)")
printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' \
    "$loader" "$libraries" "$usr/lib/llvm-19/bin/lld" >"$root/lld"
printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" --sysroot "%s" "$@"\n' \
    "$loader" "$libraries" "$usr/bin/rustc" "$usr" >"$root/rustc"
chmod +x "$root/rustc" "$root/lld"

# No path of this machine in the bytes.
home=${CARGO_HOME:-$HOME/.cargo}
export RUSTC=$fixed/rust/rustc CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$fixed/rust/lld RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zfmt-debug=none -Zlocation-detail=none --remap-path-prefix=$home=/cargo"
for path in "$root" $fixed/rust; do RUSTFLAGS+=" --remap-path-prefix=$path=/rust"; done
for path in "$PWD" $fixed/ratelimit; do RUSTFLAGS+=" --remap-path-prefix=$path=/ratelimit"; done
cargo build --quiet --locked --release -Zbuild-std=std,panic_abort \
    -Zbuild-std-features=panic_immediate_abort,optimize_for_size \
    --target wasm32-unknown-unknown --manifest-path "$fixed/ratelimit/$native/Cargo.toml" --target-dir "$target"
built=$target/wasm32-unknown-unknown/release/engine.wasm
if [ "${1:-}" = --compare ]; then
    cmp "$built" "$made"
    exit
fi
mkdir -p "$(dirname "$made")"
cp "$built" "$made"
sources >"$noted"
echo "$made: $(wc -c <"$made") bytes, $(gzip -9 -c "$made" | wc -c) gzipped"
