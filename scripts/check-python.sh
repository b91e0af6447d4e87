#!/usr/bin/env bash
# Checks lints and format of the Python client, and of the script that writes its reference, with ruff.
# scripts/install-clients.sh installs ruff.
#
#   scripts/check-python.sh [--if-possible | --fix]
#
# --if-possible skips the check, with a message, if ruff is not installed. --fix fixes what ruff can fix.
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
