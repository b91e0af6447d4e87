#!/usr/bin/env bash
# Fuzzes decoders, parsers and limits with libFuzzer, for T= seconds each (60). `make fuzz` runs this.
#
#   T=600 scripts/fuzz.sh window throttle    # ten minutes for these two
#
# Interesting inputs are kept in fuzz/corpus, where the next run starts, and inputs that fail in fuzz/artifacts:
# `cargo fuzz run TARGET FILE` runs one again.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${T:-60}
scripts/install-tools.sh cargo c++ cargo-fuzz
# libFuzzer's hooks need compiler flags that are not stable. The code has no unsafe, so sanitizers would find nothing.
export RUSTC_BOOTSTRAP=1
cargo fuzz build --sanitizer none

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo fuzz list)
failed=()
for target in "${targets[@]}"; do
    echo "--- $target, $seconds s"
    corpus=fuzz/corpus/$target
    mkdir -p "$corpus"
    cargo fuzz run --sanitizer none "$target" "$corpus" -- -dict=fuzz/words.dict -max_len=2048 -timeout=10 \
        -max_total_time="$seconds" -print_final_stats=1 || failed+=("$target")
done
[ ${#failed[@]} -eq 0 ] || { echo "Failed: ${failed[*]}. The inputs are in fuzz/artifacts." >&2; exit 1; }
