#!/usr/bin/env bash
# Repeats the proofs that docs/design.md describes ("What was proved, and how far?"):
#
#   scripts/prove.sh [worlds] [lemmas] [histories]      all if none is named
#
# `make prove` runs this. Records HISTORIES=10 of a cluster, each for RATELIMIT_HISTORY_SECONDS=60. SEED=1 decides what
# happens in them. Writes the results of worlds and histories to crates/proofs/results/. Installs z3 from PyPI into target/z3
# unless python3 has it.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
[ $# -gt 0 ] || set -- lemmas worlds histories

z3_python() { # prints a python that has z3
    if python3 -c 'import z3' 2>/dev/null; then
        echo python3
        return
    fi
    if ! "$target/z3/bin/python" -c 'import z3' 2>/dev/null; then
        python3 -m venv "$target/z3"
        "$target/z3/bin/pip" install --quiet z3-solver==5.4.1.0 >&2
    fi
    echo "$target/z3/bin/python"
}

# Prints standard input, and writes the tables in it to a page: name of the page, its title
write_page() {
    tee "$target/prove.log"
    {
        printf "# %s\n\nWritten by \`make prove PARTS=%s\` on %s. " "$2" "$1" "$(date -u +%F)"
        printf '[docs/design.md](../../../docs/design.md#what-was-proved-and-how-far) says what the columns mean.\n\n'
        grep '^| \|^|-' "$target/prove.log"
    } >"crates/proofs/results/$1.md"
}

for what in "$@"; do
    case $what in
    lemmas)
        python=$(z3_python)
        "$python" crates/proofs/lemmas/lemmas.py prove
        "$python" crates/proofs/lemmas/lemmas.py check
        cargo test --package redis-ratelimit-engine --lib -- proved
        ;;
    worlds)
        cargo run --profile prove --package redis-ratelimit-proofs | write_page worlds "Worlds that were searched"
        ;;
    histories)
        cargo build --release
        RATELIMIT_HISTORIES=${HISTORIES:-10} RATELIMIT_SEED=${SEED:-1} \
            cargo test --test server histories:: -- --include-ignored --nocapture |
            write_page histories "Histories that were judged"
        ;;
    *)
        echo "no such part: $what" >&2
        exit 1
        ;;
    esac
done
