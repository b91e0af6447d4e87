#!/usr/bin/env bash
# Checks lints, format and types of the Python client with ruff and mypy.
# `make tools` installs both, and `make lint` runs this.
#
#   scripts/lint-python.sh [--if-possible | --fix | --reference]
#
# --if-possible skips the check, with a message, if they are not installed. --fix fixes what ruff can fix.
# --reference writes the reference of the client to target/clients/reference/python with pdoc.
set -euo pipefail
cd "$(dirname "$0")/.."

clients=$(realpath -m "${CARGO_TARGET_DIR:-target}/clients")
tools=$clients/python/bin
if ! [ -x "$tools/ruff" ] || ! [ -x "$tools/mypy" ]; then
    scripts/skip.sh "lints, format and types of clients/python" "no ruff and mypy in target/clients/python: make tools"
    [ "${1:-}" = --if-possible ]
    exit
fi
cd clients/python
files=(--no-cache --quiet --config pyproject.toml .)
if [ "${1:-}" = --reference ]; then
    "$tools/python" -m pip install --quiet pdoc==16.0.0
    PYTHONPATH=src "$tools/python" -m pdoc --output-directory "$clients/reference/python" redis_ratelimit
elif [ "${1:-}" = --fix ]; then
    "$tools/ruff" check --fix "${files[@]}"
    "$tools/ruff" format "${files[@]}"
else
    "$tools/ruff" check "${files[@]}"
    "$tools/ruff" format --check "${files[@]}"
    "$tools/mypy" --cache-dir "$clients/mypy" --no-error-summary
fi
