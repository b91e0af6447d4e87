#!/usr/bin/env bash
# Checks that the layers of src/ point one way: a file may import its own layer and lower ones. The same is checked for the
# files of the commands, each of which is a layer, and for some modules of the engine. Prints each import that points up, and
# fails. `make lint` runs this. The compiler keeps the engine and the commands, which are crates of their own, below all of
# src/.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

failed=0

# Prints the lines of files that match a pattern, without comments.
find_lines() {
    if grep -nE "$@" /dev/null | grep -vE '^[^:]*:[0-9]+:\s*//'; then failed=1; fi
}

# Checks the layers of a folder, which are given from low to high. Tests may import everything.
check_layers() {
    local folder="$1" above='[{]' file at files
    shift
    while read -r file; do
        echo "$file: is in no layer of scripts/check-layers.sh"
        failed=1
    done < <(find "$folder" -name '*.rs' ! -name tests.rs | grep -vE "^$folder/($(IFS='|'; echo "$*"))(\.rs|/)")
    for ((at = $#; at > 0; at--)); do
        mapfile -t files < <(find "$folder" -name '*.rs' ! -name tests.rs | grep -E "^$folder/(${!at})(\.rs|/)" | sort)
        # An import of several modules at once would hide some, and so would a way up by `super`.
        find_lines "\bcrate::($above)|^(pub )?use super::super" "${files[@]}"
        above="$above|(${!at})\b"
    done
}

# The second is what several of the next use.
check_layers src 'redis' 'environment|stats' 'state' 'blocking' 'server_call' 'module' 'lib'
check_layers crates/commands/src counter error share limits settings reply policies environment options arguments \
    definitions table decide waiting call take all settle inspect report dispatch memory lib
# In the engine, the first module of a pair uses the second. Only tests of the second use the first.
for pair in 'reservations index' 'decide groups' 'store throttle' 'store window'; do
    read -r upper lower <<< "$pair"
    for module in "$upper" "$lower"; do
        if [ ! -e "crates/engine/src/$module.rs" ]; then
            echo "$module is no module of the engine"
            failed=1
        fi
    done
    mapfile -t files < <(find crates/engine/src -name '*.rs' ! -name tests.rs | grep -E "/src/$lower(\.rs|/)")
    find_lines "\bcrate::($upper\b|[{])" "${files[@]}"
done
# A function of the module API is called by way of its list, which is checked on load.
mapfile -t files < <(find src -name '*.rs' | grep -vE '^src/redis/(api|fake)\.rs$')
find_lines 'raw::RedisModule_' "${files[@]}"
exit "$failed"
