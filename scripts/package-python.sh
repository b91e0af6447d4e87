#!/usr/bin/env bash
# Builds the packages of the Python client, and tries those for this machine:
#
#   scripts/package-python.sh [sdist] [amd64] [arm64]     sdist and this machine's if none is named
#
# `make python-wheels` runs this. sdist is the source archive; pip then builds a wheel from nothing but that archive. amd64
# and arm64 are wheels for any Python from 3.10 on (abi3) and glibc from 2.28 on (manylinux_2_28), linked by zig like the
# module's package. Packages for this machine are installed into a new environment and used. All are in
# target/package/python.
set -euo pipefail
cd "$(dirname "$0")/.."

made=$(realpath -m "${CARGO_TARGET_DIR:-target}")/package/python
client=$PWD/clients/python
case $(uname -m) in
x86_64) own=amd64 ;;
aarch64) own=arm64 ;;
*) own=none ;;
esac
mkdir -p "$made"
[ -x "$made/tools/bin/maturin" ] || python3 -m venv "$made/tools"
"$made/tools/bin/pip" install --quiet --disable-pip-version-check "maturin>=1.9.4,<2" \
    "$(grep "^ziglang==" packaging/requirements.txt)"
# Cargo's files are kept apart from the checkout's.
export CARGO_TARGET_DIR=$made/cargo PATH=$made/tools/bin:$PATH

# Uses a wheel in an environment without anything else.
try() {
    rm -rf "$made/clean"
    python3 -m venv "$made/clean"
    "$made/clean/bin/pip" install --quiet --disable-pip-version-check --no-index "$1"
    (cd / && "$made/clean/bin/python" -I -c '
from redis_ratelimit import MemoryLimiter, Rate, Window
limiter = MemoryLimiter(lambda: 1_700_000_000.0)
assert [limiter.throttle("a", Rate(1, 1, 1)).allowed for _ in range(3)] == [True, True, False]
assert limiter.window("b", Window(5, "1d", fixed=True, tz="Asia/Tokyo")).remaining == 4
with limiter.local("c", Window(5, "1d")) as local:
    assert local.take(5).allowed
')
    echo "works: $1"
}

package() {
    case $1 in
    sdist)
        rm -rf "$made/sdist" "$made/from-sdist"
        mkdir -p "$made/sdist"
        (cd "$client" && "$made/tools/bin/python" -c "import build_backend; build_backend.build_sdist('$made/sdist')")
        python3 -m venv --clear "$made/builder"
        # As pip does it if there is no wheel: in a folder of its own.
        (cd / && "$made/builder/bin/pip" wheel --quiet --disable-pip-version-check --no-deps \
            --wheel-dir "$made/from-sdist" "$made"/sdist/*.tar.gz)
        try "$(ls "$made"/from-sdist/*.whl)"
        ;;
    amd64 | arm64)
        local target compiler
        if [ "$1" = amd64 ]; then target=x86_64-unknown-linux-gnu; else target=aarch64-unknown-linux-gnu; fi
        compiler=$(CARGO_TARGET_DIR=${made%/package/python} scripts/find-rustc.sh $target)
        rm -rf "${made:?}/$1"
        # The extension is linked with no Python, so none of the other architecture is needed.
        (cd "$client" && RUSTC=$compiler PYO3_NO_PYTHON=1 maturin build --quiet --release --locked --zig \
            --compatibility manylinux_2_28 --manifest-path native/Cargo.toml --target $target --out "$made/$1")
        if [ "$1" = $own ]; then
            try "$(ls "$made/$1"/*.whl)"
        else
            ls "$made/$1"/*.whl
        fi
        ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
        exit 2
        ;;
    esac
}

[ $# -gt 0 ] || set -- sdist "$own"
for what in "$@"; do package "$what"; done
