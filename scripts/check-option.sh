#!/usr/bin/env bash
# Adds the made-up option FLOOR to a copy of the tree with tests/option/floor.patch, and runs its tests. So docs/design.md
# names every file that an option needs, and the tables still derive the rest. `make check` runs this.
#
#   scripts/check-option.sh
set -euo pipefail
cd "$(dirname "$0")/.."

patch=tests/option/floor.patch
# A target of its own: the crates of a copy have the same names for cargo, which would build the module from the wrong ones.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/option
tree=$target/tree

section=$(sed -n '/^\*\*To add an option/,/^\*\*To add a command/p' docs/design.md)
while read -r file; do
    if ! grep -qF "\`$file\`" <<<"$section"; then
        echo "$patch changes $file, which docs/design.md does not name under \"To add an option\"" >&2
        exit 1
    fi
done < <(sed -n 's|^+++ b/||p' "$patch")

scripts/install-tools.sh cargo cc patch
rm -rf "$tree"
mkdir -p "$tree"
# Not with their times, because a file that the patch no longer changes must be built again.
tar --create --exclude=./target --exclude=./.git --exclude=node_modules . | tar --extract --touch --directory "$tree"
if ! patch --directory "$tree" --strip 1 --fuzz 0 --no-backup-if-mismatch <"$patch" ||
    ! CARGO_TARGET_DIR=$target cargo test --locked --manifest-path "$tree/Cargo.toml" --package redis-ratelimit-commands \
        --lib -- arguments:: options:: a_floor_must_be_available; then
    cat >&2 <<EOF

$patch no longer works. To make it again, in a clean tree:

    patch --strip 1 --fuzz 3 <$patch     # then do by hand what is in *.rej, and remove *.rej and *.orig
    cargo test --package redis-ratelimit-commands
    git diff --unified=1 >/tmp/floor.patch
    git checkout --quiet . && mv /tmp/floor.patch $patch

If it has to change one more file now, name that in docs/design.md, or better derive what it says from the option's row.
EOF
    exit 1
fi
