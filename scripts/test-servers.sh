#!/usr/bin/env bash
# Runs the server tests, with the module as it is built, on each of the named servers, and prints what came of it:
#
#   scripts/test-servers.sh [redis-7.0 valkey-9.1 ...]     all that scripts/fetch-servers.sh knows unless named
#
# A test that a server cannot run says so in a line `skipped NAME: why`; those are counted and listed. The output of each
# run stays in target/servers/NAME.log. CARGO_TEST= has arguments for cargo test (CARGO_TEST='--test window').
set -uo pipefail
cd "$(dirname "$0")/.." || exit
servers=${CARGO_TARGET_DIR:-target}/servers
mkdir -p "$servers"
[ $# -gt 0 ] || set -- redis-6.2 redis-7.0 redis-8.0 redis-8.6 valkey-8.1 valkey-9.1
scripts/fetch-servers.sh "$@" 2> >(tee "$servers/missing" >&2) || exit 1
read -r -a arguments <<<"${CARGO_TEST:---test *}"

cargo test --no-run "${arguments[@]}" || exit 1

total() { # what log: the sum of what cargo test counts in its result lines
    sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }'
}

table=$(printf '%-12s %-8s %7s %7s %8s %6s' server version passed failed skipped time)
ran=0
broken=0
for name in "$@"; do
    server=$PWD/$servers/$name/redis-server
    [[ $servers == /* ]] && server=$servers/$name/redis-server
    if ! [ -x "$server" ]; then
        table+=$'\n'$(printf '%-12s %s' "$name" "not had: $(sed -n "s/^SKIPPED $name: //p" "$servers/missing")")
        continue
    fi
    log=$servers/$name.log
    begin=$SECONDS
    echo "=== $name"
    REDIS_SERVER=$server cargo test --no-fail-fast "${arguments[@]}" >"$log" 2>&1
    code=$?
    grep -E '^test .* FAILED$|^error' "$log"
    skipped=$(grep -c '^skipped ' "$log")
    passed=$(($(total passed "$log") - skipped))
    failed=$(total failed "$log")
    table+=$'\n'$(printf '%-12s %-8s %7d %7d %8d %5ds' "$name" "$("$server" --version | sed 's/.* v=\([0-9.]*\) .*/\1/')" \
        "$passed" "$failed" "$skipped" $((SECONDS - begin)))
    [ $code = 0 ] || broken=1
    ran=$((ran + passed))
done

for name in "$@"; do
    [ -e "$servers/$name/redis-server" ] && sed -n "s/^skipped /skipped on $name: /p" "$servers/$name.log" | sort -u
done
printf '\n%s\n' "$table"
[ $broken = 0 ] && [ "$ran" -gt 0 ]
