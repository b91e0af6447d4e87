#!/usr/bin/env bash
# Runs the core of the server tests under valgrind, and fails on an invalid access, an uninitialized value or a block that is
# definitely lost, if the module is anywhere in its stack. `make valgrind` runs this.
#
#   scripts/valgrind.sh                # the core
#   scripts/valgrind.sh config:: top   # these files of tests/server instead, or the tests with such names
set -euo pipefail
cd "$(dirname "$0")/.."

# Files that together take, reserve, settle, heal, wait and expire, and one with random calls.
core=(effects:: every_command:: cl_throttle:: reservations:: block_ends:: block_grants:: config:: durability::)

scripts/install-tools.sh cargo cc libclang redis-server valgrind
cargo build --release
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
export VALGRIND_LOGS=$target/valgrind
rm -rf "$VALGRIND_LOGS"
mkdir -p "$VALGRIND_LOGS"

RATELIMIT_VALGRIND_SERVER=$(scripts/find-server.sh)
export RATELIMIT_VALGRIND_SERVER
# Everything takes ten times as long, and servers end orderly so that leaks are looked for.
export REDIS_SERVER=$PWD/scripts/valgrind-server.sh RATELIMIT_TEST_SLOWNESS=10 RUST_TEST_THREADS=${RUST_TEST_THREADS:-2}
status=0
if [ $# -gt 0 ]; then tests=("$@"); else tests=("${core[@]}"); fi
cargo test --no-fail-fast --test server -- "${tests[@]}" || status=$?

servers=$(find "$VALGRIND_LOGS" -name '*.xml' | wc -l)
[ "$servers" -gt 0 ] || { echo "No server ran under valgrind." >&2; exit 1; }
found=$(
    find "$VALGRIND_LOGS" -name '*.xml' -exec cat {} + |
        awk 'BEGIN { RS = "</error>" } /libredis_ratelimit[^<]*<\/obj>/ { sub(/.*<error>/, ""); print }' |
        sed -n -E -e 's,.*<(kind|text|what|auxwhat)>(.*)</.*>.*,\n\2,p' -e 's,.*<fn>(.*)</fn>.*,    \1,p' \
            -e 's,.*<file>(.*)</file>.*,        \1,p' -e 's,.*<line>(.*)</line>.*,            line \1,p'
)
if [ -n "$found" ]; then
    printf '%s\n' "$found" >&2
    echo "valgrind: the module is part of this. All of it is in $VALGRIND_LOGS." >&2
    exit 1
fi
echo "valgrind: $servers servers, and nothing in which the module has a part."
exit "$status"
