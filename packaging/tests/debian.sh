#!/bin/bash
# What scripts/test-packages.sh runs in a clean root of Debian or Ubuntu, in which /packages has the packages:
#
#   debian.sh fetch|try|refuse redis|valkey
#
# `fetch` downloads what the installation needs, `try` needs no network. /packages/lines are the lines of docs/install.md.
set -euo pipefail
cd /packages

export DEBIAN_FRONTEND=noninteractive LC_ALL=C
server=$2
conf=/etc/$server/$server.conf
module=/usr/lib/$server/modules/libredis_ratelimit.so
mapfile -t lines <lines
said=/tmp/said

fail() {
    echo "FAILED: $*" >&2
    exit 1
}
# The lines are for a user who is not root.
sudo() { "$@"; }
cli() { "$server-cli" "$@"; }
service_() { service "$server-server" "$@" >/dev/null 2>&1; }
answers() {
    for _ in {1..50}; do
        [ "$(cli PING 2>/dev/null)" != PONG ] || return 0
        sleep 0.1
    done
    return 1
}
process() { cli INFO server | tr -d '\r' | sed -n 's/^process_id://p'; }
restart() {
    service_ restart
    up
}
up() { answers || fail "the server does not start: $(tail -n 5 /var/log/"$server"/*.log)"; }
expect() { # what it is, expected, found
    [ "$2" = "$3" ] || fail "$1: expected '$2', found '$3'"
    echo "ok: $1"
}
step() { echo "--- $*"; }

case $1 in
fetch)
    echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90test
    apt-get -q update
    step "fetch what is needed for: ${lines[0]}"
    eval "${lines[0]/ install / install --download-only }"
    ;;

refuse)
    echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90test
    apt-get -q update
    ! eval "${lines[0]}" >$said 2>&1 || fail "it installs beside a server that is too old"
    grep -q 'redis-ratelimit : Depends: redis-server (>= 5:6.2)' $said || fail "apt gives another reason: $(cat $said)"
    echo "ok: apt refuses it, because of the server's version"
    ;;

try)
    step "${lines[0]}"
    eval "${lines[0]}" 2>&1 | tee $said
    grep -qF "loadmodule /usr/lib/redis/modules/libredis_ratelimit.so" $said || fail "the line to add was not printed"
    grep -qF "to $conf and run" $said || fail "the file was not named"
    service_ start || true
    up
    expect "the installation loads nothing" "" "$(cli MODULE LIST | grep ratelimit || true)"

    step "${lines[1]}"
    eval "${lines[1]}"
    up
    step "${lines[2]}"
    expect "the first answer" "0 16 15 -1 2" "$(eval "${lines[2]}" | paste -sd' ')"

    step "CONFIG REWRITE and a restart"
    expect "CONFIG SET" OK "$(cli CONFIG SET ratelimit.lease 30000)"
    expect "CONFIG REWRITE" OK "$(cli CONFIG REWRITE)"
    restart
    expect "loadmodule lines" 1 "$(grep -c ^loadmodule "$conf")"
    expect "the setting after the restart" 30000 "$(cli CONFIG GET ratelimit.lease | tail -n 1)"
    expect "an answer after the restart" "0 16 15 -1 2" "$(cli RL.THROTTLE user:2 15 30 60 1 | paste -sd' ')"

    step "an upgrade without a restart"
    echo 'enable-module-command local' >>"$conf"
    restart
    cli RL.THROTTLE user:3 15 1 3600 16 >/dev/null
    before=$(process)
    apt-get install ./upgrade/redis-ratelimit_*.deb 2>&1 | tee $said
    grep -q 'keeps version .* until it is restarted' $said || fail "nothing was said about the running server"
    expect "the server goes on" "$before" "$(process)"
    expect "and answers" 1 "$(cli RL.THROTTLE user:3 15 1 3600 | head -n 1)"
    [ "$(cli MODULE UNLOAD ratelimit)" != OK ] || fail "MODULE UNLOAD lost a setting"
    expect "the permission" OK "$(cli CONFIG SET ratelimit.allow-unload yes)"
    expect "MODULE UNLOAD" OK "$(cli MODULE UNLOAD ratelimit)"
    expect "MODULE LOADEX" OK "$(cli MODULE LOADEX "$module" CONFIG ratelimit.lease 30000)"
    expect "the setting after the upgrade" 30000 "$(cli CONFIG GET ratelimit.lease | tail -n 1)"
    expect "the limit holds" 1 "$(cli RL.THROTTLE user:3 15 1 3600 | head -n 1)"
    expect "the same server" "$before" "$(process)"

    step "remove"
    apt-get remove redis-ratelimit 2>&1 | tee $said
    grep -q "^    $conf$" $said || fail "the configuration that still loads the module was not named"
    expect "the server goes on" "$before" "$(process)"
    expect "and answers" 1 "$(cli RL.THROTTLE user:3 15 1 3600 | head -n 1)"
    expect "what is left of the files" "" "$(find /usr/lib /usr/share -name '*ratelimit*' | paste -sd' ')"
    service_ restart || true
    sleep 1
    ! cli PING >/dev/null 2>&1 || fail "it starts without its module, against what was printed"
    sed -i -e '/^loadmodule .*libredis_ratelimit/d' -e '/^ratelimit\./d' "$conf"
    restart
    expect "the server starts without the module" "" "$(cli MODULE LIST | grep ratelimit || true)"
    apt-get autoremove >/dev/null
    expect "the server after autoremove" PONG "$(cli PING)"

    step "install again, then purge"
    apt-get install ./redis-ratelimit_*_amd64.deb >/dev/null 2>&1
    apt-get purge redis-ratelimit >$said 2>&1
    expect "what purge leaves" "" \
        "$(find / -xdev -name '*ratelimit*' -not -path '/packages/*' -not -path '/var/log/*' -not -path '/proc/*' | paste -sd' ')"
    expect "the package" "" "$(dpkg-query -W redis-ratelimit 2>/dev/null || true)"
    cli PING >/dev/null || fail "the server stopped"
    ;;
esac
