#!/usr/bin/env bash
# Runs `cargo test` with the arguments given, and ends with what was skipped and one line of totals:
#
#   326 passed, 0 failed, 15 skipped
#
# cargo calls a test that skips itself passed. Such a test prints a line `skipped NAME: why: make TARGET`, and is counted
# as skipped here. So are the tests that cargo ignores. All of the output stays in target/test.log, or in LOG=.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
mkdir -p "${CARGO_TARGET_DIR:-target}"
log=${LOG:-${CARGO_TARGET_DIR:-target}/test.log}

CARGO_TERM_COLOR=never cargo test --no-fail-fast "$@" 2>&1 | tee "$log"
status=$?
grep -q '^ *Running ' "$log" || exit "$((status ? status : 1))"

# A line of a test may stand behind the beginning of a line of cargo's. A file of tests that crashed has no result line,
# and counts as one failed test.
summary=$(awk '
    /^ *Running / { file = $2 == "unittests" ? $3 : $2; running++ }
    match($0, /skipped [A-Za-z0-9_:]+: /) {
        line = substr($0, RSTART + 8); test = line; sub(/: .*/, "", test)
        if (!((file, test) in seen)) { seen[file, test]; skip(file ": " line) }
    }
    match($0, /^test [A-Za-z0-9_:]+ \.\.\. ignored/) {
        why = $0; sub(/^test [^ ]* ... ignored(, )?/, "", why); skip(file ": " $2 ": " why); ignored++
    }
    /^test result: / {
        results++
        for (i = 2; i <= NF; i++) { if ($i == "passed;") passed += $(i - 1); if ($i == "failed;") failed += $(i - 1) }
    }
    function skip(what) {
        if (!skipped++) print "\nskipped here:"
        print "  " what
        if (match(what, /: (make [a-z-]+|cargo test .*)$/)) by[substr(what, RSTART + 2)]++
    }
    END {
        for (command in by) print "  \"" command "\" runs " by[command] " of them"
        failed += running - results
        printf "\n%d passed, %d failed", passed - (skipped - ignored), failed
        if (skipped) printf ", %d skipped", skipped
        print ""
    }' "$log")
printf '%s\n' "$summary" | tee -a "$log"
exit $status
