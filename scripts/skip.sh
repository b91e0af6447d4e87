#!/usr/bin/env bash
# Says what is skipped and why, and keeps it for the list at the end of `make check`. Scripts with --if-possible run this.
#
#   scripts/skip.sh WHAT WHY     prints it on stderr, and adds it to the file SKIPPED= if set
#   scripts/skip.sh --list       prints that file and empties it; with STRICT=1 fails unless it is empty
set -euo pipefail

if [ "${1:-}" != --list ]; then
    echo "skipped $1: $2" >&2
    [ -z "${SKIPPED:-}" ] || echo "$1: $2" >>"$SKIPPED"
    exit
fi

if ! [ -s "$SKIPPED" ]; then
    echo "make check left nothing out"
    exit
fi
echo "make check left out:"
while read -r line; do echo "  $line"; done <"$SKIPPED"
: >"$SKIPPED"
if [ "${STRICT:-}" = 1 ]; then
    echo "STRICT=1: nothing may be left out" >&2
    exit 1
fi
