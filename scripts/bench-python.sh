#!/usr/bin/env bash
# Compares limiters of Python with ours on the server REDIS_SERVER=, and writes the results to a page:
#
#   scripts/bench-python.sh limits     the storages of limits, to docs/python.md; `make bench-adapters` runs this
#   scripts/bench-python.sh litellm    LiteLLM's limiter in RUNS=10 runs, seeded by SEED=1, to docs/litellm.md;
#                                      `make bench-litellm` runs this
#
# The module must be built before.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath "${CARGO_TARGET_DIR:-target}")
case ${1:-} in
limits) environment=python page=docs/python.md options=() ;;
litellm) environment=litellm page=docs/litellm.md options=(--versions) ;;
*)
    echo "usage: $0 limits | litellm" >&2
    exit 2
    ;;
esac
scripts/install-clients.sh "${options[@]}"
RATELIMIT_SO=$target/release/libredis_ratelimit.so \
    PYTHONPATH=clients/python/src:clients/python PYTHONDONTWRITEBYTECODE=1 RUNS=${RUNS:-10} SEED=${SEED:-1} \
    "$target/clients/$environment/bin/python" -m "tests.measure_$1" $page
