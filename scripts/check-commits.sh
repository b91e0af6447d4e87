#!/usr/bin/env bash
# Checks each new commit, for `make lint`: its subject is `area: what`, of at most 72 columns and without a full stop, each
# area identifies one place in the tree, its body is wrapped at 72 columns, and it is no merge.
#
#   scripts/check-commits.sh [FOLDER]
#
# New are the commits in the range COMMITS=, if set and known; otherwise those that origin/main lacks; without origin/main,
# those after the last change of this script. Prints each that fails, and why. Without git or a checkout it does nothing.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# An archive may be unpacked within another project's checkout.
up=$(git rev-parse --show-cdup 2>/dev/null) && [ -z "$up" ] || exit 0

if [ -n "${COMMITS:-}" ] && git rev-list --max-count=1 "$COMMITS" >/dev/null 2>&1; then
    range=$COMMITS
elif git rev-parse --quiet --verify origin/main >/dev/null; then
    range=origin/main..HEAD
else
    range=$(git log --max-count=1 --format=%H -- scripts/check-commits.sh)..HEAD
fi

# Prints the paths in a commit that end with an area, without extensions and the src/ of a crate.
places() {
    git ls-tree -r --name-only "$1" | sed 's,/src/,/,' |
        grep -oiE "^(.*/)?${2//./\\.}(\.[a-z]+)*(/|\$)" | sed -E 's,(\.[a-z]+)*/?$,,' | sort -fu || true
}

# Says what is wrong with an area, which is make, ci, deps, the whole path of a place, or the end of only one: the area of
# crates/engine/src/line.rs is engine/line, or line if there is no other.
check_area() {
    local found
    [[ ! $2 =~ ^(make|ci|deps)$ ]] || return 0
    mapfile -t found < <(places "$1" "$2")
    if [ ${#found[@]} = 0 ]; then
        echo "there is no $2 in the tree"
    elif [ ${#found[@]} -gt 1 ] && ! printf '%s\n' "${found[@]}" | grep -ixE "(crates/)?$2" >/dev/null; then
        echo "$2 may be any of: ${found[*]}"
    fi
}

wrong=0
while IFS='|' read -r commit parents subject; do
    why=
    if [[ $parents == *' '* ]]; then
        why="a merge: rebase instead"
    elif [ ${#subject} -gt 72 ]; then
        why="${#subject} columns, and 72 are allowed"
    elif ! [[ $subject =~ ^[A-Za-z][A-Za-z0-9._/,\ -]*:\ [^\ ].*[^.]$ ]]; then
        why="not of the form \`area: what\`, without a full stop"
    else
        IFS=',' read -ra areas <<<"${subject%%:*}"
        for area in "${areas[@]}"; do
            why=${why:-$(check_area "$commit" "${area# }")}
        done
    fi
    # Tables, lines that are indented and single long words stay as they are.
    while IFS= read -r line; do
        if [ ${#line} -gt 72 ] && [[ $line =~ ^[^\ \|].*\  ]]; then
            why=${why:-"${#line} columns, and 72 are allowed: $line"}
        fi
    done < <(git show --no-patch --format=%b "$commit")
    if [ -n "$why" ]; then
        echo "$commit $subject: $why"
        wrong=1
    fi
done < <(git log --format='%h|%p|%s' "$range" --)
exit $wrong
