#!/usr/bin/env bash
# Checks that the layers of src/ point one way: a file may import its own layer and lower ones. The same is checked for some
# modules of the engine. Prints each import that points up, and fails. `make lint` runs this. The compiler keeps the engine
# and the commands, which are crates of their own, below all of src/.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# From low to high. The second is what several of the next use; in the last, tests count allocations by calling everything.
layers=('redis' 'reply|config|environment|stats' 'state' 'keys' 'blocking' 'server_call' 'module' 'lib|tests')
above='[{]' failed=0

# Prints the lines of files that match a pattern, without comments.
find_lines() {
    if grep -nE "$@" /dev/null | grep -vE '^[^:]*:[0-9]+:\s*//'; then failed=1; fi
}

while read -r file; do
    echo "$file: is in no layer of scripts/check-layers.sh"
    failed=1
done < <(find src -name '*.rs' | grep -vE "^src/($(IFS='|'; echo "${layers[*]}"))(\.rs|/)")
for ((at = ${#layers[@]} - 1; at >= 0; at--)); do
    mapfile -t files < <(find src -name '*.rs' | grep -E "^src/(${layers[at]})(\.rs|/)" | sort)
    # An import of several modules at once would hide some, and so would a way up by `super`.
    find_lines "\bcrate::($above)|^(pub )?use super::super" "${files[@]}"
    above="$above|(${layers[at]})\b"
done
# In the engine, the first module of a pair uses the second. Only tests of the second use the first.
for pair in 'held index' 'decide groups'; do
    read -r upper lower <<< "$pair"
    mapfile -t files < <(find crates/engine/src -name '*.rs' ! -name tests.rs | grep -E "/src/$lower(\.rs|/)")
    find_lines "\bcrate::($upper\b|[{])" "${files[@]}"
done
# A function of the module API is called by way of its list, which is checked on load.
mapfile -t files < <(find src -name '*.rs' | grep -vE '^src/redis/(api|fake)\.rs$')
find_lines 'raw::RedisModule_' "${files[@]}"
exit "$failed"
