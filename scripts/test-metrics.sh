#!/usr/bin/env bash
# Checks the rules of examples/metrics/ with promtool, and what they find of real servers with scripts/test-metrics.py.
#
#   scripts/test-metrics.sh [--if-possible]
#
# `make test-metrics` runs this, and so does `make check`, --if-possible. That skips the test, with a message, if a tool is
# missing and cannot be installed. The module must be built before. REDIS_SERVER= and REDIS_EXPORTER= choose other programs.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=(cc python3 prometheus-redis-exporter prometheus redis-server)
if [ "${1:-}" != --if-possible ]; then
    scripts/install-tools.sh "${tools[@]}"
elif ! why=$(scripts/install-tools.sh "${tools[@]}" 2>&1); then
    scripts/skip.sh test-metrics "${why##*$'\n'}: make test-metrics"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp examples/metrics/* "$work"
promtool check rules "$work/alerts.yml"
promtool check config "$work/prometheus.yml"
promtool test rules "$work/alerts.test.yml"
server=$(scripts/find-server.sh)
if ! python3 scripts/test-metrics.py "$server" "${REDIS_EXPORTER:-prometheus-redis-exporter}" \
    "${CARGO_TARGET_DIR:-target}/release/libredis_ratelimit.so" "$work"; then
    tail -n 5 "$work"/{exporter,prometheus}.log >&2
    exit 1
fi
