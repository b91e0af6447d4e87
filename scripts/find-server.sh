#!/usr/bin/env bash
# Prints the path of the server to run the module in: REDIS_SERVER if it is set; otherwise redis-server or valkey-server on
# the PATH; otherwise one that scripts/fetch-servers.sh has put into target/servers.
#
#   scripts/find-server.sh [--release "Redis server v=7.0.15"]
#
# The Makefile and most scripts use this. Never a Redis below 6.2, which lacks functions that the module needs. If there is
# no server the script says why on stderr and fails. With --release it looks for none, and succeeds if a server with this
# version line can load the module.
set -euo pipefail

cannot() {
    echo "$*" >&2
    exit 1
}

is_new_enough() { # what the server says of itself
    local major minor
    case $1 in
    *'Valkey server v='*) return 0 ;;
    *'Redis server v='*) ;;
    *) return 1 ;;
    esac
    IFS=. read -r major minor _ <<<"${1#*server v=}"
    [[ $major =~ ^[0-9]+$ && $minor =~ ^[0-9]+$ ]] && ((major > 6 || major == 6 && minor >= 2))
}
says() { "$1" --version 2>/dev/null | head -n 1 || true; }

if [ "${1:-}" = --release ]; then
    if is_new_enough "$2"; then exit 0; else exit 1; fi
fi

if [ -n "${REDIS_SERVER:-}" ]; then
    server=$(command -v "$REDIS_SERVER") || cannot "REDIS_SERVER=$REDIS_SERVER is not a program that can be run."
    is_new_enough "$(says "$server")" ||
        cannot "REDIS_SERVER=$REDIS_SERVER says of itself: $(says "$server"). Redis 6.2 or later, or Valkey, is needed."
    [[ $server == /* ]] || server=$PWD/$server
    echo "$server"
    exit
fi

too_old=''
mapfile -t installed < <(type -aP redis-server valkey-server)
for server in "${installed[@]}"; do
    if is_new_enough "$(says "$server")"; then
        echo "$server"
        exit
    fi
    too_old+="$server is too old ($(says "$server" | cut -d' ' -f1-3)). "
done

cd "$(dirname "$0")/.."
mkdir -p "${CARGO_TARGET_DIR:-target}/servers"
fetched=$(cd "${CARGO_TARGET_DIR:-target}/servers" && pwd)
for name in redis-7.0 valkey-9.1 valkey-8.1 redis-6.2; do
    server=$fetched/$name/redis-server
    if [ -x "$server" ] && is_new_enough "$(says "$server")"; then
        echo "$server"
        exit
    fi
done
cannot "${too_old}Redis 6.2 or later, or Valkey, is needed."
