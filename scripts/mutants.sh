#!/usr/bin/env bash
# Changes the engine and the commands in every way that cargo-mutants knows, and runs their tests after each change. Fails if
# they notice fewer than 95 % of the changes that compile. `make mutants` runs this, a quarter at a time in CI each week.
# Arguments go to cargo-mutants: --shard 0/4, -f crates/engine/src/line.rs.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${CARGO_TARGET_DIR:-target}/mutants
mkdir -p "$out"
# Commands that were changed run in memory, and are compared with the module as it is, on a server.
cargo build --quiet --locked --release
RATELIMIT_SO=$(realpath "${CARGO_TARGET_DIR:-target}/release/libredis_ratelimit.so") REDIS_SERVER=$(scripts/find-server.sh)
export RATELIMIT_SO REDIS_SERVER
# A tenth of the cases finds nearly as much.
export RATELIMIT_CASES=${RATELIMIT_CASES:-10} PROPTEST_MAX_SHRINK_TIME=1
status=0
cargo mutants --package redis-ratelimit-engine --package redis-ratelimit-commands --output "$out" --no-times \
    --colors never "$@" || status=$?
# 2 and 3: some were missed, or timed out.
case $status in
    0 | 2 | 3) ;;
    *) exit "$status" ;;
esac
python3 - "$out/mutants.out/outcomes.json" <<'END'
import json
import sys

with open(sys.argv[1]) as file:
    counts = json.load(file)
noticed = counts["caught"] + counts["timeout"]
viable = noticed + counts["missed"]
print(f"noticed {noticed} of {viable} mutants")
if viable == 0 or noticed < 0.95 * viable:
    sys.exit("less than 95 %: see mutants/mutants.out/missed.txt in the target folder")
END
