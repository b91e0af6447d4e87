#!/usr/bin/env bash
# Prints a rustc that can compile for a target:
#
#   scripts/find-rustc.sh aarch64-unknown-linux-gnu
#
# That is $RUSTC, or the one on the PATH, to which rustup adds what it lacks: the standard library of the target, or for
# WebAssembly its source, from which scripts/build-engine.sh compiles it. Where rustup cannot, it is one from Debian's
# packages if apt-get has them, unpacked into target/package and not installed. Otherwise it fails and says why.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=${1:-}

case $triple in
wasm32-unknown-unknown) missing=rust-src debian=rust-web-src:all add=(rustup component add rust-src) ;;
aarch64-unknown-linux-gnu) missing="standard library for $triple" debian=libstd-rust-web-dev:arm64 add=(rustup target add "$triple") ;;
x86_64-unknown-linux-gnu) missing="standard library for $triple" debian=libstd-rust-web-dev:amd64 add=(rustup target add "$triple") ;;
*) echo "$0 does not know the target $triple" >&2 && exit 2 ;;
esac

compiles() { # rustc
    if [ "$missing" = rust-src ]; then
        [ -e "$("$1" --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ]
    else
        compgen -G "$("$1" --print target-libdir --target "$triple" 2>/dev/null)/libstd-*.rlib" >/dev/null
    fi
}
die() {
    echo "$("${RUSTC:-rustc}" --version) has no $missing. Add it with: ${add[*]}" >&2
    exit 1
}

if compiles "${RUSTC:-rustc}"; then
    echo "${RUSTC:-rustc}"
    exit
fi
[ -z "${RUSTC:-}" ] || die
if "${add[@]}" >&2 && compiles rustc; then
    echo rustc
    exit
fi
mkdir -p "${CARGO_TARGET_DIR:-target}/package"
root=$(cd "${CARGO_TARGET_DIR:-target}/package" && pwd)/rust-${triple%%-*}
if ! [ -x "$root/rustc" ]; then
    echo "Fetching a rustc with $missing from Debian." >&2
    own=$(dpkg --print-architecture)
    scripts/package-unpack.sh "$root" "rustc-web:$own" "libstd-rust-web-dev:$own+" "$debian" || die
    libraries=$(dirname "$(find "$root/usr/lib" -maxdepth 2 -name 'librustc_driver-*.so' | head -n 1)")
    # Debian's rustc comes without the linker for WebAssembly.
    linker=$(compgen -G "$(rustc --print sysroot)/lib/rustlib/*/bin/rust-lld") || die
    host=$(rustc --version --verbose | sed -n 's/^host: //p')
    mkdir -p "$root/usr/lib/rustlib/$host/bin"
    ln -sf "$linker" "$root/usr/lib/rustlib/$host/bin/rust-lld"
    cat >"$root/rustc" <<END
#!/bin/sh
LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$root/usr/bin/rustc" "\$@"
END
    chmod +x "$root/rustc"
fi
compiles "$root/rustc" || die
echo "$root/rustc"
