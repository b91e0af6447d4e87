#!/usr/bin/env bash
# Prints a rustc that has the standard library of a target: $RUSTC, or the one on the PATH, or one made of Debian's packages
# where apt-get has them:
#
#   scripts/package-rustc.sh aarch64-unknown-linux-gnu
#
# The last is for machines on which rustup cannot fetch the standard library of another architecture. It is unpacked into
# target/package/rust-ARCHITECTURE and not installed. Fails, and says why, where none has it.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=${1:-}

has_std() { # rustc
    compgen -G "$("$1" --print target-libdir --target "$triple" 2>/dev/null)/libstd-*.rlib" >/dev/null
}
die() {
    echo "$("${RUSTC:-rustc}" --version) has no standard library for $triple. Add it with: rustup target add $triple" >&2
    exit 1
}

if has_std "${RUSTC:-rustc}"; then
    echo "${RUSTC:-rustc}"
    exit
fi
[ -z "${RUSTC:-}" ] || die
case $triple in
aarch64-unknown-linux-gnu) foreign=arm64 ;;
x86_64-unknown-linux-gnu) foreign=amd64 ;;
*) die ;;
esac
mkdir -p "${CARGO_TARGET_DIR:-target}/package"
root=$(cd "${CARGO_TARGET_DIR:-target}/package" && pwd)/rust-$foreign
if ! [ -x "$root/rustc" ]; then
    echo "Fetching a rustc with the standard library of $foreign from Debian." >&2
    own=$(dpkg --print-architecture)
    scripts/package-unpack.sh "$root" "rustc-web:$own" "libstd-rust-web-dev:$own+" "libstd-rust-web-dev:$foreign" || die
    libraries=$(dirname "$(find "$root/usr/lib" -maxdepth 2 -name 'librustc_driver-*.so' | head -n 1)")
    cat >"$root/rustc" <<END
#!/bin/sh
LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$root/usr/bin/rustc" "\$@"
END
    chmod +x "$root/rustc"
fi
has_std "$root/rustc" || die
echo "$root/rustc"
