#!/usr/bin/env bash
# Runs faults, failovers and low memory at once for T=600 seconds on the server REDIS_SERVER=, and checks that no limit was
# exceeded; then leases of all clients for half that time. SEED=1 decides what happens. `make soak` runs this, after it has
# built the module.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${T:-600} seed=${SEED:-1}
RATELIMIT_SOAK_SECONDS=$seconds RATELIMIT_SEED=$seed \
    cargo test --test server -- soak:: failovers:: --ignored --nocapture
scripts/install-clients.sh --if-possible
LEASES_SECONDS=$((seconds / 2)) PROOF_SEED=$seed cargo test --test programs never_spend -- --nocapture
