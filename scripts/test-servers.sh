#!/usr/bin/env bash
# Runs the server tests on each of the named servers, with the module that was built, and prints the results. `make
# test-servers` runs this on all servers, and `make check` on two:
#
#   scripts/test-servers.sh [--if-possible] [redis-7.0 valkey-9.1 ...]     all of scripts/fetch-servers.sh if none is named
#
# Floods with I/O threads last RATELIMIT_FLOOD_SECONDS=20. Servers that look up the keys of commands in I/O threads are
# tested again with `io-threads 4`, by the tests that depend on it most, those of a cluster among them.
#
# Fails if none of the servers could be fetched, unless --if-possible is given. With STRICT=1 it fails if any could not.
#
# Does not run tests/programs: `make test-clients` runs these on one server.
#
# Tests that a server cannot run are counted and listed as by scripts/test.sh. The output of each run is in
# target/servers/NAME.log and NAME-threads.log.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
servers=${CARGO_TARGET_DIR:-target}/servers
mkdir -p "$servers"
may_be_none=no
if [ "${1:-}" = --if-possible ]; then
    may_be_none=yes
    shift
fi
[ $# -gt 0 ] || set -- redis-6.2 redis-7.0 redis-8.0 redis-8.6 valkey-8.1 valkey-9.1
scripts/fetch-servers.sh "$@" 2> >(tee "$servers/missing" >&2) || exit 1
arguments=(--test server --test timing)

cargo test --no-run "${arguments[@]}" || exit 1

# Prints a number from the line of totals, or 0: what log
total() { tail -n 1 "$2" | grep -oE "[0-9]+ $1" | grep -oE '[0-9]+' || echo 0; }

failures=()
table=$(printf '%-18s %-8s %7s %7s %8s %6s' server version passed failed skipped time)
found=0
ran=0
broken=0

run() { # server label arguments of cargo test...: one run, and its line in the table
    local server=$1 label=$2 log=$servers/$2.log begin=$SECONDS code passed failed skipped
    shift 2
    echo "=== $label"
    LOG=$log REDIS_SERVER=$server scripts/test.sh "$@" >/dev/null
    code=$?
    grep -E '^test .* FAILED$|^error' "$log"
    # What each failed test printed: cargo prints it once, between the two lists of failures.
    [ $code = 0 ] || awk '/^failures:$/ { on = !on; next } on' "$log" | head -n 300
    passed=$(total passed "$log")
    failed=$(total failed "$log")
    skipped=$(total skipped "$log")
    table+=$'\n'$(printf '%-18s %-8s %7d %7d %8d %5ds' "$label" \
        "$("$server" --version | sed 's/.* v=\([0-9.]*\) .*/\1/')" "$passed" "$failed" "$skipped" $((SECONDS - begin)))
    [ $code = 0 ] || broken=1
    mapfile -t -O ${#failures[@]} failures < <(sed -nE "/^(crashed|failed), /,/^\$/s/^ /failed on $label:/p" "$log")
    ran=$((ran + passed))
}

export RATELIMIT_FLOOD_SECONDS=${RATELIMIT_FLOOD_SECONDS:-20}
threaded=(--test server -- rl_all:: cluster:: every_command:: block_all:: block_order::)
for name in "$@"; do
    server=$PWD/$servers/$name/redis-server
    [[ $servers == /* ]] && server=$servers/$name/redis-server
    if ! [ -x "$server" ]; then
        why=$(sed -n "s/^SKIPPED $name: //p" "$servers/missing")
        table+=$'\n'$(printf '%-18s %s' "$name" "not had: $why")
        scripts/skip.sh "the server tests on $name" "$why"
        [ "${STRICT:-}" != 1 ] || broken=1
        continue
    fi
    found=$((found + 1))
    run "$server" "$name" "${arguments[@]}"
    case $name in
    redis-8.6 | valkey-*) RATELIMIT_IO_THREADS=4 run "$server" "$name-threads" "${threaded[@]}" ;;
    esac
done

for name in "$@"; do
    [ ! -e "$servers/$name/redis-server" ] ||
        sed -n "/^skipped here:/,/^\$/s/^  tests/skipped on $name: tests/p" "$servers/$name.log"
done
printf '\n%s\n' "$table"
[ ${#failures[@]} = 0 ] || printf '%s\n' '' "${failures[@]}"
[ $broken = 0 ] && { [ "$ran" -gt 0 ] || [ "$may_be_none $found" = "yes 0" ]; }
