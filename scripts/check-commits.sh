#!/usr/bin/env bash
# Checks each new commit, for `make lint`: its subject is `area: what`, of at most 72 columns and without a full stop, each
# area exists in the tree, and it is no merge.
#
#   scripts/check-commits.sh [FOLDER]
#
# New are the commits in the range COMMITS=, if set and known; otherwise those that origin/main lacks; without origin/main,
# those after the one that added this script. Prints each that fails, and why. Without git or a checkout it does nothing.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# An archive may be unpacked within another project's checkout.
up=$(git rev-parse --show-cdup 2>/dev/null) && [ -z "$up" ] || exit 0

if [ -n "${COMMITS:-}" ] && git rev-list --max-count=1 "$COMMITS" >/dev/null 2>&1; then
    range=$COMMITS
elif git rev-parse --quiet --verify origin/main >/dev/null; then
    range=origin/main..HEAD
else
    range=$(git log --diff-filter=A --format=%H --max-count=1 -- scripts/check-commits.sh)..HEAD
fi

# Succeeds if an area names something in a commit: the end of the path of a folder or of a file without its extension, such as
# `engine`, `clients/rust` or `window`; or `make`, `ci` or `deps`.
exists() {
    [[ $2 =~ ^(make|ci|deps)$ ]] ||
        git ls-tree -r --name-only "$1" | grep -iE "(^|/)${2//./\\.}(\.[a-z]+)*(/|\$)" >/dev/null
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
            exists "$commit" "${area# }" || why="there is no $area in the tree"
        done
    fi
    if [ -n "$why" ]; then
        echo "$commit $subject: $why"
        wrong=1
    fi
done < <(git log --format='%h|%p|%s' "$range" --)
exit $wrong
