#!/usr/bin/env bash
# Runs `cargo test` with the given arguments, then lists the skipped and the failed tests and prints one line of totals.
# `make test` and test-servers.sh run this.
#
#   326 passed, 0 failed, 15 skipped
#
# To cargo, a test that skips itself has passed. Such a test prints a line `skipped NAME: why: make TARGET`, and is counted
# as skipped here, like the tests that cargo ignores. All output is kept in target/test.log, or in LOG=.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
mkdir -p "${CARGO_TARGET_DIR:-target}"
log=${LOG:-${CARGO_TARGET_DIR:-target}/test.log}

CARGO_TERM_COLOR=never cargo test --no-fail-fast "$@" 2>&1 | tee "$log"
status=$?
grep -qE '^ *(Running|Doc-tests) ' "$log" || exit "$((status ? status : 1))"

# Each program that cargo starts ends with a result line; rustdoc may print several. A program that crashed has none and
# counts as one failed test. The output of a test may start in the middle of one of cargo's lines. That of failed tests is
# ignored, because it may look like cargo's own.
summary=$(awk -v log_file="$log" '
    /^---- .* stdout ----$/ { printed = 1 }
    # The last of these lines in a program is followed by the names of the failed tests.
    /^failures:$/ { printed = 0; naming = 1; named = settled }
    printed { next }
    /^ *(Running|Doc-tests) / {
        end_of_program()
        file = $1 == "Doc-tests" ? "doc tests of " $2 : $2 == "unittests" ? $3 : $2
        running = 1; results = by_itself = 0
    }
    match($0, /skipped [A-Za-z0-9_:]+: /) {
        line = substr($0, RSTART + 8); test = line; sub(/: .*/, "", test)
        if (!((file ": " test) in seen)) { seen[file ": " test] = 1; by_itself++; skip(file ": " line) }
    }
    naming && /^    [^ ]/ { failed_tests[++named] = file ": " substr($0, 5) }
    match($0, /^test .* \.\.\. ignored/) {
        test = substr($0, 6, RLENGTH - 17); why = substr($0, RLENGTH + 1); sub(/^, /, "", why)
        skip(file ": " test (why ? ": " why : ""))
    }
    /^test result: / {
        results++; naming = 0
        # One that skipped itself and then failed was not counted as passed by cargo.
        while (settled < named) if (failed_tests[++settled] in seen) by_itself--
        for (i = 2; i <= NF; i++) { if ($i == "passed;") passed += $(i - 1); if ($i == "failed;") failed += $(i - 1) }
    }
    function end_of_program() {
        if (running && !results) crashed[++crashes] = file
        else passed -= by_itself
        running = 0
    }
    function skip(what) {
        if (!skipped++) print "\nskipped here:"
        print "  " what
        if (match(what, /: (make [a-z-]+|cargo test .*)$/)) by[substr(what, RSTART + 2)]++
    }
    END {
        end_of_program()
        for (command in by) print "  \"" command "\" runs " by[command] " of them"
        if (crashes) print "\ncrashed, each counted as one failed test:"
        for (i = 1; i <= crashes; i++) print "  " crashed[i]
        if (settled) print "\nfailed, with the output in " log_file ":"
        for (i = 1; i <= settled; i++) print "  " failed_tests[i]
        printf "\n%d passed, %d failed", passed, failed + crashes
        if (skipped) printf ", %d skipped", skipped
        print ""
    }' "$log")
printf '%s\n' "$summary" | tee -a "$log"
exit $status
