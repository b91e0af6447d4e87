#!/usr/bin/env bash
# Prints a rustc that can compile for a target:
#
#   scripts/find-rustc.sh aarch64-unknown-linux-gnu
#
# build-engine.sh and the package scripts use this. That is $RUSTC, or the one on the PATH. If it lacks the standard library
# of the target, rustup adds it, or apt-get where rustc itself is Debian's. Where neither can, it is one from Debian's
# packages, unpacked into target/package and not installed; for WebAssembly with the source of the standard library. If that
# fails too, it says why.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=${1:-}

case $triple in
wasm32-unknown-unknown) debian=rust-web-src:all ;;
aarch64-unknown-linux-gnu) debian=libstd-rust-web-dev:arm64 ;;
x86_64-unknown-linux-gnu) debian=libstd-rust-web-dev:amd64 ;;
*) echo "$0 does not know the target $triple" >&2 && exit 2 ;;
esac

has_std() { # rustc
    compgen -G "$("$1" --print target-libdir --target "$triple" 2>/dev/null)/libstd-*.rlib" >/dev/null
}
die() {
    echo "$("${RUSTC:-rustc}" --version) has no standard library for $triple. Add it with: rustup target add $triple" >&2
    exit 1
}
add_std() {
    if [ "$triple $(rustc --print sysroot)" = "wasm32-unknown-unknown /usr" ]; then
        scripts/install-tools.sh wasm32
    else
        rustup target add "$triple"
    fi
}

if has_std "${RUSTC:-rustc}"; then
    echo "${RUSTC:-rustc}"
    exit
fi
[ -z "${RUSTC:-}" ] || die
if add_std >&2 && has_std rustc; then
    echo rustc
    exit
fi
mkdir -p "${CARGO_TARGET_DIR:-target}/package"
root=$(cd "${CARGO_TARGET_DIR:-target}/package" && pwd)/rust-${triple%%-*}
if ! [ -x "$root/rustc" ]; then
    echo "Fetching a rustc for $triple from Debian." >&2
    own=$(dpkg --print-architecture)
    scripts/unpack-debian.sh "$root" "rustc-web:$own" "libstd-rust-web-dev:$own+" "$debian" || die
    libraries=$(dirname "$(find "$root/usr/lib" -maxdepth 2 -name 'librustc_driver-*.so' | head -n 1)")
    cat >"$root/rustc" <<END
#!/bin/sh
LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$root/usr/bin/rustc" "\$@"
END
    chmod +x "$root/rustc"
fi
[ "$debian" = rust-web-src:all ] || has_std "$root/rustc" || die
echo "$root/rustc"
