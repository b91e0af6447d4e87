#!/usr/bin/env bash
# Installs the clients that the tests run into target/clients, as they are pinned in tests/clients. What is installed
# already is left alone.
#
#   scripts/install-clients.sh [--if-possible]
#
# --if-possible says what it has to leave out, and why, instead of failing.
set -euo pipefail
cd "$(dirname "$0")/.."

pins=$PWD/tests/clients
clients=${CARGO_TARGET_DIR:-target}/clients
if_possible=no
[ "${1:-}" = --if-possible ] && if_possible=yes

leave_out() {
    echo "skipped: clients of $1: $2" >&2
    [ "$if_possible" = yes ]
}

install_python() {
    local venv=$clients/venv
    cmp -s "$pins/requirements.txt" "$venv/requirements.txt" && return
    rm -rf "$venv"
    python3 -m venv "$venv" &&
        "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$pins/requirements.txt" &&
        cp "$pins/requirements.txt" "$venv/"
}

# Node looks for packages in the folders above the script, so the scripts are linked to from there: see tests/support.
install_node() {
    ln -sfn "$pins" "$clients/scripts"
    ln -sfn "$PWD/examples" "$clients/examples"
    cmp -s "$pins/package-lock.json" "$clients/node_modules/installed.json" && return
    cp "$pins/package.json" "$pins/package-lock.json" "$clients/"
    npm ci --prefix "$clients" --ignore-scripts --no-audit --no-fund --loglevel error &&
        cp "$pins/package-lock.json" "$clients/node_modules/installed.json"
}

mkdir -p "$clients"
if ! scripts/install-tools.sh --look python3-venv; then
    leave_out Python "no python3 with venv and pip"
elif ! install_python; then
    leave_out Python "pip could not install tests/clients/requirements.txt"
fi
if ! scripts/install-tools.sh --look node || ! scripts/install-tools.sh --look npm; then
    leave_out Node "no node 20 or later with npm"
elif ! install_node; then
    leave_out Node "npm could not install tests/clients/package-lock.json"
fi
