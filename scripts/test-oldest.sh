#!/usr/bin/env bash
# Runs the client tests that need no server on the oldest Python and Node that the clients support:
#
#   scripts/test-oldest.sh
#
# `make test-oldest` runs this. Both are fetched into target/clients/oldest: Node from npm, Python by uv unless there is a
# python3.10.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "${CARGO_TARGET_DIR:-target}/clients/oldest"
oldest=$(cd "${CARGO_TARGET_DIR:-target}/clients/oldest" && pwd)

# ---- Python ----

python=$oldest/python/bin/python
if ! cmp -s clients/python/requirements-test.txt "$oldest/requirements.txt"; then
    rm -rf "$oldest/python"
    if python3.10 --version >/dev/null 2>&1; then
        python3.10 -m venv "$oldest/python"
    else
        python3 -m venv "$oldest/uv"
        "$oldest/uv/bin/pip" install --quiet --disable-pip-version-check uv
        "$oldest/uv/bin/uv" venv --quiet --seed --python 3.10 "$oldest/python"
    fi
    "$python" -m pip install --quiet --disable-pip-version-check --requirement clients/python/requirements-test.txt
    cp clients/python/requirements-test.txt "$oldest/requirements.txt"
fi
scripts/build-engine.sh python
"$python" --version
(cd clients/python && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=src "$python" -m unittest \
    tests.test_calls tests.test_gateway tests.test_http tests.test_leases tests.test_numbers tests.test_breaker)

# ---- Node ----

machine=$(uname -m)
case $machine in
x86_64) machine=x64 ;;
aarch64) machine=arm64 ;;
esac
(cd clients/typescript && npm ci --no-audit --no-fund --loglevel error && npm run --silent check)
# It is not installed as a dependency: npm itself may need a newer Node.
npm install --prefix "$oldest" --no-audit --no-fund --loglevel error "node-linux-$machine@18"
export PATH=$oldest/node_modules/node-linux-$machine/bin:$PATH
tests=$(node -p 'require("./clients/typescript/package.json").scripts["test:oldest"]')
node --version
cd clients/typescript
sh -c "$tests"
