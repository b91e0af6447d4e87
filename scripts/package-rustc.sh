#!/usr/bin/env bash
# Prints the path of a rustc that compiles for a target, made of Debian's packages where apt-get has them:
#
#   scripts/package-rustc.sh aarch64-unknown-linux-gnu
#
# For machines on which rustup cannot fetch the standard library of another architecture. It is unpacked into
# target/package/rust-ARCHITECTURE and not installed. Fails, and says why, where Debian has none.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
aarch64-unknown-linux-gnu) foreign=arm64 ;;
x86_64-unknown-linux-gnu) foreign=amd64 ;;
*)
    echo "Debian has no standard library of Rust for ${1:-}." >&2
    exit 1
    ;;
esac
mkdir -p "${CARGO_TARGET_DIR:-target}/package"
root=$(cd "${CARGO_TARGET_DIR:-target}/package" && pwd)/rust-$foreign
if ! [ -x "$root/rustc" ]; then
    echo "Fetching a rustc with the standard library of $foreign from Debian." >&2
    own=$(dpkg --print-architecture)
    scripts/package-unpack.sh "$root" "rustc-web:$own" "libstd-rust-web-dev:$own+" "libstd-rust-web-dev:$foreign"
    libraries=$(dirname "$(find "$root/usr/lib" -maxdepth 2 -name 'librustc_driver-*.so' | head -n 1)")
    cat >"$root/rustc" <<END
#!/bin/sh
LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$root/usr/bin/rustc" "\$@"
END
    chmod +x "$root/rustc"
fi
echo "$root/rustc"
