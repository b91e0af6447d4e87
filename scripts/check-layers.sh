#!/usr/bin/env bash
# Checks that the layers of src/, of the commands and of the engine point one way: a file may import its own layer and lower
# ones. Prints each import that points up, and fails. `make lint` runs this. The compiler keeps the engine and the commands,
# which are crates of their own, below all of src/.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

failed=0

# Prints the lines of files that match a pattern, without comments and tests.
find_lines() {
    local pattern="$1" file
    shift
    for file in "$@"; do
        if sed '/^mod tests/,$d' "$file" | grep -nE "$pattern" | grep -vE '^[0-9]+:\s*//' | sed "s|^|$file:|"; then
            failed=1
        fi
    done
}

# Checks the layers of a folder, which are given from low to high. Tests may import everything.
check_layers() {
    local folder="$1" above='[{]' file at files
    shift
    while read -r file; do
        echo "$file: is in no layer of scripts/check-layers.sh"
        failed=1
    done < <(find "$folder" -name '*.rs' ! -path '*/tests*' | grep -vE "^$folder/($(IFS='|'; echo "$*"))(\.rs|/)")
    for ((at = $#; at > 0; at--)); do
        mapfile -t files < <(find "$folder" -name '*.rs' ! -path '*/tests*' | grep -E "^$folder/(${!at})(\.rs|/)" | sort)
        # An import of several modules at once would hide some, and so would a way up by `super`.
        find_lines "\bcrate::($above)|^(pub )?use super::super" "${files[@]}"
        above="$above|(${!at})\b"
    done
}

# Several of the later ones use the second.
check_layers src 'redis' 'zoneinfo' 'environment|stats' 'state' 'blocking' 'server_call' 'module' 'lib'
check_layers crates/commands/src counter error share limits settings reply policies environment options arguments \
    definitions table keyspace decide waiting call take all settle inspect report dispatch memory lib
check_layers crates/engine/src 'db_key|expiry|refusal|text' 'decimal|line|top_keys' 'entry|period' 'anchor|ban' calendar rule \
    reservation index reservations decision 'throttle|window' request groups store settle decide 'memory|model' \
    'properties' lib
# A function of the module API is called by way of its list, which is checked on load.
mapfile -t files < <(find src -name '*.rs' | grep -vE '^src/redis/(api|fake)\.rs$')
find_lines 'raw::RedisModule_' "${files[@]}"
exit "$failed"
