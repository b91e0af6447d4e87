#!/usr/bin/env bash
# Looks at the Python client with ruff: its lints and its format. scripts/install-clients.sh installs it.
#
#   scripts/check-python.sh [--if-possible | --fix]
#
# --if-possible says so, instead of failing, where ruff could not be installed. --fix mends what can be mended.
set -euo pipefail
cd "$(dirname "$0")/.."

ruff=$(realpath -m "${CARGO_TARGET_DIR:-target}/clients/python/bin/ruff")
if [ ! -x "$ruff" ]; then
    echo "skipped: lints and format of clients/python: no ruff in target/clients/python" >&2
    [ "${1:-}" = --if-possible ]
    exit
fi
cd clients/python
if [ "${1:-}" = --fix ]; then
    "$ruff" check --no-cache --quiet --fix .
    "$ruff" format --no-cache --quiet .
else
    "$ruff" check --no-cache --quiet .
    "$ruff" format --no-cache --quiet --check .
fi
