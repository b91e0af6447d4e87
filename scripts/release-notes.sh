#!/usr/bin/env bash
# Prints the section of one version in CHANGELOG.md, without its heading. Fails if there is none. The release workflow runs
# this.
#
#   scripts/release-notes.sh 0.1.0 [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."

notes=$(awk -v heading="## [$1]" '
    index($0, "## [") == 1 { on = index($0, heading) == 1; next }
    on && !/^\[[^]]*\]: /' "${2:-CHANGELOG.md}")
grep -q '[^[:space:]]' <<<"$notes" || {
    echo "${2:-CHANGELOG.md} has no section '## [$1]' with anything in it." >&2
    exit 1
}
printf '%s\n' "$notes"
