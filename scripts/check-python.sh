#!/usr/bin/env bash
# Looks at the Python client, and the script that writes its reference, with ruff: lints and format.
# scripts/install-clients.sh installs it.
#
#   scripts/check-python.sh [--if-possible | --fix]
#
# --if-possible says so, instead of failing, where ruff could not be installed. --fix mends what can be mended.
set -euo pipefail
cd "$(dirname "$0")/.."

ruff=$(realpath -m "${CARGO_TARGET_DIR:-target}/clients/python/bin/ruff")
if [ ! -x "$ruff" ]; then
    scripts/skip.sh "lints and format of clients/python" "no ruff in target/clients/python"
    [ "${1:-}" = --if-possible ]
    exit
fi
cd clients/python
files=(. ../../scripts/python-reference.py)
if [ "${1:-}" = --fix ]; then
    "$ruff" check --no-cache --quiet --fix --config pyproject.toml "${files[@]}"
    "$ruff" format --no-cache --quiet --config pyproject.toml "${files[@]}"
else
    "$ruff" check --no-cache --quiet --config pyproject.toml "${files[@]}"
    "$ruff" format --no-cache --quiet --check --config pyproject.toml "${files[@]}"
fi
